//! Resolves a conflict by choosing one version.

use amalgam_engine::content::write_content;
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::{Entry, EntryKind, Store, Time, WriteSession};
use amalgam_merge::{MergeSettings, MergeStrategy, Outcome, Sides, merge};

use crate::contents::read_whole;
use crate::terms::{TEXT_BYTES_MAX, term_indices};

/// The version to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Our version.
    Ours,
    /// Their version.
    Theirs,
    /// The version of the merge base.
    Base,
    /// The lines of all sides.
    Union,
    /// The term with this index, from 0.
    Term(usize),
}

/// The reason why a conflict was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum NotResolved {
    /// The union of lines needs texts on all sides.
    #[error("the lines of all sides can be kept only where all are texts")]
    NoText,
    /// The term does not exist.
    #[error("the conflict has {count} versions")]
    NoTerm {
        /// The number of terms.
        count: usize,
    },
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] amalgam_engine::Error),
}

/// Returns the resolution of a conflict by a choice: an entry, or `None` to remove it. A file gets the time `now`.
pub fn resolution_of(
    store: &Store,
    session: &WriteSession,
    conflict: &Conflict,
    choice: Choice,
    now: Time,
) -> Result<Option<Entry>, NotResolved> {
    let parts = term_indices(store, conflict)?;
    let terms = conflict.terms();
    let at = match choice {
        Choice::Ours => parts.ours,
        Choice::Theirs => parts.theirs,
        Choice::Base => parts.base,
        Choice::Term(at) if at < terms.len() => at,
        Choice::Term(_) => return Err(NotResolved::NoTerm { count: terms.len() }),
        Choice::Union => {
            let Some(bytes) = union(store, parts.terms(conflict))? else { return Err(NotResolved::NoText) };
            return Ok(Some(resolution_file(session, conflict, &bytes, now)?));
        }
    };
    // A directory keeps its times: nothing in it is written.
    let timed = |entry: &Entry| match entry.kind() {
        EntryKind::Directory => entry.clone(),
        _ => Entry { mtime: now, ..entry.clone() },
    };
    Ok(terms[at].as_ref().map(timed))
}

/// Creates a resolution with these bytes and the attributes of the first version that is a file.
pub fn resolution_file(
    session: &WriteSession,
    conflict: &Conflict,
    bytes: &[u8],
    now: Time,
) -> Result<Entry, amalgam_engine::Error> {
    let node = Node::File { size: bytes.len() as u64, content: write_content(session, &bytes)? };
    let like = conflict.added().chain(conflict.removed()).flatten().find(|entry| entry.kind() == EntryKind::File);
    Ok(match like {
        Some(like) => Entry { node, mtime: now, ..like.clone() },
        None => Entry::new(node, 0o644, now),
    })
}

/// Returns the lines of all sides, one after another, or `None` if one of them is not a text.
fn union(store: &Store, terms: &[Option<Entry>]) -> Result<Option<Vec<u8>>, amalgam_engine::Error> {
    let read = |at: usize| -> Result<Option<Vec<u8>>, amalgam_engine::Error> {
        terms[at].as_ref().map_or(Ok(None), |entry| read_whole(store, entry, TEXT_BYTES_MAX))
    };
    let strategy = MergeStrategy::named("union").expect("it is a way");
    let Some(mut merged) = read(0)? else { return Ok(None) };
    for at in (2..terms.len()).step_by(2) {
        let (base, Some(theirs)) = (read(at - 1)?, read(at)?) else { return Ok(None) };
        let sides = Sides { base: base.as_deref(), ours: &merged, theirs: &theirs };
        let Outcome::Merged(bytes) = merge(&strategy, &sides, &MergeSettings::default()) else { return Ok(None) };
        merged = bytes;
    }
    Ok(Some(merged))
}
