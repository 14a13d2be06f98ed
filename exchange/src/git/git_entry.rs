//! Entries of stored trees as git represents them, for exports and comparisons.

use amalgam_engine::object::{Content, DirectoryRef, Entry, Node};
use amalgam_engine::{Name, Store, TreePath};

use super::keys::{GITLINK_XATTR, GITMODE_XATTR};
use super::objects::Oid;
use crate::error::Result;
use crate::report::Report;
use crate::tar::NOTE_CONFLICT;

const NOTE_GIT: &str = "`.git` inside the tree was left out";
const NOTE_SPECIAL: &str = "devices, FIFOs and sockets were left out: git has none";
const NOTE_EMPTY: &str = "empty directories were left out: git has none";
const NOTE_XATTRS: &str = "extended attributes were left out: git has none";
const NOTE_OWNER: &str = "owners were left out: git has none";
const NOTE_MODE: &str = "permissions other than 644 and 755 became one of them";
const NOTE_LINKS: &str = "hard links became separate files";

/// An entry as git represents it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GitEntry {
    File {
        is_executable: bool,
        size: u64,
        content: Content,
    },
    Symlink(bytes::Bytes),
    /// A symlink that the tree has as a file.
    OddSymlink {
        size: u64,
        content: Content,
    },
    Gitlink(Oid),
    Directory(Option<DirectoryRef>),
}

/// Returns the contents of the root directory.
pub(super) fn contents(directory: &Entry) -> Option<DirectoryRef> {
    match directory.node {
        Node::Directory(contents) => contents,
        _ => unreachable!("a root is a directory"),
    }
}

/// Returns an entry as git represents it; `None`, with a note, if it cannot.
pub(super) fn git_entry(
    store: &Store,
    path: &TreePath,
    name: &Name,
    entry: &Entry,
    notes: &mut Report,
) -> Result<Option<GitEntry>> {
    let mut note = |why| notes.note(why, path.as_bytes());
    if name.as_bytes().eq_ignore_ascii_case(b".git") {
        note(NOTE_GIT);
        return Ok(None);
    }
    let xattrs = store.xattrs(entry.xattrs())?;
    let ours = |key: &str| xattrs.iter().find(|xattr| xattr.name == key.as_bytes());
    if xattrs.iter().any(|xattr| xattr.name != GITLINK_XATTR.as_bytes() && xattr.name != GITMODE_XATTR.as_bytes()) {
        note(NOTE_XATTRS);
    }
    if entry.owner().is_some() {
        note(NOTE_OWNER);
    }
    if entry.link().is_some() {
        note(NOTE_LINKS);
    }
    Ok(match &entry.node {
        Node::File { size, content } => {
            if !matches!(entry.mode, 0o644 | 0o755) {
                note(NOTE_MODE);
            }
            let (size, content) = (*size, *content);
            match ours(GITMODE_XATTR) {
                Some(_) => Some(GitEntry::OddSymlink { size, content }),
                None => Some(GitEntry::File { is_executable: entry.mode & 0o100 != 0, size, content }),
            }
        }
        Node::Symlink(target) => Some(GitEntry::Symlink(target.clone())),
        Node::Directory(None) => match ours(GITLINK_XATTR).and_then(|xattr| Oid::from_hex(&xattr.value)) {
            Some(oid) => Some(GitEntry::Gitlink(oid)),
            None => {
                note(NOTE_EMPTY);
                None
            }
        },
        Node::Directory(contents) => Some(GitEntry::Directory(*contents)),
        Node::Conflict(_) => {
            note(NOTE_CONFLICT);
            None
        }
        Node::Fifo | Node::Socket | Node::CharDevice(_) | Node::BlockDevice(_) => {
            note(NOTE_SPECIAL);
            None
        }
    })
}
