//! Resource names: what a thing is called on the wire.

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

/// `workspaces/{workspace}`.
pub fn workspace_name(name: &WorkspaceName) -> String {
    format!("{WORKSPACES}{name}")
}

/// The workspace that is called so.
pub fn workspace_id(name: &str) -> Result<WorkspaceName> {
    WorkspaceName::new(stripped(name, WORKSPACES)?)
}

/// `snapshots/{hex}`.
pub fn snapshot_name(id: SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}")
}

/// The snapshot that is called so.
pub fn snapshot_id(name: &str) -> Result<SnapshotId> {
    let wrong = || Error::Invalid { what: "snapshot name", why: format!("`{name}` has no 64 hex digits") };
    SnapshotId::from_hex(stripped(name, SNAPSHOTS)?).ok_or_else(wrong)
}

/// `labels/{label}`.
pub fn label_name(label: &LabelName) -> String {
    format!("{LABELS}{}", label.as_str())
}

/// The label that is called so.
pub fn label_id(name: &str) -> Result<LabelName> {
    LabelName::new(stripped(name, LABELS)?)
}

/// `operations/{sequence}`.
pub fn operation_name(sequence: u64) -> String {
    format!("{OPERATIONS}{sequence}")
}

/// The number of the operation that is called so.
pub fn operation_sequence(name: &str) -> Result<u64> {
    let wrong = |_| Error::Invalid { what: "operation name", why: format!("`{name}` has no number") };
    stripped(name, OPERATIONS)?.parse().map_err(wrong)
}

/// `directories/{directory}`.
pub fn directory_name(id: &str) -> String {
    format!("{DIRECTORIES}{id}")
}

/// The directory that is called so.
pub fn directory_id(name: &str) -> Result<&str> {
    stripped(name, DIRECTORIES)
}

/// `mounts/{number}`.
pub fn mount_name(number: u64) -> String {
    format!("{MOUNTS}{number}")
}

/// The number of the mount that is called so.
pub fn mount_number(name: &str) -> Result<u64> {
    let wrong = |_| Error::Invalid { what: "mount name", why: format!("`{name}` has no number") };
    stripped(name, MOUNTS)?.parse().map_err(wrong)
}

/// `episodes/{episode}`.
pub fn episode_name(name: &EpisodeName) -> String {
    format!("{EPISODES}{name}")
}

/// The episode that is called so.
pub fn episode_id(name: &str) -> Result<EpisodeName> {
    EpisodeName::new(stripped(name, EPISODES)?)
}

/// `exports/{number}`.
pub fn export_name(number: u64) -> String {
    format!("{EXPORTS}{number}")
}

/// The number of the export that is called so.
pub fn export_number(name: &str) -> Result<u64> {
    let wrong = |_| Error::Invalid { what: "export name", why: format!("`{name}` has no number") };
    stripped(name, EXPORTS)?.parse().map_err(wrong)
}

fn stripped<'a>(name: &'a str, prefix: &str) -> Result<&'a str> {
    let wrong = || Error::Invalid { what: "resource name", why: format!("`{name}` does not start with {prefix}") };
    name.strip_prefix(prefix).ok_or_else(wrong)
}
