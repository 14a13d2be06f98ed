//! The quota of a live tree counts bytes as they are written. Near its end the tree is measured, so that removed bytes make room again.

use std::time::Instant;

use amalgam_engine::SnapshotId;
use amalgam_proto::Reason;
use amalgam_transfer::{Progress, added};

use super::quota_measurement::{QuotaMeasurement, is_due};
use super::{LiveView, LockedView, Views, checkpoint_reference};
use crate::error::Result;

impl Views {
    /// Measures a live tree that is near its quota: a checkpoint of it, compared with the last snapshot.
    pub(super) fn measure_quota(&self, id: u64, live: &LiveView) -> Result<()> {
        let Some(quota) = live.view.quota() else { return Ok(()) };
        let last = *live.measured.lock();
        let is_changed = last.is_none_or(|last| last.version != Some(live.view.version()));
        if !is_due(quota, is_changed, last.as_ref(), Instant::now()) {
            return Ok(());
        }
        let locked = self.lock_view(id)?;
        let began = Instant::now();
        match self.measure_checkpoint(&locked) {
            Err(failure) if failure.reason() == Reason::Full => {}
            done => done?,
        }
        let (version, used_bytes) = (Some(live.view.version()), live.view.quota().map_or(0, |quota| quota.used_bytes));
        let measured = QuotaMeasurement { ended: Instant::now(), took: began.elapsed(), version, used_bytes };
        *live.measured.lock() = Some(measured);
        Ok(())
    }

    fn measure_checkpoint(&self, locked: &LockedView) -> Result<()> {
        self.checkpoint(locked)?;
        let found = self.context.store.read_ref(&checkpoint_reference(locked.id))?;
        let Some(target) = found.and_then(|value| value.target) else { return Ok(()) };
        let root = self.context.store.snapshot(SnapshotId::from_bytes(target.hash))?.root;
        let parents: Vec<_> = locked.live.view.head().into_iter().collect();
        let bytes = added(&self.context.store, root, &parents, &Progress::default())?.bytes;
        locked.live.view.set_checkpointed_bytes(bytes);
        Ok(())
    }
}
