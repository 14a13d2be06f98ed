//! Events of the radar: operations that set and remove the reference of an overlap. They are written while a subscriber names their
//! kinds, so a store in which no subscriber listens has no such operations.

use std::collections::BTreeSet;

use amalgam_engine::operation::set_reference;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{OperationContext, TreePath};

use super::{CHECK_INTERVAL, IDLE_INTERVAL, Radar, Scan};
use crate::call_log::warn_failure;
use crate::error::Result;
use crate::notices::{OVERLAP_BEGAN, OVERLAP_ENDED, OVERLAP_PREFIX, OverlapNote};

/// The actor in the operation log for events of the radar.
const RADAR: &str = "radar";
/// The most overlaps that have a reference.
const OVERLAPS_MAX: usize = 10_000;
/// The most bytes of the note of a reference.
const NOTE_BYTES_MAX: usize = 64 << 10;
/// The most workspaces in the note of an overlap.
const NAMES_MAX: usize = 100;

impl Radar {
    /// Ends the thread that writes events.
    pub(crate) fn end_watching(&self) {
        *self.inner.ending.lock() = true;
        self.inner.changed.notify_one();
    }

    /// Writes events until the process ends: refusals of the policy, and overlaps while a subscriber listens for them.
    pub(crate) fn keep_watching(&self) {
        let mut is_told = false;
        loop {
            let is_wanted = self.context.overlap_listeners.is_any();
            {
                let mut ending = self.inner.ending.lock();
                if !*ending {
                    let wait = if is_wanted && is_told { CHECK_INTERVAL } else { IDLE_INTERVAL };
                    self.inner.changed.wait_for(&mut ending, wait);
                }
                if *ending {
                    return;
                }
            }
            let _using = self.context.using();
            if let Err(failure) = self.context.permissions.write_refusals(self.context.now()) {
                warn_failure(&failure, "refusals of the policy cannot be recorded");
            }
            if !self.context.overlap_listeners.is_any() {
                is_told = false;
                continue;
            }
            if let Err(failure) = self.tell_changes(&mut is_told) {
                warn_failure(&failure, "the radar cannot tell overlaps");
                is_told = false;
            }
        }
    }

    /// Writes the overlaps that began and ended since the last call. The first call compares all overlaps with the recorded ones.
    pub(super) fn tell_changes(&self, is_told: &mut bool) -> Result<()> {
        let mut scan = self.inner.scan.lock();
        self.refresh(&mut scan)?;
        let mut changed = scan.index.take_changed();
        if !*is_told {
            changed.extend(scan.index.overlaps(None, |_| true, None, OVERLAPS_MAX));
            changed.extend(self.recorded()?);
            *is_told = true;
        }
        for path in changed {
            self.tell(&scan, &path)?;
        }
        Ok(())
    }

    /// Reads the paths of the recorded overlaps.
    fn recorded(&self) -> Result<Vec<TreePath>> {
        let found = self.context.store.list_refs(OVERLAP_PREFIX, None, OVERLAPS_MAX)?;
        let path = |(_, value): &(RefName, RefValue)| {
            let note: OverlapNote = serde_json::from_slice(&value.note).ok()?;
            TreePath::new(&note.path).ok()
        };
        Ok(found.iter().filter_map(path).collect())
    }

    fn tell(&self, scan: &Scan, path: &TreePath) -> Result<()> {
        let sides = scan.index.sides(path);
        let Ok(text) = std::str::from_utf8(path.as_bytes()) else { return Ok(()) };
        let name = reference(path);
        let before = self.context.store.read_ref(&name)?;
        let known: Option<OverlapNote> = before.as_ref().and_then(|value| serde_json::from_slice(&value.note).ok());
        let now = (sides.len() > 1).then(|| OverlapNote {
            path: text.to_owned(),
            workspaces: sides.iter().take(NAMES_MAX).map(|side| side.workspace.to_string()).collect(),
            since: sides[1].since.0,
        });
        let names = |note: &Option<OverlapNote>| -> BTreeSet<String> {
            note.iter().flat_map(|note| note.workspaces.iter().cloned()).collect()
        };
        if names(&known) == names(&now) {
            return Ok(());
        }
        let has_joined = !names(&now).is_subset(&names(&known));
        let action = if has_joined { OVERLAP_BEGAN } else { OVERLAP_ENDED };
        let value = match &now {
            Some(note) => {
                let note = serde_json::to_vec(note).expect("a note is plain values");
                // A path this long has no events.
                if note.len() > NOTE_BYTES_MAX {
                    return Ok(());
                }
                Some(RefValue { target: None, keeps: Vec::new(), note: note.into() })
            }
            None => None,
        };
        let act = OperationContext::new(RADAR, self.context.now()).buffered();
        Ok(set_reference(&self.context.store, &name, value.as_ref(), &act, action).map(drop)?)
    }
}

/// Returns the name of an overlap's reference. It has a hash, because paths can be longer than names.
fn reference(path: &TreePath) -> RefName {
    let hash = blake3::hash(path.as_bytes()).to_hex();
    RefName::new(format!("{OVERLAP_PREFIX}{hash}")).expect("the name is valid")
}
