//! Scan: finds the names that differ from the index. Reads no file contents and changes nothing.
//!
//! Each scanned directory has a *slot*, and so has each of its ancestors. Directories are opened by their path from the root's
//! handle, not from their parent's, so that no more handles are open than threads run.

use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::object::Xattr;
use amalgam_engine::{DEPTH_MAX, Name, TreePath};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::Errno;

use super::{worker_pool, xattrs};
use crate::capture_options::{CaptureOptions, Scope};
use crate::error::{Error, Result};
use crate::host::{HostDir, is_absent};
use crate::index::{Index, IndexEntry, Leaf, ROOT, Trust};
use crate::report::{Notice, Why};
use crate::rules::{Chain, RULES_FILE};
use crate::staging::is_staged;
use crate::stamp::Stamp;

/// Buffer size of one `getdents` call.
const NAMES_BYTES: usize = 64 << 10;
/// Attempts to scan a path that changes its kind meanwhile.
const SCAN_ATTEMPTS_MAX: u32 = 5;

/// The result of a scan.
pub(crate) struct Scan {
    pub(crate) slots: Vec<Slot>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) ignored: u64,
}

impl Scan {
    /// Returns whether nothing differs from the index.
    pub(crate) fn is_equal(&self) -> bool {
        self.slots.iter().all(|slot| match &slot.state {
            State::Scanned(found) => !found.is_new && found.edits.is_empty() && slot.known.is_some(),
            State::NotScanned | State::Unreadable => true,
            State::Leaf(_) => false,
            State::Gone => slot.known.is_none(),
        })
    }

    /// Returns the slots of directories that the index knows, adding missing ones.
    pub(crate) fn slots_of<'p>(&mut self, paths: impl Iterator<Item = &'p TreePath>, index: &Index) -> Vec<usize> {
        let slots = std::mem::take(&mut self.slots);
        let by_path = slots.iter().enumerate().map(|(at, slot)| (slot.path.clone(), at)).collect();
        let mut table = Table { slots, by_path: Some(by_path) };
        let found = paths.map(|path| table.slot(path, index)).collect();
        self.slots = table.slots;
        found
    }
}

/// A directory that was scanned, or an ancestor of one.
pub(crate) struct Slot {
    pub(crate) path: TreePath,
    /// The slot of its parent.
    pub(crate) parent: Option<usize>,
    /// Its position in the index.
    pub(crate) known: Option<usize>,
    pub(crate) state: State,
}

/// State of a slot.
pub(crate) enum State {
    /// Not scanned.
    NotScanned,
    /// A directory.
    Scanned(ScannedDirectory),
    /// The name has an entry that is no directory.
    Leaf(Stamp),
    /// The name is gone, or has something that cannot be part of a tree.
    Gone,
    /// It cannot be read; the stored entry stays.
    Unreadable,
}

pub(crate) struct ScannedDirectory {
    pub(crate) stamp: Stamp,
    /// Whether its own attributes may differ from the index.
    pub(crate) is_new: bool,
    pub(crate) xattrs: Vec<Xattr>,
    /// The differing names, except existing directories, sorted.
    pub(crate) edits: Vec<Edit>,
}

/// A differing name, and its stamp now if it exists.
pub(crate) struct Edit {
    pub(crate) name: Name,
    pub(crate) now: Option<Stamp>,
}

/// Scans one directory.
struct Job {
    slot: usize,
    path: TreePath,
    known: Option<usize>,
    /// Whether everything below is scanned, too.
    is_recursive: bool,
    /// The ignore rules of the directories above.
    chain: Chain,
}

struct Table {
    slots: Vec<Slot>,
    /// Only for a partial scan, which can reach a directory twice.
    by_path: Option<HashMap<TreePath, usize>>,
}

pub(crate) struct Scanner<'a> {
    pub(crate) host: &'a HostDir,
    pub(crate) index: &'a Index,
    pub(crate) job: &'a CaptureOptions<'a>,
    /// Whether all stamps of the index are ignored.
    pub(crate) distrusts_index: bool,
    table: Mutex<Table>,
    notices: Mutex<Vec<Notice>>,
    ignored: AtomicU64,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(host: &'a HostDir, index: &'a Index, job: &'a CaptureOptions<'a>, top: &Stamp) -> Self {
        // Entries name owners that differ from the root's: if that changes, all of them do.
        let owner = |stamp: &Stamp| (stamp.uid, stamp.gid);
        let distrusts_index = index.is_known() && owner(&index.directory(ROOT).stamp) != owner(top);
        let by_path = match job.scope {
            Scope::Directories(_)
                if index.is_known() && !distrusts_index && index.rules() == job.rules.fingerprint() =>
            {
                Some(HashMap::new())
            }
            _ => None,
        };
        let table = Mutex::new(Table { slots: Vec::new(), by_path });
        Self { host, index, job, distrusts_index, table, notices: Mutex::default(), ignored: AtomicU64::new(0) }
    }

    /// Scans everything that the options ask for.
    pub(crate) fn run(&self) -> Result<()> {
        let is_partial = self.table.lock().by_path.is_some();
        match self.job.scope {
            Scope::Directories(directories) if is_partial => self.scan_directories(directories),
            _ => {
                let known = self.index.is_known().then_some(ROOT);
                self.table.lock().add(TreePath::root(), None, known);
                let chain = self.job.rules.settings();
                self.work(vec![Job { slot: 0, path: TreePath::root(), known, is_recursive: true, chain }])
            }
        }
    }

    /// Scans these directories, too. Does nothing new in a complete scan.
    pub(crate) fn scan_directories(&self, directories: &BTreeSet<TreePath>) -> Result<()> {
        let mut wanted = directories.clone();
        let mut looked = BTreeSet::new();
        while !wanted.is_empty() {
            let jobs = self.jobs(&wanted, &mut looked);
            self.work(jobs)?;
            // For a directory that is gone, the nearest existing ancestor is scanned.
            let table = self.table.lock();
            let gone = table.slots.iter().filter(|slot| !matches!(slot.state, State::NotScanned | State::Scanned(_)));
            let parents = gone.filter_map(|slot| slot.parent);
            let unseen = parents.filter(|parent| matches!(table.slots[*parent].state, State::NotScanned));
            wanted = unseen.map(|parent| table.slots[parent].path.clone()).collect();
        }
        Ok(())
    }

    /// Returns the result.
    pub(crate) fn finish(self) -> Scan {
        let mut notices = self.notices.into_inner();
        notices.sort_by(|a, b| a.path.cmp(&b.path));
        notices.dedup();
        Scan { slots: self.table.into_inner().slots, notices, ignored: self.ignored.into_inner() }
    }

    /// Returns whether all directories are scanned.
    pub(crate) fn is_complete(&self) -> bool {
        self.table.lock().by_path.is_none()
    }

    /// Calls `see` with the slots so far.
    pub(crate) fn with_slots<T>(&self, see: impl FnOnce(&[Slot]) -> T) -> T {
        see(&self.table.lock().slots)
    }

    pub(crate) fn notice(&self, path: TreePath, why: Why) {
        self.notices.lock().push(Notice { path, why });
    }

    fn work(&self, jobs: Vec<Job>) -> Result<()> {
        worker_pool::run_jobs(jobs, self.job.progress, |job, more| self.scan(job, more))
    }

    /// Makes jobs for these directories, or for their nearest ancestors that the index knows.
    fn jobs(&self, wanted: &BTreeSet<TreePath>, looked: &mut BTreeSet<TreePath>) -> Vec<Job> {
        let mut chains = HashMap::new();
        let mut jobs = Vec::new();
        for path in wanted {
            let (path, known) = self.nearest_known(path);
            if !looked.insert(path.clone()) {
                continue;
            }
            let slot = self.table.lock().slot(&path, self.index);
            let chain = match path.split_last() {
                Some((parent, _)) => self.chain(&parent, wanted, &mut chains),
                None => self.job.rules.settings(),
            };
            jobs.push(Job { slot, path, known: Some(known), is_recursive: false, chain });
        }
        jobs
    }

    fn nearest_known(&self, path: &TreePath) -> (TreePath, usize) {
        let mut path = path.clone();
        loop {
            if let Some(at) = self.index.position(&path) {
                return (path, at);
            }
            path = path.split_last().expect("the root is known").0;
        }
    }

    /// Returns the ignore rules of a directory, including its own.
    fn chain(&self, directory: &TreePath, wanted: &BTreeSet<TreePath>, chains: &mut HashMap<TreePath, Chain>) -> Chain {
        if !self.job.rules.uses_files() {
            return self.job.rules.settings();
        }
        let rules_file = Name::new(RULES_FILE).expect("a name");
        let mut chain = self.job.rules.settings();
        let mut here = TreePath::root();
        let mut names = directory.names();
        loop {
            chain = match chains.get(&here) {
                Some(known) => known.clone(),
                None => {
                    let at = self.index.position(&here);
                    let has = at.is_some_and(|at| self.index.directory(at).get(&rules_file).is_some());
                    let next = if has || wanted.contains(&here) { chain.enter(self.host, &here).0 } else { chain };
                    chains.insert(here.clone(), next.clone());
                    next
                }
            };
            match names.next() {
                Some(name) => here = here.join(&name),
                None => return chain,
            }
        }
    }

    fn scan(&self, job: Job, more: &mut Vec<Job>) -> Result<()> {
        let slot = job.slot;
        let state = self.state(job, more)?;
        self.table.lock().slots[slot].state = state;
        Ok(())
    }

    fn state(&self, mut job: Job, more: &mut Vec<Job>) -> Result<State> {
        for _ in 0..SCAN_ATTEMPTS_MAX {
            let opened = self.host.directory(&job.path);
            let failed = match opened {
                Ok(open) => match rustix::fs::fstat(&open) {
                    Ok(stat) => {
                        if self.job.rules.is_ours(stat.st_dev, stat.st_ino) {
                            self.notice(job.path, Why::Ours);
                            return Ok(State::Gone);
                        }
                        let stamp = Stamp::from_stat(&stat);
                        if stat.st_dev != self.host.identity().device {
                            return Ok(self.mount(&job, stamp));
                        }
                        return self.list(&mut job, &open, stamp, more);
                    }
                    Err(error) => error.into(),
                },
                Err(error) => error,
            };
            if job.path.is_root() {
                return Err(Error::host("open", &job.path, failed));
            }
            if is_absent(&failed) {
                match self.host.stamp(&job.path) {
                    Ok(None) => return Ok(State::Gone),
                    Ok(Some(stamp)) if stamp.kind() != FileType::Directory => return Ok(State::Leaf(stamp)),
                    // It is a directory again.
                    Ok(Some(_)) => continue,
                    Err(error) => return Ok(self.unreadable(job, "look at", &error)),
                }
            }
            if failed.raw_os_error() == Some(Errno::XDEV.raw_os_error())
                && let Ok(Some(stamp)) = self.host.stamp(&job.path)
            {
                return Ok(self.mount(&job, stamp));
            }
            return Ok(self.unreadable(job, "open", &failed));
        }
        Ok(State::Gone)
    }

    fn unreadable(&self, job: Job, action: &'static str, error: &std::io::Error) -> State {
        self.notice(job.path, Why::Failed { action, error: error.to_string() });
        State::Unreadable
    }

    /// Scans a mount point as an empty directory, and adds a notice that another file system was left out.
    fn mount(&self, job: &Job, stamp: Stamp) -> State {
        self.notice(job.path.clone(), Why::OtherFileSystem);
        let gone = job.known.map_or(&[][..], |known| &self.index.directory(known).names);
        let edits: Vec<_> = gone.iter().map(|item| Edit { name: item.name.clone(), now: None }).collect();
        let is_new = job.known.is_none_or(|known| self.index.directory(known).stamp != stamp);
        State::Scanned(ScannedDirectory { stamp, is_new, xattrs: Vec::new(), edits })
    }

    fn list(&self, job: &mut Job, open: &OwnedFd, stamp: Stamp, more: &mut Vec<Job>) -> Result<State> {
        let before = job.known.map(|known| self.index.directory(known));
        let is_new =
            self.distrusts_index || before.is_none_or(|before| before.stamp != stamp || before.trust != Trust::Clean);
        // Another directory has the name now, so nothing below it is known.
        job.is_recursive |= before.is_none_or(|before| before.stamp.inode != stamp.inode);
        let listed = match list_names(open.as_fd()) {
            Ok(listed) => listed,
            Err(error) if is_absent(&error) => Listing::default(),
            Err(error) => {
                self.notice(job.path.clone(), Why::Failed { action: "list", error: error.to_string() });
                return Ok(State::Unreadable);
            }
        };
        listed.unsupported.into_iter().for_each(|why| self.notice(job.path.clone(), why));
        let mut listed = listed.names;
        self.job.progress.count_names(listed.len() as u64);
        if !listed.is_empty() && job.path.names().count() >= DEPTH_MAX {
            let why = format!("what lies in it is deeper than {DEPTH_MAX} names");
            self.notice(job.path.clone(), Why::Unsupported(why));
            listed.clear();
        }
        listed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let chain = self.enter(job, &listed, open.as_fd());
        let mut look = NameComparison { scanner: self, job, open: open.as_fd(), chain, edits: Vec::new(), more };
        look.compare(listed);
        let edits = look.edits;
        let has_attributes = is_new || before.is_some_and(|before| before.has_attributes);
        let xattrs = if has_attributes { self.xattrs(&job.path, open.as_fd()) } else { Vec::new() };
        Ok(State::Scanned(ScannedDirectory { stamp, is_new, xattrs, edits }))
    }

    fn xattrs(&self, path: &TreePath, open: BorrowedFd<'_>) -> Vec<Xattr> {
        xattrs::read_xattrs(open).unwrap_or_else(|error| {
            self.notice(path.clone(), Why::Failed { action: "read the attributes of", error: error.to_string() });
            Vec::new()
        })
    }

    /// Returns the ignore rules in a directory. If its own rules changed, everything below it is scanned.
    fn enter(&self, job: &mut Job, listed: &[(Name, FileType)], open: BorrowedFd<'_>) -> Chain {
        if !self.job.rules.uses_files() {
            return job.chain.clone();
        }
        let found = listed.binary_search_by(|(name, _)| name.as_bytes().cmp(RULES_FILE)).ok();
        let name = Name::new(RULES_FILE).expect("a name");
        let before = job.known.and_then(|known| self.index.directory(known).get(&name));
        let now = found.and_then(|_| Stamp::at(open, &name).ok());
        job.is_recursive |= match (before, now) {
            (None, None) => false,
            (Some(IndexEntry::Leaf(before)), Some(now)) => before.trust != Trust::Clean || before.stamp != now,
            _ => true,
        };
        if found.is_none() {
            return job.chain.clone();
        }
        let (chain, wrong) = job.chain.enter(self.host, &job.path);
        if let Some(why) = wrong {
            self.notice(job.path.join(&name), why);
        }
        chain
    }

    fn is_same(&self, leaf: &Leaf, stamp: &Stamp) -> bool {
        !self.distrusts_index && leaf.trust == Trust::Clean && leaf.stamp == *stamp
    }
}

/// Compares the names of a directory with the index.
struct NameComparison<'a, 'b> {
    scanner: &'b Scanner<'a>,
    job: &'b Job,
    open: BorrowedFd<'b>,
    chain: Chain,
    edits: Vec<Edit>,
    more: &'b mut Vec<Job>,
}

impl NameComparison<'_, '_> {
    fn compare(&mut self, listed: Vec<(Name, FileType)>) {
        let before = match self.job.known {
            Some(known) => &self.scanner.index.directory(known).names[..],
            None => &[],
        };
        let mut before = before.iter().peekable();
        let mut path = self.job.path.as_bytes().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let stem = path.len();
        let mut ignored = 0;
        for (name, kind) in listed {
            while let Some(gone) = before.next_if(|item| item.name < name) {
                self.edits.push(Edit { name: gone.name.clone(), now: None });
            }
            let held = before.next_if(|item| item.name == name).map(|item| &item.held);
            let (kind, stamp) = match self.stat(&name, kind, held) {
                Ok(seen) => seen,
                Err(error) if is_absent(&error) => {
                    if held.is_some() {
                        self.edits.push(Edit { name, now: None });
                    }
                    continue;
                }
                Err(error) => {
                    let why = Why::Failed { action: "look into", error: error.to_string() };
                    self.scanner.notice(self.job.path.clone(), why);
                    continue;
                }
            };
            if !self.chain.is_empty() {
                path.truncate(stem);
                path.extend_from_slice(name.as_bytes());
                if self.chain.excludes(&path, kind == FileType::Directory) {
                    ignored += 1;
                    if held.is_some() {
                        self.edits.push(Edit { name, now: None });
                    }
                    continue;
                }
            }
            match (kind, stamp) {
                (FileType::Directory, stamp) => self.below(&name, held, stamp),
                (_, Some(stamp)) => match held {
                    Some(IndexEntry::Leaf(leaf)) if self.scanner.is_same(leaf, &stamp) => {}
                    _ => self.edits.push(Edit { name, now: Some(stamp) }),
                },
                (_, None) => unreachable!("only directories are not asked"),
            }
        }
        self.edits.extend(before.map(|gone| Edit { name: gone.name.clone(), now: None }));
        self.scanner.ignored.fetch_add(ignored, Ordering::Relaxed);
    }

    /// Returns kind and stamp of a name. No stamp for a directory that will be opened anyway.
    fn stat(
        &self,
        name: &Name,
        kind: FileType,
        held: Option<&IndexEntry>,
    ) -> std::io::Result<(FileType, Option<Stamp>)> {
        if kind == FileType::Directory && (self.job.is_recursive || !matches!(held, Some(IndexEntry::Directory(_)))) {
            return Ok((kind, None));
        }
        let stat = rustix::fs::statat(self.open, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)?;
        let stamp = Stamp::from_stat(&stat);
        Ok((stamp.kind(), Some(stamp)))
    }

    /// Adds a job for a sub-directory if it has to be scanned.
    fn below(&mut self, name: &Name, held: Option<&IndexEntry>, stamp: Option<Stamp>) {
        let known = match held {
            Some(IndexEntry::Directory(at)) => Some(*at as usize),
            _ => None,
        };
        if let (Some(known), Some(stamp), false) = (known, stamp, self.job.is_recursive)
            && self.scanner.index.directory(known).stamp == stamp
        {
            return;
        }
        let path = self.job.path.join(name);
        let is_recursive = self.job.is_recursive || known.is_none();
        let mut table = self.scanner.table.lock();
        let slot = match table.find(&path) {
            // Another job scans it, unless more is asked for now.
            Some(slot) if !is_recursive && !matches!(table.slots[slot].state, State::NotScanned | State::Gone) => {
                return;
            }
            Some(slot) => slot,
            None => table.add(path.clone(), Some(self.job.slot), known),
        };
        self.more.push(Job { slot, path, known, is_recursive, chain: self.chain.clone() });
    }
}

impl Table {
    fn find(&self, path: &TreePath) -> Option<usize> {
        self.by_path.as_ref()?.get(path).copied()
    }

    fn add(&mut self, path: TreePath, parent: Option<usize>, known: Option<usize>) -> usize {
        let slot = self.slots.len();
        if let Some(by_path) = &mut self.by_path {
            by_path.insert(path.clone(), slot);
        }
        self.slots.push(Slot { path, parent, known, state: State::NotScanned });
        slot
    }

    /// Returns the slot of a directory that the index knows. Parents come before their children.
    fn slot(&mut self, path: &TreePath, index: &Index) -> usize {
        let mut here = TreePath::root();
        let mut names = path.names();
        let mut parent = None;
        loop {
            let slot = match self.find(&here) {
                Some(slot) => slot,
                None => self.add(here.clone(), parent, index.position(&here)),
            };
            match names.next() {
                Some(name) => here = here.join(&name),
                None => return slot,
            }
            parent = Some(slot);
        }
    }
}

#[derive(Default)]
pub(crate) struct Listing {
    pub(crate) names: Vec<(Name, FileType)>,
    unsupported: Vec<Why>,
}

/// Lists the names of a directory.
pub(crate) fn list_names(open: BorrowedFd<'_>) -> std::io::Result<Listing> {
    thread_local! {
        static BUFFER: std::cell::RefCell<Vec<MaybeUninit<u8>>> =
            std::cell::RefCell::new(vec![MaybeUninit::uninit(); NAMES_BYTES]);
    }
    BUFFER.with_borrow_mut(|buffer| {
        let mut listed = Listing::default();
        let mut entries = RawDir::new(open, buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let bytes = entry.file_name().to_bytes();
            if bytes == b"." || bytes == b".." || is_staged(bytes) {
                continue;
            }
            match Name::new(bytes) {
                Ok(name) => listed.names.push((name, entry.file_type())),
                Err(error) => {
                    listed.unsupported.push(Why::Unsupported(format!("{}: {error}", bytes.escape_ascii())));
                }
            }
        }
        Ok(listed)
    })
}
