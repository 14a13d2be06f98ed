//! Reads an edited rendered tree back: converts a tree without conflicts into one with the remaining conflicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use amalgam_engine::conflict::{Exchange, PlacedConflict};
use amalgam_engine::object::{Conflict, Content, Node, Root, Settled};
use amalgam_engine::{
    DiffOptions, Entry, EntryKind, Error, Result, RootId, Store, Time, TreePath, What, WorkingTree, diff_roots,
    entry_at,
};
use amalgam_merge::markers::{EditState, read_edit};

use crate::caption::Caption;
use crate::contents::read_whole;
use crate::render::{RenderedAs, RenderedConflict, RenderedTree};
use crate::terms::{EDITED_BYTES_MAX, TermIndices, render_terms, render_text};

/// A rendered tree that the tree to read back may derive from.
#[derive(Clone, Copy)]
pub struct KnownRendering<'a> {
    /// The tree with its conflicts, and its rendering.
    pub rendered: &'a RenderedTree,
    /// Whether it was just written out: then a path that equals it has the state of this tree, regardless of
    /// older renderings.
    pub is_written: bool,
    /// The paths that it covers; `None` for all.
    pub paths: Option<&'a [TreePath]>,
}

impl KnownRendering<'_> {
    fn covers(&self, path: &TreePath) -> bool {
        self.paths.is_none_or(|paths| paths.iter().any(|covered| path.below(covered).is_some()))
    }

    fn shown(&self, path: &TreePath) -> Option<&RenderedConflict> {
        self.rendered.shown.get(path).filter(|_| self.covers(path))
    }
}

/// The result of reading a rendered tree back.
pub struct ReadBack {
    /// The tree with its conflicts.
    pub tree: WorkingTree,
    /// Its root.
    pub root: RootId,
    /// All remaining conflicts, sorted by path.
    pub conflicts: Vec<PlacedConflict>,
    /// The conflicts that no longer exist, sorted by path.
    pub resolved: Vec<ResolvedConflict>,
    /// The conflicts that were edited and still have markers.
    pub still: Vec<StillConflicted>,
    /// The conflicts that were renamed.
    pub moved: Vec<MovedConflict>,
}

/// A conflict that an edit resolved.
#[derive(Clone, Debug)]
pub struct ResolvedConflict {
    /// The path of the conflict.
    pub path: TreePath,
    /// The conflict.
    pub conflict: Arc<Conflict>,
    /// The entry that replaced it, if there is one.
    pub entry: Option<Entry>,
}

/// A conflict that was edited and remains a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StillConflicted {
    /// The path.
    pub path: TreePath,
    /// The number of regions that still have markers; 0 for an edited version of a conflict whose other versions are not in the
    /// file.
    pub regions: usize,
}

/// A conflict that was renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedConflict {
    /// The old path.
    pub from: TreePath,
    /// The new path.
    pub to: TreePath,
}

/// The interpretation of an edit.
enum Meaning {
    Resolved,
    Conflict(Arc<Conflict>),
    Still(Arc<Conflict>, usize),
}

/// Reads back a tree that derives from a rendered tree. The first element of `known` is the newest rendering; paths are looked up in all of
/// them.
pub fn read_back(store: &Store, found: RootId, known: &[KnownRendering<'_>]) -> Result<ReadBack> {
    let paths: BTreeSet<&TreePath> = known.iter().flat_map(|known| known.rendered.shown.keys()).collect();
    if paths.is_empty() {
        let tree = WorkingTree::open_root(store, found)?;
        let (conflicts, resolved, still, moved) = Default::default();
        return Ok(ReadBack { tree, root: found, conflicts, resolved, still, moved });
    }
    let trees: Vec<RootId> = known.iter().map(|known| known.rendered.tree).collect();
    let mut reading = Reading {
        store,
        known,
        root: store.root(found)?,
        exchange: Exchange::new(store, found, &trees)?,
        conflicts: BTreeMap::new(),
        resolved: Vec::new(),
        still: Vec::new(),
        gone: Vec::new(),
    };
    for path in paths {
        reading.look(path)?;
    }
    let moved = reading.find_moved(found)?;
    let Reading { exchange, conflicts, mut resolved, still, .. } = reading;
    let (tree, root) = exchange.finish()?;
    resolved.sort_by(|a, b| a.path.cmp(&b.path));
    let conflicts = conflicts.into_iter().map(|(path, conflict)| PlacedConflict { path, conflict }).collect();
    Ok(ReadBack { tree, root, conflicts, resolved, still, moved })
}

struct Reading<'a> {
    store: &'a Store,
    known: &'a [KnownRendering<'a>],
    root: Arc<Root>,
    exchange: Exchange,
    conflicts: BTreeMap<TreePath, Arc<Conflict>>,
    resolved: Vec<ResolvedConflict>,
    still: Vec<StillConflicted>,
    /// Conflicts whose path no longer exists.
    gone: Vec<(TreePath, RenderedConflict)>,
}

impl Reading<'_> {
    fn look(&mut self, path: &TreePath) -> Result<()> {
        let now = entry_at(self.store, &self.root, path)?;
        if let Some(Entry { node: Node::Conflict(conflict), .. }) = &now {
            // The tree contains the conflict itself, not a rendering of it.
            self.conflicts.insert(path.clone(), Arc::clone(conflict));
            return Ok(());
        }
        let now = now.map(|entry| self.exchange.alone(&entry)).transpose()?;
        for known in self.known {
            match known.shown(path) {
                Some(shown) if is_same(shown.entry.as_ref(), now.as_ref()) => {
                    return self.keep(path, Arc::clone(&shown.conflict));
                }
                None if known.is_written && known.covers(path) => {
                    let face = self.store.root(known.rendered.rendered)?;
                    let written = entry_at(self.store, &face, path)?;
                    let written = written.map(|entry| self.exchange.alone(&entry)).transpose()?;
                    if is_same(written.as_ref(), now.as_ref()) {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        let shown = self.known.iter().find_map(|known| known.shown(path));
        let Some(shown) = shown else { return Ok(()) };
        match now {
            None => {
                self.gone.push((path.clone(), shown.clone()));
                Ok(())
            }
            Some(now) => match self.meaning(path, shown, &now)? {
                Meaning::Conflict(conflict) => self.keep(path, conflict),
                Meaning::Still(conflict, regions) => {
                    self.still.push(StillConflicted { path: path.clone(), regions });
                    self.keep(path, conflict)
                }
                Meaning::Resolved => {
                    let conflict = Arc::clone(&shown.conflict);
                    self.resolved.push(ResolvedConflict { path: path.clone(), conflict, entry: Some(now) });
                    Ok(())
                }
            },
        }
    }

    fn keep(&mut self, path: &TreePath, conflict: Arc<Conflict>) -> Result<()> {
        self.exchange.set(path, Some(&entry_of(&conflict)))?;
        self.conflicts.insert(path.clone(), conflict);
        Ok(())
    }

    /// Interprets an edit of the rendering of a conflict.
    fn meaning(&self, path: &TreePath, shown: &RenderedConflict, now: &Entry) -> Result<Meaning> {
        let Some(face) = &shown.entry else { return Ok(Meaning::Resolved) };
        let conflict = &shown.conflict;
        let (at, parts) = match shown.by {
            RenderedAs::Markers(parts) => (first_there(conflict), Some(parts)),
            RenderedAs::Term(0) => {
                (0, Some(crate::terms::term_indices(self.store, conflict)?).filter(|parts| parts.draft.is_some()))
            }
            RenderedAs::Term(at) => (at, None),
        };
        if now.node == face.node {
            // Changed attributes with the same bytes belong to the rendered version.
            let like = conflict.terms()[at].clone().expect("it is shown");
            let term = Entry { mode: now.mode, extra: now.extra.clone(), ..like };
            return replaced(conflict, at, term);
        }
        match (now.kind(), face.kind()) {
            (EntryKind::Directory, EntryKind::Directory) => replaced(conflict, at, now.clone()),
            (EntryKind::File, EntryKind::File) => match parts {
                Some(parts) => self.edited_text(path, shown, parts, now),
                None => self.edited_version(shown, at, now),
            },
            _ => Ok(Meaning::Resolved),
        }
    }

    fn edited_text(
        &self,
        path: &TreePath,
        shown: &RenderedConflict,
        parts: TermIndices,
        now: &Entry,
    ) -> Result<Meaning> {
        let conflict = &shown.conflict;
        let Some(bytes) = read_whole(self.store, now, EDITED_BYTES_MAX)? else { return Ok(Meaning::Resolved) };
        let terms = parts.terms(conflict).to_vec();
        let mut left = 0;
        // The rules or the name of the file may have changed since: the same conflict may be rendered differently now.
        for strategy in [shown.caption.strategy.clone(), Caption::of(path).strategy, None] {
            let caption = Caption { names: Vec::new(), strategy };
            let Some(rendered) = render_terms(self.store, conflict, parts, &caption)? else { continue };
            match read_edit(&bytes, &rendered) {
                EditState::Resolved => return Ok(Meaning::Resolved),
                // The file was not edited, or an edit was reverted.
                EditState::Untouched => return settled(conflict, terms),
                EditState::StillHas(regions) => left = regions,
            }
        }
        let draft = [vec![Some(now.clone()), terms[1].clone()], terms].concat();
        Ok(match settled(conflict, draft)? {
            Meaning::Conflict(conflict) => Meaning::Still(conflict, left),
            other => other,
        })
    }

    /// Interprets an edit of a version that was rendered without markers. It resolves the conflict, unless our markers are left
    /// in it, because then it was once a draft. If another side removed the file, or if all sides could have been rendered and a
    /// single one was requested, an edit decides nothing about the others: it changes the version.
    fn edited_version(&self, shown: &RenderedConflict, at: usize, now: &Entry) -> Result<Meaning> {
        let conflict = &shown.conflict;
        let Some(bytes) = read_whole(self.store, now, EDITED_BYTES_MAX)? else { return Ok(Meaning::Resolved) };
        let is_as_before = conflict.removed().flatten().any(|before| before.node == now.node);
        match marked_regions(&bytes) {
            // A version that equals the common base cannot be a side of the conflict.
            0 if is_as_before => Ok(Meaning::Resolved),
            0 if conflict.added().all(|entry| entry.is_some())
                && render_text(self.store, conflict, &shown.caption)?.is_none() =>
            {
                Ok(Meaning::Resolved)
            }
            regions => Ok(match replaced(conflict, at, now.clone())? {
                Meaning::Conflict(conflict) => Meaning::Still(conflict, regions),
                other => other,
            }),
        }
    }

    /// Searches for conflicts whose file is gone among the added files.
    fn find_moved(&mut self, found: RootId) -> Result<Vec<MovedConflict>> {
        let mut gone = std::mem::take(&mut self.gone);
        let mut moved = Vec::new();
        for known in self.known {
            if gone.is_empty() {
                break;
            }
            for change in diff_roots(self.store, Some(known.rendered.rendered), Some(found), DiffOptions::default())? {
                let change = change?;
                let (What::Added, Some(now)) = (&change.what, &change.after) else { continue };
                let place = gone.iter().position(|(_, shown)| is_moved(shown, now));
                if let Some(place) = place.filter(|_| !self.conflicts.contains_key(&change.path)) {
                    let (from, shown) = gone.remove(place);
                    self.keep(&change.path, Arc::clone(&shown.conflict))?;
                    moved.push(MovedConflict { from, to: change.path });
                }
            }
        }
        let resolved =
            gone.into_iter().map(|(path, shown)| ResolvedConflict { path, conflict: shown.conflict, entry: None });
        self.resolved.extend(resolved);
        Ok(moved)
    }
}

/// Returns the first existing version, whose attributes a text with markers has.
fn first_there(conflict: &Conflict) -> usize {
    conflict.terms().iter().step_by(2).position(Option::is_some).map_or(0, |at| at * 2)
}

/// Creates the entry of a conflict.
fn entry_of(conflict: &Arc<Conflict>) -> Entry {
    Entry::new(Node::Conflict(Arc::clone(conflict)), 0, Time::EPOCH)
}

/// Compares two entries without their times.
fn is_same(face: Option<&Entry>, now: Option<&Entry>) -> bool {
    match (face, now) {
        (None, None) => true,
        (Some(face), Some(now)) => face.equal_but_for_times(now),
        _ => false,
    }
}

/// Returns whether an entry is the rendering of a conflict under another name. Only distinctive contents match.
fn is_moved(shown: &RenderedConflict, now: &Entry) -> bool {
    let is_told_apart = |entry: &Entry| match entry.node {
        Node::File { content, .. } => !matches!(content, Content::Empty | Content::Hole),
        Node::Directory(contents) => contents.is_some(),
        _ => false,
    };
    shown.entry.as_ref().is_some_and(|face| is_told_apart(face) && is_same(Some(face), Some(now)))
}

fn replaced(conflict: &Arc<Conflict>, at: usize, term: Entry) -> Result<Meaning> {
    let mut terms = conflict.terms().to_vec();
    terms[at] = Some(term);
    settled(conflict, terms)
}

fn settled(before: &Arc<Conflict>, terms: Vec<Option<Entry>>) -> Result<Meaning> {
    match Conflict::settle(terms) {
        Ok(Settled::Conflicted(conflict)) => Ok(Meaning::Conflict(Arc::new(conflict))),
        // The edit made a version equal to another one. Cancelling the terms would drop the other versions without a decision.
        Ok(Settled::Resolved(_)) => Ok(Meaning::Conflict(Arc::clone(before))),
        Err(why) => Err(Error::Invalid { what: "conflict", why: why.to_string() }),
    }
}

/// Returns the number of regions with our marker lines, of any conflict.
fn marked_regions(bytes: &[u8]) -> usize {
    let mut regions = BTreeSet::new();
    for at in memchr::memmem::find_iter(bytes, b"[amalgam ") {
        let start = memchr::memrchr(b'\n', &bytes[..at]).map_or(0, |newline| newline + 1);
        let sign = bytes[start];
        let run = bytes[start..at].iter().take_while(|byte| **byte == sign).count();
        let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |length| at + length);
        let tag = &bytes[at..end];
        if b"<|=>".contains(&sign) && run >= 7 && tag.ends_with(b"]") | tag.ends_with(b"]\r") {
            regions.insert(tag.to_vec());
        }
    }
    regions.len()
}
