//! A view in a temporary directory, and short words for what tests do with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SnapshotId, Store, Time};
use amalgam_view::{Attributes, Caller, Captured, Ino, Kind, ROOT, RecoveryReport, RenameMode, View, ViewOptions};

static NOW: AtomicI64 = AtomicI64::new(1_000_000_000_000);

/// A clock that stands at no value twice.
pub(crate) fn now() -> Time {
    Time(NOW.fetch_add(1_000, Ordering::Relaxed))
}

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EBUSY: i32 = 16;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ENOTEMPTY: i32 = 39;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const ENXIO: i32 = 6;
pub(crate) const EDQUOT: i32 = 122;
pub(crate) const ESTALE: i32 = 116;

/// The number that a refusal comes with.
pub(crate) fn errno<T: std::fmt::Debug>(result: amalgam_view::Result<T>) -> i32 {
    result.expect_err("it is refused").errno()
}

/// A view, its store, and where its journal is.
pub(crate) struct Kit {
    pub(crate) view: View,
    pub(crate) workspaces: Workspaces,
    pub(crate) caller: Caller,
    pub(crate) recovered: RecoveryReport,
    directory: PathBuf,
    _scratch: Option<tempfile::TempDir>,
}

pub(crate) fn options() -> ViewOptions {
    ViewOptions::new(Owner { uid: 0, gid: 0 }, now)
}

pub(crate) fn main_workspace() -> WorkspaceName {
    WorkspaceName::new("main").expect("a name")
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::over(&Store::in_memory())
    }

    /// Opens a view of the workspace of a store, with a new journal.
    pub(crate) fn over(store: &Store) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut kit = Self::at(store, &scratch.path().join("journal"), options());
        kit._scratch = Some(scratch);
        kit
    }

    /// Over a store and a journal that may have been used before.
    pub(crate) fn at(store: &Store, journal: &Path, mut options: ViewOptions) -> Self {
        let workspaces = Workspaces::of(store);
        let name = main_workspace();
        if workspaces.find(&name).expect("a store").is_none() {
            workspaces
                .create(&name, &NewWorkspace::default(), &OperationContext::new("test", now()))
                .expect("a workspace");
        }
        let tree = workspaces.open(&name).expect("a tree");
        options.journaled_commit = workspaces.get(&name).expect("a workspace").journaled;
        let (view, recovered) = View::open(tree, journal, options).expect("a view opens");
        let caller = Caller::owner(0, 0);
        Self { view, workspaces, caller, recovered, directory: journal.to_owned(), _scratch: None }
    }

    /// Closes the view and opens the next one.
    pub(crate) fn close_and_reopen(self) -> Self {
        self.view.close().expect("close");
        self.kill_and_reopen()
    }

    /// Opens the next view without closing this one, as after a kill.
    pub(crate) fn kill_and_reopen(self) -> Self {
        let mut next = Self::at(self.workspaces.store(), &self.directory, options());
        next._scratch = self._scratch;
        next
    }

    pub(crate) fn journal(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn commit(&self) -> SnapshotId {
        let act = OperationContext::new("test", now());
        let done = self.view.commit(&self.workspaces, &main_workspace(), &Change::new("test"), &act, "commit");
        done.expect("commit").snapshot
    }

    /// The tree in stored form, which is kept as long as the process lives.
    pub(crate) fn captured(&self) -> Captured {
        let version = self.view.version();
        let (root, pin) = self.view.fork().freeze().hold().expect("stored");
        std::mem::forget(pin);
        Captured { version, root }
    }

    /// What is at a path; held once more.
    pub(crate) fn look(&self, path: &str) -> Option<Attributes> {
        let mut here = self.view.attributes(ROOT).expect("the root");
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.view.lookup(&self.caller, here.ino, name.as_bytes()) {
                Ok(found) => here = found,
                Err(error) if error.errno() == ENOENT => return None,
                Err(error) => panic!("{path}: {error}"),
            }
        }
        Some(here)
    }

    pub(crate) fn ino(&self, path: &str) -> Ino {
        self.look(path).unwrap_or_else(|| panic!("{path} is there")).ino
    }

    fn split<'a>(&self, path: &'a str) -> (Ino, &'a [u8]) {
        match path.rsplit_once('/') {
            Some((above, name)) => (self.ino(above), name.as_bytes()),
            None => (ROOT, path.as_bytes()),
        }
    }

    /// A file with these bytes.
    pub(crate) fn file(&self, path: &str, bytes: &[u8]) -> Ino {
        let (parent, name) = self.split(path);
        let made = self.view.create(&self.caller, parent, name, 0o644).expect("create");
        self.write(made.ino, 0, bytes);
        made.ino
    }

    pub(crate) fn directory(&self, path: &str) -> Ino {
        let (parent, name) = self.split(path);
        self.view.create_directory(&self.caller, parent, name, 0o755).expect("mkdir").ino
    }

    pub(crate) fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) {
        self.view.write(&self.caller, ino, offset, bytes).expect("write");
    }

    pub(crate) fn read(&self, ino: Ino) -> Vec<u8> {
        let size = self.view.attributes(ino).expect("attributes").size;
        self.view.read(ino, 0, size as usize).expect("read").to_vec()
    }

    pub(crate) fn read_path(&self, path: &str) -> Vec<u8> {
        self.read(self.ino(path))
    }

    pub(crate) fn unlink(&self, path: &str) -> amalgam_view::Result<()> {
        let (parent, name) = self.split(path);
        self.view.unlink(&self.caller, parent, name)
    }

    pub(crate) fn rmdir(&self, path: &str) -> amalgam_view::Result<()> {
        let (parent, name) = self.split(path);
        self.view.remove_directory(&self.caller, parent, name)
    }

    pub(crate) fn link(&self, ino: Ino, path: &str) -> Attributes {
        let (parent, name) = self.split(path);
        self.view.link(&self.caller, ino, parent, name).expect("link")
    }

    pub(crate) fn rename(&self, from: &str, to: &str, mode: RenameMode) -> amalgam_view::Result<()> {
        self.view.rename(&self.caller, self.split(from), self.split(to), mode)
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Attributes {
        self.view.attributes(ino).expect("attributes")
    }

    /// The names of a directory, without `.` and `..`.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        let listed = self.view.read_directory(&self.caller, self.ino(path), 0, |listed| {
            names.push(String::from_utf8_lossy(listed.name).into_owned());
            true
        });
        listed.expect("list");
        names.retain(|name| name != "." && name != "..");
        names
    }

    /// Every path with what it is: bytes of files, kinds of the rest.
    pub(crate) fn everything(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut open = vec![String::new()];
        while let Some(path) = open.pop() {
            for name in self.list(&path) {
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                let found = self.look(&below).expect("it was listed");
                match found.kind {
                    Kind::Directory => {
                        all.insert(below.clone(), b"directory".to_vec());
                        open.push(below);
                    }
                    Kind::File => {
                        all.insert(below, self.read(found.ino));
                    }
                    kind => {
                        all.insert(below, format!("{kind:?}").into_bytes());
                    }
                }
            }
        }
        all
    }
}

/// A file system of so many bytes, for tests that may mount; taken away with it.
pub(crate) struct Small(tempfile::TempDir);

impl Small {
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "amalgam-small"]).arg(directory.path());
        let mounted = mount.stderr(std::process::Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(self.0.path()).status().ok();
    }
}
