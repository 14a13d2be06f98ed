//! Result of an import: snapshots that are stored and pinned, and that no name points at yet.

use std::collections::BTreeMap;

use amalgam_engine::history::mark_foreign;
use amalgam_engine::object::Snapshot;
use amalgam_engine::{
    Assembly, OperationContext, Pin, RefMove, RootId, SnapshotId, Store, Time, WorkingTree, WriteSession,
};

use crate::error::Result;
use crate::report::Report;

/// Author, time and message of the snapshot of a format without history.
#[derive(Clone, Debug, Default)]
pub struct SnapshotInfo {
    /// The author.
    pub author: String,
    /// The time.
    pub time: Time,
    /// The message.
    pub message: String,
    /// Further metadata of the snapshot.
    pub metadata: BTreeMap<String, String>,
}

/// Imported snapshots. They stay in the store while this lives; a reference that is moved meanwhile keeps them for good.
pub struct Imported {
    store: Store,
    /// From the oldest to the newest. An incremental import lists only new ones.
    pub snapshots: Vec<SnapshotId>,
    /// The newest snapshot, which has all others in its history.
    pub head: SnapshotId,
    /// Its tree.
    pub root: RootId,
    /// Counts, and notices about data that could not be imported.
    pub report: Report,
    kept: ImportPins,
}

/// Guards that protect imported objects from collection.
#[derive(Default)]
#[expect(dead_code, reason = "they are held, not read")]
pub(crate) struct ImportPins {
    pub(crate) assemblies: Vec<Assembly>,
    pub(crate) trees: Vec<WorkingTree>,
    pub(crate) pins: Vec<Pin>,
    pub(crate) session: Option<WriteSession>,
}

impl Imported {
    pub(crate) fn new(
        store: &Store,
        snapshots: Vec<SnapshotId>,
        head: SnapshotId,
        report: Report,
        kept: ImportPins,
    ) -> Result<Self> {
        let root = store.snapshot(head)?.root;
        Ok(Self { store: store.clone(), snapshots, head, root, report, kept })
    }

    /// Marks the snapshots as history from elsewhere, so that checkouts withhold set-id bits and devices. To be called before a
    /// reference shows them.
    pub fn mark_foreign(&self, act: &OperationContext) -> Result<()> {
        Ok(mark_foreign(&self.store, [self.head], act)?)
    }

    /// Marks the snapshots as foreign, then moves references to them in one transaction.
    pub fn land(mut self, act: &OperationContext, refs: RefMove) -> Result<()> {
        self.mark_foreign(act)?;
        let session = self.kept.session.take().unwrap_or_else(|| self.store.session());
        session.commit(self.root, refs)?;
        Ok(())
    }
}

/// Puts a snapshot of a tree that was built, and returns its id and root.
pub(crate) fn put_snapshot(
    session: &WriteSession,
    tree: &WorkingTree,
    parent: Option<SnapshotId>,
    words: SnapshotInfo,
) -> Result<SnapshotId> {
    let root = tree.freeze().write(session)?;
    let generation = match parent {
        Some(parent) => session.store().snapshot(parent)?.generation + 1,
        None => 0,
    };
    let SnapshotInfo { author, time, message, metadata } = words;
    let parents = parent.into_iter().collect();
    let snapshot = Snapshot { root, parents, author, time, message, metadata, generation };
    let id = session.put_snapshot(snapshot)?;
    session.write_all_ahead()?;
    Ok(id)
}

/// Makes one snapshot of a tree that was built.
pub(crate) fn import_single(
    store: &Store,
    tree: WorkingTree,
    report: Report,
    parent: Option<SnapshotId>,
    words: SnapshotInfo,
) -> Result<Imported> {
    let session = store.session();
    let snapshot = put_snapshot(&session, &tree, parent, words)?;
    let report = Report { snapshots: 1, ..report };
    let kept = ImportPins { trees: vec![tree], session: Some(session), ..ImportPins::default() };
    Imported::new(store, vec![snapshot], snapshot, report, kept)
}
