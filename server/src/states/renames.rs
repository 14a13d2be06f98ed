//! Files that are at another path in one tree than in another, with the same contents.

use amalgam_engine::object::Node;
use amalgam_engine::{Change, DiffOptions, Entry, RootId, What, diff_with_renames, list_directory};
use amalgam_materializer::Rename;

use super::States;
use crate::error::Result;

impl States {
    /// Returns the files that were renamed between two trees, one by one. Files in `.git` are left out, unless a directory around
    /// the `.git` was renamed as a whole.
    pub(crate) fn renamed_files(&self, before: Option<RootId>, after: Option<RootId>) -> Result<Vec<Rename>> {
        let options = DiffOptions { without_git: true, ..DiffOptions::default() };
        let (mut open, mut renamed) = (Vec::new(), Vec::new());
        for change in diff_with_renames(&self.context.store, before, after, options)? {
            if let (What::Renamed { from }, Some(entry)) = (change.what, change.after) {
                open.push((Rename { from, to: change.path }, entry));
            }
        }
        while let Some((moved, entry)) = open.pop() {
            // All files of a directory that was renamed as a whole.
            let Node::Directory(contents) = entry.node else {
                renamed.push(moved);
                continue;
            };
            for item in list_directory(&self.context.store, contents)? {
                let (name, entry) = item?;
                open.push((Rename { from: moved.from.join(&name), to: moved.to.join(&name) }, entry));
            }
        }
        renamed.sort_by(|a, b| a.to.cmp(&b.to));
        Ok(renamed)
    }
}

/// Returns whether a change adds or removes a directory.
pub(crate) fn is_directory(change: &Change) -> bool {
    let is_directory = |entry: &Entry| matches!(entry.node, Node::Directory(_));
    match (&change.before, &change.after) {
        (Some(entry), None) | (None, Some(entry)) => is_directory(entry),
        _ => false,
    }
}
