//! Paths of a workspace that are kept out of its snapshots: build output, caches, what a package manager brings. They lie in a
//! directory of the host that belongs to the workspace's view, and are as fast as that is. The view shows a symlink there, or, where
//! a command has a mount of its own, an empty directory on which that one is mounted.
//!
//! All mounts of a workspace have the same such paths: those that its first mount came with.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use amalgam_engine::TreePath;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_materializer::remove_tree;
use amalgam_proto::{Reason, v1};
use amalgam_view::LocalEntry;
use bytes::Bytes;

use super::LockedView;
use super::Views;
use crate::error::{Error, Result};
use crate::messages::path_bytes;
use crate::settings::local_paths;

/// The longest name that a directory of the host can have.
const NAME_BYTES_MAX: usize = 255;
/// The interval and the number of checks whether a private mount has ended.
const ENDED_CHECK_INTERVAL: Duration = Duration::from_millis(20);
const ENDED_CHECKS_MAX: u32 = 100;

/// How a local path leads out of the mount to its directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalPathKind {
    /// By a symlink, which needs no privilege.
    Link,
    /// By a mount, which needs a mount namespace of one's own.
    Mount,
}

impl Views {
    /// Refuses local paths in mounts that cannot be changed.
    pub(super) fn refuse_local(&self, asked: Option<&v1::MountOptions>) -> Result<()> {
        if asked.is_none_or(|asked| asked.local.is_empty()) {
            return Ok(());
        }
        let message = "only a workspace that is mounted to be changed has local paths; leave --local out";
        Err(Error::new(Reason::Invalid, message))
    }

    /// Shows the local paths in a view that is about to be mounted.
    pub(super) fn place_local(
        &self,
        locked: &LockedView,
        asked: Option<&v1::MountOptions>,
        kind: LocalPathKind,
    ) -> Result<()> {
        let asked = local_paths(asked.into_iter().flat_map(|asked| &asked.local));
        let asked = asked.map_err(|why| Error::new(Reason::Invalid, why))?;
        let view = &locked.live.view;
        if self.is_mounted(locked.id) {
            return self.refuse_other_paths(locked, &asked, kind);
        }
        for path in &asked {
            view.ensure_local_possible(path)?;
        }
        let mut paths = asked;
        for path in self.context.settings()?.local {
            // A path of the settings holds for all workspaces, and does not fit into each.
            let is_apart = paths.iter().all(|other| other.below(&path).is_none() && path.below(other).is_none());
            if is_apart && view.ensure_local_possible(&path).is_ok() {
                paths.insert(path);
            }
        }
        let mut placed = BTreeMap::new();
        for path in paths {
            let source = self.make_local(locked.id, &path)?;
            let what = match kind {
                LocalPathKind::Link => LocalEntry::Link(Bytes::copy_from_slice(source.as_os_str().as_bytes())),
                LocalPathKind::Mount => LocalEntry::Directory,
            };
            placed.insert(path, what);
        }
        Ok(view.set_local_entries(placed)?)
    }

    /// Refuses other local paths for a workspace that is mounted already.
    fn refuse_other_paths(&self, locked: &LockedView, asked: &BTreeSet<TreePath>, kind: LocalPathKind) -> Result<()> {
        let placed = locked.live.view.local_entries();
        if let Some(path) = asked.iter().find(|path| !placed.contains_key(*path)) {
            let message = format!(
                "workspace {} is mounted already, and there {path} is not local; `amalgam umount {0}` first",
                locked.workspace
            );
            return Err(Error::new(Reason::Mounted, message));
        }
        if kind == LocalPathKind::Link && placed.values().any(|placed| *placed == LocalEntry::Directory) {
            let message = format!(
                "workspace {} has local paths in a namespace of its own, where a command runs; wait until that has ended",
                locked.workspace
            );
            return Err(Error::new(Reason::Mounted, message));
        }
        Ok(())
    }

    /// Waits some moments until a private mount has ended whose command has ended.
    pub(super) fn await_private_end(&self, workspace: &WorkspaceName) -> Result<()> {
        let Some(id) = self.inner.book.view_of(workspace.as_str()) else { return Ok(()) };
        for _ in 0..ENDED_CHECKS_MAX {
            self.reap()?;
            let live = self.inner.state.lock().open.get(&id).cloned();
            let is_bound =
                live.is_some_and(|live| live.view.local_entries().values().any(|one| *one == LocalEntry::Directory));
            if !is_bound || !self.is_shown(id) {
                break;
            }
            std::thread::sleep(ENDED_CHECK_INTERVAL);
        }
        Ok(())
    }

    /// Returns the bind mounts that a private mount needs.
    pub(super) fn bindings(&self, locked: &LockedView) -> Result<Vec<v1::Binding>> {
        let placed = locked.live.view.local_entries();
        let bound = placed.iter().filter(|(_, placed)| **placed == LocalEntry::Directory);
        let bindings = bound.map(|(path, _)| {
            let source = path_bytes(&self.make_local(locked.id, path)?);
            Ok(v1::Binding { path: Bytes::copy_from_slice(path.as_bytes()), source })
        });
        bindings.collect()
    }

    /// Returns the directory of the host for a local path, and makes it if necessary.
    fn make_local(&self, id: u64, path: &TreePath) -> Result<PathBuf> {
        let name = escaped(path);
        if name.len() > NAME_BYTES_MAX {
            let message = format!("{path} is too long for a local path; use a shorter one");
            return Err(Error::new(Reason::Invalid, message));
        }
        let source = self.local_directory(id).join(name);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&source);
        made.map_err(Error::io(format!("make {}", source.display())))?;
        Ok(source)
    }

    fn local_directory(&self, id: u64) -> PathBuf {
        self.context.home.local_path().join(id.to_string())
    }

    /// Removes the directories of a view's local paths.
    pub(super) fn remove_local(&self, id: u64) -> Result<()> {
        let path = self.local_directory(id);
        remove_tree(&path).map_err(|error| {
            let what = format!("remove {}, where the workspace's local paths lie; remove it by hand", path.display());
            Error::io(what)(error)
        })
    }
}

/// Encodes a path as one name, with special characters as hex numbers.
fn escaped(path: &TreePath) -> String {
    let mut name = String::new();
    for byte in path.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_name_and_no_two_are_the_same() {
        let name = |path: &str| escaped(&TreePath::new(path).expect("a path"));
        assert_eq!(name("web/node_modules"), "web%2fnode_modules");
        assert_eq!(name("a.b-c_D9"), "a.b-c_D9");
        assert_eq!(name(".cache"), "%2ecache");
        assert_ne!(name("a%2fb"), name("a/b"));
        assert_eq!(name("\u{e4} x"), "%c3%a4%20x");
    }
}
