//! The walk over all directories that differ: each is opened beneath the handle when its turn comes, so few are open at a
//! time however deep the tree is, and its names are dealt with in batches, on all cores.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::object::{Content, Node};
use amalgam_engine::{Entry, EntryKind, Name, TreePath};
use bytes::Bytes;
use rayon::Scope;
use rustix::io::Errno;

use super::attributes::{Handle, lends_rules};
use super::fill::Wanted;
use super::place::{PLACE, hold};
use super::source::Source;
use super::{Placed, Proof, Run, is_lost};
use crate::error::{Error, Result};
use crate::host::c_name;
use crate::plan::{Pair, Reach, Step, totals};
use crate::report::Why;
use crate::stamp::Stamp;

/// How many files, and how many of their bytes, are read from the store at once.
const BATCH_FILES: usize = 128;
const BATCH_BYTES: u64 = 2 << 20;
/// What an owner needs to work in a directory.
const OWNER_ALL: u32 = 0o700;

/// A directory whose turn comes.
struct Task {
    path: TreePath,
    pair: Pair,
    /// Which inode it is, where this checkout made it.
    made: Option<u64>,
}

/// A directory that is being worked in.
pub(super) struct Open {
    pub(super) path: TreePath,
    pub(super) handle: OwnedFd,
    /// Whether this checkout made it, so that no other program expects anything there yet.
    pub(super) is_fresh: bool,
    /// Whether names in it were changed.
    pub(super) is_touched: AtomicBool,
    /// Whether what is made in it takes rules of access over from it.
    pub(super) lends_rules: bool,
    inode: u64,
    pair: Pair,
}

/// Files whose bytes are read together.
#[derive(Default)]
struct Batch {
    wanted: Vec<Wanted>,
    bytes: u64,
}

impl<'a> Run<'a> {
    /// Does all that need not wait.
    pub(super) fn walk(&self) -> Result<()> {
        let pair = Pair::of_roots(self.before.as_deref(), &self.after);
        rayon::scope(|scope| {
            let top = pair.clone();
            scope.spawn(move |_| self.count(top));
            self.visit(scope, Task { path: TreePath::root(), pair, made: None });
        });
        self.failed.lock().take().map_or(Ok(()), Err)
    }

    /// Says how much there is to do. The directories that are read for it are needed by the walk too.
    fn count(&self, top: Pair) {
        if let Ok((files, bytes)) = totals(self.store, &self.aim, top) {
            self.job.progress.files_total.store(files, Ordering::Relaxed);
            self.job.progress.bytes_total.store(bytes, Ordering::Relaxed);
        }
    }

    fn visit<'s>(&'s self, scope: &Scope<'s>, task: Task) {
        if let Err(error) = self.try_visit(scope, task) {
            self.fail(error);
        }
    }

    fn try_visit<'s>(&'s self, scope: &Scope<'s>, task: Task) -> Result<()> {
        self.check()?;
        let path = task.path.clone();
        let contents = task.pair.contents();
        let opened = self.open_for_work(task);
        let Some(open) = self.settle(&path, opened)?.flatten() else { return Ok(()) };
        let open = Arc::new(open);
        let mut batch = Batch::default();
        for step in self.aim.steps(self.store, &path, contents)? {
            match step? {
                Step::Left(notice) => self.done.lock().notices.push(notice),
                Step::Differs { path, name, pair } => {
                    self.job.progress.saw(1);
                    self.step(scope, &open, &mut batch, path, name, pair)?;
                }
            }
            if batch.is_full() {
                self.hand_over(scope, &open, std::mem::take(&mut batch))?;
            }
        }
        self.write_batch(&open, &batch)?;
        self.leave(open)
    }

    fn step<'s>(
        &'s self,
        scope: &Scope<'s>,
        open: &Open,
        batch: &mut Batch,
        path: TreePath,
        name: Name,
        pair: Pair,
    ) -> Result<()> {
        let is_inside = self.aim.reach(&path) == Reach::Inside;
        let kind = |entry: &Option<Entry>| entry.as_ref().map(Entry::kind);
        let spawn = |path: TreePath, pair: Pair, made: Option<u64>| {
            scope.spawn(move |scope| self.visit(scope, Task { path, pair, made }));
        };
        match (kind(&pair.before), kind(&pair.after)) {
            (Some(EntryKind::Directory), Some(EntryKind::Directory)) => spawn(path, pair, None),
            (Some(EntryKind::Directory), _) => {
                if is_inside {
                    self.late.lock().emptied.insert(path.clone(), pair.after);
                }
                spawn(path, Pair { before: pair.before, after: None }, None);
            }
            (_, Some(EntryKind::Directory)) => {
                if !is_inside && pair.before.is_some() {
                    let error = "a file that the restore does not include is in the way".to_owned();
                    self.notice(&path, Why::Failed { action: "make the directory", error });
                    return Ok(());
                }
                let after = pair.after.as_ref().expect("a directory is wanted");
                let made = self.make_directory(open, &name, &path, pair.before.as_ref(), after);
                match self.settle(&path, made)? {
                    Some(Ok(inode)) => {
                        open.is_touched.store(true, Ordering::Relaxed);
                        spawn(path, Pair { before: None, after: pair.after }, Some(inode));
                    }
                    Some(Err(why)) => self.notice(&path, why),
                    None => {}
                }
            }
            _ => self.step_of_file(open, batch, path, name, pair)?,
        }
        Ok(())
    }

    /// What becomes of something that neither is nor was a directory.
    fn step_of_file(&self, open: &Open, batch: &mut Batch, path: TreePath, name: Name, pair: Pair) -> Result<()> {
        let is_alike = pair.same_node();
        match pair {
            Pair { before: Some(before), after: None } => {
                let removed = self.remove(open, &name, &path, &before);
                match self.settle(&path, removed)? {
                    Some(Placed::There) => {
                        open.is_touched.store(true, Ordering::Relaxed);
                        self.done.lock().removed += 1;
                    }
                    Some(Placed::Left(why)) => self.notice(&path, why),
                    None => {}
                }
            }
            Pair { before, after: Some(after) } if after.link().is_some() => {
                let group = after.link().expect("it has one");
                self.late.lock().groups.entry(group).or_default().insert(path, Pair { before, after: Some(after) });
            }
            Pair { before: Some(before), after: Some(after) } if before.link().is_some() => {
                self.late.lock().unlinked.push(Wanted { path, name, before: Some(before), entry: after });
            }
            Pair { before, after: Some(entry) } => {
                let wanted = Wanted { path, name, before, entry };
                // What has names outside of the tree is not changed under them.
                let is_ours_alone = self.index.stamp(&wanted.path).is_some_and(|stamp| stamp.links == 1);
                if is_alike && is_ours_alone {
                    self.dress_in_place(open, &wanted)?;
                } else {
                    batch.push(wanted);
                }
            }
            Pair { before: None, after: None } => {}
        }
        Ok(())
    }

    /// Sets the attributes of something whose bytes stay.
    pub(super) fn dress_in_place(&self, open: &Open, wanted: &Wanted) -> Result<Option<Stamp>> {
        let Wanted { path, name, before, entry } = wanted;
        let act = |proof: &Proof| {
            let looked = |source: std::io::Error| Error::host("look at", path, source);
            let handle = hold(open, name).map_err(|errno| looked(errno.into()))?;
            if Stamp::of(handle.as_fd()).map_err(looked)? != proof.stamp {
                return Ok(None);
            }
            let mtime = self.aim.is_exact().then_some(entry.mtime);
            self.dress(Handle::Place(handle.as_fd()), path, before.as_ref(), entry, mtime)?;
            Stamp::of(handle.as_fd()).map(Some).map_err(looked)
        };
        let dressed = self.while_unchanged(open, name, path, entry, act);
        match self.settle(path, dressed)? {
            None => Ok(None),
            Some(None) => {
                self.notice(path, Why::ChangedSince);
                Ok(None)
            }
            Some(Some(stamp)) => {
                let kept_time =
                    before.as_ref().filter(|_| !self.aim.is_exact()).map_or(entry.mtime, |entry| entry.mtime);
                self.done.lock().known.insert(stamp, Entry { mtime: kept_time, ..entry.clone() });
                self.touch(&open.path);
                Ok(Some(stamp))
            }
        }
    }

    /// Lets another thread write a batch of a large directory, unless enough wait already.
    fn hand_over<'s>(&'s self, scope: &Scope<'s>, open: &Arc<Open>, batch: Batch) -> Result<()> {
        if self.given_away.load(Ordering::Relaxed) >= rayon::current_num_threads() as u64 {
            return self.write_batch(open, &batch);
        }
        self.given_away.fetch_add(1, Ordering::Relaxed);
        let open = Arc::clone(open);
        scope.spawn(move |_| {
            let written = self.write_batch(&open, &batch).and_then(|()| self.leave(open));
            self.given_away.fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = written {
                self.fail(error);
            }
        });
        Ok(())
    }

    fn write_batch(&self, open: &Open, batch: &Batch) -> Result<()> {
        let mut chunks = Vec::new();
        // Where files come from another directory most of the bytes are never read.
        if !self.source.as_ref().is_some_and(Source::is_used) {
            let small: Vec<_> = batch.wanted.iter().filter_map(Wanted::chunk).collect();
            chunks = match self.store.chunks(&small) {
                // Then each is read for itself, and reported where it is not there or damaged.
                Err(error) if is_lost(&error) => Vec::new(),
                other => other?,
            };
        }
        let mut chunks = chunks.into_iter();
        for wanted in &batch.wanted {
            self.check()?;
            let bytes: Option<Bytes> = wanted.chunk().and_then(|_| chunks.next());
            let put = self.put(open, wanted, bytes.as_ref());
            self.settle(&wanted.path, put)?;
        }
        Ok(())
    }

    /// Opens a directory and makes sure that it is the one that is meant, and that its owner can work in it. Nothing where it
    /// is another one, which is reported.
    fn open_for_work(&self, task: Task) -> Result<Option<Open>> {
        let Task { path, pair, made } = task;
        let failed = |source: std::io::Error| Error::host("open the directory", &path, source);
        let handle = match self.directory.directory(&path) {
            Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) && !self.process.is_root => {
                self.make_enterable(&path)?;
                self.directory.directory(&path).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let stamp = Stamp::of(handle.as_fd()).map_err(failed)?;
        let expected = made.or_else(|| self.index.stamp(&path).map(|known| known.inode));
        if !path.is_root() && expected != Some(stamp.inode) {
            self.notice(&path, Why::ChangedSince);
            return Ok(None);
        }
        if made.is_none() && !self.process.is_root && stamp.mode & OWNER_ALL != OWNER_ALL {
            self.open_up(Handle::Open(handle.as_fd()), &path, &stamp);
        }
        let is_fresh = made.is_some();
        if is_fresh && lends_rules(handle.as_fd()) {
            self.remove_lent_rules(Handle::Open(handle.as_fd()), &path)?;
        }
        let (lends_rules, is_touched) = (lends_rules(handle.as_fd()), AtomicBool::new(false));
        Ok(Some(Open { path, handle, is_fresh, is_touched, lends_rules, inode: stamp.inode, pair }))
    }

    /// A directory that its owner may not read or enter.
    fn make_enterable(&self, path: &TreePath) -> Result<()> {
        let failed = |source: std::io::Error| Error::host("open the directory", path, source);
        let Some((parent, name)) = self.directory.parent(path).map_err(failed)? else { return Ok(()) };
        let held = rustix::fs::openat(&parent, c_name(&name), PLACE, rustix::fs::Mode::empty());
        let held = held.map_err(|errno| failed(errno.into()))?;
        let stamp = Stamp::of(held.as_fd()).map_err(failed)?;
        if self.index.stamp(path).is_some_and(|known| known.inode == stamp.inode) {
            self.open_up(Handle::Place(held.as_fd()), path, &stamp);
        }
        Ok(())
    }

    fn open_up(&self, handle: Handle<'_>, path: &TreePath, stamp: &Stamp) {
        // Where that is refused, the group or others may still be allowed to work here; if not, each name says so.
        if handle.set_mode(stamp.permissions() | OWNER_ALL).is_ok() {
            self.late.lock().opened.entry(path.clone()).or_insert((stamp.inode, stamp.permissions()));
        }
    }

    /// Ends the work in a directory when the last batch of it is written: now its own attributes can be set, unless they would
    /// keep its owner from what is below.
    fn leave(&self, open: Arc<Open>) -> Result<()> {
        let Some(open) = Arc::into_inner(open) else { return Ok(()) };
        let Open { path, handle, is_fresh, is_touched, inode, pair, .. } = open;
        let Some(after) = &pair.after else {
            if is_touched.into_inner() {
                self.touch(&path);
            }
            return Ok(());
        };
        let is_new = is_fresh || (pair.before.is_none() && self.aim.reach(&path) == Reach::Inside);
        let differs = self.aim.attributes_differ(&pair) && self.aim.reach(&path) == Reach::Inside;
        let is_touched = is_touched.into_inner();
        if !is_new && !differs && !is_touched {
            return Ok(());
        }
        self.touch(&path);
        if !is_new && !differs {
            return self.set_directory_time(Handle::Open(handle.as_fd()), &path, after);
        }
        if let Some(before) = &pair.before
            && !self.has_kept_attributes(&path, handle.as_fd(), before)?
        {
            self.notice(&path, Why::ChangedSince);
            return Ok(());
        }
        if after.mode & OWNER_ALL != OWNER_ALL && !self.process.is_root {
            self.late.lock().closing.insert(path, (inode, pair));
            return Ok(());
        }
        self.dress_directory(Handle::Open(handle.as_fd()), &path, &pair)
    }

    pub(super) fn dress_directory(&self, handle: Handle<'_>, path: &TreePath, pair: &Pair) -> Result<()> {
        let after = pair.after.as_ref().expect("a directory that stays");
        let mtime = self.aim.is_exact().then_some(after.mtime);
        let dressed = self.dress(handle, path, pair.before.as_ref(), after, mtime);
        self.settle(path, dressed).map(|_| ())
    }

    /// Sets a directory's time to that of the tree, because each change of a name in it changed its time.
    pub(super) fn set_directory_time(&self, handle: Handle<'_>, path: &TreePath, after: &Entry) -> Result<()> {
        if !self.aim.is_exact() {
            return Ok(());
        }
        let set = handle.set_time(after.mtime).map_err(|errno| Error::host("set the time of", path, errno));
        self.settle(path, set).map(|_| ())
    }

    /// Whether a directory's mode and owner are what the index says, or what this checkout opened it to.
    fn has_kept_attributes(
        &self,
        path: &TreePath,
        handle: std::os::fd::BorrowedFd<'_>,
        before: &Entry,
    ) -> Result<bool> {
        let present = Stamp::of(handle).map_err(|source| Error::host("look at", path, source))?;
        let Some(known) = self.index.stamp(path) else {
            // The index may not speak of the top directory.
            return Ok(path.is_root() && present.permissions() == before.mode);
        };
        let is_opened = self.late.lock().opened.contains_key(path);
        let same_mode = present.mode == known.mode || is_opened;
        Ok(same_mode && (present.uid, present.gid) == (known.uid, known.gid))
    }
}

impl Batch {
    fn push(&mut self, wanted: Wanted) {
        self.bytes += wanted.chunk().map_or(0, |(_, size)| size);
        self.wanted.push(wanted);
    }

    fn is_full(&self) -> bool {
        self.wanted.len() >= BATCH_FILES || self.bytes >= BATCH_BYTES
    }
}

impl Wanted {
    /// The chunk that is all of its bytes.
    fn chunk(&self) -> Option<(amalgam_engine::ChunkId, u64)> {
        match self.entry.node {
            Node::File { size, content: Content::Chunk(id) } => Some((id, size)),
            _ => None,
        }
    }
}

impl Open {
    /// A directory that is opened again for a single name.
    pub(super) fn again(path: TreePath, handle: OwnedFd, inode: u64) -> Self {
        let pair = Pair { before: None, after: None };
        let (lends_rules, is_touched) = (lends_rules(handle.as_fd()), AtomicBool::new(false));
        Self { path, handle, is_fresh: false, is_touched, lends_rules, inode, pair }
    }
}
