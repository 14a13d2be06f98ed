//! Deletes directories that a checkout made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use amalgam_proto::v1;
use amalgam_server::remove_tree;
use serde_json::json;

use super::capture::{SnapshotInfo, capture_all};
use crate::connect::Client;
use crate::error::CliError;
use crate::output::{Output, json as lines};
use crate::text;

/// Which contents keep a directory from being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Paths that are in no snapshot.
    Unsaved,
    /// None: this program made the directory for itself.
    Nothing,
}

/// Deletes a directory that a checkout made. With [`Keep::Unsaved`], takes a snapshot first, and refuses if it lacks a path.
pub async fn delete_directory(
    output: &mut Output,
    client: &mut Client,
    name: &str,
    keep: Keep,
) -> Result<(), CliError> {
    let directory = find(client, name).await?;
    let path = Path::new(OsStr::from_bytes(&directory.path));
    let refused = |why: String| {
        CliError::refused(format!("{} stays: {why}", path.display())).hint("remove it by hand if that is what you want")
    };
    if !directory.made_by_checkout {
        return Err(refused("it was not made by a checkout".to_owned()));
    }
    if !directory.problem.is_empty() && path.exists() {
        return Err(refused(directory.problem));
    }
    if path.exists() && keep == Keep::Unsaved {
        let about = SnapshotInfo::message("before the directory was removed");
        let captured = capture_all(output, client, name, about).await?;
        if let Some(notice) = captured.notices.first() {
            return Err(refused(format!("{} is in no snapshot: {}", text::path(&notice.path), notice.message)));
        }
        let ignored = captured.counts.unwrap_or_default().ignored;
        if ignored > 0 {
            return Err(refused(format!("{} in no snapshot", text::plural(ignored, "ignored path"))));
        }
    }
    client
        .directories
        .detach_directory(v1::DetachDirectoryRequest { name: name.to_owned(), ..Default::default() })
        .await?;
    remove_tree(path).map_err(|error| CliError::machine(path.display(), &error))?;
    let line = lines::line("directory_removed", json!({"id": text::id(name)}));
    output.emit(&lines::with_path(line, &directory.path))
}

async fn find(client: &mut Client, name: &str) -> Result<v1::Directory, CliError> {
    let mut request = v1::ListDirectoriesRequest { page_size: 500, page_token: String::new() };
    loop {
        let page = client.directories.list_directories(request.clone()).await?.into_inner();
        if let Some(found) = page.directories.into_iter().find(|directory| directory.name == name) {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Err(CliError::refused(format!("{name} is no longer known")));
        }
    }
}
