//! Groups of edits by path, for callers that hold no inodes: planned on a fork of the tree, journaled as one record, applied all or none.
//!
//! Readers see the tree before the group or the tree after it. A replaced file gets a new inode, as if another file had been renamed onto
//! it: callers that hold the old one read the old data. Edits of attributes and writes into a file keep its inode, and so does a file
//! with other names that the group leaves alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_engine::object::Owner;
use amalgam_engine::work::{MemorySegments, RenameMode, SegmentRange};
use amalgam_engine::workspace::take_entries;
use amalgam_engine::{Name, Result as EngineResult, SnapshotId, Time, TreePath, WorkingTree};
use bytes::Bytes;

use crate::access::Caller;
use crate::attributes::{Ino, ROOT};
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::journal::{Edit, GroupData, Journal, JournalPart};
use crate::namespace;
use crate::permission::TreePermissions;
use crate::tree_switch::{self, InodeFate};
use crate::view::View;

/// Data that was uploaded before a rotation of the journal is copied in steps of this size.
const COPY_STEP_BYTES: usize = 1 << 20;
/// Limit of parts in one recorded edit: with the longest path it is within the limit of an encoded edit.
const EDIT_PARTS_MAX: usize = 32_768;

/// An edit of a path. New entries belong to the owner of the workspace.
#[derive(Clone)]
pub enum TreeEdit {
    /// Creates an empty file.
    Create {
        /// The path, whose directory exists.
        path: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Creates a directory.
    CreateDirectory {
        /// The path, whose directory exists.
        path: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Creates a symlink.
    CreateSymlink {
        /// The path, whose directory exists.
        path: TreePath,
        /// The target.
        target: Vec<u8>,
    },
    /// Removes an entry, a directory with everything in it.
    Remove {
        /// The path.
        path: TreePath,
    },
    /// Renames an entry.
    Rename {
        /// The present path.
        from: TreePath,
        /// The new path.
        to: TreePath,
        /// The behaviour if the new path exists.
        mode: RenameMode,
    },
    /// Writes into a file.
    Write {
        /// The path of an existing file.
        path: TreePath,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Writes uploaded data into a file.
    WriteUpload {
        /// The path of an existing file.
        path: TreePath,
        /// The offset of the first byte.
        offset: u64,
        /// The data.
        upload: Upload,
    },
    /// Sets the size of a file. A size of 0 replaces the file.
    Truncate {
        /// The path of an existing file.
        path: TreePath,
        /// The new size.
        size: u64,
    },
    /// Sets the permission bits.
    SetMode {
        /// The path.
        path: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Sets the modification time.
    SetMtime {
        /// The path.
        path: TreePath,
        /// The time.
        mtime: Time,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The path.
        path: TreePath,
        /// The name of the attribute.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The path.
        path: TreePath,
        /// The name of the attribute.
        name: Vec<u8>,
    },
    /// Sets a state value, or removes it.
    SetState {
        /// The key.
        key: String,
        /// The value as JSON text; `None` removes it.
        value: Option<String>,
    },
    /// Takes the entries of some paths from a snapshot, without the entries below them. See [`take_entries`].
    TakeEntries {
        /// The snapshot, which is kept until the next commit or checkpoint of the view.
        snapshot: SnapshotId,
        /// The snapshot that the next commit follows, if that changes.
        head: Option<SnapshotId>,
        /// The paths, sorted.
        paths: Vec<TreePath>,
    },
}

/// Data that is in the journal of a view and in no file yet: see [`View::upload`](crate::View::upload).
#[derive(Clone, Default)]
pub struct Upload {
    parts: Vec<UploadPart>,
    bytes: u64,
}

#[derive(Clone)]
struct UploadPart {
    /// Number of the journal file.
    file: u64,
    range: SegmentRange,
    length: u64,
}

impl Upload {
    /// Returns the number of uploaded bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes to the journal.
    fn append(&mut self, fs: &mut FileSystem, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let part = append_part(fs, data)?;
        self.bytes += part.length;
        self.parts.push(part);
        Ok(())
    }

    /// Copies one step of the data that is not in the current journal file. Returns whether all data is in it.
    ///
    /// A commit makes earlier journal files superfluous, so a record must not refer to them.
    fn bring_along(&mut self, fs: &mut FileSystem) -> Result<bool> {
        let current = fs.journal.as_ref().ok_or(Error::ReadOnly)?.file_number();
        let Some(at) = self.parts.iter().position(|part| part.file != current) else { return Ok(true) };
        let UploadPart { range, length, .. } = self.parts[at].clone();
        let step = length.min(COPY_STEP_BYTES as u64);
        let mut buffer = vec![0; step as usize];
        range.segment.read_at(range.offset, &mut buffer)?;
        let copied = append_part(fs, &buffer)?;
        self.parts[at] = copied;
        if step < length {
            let range = SegmentRange { offset: range.offset + step, ..range };
            // Another number than the current one: the rest is still to be copied.
            self.parts.insert(at + 1, UploadPart { file: u64::MAX, range, length: length - step });
        }
        Ok(self.parts.iter().all(|part| part.file == current))
    }

    /// Adds a write of the data to a group, as one edit or several.
    fn journal(&self, path: &TreePath, mut offset: u64, group: &mut GroupData) -> EngineResult<()> {
        let mut rest = &self.parts[..];
        loop {
            let (parts, later) = rest.split_at(rest.len().min(EDIT_PARTS_MAX));
            let of_file = |part: &UploadPart| JournalPart { offset: part.range.offset, length: part.length };
            let parts: Vec<_> = parts.iter().map(of_file).collect();
            let bytes: u64 = parts.iter().map(|part| part.length).sum();
            group.push(Edit::WriteParts { path: path.clone(), offset, parts }, &[])?;
            if later.is_empty() {
                return Ok(());
            }
            offset += bytes;
            rest = later;
        }
    }
}

fn append_part(fs: &mut FileSystem, data: &[u8]) -> Result<UploadPart> {
    fs.ensure_writable()?;
    let length = data.len() as u64;
    fs.ensure_quota(length)?;
    let now = fs.now();
    let range = fs.append_to_journal(&Edit::UnlinkedData { length }, now, data)?;
    let file = fs.journal.as_ref().ok_or(Error::ReadOnly)?.file_number();
    Ok(UploadPart { file, range: range.expect("data has a location"), length })
}

impl TreeEdit {
    /// Applies the edit to a tree.
    pub fn apply(&self, tree: &mut WorkingTree) -> EngineResult<()> {
        match self {
            Self::Create { path, mode } => tree.create(path, *mode),
            Self::CreateDirectory { path, mode } => tree.create_directory(path, *mode),
            Self::CreateSymlink { path, target } => tree.symlink(path, target),
            Self::Remove { path } => tree.remove_all(path),
            Self::Rename { from, to, mode } => tree.rename(from, to, *mode),
            Self::Write { path, offset, data } => tree.write_at(path, *offset, data),
            Self::WriteUpload { path, offset, upload } => {
                let mut at = *offset;
                for part in &upload.parts {
                    tree.write_range(path, at, part.range.clone(), part.length)?;
                    at += part.length;
                }
                Ok(())
            }
            Self::Truncate { path, size } => tree.truncate(path, *size),
            Self::SetMode { path, mode } => tree.set_mode(path, *mode),
            Self::SetMtime { path, mtime } => tree.set_mtime(path, *mtime),
            Self::SetXattr { path, name, value } => tree.set_xattr(path, name, value),
            Self::RemoveXattr { path, name } => tree.remove_xattr(path, name).map(drop),
            Self::SetState { key, value: Some(value) } => tree.set_state(key, value),
            Self::SetState { key, value: None } => tree.remove_state(key).map(drop),
            Self::TakeEntries { snapshot, head, paths } => {
                let root = tree.store().snapshot(*snapshot)?.root;
                take_entries(tree, root, paths)?;
                if head.is_some() {
                    tree.rebase(*head);
                }
                Ok(())
            }
        }
    }

    /// Returns the paths that the edit takes from a snapshot.
    pub fn taken_paths(&self) -> &[TreePath] {
        match self {
            Self::TakeEntries { paths, .. } => paths,
            _ => &[],
        }
    }

    /// Adds the edit to a group, as the journal records it. Uploads are in the current journal file.
    fn journal(&self, group: &mut GroupData) -> EngineResult<()> {
        let edit = match self {
            Self::Create { path, mode } => Edit::Create { path: path.clone(), mode: *mode, owner: None },
            Self::CreateDirectory { path, mode } => {
                Edit::CreateDirectory { path: path.clone(), mode: *mode, owner: None }
            }
            Self::CreateSymlink { path, target } => {
                Edit::Symlink { path: path.clone(), target: target.clone(), owner: None }
            }
            Self::Remove { path } => Edit::RemoveAll { path: path.clone() },
            Self::Rename { from, to, mode } => Edit::Rename { from: from.clone(), to: to.clone(), mode: *mode },
            Self::Write { path, offset, data } => {
                let length = data.len() as u64;
                return group.push(Edit::Write { path: path.clone(), offset: *offset, length }, data);
            }
            Self::WriteUpload { path, offset, upload } => return upload.journal(path, *offset, group),
            Self::Truncate { path, size } => Edit::Truncate { path: path.clone(), size: *size },
            Self::SetMode { path, mode } => Edit::SetMode { path: path.clone(), mode: *mode },
            Self::SetMtime { path, mtime } => Edit::SetMtime { path: path.clone(), mtime: *mtime },
            Self::SetXattr { path, name, value } => {
                Edit::SetXattr { path: path.clone(), name: name.clone(), value: value.clone() }
            }
            Self::RemoveXattr { path, name } => Edit::RemoveXattr { path: path.clone(), name: name.clone() },
            Self::SetState { key, value } => Edit::SetState { key: key.clone(), value: value.clone() },
            Self::TakeEntries { snapshot, head, paths } => {
                Edit::TakeEntries { snapshot: *snapshot, head: *head, paths: paths.clone() }
            }
        };
        group.push(edit, &[])
    }

    /// Refuses the edit if the permissions in the tree before it do not permit it.
    pub fn ensure_permitted(&self, permissions: &TreePermissions<'_>) -> Result<()> {
        match self {
            Self::Create { path, .. } | Self::CreateDirectory { path, .. } | Self::CreateSymlink { path, .. } => {
                permissions.add(path)
            }
            Self::Remove { path } => permissions.read(path).and_then(|()| permissions.remove(path)),
            Self::Rename { from, to, mode } => {
                permissions.read(from).and_then(|()| permissions.rename(from, to, *mode))
            }
            Self::Write { path, .. }
            | Self::WriteUpload { path, .. }
            | Self::Truncate { path, .. }
            | Self::SetMode { path, .. }
            | Self::SetMtime { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. } => permissions.read(path).and_then(|()| permissions.change(path)),
            Self::SetState { .. } => permissions.change_state(),
            Self::TakeEntries { paths, .. } => {
                paths.iter().try_for_each(|path| permissions.read(path).and_then(|()| permissions.change(path)))
            }
        }
    }

    /// Reports the paths that the edit changes, and whether their inodes stay.
    fn report_paths(&self, report: &mut dyn FnMut(&TreePath, InodeFate)) {
        use InodeFate::{Kept, Replaced, Taken};
        match self {
            Self::Create { path, .. }
            | Self::CreateDirectory { path, .. }
            | Self::CreateSymlink { path, .. }
            | Self::Remove { path }
            | Self::Truncate { path, size: 0 } => report(path, Replaced),
            Self::Rename { from, to, .. } => {
                report(from, Replaced);
                report(to, Replaced);
            }
            Self::Write { path, .. }
            | Self::WriteUpload { path, .. }
            | Self::Truncate { path, .. }
            | Self::SetMode { path, .. }
            | Self::SetMtime { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. } => report(path, Kept),
            Self::SetState { .. } => {}
            // Directories stay, see `take_entries`.
            Self::TakeEntries { paths, .. } => paths.iter().for_each(|path| report(path, Taken)),
        }
    }
}

impl View {
    /// Appends data to the journal, for an edit of a group that refers to it. Data that no edit refers to goes with the next commit.
    pub fn upload(&self, upload: &mut Upload, data: &[u8]) -> Result<()> {
        let fs = &mut *self.shared.fs.write();
        upload.append(fs, data)?;
        self.shared.writeback.data_written(&self.shared.fs, fs, data.len() as u64);
        Ok(())
    }

    /// Changes the tree by a group of edits, all or none, also across a crash of the process.
    ///
    /// `plan` gets a fork of the tree, applies each edit to it ([`TreeEdit::apply`]) and returns the edits in that order. No other change
    /// happens meanwhile, so it must not wait for others. An error of it changes nothing.
    pub fn edit_group<T, E: From<Error>>(
        &self,
        uploads: &mut [&mut Upload],
        plan: impl FnOnce(WorkingTree, &[&mut Upload]) -> Result<(Vec<TreeEdit>, T), E>,
    ) -> Result<T, E> {
        let mut held_off = None;
        loop {
            {
                let fs = &mut *self.shared.fs.write();
                fs.ensure_writable()?;
                if bring_uploads_along(fs, uploads)? {
                    let now = fs.now();
                    let (edits, done) = plan(scratch(fs, now), uploads)?;
                    let end = fs.journal.as_ref().map_or(0, Journal::end);
                    apply(fs, &edits, now)?;
                    let written = fs.journal.as_ref().map_or(0, Journal::end).saturating_sub(end);
                    self.shared.writeback.data_written(&self.shared.fs, fs, written);
                    return Ok(done);
                }
            }
            // Each new journal file would begin the copy anew.
            held_off.get_or_insert_with(|| self.shared.committer.hold_off());
        }
    }
}

/// Brings the uploads of a group into the current journal file, one step at a time. Returns whether all of them are there.
fn bring_uploads_along(fs: &mut FileSystem, uploads: &mut [&mut Upload]) -> Result<bool> {
    for upload in uploads {
        if !upload.bring_along(fs)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Journals and applies a group. The caller has applied the same edits to a fork of the tree, so the tree takes them.
fn apply(fs: &mut FileSystem, edits: &[TreeEdit], now: Time) -> Result<()> {
    fs.ensure_writable()?;
    if edits.is_empty() {
        return Ok(());
    }
    if let [TreeEdit::Rename { from, to, mode }] = edits {
        return rename(fs, from, to, *mode);
    }
    let mut fates: BTreeMap<TreePath, InodeFate> = BTreeMap::new();
    let mut group = GroupData::default();
    for edit in edits {
        edit.report_paths(&mut |path, fate| {
            let known = fates.entry(path.clone()).or_insert(fate);
            *known = (*known).max(fate);
        });
        edit.journal(&mut group)?;
    }
    for (path, fate) in &fates {
        refuse_local(fs, path, *fate)?;
    }
    let (record, data) = group.record();
    fs.ensure_quota(data.len() as u64)?;
    let (end, file) = {
        let journal = fs.journal.as_ref().ok_or(Error::ReadOnly)?;
        (journal.end(), journal.current_file())
    };
    let range = fs.append_to_journal(&record, now, data)?;
    let mut after = fs.tree.fork();
    let prepared = group
        .apply(&mut after, now, range, &file)
        .map_err(Error::from)
        .and_then(|()| tree_switch::prepare_group(fs, &after, &fates));
    match prepared {
        Ok(switch) => {
            for edit in edits {
                if let (TreeEdit::TakeEntries { head, .. }, Some(journal)) = (edit, &mut fs.journal) {
                    journal.refer_to_store(head.is_some());
                }
            }
            switch.finish(fs, after);
        }
        Err(error) => {
            // A replay must give the state that callers saw.
            fs.journal.iter_mut().for_each(|journal| journal.truncate(end));
            return Err(error);
        }
    }
    Ok(())
}

/// Renames an entry. Unlike in a group of several edits, it keeps its inode, and so do all entries below it.
fn rename(fs: &mut FileSystem, from: &TreePath, to: &TreePath, mode: RenameMode) -> Result<()> {
    let Owner { uid, gid } = fs.options.owner;
    let (caller, mut held) = (Caller::owner(uid, gid), Vec::new());
    let mut hold = |path: &TreePath| -> Result<(Ino, Name)> {
        let (above, name) = path.split_last().ok_or(Error::Invalid("the root cannot be renamed"))?;
        let mut here = ROOT;
        for name in above.names() {
            here = namespace::lookup(fs, &caller, here, name.as_bytes())?.ino;
            held.push(here);
        }
        Ok((here, name))
    };
    let ends = hold(from).and_then(|source| Ok((source, hold(to)?)));
    let done = ends.and_then(|(source, target)| {
        let (source, target) = ((source.0, source.1.as_bytes()), (target.0, target.1.as_bytes()));
        namespace::rename(fs, &caller, source, target, mode)
    });
    for ino in held {
        fs.inodes.forget(ino, 1);
    }
    done
}

/// Refuses an edit of a local entry.
fn refuse_local(fs: &FileSystem, path: &TreePath, fate: InodeFate) -> Result<()> {
    if fs.local.is_empty() {
        return Ok(());
    }
    if fs.local.contains(path) || fs.local.covers(path) {
        return Err(Error::Local { path: path.clone() });
    }
    if fate != InodeFate::Kept { fs.ensure_none_local_below(path) } else { Ok(()) }
}

/// Forks the tree for the plan of a group, at a time.
fn scratch(fs: &FileSystem, now: Time) -> WorkingTree {
    let mut tree = fs.tree.fork().with_segments(Arc::new(MemorySegments::default()));
    tree.set_now(now);
    tree
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
    use amalgam_engine::{OperationContext, RefName, Store};

    use super::*;
    use crate::options::ViewOptions;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).expect("a path")
    }

    fn open(store: &Store, directory: &std::path::Path) -> View {
        let options = ViewOptions::new(Owner { uid: 1, gid: 1 }, || Time(7));
        View::open(WorkingTree::new(store), directory, options).expect("opened").0
    }

    fn edit(view: &View, edits: Vec<TreeEdit>) -> Result<()> {
        view.edit_group(&mut [], |mut tree, _| {
            edits.iter().try_for_each(|edit| edit.apply(&mut tree))?;
            Ok((edits, ()))
        })
    }

    /// Creates a file with uploaded data.
    fn write_upload(view: &View, name: &str, upload: &mut Upload) -> Result<()> {
        view.edit_group(&mut [upload], |mut tree, uploads| {
            let create = TreeEdit::Create { path: path(name), mode: 0o644 };
            let write = TreeEdit::WriteUpload { path: path(name), offset: 0, upload: uploads[0].clone() };
            let edits = vec![create, write];
            edits.iter().try_for_each(|edit| edit.apply(&mut tree))?;
            Ok((edits, ()))
        })
    }

    fn create(name: &str, data: &[u8]) -> Vec<TreeEdit> {
        let data = Bytes::copy_from_slice(data);
        vec![TreeEdit::Create { path: path(name), mode: 0o644 }, TreeEdit::Write { path: path(name), offset: 0, data }]
    }

    #[test]
    fn a_group_is_replayed_whole_and_a_cut_one_is_not_replayed_at_all() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let view = open(&store, place.path());
        edit(&view, create("first", b"one")).expect("edited");
        let end = std::fs::metadata(place.path().join("0.journal")).expect("there").len();
        let mut both = create("second", b"two");
        both.push(TreeEdit::Rename { from: path("first"), to: path("moved"), mode: RenameMode::Replace });
        both.push(TreeEdit::SetState { key: "plan".to_owned(), value: Some("[1]".to_owned()) });
        edit(&view, both).expect("edited");
        let full = std::fs::read(place.path().join("0.journal")).expect("read");
        let used = full.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
        drop(view);
        for (length, has_both) in [(used, true), (used - 1, false), (used - 20, false)] {
            let copy = tempfile::tempdir().expect("a directory");
            std::fs::copy(place.path().join("base"), copy.path().join("base")).expect("copied");
            std::fs::write(copy.path().join("0.journal"), &full[..length]).expect("written");
            let tree = open(&store, copy.path()).fork();
            let names: Vec<_> =
                tree.list("").expect("listed").map(|found| found.expect("read").0.to_string()).collect();
            match has_both {
                true => assert_eq!(names, ["moved", "second"], "of {length}, first record ends before {end}"),
                false => assert_eq!(names, ["first"], "of {length}"),
            }
            assert_eq!(tree.state("plan").expect("read").is_some(), has_both);
        }
    }

    #[test]
    fn a_refused_group_changes_neither_tree_nor_journal() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let view = open(&store, place.path());
        edit(&view, create("a", b"one")).expect("edited");
        let before = view.version();
        let mut bad = create("b", b"two");
        bad.push(TreeEdit::Remove { path: path("missing") });
        edit(&view, bad).expect_err("the last edit fails");
        assert_eq!(view.version(), before);
        assert!(!view.fork().exists("b").expect("looked up"));
    }

    #[test]
    fn a_replaced_file_gets_another_inode_and_its_holder_reads_the_old_data() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let view = open(&store, place.path());
        let caller = Caller::owner(1, 1);
        edit(&view, create("a", b"old")).expect("edited");
        let held = view.lookup(&caller, ROOT, b"a").expect("found").ino;
        let data = Bytes::from_static(b"newer");
        let replace =
            vec![TreeEdit::Truncate { path: path("a"), size: 0 }, TreeEdit::Write { path: path("a"), offset: 0, data }];
        edit(&view, replace).expect("edited");
        assert_eq!(&view.read(held, 0, 10).expect("read")[..], b"old");
        let now = view.lookup(&caller, ROOT, b"a").expect("found");
        assert_ne!(now.ino, held);
        assert_eq!(&view.read(now.ino, 0, 10).expect("read")[..], b"newer");
        edit(&view, vec![TreeEdit::SetMode { path: path("a"), mode: 0o600 }]).expect("edited");
        let attributes = view.attributes(now.ino).expect("the inode stays");
        assert_eq!(attributes.mode, 0o600);
    }

    #[test]
    fn an_upload_survives_a_commit_in_between_and_a_restart_after_it() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let workspaces = Workspaces::of(&store);
        let (name, act) = (WorkspaceName::new("main").expect("a name"), OperationContext::new("ann", Time(1)));
        workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
        let view = open(&store, place.path());
        let mut upload = Upload::default();
        let first = vec![1; COPY_STEP_BYTES + 17];
        view.upload(&mut upload, &first).expect("uploaded");
        edit(&view, create("other", b"x")).expect("edited");
        view.commit(&workspaces, &name, &Change::new("one"), &act, "commit").expect("committed");
        view.upload(&mut upload, b"end").expect("uploaded");
        write_upload(&view, "big", &mut upload).expect("edited");
        let expected = [&first[..], b"end"].concat();
        assert_eq!(view.fork().read("big").expect("read"), expected);
        drop(view);
        let again = open(&store, place.path());
        assert_eq!(again.fork().read("big").expect("read"), expected);
    }

    #[test]
    fn an_upload_of_an_earlier_journal_file_ends_while_checkpoints_go_on() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let view = open(&store, place.path());
        edit(&view, create("other", b"x")).expect("edited");
        let (mut upload, piece) = (Upload::default(), vec![7; COPY_STEP_BYTES]);
        for _ in 0..64 {
            view.upload(&mut upload, &piece).expect("uploaded");
        }
        let checkpoint = |view: &View| {
            let reference = RefName::new("view/main").expect("a name");
            view.checkpoint(&reference, &OperationContext::new("test", Time(1))).expect("stored");
        };
        checkpoint(&view);
        let is_done = Arc::new(AtomicBool::new(false));
        let checkpoints = std::thread::spawn({
            let (view, is_done) = (view.clone(), Arc::clone(&is_done));
            move || {
                while !is_done.load(Ordering::Relaxed) {
                    checkpoint(&view);
                }
            }
        });
        let (sender, receiver) = std::sync::mpsc::channel();
        let writer = view.clone();
        // Not joined: without an end it would keep the test from failing.
        std::thread::spawn(move || {
            let edited = write_upload(&writer, "big", &mut upload).map_err(|error| error.to_string());
            sender.send(edited).ok();
        });
        let edited = receiver.recv_timeout(std::time::Duration::from_secs(30));
        is_done.store(true, Ordering::Relaxed);
        checkpoints.join().expect("no panic");
        edited.expect("it ends").expect("edited");
        assert_eq!(view.fork().stat("big").expect("read").expect("there").size, 64 << 20);
    }

    #[test]
    fn renames_leave_no_inode_that_nobody_holds() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let view = open(&store, place.path());
        for name in ["a", "x"] {
            edit(&view, create(name, b"one")).expect("edited");
        }
        for (from, to, mode) in [("a", "b", RenameMode::Replace), ("b", "x", RenameMode::Exchange)] {
            edit(&view, vec![TreeEdit::Rename { from: path(from), to: path(to), mode }]).expect("renamed");
            assert_eq!(view.inodes(), 1, "of the root");
        }
    }

    #[test]
    fn an_upload_of_very_many_parts_is_replayed() {
        let (store, place) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
        let view = open(&store, place.path());
        let mut upload = Upload::default();
        for _ in 0..80_000 {
            view.upload(&mut upload, b"x").expect("uploaded");
        }
        write_upload(&view, "big", &mut upload).expect("edited");
        drop(view);
        assert_eq!(open(&store, place.path()).fork().read("big").expect("read"), vec![b'x'; 80_000]);
    }

    #[test]
    fn an_edit_of_a_group_that_no_replay_could_read_is_refused() {
        let mut group = GroupData::default();
        let state = |bytes| Edit::SetState { key: "plan".to_owned(), value: Some("v".repeat(bytes)) };
        group.push(state(1 << 20), &[]).expect("within the limit");
        group.push(state(2 << 20), &[]).expect_err("too long");
    }
}
