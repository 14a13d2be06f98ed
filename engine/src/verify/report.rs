//! The options and the report of a verification.

use std::fmt;
use std::ops::ControlFlow;

use crate::backend::Family;
use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::malformed::Malformed;
use crate::name::TreePath;
use crate::reference::RefName;

/// Options of a verification.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Also read, unpack and hash every chunk, and compare the marks of snapshots with the actual differences. Otherwise chunks
    /// are only searched in the index, and marks are only checked against their checksum.
    pub read_data: bool,
    /// Maximum number of places, parents and references listed for one object. Further ones are counted.
    pub listed_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { read_data: false, listed_max: 16 }
    }
}

impl VerifyOptions {
    /// Returns options that verify everything, including chunks.
    pub fn reading_data() -> Self {
        Self { read_data: true, ..Self::default() }
    }
}

/// The progress of a verification. The totals come from the object index, which is read first. They are exact, except for objects
/// whose rows are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Number of objects verified.
    pub objects: u64,
    /// Total number of objects.
    pub objects_total: u64,
    /// Number of stored bytes read.
    pub bytes: u64,
    /// Total number of stored bytes.
    pub bytes_total: u64,
}

/// Called from time to time, from any thread, with the progress. `Break` stops the verification.
pub type Watch<'a> = &'a (dyn Fn(&VerifyProgress) -> ControlFlow<()> + Sync);

/// The damage of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its bytes do not match its hash.
    Corrupt {
        /// The result of decoding them.
        says: String,
    },
    /// Another object refers to it, but it is not in the index or its row is missing.
    Missing,
    /// A reference points at it, but it is not in the index or its row is missing.
    Dangling,
    /// It has an unknown format version. A newer version of the software may be able to read it.
    UnknownVersion {
        /// The version byte.
        found: u8,
    },
    /// The index states another kind, or its row holds an object of another kind.
    WrongKind {
        /// The other kind.
        found: ObjectKind,
    },
    /// Its bytes match its hash, but break a rule of the format.
    Malformed {
        /// The rule.
        source: Malformed,
    },
    /// The database cannot read its row.
    Unreadable {
        /// The error message of the database.
        why: String,
    },
}

impl Damage {
    /// Returns whether its bytes are missing or wrong. Other damage is in the bytes as they were written.
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

/// A place that damage affects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AffectedPlace {
    /// The affected snapshot, or other object that a reference holds.
    pub top: ObjectId,
    /// The references that hold it; empty for a snapshot that is reached as a parent of others.
    pub refs: Vec<RefName>,
    /// The path that cannot be read in full: a file, or a directory with missing names. The root for the tree as a whole, its
    /// hard links and its state values.
    pub path: TreePath,
}

/// A damaged object.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The object.
    pub id: ObjectId,
    /// The damage.
    pub damage: Damage,
    /// Whether it is reachable. An unreachable object is garbage, and its damage affects nothing.
    pub reached: bool,
    /// The objects that refer to it.
    pub parents: Vec<ObjectId>,
    /// Number of further ones.
    pub parents_more: u64,
    /// The affected places.
    pub places: Vec<AffectedPlace>,
    /// Number of further paths to it. A file that contains it twice counts twice.
    pub places_more: u64,
}

/// A row that is not an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    /// A row of the object index, by its key.
    Index(Vec<u8>),
    /// A reference, by its name or the readable part of it.
    Reference(String),
    /// An operation, by its number.
    Operation(u64),
    /// A request, by its id.
    Request(Vec<u8>),
    /// The marks of a snapshot, which list the paths that it changed. The snapshot itself is intact.
    ChangedPaths(SnapshotId),
    /// Rows of a family that the database cannot read individually.
    Rows(Family),
}

/// A damaged row that is not an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordProblem {
    /// The row.
    pub record: Record,
    /// The problem.
    pub why: String,
}

/// The result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Whether it was completed. If not, the report covers only the part that was verified.
    pub finished: bool,
    /// Whether chunks were read.
    pub read_data: bool,
    /// Number of objects in the index.
    pub objects: u64,
    /// Number of canonical bytes hashed.
    pub bytes: u64,
    /// Number of unreachable objects: garbage, which a collection deletes.
    pub unreachable: u64,
    /// Their stored size in bytes.
    pub unreachable_bytes: u64,
    /// Number of snapshots of the history without a tree, which is allowed.
    pub thinned: u64,
    /// Number of parents of snapshots that do not exist, which is allowed.
    pub absent: u64,
    /// Number of object rows that are not in the index, left by a crash. Without `read_data`, chunks are not counted.
    pub orphans: u64,
    /// Number of rows in quarantine.
    pub quarantined: u64,
    /// Number of purged objects that are still referred to, which is allowed.
    pub purged: u64,
    /// Number of references.
    pub refs: u64,
    /// Number of operations in the log.
    pub operations: u64,
    /// The damaged objects, in id order.
    pub problems: Vec<Problem>,
    /// The other damaged rows.
    pub records: Vec<RecordProblem>,
}

impl VerifyReport {
    /// Returns whether everything was verified and no damage was found.
    pub fn is_clean(&self) -> bool {
        self.finished && self.problems.is_empty() && self.records.is_empty()
    }
}
