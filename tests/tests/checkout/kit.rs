//! A real directory, a store, and trees to check out there; what is on the disk afterwards, seen with nothing of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use amalgam_engine::object::{EntryKind, Owner};
use amalgam_engine::{Name, RootId, Store, Time, TreePath, WorkingTree};
use amalgam_materializer::{
    CaptureOptions, Captured, CheckoutOptions, CheckoutReport, HostDir, Index, KnownContents, Progress, Result, Rules,
    Scope, Times, capture, checkout,
};
use amalgam_tests::model::{Data, Op, Seen, contents, perform, write_root};

pub struct World {
    pub temp: tempfile::TempDir,
    pub store: Store,
    pub host: HostDir,
    pub rules: Rules,
    pub progress: Progress,
}

pub fn path(text: impl AsRef<[u8]>) -> TreePath {
    TreePath::new(text).expect("a valid path")
}

#[expect(clippy::disallowed_methods, reason = "a capture is told the time")]
pub fn now() -> Time {
    Time::from(std::time::SystemTime::now())
}

/// Waits until nothing is so new that its stamp is not trusted.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(40));
}

impl World {
    pub fn new() -> Self {
        Self::in_directory(tempfile::tempdir().expect("a directory"))
    }

    pub fn in_directory(temp: tempfile::TempDir) -> Self {
        fs::create_dir(temp.path().join("tree")).expect("a directory");
        let host = HostDir::open(temp.path().join("tree")).expect("it opens");
        let rules = Rules::new(&[]).expect("no rules");
        Self { store: Store::in_memory(), host, rules, temp, progress: Progress::default() }
    }

    pub fn at(&self, inside: impl AsRef<[u8]>) -> PathBuf {
        self.host.path().join(OsStr::from_bytes(inside.as_ref()))
    }

    pub fn index(&self) -> Index {
        Index::new(self.host.identity())
    }

    pub fn tree(&self) -> WorkingTree {
        WorkingTree::new(&self.store)
    }

    pub fn job(&self) -> CheckoutOptions<'_> {
        CheckoutOptions {
            keep_git: false,
            rules: None,
            leave_git_file: false,
            withholds: false,
            paths: None,
            times: Times::Exact,
            source: None,
            pool: None,
            progress: &self.progress,
        }
    }

    pub fn capture(&self, index: &mut Index, scope: Scope<'_>, known: &KnownContents) -> Captured {
        self.capture_at(now(), index, scope, known)
    }

    fn capture_at(&self, now: Time, index: &mut Index, scope: Scope<'_>, known: &KnownContents) -> Captured {
        let progress = Progress::default();
        let job = CaptureOptions { rules: &self.rules, scope, known, now, progress: &progress };
        capture(&self.store, &self.host, index, &job).expect("it is captured")
    }

    /// An index of what is there now.
    pub fn look(&self) -> Index {
        let mut index = self.index();
        self.capture(&mut index, Scope::All, &KnownContents::default());
        index
    }

    /// An index of a look at an earlier time: all that changed since then is too new to be trusted.
    pub fn look_at(&self, now: Time) -> Index {
        let mut index = self.index();
        self.capture_at(now, &mut index, Scope::All, &KnownContents::default());
        index
    }

    pub fn try_checkout(&self, index: &Index, tree: &WorkingTree) -> Result<CheckoutReport> {
        checkout(&self.store, &self.host, index, self.root(tree), &self.job())
    }

    pub fn checkout(&self, index: &Index, tree: &WorkingTree) -> CheckoutReport {
        self.try_checkout(index, tree).expect("it is checked out")
    }

    pub fn root(&self, tree: &WorkingTree) -> RootId {
        write_root(tree).expect("it is written")
    }

    /// Whether the directory is the tree, entry by entry.
    pub fn expect(&self, tree: &WorkingTree) {
        let (expected, found) = (self.expected(tree), see(self.host.path()));
        for (path, seen) in &expected {
            assert_eq!(found.get(path), Some(seen), "{path}: what is there, and what should be");
        }
        for path in found.keys() {
            assert!(expected.contains_key(path), "{path} should not be there");
        }
        assert_eq!(
            link_classes(self.host.path()),
            amalgam_tests::model::link_classes(&self.stored(tree)).expect("read")
        );
    }

    /// The tree as it is stored.
    pub fn stored(&self, tree: &WorkingTree) -> WorkingTree {
        WorkingTree::open_root(&self.store, self.root(tree)).expect("it opens")
    }

    fn expected(&self, tree: &WorkingTree) -> BTreeMap<TreePath, Seen> {
        let mut paths = contents(tree).expect("read").paths;
        let own = own_owner(self.host.path());
        for seen in paths.values_mut() {
            seen.owner = seen.owner.filter(|owner| *owner != own);
            if seen.kind == EntryKind::Directory {
                seen.links = 1;
            }
        }
        paths
    }
}

fn own_owner(directory: &Path) -> Owner {
    let found = directory.symlink_metadata().expect("it is there");
    Owner { uid: found.uid(), gid: found.gid() }
}

/// All paths below a directory, the root included, by the standard library.
pub fn paths(directory: &Path) -> BTreeSet<TreePath> {
    let mut found = BTreeSet::from([TreePath::root()]);
    let mut open = vec![TreePath::root()];
    while let Some(here) = open.pop() {
        for entry in fs::read_dir(directory.join(OsStr::from_bytes(here.as_bytes()))).expect("it lists") {
            let entry = entry.expect("an entry");
            let below = here.join(&Name::new(entry.file_name().as_bytes()).expect("a name"));
            if entry.file_type().expect("a kind").is_dir() {
                open.push(below.clone());
            }
            found.insert(below);
        }
    }
    found
}

/// Everything that is on the disk.
pub fn see(directory: &Path) -> BTreeMap<TreePath, Seen> {
    let own = own_owner(directory);
    let all = paths(directory).into_iter().map(|path| {
        let real = directory.join(OsStr::from_bytes(path.as_bytes()));
        let found = real.symlink_metadata().expect("it is there");
        let kind = kind_of(found.file_type());
        let bytes = match kind {
            EntryKind::File => fs::read(&real).expect("it is read"),
            EntryKind::Symlink => fs::read_link(&real).expect("it is read").into_os_string().into_vec(),
            _ => Vec::new(),
        };
        let owner = Owner { uid: found.uid(), gid: found.gid() };
        let seen = Seen {
            kind,
            mode: if kind == EntryKind::Symlink { 0o777 } else { found.mode() & 0o7777 },
            mtime: Time(found.mtime() * 1_000_000_000 + found.mtime_nsec()),
            size: bytes.len() as u64,
            links: if kind == EntryKind::Directory { 1 } else { found.nlink() },
            owner: (owner != own).then_some(owner),
            xattrs: xattrs(&real),
            bytes: Data(bytes),
        };
        (path, seen)
    });
    all.collect()
}

fn kind_of(kind: fs::FileType) -> EntryKind {
    match kind {
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => EntryKind::Symlink,
        kind if kind.is_fifo() => EntryKind::Fifo,
        kind if kind.is_socket() => EntryKind::Socket,
        kind if kind.is_char_device() => EntryKind::CharDevice,
        kind if kind.is_block_device() => EntryKind::BlockDevice,
        _ => EntryKind::File,
    }
}

fn xattrs(real: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(real, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let read = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(real, name, &mut value[..]).expect("it is listed");
        value.truncate(length);
        (name.to_vec(), value)
    };
    names.map(read).collect()
}

/// The names of each inode that has several.
pub fn link_classes(directory: &Path) -> BTreeSet<BTreeSet<TreePath>> {
    let mut inodes: BTreeMap<u64, BTreeSet<TreePath>> = BTreeMap::new();
    for path in paths(directory) {
        let found = directory.join(OsStr::from_bytes(path.as_bytes())).symlink_metadata().expect("it is there");
        if !found.is_dir() {
            inodes.entry(found.ino()).or_default().insert(path);
        }
    }
    inodes.into_values().filter(|names| names.len() > 1).collect()
}

/// Does random operations to a tree, as far as a real file system can hold what comes of them.
pub fn perform_all(tree: &mut WorkingTree, ops: &[Op]) {
    const SECONDS: i64 = 1_000_000_000;
    for op in ops {
        let kind = |path: &[u8]| tree.stat(path).ok().flatten().map(|stat| stat.kind);
        let is_possible = match op {
            // The disk keeps seconds from 1901 on.
            Op::SetMtime { mtime: Time(mtime), .. } | Op::SetNow { now: Time(mtime) } => {
                *mtime > -2_000_000_000 * SECONDS
            }
            Op::Symlink { target, .. } => !target.0.is_empty(),
            Op::SetOwner { owner, .. } => owner.is_none_or(|owner| owner.gid != u32::MAX),
            // Extended attributes of users are for files and directories, and have a block.
            Op::SetXattr { path, value, .. } => {
                value.length < 600 && matches!(kind(&path.0), Some(EntryKind::File | EntryKind::Directory))
            }
            _ => true,
        };
        if is_possible {
            // What the tree refuses is no part of this.
            perform(tree, op).ok();
        }
    }
}
