//! Renders a tree: replaces each conflict by an ordinary entry.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_engine::conflict::{Exchange, PlacedConflict};
use amalgam_engine::content::write_content;
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::{Entry, EntryKind, Pin, Result, RootId, Store, Time, TreePath, WriteSession, entry_at};

use crate::caption::{Caption, Captions, by_built_in_rules};
use crate::terms::{TermIndices, render_draft, render_terms, term_indices};

/// The style in which conflicts are rendered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// Texts with conflict markers; other conflicts as the first existing version.
    #[default]
    Markers,
    /// Our version, or no entry if ours removed it.
    Ours,
    /// Their version, or no entry if theirs removed it.
    Theirs,
    /// The version of the merge base.
    Base,
}

impl Style {
    /// Parses the name of a style.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Markers, Self::Ours, Self::Theirs, Self::Base].into_iter().find(|style| style.word() == word)
    }

    /// Returns the name of the style.
    pub fn word(self) -> &'static str {
        match self {
            Self::Markers => "markers",
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Base => "base",
        }
    }
}

/// A tree and its rendering, both pinned in the store while this value exists.
pub struct RenderedTree {
    /// The tree with its conflicts.
    pub tree: RootId,
    /// The tree with each conflict replaced by an ordinary entry.
    pub rendered: RootId,
    pub(crate) shown: BTreeMap<TreePath, RenderedConflict>,
    _pins: [Pin; 2],
}

/// The rendering of one conflict.
#[derive(Clone, Debug)]
pub(crate) struct RenderedConflict {
    pub(crate) conflict: Arc<Conflict>,
    /// The entry that replaces it in the rendered tree, as stored.
    pub(crate) entry: Option<Entry>,
    pub(crate) by: RenderedAs,
    pub(crate) caption: Caption,
}

/// The kind of rendering of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenderedAs {
    /// A text with markers for all terms except a draft.
    Markers(TermIndices),
    /// One of the terms.
    Term(usize),
}

impl RenderedTree {
    /// Renders a tree with these conflicts, by the built-in rules and without names. A tree without conflicts stays as it is.
    pub fn new(store: &Store, tree: RootId, conflicts: &[PlacedConflict], style: Style) -> Result<Self> {
        Self::captioned(store, tree, conflicts, style, &by_built_in_rules)
    }

    /// Renders a tree with these conflicts and captions.
    pub fn captioned(
        store: &Store,
        tree: RootId,
        conflicts: &[PlacedConflict],
        style: Style,
        captions: Captions<'_>,
    ) -> Result<Self> {
        let pin = store.hold(tree)?;
        if conflicts.is_empty() {
            return Ok(Self { tree, rendered: tree, shown: BTreeMap::new(), _pins: [pin, store.hold(tree)?] });
        }
        let mut exchange = Exchange::new(store, tree, &[])?;
        let mut ways = Vec::with_capacity(conflicts.len());
        for placed in conflicts {
            let caption = captions(&placed.path, &placed.conflict);
            let (entry, by) = render_with(store, exchange.session(), &placed.conflict, style, &caption)?;
            exchange.set(&placed.path, entry.as_ref())?;
            ways.push((by, caption));
        }
        let (kept, rendered) = exchange.finish()?;
        let mut shown = BTreeMap::new();
        let root = store.root(rendered)?;
        for (PlacedConflict { path, conflict }, (by, caption)) in conflicts.iter().zip(ways) {
            let entry = entry_at(store, &root, path)?;
            shown.insert(path.clone(), RenderedConflict { conflict: Arc::clone(conflict), entry, by, caption });
        }
        let held = store.hold(rendered)?;
        drop(kept);
        Ok(Self { tree, rendered, shown, _pins: [pin, held] })
    }

    /// Returns the paths of the conflicts.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.shown.keys()
    }
}

/// Renders a single conflict. New contents are put into the session.
pub fn render_entry(
    store: &Store,
    session: &WriteSession,
    conflict: &Conflict,
    style: Style,
    caption: &Caption,
) -> Result<Option<Entry>> {
    render_with(store, session, conflict, style, caption).map(|(entry, _)| entry)
}

fn render_with(
    store: &Store,
    session: &WriteSession,
    conflict: &Conflict,
    style: Style,
    caption: &Caption,
) -> Result<(Option<Entry>, RenderedAs)> {
    let parts = term_indices(store, conflict)?;
    let term = |at: usize| Ok((conflict.terms()[at].clone(), RenderedAs::Term(at)));
    match style {
        Style::Ours => return term(parts.ours),
        Style::Theirs => return term(parts.theirs),
        Style::Base => return term(parts.base),
        Style::Markers => {}
    }
    let (bytes, parts) = match render_draft(store, conflict, parts, caption)? {
        Some(None) => return term(0),
        Some(Some(bytes)) => (bytes, parts),
        None => {
            let count = conflict.terms().len();
            let all = TermIndices { draft: None, ours: 0, base: 1, theirs: count - 1 };
            match render_terms(store, conflict, all, caption)? {
                Some(rendered) => (rendered.bytes, all),
                None => {
                    return term(conflict.terms().iter().step_by(2).position(Option::is_some).map_or(0, |at| at * 2));
                }
            }
        }
    };
    let content = write_content(session, &&bytes[..])?;
    let node = Node::File { size: bytes.len() as u64, content };
    let like = conflict.added().flatten().next().cloned().expect("a text has a side that is there");
    // Uses the newest time of all versions, so that build tools rebuild anything that depends on any version.
    let mtime = conflict.terms().iter().flatten().map(|entry| entry.mtime).max().unwrap_or(Time::EPOCH);
    debug_assert_eq!(like.kind(), EntryKind::File);
    Ok((Some(Entry { node, mtime, ..like }), RenderedAs::Markers(parts)))
}
