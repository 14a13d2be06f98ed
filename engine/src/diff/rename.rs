//! Exact renames: pairs of a removed and an added entry with equal contents.

use std::collections::HashMap;
use std::hash::Hash;

use bytes::Bytes;

use super::{Change, Diff, DiffOptions, GIT, MetadataChange, What, contents};
use crate::directory;
use crate::error::Result;
use crate::id::RootId;
use crate::limit::PathCount;
use crate::name::TreePath;
use crate::object::{Content, Entry, Node};
use crate::store::Store;

/// Compares two trees and finds exact renames. The result is sorted by path. A directory that moved as a whole is one change and
/// is not read. Holds all changes in memory.
pub fn diff_with_renames(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    options: DiffOptions,
) -> Result<Vec<Change>> {
    find(store, before, after, options, Kinds::OneChange)
}

/// How to report a name that was a directory and is now another kind of entry, or the other way round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// One change of kind.
    OneChange,
    /// A removal and an addition, either of which may be part of a rename.
    Apart,
}

/// Compares two trees and finds exact renames. `kinds` selects how changes between directories and other kinds are reported.
pub(crate) fn find(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    options: DiffOptions,
    kinds: Kinds,
) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut removed = Vec::new();
    let mut added = Vec::new();
    let mut count = store.held_path_count();
    for change in Diff::new(store, before, after, options, false)? {
        let change = change?;
        count.add(1)?;
        let is_directory = |entry: &Entry| matches!(entry.node, Node::Directory(_));
        match (change.what.clone(), change.before.clone(), change.after.clone()) {
            // The entries of the directory are already listed separately, so only the other entry can have a partner.
            (What::KindChanged, Some(before), Some(after))
                if kinds == Kinds::Apart && is_directory(&before) != is_directory(&after) =>
            {
                let (path, was_directory) = (change.path, is_directory(&before));
                let (was, is) = (PathEntry { path: path.clone(), entry: before }, PathEntry { path, entry: after });
                if was_directory {
                    changes.push(one_sided(What::Removed, was));
                    added.push(is);
                } else {
                    removed.push(was);
                    changes.push(one_sided(What::Added, is));
                }
            }
            (What::Removed, Some(entry), _) => removed.push(PathEntry { path: change.path, entry }),
            (What::Added, _, Some(entry)) => added.push(PathEntry { path: change.path, entry }),
            _ => changes.push(change),
        }
    }
    let mut finder = Finder { options, changes };
    let (removed, added) = finder.whole_directories(removed, added);
    let removed = expand_all(store, removed, options, &mut count)?;
    finder.match_below(store, removed, added, &mut count)?;
    finder.changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(finder.changes)
}

#[derive(Clone)]
struct PathEntry {
    path: TreePath,
    entry: Entry,
}

/// The contents that two entries must share to be a rename.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Same {
    Directory([u8; 32]),
    File(Content, u64),
    Symlink(Bytes),
}

fn same(entry: &Entry, options: DiffOptions) -> Option<Same> {
    match &entry.node {
        // A moved directory is not read: differences in times, if requested, must show in its top hash.
        Node::Directory(Some(contents)) if options.times => Some(Same::Directory(*contents.id.as_bytes())),
        Node::Directory(Some(contents)) => Some(Same::Directory(*contents.bare.as_bytes())),
        Node::File { size: 1.., content } => Some(Same::File(*content, size_of(entry))),
        Node::Symlink(target) => Some(Same::Symlink(target.clone())),
        _ => None,
    }
}

fn size_of(entry: &Entry) -> u64 {
    match entry.node {
        Node::File { size, .. } => size,
        _ => 0,
    }
}

/// Removed entries, sorted by path and indexed by contents. A partner with the same file name is preferred.
struct Pool {
    options: DiffOptions,
    places: Vec<Option<PathEntry>>,
    spans: Vec<Span>,
    by_contents: HashMap<Same, Vec<usize>>,
}

/// The position of an entry in the pool relative to its directory.
struct Span {
    /// The directory in the pool that contains the entry.
    parent: Option<usize>,
    /// The index of the first entry after it that is not below it.
    end: usize,
    /// Whether no entry below it has been taken separately.
    whole: bool,
}

impl Pool {
    fn new(places: Vec<PathEntry>, options: DiffOptions) -> Self {
        let mut by_contents: HashMap<Same, Vec<usize>> = HashMap::new();
        let mut spans: Vec<Span> = Vec::with_capacity(places.len());
        let mut open: Vec<usize> = Vec::new();
        for (index, place) in places.iter().enumerate() {
            while let Some(last) = open.pop_if(|last| place.path.below(&places[*last].path).is_none()) {
                spans[last].end = index;
            }
            spans.push(Span { parent: open.last().copied(), end: places.len(), whole: true });
            open.push(index);
            if let Some(key) = same(&place.entry, options) {
                by_contents.entry(key).or_default().push(index);
            }
        }
        Self { options, places: places.into_iter().map(Some).collect(), spans, by_contents }
    }

    /// Removes the partner of an added entry from the pool, with everything below it, and returns it.
    fn take(&mut self, place: &PathEntry) -> Option<PathEntry> {
        let candidates = self.by_contents.get(&same(&place.entry, self.options)?)?;
        let name = place.path.split_last().map(|(_, name)| name);
        let left =
            || candidates.iter().copied().filter(|index| self.places[*index].is_some() && self.spans[*index].whole);
        let same_name = left().find(|index| {
            let path = self.places[*index].as_ref().map(|place| &place.path);
            path.and_then(TreePath::split_last).map(|(_, name)| name) == name
        });
        let index = same_name.or_else(|| left().next())?;
        let taken = self.places[index].take()?;
        self.places[index + 1..self.spans[index].end].fill(None);
        let mut above = self.spans[index].parent;
        while let Some(parent) = above {
            self.spans[parent].whole = false;
            above = self.spans[parent].parent;
        }
        Some(taken)
    }
}

struct Finder {
    options: DiffOptions,
    changes: Vec<Change>,
}

impl Finder {
    /// Matches directories that moved as a whole, before any directory is read.
    fn whole_directories(
        &mut self,
        removed: Vec<PathEntry>,
        added: Vec<PathEntry>,
    ) -> (Vec<PathEntry>, Vec<PathEntry>) {
        let mut pool = Pool::new(removed, self.options);
        let mut rest = Vec::new();
        for place in added {
            let partner = match place.entry.node {
                Node::Directory(_) => pool.take(&place),
                _ => None,
            };
            match partner {
                Some(from) => self.renamed(from, place),
                None => rest.push(place),
            }
        }
        (pool.places.into_iter().flatten().collect(), rest)
    }

    /// Matches all other entries, added directories before their contents.
    fn match_below(
        &mut self,
        store: &Store,
        removed: Vec<PathEntry>,
        mut added: Vec<PathEntry>,
        count: &mut PathCount,
    ) -> Result<()> {
        let mut pool = Pool::new(removed, self.options);
        let mut files = Vec::new();
        added.reverse();
        while let Some(place) = added.pop() {
            if !matches!(place.entry.node, Node::Directory(_)) {
                files.push(place);
            } else if let Some(from) = pool.take(&place) {
                self.renamed(from, place);
            } else {
                let mut below = Vec::new();
                expand(store, &place, self.options, &mut below, count)?;
                self.changes.push(one_sided(What::Added, place));
                added.extend(below.into_iter().rev());
            }
        }
        for place in files {
            match pool.take(&place) {
                Some(from) => self.renamed(from, place),
                None => self.changes.push(one_sided(What::Added, place)),
            }
        }
        self.changes.extend(pool.places.into_iter().flatten().map(|place| one_sided(What::Removed, place)));
        Ok(())
    }

    fn renamed(&mut self, from: PathEntry, to: PathEntry) {
        let metadata = MetadataChange::between(&from.entry, &to.entry, self.options.times);
        let what = What::Renamed { from: from.path };
        let (before, after) = (Some(from.entry), Some(to.entry));
        self.changes.push(Change { path: to.path, what, metadata, before, after });
    }
}

fn one_sided(what: What, place: PathEntry) -> Change {
    let (before, after) = match what {
        What::Removed => (Some(place.entry), None),
        _ => (None, Some(place.entry)),
    };
    Change { path: place.path, what, metadata: MetadataChange::default(), before, after }
}

/// Appends the direct children of a directory. Other kinds of entries have none.
fn expand(
    store: &Store,
    place: &PathEntry,
    options: DiffOptions,
    into: &mut Vec<PathEntry>,
    count: &mut PathCount,
) -> Result<()> {
    for item in directory::list(store, contents(&place.entry))? {
        let item = item?;
        if options.without_git && item.name.as_bytes() == GIT {
            continue;
        }
        count.add(1)?;
        into.push(PathEntry { path: place.path.join(&item.name), entry: item.entry });
    }
    Ok(())
}

/// Returns the entries and everything below them, sorted by path.
fn expand_all(
    store: &Store,
    mut places: Vec<PathEntry>,
    options: DiffOptions,
    count: &mut PathCount,
) -> Result<Vec<PathEntry>> {
    let mut all = Vec::new();
    places.reverse();
    while let Some(place) = places.pop() {
        let mut below = Vec::new();
        expand(store, &place, options, &mut below, count)?;
        all.push(place);
        places.extend(below.into_iter().rev());
    }
    Ok(all)
}
