//! A tree as real files.
//!
//! The difference between the tree that an index describes and the target is the plan, and it is walked directory by
//! directory, on all cores. A path is touched only while it is still what the index says: what changed since is left alone and
//! reported, and what is unknown is never overwritten or deleted. The look cannot be one step with the change, so whatever leaves its
//! name is moved aside first, compared once more, and put back if it is not what was looked at ([`place`]). In directories that were there before, files are written
//! apart and moved into place, so that a reader, or a machine that dies, finds the old or the new one under each name; in
//! directories that the checkout made itself no other program expects anything yet, and files are written under their names.
//!
//! Three things wait until the walk is over: directories that go or make room, once what was in them is gone; files with several
//! names; and the attributes of directories whose names changed late.
//!
//! What is absent: nothing is synced, no index is changed (a capture of the touched directories does that), and a conflict is
//! shown by the first of its versions that is there.

mod attributes;
mod fill;
mod grant;
mod late;
mod links;
mod place;
mod process;
mod shared;
mod source;
mod staging;
mod walk;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_engine::object::Root;
use amalgam_engine::{Entry, ErrorKind, Name, RootId, Store, Time, TreePath, entry_at};
use parking_lot::Mutex;
use rustix::io::Errno;

pub(crate) use attributes::{LENT_RULES, lacks_set_id};
pub use grant::grant_withheld;
pub(crate) use staging::is_staged;
pub use staging::{Staging, clean_leftovers};

use crate::compare::{Likeness, compare};
use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::index::{Index, Trust};
use crate::known::Known;
use crate::plan::{Aim, check_width, shown};
use crate::pool::Pool;
use crate::progress::Progress;
use crate::report::{Notice, Why};
use crate::rules::Rules;
use crate::stamp::Stamp;
use late::Late;
use process::Process;
use source::Source;
use walk::Open;

/// How a tree is checked out.
#[derive(Clone, Copy)]
pub struct Checkout<'a> {
    /// Leave everything at or below a name `.git` alone, as a restore into a live directory does, unless `paths` names it.
    pub keep_git: bool,
    /// The rules of a live directory. With them, what the target's own rules leave out is not removed: the target lacks it because
    /// it was not covered, not because it was not there.
    pub rules: Option<&'a Rules>,
    /// Do not write a `.git` that is a file: it names a repository elsewhere, which a second directory must not share.
    pub leave_git_file: bool,
    /// Leave out what gives rights: set-user-ID and set-group-ID bits of files, file capabilities, devices. For trees that came from
    /// elsewhere: in this directory they would give the rights of its owner.
    pub withholds: bool,
    /// Only these paths and what is below them.
    pub paths: Option<&'a [TreePath]>,
    /// The times that files get.
    pub times: Times,
    /// A directory whose index proves what its files hold: they are cloned from it where the file system can, and copied as long
    /// as they are in memory.
    pub source: Option<(&'a HostDir, &'a Index)>,
    /// Makes a directory for reading: no user may write to its files, and they are shared with all others that have them from this pool.
    pub pool: Option<&'a Pool>,
    /// Where it counts and listens.
    pub progress: &'a Progress,
}

/// The times that files get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Those of the tree.
    Exact,
    /// This one, for whatever gets other bytes; a change of times alone is none. An old time under a build output that is newer
    /// would silently skip a rebuild.
    OfBytes(Time),
}

/// What a checkout did.
#[derive(Debug, Default)]
pub struct CheckedOut {
    /// Directories in which names were changed or whose attributes were set.
    pub touched: BTreeSet<TreePath>,
    /// What the files that were written hold.
    pub known: Known,
    /// Paths that were not dealt with as asked.
    pub notices: Vec<Notice>,
    /// How many files and other things that are no directories were written.
    pub written: u64,
    /// How many names were removed.
    pub removed: u64,
    /// How many bytes were written or cloned.
    pub bytes: u64,
    /// How many of the files were cloned.
    pub reflinked: u64,
    /// How many of them were copied from another directory.
    pub copied: u64,
    /// How many of them are shared with other directories.
    pub linked: u64,
}

/// Makes the directory that an index describes into a tree. An index without a root describes a directory of which nothing is
/// known: everything is new there, and nothing that is in the way is touched.
///
/// After an error what is there is consistent, name by name; a capture and another checkout finish the work.
pub fn checkout(
    store: &Store,
    directory: &HostDir,
    index: &Index,
    target: RootId,
    job: &Checkout<'_>,
) -> Result<CheckedOut> {
    checkout_staged(store, directory, index, target, job, &Staging::new())
}

/// Does what [`checkout`] does, under temporary names that the caller knows.
pub fn checkout_staged(
    store: &Store,
    directory: &HostDir,
    index: &Index,
    target: RootId,
    job: &Checkout<'_>,
    staging: &Staging<'_>,
) -> Result<CheckedOut> {
    let _target = store.hold(target)?;
    let _base = index.root().map(|root| store.hold(root)).transpose()?;
    let _source = job.source.and_then(|(_, index)| index.root()).map(|root| store.hold(root)).transpose()?;
    let run = Run::new(store, directory, index, target, job, staging)?;
    check_width(store, run.before.as_deref(), &run.after, job.paths)?;
    let done = run.walk().and_then(|()| run.finish_late());
    // Directories that were opened for the time get their modes back whatever happened.
    let closed = run.close_directories();
    match done.and(closed) {
        Ok(()) => Ok(run.into_done()),
        Err(source) => {
            let CheckedOut { written, removed, .. } = *run.done.lock();
            if written + removed == 0 {
                return Err(source);
            }
            Err(Error::Partly { written, removed, source: Box::new(source) })
        }
    }
}

/// One checkout under way; shared by its threads.
struct Run<'a> {
    store: &'a Store,
    directory: &'a HostDir,
    index: &'a Index,
    job: &'a Checkout<'a>,
    aim: Aim<'a>,
    before: Option<Arc<Root>>,
    after: Arc<Root>,
    source: Option<Source<'a>>,
    process: Process,
    done: Mutex<CheckedOut>,
    late: Mutex<Late>,
    /// Files with several names of which this checkout changed some: what they are since, and what they hold.
    ours: Mutex<HashMap<u64, (Stamp, Entry)>>,
    failed: Mutex<Option<Error>>,
    is_stopped: AtomicBool,
    staging: &'a Staging<'a>,
    /// Batches of files that other threads were given and have not finished.
    given_away: AtomicU64,
}

impl<'a> Run<'a> {
    fn new(
        store: &'a Store,
        directory: &'a HostDir,
        index: &'a Index,
        target: RootId,
        job: &'a Checkout<'a>,
        staging: &'a Staging<'a>,
    ) -> Result<Self> {
        let load = |root: Option<RootId>| root.map(|root| store.root(root)).transpose();
        let (before, after) = (load(index.root())?, store.root(target)?);
        let source = match job.source {
            Some((directory, index)) => load(index.root())?.map(|root| Source::new(directory, index, root)),
            None => None,
        };
        let process = Process::look(directory)?;
        Ok(Self {
            store,
            directory,
            index,
            job,
            aim: Aim::new(store, job, index.root(), target)?,
            before,
            after,
            source,
            staging,
            process,
            done: Mutex::default(),
            late: Mutex::default(),
            ours: Mutex::default(),
            failed: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            given_away: AtomicU64::new(0),
        })
    }

    fn into_done(self) -> CheckedOut {
        let mut done = self.done.into_inner();
        for (stamp, entry) in self.ours.into_inner().into_values() {
            done.known.insert(stamp, entry);
        }
        done.notices.sort_by(|a, b| a.path.cmp(&b.path));
        done.notices.dedup();
        done
    }

    /// Keeps the first error and stops all threads.
    fn fail(&self, error: Error) {
        self.failed.lock().get_or_insert(error);
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        self.job.progress.check()
    }

    fn notice(&self, path: &TreePath, why: Why) {
        // The `.git` in it is left alone on purpose.
        if why == Why::NotEmpty && self.aim.holds_git(path) {
            return;
        }
        // What was not covered is not known either, and stays as it is.
        let why = if why == Why::ChangedSince && self.aim.is_uncovered(path) { Why::Uncovered } else { why };
        self.done.lock().notices.push(Notice { path: path.clone(), why });
    }

    fn touch(&self, directory: &TreePath) {
        self.done.lock().touched.insert(directory.clone());
    }

    /// Reports what concerns a single path, and hands on what concerns everything.
    fn settle<T>(&self, path: &TreePath, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Host { action, source, .. }) if concerns_one_path(&source) => {
                let why = match Errno::from_io_error(&source) {
                    Some(Errno::XDEV) => Why::OtherFileSystem,
                    Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Why::ChangedSince,
                    _ => Why::Failed { action, error: source.to_string() },
                };
                self.notice(path, why);
                Ok(None)
            }
            Err(Error::Engine(amalgam_engine::Error::Purged { tombstone, .. })) => {
                self.notice(path, Why::Purged(tombstone.to_string()));
                Ok(None)
            }
            Err(Error::Engine(error)) if error.kind() == ErrorKind::Corrupt => {
                self.notice(path, Why::Damaged(error.to_string()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The time that something with this entry gets when it is written.
    fn time_of(&self, entry: &Entry) -> Time {
        match self.job.times {
            Times::Exact => entry.mtime,
            Times::OfBytes(now) => now,
        }
    }

    /// A name that no other file has, for something on its way to its place or away from it.
    fn temporary(&self) -> Name {
        self.staging.name()
    }

    /// Whether a name is still what the index says or what this checkout itself made of it.
    fn is_unchanged(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        present: &Stamp,
        ours: Option<&HashMap<u64, (Stamp, Entry)>>,
    ) -> Result<bool> {
        Ok(self.prove_unchanged(at, name, path, present, ours)?.is_some())
    }

    /// What proves that a name is still what the index says or what this checkout itself made of it; nothing where it is not. A stamp
    /// that was taken in the moment of a change proves nothing: then the bytes are read.
    fn prove_unchanged(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        present: &Stamp,
        ours: Option<&HashMap<u64, (Stamp, Entry)>>,
    ) -> Result<Option<Proof>> {
        let Some((known, trust)) = self.index.look(path) else { return Ok(None) };
        if known.inode != present.inode {
            return Ok(None);
        }
        let by_stamp = Proof { stamp: *present, bytes_of: None };
        if ours.and_then(|ours| ours.get(&present.inode)).is_some_and(|(stamp, _)| stamp == present) {
            return Ok(Some(by_stamp));
        }
        if known != *present {
            return Ok(None);
        }
        if trust != Trust::Racy {
            return Ok(Some(by_stamp));
        }
        let Some(before) = &self.before else { return Ok(None) };
        let Some(entry) = entry_at(self.store, before, path)?.and_then(shown) else { return Ok(None) };
        let compared = compare(self.store, at.handle.as_fd(), name, &entry, *present, self.job.progress)?;
        let is_equal = compared.likeness == Likeness::Equal(*present);
        Ok(is_equal.then_some(Proof { bytes_of: Some(entry), ..by_stamp }))
    }
}

/// What showed that a name was not changed.
struct Proof {
    /// What the host said of it.
    stamp: Stamp,
    /// The entry with which its bytes were compared, where the stamp alone proves nothing.
    bytes_of: Option<Entry>,
}

/// Whether the rest can go on: the machine itself is well.
fn concerns_one_path(error: &io::Error) -> bool {
    let fatal = [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    !fatal.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether an object cannot be had any more: it was purged, or it is damaged or missing.
fn is_lost(error: &amalgam_engine::Error) -> bool {
    matches!(error, amalgam_engine::Error::Purged { .. }) || error.kind() == ErrorKind::Corrupt
}

/// What came of an attempt to put something in its place.
enum Placed {
    /// It is there.
    There,
    /// What is there was left alone.
    Left(Why),
}

type Members = BTreeMap<TreePath, crate::plan::Pair>;
