//! Resource names: the names of workspaces, snapshots and other resources in the API.

use amalgam_engine::workspace::{LabelName, WorkspaceName};
use amalgam_engine::{EpisodeName, Error, Result, SnapshotId};

const WORKSPACES: &str = "workspaces/";
const SNAPSHOTS: &str = "snapshots/";
const LABELS: &str = "labels/";
const OPERATIONS: &str = "operations/";
const DIRECTORIES: &str = "directories/";
const MOUNTS: &str = "mounts/";
const EPISODES: &str = "episodes/";
const EXPORTS: &str = "exports/";

/// Returns the resource name of a workspace: `workspaces/{workspace}`.
pub fn workspace_name(name: &WorkspaceName) -> String {
    format!("{WORKSPACES}{name}")
}

/// Parses `workspaces/{workspace}`.
pub fn workspace_id(name: &str) -> Result<WorkspaceName> {
    WorkspaceName::new(stripped(name, WORKSPACES)?)
}

/// Returns the resource name of a snapshot: `snapshots/{hex}`.
pub fn snapshot_name(id: SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}")
}

/// Parses `snapshots/{hex}`.
pub fn snapshot_id(name: &str) -> Result<SnapshotId> {
    let wrong = || Error::Invalid { what: "snapshot name", why: format!("`{name}` has no 64 hex digits") };
    SnapshotId::from_hex(stripped(name, SNAPSHOTS)?).ok_or_else(wrong)
}

/// Returns the resource name of a label: `labels/{label}`.
pub fn label_name(label: &LabelName) -> String {
    format!("{LABELS}{}", label.as_str())
}

/// Parses `labels/{label}`.
pub fn label_id(name: &str) -> Result<LabelName> {
    LabelName::new(stripped(name, LABELS)?)
}

/// Returns the resource name of an operation: `operations/{sequence}`.
pub fn operation_name(sequence: u64) -> String {
    format!("{OPERATIONS}{sequence}")
}

/// Parses `operations/{sequence}` and returns the sequence number.
pub fn operation_sequence(name: &str) -> Result<u64> {
    let wrong = |_| Error::Invalid { what: "operation name", why: format!("`{name}` has no number") };
    stripped(name, OPERATIONS)?.parse().map_err(wrong)
}

/// Returns the resource name of a directory: `directories/{directory}`.
pub fn directory_name(id: &str) -> String {
    format!("{DIRECTORIES}{id}")
}

/// Parses `directories/{directory}` and returns the id of the directory.
pub fn directory_id(name: &str) -> Result<&str> {
    stripped(name, DIRECTORIES)
}

/// Returns the resource name of a mount: `mounts/{number}`.
pub fn mount_name(number: u64) -> String {
    format!("{MOUNTS}{number}")
}

/// Parses `mounts/{number}` and returns the number.
pub fn mount_number(name: &str) -> Result<u64> {
    let wrong = |_| Error::Invalid { what: "mount name", why: format!("`{name}` has no number") };
    stripped(name, MOUNTS)?.parse().map_err(wrong)
}

/// Returns the resource name of an episode: `episodes/{episode}`.
pub fn episode_name(name: &EpisodeName) -> String {
    format!("{EPISODES}{name}")
}

/// Parses `episodes/{episode}`.
pub fn episode_id(name: &str) -> Result<EpisodeName> {
    EpisodeName::new(stripped(name, EPISODES)?)
}

/// Returns the resource name of an export: `exports/{number}`.
pub fn export_name(number: u64) -> String {
    format!("{EXPORTS}{number}")
}

/// Parses `exports/{number}` and returns the number.
pub fn export_number(name: &str) -> Result<u64> {
    let wrong = |_| Error::Invalid { what: "export name", why: format!("`{name}` has no number") };
    stripped(name, EXPORTS)?.parse().map_err(wrong)
}

fn stripped<'a>(name: &'a str, prefix: &str) -> Result<&'a str> {
    let wrong = || Error::Invalid { what: "resource name", why: format!("`{name}` does not start with {prefix}") };
    name.strip_prefix(prefix).ok_or_else(wrong)
}
