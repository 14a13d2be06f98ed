//! The public interface of a view, and its locks.
//!
//! The file system lock is held while an operation looks up or edits something, which includes writing the journal and reading the file
//! that shows a conflict. It is not held while file data is read, a tree is stored, or the journal is synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::work::{LooseFile, RenameMode, Special};
use amalgam_engine::workspace::{Change, Committed, WorkspaceName, Workspaces};
use amalgam_engine::{Error as EngineError, OperationContext, RefName, SnapshotId, Store, Time, TreePath, WorkingTree};
use amalgam_policy::Guard;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tracing::{debug, info, warn};

use crate::access::{Access, Caller};
use crate::attributes::{Attributes, Ino, Kind, SetAttributes};
use crate::commit::{CommitRequest, Committer};
use crate::error::{Error, Result};
use crate::file_data::{self, COPY_BYTES_MAX, COPY_STEP_BYTES, Seek, SizeChange, WriteAt};
use crate::file_system::{FileSystem, StateVersion};
use crate::handles::{self, Handle, HandleState};
use crate::inodes::InodeTable;
use crate::invalidation::{WatchId, Watcher, Watchers};
use crate::journal::{Journal, JournalBase, RecoveryReport};
use crate::listing::{self, CookieCache, ListedEntry, ListingMode};
use crate::local_entries::{LocalEntries, LocalEntry};
use crate::locks::{Lock, LockTable};
use crate::metadata::{self, XattrSet};
use crate::namespace::{self, NewEntry};
use crate::options::{DiskSpace, ViewOptions};
use crate::prefetch::{Prefetch, ReadOutcome};
use crate::saved_inodes;
use crate::tree_switch::{self, Restored};
use crate::writeback::Writeback;

/// A shorter journal is not worth a checkpoint that frees space.
const GARBAGE_BYTES_MIN: u64 = 1 << 20;

/// A workspace or a snapshot as a POSIX file system. Clones share one state.
#[derive(Clone)]
pub struct View {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    options: Arc<ViewOptions>,
    pub(crate) fs: Arc<RwLock<FileSystem>>,
    watchers: Arc<Watchers>,
    cookies: Mutex<CookieCache>,
    locks: LockTable,
    prefetch: Arc<Prefetch>,
    pub(crate) committer: Committer,
    pub(crate) writeback: Writeback,
}

/// Opening, closing, and the state as a whole.
impl View {
    /// Opens a read-only view of a snapshot.
    pub fn of_snapshot(store: &Store, snapshot: SnapshotId, options: ViewOptions) -> Result<Self> {
        Ok(Self::with(WorkingTree::open(store, snapshot)?, InodeTable::new(), None, options))
    }

    /// Opens a writable view with a journal in `directory`, which nothing else may use. If an earlier view left a journal there, it is
    /// replayed on its own base and `tree` is ignored.
    pub fn open(tree: WorkingTree, directory: &Path, options: ViewOptions) -> Result<(Self, RecoveryReport)> {
        let mut inodes = InodeTable::new();
        saved_inodes::load(directory, &mut inodes);
        // The handles of an earlier view, so that changes through any protocol update them.
        let handles = directory.join(handles::FILE_NAME);
        if handles.exists() {
            inodes.enable_handles(&handles)?;
        }
        if let Some(base) = JournalBase::read(directory)? {
            let base = base.move_after_commit(tree.store(), directory, options.journaled_commit)?;
            let (journal, tree, report) = Journal::recover(tree.store(), directory, base)?;
            info!(edits = report.edits, cut_bytes = report.cut_bytes, "journal replayed");
            if let Some(warning) = report.warning() {
                warn!(skipped = report.skipped_edits, "edits of a journal could not be replayed");
                debug!("{warning}");
            }
            return Ok((Self::with(tree, inodes, Some(journal), options), report));
        }
        let journal = Journal::create(directory, tree.base())?;
        Ok((Self::with(tree, inodes, Some(journal), options), RecoveryReport::default()))
    }

    /// Returns whether a directory may have the journal of a view with uncommitted work. A journal that cannot be read counts as work.
    pub fn has_work(directory: &Path) -> bool {
        !matches!(JournalBase::read(directory), Ok(None))
    }

    fn with(tree: WorkingTree, inodes: InodeTable, mut journal: Option<Journal>, options: ViewOptions) -> Self {
        if let (Some(journal), Some(disk)) = (&mut journal, &options.disk) {
            journal.set_disk(Arc::clone(disk));
        }
        let (options, watchers) = (Arc::new(options), Arc::<Watchers>::default());
        let fs = FileSystem {
            tree,
            inodes,
            journal,
            local: LocalEntries::default(),
            guard: Arc::clone(&options.guard),
            quota_bytes: options.quota_bytes,
            options: Arc::clone(&options),
            watchers: Arc::clone(&watchers),
        };
        let shared = Shared {
            options,
            fs: Arc::new(RwLock::new(fs)),
            watchers,
            cookies: Mutex::default(),
            locks: LockTable::default(),
            prefetch: Arc::default(),
            committer: Committer::default(),
            writeback: Writeback::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Registers a watcher. It is notified of all changes except those that name it as their origin.
    pub fn watch(&self, watcher: Watcher) -> WatchId {
        self.shared.watchers.add(watcher)
    }

    /// Removes a watcher.
    pub fn unwatch(&self, id: WatchId) {
        self.shared.watchers.remove(id);
    }

    /// Returns whether the view refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.shared.fs.read().journal.is_none()
    }

    /// Returns whether the journal has failed: the view can no longer write or commit, and only a new view has the state on disk.
    pub fn has_failed(&self) -> bool {
        self.shared.fs.read().journal.as_ref().is_some_and(Journal::has_failed)
    }

    /// Returns the number of inodes in the table.
    pub fn inodes(&self) -> usize {
        self.shared.fs.read().inodes.len()
    }

    /// Returns the directory of the journal.
    pub fn directory(&self) -> Option<PathBuf> {
        self.shared.fs.read().journal.as_ref().map(|journal| journal.directory().to_owned())
    }

    /// Returns the space of the disk.
    pub fn disk_space(&self) -> DiskSpace {
        self.shared.options.disk.as_ref().map(|measure| measure()).unwrap_or_default()
    }

    /// Closes the view: syncs everything, and saves inode numbers and times for the next view. Removes the journal if there is no
    /// uncommitted work. A failed journal is left as it is. After an error the view stays open.
    pub fn close(&self) -> Result<()> {
        self.shared.committer.close(&self.shared.fs, &self.shared.writeback)
    }

    fn now(&self) -> Time {
        (self.shared.options.clock)()
    }
}

/// Names.
impl View {
    /// Looks up a name and adds one reference to its inode, until [`forget`](Self::forget) drops it.
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attributes> {
        namespace::lookup(&mut self.shared.fs.write(), caller, parent, name)
    }

    /// Adds one reference to an inode.
    pub fn hold(&self, ino: Ino) {
        self.shared.fs.write().inodes.hold(ino);
    }

    /// Drops references to inodes.
    pub fn forget(&self, inodes: impl IntoIterator<Item = (Ino, u64)>) {
        let mut fs = self.shared.fs.write();
        for (ino, lookups) in inodes {
            fs.inodes.forget(ino, lookups);
        }
    }

    /// Returns the directory that an inode has a name in, the first one of several. `None` if it has no name.
    pub fn directory_of(&self, ino: Ino) -> Option<Ino> {
        self.shared.fs.read().inodes.parent(ino)
    }

    /// Creates an empty file, with one reference.
    pub fn create(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attributes> {
        self.create_entry(caller, parent, name, &NewEntry::File { mode })
    }

    /// Creates a directory, with one reference.
    pub fn create_directory(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attributes> {
        self.create_entry(caller, parent, name, &NewEntry::Directory { mode })
    }

    /// Creates a symlink, with one reference.
    pub fn create_symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attributes> {
        self.create_entry(caller, parent, name, &NewEntry::Symlink { target })
    }

    /// Creates a FIFO, a socket or a device file, with one reference.
    pub fn create_special(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        special: Special,
        mode: u32,
    ) -> Result<Attributes> {
        self.create_entry(caller, parent, name, &NewEntry::Special { special, mode })
    }

    fn create_entry(&self, caller: &Caller, parent: Ino, name: &[u8], new: &NewEntry<'_>) -> Result<Attributes> {
        namespace::create(&mut self.shared.fs.write(), caller, parent, name, new)
    }

    /// Adds a hard link to a file, and one reference.
    pub fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        namespace::link(&mut self.shared.fs.write(), caller, ino, parent, name)
    }

    /// Removes a name of a file. Callers that hold the inode can still use it.
    pub fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        namespace::unlink(&mut self.shared.fs.write(), caller, parent, name)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        namespace::remove_directory(&mut self.shared.fs.write(), caller, parent, name)
    }

    /// Renames an entry, as `renameat2` does.
    pub fn rename(&self, caller: &Caller, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Result<()> {
        namespace::rename(&mut self.shared.fs.write(), caller, from, to, mode)
    }

    /// Lists a directory from a cookie on, 0 for the beginning, until `take` returns false. The refused entry is listed again by the next
    /// call.
    pub fn read_directory(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        take: impl FnMut(&ListedEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(caller, ino, cookie, ListingMode::Names, take)
    }

    /// Lists a directory like [`read_directory`](Self::read_directory), and adds one reference to each inode that `take` accepts, except
    /// those of `.` and `..`.
    pub fn read_directory_plus(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        take: impl FnMut(&ListedEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(caller, ino, cookie, ListingMode::Lookups, take)
    }

    fn list(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        mode: ListingMode,
        take: impl FnMut(&ListedEntry<'_>) -> bool,
    ) -> Result<()> {
        let fs = &mut *self.shared.fs.write();
        if let Some(part) = listing::read_directory(fs, &self.shared.cookies, (caller, ino, cookie), mode, take)? {
            self.shared.prefetch.listed(ino, part);
        }
        Ok(())
    }

    /// Replaces the agents on whose behalf the view is used, and notifies all watchers of entries that became visible, hidden, or
    /// changeable.
    pub fn set_guard(&self, guard: Arc<Guard>) -> Result<()> {
        tree_switch::set_guard(&mut self.shared.fs.write(), guard)
    }

    /// Replaces the local entries. Callers that hold covered inodes can still use them.
    pub fn set_local_entries(&self, entries: BTreeMap<TreePath, LocalEntry>) -> Result<()> {
        tree_switch::set_local_entries(&mut self.shared.fs.write(), entries)
    }

    /// Returns the local entries.
    pub fn local_entries(&self) -> BTreeMap<TreePath, LocalEntry> {
        self.shared.fs.read().local.all().clone()
    }

    /// Refuses a path at which no local entry can be: its directory must exist, and it may cover nothing but a directory.
    pub fn ensure_local_possible(&self, path: &TreePath) -> Result<()> {
        LocalEntries::ensure_possible(path, &self.shared.fs.read().tree)
    }
}

/// File data.
impl View {
    /// Checks that a file may be opened.
    pub fn open_file(&self, caller: &Caller, ino: Ino, access: Access) -> Result<()> {
        file_data::open(&self.shared.fs.read(), caller, ino, access)
    }

    /// Checks that a file may be opened, and truncates it to zero bytes, as `O_TRUNC` does.
    pub fn open_file_truncating(&self, caller: &Caller, ino: Ino, access: Access) -> Result<()> {
        file_data::open_truncating(&mut self.shared.fs.write(), caller, ino, access)
    }

    /// Reads up to `length` bytes from an offset; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Bytes> {
        match self.begin_read(ino, offset, length)? {
            ReadOutcome::Ready(bytes) => Ok(bytes),
            ReadOutcome::Pending(read) => read.finish(),
        }
    }

    /// Starts a read. Data that is not in memory or in the journal is left to [`PendingRead::finish`](crate::PendingRead::finish), which
    /// another thread may call.
    pub fn begin_read(&self, ino: Ino, offset: u64, length: usize) -> Result<ReadOutcome> {
        // The file is taken out under the lock, and read without it.
        let file = self.readable_file(ino)?;
        self.shared.prefetch.begin_read(ino, file, offset, length, || {
            let fs = self.shared.fs.read();
            Some((fs.tree.fork(), fs.inodes.path(ino).ok()??))
        })
    }

    /// Writes at an offset.
    pub fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(caller, ino, WriteAt::Offset(offset), data).map(drop)
    }

    /// Writes at the end of a file, and returns the offset. If that is not the offset that the caller expects, the caller's origin is
    /// notified like all other watchers.
    pub fn append(&self, caller: &Caller, ino: Ino, expected: u64, data: &[u8]) -> Result<u64> {
        self.write_at(caller, ino, WriteAt::End { expected }, data)
    }

    fn write_at(&self, caller: &Caller, ino: Ino, at: WriteAt, data: &[u8]) -> Result<u64> {
        let fs = &mut *self.shared.fs.write();
        let offset = file_data::write(fs, caller, ino, at, data)?;
        self.shared.writeback.data_written(&self.shared.fs, fs, data.len() as u64);
        Ok(offset)
    }

    /// Removes the set-ID bits of a file that another user than its owner has written. Returns whether there were any.
    pub fn drop_privilege(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        let attributes = self.attributes(ino)?;
        let mode = metadata::without_set_id_bits(caller, &attributes);
        let has_any = mode != attributes.mode && attributes.kind == Kind::File;
        if has_any {
            let trusted = Caller { enforce: false, ..caller.clone() };
            self.set_attributes(&trusted, ino, &SetAttributes { mode: Some(mode), ..Default::default() })?;
        }
        Ok(has_any)
    }

    /// Checks that the disk has space for a range of a file, and extends the file if asked to. Does not reserve the space.
    pub fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, length: u64, size_change: SizeChange) -> Result<()> {
        file_data::allocate(&mut self.shared.fs.write(), caller, ino, (offset, length), size_change)
    }

    /// Makes a range read as zeros.
    pub fn punch(&self, caller: &Caller, ino: Ino, offset: u64, length: u64, size_change: SizeChange) -> Result<()> {
        file_data::punch(&mut self.shared.fs.write(), caller, ino, (offset, length), size_change)
    }

    /// Returns where the next data or the next hole begins, at an offset or behind it.
    pub fn seek(&self, ino: Ino, offset: u64, target: Seek) -> Result<u64> {
        let file = self.readable_file(ino)?;
        file_data::seek(&file, offset, target)
    }

    /// Copies a range between files, or within one. Returns how many bytes were copied: fewer if the rest was refused.
    pub fn copy_range(&self, caller: &Caller, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        // One state of the source, also if both are one file.
        let source = self.readable_file(from.0)?;
        let length = length.min(source.stat().size.saturating_sub(from.1)).min(COPY_BYTES_MAX);
        let mut done = 0;
        while done < length {
            let step = (length - done).min(COPY_STEP_BYTES);
            let bytes = source.read_at(from.1 + done, step as usize).map_err(Error::from);
            let copied = bytes.and_then(|bytes| {
                if !bytes.is_empty() {
                    self.write(caller, to.0, to.1 + done, &bytes)?;
                }
                Ok(bytes.len() as u64)
            });
            match copied {
                Ok(0) => break,
                Ok(copied) => done += copied,
                // A call for the rest gets the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Returns the file of an inode that the view's agents can see.
    fn readable_file(&self, ino: Ino) -> Result<LooseFile> {
        let fs = self.shared.fs.read();
        fs.ensure_read_permitted(ino)?;
        fs.file(ino)
    }

    /// Syncs all changes of this view to disk. Once a sync has failed, all later ones fail.
    pub fn sync(&self) -> Result<()> {
        self.shared.writeback.sync(&self.shared.fs)
    }
}

/// Attributes.
impl View {
    /// Returns the attributes of an inode.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        {
            let fs = self.shared.fs.read();
            fs.ensure_read_permitted(ino)?;
            if let Some(cached) = fs.inodes.cached_attributes(ino) {
                return Ok(cached);
            }
        }
        let mut fs = self.shared.fs.write();
        let attributes = fs.attributes(ino)?;
        fs.inodes.cache_attributes(&attributes);
        Ok(attributes)
    }

    /// Checks whether the caller may access an inode.
    pub fn access(&self, caller: &Caller, ino: Ino, access: Access) -> Result<()> {
        let attributes = self.attributes(ino)?;
        if access.has_write() && self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let fs = self.shared.fs.read();
        if access.has_write() && attributes.kind != Kind::Directory {
            fs.ensure_change_permitted(ino)?;
        }
        if fs.is_permitted(caller, &attributes, access)? { Ok(()) } else { Err(Error::Access) }
    }

    /// Returns the target of a symlink.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let file = self.readable_file(ino)?;
        file.target().map(|target| target.to_vec()).ok_or(Error::Invalid("not a symlink"))
    }

    /// Sets attributes. All permissions are checked before the first change. If the disk is full, attributes that were set before stay
    /// set.
    pub fn set_attributes(&self, caller: &Caller, ino: Ino, set: &SetAttributes) -> Result<Attributes> {
        metadata::set_attributes(&mut self.shared.fs.write(), caller, ino, set)
    }

    /// Returns an extended attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let all = metadata::xattrs(&self.shared.fs.read(), ino)?;
        let found = all.into_iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    /// Returns the names of all extended attributes.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let all = metadata::xattrs(&self.shared.fs.read(), ino)?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrSet) -> Result<()> {
        metadata::set_xattr(&mut self.shared.fs.write(), caller, ino, (name, value), mode)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        metadata::remove_xattr(&mut self.shared.fs.write(), caller, ino, name)
    }
}

/// Commits, checkpoints and restores.
impl View {
    /// Returns a fork of the tree, in constant time.
    pub fn fork(&self) -> WorkingTree {
        self.shared.fs.read().tree.fork()
    }

    /// Returns the snapshot that the next commit follows. After a checkpoint the journal rests on another one.
    pub fn head(&self) -> Option<SnapshotId> {
        self.shared.fs.read().tree.base()
    }

    /// Returns whether nothing was changed since the head.
    pub fn is_clean(&self) -> bool {
        self.shared.fs.read().is_clean()
    }

    /// Returns the current state of the view; it differs after each change.
    pub fn version(&self) -> StateVersion {
        self.shared.fs.read().version()
    }

    /// Commits the current state. Writers continue meanwhile; their edits are not part of the commit.
    pub fn commit(
        &self,
        workspaces: &Workspaces,
        name: &WorkspaceName,
        change: &Change,
        act: &OperationContext,
        action: &str,
    ) -> Result<Committed> {
        self.commit_request(&CommitRequest { workspaces, name, change, act, action, conflict_files: None })
    }

    /// Commits the current state like [`commit`](Self::commit), with files replaced by conflicts where the request asks for it.
    pub fn commit_request(&self, request: &CommitRequest<'_>) -> Result<Committed> {
        self.shared.committer.commit(&self.shared.fs, request)
    }

    /// Stores the tree under a reference of its own, without a commit, so that the journal can begin anew.
    pub fn checkpoint(&self, reference: &RefName, act: &OperationContext) -> Result<()> {
        self.shared.committer.checkpoint(&self.shared.fs, reference, act)
    }

    /// Returns the names of the journal files that a recovery reads beside [`JOURNAL_BASE_FILE`](crate::JOURNAL_BASE_FILE), and how
    /// many bytes of each. These bytes do not change any more.
    pub fn journal_files(&self) -> Vec<(String, u64)> {
        self.shared.fs.read().journal.as_ref().map_or_else(Vec::new, Journal::files)
    }

    /// Returns how many bytes of journal a recovery would read; 0 for a read-only view.
    pub fn journal_bytes(&self) -> u64 {
        self.shared.fs.read().journal.as_ref().map_or(0, Journal::bytes)
    }

    /// Frees disk space that the journal has preallocated, except for the reserve for edits that free space. Returns whether there was any.
    pub fn release_preallocated(&self) -> bool {
        self.shared.fs.write().journal.as_mut().is_some_and(Journal::release_beyond_reserve)
    }

    /// Returns whether the journal is long enough for a checkpoint.
    pub fn is_checkpoint_due(&self) -> bool {
        self.journal_bytes() > self.shared.options.checkpoint_bytes
    }

    /// Returns whether most of the journal belongs to files that were removed or overwritten, so that a checkpoint would free space.
    pub fn is_mostly_garbage(&self) -> Result<bool> {
        let (tree, bytes) = {
            let fs = self.shared.fs.read();
            (fs.tree.fork(), fs.journal.as_ref().map_or(0, Journal::bytes))
        };
        if bytes < GARBAGE_BYTES_MIN {
            return Ok(false);
        }
        let mut needed_bytes = 0;
        for path in tree.edited() {
            let edited = tree.stat(&path)?.filter(|stat| stat.entry.is_none());
            needed_bytes += edited.map_or(0, |stat| stat.size);
        }
        Ok(needed_bytes < bytes / 2)
    }

    /// Replaces the tree by that of a snapshot while it is in use. Files whose data differs get new inodes, and callers that hold the old
    /// ones can still use them; directories keep their inodes. Returns the earlier tree.
    ///
    /// `head` is the snapshot that the next commit follows. Until [`finish_restore`](Self::finish_restore) is called, a recovery replays
    /// the earlier edits as well.
    pub fn restore(&self, state: SnapshotId, head: Option<SnapshotId>) -> Result<(WorkingTree, Restored)> {
        tree_switch::restore(&mut self.shared.fs.write(), state, head, None)
    }

    /// Completes a restore once the earlier state is stored elsewhere. `head` has the restored tree, and is the snapshot that the next commit
    /// follows.
    pub fn finish_restore(&self, head: SnapshotId) -> Result<()> {
        self.shared.committer.finish_restore(&self.shared.fs, head)
    }

    /// Shows another snapshot in a read-only view while it is in use.
    pub fn show(&self, snapshot: SnapshotId) -> Result<Restored> {
        tree_switch::show(&mut self.shared.fs.write(), snapshot)
    }
}

/// File handles and locks.
impl View {
    /// Enables handles and stores them beside the journal, so that the next view on this journal knows them.
    pub fn keep_handles(&self) -> Result<()> {
        let directory = self.directory().ok_or(Error::ReadOnly)?;
        self.keep_handles_at(&directory.join(handles::FILE_NAME))
    }

    /// Enables handles and stores them in this file. For views of snapshots.
    pub fn keep_handles_at(&self, path: &Path) -> Result<()> {
        self.shared.fs.write().inodes.enable_handles(path)
    }

    /// Issues handles for inodes to which the caller has one reference each, and takes over these references. Returns `None` for an inode
    /// that cannot have a handle.
    pub fn issue_handles(&self, inodes: &[Ino]) -> Vec<Option<Handle>> {
        let now = self.now();
        let table = &mut self.shared.fs.write().inodes;
        let mut issued = Vec::with_capacity(inodes.len());
        for ino in inodes {
            issued.push(table.issue_handle(*ino, now).ok());
            table.pass_hold_to_handles(*ino);
        }
        if let Some(handles) = table.handles_mut() {
            handles.flush();
        }
        issued
    }

    /// Resolves a handle to an inode. The handle table holds the inode while it is recently used.
    pub fn resolve(&self, handle: Handle) -> Result<Ino> {
        let stale = Error::Stale(handle.ino);
        match self.shared.fs.read().inodes.handle_state(handle, || self.now()) {
            Some(HandleState::Held) => return Ok(handle.ino),
            Some(HandleState::NotHeld) => {}
            None => return Err(stale),
        }
        let fs = &mut *self.shared.fs.write();
        // Another thread may have found or removed it.
        match fs.inodes.handle_state(handle, || self.now()) {
            Some(HandleState::Held) => return Ok(handle.ino),
            Some(HandleState::NotHeld) => {}
            None => return Err(stale),
        }
        namespace::lookup_issued(fs, handle.ino)?;
        fs.inodes.hold(handle.ino);
        fs.inodes.pass_hold_to_handles(handle.ino);
        Ok(handle.ino)
    }

    /// Drops unlinked files whose handles were last used before a time.
    pub fn expire_handles(&self, unused_since: Time) {
        self.shared.fs.write().inodes.expire_handles(unused_since);
    }

    /// Syncs the handle table if it changed.
    pub fn sync_handles(&self) -> Result<()> {
        let unsynced = self.shared.fs.read().inodes.handles().and_then(|handles| handles.unsynced_file());
        match unsynced {
            Some(file) => file.sync_data().map_err(|source| {
                self.shared.fs.read().inodes.handles().into_iter().for_each(|handles| handles.sync_failed());
                EngineError::from_io("sync the handle table", &source).into()
            }),
            None => Ok(()),
        }
    }

    /// Returns the number of issued handles and of unlinked files that handles keep.
    pub fn handles(&self) -> (usize, usize) {
        self.shared.fs.read().inodes.handles().map_or((0, 0), |handles| handles.counts())
    }

    /// Returns a lock that conflicts with the requested one.
    pub fn test_lock(&self, ino: Ino, wanted: &Lock) -> Option<Lock> {
        self.shared.locks.find_conflict(ino, wanted)
    }

    /// Takes a lock, and replaces the owner's locks in the range. Returns false if another lock conflicts.
    pub fn try_lock(&self, ino: Ino, wanted: &Lock) -> bool {
        self.shared.locks.try_lock(ino, wanted)
    }

    /// Waits for a lock. Returns false if `give_up` returned true, which is called after each release and in intervals.
    pub fn wait_lock(&self, ino: Ino, wanted: &Lock, give_up: impl Fn() -> bool) -> bool {
        self.shared.locks.wait_lock(ino, wanted, give_up)
    }

    /// Releases the locks of an owner in a range.
    pub fn unlock(&self, ino: Ino, owner: u64, start: u64, end: u64) {
        self.shared.locks.unlock(ino, owner, start, end);
    }
}
