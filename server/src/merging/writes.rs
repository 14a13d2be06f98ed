//! Notices when the files of workspaces are written, for publishing on writes: in a directory of the host by its watcher, in a live
//! tree, which mounts and calls share, by its version.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use amalgam_engine::workspace::WorkspaceName;
use amalgam_view::StateVersion;
use parking_lot::Mutex;

use crate::directory::{Directories, WriteWatch};
use crate::error::Result;
use crate::views::Views;

/// The workspaces that are published on writes.
#[derive(Default)]
pub(super) struct Writes(Mutex<HashMap<WorkspaceName, Written>>);

/// The observed writes to one workspace.
struct Written {
    place: Place,
    /// When the last change was seen; `None` if it was published.
    changed: Option<Instant>,
}

/// Where the files are, and their state at the last check.
enum Place {
    Directory(Box<WriteWatch>, u64),
    /// The version of the live tree; `None` while it is closed.
    Tree(Option<StateVersion>),
}

impl Place {
    fn of(directories: &Directories, views: &Views, name: &WorkspaceName) -> Result<Self> {
        if let Some(watch) = directories.watch_writes(name)? {
            let seen = watch.changes();
            return Ok(Self::Directory(Box::new(watch), seen));
        }
        Ok(Self::Tree(views.open_tree(name).map(|tree| tree.version())))
    }

    /// Returns whether the files changed since the last call.
    fn look(&mut self, views: &Views, name: &WorkspaceName) -> bool {
        match self {
            Self::Directory(watch, seen) => {
                let now = watch.changes();
                std::mem::replace(seen, now) != now
            }
            Self::Tree(seen) => match views.open_tree(name) {
                Some(tree) => {
                    let now = Some(tree.version());
                    // A tree that was just opened may have been written since.
                    std::mem::replace(seen, now) != now && !tree.is_clean()
                }
                None => {
                    *seen = None;
                    false
                }
            },
        }
    }

    /// Returns whether the workspace still has its files in this place.
    fn is_current(&self, directories: &Directories, name: &WorkspaceName) -> bool {
        match self {
            Self::Directory(watch, _) => !watch.is_ended(),
            Self::Tree(_) => !directories.has_directory(name),
        }
    }
}

impl Writes {
    /// Returns whether the files of a workspace were written and have been quiet since. The first call counts as a write, because
    /// earlier writes are unknown.
    pub(super) fn is_quiet(
        &self,
        directories: &Directories,
        views: &Views,
        name: &WorkspaceName,
        quiet: Duration,
    ) -> Result<bool> {
        let known = self.0.lock().remove(name).filter(|known| known.place.is_current(directories, name));
        // Without the lock: a directory may be locked for long.
        let mut written = match known {
            Some(known) => known,
            None => Written { place: Place::of(directories, views, name)?, changed: Some(Instant::now()) },
        };
        if written.place.look(views, name) {
            written.changed = Some(Instant::now());
        }
        let is_quiet = written.changed.is_some_and(|changed| changed.elapsed() >= quiet);
        self.0.lock().insert(name.clone(), written);
        Ok(is_quiet)
    }

    /// Clears the pending write of a workspace, which is about to be published.
    pub(super) fn begin(&self, name: &WorkspaceName) {
        if let Some(written) = self.0.lock().get_mut(name) {
            written.changed = None;
        }
    }

    /// Marks a workspace as written again, because its publish failed.
    pub(super) fn retry(&self, name: &WorkspaceName) {
        if let Some(written) = self.0.lock().get_mut(name) {
            written.changed.get_or_insert_with(Instant::now);
        }
    }

    /// Forgets workspaces that are not published on writes any more.
    pub(super) fn retain(&self, is_wanted: impl Fn(&WorkspaceName) -> bool) {
        let mut gone = Vec::new();
        let mut all = self.0.lock();
        let names: Vec<_> = all.keys().filter(|name| !is_wanted(name)).cloned().collect();
        gone.extend(names.iter().filter_map(|name| all.remove(name)));
        drop(all);
        // Ends watches, which may wait for their directories.
        drop(gone);
    }

    /// Returns whether a workspace has writes that are not published yet.
    pub(super) fn are_pending(&self) -> bool {
        self.0.lock().values().any(|written| written.changed.is_some())
    }
}
