//! Finds renamed files: new files with exactly the contents of a deleted one. Reads only new files that have the length of a
//! deleted file, and writes nothing.

use std::collections::HashMap;
use std::os::fd::AsFd;

use amalgam_engine::object::{Node, Root};
use amalgam_engine::{Entry, Store, TreePath, entry_at};
use rustix::fs::FileType;

use crate::compare::{ContentMatch, compare};
use crate::error::Result;
use crate::host::HostDir;
use crate::progress::Progress;
use crate::stamp::Stamp;

/// With more deleted paths than this, renames are not searched for.
const DELETED_MAX: usize = 100_000;
/// Most deleted files of one length that are compared with a new one.
const CANDIDATES_MAX: usize = 16;

/// A file that was renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The old path.
    pub from: TreePath,
    /// The new path.
    pub to: TreePath,
}

/// The deleted paths of a directory, sorted.
#[derive(Clone, Copy)]
pub(crate) struct DeletedPaths<'a> {
    pub(crate) paths: &'a [TreePath],
    /// Those that are directories.
    pub(crate) directories: &'a [TreePath],
}

/// Deleted files by their length.
type FilesByLength = HashMap<u64, Vec<(TreePath, Entry)>>;

/// Pairs deleted files with new files of equal contents, sorted by new path. Skips empty files and everything in `.git`.
pub(crate) fn find_renames(
    store: &Store,
    host: &HostDir,
    base: &Root,
    deleted: DeletedPaths<'_>,
    mut added: Vec<(TreePath, Stamp)>,
    progress: &Progress,
) -> Result<Vec<Rename>> {
    added.retain(|(path, stamp)| stamp.kind() == FileType::RegularFile && stamp.size > 0 && !path.is_in_git());
    if added.is_empty() || deleted.paths.len() > DELETED_MAX {
        return Ok(Vec::new());
    }
    let mut by_length = files_by_length(store, base, deleted)?;
    added.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut renamed = Vec::new();
    for (path, stamp) in added {
        let Some(candidates) = by_length.get_mut(&stamp.size) else { continue };
        if let Some(at) = equal_one(store, host, &path, stamp, candidates, progress)? {
            let (from, _) = candidates.remove(at);
            renamed.push(Rename { from, to: path });
        }
    }
    Ok(renamed)
}

fn files_by_length(store: &Store, base: &Root, deleted: DeletedPaths<'_>) -> Result<FilesByLength> {
    let mut by_length = FilesByLength::new();
    for path in deleted.paths.iter().filter(|path| !path.is_in_git()) {
        if deleted.directories.binary_search(path).is_ok() {
            continue;
        }
        if let Some(entry) = entry_at(store, base, path)?
            && let Node::File { size: size @ 1.., .. } = entry.node
        {
            by_length.entry(size).or_default().push((path.clone(), entry));
        }
    }
    Ok(by_length)
}

/// Returns the index of a candidate with the contents of a new file; tries candidates of the same name first.
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
        if matches!(compared.outcome, ContentMatch::Equal(_)) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
