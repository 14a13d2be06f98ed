//! A compact set of the paths that a snapshot changed, stored beside its record, so that a query about one path reads only those
//! trees of a long history that may have changed it.
//!
//! The set is not part of any object or hash. It may be absent, which means that nothing is known. If it is present, false
//! positives are possible and false negatives are not. It compares a snapshot's tree only with that of its first parent.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::ObjectId;
use crate::malformed::Malformed;
use crate::name::TreePath;
use crate::object::KeyHash;

/// Maximum number of marks. A snapshot with more changes stores none, because most queries would match it anyway.
pub(crate) const MARKS_MAX: usize = 256;

/// The first byte of a record with marks. No object kind has this number.
const WITH_MARKS: u8 = 0xff;
const MARK_BYTES: usize = 4;
const CHECK_BYTES: usize = 8;
const HEADER_BYTES: usize = 1 + 2 + CHECK_BYTES;
const CHECK_KEY: &[u8; 32] = b"amalgam/1/touched\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The marks of all paths that differ from the first parent's tree, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedPaths(Arc<[u32]>);

/// The additional data in the stored record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotSuffix {
    Nothing,
    Marks(ChangedPaths),
    /// The marks fail their checksum. The snapshot itself may be intact.
    Damaged,
}

impl ChangedPaths {
    /// Returns whether a path may differ from the first parent's tree, including paths that exist in only one of the two.
    pub(crate) fn may(&self, asked: &PathMarks) -> bool {
        asked.0.iter().any(|mark| self.0.binary_search(mark).is_ok())
    }

    /// Encodes the record of a snapshot with its marks.
    pub(crate) fn pack(&self, id: ObjectId, canonical: &[u8]) -> Bytes {
        let count = u16::try_from(self.0.len()).expect("they were counted when they were made");
        let mut stored = Vec::with_capacity(HEADER_BYTES + self.0.len() * MARK_BYTES + canonical.len());
        stored.push(WITH_MARKS);
        stored.extend_from_slice(&count.to_le_bytes());
        stored.extend_from_slice(&[0; CHECK_BYTES]);
        self.0.iter().for_each(|mark| stored.extend_from_slice(&mark.to_le_bytes()));
        let check = check(id, &stored[HEADER_BYTES..]);
        stored[HEADER_BYTES - CHECK_BYTES..HEADER_BYTES].copy_from_slice(&check);
        stored.extend_from_slice(canonical);
        stored.into()
    }
}

impl SnapshotSuffix {
    /// Decodes the marks in the stored record of the snapshot with this id.
    pub(crate) fn of(id: ObjectId, stored: &[u8]) -> Self {
        let Ok(start) = canonical_start(stored) else { return Self::Damaged };
        if start == 0 {
            return Self::Nothing;
        }
        let bytes = &stored[HEADER_BYTES..start];
        if check(id, bytes) != stored[HEADER_BYTES - CHECK_BYTES..HEADER_BYTES] {
            return Self::Damaged;
        }
        let mark = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("as long as a mark"));
        let marks: Arc<[u32]> = bytes.chunks_exact(MARK_BYTES).map(mark).collect();
        if marks.is_sorted() { Self::Marks(ChangedPaths(marks)) } else { Self::Damaged }
    }

    pub(crate) fn marks(self) -> Option<ChangedPaths> {
        match self {
            Self::Marks(touched) => Some(touched),
            Self::Nothing | Self::Damaged => None,
        }
    }
}

/// Returns the offset of a snapshot's canonical bytes in its record.
pub(crate) fn canonical_start(stored: &[u8]) -> Result<usize, Malformed> {
    match *stored {
        [WITH_MARKS, low, high, ..] => {
            let marks = usize::from(u16::from_le_bytes([low, high]));
            let start = HEADER_BYTES + marks * MARK_BYTES;
            match stored.len() > start {
                true if marks <= MARKS_MAX => Ok(start),
                true => Err(Malformed::TooMuch { what: "a snapshot's marks" }),
                false => Err(Malformed::Truncated),
            }
        }
        [WITH_MARKS, ..] => Err(Malformed::Truncated),
        _ => Ok(0),
    }
}

/// Returns the checksum of the marks. It includes the snapshot id, so that marks of another snapshot are rejected.
fn check(id: ObjectId, marks: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(CHECK_KEY);
    hasher.update(&id.hash).update(marks);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
    check
}

/// The marks that indicate a change of a path: those of the path and each directory above it, as entries that were replaced as a
/// whole, and that of the path as a directory in which an entry changed.
pub(crate) struct PathMarks(Vec<u32>);

impl PathMarks {
    /// Returns `None` for the root, which every change affects.
    pub(crate) fn of(path: &TreePath) -> Option<Self> {
        if path.is_root() {
            return None;
        }
        let mut marks = Vec::with_capacity(8);
        let mut here = KeyHash::new(0);
        for (depth, name) in path.names().enumerate() {
            if depth > 0 {
                here = here.add(b"/");
            }
            here = here.add(name.as_bytes());
            marks.push(mark(here));
        }
        marks.push(mark(here.add(b"/")));
        Some(Self(marks))
    }
}

/// A set of marks under construction. `DIRECTORY/` marks a directory in which an entry changed; a path without a trailing slash
/// marks an entry that changed with everything below it.
#[derive(Default)]
pub(crate) struct MarkBuilder {
    marks: Vec<u32>,
    too_many: bool,
}

impl MarkBuilder {
    pub(crate) fn add(&mut self, path: KeyHash) {
        if self.marks.len() < MARKS_MAX * 2 {
            self.marks.push(mark(path));
        } else {
            self.too_many = true;
        }
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.too_many |= other.too_many || self.marks.len() + other.marks.len() > MARKS_MAX * 2;
        if !self.too_many {
            self.marks.extend(other.marks);
        }
    }

    /// Returns whether the limit is exceeded, so that no further marks are needed.
    pub(crate) fn are_too_many(&self) -> bool {
        self.too_many
    }

    /// Returns the sorted set, or `None` if there are too many marks.
    pub(crate) fn finish(mut self) -> Option<ChangedPaths> {
        self.marks.sort_unstable();
        self.marks.dedup();
        let fits = !self.too_many && self.marks.len() <= MARKS_MAX;
        fits.then(|| ChangedPaths(self.marks.into()))
    }
}

fn mark(path: KeyHash) -> u32 {
    path.finish() as u32
}
