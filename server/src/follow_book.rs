//! The results of updates of followers, kept beside the store in `following.json`. The sources themselves are in the records of the
//! workspaces; a lost file costs one update that finds nothing new.

use std::collections::BTreeMap;
use std::path::PathBuf;

use amalgam_engine::Time;
use amalgam_engine::workspace::{FollowMode, Workspace, WorkspaceName};
use amalgam_proto::v1;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::home::{Home, replace_file};
use crate::host_path::reason_for_caller;

/// The results of the last updates, by follower.
pub(crate) struct FollowBook {
    file: PathBuf,
    updates: Mutex<BTreeMap<String, LastUpdate>>,
}

/// The last update of a follower.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LastUpdate {
    pub(crate) time: i64,
    pub(crate) how: UpdateOutcome,
    /// The workspace that was followed then.
    pub(crate) source: String,
    /// The head of the source that was tried.
    pub(crate) tried: String,
    pub(crate) synced: u64,
    pub(crate) skipped: u64,
    pub(crate) total: u64,
    pub(crate) conflicts: u64,
    pub(crate) reason: String,
}

/// The outcome of an update. The words are those of the wire and of `following.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UpdateOutcome {
    /// The follower had everything.
    #[default]
    Already,
    /// The changes are in the follower.
    Updated,
    /// The changes are in the follower, some of them as conflicts.
    Conflicts,
    /// The policy does not permit the changes.
    Refused,
    /// The update failed.
    Failed,
}

impl UpdateOutcome {
    fn word(self) -> &'static str {
        match self {
            Self::Already => "already",
            Self::Updated => "updated",
            Self::Conflicts => "conflicts",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl LastUpdate {
    /// Converts the update to its message.
    pub(crate) fn message(&self) -> v1::FollowUpdate {
        let reason = match self.how {
            UpdateOutcome::Failed => reason_for_caller(self.reason.clone()),
            _ => self.reason.clone(),
        };
        v1::FollowUpdate {
            time: Some(amalgam_proto::timestamp(Time(self.time))),
            how: self.how.word().to_owned(),
            source_snapshot: self.tried.clone(),
            synced: self.synced,
            skipped: self.skipped,
            total: self.total,
            conflicts: self.conflicts,
            reason,
        }
    }
}

impl FollowBook {
    /// Reads the results of a home. Also returns the problem of their file, which is set aside if it cannot be read.
    pub(crate) fn open(home: &Home) -> Result<(Self, Option<String>)> {
        let file = home.path().join("following.json");
        let failed = || Error::io(format!("read {}", file.display()));
        let mut problem = None;
        let updates = match std::fs::read(&file) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(updates) => updates,
                Err(error) => {
                    let aside = file.with_extension("unreadable");
                    std::fs::rename(&file, &aside).map_err(failed())?;
                    problem = Some(format!("the results of updates are lost: {}: {error}", aside.display()));
                    BTreeMap::new()
                }
            },
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(failed()(source)),
        };
        Ok((Self { file, updates: Mutex::new(updates) }, problem))
    }

    /// Returns the last update of a follower from a source.
    pub(crate) fn last(&self, follower: &WorkspaceName, source: &WorkspaceName) -> Option<LastUpdate> {
        self.updates.lock().get(follower.as_str()).filter(|last| last.source == source.as_str()).cloned()
    }

    /// Records an update, or forgets that of a workspace that follows nothing.
    pub(crate) fn record(&self, follower: &WorkspaceName, update: Option<LastUpdate>) -> Result<()> {
        let mut updates = self.updates.lock();
        let before = match update {
            Some(update) => updates.insert(follower.to_string(), update),
            None => updates.remove(follower.as_str()),
        };
        if before.as_ref() == updates.get(follower.as_str()) {
            return Ok(());
        }
        let bytes = serde_json::to_vec_pretty(&*updates).expect("results are plain values");
        replace_file(&self.file, &bytes).map_err(Error::io(format!("write {}", self.file.display())))
    }

    /// Returns the message about the source that a workspace follows, or `None`. A caller from the network does not get the
    /// origin.
    pub(crate) fn following_message(&self, workspace: &Workspace) -> Option<v1::Following> {
        let follow = workspace.follow.as_ref()?;
        let is_local = !crate::call_log::is_from_network();
        let mode = match follow.mode {
            FollowMode::Every(_) => "every".to_owned(),
            mode => mode.to_string(),
        };
        Some(v1::Following {
            source: amalgam_proto::workspace_name(&follow.source),
            mode,
            every_seconds: follow.mode.interval_seconds(&workspace.name).unwrap_or(0),
            origin: if is_local { shown_origin(&follow.origin) } else { String::new() },
            last: self.last(&workspace.name, &follow.source).map(|last| last.message()),
        })
    }
}

/// Encodes the reference of a git origin for the record of a workspace: the last `#` of the record ends the path.
pub(crate) fn encoded_reference(reference: &str) -> String {
    reference.replace('%', "%25").replace('#', "%23")
}

/// Decodes the reference of a git origin from the record of a workspace. A `%` that encodes nothing stands for itself.
pub(crate) fn decoded_reference(text: &str) -> String {
    text.replace("%23", "#").replace("%25", "%")
}

/// Returns the origin in the record of a workspace as callers see it: the reference of a git origin is decoded.
pub(crate) fn shown_origin(origin: &str) -> String {
    match origin.rsplit_once('#') {
        Some((before, reference)) if origin.starts_with("git:") => format!("{before}#{}", decoded_reference(reference)),
        _ => origin.to_owned(),
    }
}
