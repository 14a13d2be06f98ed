//! Several edits in one record of the journal: its checksum covers all of them, so a replay applies all or none.
//!
//! The data of the record is a sequence of edits. Each is its length (four bytes), the edit as it is in a record of its own, and its data.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use amalgam_engine::work::SegmentRange;
use amalgam_engine::{Error as EngineError, Result, Time, WorkingTree};

use super::edit::Edit;
use super::file::{EDIT_BYTES_MAX, JournalFile};

/// The encoded edits of a group, and where the data of each begins.
#[derive(Default)]
pub(crate) struct GroupData {
    bytes: Vec<u8>,
    edits: Vec<(Edit, u64)>,
}

impl GroupData {
    /// Adds an edit with its data. Refuses an edit that a replay would not read; then the group cannot be used.
    pub(crate) fn push(&mut self, edit: Edit, data: &[u8]) -> Result<()> {
        debug_assert_eq!(edit.data_bytes(), data.len() as u64, "an edit says how many bytes follow it");
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        edit.encode(&mut self.bytes);
        let length = self.bytes.len() - at - 4;
        if length > EDIT_BYTES_MAX {
            return Err(EngineError::TooLarge { what: "an edit", value: length as u64, max: EDIT_BYTES_MAX as u64 });
        }
        self.bytes[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
        self.edits.push((edit, self.bytes.len() as u64));
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Returns the record's edit and its data. One edit alone is recorded as itself, so that a removal finds room on a full disk.
    pub(crate) fn record(&self) -> (Edit, &[u8]) {
        match self.alone() {
            Some((edit, at)) => (edit.clone(), &self.bytes[*at as usize..]),
            None => (Edit::Group { length: self.bytes.len() as u64 }, &self.bytes),
        }
    }

    fn alone(&self) -> Option<&(Edit, u64)> {
        match &self.edits[..] {
            // Parts are read with their group only.
            [(Edit::WriteParts { .. }, _)] => None,
            [one] => Some(one),
            _ => None,
        }
    }

    /// Applies the edits to a tree. `data` is the location of the record's data, `file` the beginning of the file that has it.
    pub(crate) fn apply(
        &self,
        tree: &mut WorkingTree,
        now: Time,
        data: Option<SegmentRange>,
        file: &SegmentRange,
    ) -> Result<()> {
        if let Some((edit, _)) = self.alone() {
            return edit.apply(tree, now, data);
        }
        let data = data.expect("a group has data");
        self.edits.iter().try_for_each(|(edit, at)| edit.apply(tree, now, Some(location(edit, *at, &data, file))))
    }
}

/// Returns the location of an edit's data, which begins at an offset of the group's data.
fn location(edit: &Edit, at: u64, data: &SegmentRange, file: &SegmentRange) -> SegmentRange {
    match edit {
        Edit::WriteParts { .. } => file.clone(),
        _ => SegmentRange { segment: Arc::clone(&data.segment), offset: data.offset + at },
    }
}

/// Applies the edits of a group in a journal file. After an error the tree is unchanged.
pub(super) fn replay(
    file: &Arc<JournalFile>,
    length: u64,
    data: &SegmentRange,
    tree: &mut WorkingTree,
    time: Time,
) -> Result<()> {
    let mut changed = tree.fork();
    let whole = SegmentRange { segment: file.clone(), offset: 0 };
    let unreadable = || EngineError::Invalid { what: "group of edits", why: "this version cannot read it".to_owned() };
    let read = |offset: u64, buffer: &mut [u8]| {
        let read = file.file.read_exact_at(buffer, data.offset + offset);
        read.map_err(|source| EngineError::from_io("read the journal", &source))
    };
    let mut at = 0;
    while at < length {
        let mut head = [0; 4];
        if length - at < head.len() as u64 {
            return Err(unreadable());
        }
        read(at, &mut head)?;
        let edit_bytes = u64::from(u32::from_le_bytes(head));
        at += head.len() as u64;
        if edit_bytes > length - at || edit_bytes > EDIT_BYTES_MAX as u64 {
            return Err(unreadable());
        }
        let mut body = vec![0; edit_bytes as usize];
        read(at, &mut body)?;
        at += edit_bytes;
        let edit = Edit::decode(&body).filter(|edit| edit.data_bytes() <= length - at).ok_or_else(unreadable)?;
        edit.apply(&mut changed, time, Some(location(&edit, at, data, &whole)))?;
        at += edit.data_bytes();
    }
    *tree = changed;
    Ok(())
}
