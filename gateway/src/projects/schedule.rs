//! Opens closed projects in which work is due: a scheduled publish, an update of a follower, the daily collection.
//!
//! A project that is closed leaves a file in its home with the time at which it has to be opened again. So a server that starts
//! need not open all projects to find out. The file is removed when the project is opened: a project without it was not closed
//! properly, and is opened. The nodes of a cluster keep the file, because there a project without it may be open on another node.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use amalgam_engine::Time;
use parking_lot::Mutex;
use tracing::warn;

use super::{OPEN_MAX, Place, Projects};
use crate::project::ProjectName;

/// The file in the home of a closed project: the due time in nanoseconds since 1970, or `never`.
const DUE_FILE: &str = "due";
const NEVER: &str = "never";
/// Interval of the checks for due projects.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of projects that one check opens, so that calls are not delayed.
const OPENINGS_MAX: usize = 4;
/// Minimum delay before a project that was just closed, or that could not be opened, is opened for scheduled work.
const REOPEN_AFTER_NANOSECONDS: i64 = 60 * 1_000_000_000;
const PAGE: u32 = 1_000;

/// The times at which closed projects have to be opened.
#[derive(Default)]
pub(super) struct DueTimes(Mutex<HashMap<ProjectName, Time>>);

impl DueTimes {
    /// Records when a closed project is due: in its home, and in memory at the earliest a minute after `now`. `None` means never.
    pub(super) fn closed(&self, name: &ProjectName, home: &Path, due: Option<Time>, now: Time) {
        write_due(home, due);
        if let Some(due) = due {
            self.set(name.clone(), Time(due.0.max(now.0.saturating_add(REOPEN_AFTER_NANOSECONDS))));
        }
    }

    /// Removes a project from the schedule: it is open and does its work by itself, or it was deleted.
    pub(super) fn forget(&self, name: &ProjectName) {
        self.0.lock().remove(name);
    }

    /// Records the time at which a project has to be opened. Opening an open project changes nothing.
    pub(super) fn set(&self, name: ProjectName, time: Time) {
        self.0.lock().insert(name, time);
    }

    /// Removes and returns at most `limit` projects that are due, the longest due first.
    fn take_due(&self, now: Time, limit: usize) -> Vec<ProjectName> {
        let mut all = self.0.lock();
        let mut due: Vec<_> = all.iter().map(|(name, time)| (*time, name)).filter(|(time, _)| *time <= now).collect();
        due.sort_unstable();
        let names: Vec<_> = due.into_iter().take(limit).map(|(_, name)| name.clone()).collect();
        for name in &names {
            all.remove(name);
        }
        names
    }
}

impl Projects {
    /// Opens closed projects when work is due in them. Returns at once for a local store.
    pub(crate) async fn keep_scheduling(&self, now: fn() -> Time) {
        if matches!(self.inner.place, Place::Local(_)) {
            // The process that has opened the store does its scheduled work.
            return;
        }
        self.read_due_times(now()).await;
        loop {
            self.open_due(now()).await;
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Reads the due times of all closed projects.
    async fn read_due_times(&self, now: Time) {
        let Place::Data { projects, .. } = &self.inner.place else { return };
        let mut after = None;
        loop {
            let page = match self.list(after.as_ref(), PAGE, false).await {
                Ok(page) => page,
                Err(error) => return warn!(%error, "the projects cannot be listed; none is opened for scheduled work"),
            };
            for project in &page {
                let is_open =
                    self.inner.slots.lock().get(&project.name).is_some_and(|slot| slot.store.read().is_some());
                let due = match read_due(&projects.join(&project.directory)) {
                    Ok(due) => due,
                    // Another node may have the project open, and does its work.
                    Err(()) if self.inner.cluster.get().is_some() => None,
                    Err(()) => Some(now),
                };
                if let Some(due) = due.filter(|_| !is_open) {
                    self.inner.due.set(project.name.clone(), due);
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE as usize => after = Some(last.name.clone()),
                _ => return,
            }
        }
    }

    async fn open_due(&self, now: Time) {
        let room = OPEN_MAX.saturating_sub(self.open_count()).min(OPENINGS_MAX);
        for name in self.inner.due.take_due(now, room) {
            match self.open(&name).await {
                Ok(_) => {}
                Err(super::ProjectError::Deleted(_) | super::ProjectError::Stopping) => {}
                Err(error) => {
                    warn!(project = %name, %error, "a project in which work is due cannot be opened");
                    self.inner.due.set(name, Time(now.0.saturating_add(REOPEN_AFTER_NANOSECONDS)));
                }
            }
        }
    }
}

/// Writes the time at which a closed project has to be opened again into its home; `None` means never.
pub(super) fn write_due(home: &Path, due: Option<Time>) {
    let text = due.map_or_else(|| NEVER.to_owned(), |time| time.0.to_string());
    // Without the file, the project is opened when the server starts.
    if let Err(error) = std::fs::write(home.join(DUE_FILE), text) {
        warn!(%error, "when a project is due was not written");
    }
}

/// Removes the due time of a project that was opened: work that is scheduled from now on may be due earlier.
pub(super) fn remove_due(home: &Path) {
    if let Err(error) = std::fs::remove_file(home.join(DUE_FILE))
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(%error, "the due time of an open project was not removed");
    }
}

/// Reads the time at which a closed project has to be opened again; `None` means never. Fails if the file is missing or malformed.
fn read_due(home: &Path) -> Result<Option<Time>, ()> {
    let text = std::fs::read_to_string(home.join(DUE_FILE)).map_err(|_| ())?;
    match text.trim() {
        NEVER => Ok(None),
        text => text.parse().map(|time| Some(Time(time))).map_err(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ProjectName {
        ProjectName::new(text).expect("a name")
    }

    #[test]
    fn projects_are_due_in_the_order_of_their_times_and_once() {
        let due = DueTimes::default();
        for (project, time) in [("late", 30), ("early", 10), ("middle", 20), ("future", 99)] {
            due.set(name(project), Time(time));
        }
        assert_eq!(due.take_due(Time(50), 2), [name("early"), name("middle")]);
        assert_eq!(due.take_due(Time(50), 2), [name("late")]);
        assert!(due.take_due(Time(50), 2).is_empty());
        due.forget(&name("future"));
        assert!(due.take_due(Time(100), 2).is_empty());
    }

    #[test]
    fn a_project_that_was_just_closed_is_not_opened_at_once() {
        let home = tempfile::tempdir().expect("a directory");
        let due = DueTimes::default();
        due.closed(&name("a"), home.path(), Some(Time(5)), Time(1_000));
        assert_eq!(read_due(home.path()), Ok(Some(Time(5))));
        assert!(due.take_due(Time(1_000), 9).is_empty());
        assert_eq!(due.take_due(Time(1_000 + REOPEN_AFTER_NANOSECONDS), 9), [name("a")]);
        due.closed(&name("b"), home.path(), None, Time(1_000));
        assert_eq!(read_due(home.path()), Ok(None));
        assert!(due.take_due(Time(i64::MAX), 9).is_empty());
        std::fs::write(home.path().join(DUE_FILE), "nonsense").expect("written");
        assert_eq!(read_due(home.path()), Err(()));
    }
}
