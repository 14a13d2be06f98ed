//! Git as an oracle: trees as Git knows them, in a map, in a store, in a directory; and the program itself, kept apart from
//! whatever settings and repositories surround it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use amalgam_engine::{RootId, Store, WorkingTree};
use proptest::prelude::*;

use crate::model::{Raw, write_root};

/// What Git keeps of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// A file.
    Plain(Raw),
    /// A file that can be executed.
    Executable(Raw),
    /// A symlink and its target.
    Symlink(Raw),
}

impl File {
    /// A file with this text.
    pub fn text(text: &str) -> Self {
        Self::Plain(text.into())
    }
}

/// A tree: files by path.
pub type Files = BTreeMap<Vec<u8>, File>;

/// Files by name, as written in a test.
pub fn files<const N: usize>(list: [(&str, File); N]) -> Files {
    list.into_iter().map(|(path, file)| (path.as_bytes().to_vec(), file)).collect()
}

/// The tree in a store.
pub fn stored(store: &Store, files: &Files) -> RootId {
    let mut tree = WorkingTree::new(store);
    for (path, file) in files {
        if let Some(slash) = path.iter().rposition(|byte| *byte == b'/') {
            tree.create_directories(&path[..slash]).expect("directories");
        }
        match file {
            File::Plain(bytes) | File::Executable(bytes) => tree.write(path, &bytes.0).expect("write"),
            File::Symlink(target) => tree.symlink(path, &target.0).expect("symlink"),
        }
        if matches!(file, File::Executable(_)) {
            tree.set_mode(path, 0o755).expect("mode");
        }
    }
    write_root(&tree).expect("stored")
}

fn below(directory: &Path, path: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(path))
}

/// Writes the tree into an empty directory.
pub fn write_out(directory: &Path, files: &Files) {
    for (path, file) in files {
        let place = below(directory, path);
        fs::create_dir_all(place.parent().expect("a parent")).expect("directories");
        match file {
            File::Symlink(target) => symlink(OsStr::from_bytes(&target.0), &place).expect("symlink"),
            File::Plain(bytes) | File::Executable(bytes) => {
                fs::write(&place, &bytes.0).expect("write");
                let mode = if matches!(file, File::Executable(_)) { 0o755 } else { 0o644 };
                fs::set_permissions(&place, fs::Permissions::from_mode(mode)).expect("mode");
            }
        }
    }
}

/// Reads a directory back, with its empty directories apart.
pub fn read_back(directory: &Path) -> (Files, BTreeSet<Vec<u8>>) {
    let (mut files, mut empty) = (Files::new(), BTreeSet::new());
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let mut any = false;
        for entry in fs::read_dir(below(directory, &path)).expect("list") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_vec();
            if path.is_empty() && name == b".git" {
                continue;
            }
            any = true;
            let path = if path.is_empty() { name } else { [&path[..], &name].join(&b'/') };
            let metadata = entry.metadata().expect("metadata");
            if metadata.is_dir() {
                open.push(path);
                continue;
            }
            let file = if metadata.is_symlink() {
                File::Symlink(Raw(fs::read_link(entry.path()).expect("target").into_os_string().into_vec()))
            } else {
                let bytes = Raw(fs::read(entry.path()).expect("read"));
                if metadata.permissions().mode() & 0o100 == 0 { File::Plain(bytes) } else { File::Executable(bytes) }
            };
            files.insert(path, file);
        }
        if !any && !path.is_empty() {
            empty.insert(path);
        }
    }
    (files, empty)
}

/// Git in a directory, without the settings of a user or a machine and without a repository above.
pub fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    command
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("LC_ALL", "C")
        .env("GIT_CEILING_DIRECTORIES", directory.parent().expect("a parent"));
    command
}

/// Runs it with something to read; what it wrote, or what it complained of.
pub fn run(command: &mut Command, input: &[u8]) -> Result<Vec<u8>, String> {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("git is there");
    let mut stdin = child.stdin.take().expect("a pipe");
    let done = std::thread::scope(|scope| {
        // It may end before it has read everything.
        scope.spawn(move || stdin.write_all(input).ok());
        child.wait_with_output().expect("it ends")
    });
    if done.status.success() { Ok(done.stdout) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
}

/// A repository in this directory with both trees in it; returns their ids.
pub fn two_trees(directory: &Path, before: &Files, after: &Files) -> [String; 2] {
    run(git(directory).args(["init", "--quiet"]), b"").expect("init");
    [before, after].map(|files| {
        for entry in fs::read_dir(directory).expect("list") {
            let place = entry.expect("an entry");
            if place.file_name() == ".git" {
                continue;
            }
            let is_directory = place.file_type().expect("a kind").is_dir();
            if is_directory { fs::remove_dir_all(place.path()) } else { fs::remove_file(place.path()) }.expect("gone");
        }
        write_out(directory, files);
        run(git(directory).args(["add", "--all", "--force", "."]), b"").expect("add");
        let id = run(git(directory).arg("write-tree"), b"").expect("write-tree");
        String::from_utf8(id).expect("hex").trim().to_owned()
    })
}

/// The trees of the newest commits of the repository around these sources, newest first; none where there is no history.
pub fn own_history(commits: usize) -> Vec<Files> {
    let house = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let git = || {
        let mut command = git(house);
        command.env_remove("GIT_CEILING_DIRECTORIES");
        command
    };
    let count = commits.to_string();
    let Ok(ids) = run(git().args(["rev-list", "--first-parent", "-n", &count, "HEAD"]), b"") else { return Vec::new() };
    let ids = String::from_utf8(ids).expect("hex");
    ids.lines()
        .map(|id| {
            let listed = run(git().args(["ls-tree", "-r", "-z", "--full-tree", id]), b"").expect("ls-tree");
            let listed: Vec<(String, String, Vec<u8>)> =
                listed.split(|byte| *byte == 0).filter_map(listed_file).collect();
            let wanted: String = listed.iter().map(|(_, id, _)| format!("{id}\n")).collect();
            let blobs = run(git().args(["cat-file", "--batch"]), wanted.as_bytes()).expect("cat-file");
            let mut rest = &blobs[..];
            let blob_of = |(mode, _, path): (String, String, Vec<u8>)| {
                let blob = Raw(next_blob(&mut rest));
                let file = match mode.as_str() {
                    "100755" => File::Executable(blob),
                    "120000" => File::Symlink(blob),
                    _ => File::Plain(blob),
                };
                (path, file)
            };
            listed.into_iter().map(blob_of).collect()
        })
        .collect()
}

/// `mode type id<TAB>path`, for files.
fn listed_file(line: &[u8]) -> Option<(String, String, Vec<u8>)> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let mut words = std::str::from_utf8(&line[..tab]).ok()?.split(' ');
    let (mode, kind, id) = (words.next()?, words.next()?, words.next()?);
    (kind == "blob").then(|| (mode.to_owned(), id.to_owned(), line[tab + 1..].to_vec()))
}

/// `id type size<LF>bytes<LF>`.
fn next_blob(rest: &mut &[u8]) -> Vec<u8> {
    let end = rest.iter().position(|byte| *byte == b'\n').expect("a header");
    let header = std::str::from_utf8(&rest[..end]).expect("text");
    let size: usize = header.rsplit(' ').next().expect("a size").parse().expect("a number");
    let blob = rest[end + 1..end + 1 + size].to_vec();
    *rest = &rest[end + 1 + size + 1..];
    blob
}

/// Names of all sorts: some are directories of others, so not all fit into one tree.
const NAMES: [&[u8]; 20] = [
    b"a",
    b"b",
    b"a/b",
    b"d/a",
    b"d/b.rs",
    b"d/e/f.txt",
    b"e/a",
    b"e/b.rs",
    b"with space",
    b"d/two  spaces ",
    b" leading",
    b"tab\there",
    b"new\nline",
    b"quo\"te",
    b"back\\slash",
    b"\xff\xfe",
    b"\xc3\xa4\xe2\x82\xac/x",
    b"-dash",
    b"b b/c c",
    b"\x01\x7f",
];

/// Random trees of few files.
pub fn some_files() -> impl Strategy<Value = Files> {
    prop::collection::vec((0..NAMES.len(), some_file()), 0..10).prop_map(|list| {
        let mut files = Files::new();
        list.into_iter().for_each(|(name, file)| put(&mut files, NAMES[name], file));
        files
    })
}

/// A random file, with few different lines.
pub fn some_file() -> impl Strategy<Value = File> {
    let text =
        || (prop::collection::vec(0..8_usize, 0..40), any::<bool>()).prop_map(|(lines, cut)| some_text(&lines, cut));
    let binary = prop::collection::vec(any::<u8>(), 1..300).prop_map(|mut bytes| {
        bytes[0] = 0;
        Raw(bytes)
    });
    prop_oneof![
        6 => text().prop_map(File::Plain),
        2 => text().prop_map(File::Executable),
        2 => binary.prop_map(File::Plain),
        1 => Just(File::Plain(Raw(Vec::new()))),
        // They lead nowhere: Git does not make a directory of a symlink that leads to itself.
        2 => (0..NAMES.len()).prop_map(|name| File::Symlink(Raw([b"nowhere/", NAMES[name]].concat()))),
    ]
}

fn some_text(lines: &[usize], cut: bool) -> Raw {
    let known: [&[u8]; 8] =
        [b"fn f() {\n", b"}\n", b"\n", b"\tlet x = 1;\n", b"-- \n", b"\xff\xfe\r\n", b"+++ b/x\n", b"@@ -1 +1 @@\n"];
    let mut text: Vec<u8> = lines.iter().flat_map(|line| known[*line]).copied().collect();
    if cut {
        text.pop();
    }
    Raw(text)
}

/// Edits of a tree.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Another file under a name.
    Put(usize, File),
    /// One of the files removed.
    Remove(usize),
    /// One of the files moved.
    Move(usize, usize),
    /// A line put into one of the files.
    Line(usize, usize, usize),
    /// One of the files made executable, or no longer so.
    Toggle(usize),
}

/// A random edit.
pub fn some_edit() -> impl Strategy<Value = Edit> {
    let name = || 0..NAMES.len();
    prop_oneof![
        (name(), some_file()).prop_map(|(name, file)| Edit::Put(name, file)),
        (0..20_usize).prop_map(Edit::Remove),
        (0..20_usize, name()).prop_map(|(from, to)| Edit::Move(from, to)),
        (0..20_usize, 0..40_usize, 0..8_usize).prop_map(|(file, at, line)| Edit::Line(file, at, line)),
        (0..20_usize).prop_map(Edit::Toggle),
    ]
}

impl Edit {
    /// Does it.
    pub fn apply(&self, files: &mut Files) {
        let pick = |files: &Files, at: usize| files.keys().nth(at % files.len().max(1)).cloned();
        match self {
            Self::Put(name, file) => put(files, NAMES[*name], file.clone()),
            Self::Remove(at) => {
                pick(files, *at).map(|path| files.remove(&path));
            }
            Self::Move(at, to) => {
                if let Some(file) = pick(files, *at).and_then(|path| files.remove(&path)) {
                    put(files, NAMES[*to], file);
                }
            }
            Self::Line(at, place, line) => {
                let path = pick(files, *at);
                if let Some(File::Plain(bytes) | File::Executable(bytes)) = path.and_then(|path| files.get_mut(&path)) {
                    let mut lines: Vec<Vec<u8>> =
                        bytes.0.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                    let place = place % (lines.len() + 1);
                    lines.insert(place, some_text(&[*line], false).0);
                    *bytes = Raw(lines.concat());
                }
            }
            Self::Toggle(at) => {
                if let Some(path) = pick(files, *at) {
                    let toggled = match files[&path].clone() {
                        File::Plain(bytes) => File::Executable(bytes),
                        File::Executable(bytes) => File::Plain(bytes),
                        symlink => symlink,
                    };
                    files.insert(path, toggled);
                }
            }
        }
    }
}

/// Puts a file at a path; what was there, above it or below it gives way.
pub fn put(files: &mut Files, path: &[u8], file: File) {
    let is_below = |path: &[u8], above: &[u8]| path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"));
    files.retain(|other, _| !is_below(other, path) && !is_below(path, other));
    files.insert(path.to_vec(), file);
}
