//! What a verification is asked, and what it says.

use std::fmt;
use std::ops::ControlFlow;

use crate::backend::Family;
use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::malformed::Malformed;
use crate::name::TreePath;
use crate::reference::RefName;

/// What to look at.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Read, unpack and hash every chunk too, and compare the marks beside snapshots with what differs. Without it, chunks are
    /// looked up in the index only, and marks are only known to be as they were written.
    pub read_data: bool,
    /// The most places, parents and references listed for one object; how many more there are is counted.
    pub listed_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { read_data: false, listed_max: 16 }
    }
}

impl VerifyOptions {
    /// Everything, chunks included.
    pub fn reading_data() -> Self {
        Self { read_data: true, ..Self::default() }
    }
}

/// How far a verification has come. The totals are those of the object index, which is read first: exact, but for objects whose
/// rows are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Objects looked at.
    pub objects: u64,
    /// Of so many.
    pub objects_total: u64,
    /// Stored bytes read.
    pub bytes: u64,
    /// Of so many.
    pub bytes_total: u64,
}

/// Is told now and then, from any thread, how far it has come, and may end it.
pub type Watch<'a> = &'a (dyn Fn(&VerifyProgress) -> ControlFlow<()> + Sync);

/// What is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its bytes do not have its hash.
    Corrupt {
        /// What decoding says of them.
        says: String,
    },
    /// An object refers to it, and it is not in the index, or its row is gone.
    Missing,
    /// The same, and a reference holds it.
    Dangling,
    /// It is in a version of the format that is not known here. Nothing is wrong with it for who knows that version.
    UnknownVersion {
        /// The version byte.
        found: u8,
    },
    /// The index says that it is of another kind, or its row holds an object of another kind.
    WrongKind {
        /// The other kind.
        found: ObjectKind,
    },
    /// Its bytes have its hash, and break a rule of the format.
    Malformed {
        /// The rule.
        source: Malformed,
    },
    /// The database cannot read its row.
    Unreadable {
        /// The database's words.
        why: String,
    },
}

impl Damage {
    /// Whether the bytes that should be there are not. The others are as they were written.
    pub(super) fn is_of_row(&self) -> bool {
        !matches!(self, Self::UnknownVersion { .. } | Self::Malformed { .. })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt { says } => write!(f, "corrupt: its bytes do not have its hash; {says}"),
            Self::Missing => write!(f, "missing: something refers to it, and it is not there"),
            Self::Dangling => write!(f, "missing: a reference holds it, and it is not there"),
            Self::UnknownVersion { found } => write!(f, "of version {found}, which needs a newer program"),
            Self::WrongKind { found } => write!(f, "of the wrong kind: a {found} is there"),
            Self::Malformed { source } => write!(f, "against the format: {source}"),
            Self::Unreadable { why } => write!(f, "unreadable: {why}"),
        }
    }
}

/// Where damage shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// What is affected: a snapshot, or whatever else a reference holds.
    pub top: ObjectId,
    /// The references that hold it; none for a snapshot that is reached as a parent of others.
    pub refs: Vec<RefName>,
    /// The path that cannot be read in full: a file, or a directory some of whose names are gone. The root for the tree as a
    /// whole, its hard links and its state values.
    pub path: TreePath,
}

/// An object that is not as it should be.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The object.
    pub id: ObjectId,
    /// What is wrong.
    pub damage: Damage,
    /// Whether anything leads to it. What nothing leads to is garbage, and nobody misses it.
    pub reached: bool,
    /// What refers to it.
    pub parents: Vec<ObjectId>,
    /// How many more do.
    pub parents_more: u64,
    /// Where it shows.
    pub places: Vec<Place>,
    /// How many more ways lead to it. A file that holds it twice counts twice.
    pub places_more: u64,
}

/// A row that is not an object's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    /// A row of the object index, by its key.
    Index(Vec<u8>),
    /// A reference, by its name or what was left of it.
    Reference(String),
    /// An operation, by its number.
    Operation(u64),
    /// A request, by its id.
    Request(Vec<u8>),
    /// The marks beside a snapshot, of the paths that it changed. The snapshot itself is as it should be.
    Touched(SnapshotId),
    /// Rows of a family that cannot be told apart, because the database cannot read them.
    Rows(Family),
}

/// Such a row that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordProblem {
    /// Which.
    pub record: Record,
    /// What is wrong with it.
    pub why: String,
}

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// False when it was ended early: then nothing is said of what it did not come to.
    pub finished: bool,
    /// Whether chunks were read.
    pub read_data: bool,
    /// Objects in the index.
    pub objects: u64,
    /// Canonical bytes hashed.
    pub bytes: u64,
    /// Objects that no reference and no history leads to: garbage, which a collection takes.
    pub unreachable: u64,
    /// What they take.
    pub unreachable_bytes: u64,
    /// Snapshots of the history whose tree is gone, as it may be.
    pub thinned: u64,
    /// Parents of snapshots that are gone altogether, as they may be.
    pub absent: u64,
    /// Rows of objects that no row of the index names, left by a crash; without `read_data`, those of chunks are not counted.
    pub orphans: u64,
    /// Rows in quarantine.
    pub quarantined: u64,
    /// Objects that something refers to and that were purged, as they may be.
    pub purged: u64,
    /// References.
    pub refs: u64,
    /// Operations in the log.
    pub operations: u64,
    /// The objects that are not as they should be, in the order of ids.
    pub problems: Vec<Problem>,
    /// The other rows that are not.
    pub records: Vec<RecordProblem>,
}

impl VerifyReport {
    /// Whether all was looked at and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.finished && self.problems.is_empty() && self.records.is_empty()
    }
}
