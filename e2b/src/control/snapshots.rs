//! Snapshots of sandboxes: commits of the workspace and of the home under a label each, from which sandboxes are created.
//!
//! The name of the workspace's label holds the id of the snapshot, its sandbox and its template.

use amalgam_proto::v1;
use data_encoding::{BASE32_NOPAD, HEXLOWER};
use http::StatusCode;
use serde_json::{Value, json};
use tonic::Code;
use tonic::body::Body;

use super::bodies::SnapshotBody;
use super::list::{Page, pairs};
use super::request::{Answer, Control, no_content, read};
use crate::calls::Caller;
use crate::refusal::{Refusal, json_answer, refuse_memory};

/// Prefix of the labels of snapshots.
const LABELS: &str = "e2b-snapshots/";
/// Prefix of the labels of the homes of snapshots.
const HOME_LABELS: &str = "e2b-homes/";
/// Prefix of the ids of snapshots without a name.
const UNNAMED: &str = "snap-";
const NAME_BYTES_MAX: usize = 64;
/// A state value that makes a workspace without any file a snapshot.
const STATE_KEY: &str = "e2b";

/// A snapshot that a client made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    id: String,
    sandbox: String,
    /// The template of its sandbox.
    pub(super) template: String,
    /// The id of its Amalgam snapshot, without `snapshots/`.
    pub(super) revision: String,
    label: String,
}

impl Snapshot {
    fn of_label(label: &v1::Label) -> Option<Self> {
        let path = label.name.strip_prefix("labels/").unwrap_or(&label.name);
        let mut parts = path.strip_prefix(LABELS)?.split('/');
        let (id, sandbox, template) = (parts.next()?, parts.next()?, parts.next()?);
        let template = String::from_utf8(HEXLOWER.decode(template.as_bytes()).ok()?).ok()?;
        let revision = plain_id(&label.snapshot);
        Some(Self { id: id.to_owned(), sandbox: sandbox.to_owned(), template, revision, label: label.name.clone() })
    }

    fn label_id(id: &str, sandbox: &v1::Sandbox) -> String {
        format!("{LABELS}{id}/{}/{}", sandbox.id, HEXLOWER.encode(sandbox.template.as_bytes()))
    }

    fn shown(&self) -> Value {
        shown(&self.id)
    }
}

fn shown(id: &str) -> Value {
    let names: &[&str] = if id.starts_with(UNNAMED) { &[] } else { &[id] };
    json!({"snapshotID": id, "names": names})
}

/// Returns whether a text can be the id of a snapshot.
fn is_snapshot_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain)
}

/// Finds a snapshot.
pub(super) async fn find_snapshot(caller: &Caller, id: &str) -> Result<Option<Snapshot>, Refusal> {
    if !is_snapshot_id(id) {
        return Ok(None);
    }
    Ok(snapshots(caller, &format!("{LABELS}{id}/")).await?.into_iter().next())
}

/// Returns the id of the home's snapshot that belongs to a snapshot; empty if there is none.
pub(super) async fn find_home(caller: &Caller, snapshot: &Snapshot) -> Result<String, Refusal> {
    let prefix = format!("{HOME_LABELS}{}", snapshot.id);
    let request = v1::ListLabelsRequest { prefix: prefix.clone(), ..v1::ListLabelsRequest::default() };
    let listed = caller.snapshots().list_labels(request).await?.into_inner();
    let found = listed.labels.iter().find(|label| label.name.strip_prefix("labels/") == Some(prefix.as_str()));
    Ok(found.map_or_else(String::new, |label| plain_id(&label.snapshot)))
}

/// Lists the snapshots whose labels begin with a prefix.
async fn snapshots(caller: &Caller, prefix: &str) -> Result<Vec<Snapshot>, Refusal> {
    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let request =
            v1::ListLabelsRequest { prefix: prefix.to_owned(), page_token, ..v1::ListLabelsRequest::default() };
        let listed = caller.snapshots().list_labels(request).await?.into_inner();
        found.extend(listed.labels.iter().filter_map(Snapshot::of_label));
        page_token = listed.next_page_token;
        if page_token.is_empty() {
            return Ok(found);
        }
    }
}

impl Control<'_> {
    pub(super) async fn create_snapshot(&self, id: &str, body: Body) -> Answer {
        let request: SnapshotBody = read(body).await?;
        refuse_memory("memory", request.memory)?;
        let name = request.name.as_deref().map(|name| name.split_once(':').map_or(name, |(name, _)| name));
        let name = name.filter(|name| !name.is_empty());
        if name.is_some_and(|name| !is_snapshot_id(name) || name.starts_with(UNNAMED)) {
            let message = "name: up to 64 of a-z, A-Z, 0-9, - and _; names that begin with `snap-` are taken";
            return Err(Refusal::invalid(message));
        }
        let sandbox = self.running(id).await?;
        let snapshot_id = match name {
            Some(name) => name.to_owned(),
            None => new_id()?,
        };
        let home = self.commit_home(&sandbox, &snapshot_id).await?;
        let revision = self.commit(&sandbox, &snapshot_id).await?;
        // A name belongs to the newest snapshot.
        if let Some(before) = find_snapshot(&self.caller, &snapshot_id).await? {
            self.delete_snapshot_labels(&before).await?;
        }
        if let Some(revision) = home {
            let label_id = format!("{HOME_LABELS}{snapshot_id}");
            let request = v1::SetLabelRequest { label_id, revision, ..v1::SetLabelRequest::default() };
            self.caller.snapshots().set_label(request).await?;
        }
        let label_id = Snapshot::label_id(&snapshot_id, &sandbox);
        let request = v1::SetLabelRequest { label_id, revision, ..v1::SetLabelRequest::default() };
        self.caller.snapshots().set_label(request).await?;
        Ok(json_answer(StatusCode::CREATED, &shown(&snapshot_id)))
    }

    /// Commits the home of a sandbox. Returns its snapshot; `None` for a sandbox without a home of its own.
    async fn commit_home(&self, sandbox: &v1::Sandbox, snapshot_id: &str) -> Result<Option<String>, Refusal> {
        if sandbox.home.is_empty() {
            return Ok(None);
        }
        let request = v1::CommitWorkspaceRequest {
            name: sandbox.home.clone(),
            message: format!("snapshot {snapshot_id} of the home of sandbox {}", sandbox.id),
            ..v1::CommitWorkspaceRequest::default()
        };
        let committed = self.caller.workspaces().commit_workspace(request).await?.into_inner();
        Ok(committed.snapshot.map(|snapshot| plain_id(&snapshot.name)))
    }

    /// Commits the workspace of a sandbox. Returns its snapshot.
    async fn commit(&self, sandbox: &v1::Sandbox, snapshot_id: &str) -> Result<String, Refusal> {
        let request = || v1::CommitWorkspaceRequest {
            name: sandbox.workspace.clone(),
            message: format!("snapshot {snapshot_id} of sandbox {}", sandbox.id),
            ..v1::CommitWorkspaceRequest::default()
        };
        let committed = self.caller.workspaces().commit_workspace(request()).await?.into_inner();
        let snapshot = match committed.snapshot {
            Some(snapshot) => snapshot,
            None => {
                let state = v1::SetStateRequest {
                    workspace: sandbox.workspace.clone(),
                    key: STATE_KEY.to_owned(),
                    json: "{}".to_owned(),
                    ..v1::SetStateRequest::default()
                };
                self.caller.states().set_state(state).await?;
                let committed = self.caller.workspaces().commit_workspace(request()).await?.into_inner();
                let nothing = || Refusal::new(Code::Internal, "the workspace has no snapshot");
                committed.snapshot.ok_or_else(nothing)?
            }
        };
        Ok(plain_id(&snapshot.name))
    }

    pub(super) async fn list_snapshots(&self) -> Answer {
        let query = pairs(self.head.uri.query());
        let page = Page::of(&query)?;
        let asked = |name: &str| query.iter().find(|(key, value)| key == name && !value.is_empty());
        let (sandbox, name) = (asked("sandboxID").map(|(_, id)| id), asked("name").map(|(_, name)| name));
        let takes = |snapshot: &&Snapshot| {
            sandbox.is_none_or(|sandbox| *sandbox == snapshot.sandbox) && name.is_none_or(|name| *name == snapshot.id)
        };
        let found = snapshots(&self.caller, LABELS).await?;
        page.answer(found.iter().filter(takes).map(Snapshot::shown).collect())
    }

    pub(super) async fn delete_snapshot(&self, id: &str) -> Answer {
        let name = id.split_once(':').map_or(id, |(name, _)| name);
        let missing = || Refusal::not_found(format!("snapshot {} was not found", id.escape_debug()));
        let found = find_snapshot(&self.caller, name).await?.ok_or_else(missing)?;
        self.delete_snapshot_labels(&found).await?;
        no_content()
    }

    async fn delete_snapshot_labels(&self, snapshot: &Snapshot) -> Result<(), Refusal> {
        if !find_home(&self.caller, snapshot).await?.is_empty() {
            self.delete_label(&format!("labels/{HOME_LABELS}{}", snapshot.id)).await?;
        }
        self.delete_label(&snapshot.label).await
    }

    async fn delete_label(&self, name: &str) -> Result<(), Refusal> {
        let request = v1::DeleteLabelRequest { name: name.to_owned(), ..v1::DeleteLabelRequest::default() };
        self.caller.snapshots().delete_label(request).await?;
        Ok(())
    }
}

/// Removes the prefix `snapshots/` from the resource name of a snapshot.
fn plain_id(name: &str) -> String {
    name.strip_prefix("snapshots/").unwrap_or(name).to_owned()
}

fn new_id() -> Result<String, Refusal> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
    Ok(format!("{UNNAMED}{}", BASE32_NOPAD.encode(&random).to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_what_is_asked_about_a_snapshot() {
        let sandbox =
            v1::Sandbox { id: "sbx-1".to_owned(), template: "images/python:3".to_owned(), ..v1::Sandbox::default() };
        let name = format!("labels/{}", Snapshot::label_id("mine", &sandbox));
        let label = v1::Label { name: name.clone(), snapshot: "snapshots/abc".to_owned() };
        let snapshot = Snapshot::of_label(&label).expect("one of ours");
        let expected = Snapshot {
            id: "mine".to_owned(),
            sandbox: "sbx-1".to_owned(),
            template: "images/python:3".to_owned(),
            revision: "abc".to_owned(),
            label: name,
        };
        assert_eq!(snapshot, expected);
        assert_eq!(snapshot.shown(), json!({"snapshotID": "mine", "names": ["mine"]}));
        for other in ["labels/templates/x", "labels/e2b-snapshots/a", "labels/e2b-snapshots/a/b/zz"] {
            let label = v1::Label { name: other.to_owned(), ..v1::Label::default() };
            assert!(Snapshot::of_label(&label).is_none(), "{other}");
        }
    }

    #[test]
    fn ids_of_abuse_are_no_snapshots() {
        let long = "a".repeat(65);
        for id in ["", "a/b", "..", "a b", "a\0", &long] {
            assert!(!is_snapshot_id(id), "{id:?}");
        }
        assert!(is_snapshot_id("snap-abc234") && is_snapshot_id("My_snapshot-1"));
    }
}
