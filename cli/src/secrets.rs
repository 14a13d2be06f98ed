//! Contents that look like keys or passwords, in the snapshots that a server would get.

use std::collections::BTreeSet;
use std::fmt;

use amalgam_proto::{Reason, v1};
use tonic::codegen::Bytes;

use crate::connect::Client;
use crate::error::CliError;
use crate::session::{empty_state, revision_state};
use crate::text;

/// Snapshots that one call lists.
const PAGE_SIZE: i32 = 500;
/// The kinds of risk that are not sent: contents and names of files that look like credentials.
const SECRET_KINDS: [&str; 2] = ["credential", "credential-name"];

/// A content that looks like a key or a password.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Secret {
    /// The path of the file.
    pub path: Bytes,
    /// The reason why it looks like one.
    pub message: String,
    /// The snapshot that added it, `snapshots/{hex}`.
    pub snapshot: String,
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, message) = (text::path(&self.path), text::printable(&self.message));
        write!(f, "{path}: {message} (in {})", text::short(&self.snapshot))
    }
}

/// Finds likely secrets in a snapshot and its history, without the snapshots that the receiver has.
pub async fn find_secrets(client: &mut Client, head: &str, had: &[String]) -> Result<BTreeSet<Secret>, CliError> {
    let mut request = v1::ListSnapshotsRequest {
        revisions: vec![text::id(head).to_owned()],
        exclude: known(client, had).await?,
        page_size: PAGE_SIZE,
        ..Default::default()
    };
    let mut found = BTreeSet::new();
    loop {
        let page = client.snapshots.list_snapshots(request.clone()).await?.into_inner();
        for snapshot in &page.snapshots {
            for (path, message) in secrets(client, snapshot).await? {
                found.insert(Secret { path, message, snapshot: snapshot.name.clone() });
            }
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(found);
        }
    }
}

/// Returns the ids of those snapshots of the receiver that the sender has, too.
async fn known(client: &mut Client, had: &[String]) -> Result<Vec<String>, CliError> {
    if had.is_empty() {
        return Ok(Vec::new());
    }
    let request = v1::GetHaveRequest { snapshots: had.to_vec() };
    let found = client.transfer.get_have(request).await?.into_inner().snapshots;
    Ok(found.iter().map(|name| text::id(name).to_owned()).collect())
}

/// Returns the paths of likely secrets that a snapshot added, with the reasons.
async fn secrets(client: &mut Client, snapshot: &v1::Snapshot) -> Result<Vec<(Bytes, String)>, CliError> {
    let before = snapshot.parents.first().map_or_else(empty_state, |parent| revision_state(text::id(parent)));
    let after = revision_state(text::id(&snapshot.name));
    match inspect(client, before, after.clone()).await {
        // The parent's files were thinned: everything counts as new.
        Err(error) if error.is(Reason::NotFound) => inspect(client, empty_state(), after).await,
        found => found,
    }
}

async fn inspect(client: &mut Client, before: v1::State, after: v1::State) -> Result<Vec<(Bytes, String)>, CliError> {
    let request = v1::InspectChangeRequest { before: Some(before), after: Some(after), ..Default::default() };
    let mut stream = client.snapshots.inspect_change(request).await?.into_inner();
    let mut found = Vec::new();
    while let Some(part) = stream.message().await? {
        for file in part.files {
            let Some(change) = file.change else { continue };
            let risks = file.risks.into_iter().filter(|risk| SECRET_KINDS.contains(&risk.kind.as_str()));
            found.extend(risks.map(|risk| (change.path.clone(), risk.message)));
        }
    }
    Ok(found)
}
