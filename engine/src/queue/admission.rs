//! Which changes of an entry may be merged: the policy is asked for each. The permitted part of an entry becomes a tree of its own.

use std::collections::BTreeSet;

use super::entry::QueueEntry;
use super::{MergePolicy, RefusedChange};
use crate::diff::{Change, What};
use crate::directory::entry_at;
use crate::error::{Error, Result};
use crate::id::RootId;
use crate::name::{NAME_BYTES_MAX, Name, TreePath};
use crate::object::{Entry, EntryKind};
use crate::store::{Pin, Store};
use crate::work::{RenameMode, WorkingTree};
use crate::workspace::with_entries_of;

/// Maximum number of refusals that a reason lists.
const REFUSALS_LISTED_MAX: usize = 10;
/// Maximum number of names that are tried for a file that both sides added.
const NAME_ATTEMPTS_MAX: usize = 1_000;

/// Returns the changes that the policy refuses.
pub(super) fn refusals(entry: &QueueEntry, changes: &[Change], policy: &dyn MergePolicy) -> Result<Vec<RefusedChange>> {
    let mut refused = Vec::new();
    for change in changes {
        if let Some(why) = policy.admit(entry, change)? {
            refused.push(RefusedChange { path: change.path.clone(), why });
        }
    }
    Ok(refused)
}

/// Describes refusals in one line.
pub(super) fn reason(refused: &[RefusedChange]) -> String {
    let listed = refused.iter().take(REFUSALS_LISTED_MAX).map(|one| format!("{}: {}", one.path, one.why));
    let mut listed: Vec<_> = listed.collect();
    if refused.len() > REFUSALS_LISTED_MAX {
        listed.push(format!("and {} more", refused.len() - REFUSALS_LISTED_MAX));
    }
    listed.join("; ")
}

/// Returns the tree of an entry without its refused changes: those paths are as in the base.
pub(super) fn permitted_part(
    store: &Store,
    base: Option<RootId>,
    theirs: RootId,
    changes: &[Change],
    refused: &[RefusedChange],
) -> Result<(RootId, Vec<Pin>)> {
    let mut pins = Vec::new();
    let base = match base {
        Some(base) => base,
        None => {
            let (empty, pin) = WorkingTree::new(store).freeze().hold()?;
            pins.push(pin);
            empty
        }
    };
    let refused: BTreeSet<&TreePath> = refused.iter().map(|one| &one.path).collect();
    let paths: Vec<TreePath> = refused.iter().map(|path| (*path).clone()).collect();
    let mut tree = with_entries_of(store, theirs, base, &paths)?;
    // A directory that comes back brings entries with it whose removal is permitted.
    for change in changes.iter().filter(|change| change.what == What::Removed && !refused.contains(&change.path)) {
        let is_file = change.before.as_ref().is_some_and(|before| before.kind() != EntryKind::Directory);
        if is_file && tree.exists(&change.path)? {
            tree.remove(&change.path)?;
        }
    }
    let (root, pin) = tree.freeze().hold()?;
    pins.push(pin);
    Ok((root, pins))
}

/// Gives another name to files that both sides added with different contents, where the policy keeps both. Returns `None` if there are
/// none.
pub(super) fn keep_both(
    store: &Store,
    [ours, theirs]: [RootId; 2],
    entry: &QueueEntry,
    changes: &[Change],
    policy: &dyn MergePolicy,
) -> Result<Option<(RootId, Pin)>> {
    let (target, mut tree) = (store.root(ours)?, None::<WorkingTree>);
    for change in changes.iter().filter(|change| change.what == What::Added) {
        let Some(added) = change.after.as_ref().filter(|after| after.kind() != EntryKind::Directory) else { continue };
        let there = entry_at(store, &target, &change.path)?;
        if there.is_none_or(|there| is_same_file(&there, added)) || !policy.keeps_both(entry, &change.path) {
            continue;
        }
        let tree = match &mut tree {
            Some(tree) => tree,
            None => tree.insert(WorkingTree::open_root(store, theirs)?),
        };
        let free = |path: &TreePath| Ok(entry_at(store, &target, path)?.is_none() && !tree.exists(path)?);
        let to = free_name(&change.path, &entry.agent, free)?;
        tree.rename(&change.path, &to, RenameMode::NoReplace)?;
    }
    tree.map(|tree| tree.freeze().hold()).transpose()
}

fn is_same_file(one: &Entry, other: &Entry) -> bool {
    one.node == other.node && one.mode == other.mode
}

/// Returns a name like `report.ann.md` for `report.md`, with a number if that is taken.
fn free_name(path: &TreePath, agent: &str, free: impl Fn(&TreePath) -> Result<bool>) -> Result<TreePath> {
    let (directory, name) = path.split_last().unwrap_or_else(|| unreachable!("the root is never added"));
    let name = name.as_bytes();
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0).unwrap_or(name.len());
    let (stem, extension) = name.split_at(dot);
    let agent: String = agent.chars().map(|letter| if letter == '/' { '-' } else { letter }).collect();
    for attempt in 1..=NAME_ATTEMPTS_MAX {
        let number = if attempt == 1 { String::new() } else { format!("-{attempt}") };
        let suffix = [b".", agent.as_bytes(), number.as_bytes(), extension].concat();
        let kept = stem.len().min(NAME_BYTES_MAX.saturating_sub(suffix.len()));
        let made = Name::new(&[&stem[..kept], &suffix].concat()).map_err(Error::from)?;
        let to = directory.child(&made).map_err(Error::from)?;
        if free(&to)? {
            return Ok(to);
        }
    }
    Err(Error::Taken { what: format!("every name for {path}") })
}
