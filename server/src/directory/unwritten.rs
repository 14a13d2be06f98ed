//! Paths of a directory that could not be written. Until the user changes them, they count as the entries that were to be written,
//! so that no commit takes them for edits.
//!
//! The record of the directory lists each path with the entry that a capture found there right after. While a capture finds the
//! same, it takes the entry of the workspace's state instead. A path that looks different belongs to the user again, and leaves the
//! list.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use amalgam_engine::object::{Content, Node, Root};
use amalgam_engine::workspace::with_entries_of;
use amalgam_engine::{DiffOptions, Entry, EntryKind, RootId, Store, TreePath, WorkingTree, diff_roots, entry_at};
use amalgam_materializer::{Captured, Notice, Why};
use amalgam_proto::v1;
use bytes::Bytes;

use super::written_tree::WrittenTree;
use super::{Directories, LockedDirectory};
use crate::error::Result;
use crate::messages::notice;
use crate::registry::UnwrittenPath;

/// The most paths that the record of a directory lists.
const PATHS_MAX: usize = 10_000;

impl Directories {
    /// Replaces the entries of a capture that could not be written and did not change since by those of the workspace's state.
    pub(super) fn without_unwritten(&self, locked: &mut LockedDirectory, captured: Captured) -> Result<Captured> {
        if locked.record.unwritten.is_empty() {
            return Ok(captured);
        }
        let working = self.context.workspaces.find(&locked.workspace)?.and_then(|found| found.working);
        let state = self.context.known_root(working.or(locked.record.snapshot()))?;
        let Some((state, _pin)) = self.context.held(state) else { return Ok(captured) };
        let rendered = self.faced_in(locked, state)?.rendered;
        self.with_unwritten_of(locked, rendered, captured)
    }

    /// Returns whether the index describes a tree, apart from paths that could not be written.
    pub(super) fn is_index_of(&self, locked: &LockedDirectory, rendered: RootId) -> Result<bool> {
        let Some(found) = locked.index().root() else { return Ok(false) };
        if found == rendered || locked.record.unwritten.is_empty() {
            return Ok(found == rendered);
        }
        let unwritten: BTreeSet<_> = locked.unwritten_paths().into_iter().collect();
        for change in diff_roots(&self.context.store, Some(found), Some(rendered), DiffOptions::default())? {
            if !unwritten.contains(&change?.path) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lists the paths that could not be written after a checkout, and replaces their entries in the capture. `before` is the capture
    /// before the checkout.
    pub(super) fn without_unwritten_of(
        &self,
        locked: &mut LockedDirectory,
        written: &WrittenTree<'_>,
        before: Option<RootId>,
        captured: Captured,
    ) -> Result<Captured> {
        let Some(paths) = written.paths else {
            self.list_unwritten(locked, written, before, captured.root)?;
            return self.with_unwritten_of(locked, written.rendered, captured);
        };
        // A requested path that has the requested contents counts as written, although nothing had to be done.
        let sides = Sides::new(&self.context.store, captured.root, written.rendered)?;
        let mut kept = Vec::new();
        for unwritten in std::mem::take(&mut locked.record.unwritten) {
            let path = unwritten.tree_path();
            let is_asked = |path: &TreePath| paths.iter().any(|asked| path.below(asked).is_some());
            let is_as_asked = match path.filter(is_asked) {
                Some(path) => sides.look(&path)?.has_wanted_contents,
                None => false,
            };
            if !is_as_asked {
                kept.push(unwritten);
            }
        }
        locked.record.unwritten = kept;
        self.without_unwritten(locked, captured)
    }

    /// Returns the listed paths that an update of the directory to a tree does not concern, because the snapshot before has the
    /// same entries there. They need no new notice.
    pub(super) fn known_unwritten(&self, locked: &LockedDirectory, target: RootId) -> Result<BTreeSet<TreePath>> {
        let before = self.context.known_root(locked.record.snapshot())?;
        let Some((before, _pin)) = self.context.held(before) else {
            return Ok(BTreeSet::new());
        };
        let sides = Sides::new(&self.context.store, before, target)?;
        let mut known = BTreeSet::new();
        for path in locked.record.unwritten.iter().filter_map(UnwrittenPath::tree_path) {
            if sides.look(&path)?.is_as_wanted {
                known.insert(path);
            }
        }
        Ok(known)
    }

    /// Lists the paths that differ from the tree that was written because they could not be written, now or before. A file that the
    /// capture before the checkout lacks is not listed, nor are the directories above it: the rules of the new tree no longer ignore
    /// it, so that it is a file of the user's that no snapshot has.
    fn list_unwritten(
        &self,
        locked: &mut LockedDirectory,
        written: &WrittenTree<'_>,
        captured_before: Option<RootId>,
        captured: RootId,
    ) -> Result<()> {
        let before = std::mem::take(&mut locked.record.unwritten);
        locked.record.unlisted = 0;
        let before: BTreeMap<_, _> = before.iter().filter_map(|known| Some((known.tree_path()?, known))).collect();
        let noticed = written.notices.iter().filter(|notice| is_unwritten(&notice.why));
        let noticed: BTreeMap<_, _> = noticed.map(|notice| (&notice.path, notice)).collect();
        if noticed.is_empty() && before.is_empty() {
            return Ok(());
        }
        let sides = Sides::new(&self.context.store, captured, written.rendered)?;
        let earlier = self.context.held(captured_before);
        let earlier = earlier.map(|(root, pin)| self.context.store.root(root).map(|root| (root, pin))).transpose()?;
        let was_captured = |path: &TreePath, found: &Entry| -> Result<bool> {
            let Some((root, _)) = &earlier else { return Ok(false) };
            Ok(entry_at(&self.context.store, root, path)?
                .is_some_and(|entry| contents(&entry, true) == contents(found, true)))
        };
        let mut uncovered: BTreeSet<TreePath> = BTreeSet::new();
        let differing =
            diff_roots(&self.context.store, Some(captured), Some(written.rendered), DiffOptions::default())?;
        for change in differing {
            let change = change?;
            let path = change.path;
            let seen = sides.look(&path)?.seen;
            let skipped = at_or_above(&path, &noticed);
            if let (Some(skipped), Some(found)) = (skipped, &change.before)
                && skipped.path != path
                && found.kind() != EntryKind::Directory
                && !was_captured(&path, found)?
            {
                uncovered.extend(path.ancestors());
                continue;
            }
            let listed = match skipped {
                Some(skipped) => {
                    let v1::Notice { kind, message, failure, .. } = notice(skipped);
                    Some(UnwrittenPath {
                        path: OsStr::from_bytes(path.as_bytes()).into(),
                        seen,
                        kind,
                        message,
                        failure,
                    })
                }
                None => before.get(&path).filter(|known| known.seen == seen).map(|known| (*known).clone()),
            };
            match listed {
                Some(_) if locked.record.unwritten.len() == PATHS_MAX => locked.record.unlisted += 1,
                listed => locked.record.unwritten.extend(listed),
            }
        }
        if !uncovered.is_empty() {
            let is_uncovered = |known: &UnwrittenPath| known.tree_path().is_some_and(|path| uncovered.contains(&path));
            locked.record.unwritten.retain(|known| !is_uncovered(known));
        }
        Ok(())
    }

    fn with_unwritten_of(
        &self,
        locked: &mut LockedDirectory,
        rendered: RootId,
        mut captured: Captured,
    ) -> Result<Captured> {
        let store = &self.context.store;
        let sides = Sides::new(store, captured.root, rendered)?;
        let (mut kept, mut paths) = (Vec::new(), Vec::new());
        for unwritten in std::mem::take(&mut locked.record.unwritten) {
            let Some(path) = unwritten.tree_path() else { continue };
            let look = sides.look(&path)?;
            if look.seen == unwritten.seen && !look.is_as_wanted {
                kept.push(unwritten);
                paths.push(path);
            }
        }
        locked.record.unwritten = kept;
        if paths.is_empty() {
            return Ok(captured);
        }
        paths.sort();
        // The index describes the files as they are, which no snapshot keeps.
        locked.keep_face(store.hold(captured.root)?);
        let (root, _pin) = with_entries_of(store, captured.root, rendered, &paths)?.freeze().hold()?;
        captured.tree = WorkingTree::open_root(store, root)?;
        captured.root = root;
        Ok(captured)
    }
}

impl LockedDirectory {
    /// Returns the paths that could not be written.
    pub(super) fn unwritten_paths(&self) -> Vec<TreePath> {
        self.record.unwritten.iter().filter_map(UnwrittenPath::tree_path).collect()
    }

    /// Returns the notices of the paths that could not be written, for the wire.
    pub(super) fn unwritten_messages(&self) -> Vec<v1::Notice> {
        let message = |unwritten: &UnwrittenPath| v1::Notice {
            path: Bytes::copy_from_slice(unwritten.path.as_os_str().as_bytes()),
            kind: unwritten.kind,
            message: unwritten.message.clone(),
            failure: unwritten.failure,
        };
        self.record.unwritten.iter().map(message).collect()
    }

    /// Returns a warning if more paths could not be written than the record lists.
    pub(super) fn unlisted_warning(&self) -> Option<String> {
        (self.record.unlisted > 0).then(|| {
            format!(
                "{} more paths could not be written here than are remembered, and the next commit records them as they are on the disk; \
                 `amalgam restore @` tries to write them again",
                self.record.unlisted
            )
        })
    }
}

impl UnwrittenPath {
    fn tree_path(&self) -> Option<TreePath> {
        TreePath::new(self.path.as_os_str().as_bytes()).ok()
    }
}

/// Returns whether a notice of a checkout says that a path lacks the entry that was to be written, although no other program
/// changed it.
fn is_unwritten(why: &Why) -> bool {
    match why {
        Why::GitFile | Why::Withheld | Why::OwnerNotSet => true,
        Why::ChangedSince | Why::KeptBeside(_) | Why::Changing => false,
        why => why.is_failure(),
    }
}

/// Returns the notice of a path, or of the nearest directory above it that has one.
fn at_or_above<'a>(path: &TreePath, noticed: &BTreeMap<&TreePath, &'a Notice>) -> Option<&'a Notice> {
    path.ancestors().find_map(|ancestor| noticed.get(&ancestor).copied())
}

/// A captured tree, and the tree that was to be written.
struct Sides<'a> {
    store: &'a Store,
    found: Arc<Root>,
    wanted: Arc<Root>,
}

/// The comparison of a path in both trees.
struct Look {
    /// A description of the entry that was found. It includes attributes only if the contents are those that were to be written: a
    /// user who corrects the permissions of a file that could not be written has not changed its contents.
    seen: String,
    has_wanted_contents: bool,
    is_as_wanted: bool,
}

impl<'a> Sides<'a> {
    fn new(store: &'a Store, found: RootId, wanted: RootId) -> Result<Self> {
        Ok(Self { store, found: store.root(found)?, wanted: store.root(wanted)? })
    }

    fn look(&self, path: &TreePath) -> Result<Look> {
        let found = entry_at(self.store, &self.found, path)?;
        let wanted = entry_at(self.store, &self.wanted, path)?;
        // The entries of a directory are paths of their own.
        let is_deep = wanted.as_ref().is_none_or(|entry| entry.kind() != EntryKind::Directory);
        let Some(found) = found else {
            let parent = path.split_last().map(|(parent, _)| parent).unwrap_or_default();
            let has_parent = entry_at(self.store, &self.found, &parent)?.is_some();
            let seen = if has_parent { "absent" } else { "absent, and its directory" }.to_owned();
            return Ok(Look { seen, has_wanted_contents: wanted.is_none(), is_as_wanted: wanted.is_none() });
        };
        let seen = contents(&found, is_deep);
        if wanted.as_ref().is_none_or(|wanted| contents(wanted, is_deep) != seen) {
            return Ok(Look { seen, has_wanted_contents: false, is_as_wanted: false });
        }
        let is_as_wanted = wanted.is_some_and(|wanted| attributes(&wanted) == attributes(&found));
        Ok(Look { seen: seen + &attributes(&found), has_wanted_contents: true, is_as_wanted })
    }
}

fn contents(entry: &Entry, is_deep: bool) -> String {
    match &entry.node {
        Node::File { size, content } => match content {
            Content::Empty => "file".to_owned(),
            Content::Hole => format!("file of {size} zeros"),
            Content::Chunk(id) => format!("file of {size} bytes, {id}"),
            Content::Rope(id) => format!("file of {size} bytes, {id}"),
        },
        Node::Directory(Some(contents)) if is_deep => format!("directory of {}", contents.bare),
        Node::Directory(_) => "directory".to_owned(),
        Node::Symlink(target) => format!("symlink to {}", target.escape_ascii()),
        other => format!("{other:?}"),
    }
}

fn attributes(entry: &Entry) -> String {
    let extra = entry.extra.as_ref().map(|extra| format!(", {:?}, {:?}", extra.owner, extra.xattrs));
    format!(", mode {:o}{}", entry.mode, extra.unwrap_or_default())
}
