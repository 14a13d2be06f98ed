//! Walks all directories that differ. Each is opened beneath the root's handle when its turn comes, so few are open at a time
//! however deep the tree is. Files are written in batches, on all cores.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::{Entry, EntryKind, ErrorKind, Name, TreePath};
use bytes::Bytes;
use rayon::Scope;
use rustix::io::Errno;

use super::attributes::{Handle, remove_inherited_acls, set_directory_time};
use super::context::Context;
use super::deferred::Deferred;
use super::directory_modes::DirectoryModes;
use super::entry_writer::{EntryWriter, WantedEntry};
use super::install::Installed;
use super::open_directory::{OpenDirectory, has_default_acl};
use crate::error::{Error, Result};
use crate::plan::{EntryPair, PathChange, PathRelation, count_totals};
use crate::report::Why;
use crate::stamp::Stamp;

/// Files, and bytes of them, that are read from the store at once.
const BATCH_FILES: usize = 128;
const BATCH_BYTES: u64 = 2 << 20;

/// A directory to visit.
struct Task {
    path: TreePath,
    pair: EntryPair,
    /// The inode, if this checkout created it.
    made: Option<u64>,
}

/// A directory that is being visited.
struct Visit {
    open: OpenDirectory,
    pair: EntryPair,
}

/// Files whose bytes are read together.
#[derive(Default)]
struct Batch {
    wanted: Vec<WantedEntry>,
    bytes: u64,
}

/// The walk, shared by its threads.
pub(super) struct Walk<'c> {
    cx: &'c Context<'c>,
    entries: &'c EntryWriter<'c>,
    modes: &'c DirectoryModes<'c>,
    deferred: &'c Deferred,
    /// Batches that other threads are writing.
    batches_in_flight: AtomicU64,
}

impl<'c> Walk<'c> {
    pub(super) fn new(
        cx: &'c Context<'c>,
        entries: &'c EntryWriter<'c>,
        modes: &'c DirectoryModes<'c>,
        deferred: &'c Deferred,
    ) -> Self {
        Self { cx, entries, modes, deferred, batches_in_flight: AtomicU64::new(0) }
    }

    /// Visits all directories that differ.
    pub(super) fn run(&self) -> Result<()> {
        let pair = EntryPair::of_roots(self.cx.before.as_deref(), &self.cx.after);
        rayon::scope(|scope| {
            let top = pair.clone();
            scope.spawn(move |_| self.count(top));
            self.visit(scope, Task { path: TreePath::root(), pair, made: None });
        });
        self.cx.recorder.take_failure().map_or(Ok(()), Err)
    }

    /// Counts the total work for progress reports. The walk needs the directories that are read for it, too.
    fn count(&self, top: EntryPair) {
        if let Ok((files, bytes)) = count_totals(self.cx.store, &self.cx.scope, top) {
            self.cx.options.progress.files_total.store(files, Ordering::Relaxed);
            self.cx.options.progress.bytes_total.store(bytes, Ordering::Relaxed);
        }
    }

    fn visit<'s>(&'s self, scope: &Scope<'s>, task: Task) {
        if let Err(error) = self.try_visit(scope, task) {
            self.cx.recorder.fail(error);
        }
    }

    fn try_visit<'s>(&'s self, scope: &Scope<'s>, task: Task) -> Result<()> {
        self.cx.check()?;
        let path = task.path.clone();
        let contents = task.pair.contents();
        let opened = self.open_directory(task);
        let Some(visit) = self.cx.tolerate(&path, opened)?.flatten() else { return Ok(()) };
        let visit = Arc::new(visit);
        let mut batch = Batch::default();
        for change in self.cx.scope.changes(self.cx.store, &path, contents)? {
            match change? {
                PathChange::Skipped(notice) => self.cx.recorder.notice(notice),
                PathChange::Differs { path, name, pair } => {
                    self.cx.options.progress.count_names(1);
                    self.visit_name(scope, &visit.open, &mut batch, path, name, pair)?;
                }
            }
            if batch.is_full() {
                self.spawn_batch(scope, &visit, std::mem::take(&mut batch))?;
            }
        }
        self.write_batch(&visit.open, &batch)?;
        self.leave(visit)
    }

    fn visit_name<'s>(
        &'s self,
        scope: &Scope<'s>,
        open: &OpenDirectory,
        batch: &mut Batch,
        path: TreePath,
        name: Name,
        pair: EntryPair,
    ) -> Result<()> {
        let is_inside = self.cx.scope.relation(&path) == PathRelation::Inside;
        let kind = |entry: &Option<Entry>| entry.as_ref().map(Entry::kind);
        let spawn = |path: TreePath, pair: EntryPair, made: Option<u64>| {
            scope.spawn(move |scope| self.visit(scope, Task { path, pair, made }));
        };
        match (kind(&pair.before), kind(&pair.after)) {
            (Some(EntryKind::Directory), Some(EntryKind::Directory)) => spawn(path, pair, None),
            (Some(EntryKind::Directory), _) => {
                if is_inside {
                    self.deferred.add_emptied(path.clone(), pair.after);
                }
                spawn(path, EntryPair { before: pair.before, after: None }, None);
            }
            (_, Some(EntryKind::Directory)) => {
                if !is_inside && pair.before.is_some() {
                    let error = "a file that the restore does not include is in the way".to_owned();
                    self.cx.notice(&path, Why::Failed { action: "make the directory", error });
                    return Ok(());
                }
                let after = pair.after.as_ref().expect("a directory is wanted");
                let made = self.entries.installer.make_directory(open, &name, &path, pair.before.as_ref(), after);
                match self.cx.tolerate(&path, made)? {
                    Some(Ok(inode)) => {
                        open.touch();
                        spawn(path, EntryPair { before: None, after: pair.after }, Some(inode));
                    }
                    Some(Err(why)) => self.cx.notice(&path, why),
                    None => {}
                }
            }
            _ => self.visit_file(open, batch, path, name, pair)?,
        }
        Ok(())
    }

    /// Handles a name that is a directory in neither tree.
    fn visit_file(
        &self,
        open: &OpenDirectory,
        batch: &mut Batch,
        path: TreePath,
        name: Name,
        pair: EntryPair,
    ) -> Result<()> {
        let has_same_bytes = pair.same_node();
        match pair {
            EntryPair { before: Some(before), after: None } => {
                let removed = self.entries.installer.remove(open, &name, &path, &before);
                match self.cx.tolerate(&path, removed)? {
                    Some(Installed::Done) => {
                        open.touch();
                        self.cx.recorder.removed();
                    }
                    Some(Installed::Skipped(why)) => self.cx.notice(&path, why),
                    None => {}
                }
            }
            EntryPair { before, after: Some(after) } if after.link().is_some() => {
                let group = after.link().expect("it has one");
                self.deferred.add_member(group, path, EntryPair { before, after: Some(after) });
            }
            EntryPair { before: Some(before), after: Some(after) } if before.link().is_some() => {
                self.deferred.add_unlinked(WantedEntry { path, name, before: Some(before), entry: after });
            }
            EntryPair { before, after: Some(entry) } => {
                let wanted = WantedEntry { path, name, before, entry };
                // A file with names outside of the tree is replaced, not changed in place.
                let has_one_link = self.cx.index.stamp(&wanted.path).is_some_and(|stamp| stamp.links == 1);
                if has_same_bytes && has_one_link {
                    self.entries.update_attributes(open, &wanted)?;
                } else {
                    batch.push(wanted);
                }
            }
            EntryPair { before: None, after: None } => {}
        }
        Ok(())
    }

    /// Lets another thread write a batch of a large directory, unless enough batches wait already.
    fn spawn_batch<'s>(&'s self, scope: &Scope<'s>, visit: &Arc<Visit>, batch: Batch) -> Result<()> {
        if self.batches_in_flight.load(Ordering::Relaxed) >= rayon::current_num_threads() as u64 {
            return self.write_batch(&visit.open, &batch);
        }
        self.batches_in_flight.fetch_add(1, Ordering::Relaxed);
        let visit = Arc::clone(visit);
        scope.spawn(move |_| {
            let written = self.write_batch(&visit.open, &batch).and_then(|()| self.leave(visit));
            self.batches_in_flight.fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = written {
                self.cx.recorder.fail(error);
            }
        });
        Ok(())
    }

    fn write_batch(&self, open: &OpenDirectory, batch: &Batch) -> Result<()> {
        let mut chunks = Vec::new();
        // If files come from another directory, most of the bytes are never read.
        if self.entries.contents.reads_store() {
            let small: Vec<_> = batch.wanted.iter().filter_map(WantedEntry::single_chunk).collect();
            chunks = match self.cx.store.chunks(&small) {
                // Then each chunk is read on its own, and the lost ones are reported.
                Err(error) if is_lost(&error) => Vec::new(),
                other => other?,
            };
        }
        let mut chunks = chunks.into_iter();
        for wanted in &batch.wanted {
            self.cx.check()?;
            let bytes: Option<Bytes> = wanted.single_chunk().and_then(|_| chunks.next());
            let put = self.entries.write(open, wanted, bytes.as_ref());
            self.cx.tolerate(&wanted.path, put)?;
        }
        Ok(())
    }

    /// Opens a directory and checks that it is the one of the index, or the one that this checkout created, and that its owner
    /// can work in it. Returns `None`, after a notice, if it is another one.
    fn open_directory(&self, task: Task) -> Result<Option<Visit>> {
        let cx = self.cx;
        let Task { path, pair, made } = task;
        let failed = |source: std::io::Error| Error::host("open the directory", &path, source);
        let handle = match cx.directory.directory(&path) {
            Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) && !cx.process.is_root => {
                self.modes.make_enterable(&path)?;
                cx.directory.directory(&path).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let stamp = Stamp::of(handle.as_fd()).map_err(failed)?;
        let expected = made.or_else(|| cx.index.stamp(&path).map(|known| known.inode));
        if !path.is_root() && expected != Some(stamp.inode) {
            cx.notice(&path, Why::ChangedSince);
            return Ok(None);
        }
        if made.is_none() && self.modes.is_closed_to_owner(&stamp) {
            self.modes.open_to_owner(Handle::Open(handle.as_fd()), &path, &stamp);
        }
        let open = match made {
            None => OpenDirectory::existing(path, handle, stamp.inode),
            Some(_) => {
                if has_default_acl(handle.as_fd()) {
                    remove_inherited_acls(cx, Handle::Open(handle.as_fd()), &path)?;
                }
                OpenDirectory::created(path, handle, stamp.inode)
            }
        };
        Ok(Some(Visit { open, pair }))
    }

    /// Ends a visit when the last batch of the directory is written: now its own attributes can be set, unless they lock its
    /// owner out.
    fn leave(&self, visit: Arc<Visit>) -> Result<()> {
        let cx = self.cx;
        let Some(Visit { open, pair }) = Arc::into_inner(visit) else { return Ok(()) };
        let path = &open.path;
        let Some(after) = &pair.after else {
            if open.is_touched() {
                cx.touch(path);
            }
            return Ok(());
        };
        let is_inside = cx.scope.relation(path) == PathRelation::Inside;
        let is_new = open.is_fresh || (pair.before.is_none() && is_inside);
        let differs = cx.scope.attributes_differ(&pair) && is_inside;
        if !is_new && !differs && !open.is_touched() {
            return Ok(());
        }
        cx.touch(path);
        if !is_new && !differs {
            return set_directory_time(cx, Handle::Open(open.handle.as_fd()), path, after);
        }
        if let Some(before) = &pair.before
            && !self.modes.is_unchanged(path, open.handle.as_fd(), before)?
        {
            cx.notice(path, Why::ChangedSince);
            return Ok(());
        }
        self.modes.apply(open.handle.as_fd(), open.path.clone(), open.inode, pair)
    }
}

impl Batch {
    fn push(&mut self, wanted: WantedEntry) {
        self.bytes += wanted.single_chunk().map_or(0, |(_, size)| size);
        self.wanted.push(wanted);
    }

    fn is_full(&self) -> bool {
        self.wanted.len() >= BATCH_FILES || self.bytes >= BATCH_BYTES
    }
}

/// Returns whether an object is gone for good: purged, damaged or missing.
fn is_lost(error: &amalgam_engine::Error) -> bool {
    matches!(error, amalgam_engine::Error::Purged { .. }) || error.kind() == ErrorKind::Corrupt
}
