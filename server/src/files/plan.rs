//! A plan of edits: each edit of a request is checked against the tree that the edits before it leave, and becomes edits of that tree.
//!
//! The plan of a live tree is applied to the view afterwards; that of a commit is the tree to commit.

use amalgam_engine::object::Owner;
use amalgam_engine::work::{RenameMode, Stat};
use amalgam_engine::{EntryKind, Error as EngineError, Time, TreePath, WorkingTree};
use amalgam_proto::{Reason, v1};
use amalgam_view::{Guard, TreeEdit, TreePermissions, Upload};
use bytes::Bytes;

use super::patch::apply_patch;
use super::path::{parse_bytes, parse_path};
use super::stat::{Detail, file_stat, state_etag};
use super::states::absent;
use crate::error::{Error, Result};

/// The most edits in a plan.
const EDITS_MAX: usize = 10_000;
/// The most bytes that all edits of a plan write.
const DATA_BYTES_MAX: u64 = 32 << 20;
/// The largest file that is changed as text.
const TEXT_BYTES_MAX: u64 = 16 << 20;
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Where a file is written, and under which conditions.
pub(crate) struct WriteTarget<'a> {
    /// The path.
    pub(crate) path: &'a str,
    /// Permission bits; those of the file, or the default, if unset.
    pub(crate) mode: Option<u32>,
    /// Whether missing directories are made.
    pub(crate) create_parents: bool,
    /// The etag that the file must have, or `*` for any; empty for no condition.
    pub(crate) if_match: &'a str,
    /// Whether nothing may be there.
    pub(crate) if_absent: bool,
    /// The first byte; `None` to replace the file.
    pub(crate) offset: Option<u64>,
    /// The modification time; now if unset.
    pub(crate) modify_time: Option<Time>,
}

/// Edits that are checked and applied to a fork of a tree.
pub(crate) struct Plan {
    tree: WorkingTree,
    owner: Owner,
    /// The agents on whose behalf the edits are made.
    guard: Guard,
    edits: Vec<TreeEdit>,
    /// The path that each edit of the request leaves, if there is one.
    left: Vec<Option<TreePath>>,
    data_bytes: u64,
    replacements: u64,
}

impl Plan {
    /// Creates a plan on a fork of a tree, whose time is set.
    pub(crate) fn new(tree: WorkingTree, owner: Owner, guard: Guard) -> Self {
        Self { tree, owner, guard, edits: Vec::new(), left: Vec::new(), data_bytes: 0, replacements: 0 }
    }

    /// Returns the edits for a live tree, and the entries that the edits of the request leave, in their order.
    pub(crate) fn finish(self) -> Result<(Vec<TreeEdit>, Vec<v1::FileStat>)> {
        let stat = |left: &Option<TreePath>| match left {
            Some(path) => self.stat_message(path),
            None => Ok(v1::FileStat::default()),
        };
        let files = self.left.iter().map(stat).collect::<Result<_>>()?;
        Ok((self.edits, files))
    }

    /// Returns the tree with all edits.
    pub(crate) fn into_tree(self) -> WorkingTree {
        self.tree
    }

    /// Returns how many places were replaced and how many hunks were applied.
    pub(crate) fn replacements(&self) -> u64 {
        self.replacements
    }

    /// Adds an edit of a request. After an error the plan must not be used.
    pub(crate) fn add(&mut self, edit: &v1::FileEdit) -> Result<()> {
        use v1::file_edit::Edit;
        if self.left.len() >= EDITS_MAX {
            return Err(Error::new(
                Reason::Invalid,
                format!("more than {EDITS_MAX} edits; send them in several calls"),
            ));
        }
        let left = match &edit.edit {
            Some(Edit::Write(write)) => self.write(write)?,
            Some(Edit::Replace(replace)) => self.replace(replace)?,
            Some(Edit::Patch(patch)) => self.patch(patch)?,
            Some(Edit::MakeDirectory(make)) => Some(self.make_directory(make)?),
            Some(Edit::Remove(remove)) => self.remove(remove)?,
            Some(Edit::Rename(rename)) => Some(self.rename(rename)?),
            Some(Edit::CreateSymlink(symlink)) => Some(self.create_symlink(symlink)?),
            Some(Edit::SetAttributes(attributes)) => Some(self.set_attributes(attributes)?),
            Some(Edit::SetState(state)) => self.set_state(state)?,
            None => return Err(Error::new(Reason::Invalid, "an edit that says nothing")),
        };
        self.left.push(left);
        Ok(())
    }

    fn write(&mut self, edit: &v1::WriteEdit) -> Result<Option<TreePath>> {
        use v1::write_edit::Content;
        let data = match &edit.content {
            Some(Content::Data(data)) => data.clone(),
            Some(Content::Text(text)) => Bytes::copy_from_slice(text.as_bytes()),
            None => Bytes::new(),
        };
        let target = WriteTarget {
            path: &edit.path,
            mode: edit.mode,
            create_parents: edit.create_parents,
            if_match: &edit.if_match,
            if_absent: edit.if_absent,
            offset: edit.offset,
            modify_time: None,
        };
        let path = self.prepare_file(&target)?;
        self.write_data(&path, edit.offset.unwrap_or(0), data)?;
        self.set_target_attributes(&path, &target)?;
        Ok(Some(path))
    }

    /// Writes a file from uploaded data.
    pub(crate) fn write_upload(&mut self, target: &WriteTarget<'_>, upload: &Upload) -> Result<()> {
        let path = self.prepare_file(target)?;
        if upload.bytes() > 0 {
            let (offset, upload) = (target.offset.unwrap_or(0), upload.clone());
            self.apply(TreeEdit::WriteUpload { path: path.clone(), offset, upload })?;
        }
        self.set_target_attributes(&path, target)?;
        self.left.push(Some(path));
        Ok(())
    }

    /// Writes a whole file, or a part of one, from bytes.
    pub(crate) fn write_bytes(&mut self, target: &WriteTarget<'_>, data: Bytes) -> Result<()> {
        let path = self.prepare_file(target)?;
        self.write_data(&path, target.offset.unwrap_or(0), data)?;
        self.set_target_attributes(&path, target)?;
        self.left.push(Some(path));
        Ok(())
    }

    /// Makes sure that there is a file to write to: a new one, an empty one, or the present one for a write at an offset.
    fn prepare_file(&mut self, target: &WriteTarget<'_>) -> Result<TreePath> {
        let path = parse_path(target.path)?;
        let found = self.visible(&path)?;
        if target.if_absent && found.is_some() {
            return Err(EngineError::Exists { path }.into());
        }
        self.check_etag(&path, found.as_ref(), target.if_match)?;
        let mode = target.mode.unwrap_or(FILE_MODE);
        match found.map(|found| (found.kind, found.size)) {
            None => {
                if target.create_parents {
                    self.make_parents(&path)?;
                }
                self.apply(TreeEdit::Create { path: path.clone(), mode })?;
            }
            Some((EntryKind::File, size)) if target.offset.is_none() && size > 0 => {
                self.apply(TreeEdit::Truncate { path: path.clone(), size: 0 })?;
            }
            Some((EntryKind::File, _)) => {}
            // The file replaces the conflict: that resolves it.
            Some((EntryKind::Conflict, _)) if target.offset.is_none() => {
                self.apply(TreeEdit::Remove { path: path.clone() })?;
                self.apply(TreeEdit::Create { path: path.clone(), mode })?;
            }
            Some((EntryKind::Directory, _)) => return Err(EngineError::IsADirectory { path }.into()),
            Some((kind, _)) => return Err(wrong_kind(&path, kind)),
        }
        Ok(path)
    }

    fn write_data(&mut self, path: &TreePath, offset: u64, data: Bytes) -> Result<()> {
        self.data_bytes += data.len() as u64;
        if self.data_bytes > DATA_BYTES_MAX {
            let message = format!(
                "the edits write more than {DATA_BYTES_MAX} bytes; send them in several calls, or use WriteFile"
            );
            return Err(Error::new(Reason::Invalid, message));
        }
        match data.is_empty() {
            true => Ok(()),
            false => self.apply(TreeEdit::Write { path: path.clone(), offset, data }),
        }
    }

    fn set_target_attributes(&mut self, path: &TreePath, target: &WriteTarget<'_>) -> Result<()> {
        if let Some(mode) = target.mode
            && self.tree.stat(path)?.is_some_and(|stat| stat.mode != mode)
        {
            self.apply(TreeEdit::SetMode { path: path.clone(), mode })?;
        }
        if let Some(mtime) = target.modify_time {
            self.apply(TreeEdit::SetMtime { path: path.clone(), mtime })?;
        }
        Ok(())
    }

    fn replace(&mut self, edit: &v1::ReplaceEdit) -> Result<Option<TreePath>> {
        let (path, text) = self.read_text(&edit.path, &edit.if_match)?;
        let old = edit.old_text.as_bytes();
        if old.is_empty() {
            return Err(Error::new(Reason::Invalid, "the text to replace is empty"));
        }
        let places: Vec<usize> = memchr::memmem::find_iter(&text, old).collect();
        let count = places.len();
        if count == 0 || (count > 1 && !edit.replace_all) {
            let message = match count {
                0 => format!("{path} does not have the text to replace"),
                _ => format!("{path} has the text to replace {count} times; name more of it, or set replace_all"),
            };
            return Err(Error::new(Reason::NotUnique, message).with("count", count.to_string()));
        }
        let length = text.len() as u64 + count as u64 * edit.new_text.len() as u64 - (count * old.len()) as u64;
        if length > DATA_BYTES_MAX {
            return Err(Error::new(Reason::Invalid, format!("{path} would have {length} bytes")));
        }
        let mut changed = Vec::with_capacity(length as usize);
        let mut from = 0;
        for at in &places {
            changed.extend_from_slice(&text[from..*at]);
            changed.extend_from_slice(edit.new_text.as_bytes());
            from = at + old.len();
        }
        changed.extend_from_slice(&text[from..]);
        self.replacements += count as u64;
        self.replace_text(path, changed)
    }

    fn patch(&mut self, edit: &v1::PatchEdit) -> Result<Option<TreePath>> {
        let (path, text) = self.read_text(&edit.path, &edit.if_match)?;
        let patched = apply_patch(&text, edit.patch.as_bytes()).map_err(|failure| failure.at(&path))?;
        self.replacements += patched.hunks;
        self.replace_text(path, patched.text)
    }

    /// Returns the bytes of a file that is small enough to be changed as text.
    fn read_text(&self, path: &str, if_match: &str) -> Result<(TreePath, Vec<u8>)> {
        let path = parse_path(path)?;
        let found = self.existing(&path)?;
        self.check_etag(&path, Some(&found), if_match)?;
        match found.kind {
            EntryKind::File => {}
            EntryKind::Directory => return Err(EngineError::IsADirectory { path }.into()),
            kind => return Err(wrong_kind(&path, kind)),
        }
        if found.size > TEXT_BYTES_MAX {
            let message = format!(
                "{path} has {} bytes, and a file that is changed as text has at most {TEXT_BYTES_MAX}; write it at an offset",
                found.size
            );
            return Err(Error::new(Reason::Invalid, message));
        }
        let text = self.tree.read(&path)?;
        Ok((path, text))
    }

    fn replace_text(&mut self, path: TreePath, text: Vec<u8>) -> Result<Option<TreePath>> {
        self.apply(TreeEdit::Truncate { path: path.clone(), size: 0 })?;
        self.write_data(&path, 0, text.into())?;
        Ok(Some(path))
    }

    fn make_directory(&mut self, edit: &v1::DirectoryEdit) -> Result<TreePath> {
        let path = parse_path(&edit.path)?;
        if edit.parents {
            self.make_parents(&path)?;
            if self.tree.stat(&path)?.is_some_and(|found| found.kind == EntryKind::Directory) {
                return Ok(path);
            }
        }
        self.apply(TreeEdit::CreateDirectory { path: path.clone(), mode: edit.mode.unwrap_or(DIRECTORY_MODE) })?;
        Ok(path)
    }

    fn make_parents(&mut self, path: &TreePath) -> Result<()> {
        let mut missing = Vec::new();
        let mut above = path.split_last().map(|(above, _)| above);
        while let Some(directory) = above.filter(|directory| !directory.is_root()) {
            if self.visible(&directory)?.is_some() {
                break;
            }
            above = directory.split_last().map(|(above, _)| above);
            missing.push(directory);
        }
        for path in missing.into_iter().rev() {
            self.apply(TreeEdit::CreateDirectory { path, mode: DIRECTORY_MODE })?;
        }
        Ok(())
    }

    fn remove(&mut self, edit: &v1::RemoveEdit) -> Result<Option<TreePath>> {
        let path = parse_path(&edit.path)?;
        let found = match self.visible(&path)? {
            None if edit.allow_missing => return Ok(None),
            None => return Err(EngineError::NotFound { path }.into()),
            Some(found) => found,
        };
        self.check_etag(&path, Some(&found), &edit.if_match)?;
        let is_directory = found.kind == EntryKind::Directory;
        if is_directory && !edit.recursive && self.tree.list(&path)?.next().transpose()?.is_some() {
            return Err(EngineError::NotEmpty { path }.into());
        }
        self.apply(TreeEdit::Remove { path })?;
        Ok(None)
    }

    fn rename(&mut self, edit: &v1::RenameEdit) -> Result<TreePath> {
        let (from, to) = (parse_path(&edit.path)?, parse_path(&edit.new_path)?);
        let found = self.existing(&from)?;
        self.check_etag(&from, Some(&found), &edit.if_match)?;
        if edit.create_parents {
            self.make_parents(&to)?;
        }
        let mode = if edit.no_replace { RenameMode::NoReplace } else { RenameMode::Replace };
        self.apply(TreeEdit::Rename { from, to: to.clone(), mode })?;
        Ok(to)
    }

    fn create_symlink(&mut self, edit: &v1::SymlinkEdit) -> Result<TreePath> {
        let path = parse_path(&edit.path)?;
        if edit.create_parents {
            self.make_parents(&path)?;
        }
        self.apply(TreeEdit::CreateSymlink { path: path.clone(), target: parse_bytes(&edit.target)? })?;
        Ok(path)
    }

    fn set_attributes(&mut self, edit: &v1::AttributesEdit) -> Result<TreePath> {
        let path = parse_path(&edit.path)?;
        let found = self.existing(&path)?;
        self.check_etag(&path, Some(&found), &edit.if_match)?;
        if let Some(mode) = edit.mode {
            self.apply(TreeEdit::SetMode { path: path.clone(), mode })?;
        }
        for (name, value) in &edit.set_xattrs {
            let (name, value) = (parse_bytes(name)?, value.to_vec());
            self.data_bytes += value.len() as u64;
            self.apply(TreeEdit::SetXattr { path: path.clone(), name, value })?;
        }
        for name in &edit.remove_xattrs {
            self.apply(TreeEdit::RemoveXattr { path: path.clone(), name: parse_bytes(name)? })?;
        }
        if let Some(time) = &edit.modify_time {
            let mtime = amalgam_proto::instant(time);
            self.apply(TreeEdit::SetMtime { path: path.clone(), mtime })?;
        }
        Ok(path)
    }

    fn set_state(&mut self, edit: &v1::StateEdit) -> Result<Option<TreePath>> {
        let present = self.tree.state(&edit.key)?;
        check_state_etag(&edit.key, present.as_deref(), &edit.if_match)?;
        match (&edit.json, &present) {
            (None, None) if edit.allow_missing => return Ok(None),
            (None, None) => return Err(absent(&edit.key)),
            (Some(_), Some(_)) if edit.if_absent => {
                return Err(EngineError::Taken { what: format!("state value {:?}", edit.key) }.into());
            }
            _ => {}
        }
        self.apply(TreeEdit::SetState { key: edit.key.clone(), value: edit.json.clone() })?;
        Ok(None)
    }

    fn apply(&mut self, edit: TreeEdit) -> Result<()> {
        edit.ensure_permitted(&TreePermissions::new(&self.guard, &self.tree))?;
        edit.apply(&mut self.tree)?;
        self.edits.push(edit);
        Ok(())
    }

    /// Returns the metadata of an entry. One that is hidden from the agents does not exist for them.
    fn visible(&self, path: &TreePath) -> Result<Option<Stat>> {
        match TreePermissions::new(&self.guard, &self.tree).read(path) {
            Ok(()) => Ok(self.tree.stat(path)?),
            Err(_) => Ok(None),
        }
    }

    fn existing(&self, path: &TreePath) -> Result<Stat> {
        Ok(self.visible(path)?.ok_or_else(|| EngineError::NotFound { path: path.clone() })?)
    }

    fn stat_message(&self, path: &TreePath) -> Result<v1::FileStat> {
        match self.tree.stat(path)? {
            Some(stat) => file_stat(&self.tree, path, &stat, self.owner, Detail::Full),
            // A later edit removed it.
            None => Ok(v1::FileStat::default()),
        }
    }

    /// Refuses an entry that does not have the etag of the request.
    fn check_etag(&self, path: &TreePath, found: Option<&Stat>, if_match: &str) -> Result<()> {
        if if_match.is_empty() {
            return Ok(());
        }
        let Some(found) = found else {
            let message = format!("{path} does not exist, and the request expects it with an etag");
            return Err(Error::new(Reason::StaleFile, message));
        };
        if if_match == "*" {
            return Ok(());
        }
        let now = file_stat(&self.tree, path, found, self.owner, Detail::Full)?.etag;
        if now == if_match {
            return Ok(());
        }
        let message = format!("{path} was changed since it was read; read it again, then decide");
        Err(Error::new(Reason::StaleFile, message).with("etag", now))
    }
}

/// Refuses a state value that does not have the etag of the request.
fn check_state_etag(key: &str, present: Option<&str>, if_match: &str) -> Result<()> {
    let is_current = match (if_match, present) {
        ("", _) | ("*", Some(_)) => true,
        (_, Some(json)) => state_etag(json) == if_match,
        (_, None) => false,
    };
    if is_current {
        return Ok(());
    }
    let message = format!("state value {key:?} was changed since it was read; read it again, then decide");
    let refused = Error::new(Reason::StaleFile, message);
    Err(match present {
        Some(json) => refused.with("etag", state_etag(json)),
        None => refused,
    })
}

fn wrong_kind(path: &TreePath, kind: EntryKind) -> Error {
    let message = format!("{path} is {}, not a file; symlinks are not followed", kind.word());
    Error::new(Reason::Invalid, message)
}
