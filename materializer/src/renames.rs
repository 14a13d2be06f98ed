//! Files that were renamed: new on the disk with exactly the contents of one that is gone. Reads only new files that are as long as a
//! file that is gone, and writes nothing.

use std::collections::HashMap;
use std::os::fd::AsFd;

use amalgam_engine::object::{Node, Root};
use amalgam_engine::{Entry, Store, TreePath, entry_at};
use rustix::fs::FileType;

use crate::changes::Changes;
use crate::compare::{Likeness, compare};
use crate::error::Result;
use crate::host::HostDir;
use crate::progress::Progress;
use crate::stamp::Stamp;

/// With more deleted paths than this, renames are not looked for.
const DELETED_MAX: usize = 100_000;
/// How many deleted files of one length are compared with a new one.
const CANDIDATES_MAX: usize = 16;

/// A file that was renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Where it was.
    pub from: TreePath,
    /// Where it is.
    pub to: TreePath,
}

/// Files that are gone, by their length.
type Deleted = HashMap<u64, Vec<(TreePath, Entry)>>;

/// Pairs files that are gone with new files of the same contents, sorted by where they are. Empty files and what lies in `.git` are
/// passed over.
pub(crate) fn find_renames(
    store: &Store,
    host: &HostDir,
    base: &Root,
    changes: &Changes,
    mut added: Vec<(TreePath, Stamp)>,
    progress: &Progress,
) -> Result<Vec<Renamed>> {
    added.retain(|(path, stamp)| stamp.kind() == FileType::RegularFile && stamp.size > 0 && !path.is_in_git());
    if added.is_empty() || changes.deleted.len() > DELETED_MAX {
        return Ok(Vec::new());
    }
    let mut deleted = files_by_length(store, base, changes)?;
    added.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut renamed = Vec::new();
    for (path, stamp) in added {
        let Some(candidates) = deleted.get_mut(&stamp.size) else { continue };
        if let Some(at) = equal_one(store, host, &path, stamp, candidates, progress)? {
            let (from, _) = candidates.remove(at);
            renamed.push(Renamed { from, to: path });
        }
    }
    Ok(renamed)
}

fn files_by_length(store: &Store, base: &Root, changes: &Changes) -> Result<Deleted> {
    let mut deleted = Deleted::new();
    for path in changes.deleted.iter().filter(|path| !path.is_in_git()) {
        if changes.directories.binary_search(path).is_ok() {
            continue;
        }
        if let Some(entry) = entry_at(store, base, path)?
            && let Node::File { size: size @ 1.., .. } = entry.node
        {
            deleted.entry(size).or_default().push((path.clone(), entry));
        }
    }
    Ok(deleted)
}

/// The place of a candidate with the contents of a new file; one of the same name is tried first.
fn equal_one(
    store: &Store,
    host: &HostDir,
    path: &TreePath,
    stamp: Stamp,
    candidates: &[(TreePath, Entry)],
    progress: &Progress,
) -> Result<Option<usize>> {
    let Some((parent, name)) = path.split_last() else { return Ok(None) };
    let Ok(directory) = host.directory(&parent) else { return Ok(None) };
    let has_name = |at: &usize| candidates[*at].0.split_last().is_some_and(|(_, other)| other == name);
    let same = (0..candidates.len()).filter(has_name);
    let others = (0..candidates.len()).filter(|at| !has_name(at));
    for at in same.chain(others).take(CANDIDATES_MAX) {
        progress.check()?;
        let compared = compare(store, directory.as_fd(), &name, &candidates[at].1, stamp, progress)?;
        if matches!(compared.likeness, Likeness::Equal(_)) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
