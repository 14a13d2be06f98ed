//! Doing the edits of a journal again when a view is opened.
//!
//! A record whose check sum is right was written whole, so nothing ends there: one that cannot be done (an edit of a newer version, a
//! path that is too deep) is passed over, and everything behind it is done. Bytes whose check sum is wrong end the journal, because a
//! power cut may lose what was not synced from the middle on; whole records behind them are kept in a directory of their own. Both
//! are reported by [`Recovered`].

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::work::{Segment, SegmentRange};
use amalgam_engine::{Error as EngineError, ErrorKind, Time, WorkingTree};

use super::record::unread_data_bytes;
use super::{BEGINNING_BYTES, Behind, EDIT_BYTES_MAX, Edit, HEAD_BYTES, Identity, JournalFile, file_name, io};
use crate::error::Result;

/// Where files go of which not everything was done again.
const KEPT: &str = "kept";
/// How far behind a damaged record whole ones are looked for.
const SEARCH_BYTES_MAX: u64 = 64 << 20;

/// What was found when a view was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// How many edits were done again.
    pub edits: u64,
    /// How many bytes of a record that was not finished were left out.
    pub cut_bytes: u64,
    /// Where the tree was restored to while what it held before was not committed yet.
    pub restored: bool,
    /// How many edits were whole and could not be done again. Those behind them were.
    pub skipped_edits: u64,
    /// Why, of the first of them.
    pub first_skipped: Option<String>,
    /// Where the files of the journal are kept of which not everything was done again.
    pub kept: Option<PathBuf>,
}

impl Recovered {
    /// Says what was not done again, and where it is, if anything was not.
    pub fn warning(&self) -> Option<String> {
        let kept = self.kept.as_ref()?.display();
        let skipped = match (self.skipped_edits, &self.first_skipped) {
            (0, _) => {
                format!("the journal of this mount is damaged, and {} bytes of it could not be read", self.cut_bytes)
            }
            (1, Some(why)) => format!("1 change from before the restart could not be repeated ({why})"),
            (number, why) => {
                let why = why.as_deref().unwrap_or("no reason is known");
                format!("{number} changes from before the restart could not be repeated (the first: {why})")
            }
        };
        Some(format!(
            "{skipped}; all others are here. Compare your files, then delete the journal files kept in {kept}"
        ))
    }

    fn skip(&mut self, why: String) {
        self.skipped_edits += 1;
        self.first_skipped.get_or_insert(why);
    }
}

/// What came of one file.
pub(super) struct Replayed {
    /// Where its last record ends that counts. Nothing when it does not follow what it is to follow.
    pub(super) end: Option<u64>,
    /// Whether it has whole records that were not done.
    pub(super) has_more: bool,
}

/// Does the edits of one file again.
pub(super) fn replay(
    file: &Arc<JournalFile>,
    behind: Option<Behind>,
    tree: &mut WorkingTree,
    recovered: &mut Recovered,
) -> Result<Replayed> {
    let length = file.file.metadata().map_err(io("read the journal"))?.len();
    let mut beginning = [0; BEGINNING_BYTES];
    let whole = length >= BEGINNING_BYTES as u64 && file.file.read_exact_at(&mut beginning, 0).is_ok();
    let follows = whole.then(|| Behind::decode(&beginning)).flatten();
    if follows.is_none() || (behind.is_some() && behind != follows) {
        recovered.cut_bytes += length;
        return Ok(Replayed { end: None, has_more: has_record(file, length)? });
    }
    let mut at = BEGINNING_BYTES as u64;
    let skipped_before = recovered.skipped_edits;
    loop {
        let (edit, time, offset) = match read_record(file, at, length)? {
            Found::Record { edit, time, offset } => (edit, time, offset),
            Found::Unreadable { next } => {
                recovered.skip("a record that this version cannot read, or a path that is too deep".to_owned());
                at = next;
                continue;
            }
            Found::Nothing => break,
        };
        if is_state_lost(&edit, tree) {
            // A power cut took the state that all edits from here on were made on, so none of them was synced.
            recovered.skip("a restore of a snapshot that the store does not have".to_owned());
            break;
        }
        let segment: Arc<dyn Segment> = file.clone();
        let range = (edit.data_bytes() > 0).then_some(SegmentRange { segment, offset });
        recovered.restored |= matches!(edit, Edit::Restore { .. });
        if let Err(error) = edit.apply(tree, time, range) {
            use ErrorKind::{Corrupt, Fault, Full, Unsupported};
            if matches!(error.kind(), Corrupt | Fault | Full | Unsupported) {
                // The store cannot be read: what is done without this edit would be another tree.
                return Err(error.into());
            }
            recovered.skip(error.to_string());
        } else {
            recovered.edits += u64::from(!matches!(edit, Edit::Landed { .. }));
        }
        at = offset + edit.data_bytes();
    }
    recovered.cut_bytes += length - at;
    let has_more = recovered.skipped_edits > skipped_before || has_record_behind(file, at, length)?;
    Ok(Replayed { end: Some(at), has_more })
}

/// Whether an edit goes to a snapshot that the store has never had on disk.
fn is_state_lost(edit: &Edit, tree: &WorkingTree) -> bool {
    let Edit::Restore { snapshot, .. } = edit else { return false };
    matches!(tree.store().snapshot(*snapshot), Err(EngineError::Missing { .. }))
}

/// What lies at an offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An edit, with its time and where its bytes begin.
    Record { edit: Edit, time: Time, offset: u64 },
    /// A whole record that is no edit that this version knows, and where the next one begins.
    Unreadable { next: u64 },
    /// The end, or a record that is not whole.
    Nothing,
}

/// The record at an offset.
pub(super) fn read_record(file: &JournalFile, at: u64, length: u64) -> Result<Found> {
    let mut head = [0; HEAD_BYTES];
    if at + HEAD_BYTES as u64 > length {
        return Ok(Found::Nothing);
    }
    file.file.read_exact_at(&mut head, at).map_err(io("read the journal"))?;
    let edit_bytes = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
    let sum = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
    let time = Time(i64::from_le_bytes(head[8..].try_into().expect("eight bytes")));
    let offset = at + (HEAD_BYTES + edit_bytes) as u64;
    if edit_bytes == 0 || edit_bytes > EDIT_BYTES_MAX || offset > length {
        return Ok(Found::Nothing);
    }
    let mut body = vec![0; edit_bytes];
    file.file.read_exact_at(&mut body, at + HEAD_BYTES as u64).map_err(io("read the journal"))?;
    let edit = Edit::decode(&body);
    let data_bytes = edit.as_ref().map_or_else(|| unread_data_bytes(&body), Edit::data_bytes);
    if data_bytes > length - offset {
        return Ok(Found::Nothing);
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[8..]);
    hasher.update(&body);
    let mut buffer = vec![0; data_bytes.min(1 << 20) as usize];
    let mut done = 0;
    while done < data_bytes {
        let step = (data_bytes - done).min(1 << 20) as usize;
        file.file.read_exact_at(&mut buffer[..step], offset + done).map_err(io("read the journal"))?;
        hasher.update(&buffer[..step]);
        done += step as u64;
    }
    if hasher.finalize() != sum {
        return Ok(Found::Nothing);
    }
    Ok(match edit {
        Some(edit) => Found::Record { edit, time, offset },
        None => Found::Unreadable { next: offset + data_bytes },
    })
}

/// Whether a file begins with a whole record.
pub(super) fn has_record(file: &JournalFile, length: u64) -> Result<bool> {
    Ok(read_record(file, BEGINNING_BYTES as u64, length)? != Found::Nothing)
}

/// Whether there is a whole record somewhere behind bytes that are none.
fn has_record_behind(file: &JournalFile, at: u64, length: u64) -> Result<bool> {
    let mut tail = vec![0; (length - at).min(SEARCH_BYTES_MAX) as usize];
    file.file.read_exact_at(&mut tail, at).map_err(io("read the journal"))?;
    for (from, head) in tail.windows(HEAD_BYTES + 1).enumerate() {
        let edit_bytes = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
        // Most places are told apart by these two, without a look at the file.
        let is_likely = (1..=EDIT_BYTES_MAX).contains(&edit_bytes) && Edit::is_kind(head[HEAD_BYTES]);
        if is_likely && read_record(file, at + from as u64, length)? != Found::Nothing {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Keeps files of a journal for a person to look at, whatever becomes of the journal.
pub(super) fn keep_aside(directory: &Path, identity: &Identity, numbers: &[u64]) -> Result<PathBuf> {
    let kept = directory.join(KEPT);
    std::fs::create_dir_all(&kept).map_err(io("keep a part of the journal"))?;
    let journal: String = identity[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    for number in numbers {
        let name = file_name(*number);
        let (from, to) = (directory.join(&name), kept.join(format!("{journal}-{name}")));
        match std::fs::hard_link(&from, &to) {
            Ok(()) => {}
            // By an earlier opening: nothing is written to a file again once a view was opened behind it.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            // A file system without hard links.
            Err(_) => drop(std::fs::copy(&from, &to).map_err(io("keep a part of the journal"))?),
        }
    }
    Ok(kept)
}
