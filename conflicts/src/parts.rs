//! Which term of a conflict is what: ours, base, theirs, a draft, or one of many.

use std::sync::Arc;

use amalgam_engine::object::{Conflict, Node, Settled};
use amalgam_engine::{Entry, EntryKind, Result, Store};
use amalgam_merge::markers::{Parsed, parse};
use amalgam_merge::{Labels, Rendered, Setting, Sides, show};

use crate::read::read_whole;

/// The largest version that is shown as text.
pub(crate) const TEXT_BYTES_MAX: u64 = 16 << 20;
/// The largest file that is looked through for markers: three versions and the lines between them.
pub(crate) const EDITED_BYTES_MAX: u64 = 64 << 20;

/// Where the versions of a conflict are among its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// An edit that left markers.
    pub(crate) draft: Option<usize>,
    pub(crate) ours: usize,
    pub(crate) base: usize,
    pub(crate) theirs: usize,
}

/// A term with the word that people use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// `ours`, `base`, `theirs`, `draft`; or `side-2`, `base-2` where there are more.
    pub word: String,
    /// The version; nothing where it is absent.
    pub entry: Option<Entry>,
}

/// All terms of a conflict, in their order.
pub fn terms(store: &Store, conflict: &Conflict) -> Result<Vec<Term>> {
    let parts = parts(store, conflict)?;
    let count = conflict.terms().len();
    let word = |at: usize| match () {
        () if parts.draft == Some(at) => "draft".to_owned(),
        () if at == parts.ours => "ours".to_owned(),
        () if at == parts.base => "base".to_owned(),
        () if at == parts.theirs => "theirs".to_owned(),
        () if parts.draft.is_some() => "draft-base".to_owned(),
        () if at.is_multiple_of(2) => format!("side-{}", at / 2 + 1),
        () => format!("base-{}", at / 2 + 1),
    };
    let terms = (0..count).map(|at| Term { word: word(at), entry: conflict.terms()[at].clone() });
    Ok(terms.collect())
}

/// What sort of conflict it is, in a few words.
pub fn word(conflict: &Conflict) -> &'static str {
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

/// Finds out where the versions are.
pub(crate) fn parts(store: &Store, conflict: &Conflict) -> Result<Parts> {
    let terms = conflict.terms();
    let plain = Parts { draft: None, ours: 0, base: 1, theirs: terms.len() - 1 };
    let [Some(draft), first, _, second, _] = terms else { return Ok(plain) };
    if first != second || !matches!(draft.node, Node::File { .. }) {
        return Ok(plain);
    }
    let parts = Parts { draft: Some(0), ours: 2, base: 3, theirs: 4 };
    let Some(rendered) = render_parts(store, conflict, parts)? else { return Ok(plain) };
    let Some(bytes) = read_whole(store, draft, EDITED_BYTES_MAX)? else { return Ok(plain) };
    Ok(if matches!(parse(&bytes, &rendered), Parsed::StillHas(_)) { parts } else { plain })
}

/// A conflict of texts as one text with markers; nothing for any other.
pub fn render(store: &Store, conflict: &Conflict) -> Result<Option<Rendered>> {
    render_parts(store, conflict, parts(store, conflict)?)
}

pub(crate) fn render_parts(store: &Store, conflict: &Conflict, parts: Parts) -> Result<Option<Rendered>> {
    let terms = conflict.terms();
    if parts.draft.is_none() && terms.len() != 3 {
        return Ok(None);
    }
    let [ours, base, theirs] = [parts.ours, parts.base, parts.theirs].map(|at| terms[at].as_ref());
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(None) };
    let read = |entry: &Entry| read_whole(store, entry, TEXT_BYTES_MAX);
    let base = match base {
        None => None,
        Some(base) => match read(base)? {
            Some(bytes) => Some(bytes),
            None => return Ok(None),
        },
    };
    let (Some(ours), Some(theirs)) = (read(ours)?, read(theirs)?) else { return Ok(None) };
    let sides = Sides { base: base.as_deref(), ours: &ours, theirs: &theirs };
    Ok(show(&sides, &Setting { labels: Labels::default(), ..Setting::default() }))
}

/// The conflict without a draft of its resolution.
pub fn without_draft(store: &Store, conflict: &Arc<Conflict>) -> Result<Arc<Conflict>> {
    if parts(store, conflict)?.draft.is_none() {
        return Ok(Arc::clone(conflict));
    }
    match Conflict::settle(conflict.terms()[2..].to_vec()) {
        Ok(Settled::Conflicted(rest)) => Ok(Arc::new(rest)),
        _ => Ok(Arc::clone(conflict)),
    }
}
