//! Commit: freeze, snapshot, and one transaction that makes both part of the store and moves a name to them.

use std::collections::BTreeMap;

use crate::backend::Durability;
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::id::{ObjectKind, RootId, SnapshotId};
use crate::name::TreePath;
use crate::object::{GENERATION_MAX, KeyHash, Node, Snapshot};
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::store::{RefMove, SessionMark, Store, WriteSession};
use crate::time::Time;
use crate::touched::{Marks, Touched};
use crate::work::{Frozen, WorkingTree, Written};

/// What a commit is to say and do.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The name that moves to the new snapshot.
    pub reference: RefName,
    /// Where that name must stand now.
    pub expect: Expect,
    /// Parents beside the tree's base, after a merge.
    pub other_parents: Vec<SnapshotId>,
    /// Who.
    pub author: String,
    /// When.
    pub time: Time,
    /// Why, in words.
    pub message: String,
    /// Whatever else is to be kept with it, small.
    pub metadata: BTreeMap<String, String>,
    /// When it counts as done.
    pub durability: Durability,
    /// Makes a retry return the first try's result.
    pub request: Option<RequestId>,
}

/// Where a name must stand for a commit to move it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// At the tree's base; nowhere yet if the tree has none.
    #[default]
    Base,
    /// Nowhere yet.
    Absent,
    /// At this snapshot.
    At(SnapshotId),
}

/// A commit that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitDone {
    /// The new snapshot.
    pub snapshot: SnapshotId,
    /// Its place in the operation log.
    pub operation: u64,
    /// True when the request had been done before: nothing was changed now.
    pub replayed: bool,
}

impl Commit {
    /// A durable commit that moves a name from the tree's base to the new snapshot.
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

    /// The same, in the log only: survives the process, not a power cut.
    #[must_use]
    pub fn buffered(mut self) -> Self {
        self.durability = Durability::Buffered;
        self
    }

    /// The same, with another idea of where the name stands.
    #[must_use]
    pub fn expecting(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// The same, by somebody at some time.
    #[must_use]
    pub fn by(mut self, author: impl Into<String>, time: Time) -> Self {
        self.author = author.into();
        self.time = time;
        self
    }
}

/// What a snapshot says of itself.
pub(crate) struct Words {
    pub(crate) author: String,
    pub(crate) time: Time,
    pub(crate) message: String,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A frozen tree that was written and waits for its snapshot.
pub(crate) struct Prepared {
    frozen: Frozen,
    session: WriteSession,
    written: Written,
}

/// A frozen tree that was committed; its working tree has yet to settle on it.
pub struct Landed {
    /// What was done.
    pub done: CommitDone,
    frozen: Frozen,
    /// Nothing when a replayed request had committed another tree.
    written: Option<(Written, SessionMark)>,
}

impl Frozen {
    /// Commits the tree as it was frozen. The working tree may be edited on in the meantime, and settles afterwards.
    ///
    /// When the name stands elsewhere than expected, nothing changes and the error carries where it stands.
    pub fn commit(self, commit: Commit) -> Result<Landed> {
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
        let words =
            Words { author: commit.author, time: commit.time, message: commit.message, metadata: commit.metadata };
        let (name, durability) = (commit.reference, commit.durability);
        self.prepare()?.land(parents, words, |snapshot| {
            Ok(RefMove {
                expect: vec![(name.clone(), expected.map(RefValue::to))],
                set: vec![(name, Some(RefValue::to(snapshot)))],
                operation,
                durability,
            })
        })
    }

    /// Writes the tree into a session of its own.
    pub(crate) fn prepare(self) -> Result<Prepared> {
        let session = self.store().session();
        let written = self.write_root(&session)?;
        Ok(Prepared { frozen: self, session, written })
    }
}

impl Prepared {
    /// The tree that was written.
    pub(crate) fn root(&self) -> RootId {
        self.written.id
    }

    /// Makes a snapshot of it, and moves references to that. The first one that is set points at it.
    pub(crate) fn land(
        self,
        parents: Vec<SnapshotId>,
        words: Words,
        refs: impl FnOnce(SnapshotId) -> Result<RefMove>,
    ) -> Result<Landed> {
        let Self { frozen, session, mut written } = self;
        let store = frozen.store().clone();
        let mark = session.mark().clone();
        let generation = generation_above(&store, &parents)?;
        let Words { author, time, message, metadata } = words;
        let touched = parents.first().and_then(|first| touched_since(&store, *first, &mut written));
        let snapshot = Snapshot { root: written.id, parents, author, time, message, metadata, generation };
        let snapshot = session.put_snapshot_touching(snapshot, touched)?;
        let committed = session.commit(written.id, refs(snapshot)?)?;
        let operation = committed.operation.expect("a commit writes its operation");
        if !committed.replayed {
            let done = CommitDone { snapshot, operation: operation.sequence, replayed: false };
            return Ok(Landed { done, frozen, written: Some((written, mark)) });
        }
        let first = replayed_snapshot(&operation)?;
        let done = CommitDone { snapshot: first, operation: operation.sequence, replayed: true };
        let held = match store.snapshot(first) {
            Ok(snapshot) if snapshot.root == written.id => store.hold(written.id).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        // What came of the request may be gone by now; then the tree stays as it is.
        let written = match held {
            Ok(Some(pin)) => Some((written, SessionMark::stored(pin))),
            Ok(None) | Err(Error::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Landed { done, frozen, written })
    }
}

/// What a tree that was just written changed of a snapshot's, as far as that can be told. A tree whose root directory is that of
/// the snapshot with edits knows it; for one that came from elsewhere the two are compared. What cannot be read is left to
/// those who need it.
pub(crate) fn touched_since(store: &Store, first_parent: SnapshotId, written: &mut Written) -> Option<Touched> {
    let before = store.snapshot(first_parent).ok()?.root;
    if let Some((base, marks)) = written.marks.take()
        && store.root(before).ok()?.directory.node == Node::Directory(base)
    {
        return marks.finish();
    }
    touched_between(store, before, written.id).ok().flatten()
}

/// What differs between two stored trees. Nothing when that is too much.
fn touched_between(store: &Store, before: RootId, after: RootId) -> Result<Option<Touched>> {
    let mut marks = Marks::default();
    let mut above = TreePath::root();
    for change in diff_roots(store, Some(before), Some(after), DiffOptions::default())? {
        // The root has no mark: whoever asks about it looks.
        let Some((parent, name)) = change?.path.split_last() else { continue };
        let mut here = KeyHash::new(0);
        for name in parent.names() {
            here = here.add(name.as_bytes()).add(b"/");
            // What changed together in one directory comes together.
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

/// One more than the greatest generation among the parents. What is not known of one that is gone does not count.
pub(crate) fn generation_above(store: &Store, parents: &[SnapshotId]) -> Result<u64> {
    let mut generation = 0;
    for parent in parents {
        let of_parent = match store.snapshot(*parent) {
            Ok(snapshot) => snapshot.generation,
            Err(Error::Missing { .. }) => 0,
            Err(error) => return Err(error),
        };
        if of_parent >= GENERATION_MAX {
            let why = format!("{} says to be of generation {of_parent}, and nothing comes after that", parent.short());
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

    /// Makes a committed freeze of this tree its base; only what was edited since the freeze stays dirty.
    pub fn settle(&mut self, landed: Landed) -> Result<()> {
        match landed.written {
            Some((written, mark)) => self.settle_on(&landed.frozen, written, landed.done.snapshot, mark),
            None => Ok(()),
        }
    }
}
