//! Limits of disk space: when space gets short, first a warning and a collection, then neither commits nor new data in mounts.
//! Deletions, undo and collections always work.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::backend::RESERVE_FILE;
use amalgam_engine::{RootId, SnapshotId, Time, Workspace, WorkspaceName};
use amalgam_proto::Reason;
use amalgam_transfer::{Progress, added, added_by};
use amalgam_view::DiskSpace;
use parking_lot::Mutex;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::settings::Settings;

const FLOOR_BYTES_MAX: u64 = 1 << 30;

/// The disk use of a store, and the free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) store_bytes: u64,
    /// The part of the database's log. Some of it may be in the tables as well, or dead: see [`Disk::log_decides`].
    pub(crate) log_bytes: u64,
    /// The part reserved for a collection on a full disk.
    pub(crate) reserve_bytes: u64,
    /// The part of the journals of mounts.
    pub(crate) journal_bytes: u64,
    /// The part of the records and indexes of directories.
    pub(crate) directory_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) floor_bytes: u64,
}

impl Disk {
    /// Returns whether the store reaches a budget only because of the bytes in the log.
    fn log_decides(&self, budget: u64) -> bool {
        self.store_bytes >= budget && self.without_log().store_bytes < budget
    }

    fn without_log(self) -> Self {
        Self { store_bytes: self.store_bytes.saturating_sub(self.log_bytes), log_bytes: 0, ..self }
    }
}

/// The bytes that a workspace had added at a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Added {
    base: Option<SnapshotId>,
    head: SnapshotId,
    bytes: u64,
}

/// Measures the disk of a store, and refuses commits where the disk, the budget or a quota is exhausted.
#[derive(Clone)]
pub(crate) struct DiskQuota {
    pub(crate) context: Arc<Context>,
    pub(crate) inner: Arc<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// The bytes that workspaces with a quota have added. A collection clears them.
    added: Mutex<HashMap<WorkspaceName, Added>>,
    /// Whether space is short, so that a collection could help.
    is_collection_wanted: AtomicBool,
    /// Whether a workspace is near its quota.
    is_quota_near: AtomicBool,
    /// The start times of the imports and receives under way.
    pub(crate) incoming: Mutex<BTreeMap<u64, Time>>,
}

impl DiskQuota {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), inner: Arc::default() }
    }

    /// Asks the background thread to check soon whether a collection would help.
    pub(crate) fn request_collection(&self) {
        self.inner.is_collection_wanted.store(true, Ordering::Relaxed);
    }

    /// Takes the request for a collection. Returns whether there was one.
    pub(crate) fn take_collection_request(&self) -> bool {
        self.inner.is_collection_wanted.swap(false, Ordering::Relaxed)
    }

    /// Takes the note that a workspace is near its quota. Returns whether there was one.
    pub(crate) fn take_quota_note(&self) -> bool {
        self.inner.is_quota_near.swap(false, Ordering::Relaxed)
    }

    /// Forgets how much workspaces have added, after a collection.
    pub(crate) fn forget_added(&self) {
        self.inner.added.lock().clear();
    }

    /// Measures the disk usage of the store and the free space. Reads the metadata of every file of the store.
    pub(crate) fn measure_disk(&self) -> Result<Disk> {
        let disk = self.measure_free(&self.context.settings()?)?;
        let home = &self.context.home;
        let measured = disk_bytes(&home.store_path()).map_err(Error::io("measure the store"))?;
        // Neither rebuildable files nor local paths count: a collection frees none of them.
        let beside = |place: &Path| disk_bytes(place).map_or(0, |taken| taken.bytes);
        let (journal_bytes, directory_bytes) = (beside(&home.views_path()), beside(&home.directories_path()));
        Ok(Disk {
            store_bytes: measured.bytes + journal_bytes + directory_bytes,
            log_bytes: measured.log_bytes,
            reserve_bytes: measured.reserve_bytes,
            journal_bytes,
            directory_bytes,
            ..disk
        })
    }

    /// Measures the disk for a budget. If the store exceeds the budget only because of the log, flushes the log first, and then
    /// counts without it: no call is refused because of bytes that are stored twice.
    fn measure_for(&self, budget: u64) -> Result<Disk> {
        let disk = self.measure_disk()?;
        if !disk.log_decides(budget) {
            return Ok(disk);
        }
        self.context.store.empty_log()?;
        Ok(self.measure_disk()?.without_log())
    }

    fn measure_free(&self, settings: &Settings) -> Result<Disk> {
        let found = rustix::fs::statvfs(self.context.home.path());
        let found = found.map_err(|errno| Error::io("measure the disk")(errno.into()))?;
        let total_bytes = found.f_blocks.saturating_mul(found.f_frsize);
        Ok(Disk {
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            floor_bytes: floor_bytes(settings, total_bytes),
            ..Disk::default()
        })
    }

    /// Returns the total and free space on the disk of the store, for a mount; zeros if the system does not report it.
    pub(crate) fn room(&self) -> DiskSpace {
        let Ok(found) = rustix::fs::statvfs(self.context.home.path()) else { return DiskSpace::default() };
        let total_bytes = found.f_blocks.saturating_mul(found.f_frsize);
        DiskSpace {
            total_bytes,
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            // The next call reports settings that cannot be read.
            floor_bytes: self.context.settings().map_or(0, |settings| floor_bytes(&settings, total_bytes)),
        }
    }

    /// Refuses if there is no space for a commit; otherwise returns warnings. Measures the store's files only if there is a budget.
    pub(crate) fn check_space(&self) -> Result<Vec<String>> {
        let settings = self.context.settings()?;
        let disk = match settings.budget_bytes {
            Some(budget) => self.measure_for(budget)?,
            None => self.measure_free(&settings)?,
        };
        let shortage = shortage(&disk, settings.budget_bytes);
        if shortage != Shortage::None {
            self.request_collection();
        }
        match shortage {
            Shortage::None => Ok(Vec::new()),
            Shortage::Near(words) => Ok(vec![words]),
            Shortage::Reached(words) => {
                let next = "delete workspaces (`amalgam ws rm`) and run `amalgam gc --grace none`";
                Err(Error::new(Reason::Full, format!("{words}, so nothing is committed; {next}")))
            }
        }
    }

    /// Returns the most bytes that a workspace may add to the store; `None` without a limit.
    pub(crate) fn quota_of(&self, workspace: &WorkspaceName) -> Result<Option<u64>> {
        let settings = self.context.settings()?;
        Ok(settings.quotas_bytes.get(workspace.as_str()).copied().or(settings.quota_bytes))
    }

    /// Checks the quota of a workspace: the bytes that it has added to the store, and those that this tree would add. Returns a
    /// warning near the quota, and an error above it.
    pub(crate) fn check_quota(&self, workspace: &WorkspaceName, next: Option<RootId>) -> Result<Option<String>> {
        let Some(quota) = self.quota_of(workspace)? else { return Ok(None) };
        let found = self.context.workspaces.get(workspace)?;
        let so_far = self.added_bytes(&found)?;
        let more = match next {
            Some(root) => {
                let parents: Vec<_> = found.head.into_iter().collect();
                added(&self.context.store, root, &parents, &Progress::default())?.bytes
            }
            None => 0,
        };
        let bytes = so_far + more;
        if !is_near(bytes, quota) {
            return Ok(None);
        }
        self.inner.is_quota_near.store(true, Ordering::Relaxed);
        self.request_collection();
        let words = format!("{workspace} has added {} of a quota of {}", human(bytes), human(quota));
        // A commit that adds nothing is never refused.
        if bytes <= quota || more == 0 {
            return Ok(Some(words));
        }
        let next = "take commits back (`amalgam undo`), let old ones be thinned (`amalgam gc`), leave files out with .amalgamignore, \
                    or raise the quota with `amalgam config`";
        Err(Error::new(Reason::Full, format!("{words}, so nothing is committed; {next}")))
    }

    /// Returns the bytes that the kept snapshots of a workspace since its base have added to the store. The count up to an earlier
    /// head is cached until the next collection.
    fn added_bytes(&self, workspace: &Workspace) -> Result<u64> {
        let Some(head) = workspace.head else { return Ok(0) };
        let (history, remembered) = (&self.context.history, &self.inner.added);
        let mut but_not: Vec<_> = workspace.base.into_iter().collect();
        let mut bytes = 0;
        let known = remembered.lock().get(&workspace.name).copied().filter(|known| known.base == workspace.base);
        if let Some(known) = known
            && history.is_ancestor(known.head, head)?
        {
            bytes = known.bytes;
            but_not.push(known.head);
        }
        for snapshot in history.range(head, &but_not)? {
            let brought = added_by(&self.context.store, snapshot, &Progress::default());
            bytes += brought?.bytes;
        }
        remembered.lock().insert(workspace.name.clone(), Added { base: workspace.base, head, bytes });
        Ok(bytes)
    }

    /// Returns warnings about space and quota, for a call that commits nothing.
    pub(crate) fn room_warnings(&self, workspace: &WorkspaceName) -> Vec<String> {
        let mut warnings = self.check_space().unwrap_or_else(|failure| vec![failure.to_string()]);
        match self.check_quota(workspace, None) {
            Ok(warning) => warnings.extend(warning),
            Err(failure) => warnings.push(failure.to_string()),
        }
        warnings
    }
}

/// Returns the free space that commits must leave: the setting, or one hundredth of the disk but at most [`FLOOR_BYTES_MAX`].
fn floor_bytes(settings: &Settings, total_bytes: u64) -> u64 {
    settings.floor_bytes.unwrap_or(FLOOR_BYTES_MAX.min(total_bytes / 100))
}

/// The state of the disk space and the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    None,
    Near(String),
    Reached(String),
}

/// Returns how short the space on the disk and in the budget is. `Near` begins at nine tenths of the budget, or at twice the floor
/// of free space.
pub(crate) fn shortage(disk: &Disk, budget: Option<u64>) -> Shortage {
    let free = || {
        format!("{} are free on the store's disk, and its floor is {}", human(disk.free_bytes), human(disk.floor_bytes))
    };
    let store_bytes = disk.store_bytes;
    let taken = |budget| format!("the store takes {} of a budget of {}", human(store_bytes), human(budget));
    match budget {
        _ if disk.free_bytes < disk.floor_bytes => Shortage::Reached(free()),
        Some(budget) if store_bytes >= budget => Shortage::Reached(taken(budget)),
        Some(budget) if is_near(store_bytes, budget) => Shortage::Near(taken(budget)),
        _ if disk.free_bytes / 2 < disk.floor_bytes => Shortage::Near(free()),
        _ => Shortage::None,
    }
}

fn is_near(bytes: u64, limit: u64) -> bool {
    bytes >= limit - limit / 10
}

/// Formats a number of bytes for people, for example `1.2 GB`.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.95 {
        value /= 1_000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// The bytes of the files below a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    bytes: u64,
    /// The part of the database's log.
    log_bytes: u64,
    /// The reserved part.
    reserve_bytes: u64,
}

/// Measures the files below a directory. Space that the database has reserved for its log and not written yet does not count,
/// because it varies.
fn disk_bytes(directory: &Path) -> std::io::Result<Taken> {
    use std::os::unix::fs::MetadataExt as _;
    let mut taken = Taken::default();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        // The database creates and deletes tables meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        let bytes = (metadata.blocks() * 512).min(metadata.len().next_multiple_of(4_096));
        taken.bytes += bytes;
        if metadata.is_dir() {
            let below = disk_bytes(&entry.path()).unwrap_or_default();
            taken.bytes += below.bytes;
            taken.log_bytes += below.log_bytes;
            taken.reserve_bytes += below.reserve_bytes;
        } else if entry.path().extension().is_some_and(|suffix| suffix == "log") {
            taken.log_bytes += bytes;
        } else if entry.file_name() == RESERVE_FILE {
            taken.reserve_bytes += bytes;
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_warns_and_what_is_reached_refuses() {
        let check = |store_bytes: u64, free_bytes, floor_bytes, budget| match shortage(
            &Disk { store_bytes, log_bytes: 7, free_bytes, floor_bytes, ..Disk::default() },
            budget,
        ) {
            Shortage::None => "",
            Shortage::Near(_) => "near",
            Shortage::Reached(_) => "reached",
        };
        assert_eq!(check(50, 1_000, 100, Some(100)), "");
        assert_eq!(check(89, 1_000, 100, Some(100)), "");
        assert_eq!(check(90, 1_000, 100, Some(100)), "near");
        assert_eq!(check(100, 1_000, 100, Some(100)), "reached");
        assert_eq!(check(1 << 60, 1_000, 100, None), "");
        assert_eq!(check(0, 199, 100, None), "near");
        assert_eq!(check(0, 99, 100, None), "reached");
        assert_eq!(check(0, 0, 0, None), "");
    }

    #[test]
    fn the_log_decides_where_the_tables_alone_are_within_the_budget() {
        let decides = |store_bytes, log_bytes| Disk { store_bytes, log_bytes, ..Disk::default() }.log_decides(100);
        assert!(!decides(99, 50));
        assert!(decides(100, 1));
        assert!(decides(150, 51));
        assert!(!decides(150, 50));
    }

    #[test]
    fn bytes_are_written_for_people() {
        for (bytes, text) in [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (999_960, "1.0 MB"), (1 << 30, "1.1 GB")] {
            assert_eq!(human(bytes), text);
        }
    }
}
