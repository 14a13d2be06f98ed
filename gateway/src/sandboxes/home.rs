//! The home of a sandbox: a hidden workspace with its home directory and its `/tmp`, beside the workspace that it works in.
//!
//! Its name is derived from that of the workspace, so the next sandbox in the workspace finds it. It is committed by forks only,
//! and deleted with its sandbox or when its workspace does not exist any more.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::{MountPlace, Runtime, TEMPORARY_DIRECTORY};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tonic::{Code, Status};
use tracing::{info, warn};

use super::access::Access;
use super::workspace::StoreCalls;
use super::{Sandboxes, creation};
use crate::catalog::SandboxRecord;
use crate::project::ProjectName;

/// Prefix of the names of homes. The dot hides them from lists.
const PREFIX: &str = ".homes/";
const WORKSPACES: &str = "workspaces/";
/// Maximum length of the name of a workspace, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// Length of a SHA-256 hash.
const HASH_BYTES: usize = 32;

/// The actor that deletes homes without a workspace.
const SWEEPER: &str = "amalgam";

/// The parts of a deleted sandbox that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Nothing that was created for it.
    Nothing,
    /// The workspace, but not the home.
    Workspace,
    /// The workspace, and the home for the next sandbox in it.
    WorkspaceAndHome,
}

impl Keep {
    /// Returns the parts that a request wants to keep.
    pub(crate) fn of_request(keep_workspace: bool) -> Self {
        if keep_workspace { Self::WorkspaceAndHome } else { Self::Nothing }
    }
}

/// Returns the id of the home of a workspace, without `workspaces/`. A name that would be too long is replaced by its hash.
pub(super) fn home_id(workspace: &str) -> String {
    let id = workspace.strip_prefix(WORKSPACES).unwrap_or(workspace);
    match PREFIX.len() + id.len() <= NAME_BYTES_MAX {
        true => format!("{PREFIX}{id}"),
        false => format!("{PREFIX}{}", HEXLOWER.encode(&Sha256::digest(id.as_bytes()))),
    }
}

/// Returns the name of the home of a workspace, with `workspaces/`.
pub(super) fn home_name(workspace: &str) -> String {
    format!("{WORKSPACES}{}", home_id(workspace))
}

/// Returns whether the home of a sandbox is a workspace. A sandbox that an earlier version of the server started has it in memory.
pub(super) fn has_home(record: &SandboxRecord) -> bool {
    record.config["home"].is_string()
}

/// Returns the mounts of a sandbox: the place inside the sandbox, the workspace, and the mount point below the sandbox's directory.
pub(super) fn mounts_of(record: &SandboxRecord) -> Vec<(MountPlace, String, &'static str)> {
    let mut mounts = vec![(MountPlace::Workspace, record.workspace.clone(), creation::WORKSPACE)];
    if has_home(record) {
        mounts.push((MountPlace::Home, home_name(&record.workspace), creation::HOME));
    }
    mounts
}

impl StoreCalls {
    /// Creates the home of a workspace, with the contents of the snapshot or the workspace `from`. If `from` is empty, an existing
    /// home is kept.
    pub(super) async fn ensure_home(&self, workspace: &str, from: &str) -> Result<(), Status> {
        match self.create(&home_id(workspace), from).await {
            Err(status) if from.is_empty() && is_there(&status) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Deletes the home of a workspace. A home that does not exist is no error.
    pub(super) async fn delete_home(&self, workspace: &str) -> Result<(), Status> {
        match self.discard(&home_name(workspace)).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            done => done,
        }
    }

    /// Returns whether the workspace of a home exists. Fails if the store does not say so for certain.
    async fn has_workspace(&self, home: &str) -> Result<bool, Status> {
        let id = home.strip_prefix(WORKSPACES).and_then(|id| id.strip_prefix(PREFIX)).unwrap_or_default();
        if is_found(self.find(&format!("{WORKSPACES}{id}")).await)? {
            return Ok(true);
        }
        if !is_hash(id) {
            return Ok(false);
        }
        // A hash does not say the name of the workspace. The second list has the hidden workspaces.
        for prefix in ["", "."] {
            if self.list(prefix).await?.iter().any(|workspace| home_name(workspace) == home) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_there(status: &Status) -> bool {
    Failure::of_status(status).is_some_and(|failure| failure.reason == Reason::AlreadyExists)
}

/// Returns whether a call found a workspace. Only the answer that there is none means `false`; other errors are returned.
fn is_found(found: Result<String, Status>) -> Result<bool, Status> {
    match found {
        Ok(_) => Ok(true),
        Err(status) => match Failure::of_status(&status).map(|failure| failure.reason) {
            Some(Reason::NotFound) => Ok(false),
            _ => Err(status),
        },
    }
}

/// Returns whether the id of a home, without the prefix, may be the hash of the name of a workspace.
fn is_hash(id: &str) -> bool {
    HEXLOWER.decode(id.as_bytes()).is_ok_and(|bytes| bytes.len() == HASH_BYTES)
}

impl Sandboxes {
    /// Makes the workspace and the home of a sandbox available to it, by mounts or by checkouts.
    pub(super) async fn show_all(
        &self,
        calls: &StoreCalls,
        runtime: &dyn Runtime,
        record: &SandboxRecord,
        disk_bytes: u64,
    ) -> Result<(), Status> {
        match Access::of_record(record) {
            Access::Fuse => self.mount_all(calls, runtime, record, disk_bytes).await,
            Access::Checkout => self.check_out_all(calls, runtime, record).await,
        }
    }

    /// Mounts the workspace of a sandbox and its home.
    async fn mount_all(
        &self,
        calls: &StoreCalls,
        runtime: &dyn Runtime,
        record: &SandboxRecord,
        disk_bytes: u64,
    ) -> Result<(), Status> {
        let directory = self.directory(&record.id)?;
        let access = runtime.mount_access(record.config["outlivesServer"] == true);
        let home = home_name(&record.workspace);
        let (workspace_at, home_at) = (directory.join(creation::WORKSPACE), directory.join(creation::HOME));
        tokio::try_join!(
            calls.mount(&record.workspace, &workspace_at, access, disk_bytes),
            calls.mount(&home, &home_at, access, disk_bytes),
        )?;
        let made = tokio::task::spawn_blocking(move || make_temporary_directory(&home_at)).await;
        if let Ok(Err(error)) = made {
            warn!(sandbox = record.id, %error, "a sandbox has no directory for temporary files");
        }
        Ok(())
    }

    /// Deletes homes whose workspaces do not exist any more, in all open stores. A home stays if the store does not say for certain
    /// that its workspace is gone. Returns the number of deleted homes.
    pub(super) async fn sweep_homes(&self) -> Result<i64, Status> {
        let mut deleted = 0;
        for (project, store) in self.inner.projects.all_opened() {
            deleted += self.sweep_homes_of(&project, &StoreCalls::new(store, SWEEPER)).await?;
        }
        Ok(deleted)
    }

    async fn sweep_homes_of(&self, project: &ProjectName, calls: &StoreCalls) -> Result<i64, Status> {
        let homes = calls.list(PREFIX).await?;
        if homes.is_empty() {
            return Ok(0);
        }
        // Read after the list, because a sandbox gets its record before its home.
        let used: Vec<_> = self.inner.catalog.sandbox_workspaces(project).await?;
        let mut deleted = 0;
        for home in homes {
            if used.iter().any(|workspace| home_name(workspace) == home) {
                continue;
            }
            match calls.has_workspace(&home).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(status) => {
                    warn!(%project, home, %status, "a home stays, because its workspace was not looked up");
                    continue;
                }
            }
            match calls.discard(&home).await {
                Ok(()) => {
                    info!(%project, home, "the home of a workspace that is gone was deleted");
                    deleted += 1;
                }
                Err(status) => warn!(%project, home, %status, "a home without a workspace was not deleted"),
            }
        }
        Ok(deleted)
    }
}

/// Creates the directory for temporary files. Anything that the sandbox may have put in its place is left alone and not followed.
pub(super) fn make_temporary_directory(home: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(home.join(TEMPORARY_DIRECTORY)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_home_follows_from_its_workspace_and_is_a_name() {
        assert_eq!(home_name("workspaces/main"), "workspaces/.homes/main");
        assert_eq!(home_id("sandboxes/sbx-1"), ".homes/sandboxes/sbx-1");
        let (one, other) = ("x".repeat(200), format!("{}y", "x".repeat(199)));
        assert!(home_id(&one).len() <= NAME_BYTES_MAX && home_id(&one) != home_id(&other));
        for name in [one.as_str(), "main"] {
            assert!(amalgam_engine::WorkspaceName::new(home_id(name)).expect("a name").is_hidden());
        }
    }

    #[test]
    fn only_the_answer_that_there_is_no_workspace_counts_as_absence() {
        let of_reason = |reason| Err(Failure::new(reason, "failed").into_status());
        assert!(is_found(Ok("workspaces/main".to_owned())).expect("known"));
        assert!(!is_found(of_reason(Reason::NotFound)).expect("known"));
        for reason in [Reason::Busy, Reason::Fault, Reason::Invalid, Reason::Corrupt] {
            assert!(is_found(of_reason(reason)).is_err(), "{reason:?}");
        }
        for status in [Status::unavailable("closed"), Status::not_found("no such service")] {
            assert!(is_found(Err(status)).is_err());
        }
    }

    #[test]
    fn the_home_of_a_long_name_has_a_hash_and_that_of_a_short_name_has_none() {
        let id = |workspace: &str| home_id(workspace).strip_prefix(PREFIX).expect("a home").to_owned();
        assert!(is_hash(&id(&"x".repeat(194))));
        for name in ["main", "sandboxes/sbx-1", "", &"x".repeat(64), &"x".repeat(193)] {
            assert!(!is_hash(&id(name)), "{name}");
        }
    }

    #[test]
    fn a_link_in_place_of_the_temporary_directory_is_left_alone() {
        let around = tempfile::tempdir().expect("a directory");
        let (home, elsewhere) = (around.path().join("home"), around.path().join("elsewhere"));
        std::fs::create_dir(&home).expect("made");
        make_temporary_directory(&home).expect("made");
        assert!(home.join(TEMPORARY_DIRECTORY).is_dir());
        std::fs::remove_dir(home.join(TEMPORARY_DIRECTORY)).expect("removed");
        std::os::unix::fs::symlink(&elsewhere, home.join(TEMPORARY_DIRECTORY)).expect("made");
        make_temporary_directory(&home).expect("left");
        assert!(!elsewhere.exists());
    }
}
