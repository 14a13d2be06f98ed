//! Identifies the terms of a conflict: ours, base, theirs, a draft, or one of many sides.

use std::sync::Arc;

use amalgam_engine::object::{Conflict, Node, Settled};
use amalgam_engine::{Entry, EntryKind, Result, Store};
use amalgam_merge::{ConflictSide, ConflictVersions, MergeSettings, Rendered, render_conflict, side_label};

use crate::caption::Caption;
use crate::contents::read_whole;

/// Maximum size of a version that is rendered as text, in bytes.
pub(crate) const TEXT_BYTES_MAX: u64 = 16 << 20;
/// Maximum size of an edited file that is searched for markers, in bytes: several versions and the lines between them.
pub(crate) const EDITED_BYTES_MAX: u64 = 64 << 20;

/// The indices of the versions among the terms of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TermIndices {
    /// An edit that left markers.
    pub(crate) draft: Option<Draft>,
    pub(crate) ours: usize,
    pub(crate) base: usize,
    pub(crate) theirs: usize,
}

/// A draft, which is the first term. The terms after it are the conflict that it edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    /// The number of those terms that it has markers of: fewer than all if a later merge has added terms.
    pub(crate) terms: usize,
}

impl TermIndices {
    /// Returns the indices in a conflict with a draft of all its other terms.
    fn with_draft(count: usize) -> Self {
        Self { draft: Some(Draft { terms: count - 2 }), ours: 2, base: 3, theirs: count - 1 }
    }

    /// Returns the terms without a draft.
    pub(crate) fn terms(self, conflict: &Conflict) -> &[Option<Entry>] {
        &conflict.terms()[self.ours..]
    }
}

/// A term with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// `ours`, `base`, `theirs` or `draft`; `side-2`, `base-2` and so on for further terms.
    pub word: String,
    /// The version; `None` if it is absent.
    pub entry: Option<Entry>,
}

/// Returns all terms of a conflict, in order.
pub fn terms(store: &Store, conflict: &Conflict) -> Result<Vec<Term>> {
    let parts = term_indices(store, conflict)?;
    let terms = conflict.terms().iter().enumerate();
    Ok(terms.map(|(at, entry)| Term { word: word_of(parts, at), entry: entry.clone() }).collect())
}

fn word_of(parts: TermIndices, at: usize) -> String {
    match at.checked_sub(parts.ours) {
        None if at == 0 => "draft".to_owned(),
        None => "draft-base".to_owned(),
        Some(_) if at == parts.ours => "ours".to_owned(),
        Some(_) if at == parts.base => "base".to_owned(),
        Some(_) if at == parts.theirs => "theirs".to_owned(),
        Some(at) if at.is_multiple_of(2) => format!("side-{}", at / 2 + 1),
        Some(at) => format!("base-{}", at / 2 + 1),
    }
}

/// Returns a short description of the kind of conflict.
pub fn kind_word(conflict: &Conflict) -> &'static str {
    let kinds: Vec<_> = conflict.added().map(|entry| entry.map(Entry::kind)).collect();
    let all = |kind: EntryKind| kinds.iter().all(|found| *found == Some(kind));
    let is_added = conflict.removed().all(|entry| entry.is_none());
    match () {
        () if kinds.contains(&None) => "changed and removed",
        () if all(EntryKind::File) && is_added => "both added",
        () if all(EntryKind::File) => "contents",
        () if all(EntryKind::Directory) => "directories",
        () if all(EntryKind::Symlink) => "symlinks",
        () => "different kinds",
    }
}

/// Finds the versions among the terms.
pub(crate) fn term_indices(store: &Store, conflict: &Conflict) -> Result<TermIndices> {
    let terms = conflict.terms();
    let plain = TermIndices { draft: None, ours: 0, base: 1, theirs: terms.len() - 1 };
    let [Some(draft), first, _, second, ..] = terms else { return Ok(plain) };
    if first != second || !matches!(draft.node, Node::File { .. }) || terms.len() < 5 {
        return Ok(plain);
    }
    let Some(bytes) = read_whole(store, draft, EDITED_BYTES_MAX)? else { return Ok(plain) };
    if memchr::memmem::find(&bytes, b"[amalgam ").is_none() && memchr::memmem::find(&bytes, b"=======").is_none() {
        return Ok(plain);
    }
    let Some(texts) = Texts::read(store, &terms[2..])? else { return Ok(plain) };
    // Tries all terms first; a merge appends its terms after the existing ones.
    for count in (3..=terms.len() - 2).rev().step_by(2) {
        let versions = texts.versions(count, &[]);
        let marks = versions.marks();
        // A bare `=======` line does not identify its conflict. It counts only if the conflict has two sides, so that no earlier
        // form had fewer.
        let is_left = marks.is_in(&bytes) || (terms.len() == 5 && marks.regions_in(&bytes) > 0);
        if versions.is_text(&MergeSettings::default()) && is_left {
            return Ok(TermIndices { draft: Some(Draft { terms: count }), ..TermIndices::with_draft(terms.len()) });
        }
    }
    Ok(plain)
}

/// Renders a conflict of texts as one text with markers. Returns `None` for any other conflict.
pub fn render_text(store: &Store, conflict: &Conflict, caption: &Caption) -> Result<Option<Rendered>> {
    render_terms(store, conflict, term_indices(store, conflict)?, caption)
}

pub(crate) fn render_terms(
    store: &Store,
    conflict: &Conflict,
    parts: TermIndices,
    caption: &Caption,
) -> Result<Option<Rendered>> {
    render_first_terms(store, conflict, parts, parts.terms(conflict).len(), caption)
}

/// Renders the first `count` terms after a draft as one text with markers.
fn render_first_terms(
    store: &Store,
    conflict: &Conflict,
    parts: TermIndices,
    count: usize,
    caption: &Caption,
) -> Result<Option<Rendered>> {
    let Some(texts) = Texts::read(store, &parts.terms(conflict)[..count])? else { return Ok(None) };
    let name = |at: usize| caption.names.get(at / 2).map(String::as_str).unwrap_or_default();
    let labels: Vec<_> = (parts.ours..parts.ours + count)
        .step_by(2)
        .map(|at| {
            // While a term is the last one, it keeps the name of the last side.
            let word = if at + 1 == parts.ours + count { "theirs".to_owned() } else { word_of(parts, at) };
            side_label(name(at), &word)
        })
        .collect();
    Ok(render_conflict(&texts.versions(count, &labels), caption.strategy.as_ref(), &MergeSettings::default()))
}

/// Returns the rendering of a draft: the draft itself (inner `None`) or, if a later merge has added versions, the draft with
/// markers of all of them. Returns `None` if the edit overlaps with the changes of that merge.
pub(crate) fn render_draft(
    store: &Store,
    conflict: &Conflict,
    parts: TermIndices,
    caption: &Caption,
) -> Result<Option<Option<Vec<u8>>>> {
    let Some(draft) = parts.draft else { return Ok(None) };
    let all = parts.terms(conflict).len();
    if draft.terms == all {
        return Ok(Some(None));
    }
    let before = render_first_terms(store, conflict, parts, draft.terms, caption)?;
    let after = render_first_terms(store, conflict, parts, all, caption)?;
    let edited = conflict.terms()[0].as_ref().map(|entry| read_whole(store, entry, EDITED_BYTES_MAX)).transpose()?;
    let (Some(before), Some(after), Some(Some(edited))) = (before, after, edited) else { return Ok(None) };
    Ok(amalgam_merge::carry_edit(&before, &after, &edited).map(Some))
}

/// The versions of a conflict as bytes.
struct Texts {
    terms: Vec<Option<Vec<u8>>>,
}

impl Texts {
    /// Reads all terms. Returns `None` if one of them is not a file, too large or purged.
    fn read(store: &Store, terms: &[Option<Entry>]) -> Result<Option<Self>> {
        let mut read = Vec::with_capacity(terms.len());
        for term in terms {
            match term.as_ref().map(|entry| read_whole(store, entry, TEXT_BYTES_MAX)).transpose()? {
                Some(None) => return Ok(None),
                Some(Some(bytes)) => read.push(Some(bytes)),
                None => read.push(None),
            }
        }
        Ok(Some(Self { terms: read }))
    }

    fn versions(&self, count: usize, labels: &[String]) -> ConflictVersions<'_> {
        let bytes = |at: usize| self.terms[at].as_deref();
        let side =
            |at: usize| ConflictSide { label: labels.get(at / 2).cloned().unwrap_or_default(), bytes: bytes(at) };
        ConflictVersions {
            added: (0..count).step_by(2).map(side).collect(),
            removed: (1..count).step_by(2).map(bytes).collect(),
        }
    }
}

/// Returns the conflict without its draft.
pub fn without_draft(store: &Store, conflict: &Arc<Conflict>) -> Result<Arc<Conflict>> {
    let parts = term_indices(store, conflict)?;
    if parts.draft.is_none() {
        return Ok(Arc::clone(conflict));
    }
    match Conflict::settle(parts.terms(conflict).to_vec()) {
        Ok(Settled::Conflicted(rest)) => Ok(Arc::new(rest)),
        _ => Ok(Arc::clone(conflict)),
    }
}
