//! Commits a working tree: freeze, snapshot, and one transaction that stores both and moves a reference to the snapshot.

use std::collections::BTreeMap;

use crate::backend::Durability;
use crate::changed_paths::{ChangedPaths, MarkBuilder};
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::id::{ObjectKind, RootId, SnapshotId};
use crate::name::TreePath;
use crate::object::{GENERATION_MAX, KeyHash, Node, Snapshot};
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::store::{RefMove, SessionPin, Store, WriteSession};
use crate::time::Time;
use crate::work::{Frozen, WorkingTree, WrittenTree};

/// The parameters of a commit.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The reference to move to the new snapshot.
    pub reference: RefName,
    /// The expected current value of the reference.
    pub expect: Expect,
    /// Further parents in addition to the tree's base, for a merge.
    pub other_parents: Vec<SnapshotId>,
    /// The author.
    pub author: String,
    /// The time.
    pub time: Time,
    /// The commit message.
    pub message: String,
    /// Further small key-value pairs to store with the snapshot.
    pub metadata: BTreeMap<String, String>,
    /// The durability required before the commit is acknowledged.
    pub durability: Durability,
    /// Makes a retry return the result of the first attempt.
    pub request: Option<RequestId>,
}

/// The expected value of a reference before a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// The tree's base; absent if the tree has no base.
    #[default]
    Base,
    /// The reference does not exist.
    Absent,
    /// This snapshot.
    At(SnapshotId),
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitDone {
    /// The new snapshot.
    pub snapshot: SnapshotId,
    /// The sequence number of the operation in the log.
    pub operation: u64,
    /// Whether this is the result of an earlier attempt with the same request id. Nothing was changed this time.
    pub replayed: bool,
}

impl Commit {
    /// Creates a durable commit that moves a reference from the tree's base to the new snapshot.
    pub fn new(reference: &RefName, message: impl Into<String>) -> Self {
        Self {
            reference: reference.clone(),
            expect: Expect::Base,
            other_parents: Vec::new(),
            author: String::new(),
            time: Time::EPOCH,
            message: message.into(),
            metadata: BTreeMap::new(),
            durability: Durability::Durable,
            request: None,
        }
    }

    /// Makes the commit buffered: it survives a crash of the process but not a power failure.
    #[must_use]
    pub fn buffered(mut self) -> Self {
        self.durability = Durability::Buffered;
        self
    }

    /// Sets the expected value of the reference.
    #[must_use]
    pub fn expecting(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// Sets the author and the time.
    #[must_use]
    pub fn by(mut self, author: impl Into<String>, time: Time) -> Self {
        self.author = author.into();
        self.time = time;
        self
    }
}

/// The fields of a snapshot that are neither its tree nor its parents.
pub(crate) struct SnapshotDetails {
    pub(crate) author: String,
    pub(crate) time: Time,
    pub(crate) message: String,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A frozen tree that has been written but has no snapshot yet.
pub(crate) struct PreparedCommit {
    frozen: Frozen,
    session: WriteSession,
    written: WrittenTree,
}

/// A committed tree whose working tree has not settled on it yet.
pub struct CommittedTree {
    /// The result of the commit.
    pub done: CommitDone,
    frozen: Frozen,
    /// `None` if a replayed request had committed a different tree.
    written: Option<(WrittenTree, SessionPin)>,
}

impl Frozen {
    /// Commits the frozen tree. The working tree may be edited in the meantime and settles afterwards.
    ///
    /// If the reference does not have the expected value, nothing changes and the error contains the actual value.
    pub fn commit(self, commit: Commit) -> Result<CommittedTree> {
        let expected = match commit.expect {
            Expect::Base => self.base(),
            Expect::Absent => None,
            Expect::At(snapshot) => Some(snapshot),
        };
        let operation = OperationDraft {
            actor: commit.author.clone(),
            time: commit.time,
            action: "commit".to_owned(),
            request: commit.request,
            reverts: None,
        };
        let mut parents: Vec<_> = self.base().into_iter().collect();
        parents.extend(commit.other_parents);
        let details = SnapshotDetails {
            author: commit.author,
            time: commit.time,
            message: commit.message,
            metadata: commit.metadata,
        };
        let (name, durability) = (commit.reference, commit.durability);
        self.prepare()?.land(parents, details, |snapshot| {
            Ok(RefMove {
                expect: vec![(name.clone(), expected.map(RefValue::to))],
                set: vec![(name, Some(RefValue::to(snapshot)))],
                operation,
                durability,
            })
        })
    }

    /// Writes the tree into a new session.
    pub(crate) fn prepare(self) -> Result<PreparedCommit> {
        let session = self.store().session();
        let written = self.write_root(&session)?;
        Ok(PreparedCommit { frozen: self, session, written })
    }
}

impl PreparedCommit {
    /// Returns the root of the written tree.
    pub(crate) fn root(&self) -> RootId {
        self.written.id
    }

    /// Creates a snapshot of the tree and moves references to it. The first reference that is set points at the snapshot.
    pub(crate) fn land(
        self,
        parents: Vec<SnapshotId>,
        details: SnapshotDetails,
        refs: impl FnOnce(SnapshotId) -> Result<RefMove>,
    ) -> Result<CommittedTree> {
        let Self { frozen, session, mut written } = self;
        let store = frozen.store().clone();
        let pin = session.pin().clone();
        let generation = generation_above(&store, &parents)?;
        let SnapshotDetails { author, time, message, metadata } = details;
        let touched = parents.first().and_then(|first| changed_paths_since(&store, *first, &mut written));
        let snapshot = Snapshot { root: written.id, parents, author, time, message, metadata, generation };
        let snapshot = session.put_snapshot_with_changes(snapshot, touched)?;
        let committed = session.commit(written.id, refs(snapshot)?)?;
        let operation = committed.operation.expect("a commit writes its operation");
        if !committed.replayed {
            let done = CommitDone { snapshot, operation: operation.sequence, replayed: false };
            return Ok(CommittedTree { done, frozen, written: Some((written, pin)) });
        }
        let first = replayed_snapshot(&operation)?;
        let done = CommitDone { snapshot: first, operation: operation.sequence, replayed: true };
        let held = match store.snapshot(first) {
            Ok(snapshot) if snapshot.root == written.id => store.hold(written.id).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        // The result of the request may have been deleted by now; then the tree stays unchanged.
        let written = match held {
            Ok(Some(pin)) => Some((written, SessionPin::stored(pin))),
            Ok(None) | Err(Error::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(CommittedTree { done, frozen, written })
    }
}

/// Returns the paths that a written tree changed relative to a snapshot, if they can be determined. A tree whose root directory
/// is that of the snapshot with edits has tracked them; otherwise the two trees are compared. Returns `None` for a tree that
/// cannot be read: callers that need the paths must compare the trees.
pub(crate) fn changed_paths_since(
    store: &Store,
    first_parent: SnapshotId,
    written: &mut WrittenTree,
) -> Option<ChangedPaths> {
    let before = store.snapshot(first_parent).ok()?.root;
    if let Some((base, marks)) = written.marks.take()
        && store.root(before).ok()?.directory.node == Node::Directory(base)
    {
        return marks.finish();
    }
    changed_paths_between(store, before, written.id).ok().flatten()
}

/// Returns the paths that differ between two stored trees, or `None` if there are too many.
fn changed_paths_between(store: &Store, before: RootId, after: RootId) -> Result<Option<ChangedPaths>> {
    let mut marks = MarkBuilder::default();
    let mut above = TreePath::root();
    for change in diff_roots(store, Some(before), Some(after), DiffOptions::default())? {
        // The root has no mark: a caller that asks about the root must compare.
        let Some((parent, name)) = change?.path.split_last() else { continue };
        let mut here = KeyHash::new(0);
        for name in parent.names() {
            here = here.add(name.as_bytes()).add(b"/");
            // Changes in one directory are consecutive.
            if parent != above {
                marks.add(here);
            }
        }
        marks.add(here.add(name.as_bytes()));
        above = parent;
        if marks.are_too_many() {
            return Ok(None);
        }
    }
    Ok(marks.finish())
}

/// Returns one more than the greatest generation of the parents. A deleted parent counts as generation 0.
pub(crate) fn generation_above(store: &Store, parents: &[SnapshotId]) -> Result<u64> {
    let mut generation = 0;
    for parent in parents {
        let of_parent = match store.snapshot(*parent) {
            Ok(snapshot) => snapshot.generation,
            Err(Error::Missing { .. }) => 0,
            Err(error) => return Err(error),
        };
        if of_parent >= GENERATION_MAX {
            let why = format!("{} claims generation {of_parent}, the greatest possible one", parent.short());
            return Err(Error::Invalid { what: "parent", why });
        }
        generation = generation.max(of_parent + 1);
    }
    Ok(generation)
}

fn replayed_snapshot(operation: &Operation) -> Result<SnapshotId> {
    let after = operation.changes.first().and_then(|change| change.after.as_ref());
    match after.and_then(|value| value.target) {
        Some(target) if target.kind == ObjectKind::Snapshot => Ok(SnapshotId::from_bytes(target.hash)),
        _ => Err(Error::Invalid { what: "request id", why: "it belongs to another kind of request".to_owned() }),
    }
}

impl WorkingTree {
    /// Commits the tree. Afterwards its base is the new snapshot.
    pub fn commit(&mut self, commit: Commit) -> Result<CommitDone> {
        let landed = self.freeze().commit(commit)?;
        let done = landed.done.clone();
        self.settle(landed)?;
        Ok(done)
    }

    /// Makes a committed freeze of this tree its base. Only edits made since the freeze stay dirty.
    pub fn settle(&mut self, landed: CommittedTree) -> Result<()> {
        match landed.written {
            Some((written, pin)) => self.settle_on(&landed.frozen, written, landed.done.snapshot, pin),
            None => Ok(()),
        }
    }
}
