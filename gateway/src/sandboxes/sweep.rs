//! Counts sandboxes, and removes resources that ended sandboxes left.

use std::collections::HashSet;
use std::path::Path;

use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::SandboxState;
use tonic::Status;
use tracing::warn;

use super::home::Keep;
use super::lifecycle::PAUSED;
use super::messages::sandbox_message;
use super::{Sandboxes, creation, events};
use crate::catalog::SandboxRecord;
use crate::project::ProjectName;

/// The numbers of resources that a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) sandboxes: i64,
    pub(crate) directories: i64,
    pub(crate) bytes: u64,
}

impl Sandboxes {
    /// Counts the sandboxes of the projects for which `is_wanted` is true, by state.
    pub(crate) async fn counts(&self, is_wanted: impl Fn(&ProjectName) -> bool) -> Result<v1::SandboxCounts, Status> {
        let mut counts = v1::SandboxCounts::default();
        for (project, state, number) in self.inner.catalog.count_sandboxes().await? {
            if !is_wanted(&project) {
                continue;
            }
            counts.total += number;
            match state {
                SandboxState::Stopped => counts.stopped += number,
                SandboxState::Error => counts.error += number,
                _ => counts.running += number,
            }
        }
        Ok(counts)
    }

    /// Ends expired sandboxes, deletes those that have ended and are not paused, and removes directories and homes without a
    /// sandbox. Workspaces are kept with their homes.
    pub(crate) async fn sweep(&self) -> Result<Swept, Status> {
        let mut swept = Swept::default();
        let Ok(parts) = self.parts() else { return Ok(swept) };
        for record in self.inner.catalog.expired_sandboxes(self.now()).await? {
            self.announce(events::EXPIRED, &record).await;
            if let Err(status) = self.stop(&record, "expired; the workspace was committed and kept").await {
                warn!(sandbox = record.id, %status, "an expired sandbox was not ended");
            }
        }
        let ended = self.inner.catalog.ended_sandboxes().await?;
        for record in ended.into_iter().filter(|record| !is_paused(record)) {
            let directory = self.directory(&record.id)?;
            let bytes = tokio::task::spawn_blocking(move || bytes_below(&directory)).await.unwrap_or(0);
            // Held until the record is deleted, so that no call resumes the sandbox. One may have done so since the list was read.
            let _turn = parts.reserving.lock().await;
            let Some(record) = self.inner.catalog.sandbox(&record.id).await? else { continue };
            if record.state.is_alive() || is_paused(&record) {
                continue;
            }
            match self.delete(&record.project, &record.id, Keep::WorkspaceAndHome).await {
                Ok(()) => (swept.sandboxes, swept.bytes) = (swept.sandboxes + 1, swept.bytes + bytes),
                Err(status) => warn!(sandbox = record.id, %status, "a sandbox that has ended was not forgotten"),
            }
        }
        // Listed before the records are read: a sandbox that is created meanwhile is not in the list, or has its record.
        let directory = parts.options.directory.clone();
        let found = tokio::task::spawn_blocking({
            let directory = directory.clone();
            move || directories_in(&directory)
        });
        let found = found.await.unwrap_or_default();
        let known: HashSet<String> = self.inner.catalog.sandbox_ids().await?.into_iter().collect();
        for id in found.into_iter().filter(|id| !known.contains(id)) {
            let place = directory.join(&id);
            let removed = tokio::task::spawn_blocking(move || remove_orphan(&place)).await;
            match removed.map_err(|_| Status::internal("a bug in the server; its log says more"))? {
                Ok(Some(bytes)) => (swept.directories, swept.bytes) = (swept.directories + 1, swept.bytes + bytes),
                // A mount in it is still in use.
                Ok(None) => warn!(sandbox = id, "the directory of an unknown sandbox is in use"),
                Err(error) => return Err(not_removed(&error)),
            }
        }
        self.sweep_homes().await?;
        Ok(swept)
    }
}

/// Returns whether a sandbox was paused by a call, or is paused for e2b clients: it can be resumed.
fn is_paused(record: &SandboxRecord) -> bool {
    record.reason == PAUSED || amalgam_e2b::is_paused(&sandbox_message(record))
}

/// Logs that a directory was not removed, and returns the status for the caller.
fn not_removed(error: &std::io::Error) -> Status {
    warn!(%error, "the directory of a sandbox was not removed");
    Failure::new(Reason::Fault, "the server could not do this; its log says why").into_status()
}

/// Returns the names of all directories of sandboxes.
fn directories_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let name = |entry: std::fs::DirEntry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        entry.file_name().into_string().ok().filter(|name| is_directory && name.starts_with("sbx-"))
    };
    entries.flatten().filter_map(name).collect()
}

/// Removes a directory without a sandbox. Returns the bytes of its files, or `None` if a mount or files in a mount point keep it.
fn remove_orphan(place: &Path) -> std::io::Result<Option<u64>> {
    // A mount point with a mount, or with files, cannot be removed.
    for part in [creation::WORKSPACE, creation::HOME, creation::ROOT] {
        match std::fs::remove_dir(place.join(part)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return Ok(None),
        }
    }
    let bytes = bytes_below(place);
    std::fs::remove_dir_all(place)?;
    Ok(Some(bytes))
}

/// Returns the bytes of all files below a directory, without those of workspaces that are mounted there.
fn bytes_below(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fn add(directory: &Path, device: u64, bytes: &mut u64) {
        let Ok(entries) = std::fs::read_dir(directory) else { return };
        for entry in entries.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() && found.dev() == device {
                add(&entry.path(), device, bytes);
            } else if found.is_file() {
                *bytes += found.len();
            }
        }
    }
    let mut bytes = 0;
    if let Ok(found) = std::fs::symlink_metadata(directory) {
        add(directory, found.dev(), &mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_removed_and_one_with_files_in_its_workspace_is_left() {
        let around = tempfile::tempdir().expect("a directory");
        for (id, file) in [("sbx-a", "files/log"), ("sbx-b", "workspace/theirs"), ("other", "x")] {
            let path = around.path().join(id).join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, "12345").expect("written");
        }
        let mut found = directories_in(around.path());
        found.sort();
        assert_eq!(found, ["sbx-a", "sbx-b"]);
        assert_eq!(remove_orphan(&around.path().join("sbx-a")).expect("removed"), Some(5));
        assert!(!around.path().join("sbx-a").exists());
        assert_eq!(remove_orphan(&around.path().join("sbx-b")).expect("left"), None);
        assert!(around.path().join("sbx-b/workspace/theirs").exists());
    }
}
