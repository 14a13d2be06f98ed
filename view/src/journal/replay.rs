//! Replay of a journal when a view is opened.
//!
//! A record with a valid checksum is complete. If its edit cannot be applied (an edit of a newer version, a path that is too deep), replay
//! skips it and goes on. A record with a wrong checksum ends the journal, because a power cut may lose unsynced data from the middle on;
//! complete records behind it are preserved in a directory of their own. [`RecoveryReport`] reports both.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::work::{Segment, SegmentRange};
use amalgam_engine::{Error as EngineError, ErrorKind, Time, WorkingTree};

use super::edit::{Edit, unread_data_bytes};
use super::file::{EDIT_BYTES_MAX, HEADER_BYTES, Identity, JournalFile, Predecessor, RECORD_HEAD_BYTES, file_name};
use super::group;
use crate::encoding::io_error;
use crate::error::Result;

/// Directory for journal files with edits that were not replayed.
const KEPT_DIRECTORY: &str = "kept";
/// How far behind a damaged record the replay searches for complete ones.
const SEARCH_BYTES_MAX: u64 = 64 << 20;

/// The result of replaying the journal of an earlier view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of replayed edits.
    pub edits: u64,
    /// Bytes of incomplete or damaged records that were left out.
    pub cut_bytes: u64,
    /// Whether the journal has a restore whose earlier tree was not committed.
    pub restored: bool,
    /// Whether a replay of the journal may read a snapshot other than its base.
    pub(crate) needs_store: bool,
    /// Number of complete edits that could not be applied. Edits behind them were.
    pub skipped_edits: u64,
    /// The error of the first skipped edit.
    pub first_skipped: Option<String>,
    /// Directory with the journal files that were not replayed in full.
    pub kept: Option<PathBuf>,
}

impl RecoveryReport {
    /// Returns a message for the user if edits were not replayed: how many, why, and where their files are.
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

/// The result of replaying one file.
pub(super) struct Replayed {
    /// End of the last replayed record; `None` if the file has another predecessor than expected.
    pub(super) end: Option<u64>,
    /// Whether the file has complete records that were not applied.
    pub(super) has_more: bool,
}

/// Applies the edits of one file. `expected` is its required predecessor; `None` allows any.
pub(super) fn replay(
    file: &Arc<JournalFile>,
    expected: Option<Predecessor>,
    tree: &mut WorkingTree,
    report: &mut RecoveryReport,
) -> Result<Replayed> {
    let length = file.file.metadata().map_err(io_error("read the journal"))?.len();
    let mut header = [0; HEADER_BYTES];
    let is_complete = length >= HEADER_BYTES as u64 && file.file.read_exact_at(&mut header, 0).is_ok();
    let predecessor = is_complete.then(|| Predecessor::decode(&header)).flatten();
    if predecessor.is_none() || (expected.is_some() && expected != predecessor) {
        report.cut_bytes += length;
        return Ok(Replayed { end: None, has_more: has_record(file, length)? });
    }
    let mut at = HEADER_BYTES as u64;
    let skipped_before = report.skipped_edits;
    loop {
        let (edit, time, offset) = match read_record(file, at, length)? {
            RecordAt::Complete { edit, time, offset } => (edit, time, offset),
            RecordAt::Unreadable { next } => {
                report.skip("a record that this version cannot read, or a path that is too deep".to_owned());
                at = next;
                continue;
            }
            RecordAt::None => break,
        };
        if is_snapshot_lost(&edit, tree) {
            // A power cut lost the snapshot that all further edits build on, so none of them was synced.
            report.skip("a restore of a snapshot that the store does not have".to_owned());
            break;
        }
        let segment: Arc<dyn Segment> = file.clone();
        let range = (edit.data_bytes() > 0).then_some(SegmentRange { segment, offset });
        report.restored |= matches!(edit, Edit::Restore { .. });
        // A group may take entries of a snapshot.
        report.needs_store |= matches!(edit, Edit::Restore { .. } | Edit::TakeEntries { .. } | Edit::Group { .. });
        let applied = match (&edit, range) {
            (Edit::Group { length }, Some(range)) => group::replay(file, *length, &range, tree, time),
            (edit, range) => edit.apply(tree, time, range),
        };
        if let Err(error) = applied {
            use ErrorKind::{Corrupt, Fault, Full, Unsupported};
            if matches!(error.kind(), Corrupt | Fault | Full | Unsupported) {
                // The store cannot be read: without this edit the result would be another tree.
                return Err(error.into());
            }
            report.skip(error.to_string());
        } else {
            report.edits += u64::from(!matches!(edit, Edit::Committed { .. }));
        }
        at = offset + edit.data_bytes();
    }
    report.cut_bytes += length - at;
    let has_more = report.skipped_edits > skipped_before || has_record_behind(file, at, length)?;
    Ok(Replayed { end: Some(at), has_more })
}

/// Returns whether an edit restores a snapshot that the store never had on disk.
fn is_snapshot_lost(edit: &Edit, tree: &WorkingTree) -> bool {
    let Edit::Restore { snapshot, .. } = edit else { return false };
    matches!(tree.store().snapshot(*snapshot), Err(EngineError::Missing { .. }))
}

/// The record at an offset of a journal file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordAt {
    /// An edit, with its time and the offset of its data.
    Complete { edit: Edit, time: Time, offset: u64 },
    /// A complete record with an edit that this version cannot decode, and the offset of the next record.
    Unreadable { next: u64 },
    /// The end of the file, or an incomplete record.
    None,
}

/// Reads the record at an offset.
pub(super) fn read_record(file: &JournalFile, at: u64, length: u64) -> Result<RecordAt> {
    let mut head = [0; RECORD_HEAD_BYTES];
    if at + RECORD_HEAD_BYTES as u64 > length {
        return Ok(RecordAt::None);
    }
    file.file.read_exact_at(&mut head, at).map_err(io_error("read the journal"))?;
    let edit_bytes = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
    let sum = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
    let time = Time(i64::from_le_bytes(head[8..].try_into().expect("eight bytes")));
    let offset = at + (RECORD_HEAD_BYTES + edit_bytes) as u64;
    if edit_bytes == 0 || edit_bytes > EDIT_BYTES_MAX || offset > length {
        return Ok(RecordAt::None);
    }
    let mut body = vec![0; edit_bytes];
    file.file.read_exact_at(&mut body, at + RECORD_HEAD_BYTES as u64).map_err(io_error("read the journal"))?;
    let edit = Edit::decode(&body);
    let data_bytes = edit.as_ref().map_or_else(|| unread_data_bytes(&body), Edit::data_bytes);
    if data_bytes > length - offset {
        return Ok(RecordAt::None);
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[8..]);
    hasher.update(&body);
    let mut buffer = vec![0; data_bytes.min(1 << 20) as usize];
    let mut done = 0;
    while done < data_bytes {
        let step = (data_bytes - done).min(1 << 20) as usize;
        file.file.read_exact_at(&mut buffer[..step], offset + done).map_err(io_error("read the journal"))?;
        hasher.update(&buffer[..step]);
        done += step as u64;
    }
    if hasher.finalize() != sum {
        return Ok(RecordAt::None);
    }
    Ok(match edit {
        Some(edit) => RecordAt::Complete { edit, time, offset },
        None => RecordAt::Unreadable { next: offset + data_bytes },
    })
}

/// Returns whether a file begins with a complete record.
pub(super) fn has_record(file: &JournalFile, length: u64) -> Result<bool> {
    Ok(read_record(file, HEADER_BYTES as u64, length)? != RecordAt::None)
}

/// Returns whether a complete record follows damaged bytes.
fn has_record_behind(file: &JournalFile, at: u64, length: u64) -> Result<bool> {
    let mut tail = vec![0; (length - at).min(SEARCH_BYTES_MAX) as usize];
    file.file.read_exact_at(&mut tail, at).map_err(io_error("read the journal"))?;
    for (from, head) in tail.windows(RECORD_HEAD_BYTES + 1).enumerate() {
        let edit_bytes = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
        // Length and kind exclude most offsets without a read of the file.
        let is_likely = (1..=EDIT_BYTES_MAX).contains(&edit_bytes) && Edit::is_kind(head[RECORD_HEAD_BYTES]);
        if is_likely && read_record(file, at + from as u64, length)? != RecordAt::None {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Preserves journal files for inspection by the user, independently of the journal.
pub(super) fn preserve_files(directory: &Path, identity: &Identity, numbers: &[u64]) -> Result<PathBuf> {
    let kept = directory.join(KEPT_DIRECTORY);
    std::fs::create_dir_all(&kept).map_err(io_error("keep a part of the journal"))?;
    let journal: String = identity[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    for number in numbers {
        let name = file_name(*number);
        let (from, to) = (directory.join(&name), kept.join(format!("{journal}-{name}")));
        match std::fs::hard_link(&from, &to) {
            Ok(()) => {}
            // Preserved when the view was opened before: nothing is appended to a file after a recovery.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            // The file system may not support hard links.
            Err(_) => drop(std::fs::copy(&from, &to).map_err(io_error("keep a part of the journal"))?),
        }
    }
    Ok(kept)
}
