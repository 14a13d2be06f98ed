//! What became of a face: from a tree without conflicts back to one with those that are left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use amalgam_engine::conflict::{Exchange, PlacedConflict};
use amalgam_engine::object::{Conflict, Content, Node, Root, Settled};
use amalgam_engine::{
    DiffOptions, Entry, EntryKind, Error, Result, RootId, Store, Time, TreePath, What, WorkingTree, diff_roots,
    entry_at,
};
use amalgam_merge::markers::{Parsed, parse};

use crate::caption::Caption;
use crate::face::{By, Faced, Shown};
use crate::parts::{EDITED_BYTES_MAX, Parts, render, render_parts};
use crate::read::read_whole;

/// A face that may be in what is read back.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The tree and its face.
    pub faced: &'a Faced,
    /// Whether it was just written out: then what is as its face has it is what this tree has, whatever the ones behind it say.
    pub is_written: bool,
    /// Which paths it is about; nothing for all.
    pub paths: Option<&'a [TreePath]>,
}

impl Known<'_> {
    fn covers(&self, path: &TreePath) -> bool {
        self.paths.is_none_or(|paths| paths.iter().any(|covered| path.below(covered).is_some()))
    }

    fn shown(&self, path: &TreePath) -> Option<&Shown> {
        self.faced.shown.get(path).filter(|_| self.covers(path))
    }
}

/// What was read back.
pub struct ReadBack {
    /// The tree with its conflicts.
    pub tree: WorkingTree,
    /// Its root.
    pub root: RootId,
    /// All conflicts that are left, by path.
    pub conflicts: Vec<PlacedConflict>,
    /// Those that are not there any more, by path.
    pub resolved: Vec<Resolved>,
    /// Those that were edited and have markers left.
    pub still: Vec<Still>,
    /// Those that were given another name.
    pub moved: Vec<Moved>,
}

/// A conflict that an edit resolved.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Where it was.
    pub path: TreePath,
    /// What it was.
    pub conflict: Arc<Conflict>,
    /// What is there now, if anything.
    pub entry: Option<Entry>,
}

/// A conflict that was edited and stays one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Still {
    /// Where.
    pub path: TreePath,
    /// How many regions still have markers; 0 for a version that was edited where the others are not in the file.
    pub regions: usize,
}

/// A conflict under another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where it was.
    pub from: TreePath,
    /// Where it is.
    pub to: TreePath,
}

/// What an edit means.
enum Meaning {
    Resolved,
    Conflict(Arc<Conflict>),
    Still(Arc<Conflict>, usize),
}

/// Reads a tree back that came of a face. The first of the faces is the newest; paths are looked for in all of them.
pub fn read_back(store: &Store, found: RootId, known: &[Known<'_>]) -> Result<ReadBack> {
    let paths: BTreeSet<&TreePath> = known.iter().flat_map(|known| known.faced.shown.keys()).collect();
    if paths.is_empty() {
        let tree = WorkingTree::open_root(store, found)?;
        let (conflicts, resolved, still, moved) = Default::default();
        return Ok(ReadBack { tree, root: found, conflicts, resolved, still, moved });
    }
    let trees: Vec<RootId> = known.iter().map(|known| known.faced.tree).collect();
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
    known: &'a [Known<'a>],
    root: Arc<Root>,
    exchange: Exchange,
    conflicts: BTreeMap<TreePath, Arc<Conflict>>,
    resolved: Vec<Resolved>,
    still: Vec<Still>,
    /// Conflicts in whose place nothing is.
    gone: Vec<(TreePath, Shown)>,
}

impl Reading<'_> {
    fn look(&mut self, path: &TreePath) -> Result<()> {
        let now = entry_at(self.store, &self.root, path)?;
        if let Some(Entry { node: Node::Conflict(conflict), .. }) = &now {
            // Nobody showed it; it is what it is.
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
                    let face = self.store.root(known.faced.face)?;
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
                    self.still.push(Still { path: path.clone(), regions });
                    self.keep(path, conflict)
                }
                Meaning::Resolved => {
                    let conflict = Arc::clone(&shown.conflict);
                    self.resolved.push(Resolved { path: path.clone(), conflict, entry: Some(now) });
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

    /// What an edit of something that stands for a conflict means.
    fn meaning(&self, path: &TreePath, shown: &Shown, now: &Entry) -> Result<Meaning> {
        let Some(face) = &shown.entry else { return Ok(Meaning::Resolved) };
        let conflict = &shown.conflict;
        let (at, parts) = match shown.by {
            By::Markers(parts) => (first_there(conflict), Some(parts)),
            By::Term(0) => (0, Some(crate::parts::parts(self.store, conflict)?).filter(|parts| parts.draft.is_some())),
            By::Term(at) => (at, None),
        };
        if now.node == face.node {
            // Other attributes on the same bytes are those of the version that is shown.
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

    fn edited_text(&self, path: &TreePath, shown: &Shown, parts: Parts, now: &Entry) -> Result<Meaning> {
        let conflict = &shown.conflict;
        let Some(bytes) = read_whole(self.store, now, EDITED_BYTES_MAX)? else { return Ok(Meaning::Resolved) };
        let terms = parts.terms(conflict).to_vec();
        let mut left = 0;
        // Rules may have changed since it was written, and the file its name: the same conflict may look different now.
        for way in [shown.caption.way.clone(), Caption::of(path).way, None] {
            let caption = Caption { names: Vec::new(), way };
            let Some(rendered) = render_parts(self.store, conflict, parts, &caption)? else { continue };
            match parse(&bytes, &rendered) {
                Parsed::Resolved => return Ok(Meaning::Resolved),
                // Nobody edited it, or an edit was taken back.
                Parsed::Untouched => return settled(conflict, terms),
                Parsed::StillHas(regions) => left = regions,
            }
        }
        let draft = [vec![Some(now.clone()), terms[1].clone()], terms].concat();
        Ok(match settled(conflict, draft)? {
            Meaning::Conflict(conflict) => Meaning::Still(conflict, left),
            other => other,
        })
    }

    /// A version that was shown as it is resolves the conflict when it is edited, unless markers of ours are left in it: then
    /// it was a draft once. Where another side removed the file, or where all sides could have been shown and one was asked for,
    /// an edit says nothing of the others: it changes the version.
    fn edited_version(&self, shown: &Shown, at: usize, now: &Entry) -> Result<Meaning> {
        let conflict = &shown.conflict;
        let Some(bytes) = read_whole(self.store, now, EDITED_BYTES_MAX)? else { return Ok(Meaning::Resolved) };
        let is_as_before = conflict.removed().flatten().any(|before| before.node == now.node);
        match marked_regions(&bytes) {
            // What is as it was before all sides cannot stand beside them.
            0 if is_as_before => Ok(Meaning::Resolved),
            0 if conflict.added().all(|entry| entry.is_some())
                && render(self.store, conflict, &shown.caption)?.is_none() =>
            {
                Ok(Meaning::Resolved)
            }
            regions => Ok(match replaced(conflict, at, now.clone())? {
                Meaning::Conflict(conflict) => Meaning::Still(conflict, regions),
                other => other,
            }),
        }
    }

    /// Conflicts whose file went are looked for among the files that came.
    fn find_moved(&mut self, found: RootId) -> Result<Vec<Moved>> {
        let mut gone = std::mem::take(&mut self.gone);
        let mut moved = Vec::new();
        for known in self.known {
            if gone.is_empty() {
                break;
            }
            for change in diff_roots(self.store, Some(known.faced.face), Some(found), DiffOptions::default())? {
                let change = change?;
                let (What::Added, Some(now)) = (&change.what, &change.after) else { continue };
                let place = gone.iter().position(|(_, shown)| is_moved(shown, now));
                if let Some(place) = place.filter(|_| !self.conflicts.contains_key(&change.path)) {
                    let (from, shown) = gone.remove(place);
                    self.keep(&change.path, Arc::clone(&shown.conflict))?;
                    moved.push(Moved { from, to: change.path });
                }
            }
        }
        let resolved = gone.into_iter().map(|(path, shown)| Resolved { path, conflict: shown.conflict, entry: None });
        self.resolved.extend(resolved);
        Ok(moved)
    }
}

/// The first version that is there: its attributes are those of a text with markers.
fn first_there(conflict: &Conflict) -> usize {
    conflict.terms().iter().step_by(2).position(Option::is_some).map_or(0, |at| at * 2)
}

/// A conflict as an entry.
fn entry_of(conflict: &Arc<Conflict>) -> Entry {
    Entry::new(Node::Conflict(Arc::clone(conflict)), 0, Time::EPOCH)
}

/// Times say nothing.
fn is_same(face: Option<&Entry>, now: Option<&Entry>) -> bool {
    match (face, now) {
        (None, None) => true,
        (Some(face), Some(now)) => face.equal_but_for_times(now),
        _ => false,
    }
}

/// Only what is unmistakable is found under another name.
fn is_moved(shown: &Shown, now: &Entry) -> bool {
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
        // The edit made a version what another one is. By the algebra of terms that would give the others up, unasked.
        Ok(Settled::Resolved(_)) => Ok(Meaning::Conflict(Arc::clone(before))),
        Err(why) => Err(Error::Invalid { what: "conflict", why: why.to_string() }),
    }
}

/// How many regions have marker lines of ours, whatever conflict they are of.
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
