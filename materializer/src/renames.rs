//! Finds renamed files: new files with exactly the contents of a deleted one. Reads only new files that have the length of a
//! deleted file, and writes nothing.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;

use amalgam_engine::object::{Node, Root};
use amalgam_engine::{Entry, Name, Store, TreePath, entry_at};
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
type FilesByLength = HashMap<u64, Candidates>;

/// The deleted files of one length, in the order of their paths.
#[derive(Default)]
struct Candidates {
    /// `None` for a file that was paired with a new one.
    files: Vec<Option<(TreePath, Entry)>>,
    /// The positions in `files`. Those of paired files are removed when a search meets them.
    order: VecDeque<usize>,
    /// The positions in `files` by the name of the file, like `order`.
    by_name: HashMap<Name, VecDeque<usize>>,
}

impl Candidates {
    fn push(&mut self, path: TreePath, entry: Entry) {
        let Some((_, name)) = path.split_last() else { return };
        let at = self.files.len();
        self.order.push_back(at);
        self.by_name.entry(name).or_default().push_back(at);
        self.files.push(Some((path, entry)));
    }

    /// Returns the positions of the files to compare with a new file: those of the same name first.
    fn nearest(&mut self, name: &Name) -> Vec<usize> {
        let mut found = match self.by_name.get_mut(name) {
            Some(queue) => first_left(queue, &self.files),
            None => Vec::new(),
        };
        let others = first_left(&mut self.order, &self.files);
        for at in others {
            if !found.contains(&at) {
                found.push(at);
            }
        }
        found.truncate(CANDIDATES_MAX);
        found
    }

    fn entry(&self, at: usize) -> Option<&Entry> {
        self.files[at].as_ref().map(|(_, entry)| entry)
    }

    /// Takes a file that was paired. Returns its path.
    fn take(&mut self, at: usize) -> Option<TreePath> {
        self.files[at].take().map(|(path, _)| path)
    }
}

/// Returns the first positions of a queue whose files are not paired, at most [`CANDIDATES_MAX`], and removes those of paired
/// files before them from the queue.
fn first_left(queue: &mut VecDeque<usize>, files: &[Option<(TreePath, Entry)>]) -> Vec<usize> {
    let mut found = Vec::new();
    while found.len() < CANDIDATES_MAX
        && let Some(&at) = queue.get(found.len())
    {
        #[cfg(test)]
        tests::count_visit();
        if files[at].is_some() {
            found.push(at);
        } else {
            queue.remove(found.len());
        }
    }
    found
}

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
        if let Some(at) = equal_one(store, host, &path, stamp, candidates, progress)?
            && let Some(from) = candidates.take(at)
        {
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
            by_length.entry(size).or_default().push(path.clone(), entry);
        }
    }
    Ok(by_length)
}

/// Returns the position of a candidate with the contents of a new file; tries candidates of the same name first.
fn equal_one(
    store: &Store,
    host: &HostDir,
    path: &TreePath,
    stamp: Stamp,
    candidates: &mut Candidates,
    progress: &Progress,
) -> Result<Option<usize>> {
    let Some((parent, name)) = path.split_last() else { return Ok(None) };
    let Ok(directory) = host.directory(&parent) else { return Ok(None) };
    for at in candidates.nearest(&name) {
        progress.check()?;
        let Some(entry) = candidates.entry(at) else { continue };
        let compared = compare(store, directory.as_fd(), &name, entry, stamp, progress)?;
        if matches!(compared.outcome, ContentMatch::Equal(_)) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use amalgam_engine::WorkingTree;

    use super::*;

    thread_local! {
        /// The number of candidates that the searches of a test met.
        static VISITED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count_visit() {
        VISITED.with(|visited| visited.set(visited.get() + 1));
    }

    /// Returns the path of a file, and its text of eight bytes.
    fn file(directory: &str, number: usize) -> (String, String) {
        (format!("{directory}/{:02}/f{number:05}", number % 50), format!("{number:08}"))
    }

    #[test]
    fn many_renamed_files_of_equal_length_are_paired_with_few_comparisons() {
        const FILES: usize = 20_000;
        let place = tempfile::tempdir().expect("a directory");
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        for number in 0..50 {
            tree.create_directories(format!("old/{number:02}").as_str()).expect("made");
            fs::create_dir_all(place.path().join(format!("new/{number:02}"))).expect("made");
        }
        let (mut deleted, mut expected) = (Vec::new(), Vec::new());
        // Deleted files that stay unpaired, and come first.
        let unpaired =
            (0..CANDIDATES_MAX / 2).map(|number| (format!("old/00/a{number}"), format!("unique{number:02}")));
        for (path, text) in unpaired.chain((0..FILES).map(|number| file("old", number))) {
            tree.write(path.as_str(), text.as_bytes()).expect("written");
            deleted.push(TreePath::new(&path).expect("a path"));
        }
        deleted.sort();
        let host = HostDir::open(place.path()).expect("it is there");
        let mut added = Vec::new();
        for number in 0..FILES {
            let (path, text) = file("new", number);
            fs::write(place.path().join(&path), text).expect("written");
            let to = TreePath::new(&path).expect("a path");
            let stamp = host.stamp(&to).expect("read").expect("it is there");
            let from = TreePath::new(file("old", number).0).expect("a path");
            expected.push(Rename { from, to: to.clone() });
            added.push((to, stamp));
        }
        expected.sort_by(|a, b| a.to.cmp(&b.to));
        let (root, _pin) = tree.freeze().hold().expect("stored");
        let base = store.root(root).expect("a root");
        let deleted = DeletedPaths { paths: &deleted, directories: &[] };
        let renamed = find_renames(&store, &host, &base, deleted, added, &Progress::default()).expect("searched");
        assert!(renamed == expected, "{} pairs", renamed.len());
        let visited = VISITED.with(Cell::get);
        assert!(visited < FILES * 3 * CANDIDATES_MAX, "{visited} candidates");
    }
}
