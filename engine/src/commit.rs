//! Commit: freeze, snapshot, and one transaction that makes both part of the store and moves a name to them.

use std::collections::BTreeMap;

use crate::backend::Durability;
use crate::error::{Error, Result};
use crate::id::{ObjectKind, SnapshotId};
use crate::object::Snapshot;
use crate::reference::{OperationDraft, RefName, RefValue, RequestId};
use crate::store::{RefMove, SessionMark};
use crate::time::Time;
use crate::work::WorkingTree;

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

impl WorkingTree {
    /// Commits a tree. Afterwards the tree's base is the new snapshot.
    ///
    /// When the name stands elsewhere than expected, nothing changes and the error carries where it stands.
    pub fn commit(&mut self, commit: Commit) -> Result<CommitDone> {
        let tree = self;
        let store = tree.store().clone();
        let session = store.session();
        let mark = session.mark().clone();
        let frozen = tree.freeze();
        let written = frozen.write_root(&session)?;
        let expected = match commit.expect {
            Expect::Base => tree.base(),
            Expect::Absent => None,
            Expect::At(snapshot) => Some(snapshot),
        };
        let mut parents: Vec<_> = tree.base().into_iter().collect();
        parents.extend(commit.other_parents);
        let snapshot = session.put_snapshot(Snapshot {
            root: written.id,
            parents,
            author: commit.author.clone(),
            time: commit.time,
            message: commit.message,
            metadata: commit.metadata,
        })?;
        let name = commit.reference;
        let refs = RefMove {
            expect: vec![(name.clone(), expected.map(RefValue::to))],
            set: vec![(name, Some(RefValue::to(snapshot)))],
            operation: OperationDraft {
                actor: commit.author,
                time: commit.time,
                action: "commit".to_owned(),
                request: commit.request,
            },
            durability: commit.durability,
        };
        let committed = session.commit(written.id, refs)?;
        let operation = committed.operation.expect("a commit writes its operation");
        if committed.replayed {
            let done =
                operation.changes.first().and_then(|change| change.after.as_ref()).and_then(|value| value.target);
            let done = done.filter(|target| target.kind == ObjectKind::Snapshot).ok_or_else(|| Error::Invalid {
                what: "request id",
                why: "it belongs to another kind of request".to_owned(),
            })?;
            let done = SnapshotId::from_bytes(done.hash);
            // What came of the request may be gone by now; then the tree stays as it is.
            let held = match store.snapshot(done) {
                Ok(snapshot) if snapshot.root == written.id => store.hold(written.id).map(Some),
                Ok(_) => Ok(None),
                Err(error) => Err(error),
            };
            match held {
                Ok(Some(pin)) => tree.settle(&frozen, written, done, SessionMark::stored(pin))?,
                Ok(None) | Err(Error::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
            return Ok(CommitDone { snapshot: done, operation: operation.sequence, replayed: true });
        }
        tree.settle(&frozen, written, snapshot, mark)?;
        Ok(CommitDone { snapshot, operation: operation.sequence, replayed: false })
    }
}
