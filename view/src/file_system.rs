//! The state of a view that its lock protects: working tree, inode table, journal and local entries, changed together.
//!
//! The tree is addressed by paths and has no inodes; the inode table maps the numbers that callers hold to paths. An inode that lost its
//! last name while a caller holds it becomes a *loose file*, apart from the tree. Every edit is appended to the journal before it is applied.
//!
//! The operations of POSIX on this state are functions in [`namespace`](crate::namespace), [`listing`](crate::listing),
//! [`file_data`](crate::file_data) and [`metadata`](crate::metadata).

use std::sync::Arc;

use amalgam_engine::object::{Content, Node, Owner};
use amalgam_engine::work::{LooseFile, SegmentRange, Stat};
use amalgam_engine::{Error as EngineError, Time, TreePath, WorkingTree};
use amalgam_policy::Guard;

use crate::access::{Access, Caller, is_permitted};
use crate::acl::{self, Acl};
use crate::attributes::{Attributes, Ino, Kind};
use crate::dentry::Dentry;
use crate::error::{Error, Result};
use crate::inodes::{ExtraTimes, InodeTable, Location};
use crate::invalidation::{Invalidation, Watchers};
use crate::journal::{Edit, Journal, Unsynced};
use crate::local_entries::LocalEntries;
use crate::options::ViewOptions;
use crate::permission::TreePermissions;

/// Permission bits that remain of a conflict that is shown as one of its sides.
const CONFLICT_MODE: u32 = 0o444;

/// Working tree, inode table, journal and local entries of a view.
pub(crate) struct FileSystem {
    pub(crate) tree: WorkingTree,
    pub(crate) inodes: InodeTable,
    /// `None` in a read-only view.
    pub(crate) journal: Option<Journal>,
    pub(crate) local: LocalEntries,
    /// The agents on whose behalf the view is used.
    pub(crate) guard: Arc<Guard>,
    pub(crate) options: Arc<ViewOptions>,
    /// Limit of uncommitted bytes.
    pub(crate) quota_bytes: Option<u64>,
    pub(crate) watchers: Arc<Watchers>,
}

/// How a path is shown.
enum Shown {
    /// As it is: not a conflict.
    Itself,
    /// A conflict as a file that can be written.
    File(LooseFile),
    /// A conflict as one of its versions, read-only.
    Side(LooseFile),
}

/// A state of a view, identified by the position of its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateVersion(Option<(u64, u64)>);

impl FileSystem {
    pub(crate) fn now(&self) -> Time {
        (self.options.clock)()
    }

    pub(crate) fn notify(&self, caller: &Caller, invalidation: impl Fn() -> Invalidation) {
        self.watchers.notify(caller.origin, invalidation);
    }

    /// Returns the owner to store for an entry: `None` for the owner of the workspace.
    pub(crate) fn stored_owner(&self, uid: u32, gid: u32) -> Option<Owner> {
        let owner = Owner { uid, gid };
        (owner != self.options.owner).then_some(owner)
    }

    /// Returns the current state; it differs after each change.
    pub(crate) fn version(&self) -> StateVersion {
        StateVersion(self.journal.as_ref().map(Journal::position))
    }

    /// Returns whether the tree has no uncommitted changes.
    pub(crate) fn is_clean(&self) -> bool {
        self.tree.is_clean() && self.journal.as_ref().is_none_or(Journal::is_at_head)
    }

    // Refusals.

    /// Refuses a change of a read-only view, which has no journal.
    pub(crate) fn ensure_writable(&self) -> Result<()> {
        if self.journal.is_some() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    /// Refuses a write of `bytes` bytes that would exceed the quota.
    pub(crate) fn ensure_quota(&self, bytes: u64) -> Result<()> {
        match (self.quota_bytes, &self.journal) {
            (Some(max), Some(journal)) if journal.uncommitted_bytes().saturating_add(bytes) > max => {
                Err(Error::Quota { max })
            }
            _ => Ok(()),
        }
    }

    /// Refuses an inode that is a local entry.
    pub(crate) fn ensure_not_local(&self, ino: Ino) -> Result<()> {
        if self.local.is_empty() {
            return Ok(());
        }
        match self.inodes.path(ino)? {
            Some(path) if self.local.contains(&path) => Err(Error::Local { path }),
            _ => Ok(()),
        }
    }

    /// Refuses to move or remove a path with a local entry at it or below it.
    pub(crate) fn ensure_none_local_below(&self, path: &TreePath) -> Result<()> {
        self.local.ensure_none_below(path, &self.tree)
    }

    /// Returns the permissions of the view's agents in its tree.
    pub(crate) fn permissions(&self) -> TreePermissions<'_> {
        TreePermissions::new(&self.guard, &self.tree)
    }

    /// Refuses to read an inode that the policy hides from the view's agents. An inode without a name is read by those
    /// who hold it.
    pub(crate) fn ensure_read_permitted(&self, ino: Ino) -> Result<()> {
        if self.guard.is_open() {
            return Ok(());
        }
        let Some(path) = self.inodes.path(ino)? else { return Ok(()) };
        let kind = self.inodes.get(ino)?.kind;
        let links = match self.inodes.cached_attributes(ino) {
            Some(cached) => u64::from(cached.links),
            None => self.tree.stat(&path)?.map_or(1, |stat| stat.links),
        };
        match self.local.contains(&path) || self.permissions().is_visible(&path, kind, links)? {
            true => Ok(()),
            false => Err(Error::Access),
        }
    }

    /// Refuses to change an inode that the policy does not let the view's agents change.
    pub(crate) fn ensure_change_permitted(&self, ino: Ino) -> Result<()> {
        if self.guard.is_open() {
            return Ok(());
        }
        self.ensure_read_permitted(ino)?;
        match self.inodes.path(ino)? {
            Some(path) => self.permissions().change(&path),
            None => Ok(()),
        }
    }

    /// Returns whether permission bits and the access control list allow an access.
    pub(crate) fn is_permitted(&self, caller: &Caller, attributes: &Attributes, access: Access) -> Result<bool> {
        if caller.uid == 0 || caller.uid == attributes.uid {
            return Ok(is_permitted(caller, attributes, access));
        }
        let list = match self.inodes.path(attributes.ino)? {
            Some(path) if !self.local.contains(&path) => self.tree.xattr(&path, acl::ACCESS)?,
            _ => None,
        };
        match list.and_then(|list| Acl::parse(&list)) {
            Some(list) => Ok(list.allows(caller, attributes.gid, access)),
            None => Ok(is_permitted(caller, attributes, access)),
        }
    }

    /// Refuses an access that permission bits or the access control list do not allow, if the view enforces permissions for the caller.
    pub(crate) fn check_access(&self, caller: &Caller, attributes: &Attributes, access: Access) -> Result<()> {
        if !caller.enforce || self.is_permitted(caller, attributes, access)? { Ok(()) } else { Err(Error::Access) }
    }

    // Edits.

    /// Journals an edit and applies it. An edit of a conflict's file replaces the conflict by the file; if that is refused, the conflict stays.
    pub(crate) fn edit(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<()> {
        let Some(path) = edit.changed_path() else { return self.journal_and_apply(edit, now, data) };
        if self.local.contains(path) {
            return Err(Error::Local { path: path.clone() });
        }
        let end = self.journal.as_ref().ok_or(Error::ReadOnly)?.end();
        let Err(refused) = self.journal_and_apply(edit, now, data) else { return Ok(()) };
        // The tree refuses edits of a conflict; the file that shows it takes them.
        let Shown::File(file) = self.shown(path)? else { return Err(refused) };
        self.journal.iter_mut().for_each(|journal| journal.truncate(end));
        let tree = self.tree.fork();
        let done = self.replace_conflict(path, &file, now).and_then(|()| self.journal_and_apply(edit, now, data));
        if done.is_err() {
            self.roll_back(tree, end);
        }
        self.invalidate_path(path);
        done
    }

    /// Journals and applies several edits, or none of them.
    pub(crate) fn edit_all<'a>(&mut self, edits: impl IntoIterator<Item = &'a Edit>, now: Time) -> Result<()> {
        let end = self.journal.as_ref().ok_or(Error::ReadOnly)?.end();
        let tree = self.tree.fork();
        let done = edits.into_iter().try_for_each(|edit| self.edit(edit, now, &[]));
        if done.is_err() {
            self.roll_back(tree, end);
        }
        done
    }

    fn roll_back(&mut self, tree: WorkingTree, journal_end: u64) {
        self.tree = tree;
        self.journal.iter_mut().for_each(|journal| journal.truncate(journal_end));
    }

    /// Replaces a conflict by the file that shows it.
    fn replace_conflict(&mut self, path: &TreePath, file: &LooseFile, now: Time) -> Result<()> {
        let stat = file.stat();
        let bytes = file.read_at(0, usize::try_from(stat.size).unwrap_or(usize::MAX))?;
        let (path, owner) = (path.clone(), stat.owner);
        self.journal_and_apply(&Edit::Remove { path: path.clone() }, now, &[])?;
        self.journal_and_apply(&Edit::Create { path: path.clone(), mode: stat.mode, owner }, now, &[])?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.journal_and_apply(&Edit::Write { path, offset: 0, length: bytes.len() as u64 }, now, &bytes)
    }

    /// Appends an edit to the journal and applies it to the tree. An edit that the tree refuses is removed from the journal, because a
    /// replay must give the state that callers saw.
    fn journal_and_apply(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<()> {
        let end = self.journal.as_ref().ok_or(Error::ReadOnly)?.end();
        let range = self.append_to_journal(edit, now, data)?;
        if let Err(refused) = edit.apply(&mut self.tree, now, range) {
            self.journal.iter_mut().for_each(|journal| journal.truncate(end));
            return Err(refused.into());
        }
        Ok(())
    }

    /// Appends an edit to the journal. Returns the location of its data.
    pub(crate) fn append_to_journal(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<Option<SegmentRange>> {
        let range = self.journal.as_mut().ok_or(Error::ReadOnly)?.append(edit, now, data)?;
        self.report_change();
        Ok(range)
    }

    /// Reports that the tree is about to change.
    pub(crate) fn report_change(&self) {
        if let Some(on_change) = &self.options.on_change {
            on_change();
        }
    }

    /// Records the result of a sync. After a failure the journal accepts nothing more.
    pub(crate) fn finish_sync(&mut self, unsynced: &Unsynced, synced: std::io::Result<()>) -> Result<()> {
        match (synced, self.journal.as_mut()) {
            (Ok(()), Some(journal)) => journal.synced(unsynced),
            (Ok(()), None) => {}
            (Err(source), journal) => {
                journal.into_iter().for_each(|journal| journal.fail(source.to_string()));
                return Err(EngineError::from_io("sync the journal", &source).into());
            }
        }
        Ok(())
    }

    // Inodes, paths and files.

    /// Returns the path of an inode. Fails with "not found" if it has no name.
    pub(crate) fn linked_path(&self, ino: Ino) -> Result<TreePath> {
        match self.inodes.path(ino)? {
            Some(path) => Ok(path),
            None => Err(EngineError::NotFound { path: TreePath::root() }.into()),
        }
    }

    /// Returns the file of an inode, independent of later changes of the tree.
    pub(crate) fn file(&self, ino: Ino) -> Result<LooseFile> {
        if let Location::Unlinked(file) = &self.inodes.get(ino)?.location {
            return Ok((**file).clone());
        }
        let path = self.linked_path(ino)?;
        if let Some(entry) = self.local.symlink(&path) {
            return Ok(self.tree.loose_entry(Some(&entry)));
        }
        if self.local.contains(&path) {
            return Err(EngineError::IsADirectory { path }.into());
        }
        if let Some(entry) = self.tree.stat(&path)?.and_then(|stat| stat.entry)
            && !matches!(entry.node, Node::Directory(_) | Node::Conflict(_))
        {
            return Ok(self.tree.loose_entry(Some(&entry)));
        }
        match self.shown(&path)? {
            Shown::File(file) | Shown::Side(file) => Ok(file),
            Shown::Itself => Ok(self.tree.loose(&path)?),
        }
    }

    /// Returns the file of an unlinked inode, to change it.
    pub(crate) fn unlinked_mut(&mut self, ino: Ino) -> Result<Option<&mut LooseFile>> {
        Ok(match &mut self.inodes.get_mut(ino)?.location {
            Location::Unlinked(file) => Some(file),
            _ => None,
        })
    }

    /// Looks up a dentry in a directory with this path. Adds its inode to the table if necessary, and returns the attributes.
    pub(crate) fn lookup(&mut self, directory: &TreePath, dentry: Dentry) -> Result<Option<Attributes>> {
        if self.local.covers(directory) {
            return Ok(None);
        }
        if !self.local.is_empty() {
            let path = directory.join(&dentry.name);
            if let Some(ino) = self.local_inode(dentry.clone(), &path) {
                return Ok(self.local.attributes(&path, ino, self.options.owner));
            }
        }
        let Some(stat) = self.tree.stat_in(directory, &dentry.name)? else { return Ok(None) };
        let name = dentry.name.clone();
        if !self.guard.is_open() && !self.permissions().is_visible(&directory.join(&name), stat.kind, stat.links)? {
            return Ok(None);
        }
        let ino = self.inode_for(dentry, directory, &stat)?;
        let attributes = self.attributes_from_stat(ino, || directory.join(&name), &stat)?;
        self.inodes.cache_attributes(&attributes);
        Ok(Some(attributes))
    }

    /// Returns the inode of an existing dentry in a directory with this path. Adds it to the table if necessary.
    pub(crate) fn inode_for(&mut self, dentry: Dentry, directory: &TreePath, stat: &Stat) -> Result<Ino> {
        if let Some(ino) = self.inodes.ino_at(&dentry) {
            return Ok(ino);
        }
        if stat.links > 1 && stat.kind != Kind::Directory {
            // Another hard link may be in the table.
            let path = directory.join(&dentry.name);
            for other in self.tree.names_of(&path)? {
                if other != path
                    && let Some(ino) = self.inodes.ino_of(&other)
                {
                    self.inodes.add_dentry(ino, dentry);
                    return Ok(ino);
                }
            }
        }
        Ok(self.inodes.insert(dentry, stat.kind))
    }

    /// Returns the inode of the local entry at a path. Adds it to the table if necessary.
    pub(crate) fn local_inode(&mut self, dentry: Dentry, path: &TreePath) -> Option<Ino> {
        let kind = self.local.kind(path)?;
        Some(self.inodes.ino_at(&dentry).unwrap_or_else(|| self.inodes.insert(dentry, kind)))
    }

    // Attributes.

    /// Returns the attributes of an inode in the table, from its cache if possible.
    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        if let Some(cached) = self.inodes.cached_attributes(ino) {
            if cfg!(debug_assertions)
                && let Ok(read) = self.read_attributes(ino)
            {
                // Blocks are an estimate from the size: a commit detects a file of zeros, and the next change drops that.
                let read = Attributes { blocks: cached.blocks, ..read };
                assert_eq!(read, cached, "cached attributes are current");
            }
            return Ok(cached);
        }
        self.read_attributes(ino)
    }

    fn read_attributes(&self, ino: Ino) -> Result<Attributes> {
        match &self.inodes.get(ino)?.location {
            Location::RemovedDirectory(attributes) => Ok(**attributes),
            Location::Unlinked(file) => {
                let mut attributes = self.plain_attributes(ino, &file.stat());
                attributes.device = file.device();
                Ok(attributes)
            }
            Location::Linked(_) => {
                let path = self.linked_path(ino)?;
                if let Some(local) = self.local.attributes(&path, ino, self.options.owner) {
                    return Ok(local);
                }
                let stat = self.tree.stat(&path)?;
                let stat = stat.ok_or_else(|| EngineError::NotFound { path: path.clone() })?;
                self.attributes_from_stat(ino, || path, &stat)
            }
        }
    }

    /// Returns the attributes of an inode in the tree. Calls `path` only for devices and conflicts.
    pub(crate) fn attributes_from_stat(
        &self,
        ino: Ino,
        path: impl FnOnce() -> TreePath,
        stat: &Stat,
    ) -> Result<Attributes> {
        let mut attributes = self.plain_attributes(ino, stat);
        match stat.kind {
            Kind::CharDevice | Kind::BlockDevice => attributes.device = self.tree.device(&path())?,
            Kind::Conflict => {
                let (side, mode_mask) = match self.shown(&path())? {
                    Shown::Itself => return Ok(attributes),
                    Shown::File(file) => (file.stat(), 0o7777),
                    Shown::Side(file) => (file.stat(), CONFLICT_MODE),
                };
                attributes.kind = side.kind;
                attributes.mode = side.mode & mode_mask;
                attributes.size = side.size;
                attributes.blocks = side.size.div_ceil(512);
                attributes.mtime = side.mtime;
                attributes.ctime = side.mtime;
            }
            _ => {}
        }
        Ok(attributes)
    }

    fn plain_attributes(&self, ino: Ino, stat: &Stat) -> Attributes {
        let Owner { uid, gid } = stat.owner.unwrap_or(self.options.owner);
        let ExtraTimes { ctime, atime } = self.inodes.times(ino);
        let is_hole =
            stat.entry.as_ref().is_some_and(|entry| matches!(entry.node, Node::File { content: Content::Hole, .. }));
        let is_directory = stat.kind == Kind::Directory;
        let size = if is_directory { 4096 } else { stat.size };
        let links = u32::try_from(stat.links).unwrap_or(u32::MAX);
        Attributes {
            ino,
            kind: stat.kind,
            mode: stat.mode,
            links: if is_directory { self.inodes.directory_links(ino) } else { links },
            uid,
            gid,
            size,
            blocks: if is_hole || stat.kind != Kind::File { 0 } else { size.div_ceil(512) },
            device: None,
            atime: atime.unwrap_or(stat.mtime),
            mtime: stat.mtime,
            ctime: ctime.unwrap_or(stat.mtime),
        }
    }

    /// Updates times and cached attributes of a directory whose names changed. `atime` is its time of the last read, which stays.
    pub(crate) fn names_changed(&mut self, directory: Ino, now: Time, atime: Time) {
        let times = self.inodes.times(directory);
        self.inodes.set_times(directory, ExtraTimes { atime: (atime != now).then_some(atime), ..times });
        self.update_cached(directory, now, |_| {});
    }

    /// Updates times and cached attributes of a file whose data changed up to `end`.
    pub(crate) fn data_changed(&mut self, ino: Ino, now: Time, end: u64) {
        self.update_cached(ino, now, |cached| {
            cached.size = cached.size.max(end);
            cached.blocks = cached.size.div_ceil(512);
        });
    }

    /// Updates the cached attributes of an inode instead of dropping them, so that the next request need not read them.
    fn update_cached(&mut self, ino: Ino, now: Time, update: impl FnOnce(&mut Attributes)) {
        self.inodes.set_times(ino, ExtraTimes { ctime: None, ..self.inodes.times(ino) });
        // Read again, because the table may have had no room for the times.
        let times = self.inodes.times(ino);
        let links = self.inodes.directory_links(ino);
        let Some(cached) = self.inodes.cached_attributes_mut(ino) else { return };
        (cached.mtime, cached.ctime) = (now, now);
        cached.atime = times.atime.unwrap_or(now);
        if cached.kind == Kind::Directory {
            cached.links = links;
        }
        update(cached);
    }

    /// Sets the change time of an inode whose attributes changed. `mtime` is its modification time in the tree.
    pub(crate) fn attributes_changed(&mut self, ino: Ino, now: Time, mtime: Time) {
        self.inodes.invalidate(ino);
        let times = self.inodes.times(ino);
        let ctime = (now != mtime).then_some(now);
        if times.ctime != ctime {
            self.inodes.set_times(ino, ExtraTimes { ctime, ..times });
        }
    }

    /// Drops the cached attributes of a path and of its directory.
    pub(crate) fn invalidate_path(&mut self, path: &TreePath) {
        let above = path.split_last().map(|(above, _)| above);
        for path in above.iter().chain([path]) {
            if let Some(ino) = self.inodes.ino_of(path) {
                self.inodes.invalidate(ino);
            }
        }
    }

    /// Returns how a path is shown: a conflict as the file that shows it, or as its first version.
    fn shown(&self, path: &TreePath) -> Result<Shown> {
        let Some(conflict) = self.tree.conflict_at(path)? else { return Ok(Shown::Itself) };
        if let Some(show) = &self.options.show_conflict
            && let Some(entry) = show(self.tree.store(), path, &conflict)?
            && matches!(entry.node, Node::File { .. })
        {
            return Ok(Shown::File(self.tree.loose_entry(Some(&entry))));
        }
        let side = conflict.added().flatten().find(|entry| !matches!(entry.node, Node::Directory(_)));
        Ok(Shown::Side(self.tree.loose_entry(side)))
    }
}
