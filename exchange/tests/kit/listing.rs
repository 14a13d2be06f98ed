//! Trees as lines of text, so that a tree of the store and a directory of the host can be compared.

#![allow(dead_code, reason = "each suite uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use amalgam_engine::{EntryKind, RootId, Store, TreePath, WorkingTree};

/// What is compared of each path.
pub type Listing = BTreeMap<String, String>;

/// The paths of a stored tree.
pub fn of_tree(store: &Store, root: RootId) -> Listing {
    let tree = WorkingTree::open_root(store, root).expect("the tree opens");
    let mut listing = Listing::new();
    let mut open = vec![TreePath::root()];
    while let Some(path) = open.pop() {
        let stat = tree.stat(&path).expect("stat").expect("it is there");
        let what = match stat.kind {
            EntryKind::File => {
                let mut hash = Fingerprint::default();
                let mut at = 0;
                while at < stat.size {
                    let bytes = tree.read_at(&path, at, 1 << 20).expect("read");
                    hash.add(&bytes);
                    at += bytes.len() as u64;
                }
                format!("file {} {:x}", stat.size, hash.0)
            }
            EntryKind::Symlink => format!("symlink {}", tree.read_link(&path).expect("a target").escape_ascii()),
            EntryKind::CharDevice | EntryKind::BlockDevice => {
                let device = tree.device(&path).expect("device").expect("a number");
                format!("{} {}:{}", stat.kind.word(), device.major, device.minor)
            }
            kind => kind.word().to_owned(),
        };
        let xattrs = tree.xattrs(&path).expect("attributes").into_iter();
        let xattrs = xattrs.map(|xattr| format!(" {}={}", xattr.name.escape_ascii(), xattr.value.escape_ascii()));
        let xattrs: String = xattrs.collect();
        let names = if stat.kind == EntryKind::Directory { Vec::new() } else { tree.names_of(&path).expect("names") };
        let line = line(&what, stat.mode, stat.mtime.0, names.len(), &xattrs);
        listing.insert(path.as_bytes().escape_ascii().to_string(), line);
        if stat.kind == EntryKind::Directory {
            for item in tree.list(&path).expect("list") {
                open.push(path.join(&item.expect("an entry").0));
            }
        }
    }
    listing
}

/// The paths of a directory of the host.
pub fn of_directory(top: &Path) -> Listing {
    let mut listing = Listing::new();
    let xattrs = host_xattrs(top);
    let mut open = vec![top.to_owned()];
    while let Some(path) = open.pop() {
        let stat = fs::symlink_metadata(&path).expect("stat");
        let kind = stat.file_type();
        let what = if kind.is_file() {
            let mut hash = Fingerprint::default();
            let mut file = fs::File::open(&path).expect("open");
            let mut bytes = vec![0; 1 << 20];
            loop {
                let read = file.read(&mut bytes).expect("read");
                if read == 0 {
                    break;
                }
                hash.add(&bytes[..read]);
            }
            format!("file {} {:x}", stat.len(), hash.0)
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).expect("a target");
            format!("symlink {}", target.as_os_str().as_bytes().escape_ascii())
        } else if kind.is_dir() {
            "a directory".to_owned()
        } else if kind.is_fifo() {
            "a FIFO".to_owned()
        } else {
            let word = if kind.is_char_device() { "a character device" } else { "a block device" };
            format!("{word} {}:{}", stat.rdev() >> 8, stat.rdev() & 0xff)
        };
        let names = if kind.is_dir() { 0 } else { stat.nlink() as usize };
        let mtime = stat.mtime() * 1_000_000_000 + stat.mtime_nsec();
        let mode = if kind.is_symlink() { 0o777 } else { stat.mode() & 0o7777 };
        let inside = path.strip_prefix(top).expect("below the top").as_os_str().as_bytes();
        let of_path = xattrs.get(inside).map_or("", String::as_str);
        listing.insert(inside.escape_ascii().to_string(), line(&what, mode, mtime, names, of_path));
        if kind.is_dir() {
            open.extend(fs::read_dir(&path).expect("list").map(|item| item.expect("an entry").path()));
        }
    }
    listing
}

fn line(what: &str, mode: u32, mtime: i64, names: usize, xattrs: &str) -> String {
    format!("{what} mode={mode:o} mtime={mtime} names={names}{xattrs}")
}

/// The attributes of all paths of a directory, as Python reads them.
fn host_xattrs(top: &Path) -> BTreeMap<Vec<u8>, String> {
    let script = r#"
import os, sys
top = os.fsencode(sys.argv[1])
names = {9: '\\t', 10: '\\n', 13: '\\r', 34: '\\"', 39: "\\'", 92: '\\\\'}
def escaped(value):
    return ''.join(names.get(c) or (chr(c) if 32 <= c < 127 else '\\x%02x' % c) for c in value)
def show(path):
    if os.path.islink(path): return
    line = ''.join(' %s=%s' % (n, escaped(os.getxattr(path, n))) for n in sorted(os.listxattr(path)))
    if line: print(os.path.relpath(path, top).hex(), line, sep='\t')
show(top)
for here, directories, files in os.walk(top):
    for name in directories + files: show(here + b'/' + name)
"#;
    let printed = String::from_utf8(run(Command::new("python3").arg("-c").arg(script).arg(top))).expect("text");
    let parse = |line: &str| {
        let (path, xattrs) = line.split_once('\t').expect("two fields");
        let digits = path.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
        let path: Vec<u8> = digits.map(byte).collect();
        (if path == b"." { Vec::new() } else { path }, xattrs.to_owned())
    };
    printed.lines().map(parse).collect()
}

/// A hash for comparisons: FNV-1a, 64 bits.
struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// Runs a program and returns what it printed.
pub fn run(command: &mut Command) -> Vec<u8> {
    let done = command.stdin(Stdio::null()).output().expect("the program runs");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// Says where two listings differ.
pub fn assert_same(ours: &Listing, theirs: &Listing) {
    let mut differences = Vec::new();
    for path in ours.keys().chain(theirs.keys()) {
        if ours.get(path) != theirs.get(path) {
            differences.push(format!("{path}:\n  ours   {:?}\n  theirs {:?}", ours.get(path), theirs.get(path)));
        }
    }
    differences.dedup();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
