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

/// What is known of the writes to one workspace.
struct Written {
    place: Place,
    /// When the files were last seen to change; nothing if that was published.
    changed: Option<Instant>,
}

/// Where the files are, and their last state.
enum Place {
    Directory(Box<WriteWatch>, u64),
    /// Nothing while the tree is closed: what it has is in its journal.
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

    /// Whether the files changed since the last look.
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

    /// Whether the files are still there.
    fn is_current(&self, directories: &Directories, name: &WorkspaceName) -> bool {
        match self {
            Self::Directory(watch, _) => !watch.is_ended(),
            Self::Tree(_) => !directories.has_directory(name),
        }
    }
}

impl Writes {
    /// Returns whether the files of a workspace were written and have been quiet since. The first look counts as a write: what was
    /// written before is not known.
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

    /// What was written so far is about to be published.
    pub(super) fn begin(&self, name: &WorkspaceName) {
        if let Some(written) = self.0.lock().get_mut(name) {
            written.changed = None;
        }
    }

    /// What was written is still to be published.
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

    /// Whether something was written that is not published yet.
    pub(super) fn are_pending(&self) -> bool {
        self.0.lock().values().any(|written| written.changed.is_some())
    }
}
