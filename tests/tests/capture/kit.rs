//! A real directory, a store, and random edits that say where they happened.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use amalgam_engine::{Store, Time, TreePath, WorkingTree};
use amalgam_materializer::{
    CaptureOptions, Captured, Changes, HostDir, Index, KnownContents, Progress, Result, Rules, Scope, capture,
    detect_changes,
};
use amalgam_tests::harness::Random;
use amalgam_tests::model::contents;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

pub struct World {
    pub temp: tempfile::TempDir,
    pub store: Store,
    pub host: HostDir,
    pub rules: Rules,
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
        let temp = tempfile::tempdir().expect("a directory");
        fs::create_dir(temp.path().join("tree")).expect("a directory");
        let host = HostDir::open(temp.path().join("tree")).expect("it opens");
        let rules = Rules::new(&[]).expect("no rules");
        Self { store: Store::in_memory(), host, rules, temp }
    }

    pub fn at(&self, inside: impl AsRef<[u8]>) -> PathBuf {
        self.host.path().join(OsStr::from_bytes(inside.as_ref()))
    }

    pub fn index(&self) -> Index {
        Index::new(self.host.identity())
    }

    pub fn job<'a>(&'a self, scope: Scope<'a>, known: &'a KnownContents, progress: &'a Progress) -> CaptureOptions<'a> {
        CaptureOptions { rules: &self.rules, scope, known, now: now(), progress }
    }

    pub fn try_capture(&self, index: &mut Index, scope: Scope<'_>) -> Result<Captured> {
        let (known, progress) = (KnownContents::default(), Progress::default());
        capture(&self.store, &self.host, index, &self.job(scope, &known, &progress))
    }

    pub fn capture(&self, index: &mut Index) -> Captured {
        self.try_capture(index, Scope::All).expect("it is captured")
    }

    pub fn capture_in(&self, index: &mut Index, directories: &BTreeSet<TreePath>) -> Captured {
        self.try_capture(index, Scope::Directories(directories)).expect("it is captured")
    }

    pub fn fresh(&self) -> Captured {
        self.capture(&mut self.index())
    }

    pub fn changes(&self, index: &mut Index) -> Changes {
        let (known, progress) = (KnownContents::default(), Progress::default());
        detect_changes(&self.store, &self.host, index, &self.job(Scope::All, &known, &progress))
            .expect("they are found")
    }

    /// All paths of the directory, by the standard library.
    pub fn paths(&self) -> BTreeSet<TreePath> {
        let mut found = BTreeSet::new();
        let mut open = vec![TreePath::root()];
        while let Some(here) = open.pop() {
            for entry in fs::read_dir(self.at(here.as_bytes())).expect("it lists") {
                let entry = entry.expect("an entry");
                let below = here.join(&amalgam_engine::Name::new(entry.file_name().as_bytes()).expect("a name"));
                if entry.file_type().expect("a kind").is_dir() {
                    open.push(below.clone());
                }
                found.insert(below);
            }
        }
        found
    }

    /// The names of each inode that has several.
    pub fn link_classes(&self) -> BTreeSet<BTreeSet<TreePath>> {
        let mut inodes: BTreeMap<u64, BTreeSet<TreePath>> = BTreeMap::new();
        for path in self.paths() {
            let found = self.at(path.as_bytes()).symlink_metadata().expect("it is there");
            if !found.is_dir() {
                inodes.entry(found.ino()).or_default().insert(path);
            }
        }
        inodes.into_values().filter(|names| names.len() > 1).collect()
    }

    /// One random edit, and the directories in which a watcher would see something.
    pub fn edit(&self, random: &mut Random, links: bool) -> BTreeSet<TreePath> {
        let paths: Vec<TreePath> = std::iter::once(TreePath::root()).chain(self.paths()).collect();
        let kind = |path: &TreePath| self.at(path.as_bytes()).symlink_metadata().expect("it is there").file_type();
        let directories: Vec<_> = paths.iter().filter(|path| kind(path).is_dir() && path.names().count() < 5).collect();
        let files: Vec<_> = paths.iter().filter(|path| kind(path).is_file()).collect();
        let any = |random: &mut Random, list: &[&TreePath]| list[random.below(list.len() as u64) as usize].clone();
        let name = |random: &mut Random| {
            const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", b"d", b"long name", b"\xff\xfe", b"x.rs", b"-", b"\n"];
            amalgam_engine::Name::new(NAMES[random.below(9) as usize]).expect("a name")
        };
        let parent = any(random, &directories);
        let target = parent.join(&name(random));
        let real = self.at(target.as_bytes());
        let is_free = real.symlink_metadata().is_err();
        let mut dirty = BTreeSet::from([parent]);
        match random.below(16) {
            0..=3 if is_free || real.symlink_metadata().is_ok_and(|found| found.is_file()) => {
                let length = [0, 1, 100, 5_000, 70_000, 300_000][random.below(6) as usize];
                fs::write(&real, random.bytes(length)).expect("it is written");
            }
            4 | 5 if is_free => fs::create_dir(&real).expect("it is made"),
            6 if is_free => symlink("somewhere/else", &real).expect("it is made"),
            7 if is_free => {
                rustix::fs::mkfifoat(CWD, &real, Mode::from(0o640)).expect("it is made");
            }
            8 if is_free => {
                rustix::fs::mknodat(CWD, &real, FileType::Socket, Mode::from(0o600), 0).expect("it is made")
            }
            9 if is_free => {
                let file = fs::File::create(&real).expect("it is made");
                file.set_len(1 << 20).expect("it is long");
                file.write_all_at(b"end", (1 << 20) - 200_000).expect("it is written");
            }
            10 if !files.is_empty() => {
                let file = any(random, &files);
                let real = self.at(file.as_bytes());
                let file_now = fs::OpenOptions::new().write(true).open(&real).expect("it opens");
                file_now.write_all_at(b"edited", random.below(200)).expect("it is written");
                dirty = BTreeSet::from([file.split_last().expect("a file").0]);
            }
            11 if paths.len() > 8 && !is_free => remove(&real),
            12 => {
                let of = any(random, &paths.iter().collect::<Vec<_>>());
                let real = self.at(of.as_bytes());
                if !real.symlink_metadata().expect("it is there").is_symlink() {
                    let mode = [0o755, 0o700, 0o4755, 0o1777][random.below(4) as usize];
                    fs::set_permissions(&real, fs::Permissions::from_mode(mode)).expect("it is set");
                }
                dirty = of.split_last().map(|(parent, _)| parent).into_iter().chain([of]).collect();
            }
            13 => {
                let of = any(random, &paths.iter().collect::<Vec<_>>());
                set_mtime(&self.at(of.as_bytes()), random.below(4_000_000_000) as i64 - 2_000_000_000);
                dirty = of.split_last().map(|(parent, _)| parent).into_iter().chain([of]).collect();
            }
            14 => {
                let from = any(random, &paths.iter().collect::<Vec<_>>());
                let moves = !from.is_root() && is_free && target.below(&from).is_none();
                if moves {
                    fs::rename(self.at(from.as_bytes()), &real).expect("it is moved");
                    dirty.insert(from.split_last().expect("not the root").0);
                }
            }
            15 if links && is_free && !files.is_empty() => {
                fs::hard_link(self.at(any(random, &files).as_bytes()), &real).expect("it is linked");
            }
            _ => {
                if let Some(file) = files.first() {
                    let real = self.at(file.as_bytes());
                    let value = random.bytes(random.clone().below(2_000) as usize);
                    // Not every file system has them.
                    let _ = rustix::fs::setxattr(&real, "user.test", &value, rustix::fs::XattrFlags::empty());
                    dirty.insert(file.split_last().expect("a file").0);
                }
            }
        }
        dirty
    }
}

/// Two trees are equal; says where they are not.
#[track_caller]
pub fn assert_same(found: &WorkingTree, expected: &WorkingTree, why: &str) {
    let (found, expected) = (contents(found).expect("read").paths, contents(expected).expect("read").paths);
    let paths: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    for path in paths {
        assert_eq!(found.get(path), expected.get(path), "{why}: {path}");
    }
}

fn remove(real: &Path) {
    if real.symlink_metadata().expect("it is there").is_dir() {
        fs::remove_dir_all(real).expect("it is removed");
    } else {
        fs::remove_file(real).expect("it is removed");
    }
}

pub fn set_mtime(real: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, real, &times, AtFlags::SYMLINK_NOFOLLOW).expect("it is set");
}
