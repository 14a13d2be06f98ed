//! Workspaces and homes as real directories, for sandboxes that no mount reaches.
//!
//! A directory belongs to its workspace while the sandbox lives: the store captures it when a caller reads the workspace, and
//! commits it at forks and at the end. It is removed only after a complete capture. Captures, updates and the removal use directory
//! handles and follow no link, so a process of the sandbox cannot lead the server outside the directory.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use amalgam_proto::v1::capture_directory_response::Event as Captured;
use amalgam_proto::v1::directory_service_client::DirectoryServiceClient;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::{Runtime, TEMPORARY_DIRECTORY};
use amalgam_server::remove_tree;
use bytes::Bytes;
use tonic::Status;
use tracing::warn;

use super::access::Access;
use super::home::{make_temporary_directory, mounts_of};
use super::workspace::{Direct, StoreCalls};
use super::{Sandboxes, creation};
use crate::catalog::SandboxRecord;

/// The permissions of a new directory. Its parent directory keeps other users of the host out.
const MODE: u32 = 0o755;
/// Commit message for changes that a mount left, before files are checked out.
const BEFORE_CHECKOUT: &str = "before a checkout";
/// The message of a commit before a fork.
const BEFORE_FORK: &str = "before a fork";

impl StoreCalls {
    fn directories(&self) -> DirectoryServiceClient<Direct> {
        DirectoryServiceClient::new(self.direct())
    }

    /// Returns the directory that is attached to a workspace, or `None` if there is none.
    async fn directory_of(&self, workspace: &str) -> Result<Option<v1::Directory>, Status> {
        let mut message = v1::ListDirectoriesRequest::default();
        loop {
            let page = self.directories().list_directories(self.request(message.clone())).await?.into_inner();
            if let Some(found) = page.directories.into_iter().find(|directory| directory.workspace == workspace) {
                return Ok(Some(found));
            }
            if page.next_page_token.is_empty() {
                return Ok(None);
            }
            message.page_token = page.next_page_token;
        }
    }

    /// Checks out the files of a workspace into an empty directory, and attaches the directory to the workspace.
    async fn check_out(&self, workspace: &str, path: &Path) -> Result<(), Status> {
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        if self.head(workspace).await?.is_empty() {
            let workspace_id = workspace.strip_prefix("workspaces/").unwrap_or(workspace).to_owned();
            let message = v1::AttachDirectoryRequest { path, workspace_id, take_all: true, ..Default::default() };
            return self.directories().attach_directory(self.request(message)).await.map(drop);
        }
        let message = v1::CheckoutDirectoryRequest {
            path,
            revision: "@".to_owned(),
            workspace: workspace.to_owned(),
            attach_workspace: workspace.to_owned(),
            take_all: true,
            ..v1::CheckoutDirectoryRequest::default()
        };
        let mut progress = self.directories().checkout_directory(self.request(message)).await?.into_inner();
        while progress.message().await?.is_some() {}
        Ok(())
    }

    /// Commits the files of a directory. Looks at each of them, watched or not, and returns whether all could be read.
    async fn capture(&self, directory: &str, why: &str) -> Result<bool, Status> {
        let (name, message) = (directory.to_owned(), why.to_owned());
        let message =
            v1::CaptureDirectoryRequest { name, message, all: true, ..v1::CaptureDirectoryRequest::default() };
        let mut progress = self.directories().capture_directory(self.request(message)).await?.into_inner();
        while let Some(told) = progress.message().await? {
            if let Some(Captured::Result(done)) = told.event {
                return Ok(!done.notices.iter().any(|notice| notice.failure));
            }
        }
        Err(Status::internal("a capture without a result"))
    }

    /// Commits the files of a directory, and removes it. A directory with files that could not be read stays attached.
    async fn put_away(&self, directory: &v1::Directory, path: PathBuf, why: &str) -> Result<(), Status> {
        if !self.capture(&directory.name, why).await? {
            let message = "files of the workspace cannot be read; they stay in its directory on the server's host";
            return Err(Failure::new(Reason::Fault, message).into_status());
        }
        let message = v1::DetachDirectoryRequest { name: directory.name.clone(), ..Default::default() };
        self.directories().detach_directory(self.request(message)).await?;
        remove(path).await;
        Ok(())
    }

    /// Attaches the directory of a workspace again after it was moved to `path`.
    async fn attach_again(&self, workspace: &str, path: &Path) -> Result<(), Status> {
        let workspace_id = workspace.strip_prefix("workspaces/").unwrap_or(workspace).to_owned();
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        let message = v1::AttachDirectoryRequest { path, workspace_id, again: true, ..Default::default() };
        self.directories().attach_directory(self.request(message)).await.map(drop)
    }

    /// Returns whether the server died during the checkout of a directory. Another checkout into it removes only the files of the
    /// first one.
    async fn is_unfinished(&self, directory: &v1::Directory) -> Result<bool, Status> {
        Ok(directory.snapshot.is_empty() && !self.head(&directory.workspace).await?.is_empty())
    }
}

/// Removes a directory with all its files. Logs a failure.
async fn remove(path: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || remove_tree(&path)).await;
    if let Ok(Err(error)) = removed {
        warn!(%error, "the checkout of a sandbox was not removed");
    }
}

/// Returns whether a directory of the store is at a path of the host.
fn is_at(directory: &v1::Directory, path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path.as_os_str().as_bytes() == directory.path)
}

impl Sandboxes {
    /// Checks out the workspace of a sandbox and its home into directories.
    pub(super) async fn check_out_all(
        &self,
        calls: &StoreCalls,
        runtime: &dyn Runtime,
        record: &SandboxRecord,
    ) -> Result<(), Status> {
        let (around, directory) = (&self.parts()?.options.directory, self.directory(&record.id)?);
        let owner = runtime.mount_access(true).shown_owner;
        let failed = |error: io::Error| {
            warn!(sandbox = record.id, %error, "the directory of a checkout was not made");
            Failure::new(Reason::Fault, "the server could not do this; its log says why").into_status()
        };
        for (_, workspace, part) in mounts_of(record) {
            let path = directory.join(part);
            match calls.directory_of(&workspace).await? {
                Some(found) if is_at(&found, &path) => {
                    // The last end of the sandbox could not remove it. An unfinished checkout is repeated.
                    if !calls.is_unfinished(&found).await? {
                        continue;
                    }
                }
                Some(found) => {
                    let place = Path::new(std::ffi::OsStr::from_bytes(&found.path)).to_owned();
                    let is_ours = around.canonicalize().is_ok_and(|around| place.starts_with(around));
                    if !is_ours {
                        let message =
                            format!("{workspace} has a directory on the server's host; fork it, and use the fork");
                        return Err(Failure::new(Reason::AlreadyExists, message).into_status());
                    }
                    // The directory of a sandbox that has ended, or that never started.
                    if calls.is_unfinished(&found).await? {
                        std::fs::rename(&place, &path).map_err(failed)?;
                    } else if let Err(status) = calls.put_away(&found, place.clone(), BEFORE_CHECKOUT).await {
                        warn!(sandbox = record.id, %status, "a kept checkout is taken over as it is");
                        std::fs::rename(&place, &path).map_err(failed)?;
                        calls.attach_again(&workspace, &path).await?;
                        continue;
                    }
                }
                // A mount may have left uncommitted changes.
                None => calls.commit(&workspace, BEFORE_CHECKOUT).await?,
            }
            prepare(&path, owner).map_err(failed)?;
            calls.check_out(&workspace, &path).await?;
        }
        let home = directory.join(creation::HOME);
        let made = tokio::task::spawn_blocking(move || {
            make_temporary_directory(&home)?;
            owner.map_or(Ok(()), |(uid, gid)| lchown(home.join(TEMPORARY_DIRECTORY), Some(uid), Some(gid)))
        });
        if let Ok(Err(error)) = made.await {
            warn!(sandbox = record.id, %error, "a sandbox has no directory for temporary files");
        }
        Ok(())
    }

    /// Commits the workspace of a sandbox and its home, and removes their directories. A directory that cannot be captured stays.
    pub(super) async fn put_away_all(&self, calls: &StoreCalls, record: &SandboxRecord, why: &str) {
        let Ok(directory) = self.directory(&record.id) else { return };
        for (place, workspace, part) in mounts_of(record) {
            let path = directory.join(part);
            let done = match calls.directory_of(&workspace).await {
                Ok(Some(found)) if is_at(&found, &path) => calls.put_away(&found, path, why).await,
                Ok(_) => Ok(()),
                Err(status) => Err(status),
            };
            if let Err(status) = done {
                warn!(sandbox = record.id, ?place, %status, "a checkout was not captured, and is kept");
                self.note(
                    &record.id,
                    "files of the sandbox could not be captured; its directory is kept on the server",
                );
            }
        }
    }

    /// Removes those directories of a sandbox whose workspaces were deleted.
    pub(super) async fn remove_checkouts(&self, record: &SandboxRecord, parts: &[&str]) {
        let Ok(directory) = self.directory(&record.id) else { return };
        if Access::of_record(record) == Access::Checkout {
            for part in parts {
                remove(directory.join(part)).await;
            }
        }
    }
}

/// Commits the files of a running sandbox with checkouts, because a fork begins with snapshots.
pub(super) async fn commit_for_fork(calls: &StoreCalls, record: &SandboxRecord) -> Result<(), Status> {
    if Access::of_record(record) == Access::Checkout {
        for (_, workspace, _) in mounts_of(record) {
            calls.commit(&workspace, BEFORE_FORK).await?;
        }
    }
    Ok(())
}

/// Creates a directory that the user of a sandbox may write to. Files without an owner in the tree get the owner of their
/// directory.
fn prepare(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE))?;
    owner.map_or(Ok(()), |(uid, gid)| lchown(path, Some(uid), Some(gid)))
}
