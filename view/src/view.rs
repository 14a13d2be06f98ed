//! A workspace as a file system: the tree, the table of inodes above it, and the journal below it, under one lock.
//!
//! The lock is held for as long as it takes to find something or to edit it, which includes writing it to the journal, and reading
//! the file that takes a conflict's place. It is not held while somebody reads contents, a tree is frozen, or the journal is synced.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::object::{Conflict, Entry, Node, Owner};
use amalgam_engine::work::{LooseFile, SegmentRange, Stat};
use amalgam_engine::workspace::Journaled;
use amalgam_engine::{Error as EngineError, SnapshotId, Store, Time, TreePath, WorkingTree};
use parking_lot::{Mutex, RwLock};
use tracing::{debug, info, warn};

use crate::ahead::Ahead;
use crate::attributes::{Attributes, Caller, Kind};
use crate::directory::Cookies;
use crate::early::Early;
use crate::error::{Error, Result};
use crate::inodes::{Ino, Inodes, Kept, Place, ROOT, Whereabouts};
use crate::journal::{Edit, Journal, Recovered};
use crate::locks::Locks;
use crate::meta::Room;
use crate::neighbours::Neighbours;
use crate::notice::{Notice, WatchId, Watcher, Watchers};
use crate::placed::PlacedPaths;

/// What time it is.
pub type Clock = fn() -> Time;

/// What stands for a conflict: a file that is stored, or nothing where there is none.
pub type ShowConflict =
    Arc<dyn Fn(&Store, &TreePath, &Conflict) -> amalgam_engine::Result<Option<Entry>> + Send + Sync>;

/// A conflict that no file stands for is shown with these permission bits.
const CONFLICT_MODE: u32 = 0o444;

/// How a view is to be.
#[derive(Clone)]
pub struct ViewOptions {
    /// Whose everything is that has no owner of its own.
    pub owner: Owner,
    /// What time it is.
    pub clock: Clock,
    /// The most bytes that may be written between two commits; removing what was written makes no room.
    pub quota_bytes: Option<u64>,
    /// From so many bytes of journal on the tree is written to the store in between, so that recovery stays quick.
    pub checkpoint_bytes: u64,
    /// What `statfs` says of the disk below. What would take its floor is refused.
    pub room: Option<Arc<dyn Fn() -> Room + Send + Sync>>,
    /// How conflicts are shown. What is written to such a file takes the conflict's place. Without it, and where it gives no
    /// file, the first version is shown, and cannot be written to.
    pub conflicts: Option<ShowConflict>,
    /// The last commit of the workspace that was taken from a live view. A journal that had its word of that commit on no disk
    /// when the power went is taken up behind it.
    pub journaled: Option<Journaled>,
}

impl ViewOptions {
    /// The usual ones.
    pub fn new(owner: Owner, clock: Clock) -> Self {
        Self {
            owner,
            clock,
            quota_bytes: None,
            checkpoint_bytes: 256 << 20,
            room: None,
            conflicts: None,
            journaled: None,
        }
    }
}

/// A workspace as a file system. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct View {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: ViewOptions,
    pub(crate) live: RwLock<Live>,
    pub(crate) cookies: Mutex<Cookies>,
    pub(crate) watchers: Watchers,
    pub(crate) locks: Locks,
    pub(crate) ahead: Ahead,
    pub(crate) neighbours: Neighbours,
    /// One freeze at a time.
    pub(crate) freezing: Mutex<()>,
    /// One sync of the journal at a time.
    pub(crate) syncing: Arc<Mutex<()>>,
    pub(crate) early: Early,
}

/// What an operation works on.
pub(crate) struct Live {
    pub(crate) tree: WorkingTree,
    pub(crate) inodes: Inodes,
    /// Nothing in a view that shows a snapshot.
    pub(crate) journal: Option<Journal>,
    conflicts: Option<ShowConflict>,
    /// What is shown and not in the tree.
    pub(crate) placed: PlacedPaths,
}

impl View {
    /// A view that shows a snapshot and refuses changes.
    pub fn of_snapshot(store: &Store, snapshot: SnapshotId, options: ViewOptions) -> Result<Self> {
        Ok(Self::with(WorkingTree::open(store, snapshot)?, Inodes::new(), None, options))
    }

    /// A view that can be changed. `directory` is its journal's alone. What an earlier life left there is brought back, and
    /// then `tree` is not looked at: the journal's own base counts.
    pub fn open(tree: WorkingTree, directory: &Path, options: ViewOptions) -> Result<(Self, Recovered)> {
        let mut inodes = Inodes::new();
        Journal::recall(directory, &mut inodes);
        Self::recall_handles(directory, &mut inodes)?;
        if let Some(base) = Journal::base(directory)? {
            let base = base.behind(tree.store(), directory, options.journaled)?;
            let (journal, tree, recovered) = Journal::recover(tree.store(), directory, base)?;
            info!(edits = recovered.edits, cut_bytes = recovered.cut_bytes, "journal replayed");
            if let Some(warning) = recovered.warning() {
                warn!(skipped = recovered.skipped_edits, "edits of a journal could not be replayed");
                debug!("{warning}");
            }
            return Ok((Self::with(tree, inodes, Some(journal), options), recovered));
        }
        let journal = Journal::create(directory, tree.base())?;
        Ok((Self::with(tree, inodes, Some(journal), options), Recovered::default()))
    }

    /// Whether a directory has work of a view that was not committed, as far as can be told without opening it: what cannot be
    /// read may be work.
    pub fn has_work(directory: &Path) -> bool {
        !matches!(Journal::base(directory), Ok(None))
    }

    fn with(tree: WorkingTree, inodes: Inodes, mut journal: Option<Journal>, options: ViewOptions) -> Self {
        if let (Some(journal), Some(room)) = (&mut journal, &options.room) {
            journal.watch_room(Arc::clone(room));
        }
        let shared = Shared {
            live: RwLock::new(Live {
                tree,
                inodes,
                journal,
                conflicts: options.conflicts.clone(),
                placed: PlacedPaths::default(),
            }),
            options,
            cookies: Mutex::default(),
            watchers: Watchers::default(),
            locks: Locks::default(),
            ahead: Ahead::default(),
            neighbours: Neighbours::default(),
            freezing: Mutex::new(()),
            syncing: Arc::default(),
            early: Early::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Tells somebody what changes, but for what comes through the door of this id.
    pub fn watch(&self, watcher: Watcher) -> WatchId {
        self.shared.watchers.add(watcher)
    }

    /// Tells it no longer.
    pub fn unwatch(&self, id: WatchId) {
        self.shared.watchers.remove(id);
    }

    /// The directory that an inode has a name in; the first of several, nothing for one without a name.
    pub fn directory_of(&self, ino: Ino) -> Option<Ino> {
        match &self.shared.live.read().inodes.get(ino).ok()?.whereabouts {
            Whereabouts::Named(places) => places.first().map(|place| place.parent),
            _ => None,
        }
    }

    /// Whether it refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.shared.live.read().journal.is_none()
    }

    /// Whether the journal has failed: nothing more can be written or committed, and only a new view has what is on disk.
    pub fn has_failed(&self) -> bool {
        self.shared.live.read().journal.as_ref().is_some_and(Journal::has_failed)
    }

    /// How many inodes are in the table.
    pub fn inodes(&self) -> usize {
        self.shared.live.read().inodes.len()
    }

    /// Where the journal is.
    pub fn directory(&self) -> Option<PathBuf> {
        self.shared.live.read().journal.as_ref().map(|journal| journal.directory().to_owned())
    }

    pub(crate) fn now(&self) -> Time {
        (self.shared.options.clock)()
    }

    pub(crate) fn tell(&self, caller: &Caller, notice: impl Fn() -> Notice) {
        self.shared.watchers.tell(caller.door, notice);
    }

    /// How an owner is stored: not at all if it is the workspace's.
    pub(crate) fn stored_owner(&self, uid: u32, gid: u32) -> Option<Owner> {
        let owner = Owner { uid, gid };
        (owner != self.shared.options.owner).then_some(owner)
    }

    /// Whether so many bytes more may be written.
    pub(crate) fn demand_quota(&self, live: &Live, bytes: u64) -> Result<()> {
        match (self.shared.options.quota_bytes, &live.journal) {
            (Some(max), Some(journal)) if journal.uncommitted_bytes() + bytes > max => Err(Error::Quota { max }),
            _ => Ok(()),
        }
    }
}

impl Live {
    /// Writes an edit down, then does it. One of a conflict's file that is refused leaves the conflict.
    pub(crate) fn edit(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<()> {
        let Some(path) = edit.changes() else { return self.do_edit(edit, now, data) };
        if self.is_placed(path) {
            return Err(Error::Local { path: path.clone() });
        }
        let end = self.journal.as_ref().ok_or(Error::ReadOnly)?.end();
        let Err(refused) = self.do_edit(edit, now, data) else { return Ok(()) };
        // A conflict refuses all edits; the file that stands for it takes them.
        let Shown::File(file) = self.shown(path)? else { return Err(refused) };
        self.journal.iter_mut().for_each(|journal| journal.cut(end));
        let tree = self.tree.fork();
        let done = self.unfold(path, &file, now).and_then(|()| self.do_edit(edit, now, data));
        if done.is_err() {
            self.tree = tree;
            self.journal.iter_mut().for_each(|journal| journal.cut(end));
        }
        self.forget_seen(path);
        done
    }

    /// Does several edits, or none of them.
    pub(crate) fn edit_all<'a>(&mut self, edits: impl IntoIterator<Item = &'a Edit>, now: Time) -> Result<()> {
        let end = self.journal.as_ref().ok_or(Error::ReadOnly)?.end();
        let tree = self.tree.fork();
        let done = edits.into_iter().try_for_each(|edit| self.edit(edit, now, &[]));
        if done.is_err() {
            self.tree = tree;
            self.journal.iter_mut().for_each(|journal| journal.cut(end));
        }
        done
    }

    /// Puts the file that stands for a conflict in its place, before something of it changes.
    fn unfold(&mut self, path: &TreePath, file: &LooseFile, now: Time) -> Result<()> {
        let stat = file.stat();
        let bytes = file.read_at(0, usize::try_from(stat.size).unwrap_or(usize::MAX))?;
        let (path, owner) = (path.clone(), stat.owner);
        self.do_edit(&Edit::Remove { path: path.clone() }, now, &[])?;
        self.do_edit(&Edit::Create { path: path.clone(), mode: stat.mode, owner }, now, &[])?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.do_edit(&Edit::Write { path, offset: 0, length: bytes.len() as u64 }, now, &bytes)
    }

    /// What is at a path became something else, and its directory got another time.
    pub(crate) fn forget_seen(&mut self, path: &TreePath) {
        let above = path.split_last().map(|(above, _)| above);
        for path in above.iter().chain([path]) {
            if let Some(ino) = self.known(path) {
                self.inodes.changed(ino);
            }
        }
    }

    /// An edit that the tree refuses is taken out of the journal: doing it again must give what was seen.
    fn do_edit(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<()> {
        let end = self.journal.as_ref().ok_or(Error::ReadOnly)?.end();
        let range = self.write_down(edit, now, data)?;
        if let Err(refused) = edit.apply(&mut self.tree, now, range) {
            self.journal.iter_mut().for_each(|journal| journal.cut(end));
            return Err(refused.into());
        }
        Ok(())
    }

    pub(crate) fn write_down(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<Option<SegmentRange>> {
        self.journal.as_mut().ok_or(Error::ReadOnly)?.append(edit, now, data)
    }

    pub(crate) fn demand_writable(&self) -> Result<()> {
        if self.journal.is_some() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    /// Where an inode is in the tree; nothing when it has no name any more.
    pub(crate) fn path(&self, ino: Ino) -> Result<Option<TreePath>> {
        self.inodes.path(ino)
    }

    /// Where a directory is that names are looked up or changed in.
    pub(crate) fn directory_path(&self, ino: Ino) -> Result<TreePath> {
        match self.path(ino)? {
            Some(path) => Ok(path),
            None => Err(EngineError::NotFound { path: TreePath::root() }.into()),
        }
    }

    /// What an inode is, apart from the tree.
    pub(crate) fn file(&self, ino: Ino) -> Result<LooseFile> {
        if let Whereabouts::Loose(file) = &self.inodes.get(ino)?.whereabouts {
            return Ok((**file).clone());
        }
        let path = self.directory_path(ino)?;
        if let Some(entry) = self.placed_file(&path) {
            return Ok(self.tree.loose_entry(Some(&entry)));
        }
        if self.is_placed(&path) {
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

    /// The inode at a place, made if need be, and its attributes. Nothing when nothing is there.
    pub(crate) fn look(&mut self, view: &View, directory: &TreePath, place: Place) -> Result<Option<Attributes>> {
        if self.is_hidden(directory) {
            return Ok(None);
        }
        if self.has_placed() {
            let path = directory.join(&place.name);
            if let Some(ino) = self.placed_inode(place.clone(), &path) {
                return Ok(self.placed_attributes(view, ino, &path));
            }
        }
        let Some(stat) = self.tree.stat_in(directory, &place.name)? else { return Ok(None) };
        let name = place.name.clone();
        let ino = self.inode_at(place, directory, &stat)?;
        let attributes = self.attributes_of(view, ino, || directory.join(&name), &stat)?;
        self.inodes.see(&attributes);
        Ok(Some(attributes))
    }

    /// The number at a place where something is, in this directory.
    pub(crate) fn inode_at(&mut self, place: Place, directory: &TreePath, stat: &Stat) -> Result<Ino> {
        if let Some(ino) = self.inodes.at(&place) {
            return Ok(ino);
        }
        if stat.links > 1 && stat.kind != Kind::Directory {
            // Another name of it may be known.
            let path = directory.join(&place.name);
            for other in self.tree.names_of(&path)? {
                if other != path
                    && let Some(ino) = self.known(&other)
                {
                    self.inodes.add_place(ino, place);
                    return Ok(ino);
                }
            }
        }
        Ok(self.inodes.insert(place, stat.kind))
    }

    /// The inode of a path, if all on the way to it are in the table.
    pub(crate) fn known(&self, path: &TreePath) -> Option<Ino> {
        path.names().try_fold(ROOT, |parent, name| self.inodes.at(&Place { parent, name }))
    }

    /// The attributes of any inode in the table.
    pub(crate) fn attributes(&self, view: &View, ino: Ino) -> Result<Attributes> {
        if let Some(seen) = self.inodes.seen(ino) {
            if cfg!(debug_assertions)
                && let Ok(found) = self.found_attributes(view, ino)
            {
                // Room is an estimate by the size: that a file is all zeros is found out by a commit, and forgotten by the next change.
                let found = Attributes { blocks: seen.blocks, ..found };
                assert_eq!(found, seen, "what was seen is what is there");
            }
            return Ok(seen);
        }
        self.found_attributes(view, ino)
    }

    fn found_attributes(&self, view: &View, ino: Ino) -> Result<Attributes> {
        match &self.inodes.get(ino)?.whereabouts {
            Whereabouts::Gone(attributes) => Ok(**attributes),
            Whereabouts::Loose(file) => {
                let mut attributes = self.of_stat(view, ino, &file.stat());
                attributes.device = file.device();
                Ok(attributes)
            }
            Whereabouts::Named(_) => {
                let path = self.directory_path(ino)?;
                if let Some(placed) = self.placed_attributes(view, ino, &path) {
                    return Ok(placed);
                }
                let stat = self.tree.stat(&path)?;
                let stat = stat.ok_or_else(|| EngineError::NotFound { path: path.clone() })?;
                self.attributes_of(view, ino, || path, &stat)
            }
        }
    }

    pub(crate) fn attributes_of(
        &self,
        view: &View,
        ino: Ino,
        path: impl FnOnce() -> TreePath,
        stat: &Stat,
    ) -> Result<Attributes> {
        let mut attributes = self.of_stat(view, ino, stat);
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

    fn of_stat(&self, view: &View, ino: Ino, stat: &Stat) -> Attributes {
        let Owner { uid, gid } = stat.owner.unwrap_or(view.shared.options.owner);
        let Kept { ctime, atime } = self.inodes.kept(ino);
        let is_hole = stat.entry.as_ref().is_some_and(|entry| {
            matches!(entry.node, Node::File { content: amalgam_engine::object::Content::Hole, .. })
        });
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

    /// Names of a directory changed now. `atime` is when it was last read, which stays.
    pub(crate) fn touch_names(&mut self, directory: Ino, now: Time, atime: Time) {
        let kept = self.inodes.kept(directory);
        self.inodes.keep(directory, Kept { atime: (atime != now).then_some(atime), ..kept });
        self.update(directory, now, |_| {});
    }

    /// Bytes of a file changed now, up to `end`.
    pub(crate) fn touch_bytes(&mut self, ino: Ino, now: Time, end: u64) {
        self.update(ino, now, |seen| {
            seen.size = seen.size.max(end);
            seen.blocks = seen.size.div_ceil(512);
        });
    }

    /// What an inode holds changed now. What was seen of it is brought up to date, so that it need not be looked for.
    fn update(&mut self, ino: Ino, now: Time, update: impl FnOnce(&mut Attributes)) {
        self.inodes.keep(ino, Kept { ctime: None, ..self.inodes.kept(ino) });
        // The table may have no room for one more.
        let kept = self.inodes.kept(ino);
        let links = self.inodes.directory_links(ino);
        let Some(seen) = self.inodes.seen_mut(ino) else { return };
        (seen.mtime, seen.ctime) = (now, now);
        seen.atime = kept.atime.unwrap_or(now);
        if seen.kind == Kind::Directory {
            seen.links = links;
        }
        update(seen);
    }

    /// Something of an inode changed now; `mtime` is what the tree has for it.
    pub(crate) fn touch(&mut self, ino: Ino, now: Time, mtime: Time) {
        self.inodes.changed(ino);
        let kept = self.inodes.kept(ino);
        let ctime = (now != mtime).then_some(now);
        if kept.ctime != ctime {
            self.inodes.keep(ino, Kept { ctime, ..kept });
        }
    }
}

/// What stands for a path.
pub(crate) enum Shown {
    /// It is no conflict.
    Itself,
    /// A file that can be written to.
    File(LooseFile),
    /// One of the versions.
    Side(LooseFile),
}

impl Live {
    /// What a path is shown as: a conflict as the file that stands for it, or as its first side that is there.
    pub(crate) fn shown(&self, path: &TreePath) -> Result<Shown> {
        let Some(conflict) = self.tree.conflict_at(path)? else { return Ok(Shown::Itself) };
        if let Some(show) = &self.conflicts
            && let Some(entry) = show(self.tree.store(), path, &conflict)?
            && matches!(entry.node, Node::File { .. })
        {
            return Ok(Shown::File(self.tree.loose_entry(Some(&entry))));
        }
        let side = conflict.added().flatten().find(|entry| !matches!(entry.node, Node::Directory(_)));
        Ok(Shown::Side(self.tree.loose_entry(side)))
    }
}
