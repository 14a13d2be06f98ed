//! The face of a tree: the same with something ordinary in the place of each conflict.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_engine::conflict::{Exchange, PlacedConflict};
use amalgam_engine::content::write_content;
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::{Entry, EntryKind, Pin, Result, RootId, Store, Time, TreePath, WriteSession, entry_at};

use crate::parts::{Parts, parts, render_parts};

/// How conflicts are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// Texts with markers; anything else by the first version that is there.
    #[default]
    Markers,
    /// By ours, or not at all where ours is gone.
    Ours,
    /// By theirs.
    Theirs,
    /// By what both began with.
    Base,
}

impl Style {
    /// Reads its word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Markers, Self::Ours, Self::Theirs, Self::Base].into_iter().find(|style| style.word() == word)
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Markers => "markers",
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Base => "base",
        }
    }
}

/// A tree and its face, which both stay in the store while this lives.
pub struct Faced {
    /// The tree with its conflicts.
    pub tree: RootId,
    /// The tree without.
    pub face: RootId,
    pub(crate) shown: BTreeMap<TreePath, Shown>,
    _pins: [Pin; 2],
}

/// What stands for a conflict.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) conflict: Arc<Conflict>,
    /// What is in its place, as it is stored.
    pub(crate) entry: Option<Entry>,
    pub(crate) by: By,
}

/// What a conflict is shown by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A text with markers.
    Markers(Parts),
    /// One of the terms.
    Term(usize),
}

impl Faced {
    /// The face of a tree whose conflicts are these. A tree without any is its own face.
    pub fn new(store: &Store, tree: RootId, conflicts: &[PlacedConflict], style: Style) -> Result<Self> {
        let pin = store.hold(tree)?;
        if conflicts.is_empty() {
            return Ok(Self { tree, face: tree, shown: BTreeMap::new(), _pins: [pin, store.hold(tree)?] });
        }
        let mut exchange = Exchange::new(store, tree, &[])?;
        for placed in conflicts {
            let (entry, _) = stand_in(store, exchange.session(), &placed.conflict, style)?;
            exchange.set(&placed.path, entry.as_ref())?;
        }
        let (kept, face) = exchange.finish()?;
        let mut shown = BTreeMap::new();
        let faced = store.root(face)?;
        for PlacedConflict { path, conflict } in conflicts {
            let by = by(store, conflict, style)?;
            let entry = entry_at(store, &faced, path)?;
            shown.insert(path.clone(), Shown { conflict: Arc::clone(conflict), entry, by });
        }
        let held = store.hold(face)?;
        drop(kept);
        Ok(Self { tree, face, shown, _pins: [pin, held] })
    }

    /// The paths that are conflicts.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.shown.keys()
    }
}

/// What a conflict is shown as, for whoever shows one alone; contents that are made for it go into the session.
pub fn shown_as(store: &Store, session: &WriteSession, conflict: &Conflict, style: Style) -> Result<Option<Entry>> {
    stand_in(store, session, conflict, style).map(|(entry, _)| entry)
}

fn by(store: &Store, conflict: &Conflict, style: Style) -> Result<By> {
    let parts = parts(store, conflict)?;
    let first = || conflict.terms().iter().step_by(2).position(Option::is_some).map_or(0, |at| at * 2);
    Ok(match style {
        Style::Ours => By::Term(parts.ours),
        Style::Theirs => By::Term(parts.theirs),
        Style::Base => By::Term(parts.base),
        Style::Markers => match parts.draft {
            None if render_parts(store, conflict, parts)?.is_some() => By::Markers(parts),
            Some(draft) => By::Term(draft),
            None => By::Term(first()),
        },
    })
}

fn stand_in(store: &Store, session: &WriteSession, conflict: &Conflict, style: Style) -> Result<(Option<Entry>, By)> {
    let by = by(store, conflict, style)?;
    let parts = match by {
        By::Term(at) => return Ok((conflict.terms()[at].clone(), by)),
        By::Markers(parts) => parts,
    };
    let rendered = render_parts(store, conflict, parts)?.expect("it was a moment ago");
    let content = write_content(session, &&rendered.bytes[..])?;
    let node = Node::File { size: rendered.bytes.len() as u64, content };
    let ours = conflict.terms()[parts.ours].clone().expect("a text has ours");
    // The newest of them all: what depends on any version is to be made anew.
    let mtime = conflict.terms().iter().flatten().map(|entry| entry.mtime).max().unwrap_or(Time::EPOCH);
    debug_assert_eq!(ours.kind(), EntryKind::File);
    Ok((Some(Entry { node, mtime, ..ours }), by))
}
