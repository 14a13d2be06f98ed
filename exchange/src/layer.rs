//! Walks over the difference between two trees and calls a sink with the changes that make one of the other, as layers express them.

use std::collections::HashSet;

use amalgam_engine::object::{DirectoryRef, Entry, Node, Root};
use amalgam_engine::{LinkGroup, Store, TreePath, entry_at, linked_paths};

use crate::error::Result;
use crate::paired::{PairedEntry, paired_entries};
use crate::report::Report;

const NOTE_WHITEOUT: &str = "names that begin with `.wh.` were left out: in a layer they remove files";

/// A change that a layer makes to a path.
pub(crate) enum LayerChange {
    /// Removes the entry of lower layers.
    Whiteout,
    /// Sets the entry.
    Set {
        entry: Entry,
        /// Whether lower layers have an entry at the path. A sink that leaves this one out hides that one.
        is_in_base: bool,
    },
}

/// A format that changes are written to.
pub(crate) trait LayerSink {
    /// Writes one change. A directory comes before its contents; a hard-linked file may come before its directory.
    fn change(&mut self, path: &TreePath, change: LayerChange) -> Result<()>;

    fn report(&mut self) -> &mut Report;

    /// Returns whether a name that begins with `.wh.` is a whiteout in this format.
    fn has_whiteout_names(&self) -> bool;
}

/// Calls a sink with all changes from one tree to another; from the empty tree when there is no base.
pub(crate) fn write_changes(store: &Store, base: Option<&Root>, after: &Root, sink: &mut impl LayerSink) -> Result<()> {
    let mut walk = LayerWalk { store, base, after, groups: HashSet::new(), sink };
    let old = base.map(|root| &root.directory);
    if old.is_none_or(|old| !is_same_directory(old, &after.directory)) {
        let change = LayerChange::Set { entry: after.directory.clone(), is_in_base: base.is_some() };
        walk.sink.change(&TreePath::root(), change)?;
    }
    walk.directories(old.and_then(contents), contents(&after.directory))
}

fn contents(entry: &Entry) -> Option<DirectoryRef> {
    match entry.node {
        Node::Directory(contents) => contents,
        _ => None,
    }
}

/// Returns whether two directories have the same attributes, regardless of their contents.
fn is_same_directory(old: &Entry, new: &Entry) -> bool {
    let bare = |entry: &Entry| Entry { node: Node::Directory(None), ..entry.clone() };
    matches!((&old.node, &new.node), (Node::Directory(_), Node::Directory(_))) && bare(old) == bare(new)
}

struct LayerWalk<'a, S> {
    store: &'a Store,
    base: Option<&'a Root>,
    after: &'a Root,
    /// Hard-linked files that were written with all their names.
    groups: HashSet<LinkGroup>,
    sink: &'a mut S,
}

impl<S: LayerSink> LayerWalk<'_, S> {
    fn directories(&mut self, before: Option<DirectoryRef>, after: Option<DirectoryRef>) -> Result<()> {
        let mut open = vec![(TreePath::root(), before, after)];
        let mut count = self.store.path_count();
        while let Some((above, before, after)) = open.pop() {
            if before == after {
                continue;
            }
            for paired in paired_entries(self.store, before, after)? {
                let PairedEntry { name, before, after } = paired?;
                count.add(1)?;
                let path = above.join(&name);
                if self.sink.has_whiteout_names() && name.as_bytes().starts_with(b".wh.") {
                    self.sink.report().note(NOTE_WHITEOUT, path.as_bytes());
                    continue;
                }
                let Some(after) = after else {
                    self.sink.change(&path, LayerChange::Whiteout)?;
                    continue;
                };
                if before.as_ref() == Some(&after) {
                    continue;
                }
                let below = before.as_ref().and_then(contents);
                if let Node::Directory(contents) = after.node {
                    open.push((path.clone(), below, contents));
                }
                self.set(&path, after, before.is_some())?;
            }
        }
        Ok(())
    }

    /// Writes an entry; a file with several names comes with all of them, so that the layer does not part them.
    fn set(&mut self, path: &TreePath, entry: Entry, is_in_base: bool) -> Result<()> {
        let Some(group) = entry.link() else { return self.sink.change(path, LayerChange::Set { entry, is_in_base }) };
        if !self.groups.insert(group) {
            return Ok(());
        }
        for member in linked_paths(self.store, self.after, group)? {
            if self.sink.has_whiteout_names() && member.names().any(|name| name.as_bytes().starts_with(b".wh.")) {
                continue;
            }
            let entry = entry_at(self.store, self.after, &member)?;
            let entry = entry.ok_or_else(|| amalgam_engine::Error::NotFound { path: member.clone() })?;
            let is_in_base = match self.base {
                Some(base) => entry_at(self.store, base, &member)?.is_some(),
                None => false,
            };
            self.sink.change(&member, LayerChange::Set { entry, is_in_base })?;
        }
        Ok(())
    }
}
