//! Which paths a snapshot changed, in a few bytes beside its record: so that a question about one path opens only those trees of
//! a long history that may have something to say.
//!
//! What is here is no part of any object and of no hash. It may be absent, which means that nothing is known; where it is there,
//! "no" is certain and "maybe" is not. It speaks of a snapshot's tree and that of its first parent: of nothing else.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::ObjectId;
use crate::malformed::Malformed;
use crate::name::TreePath;
use crate::object::KeyHash;

/// Beyond this many marks nothing is kept: whoever changes so much changes what is asked about, too.
pub(crate) const MARKS_MAX: usize = 256;

/// The first byte of a record that has marks; no kind of object has this number.
const WITH_MARKS: u8 = 0xff;
const MARK_BYTES: usize = 4;
const CHECK_BYTES: usize = 8;
const HEADER_BYTES: usize = 1 + 2 + CHECK_BYTES;
const CHECK_KEY: &[u8; 32] = b"amalgam/1/touched\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The marks of all that differs from the first parent's tree, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Touched(Arc<[u32]>);

/// What a stored record has beside the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    Marks(Touched),
    /// Marks that are not as they were written. The snapshot may well be.
    Damaged,
}

impl Touched {
    /// Whether a path may be another than in the first parent's tree, or there in only one of the two.
    pub(crate) fn may(&self, asked: &Asked) -> bool {
        asked.0.iter().any(|mark| self.0.binary_search(mark).is_ok())
    }

    /// The record of a snapshot with its marks.
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

impl Beside {
    /// What a stored record says of the snapshot with this id.
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
        if marks.is_sorted() { Self::Marks(Touched(marks)) } else { Self::Damaged }
    }

    pub(crate) fn marks(self) -> Option<Touched> {
        match self {
            Self::Marks(touched) => Some(touched),
            Self::Nothing | Self::Damaged => None,
        }
    }
}

/// Where a snapshot's canonical bytes begin in its record.
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

/// Bound to the snapshot, so that marks in the wrong place are not believed either.
fn check(id: ObjectId, marks: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(CHECK_KEY);
    hasher.update(&id.hash).update(marks);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
    check
}

/// The marks that a path may have been touched by: that of everything on the way to it, as one that was exchanged with all below
/// it, and its own as a directory in which something was.
pub(crate) struct Asked(Vec<u32>);

impl Asked {
    /// Nothing for the root, which is touched by everything.
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

/// Marks on their way. `DIRECTORY/` stands for a directory in which something was touched, a path without a slash at its end for
/// something that was touched with all below it.
#[derive(Default)]
pub(crate) struct Marks {
    marks: Vec<u32>,
    too_many: bool,
}

impl Marks {
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

    /// Whether there is no use in going on.
    pub(crate) fn are_too_many(&self) -> bool {
        self.too_many
    }

    /// Nothing when they are too many.
    pub(crate) fn finish(mut self) -> Option<Touched> {
        self.marks.sort_unstable();
        self.marks.dedup();
        let fits = !self.too_many && self.marks.len() <= MARKS_MAX;
        fits.then(|| Touched(self.marks.into()))
    }
}

fn mark(path: KeyHash) -> u32 {
    path.finish() as u32
}
