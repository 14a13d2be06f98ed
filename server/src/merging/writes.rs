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
#[derive(Default)]
struct Written {
    /// `None` while a check has it, and after a check that failed.
    place: Option<WatchedFiles>,
    /// When the last change was seen; `None` if it was published.
    changed: Option<Instant>,
    /// Whether the change waits for the end of a review.
    is_held: bool,
}

/// The files of a workspace, in a directory or a live tree, and their state at the last check.
enum WatchedFiles {
    Directory(Box<WriteWatch>, u64),
    /// The version of the live tree; `None` while it is closed.
    Tree(Option<StateVersion>),
}

impl WatchedFiles {
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
        let changed = self.check(name, |known| {
            let known = known.filter(|known| known.is_current(directories, name));
            let is_new = known.is_none();
            let mut place = match known {
                Some(known) => known,
                None => WatchedFiles::of(directories, views, name)?,
            };
            let is_written = place.look(views, name) || is_new;
            Ok((place, is_written.then(Instant::now)))
        })?;
        Ok(changed.is_some_and(|changed| changed.elapsed() >= quiet))
    }

    /// Looks at the files of a workspace, and returns when the last change was seen. `look` gets the place as it was left, and
    /// returns it with the time of a new change. It is called without the lock, because a directory may be locked for long; the
    /// entry stays in the map meanwhile.
    fn check(
        &self,
        name: &WorkspaceName,
        look: impl FnOnce(Option<WatchedFiles>) -> Result<(WatchedFiles, Option<Instant>)>,
    ) -> Result<Option<Instant>> {
        let known = self.0.lock().entry(name.clone()).or_default().place.take();
        let (place, seen) = look(known)?;
        let mut all = self.0.lock();
        let written = all.entry(name.clone()).or_default();
        if seen.is_some() {
            (written.changed, written.is_held) = (seen, false);
        }
        let (changed, replaced) = (written.changed, written.place.replace(place));
        drop(all);
        // Ends a watch, which may wait for its directory.
        drop(replaced);
        Ok(changed)
    }

    /// Clears the pending write of a workspace, which is about to be published. Returns whether there was one.
    pub(super) fn begin(&self, name: &WorkspaceName) -> bool {
        let mut all = self.0.lock();
        let Some(written) = all.get_mut(name) else { return false };
        written.is_held = false;
        written.changed.take().is_some()
    }

    /// Marks a workspace as written again, because its publish failed.
    pub(super) fn retry(&self, name: &WorkspaceName) {
        if let Some(written) = self.0.lock().get_mut(name) {
            written.changed.get_or_insert_with(Instant::now);
        }
    }

    /// Marks a workspace as written again, because a review is open. A write that was seen meanwhile stays pending.
    pub(super) fn hold(&self, name: &WorkspaceName) {
        if let Some(written) = self.0.lock().get_mut(name).filter(|written| written.changed.is_none()) {
            (written.changed, written.is_held) = (Some(Instant::now()), true);
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

    /// Returns whether a workspace has writes that are not published yet. Those that wait for the end of a review do not count: a
    /// process that starts after it publishes them.
    pub(super) fn are_pending(&self) -> bool {
        self.0.lock().values().any(|written| written.changed.is_some() && !written.is_held)
    }
}

#[cfg(test)]
mod tests {
    use amalgam_proto::Reason;

    use super::*;
    use crate::error::Error;

    #[test]
    fn calls_during_a_check_are_kept() {
        let writes = Writes::default();
        let name = WorkspaceName::new("try").expect("a name");
        let unchanged = |_: Option<WatchedFiles>| Ok((WatchedFiles::Tree(None), None));
        writes.check(&name, |_| Ok((WatchedFiles::Tree(None), Some(Instant::now())))).expect("checked");
        let look = |known: Option<WatchedFiles>| {
            assert!(writes.are_pending(), "a check hides no pending write");
            assert!(writes.begin(&name));
            unchanged(known)
        };
        assert_eq!(writes.check(&name, look).expect("checked"), None);
        assert!(!writes.are_pending());
        let look = |known: Option<WatchedFiles>| {
            writes.retry(&name);
            unchanged(known)
        };
        assert!(writes.check(&name, look).expect("checked").is_some());
        assert!(writes.are_pending());
    }

    #[test]
    fn a_pending_write_is_kept_when_its_place_cannot_be_watched() {
        let writes = Writes::default();
        let name = WorkspaceName::new("try").expect("a name");
        writes.check(&name, |_| Ok((WatchedFiles::Tree(None), Some(Instant::now())))).expect("checked");
        let failed = writes.check(&name, |_| Err(Error::new(Reason::NotFound, "no such directory")));
        failed.expect_err("it cannot be watched");
        assert!(writes.are_pending());
        let found = writes.check(&name, |known| {
            assert!(known.is_none(), "the place is looked for again");
            Ok((WatchedFiles::Tree(None), None))
        });
        assert!(found.expect("checked").is_some());
    }

    #[test]
    fn a_write_that_waits_for_a_review_stays_and_is_not_pending() {
        let writes = Writes::default();
        let name = WorkspaceName::new("try").expect("a name");
        let written = |_: Option<WatchedFiles>| Ok((WatchedFiles::Tree(None), Some(Instant::now())));
        writes.check(&name, written).expect("checked");
        assert!(writes.begin(&name));
        writes.hold(&name);
        assert!(!writes.are_pending());
        let held = writes.check(&name, |_| Ok((WatchedFiles::Tree(None), None)));
        assert!(held.expect("checked").is_some(), "it is tried again");
        writes.check(&name, written).expect("checked");
        assert!(writes.are_pending(), "a new write is pending");
    }
}
