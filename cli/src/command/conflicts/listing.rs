//! Reads conflicts from the store, and describes one in a line.

use std::ffi::OsString;

use amalgam_proto::v1;
use serde_json::{Value, json};
use tonic::codegen::Bytes;

use crate::attached::{AttachedDirectory, path_behind_revision};
use crate::connect::Client;
use crate::error::CliError;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace, directory_state, revision_state};
use crate::text;

/// Maximum number of conflicts that one call returns.
const PAGE_SIZE: i32 = 500;

/// Returns the state to read: the given revision, or else the current state of the directory, or else the head.
pub fn state(place: Option<&AttachedDirectory>, rev: Option<&str>) -> v1::State {
    match (rev, place) {
        (Some(rev), _) => revision_state(rev),
        (None, Some(place)) => directory_state(place),
        (None, None) => revision_state("@"),
    }
}

pub fn tree_paths(
    session: &Session,
    place: Option<&AttachedDirectory>,
    given: &[OsString],
) -> Result<Vec<Bytes>, CliError> {
    let path = |path: &OsString| match place {
        Some(place) => place.tree_path(&session.cwd, path),
        None => path_behind_revision(None, &session.cwd, path),
    };
    given.iter().map(path).collect()
}

pub async fn list(
    client: &mut Client,
    place: Option<&AttachedDirectory>,
    rev: Option<&str>,
    paths: Vec<Bytes>,
) -> Result<Vec<v1::Conflict>, CliError> {
    list_at(client, current_workspace(place), state(place, rev), paths).await
}

/// Lists the conflicts of a state that a revision of this workspace, or of another one, names.
pub async fn list_at(
    client: &mut Client,
    workspace: String,
    state: v1::State,
    paths: Vec<Bytes>,
) -> Result<Vec<v1::Conflict>, CliError> {
    let mut request = v1::ListConflictsRequest {
        state: Some(state),
        workspace,
        paths,
        page_size: PAGE_SIZE,
        page_token: String::new(),
    };
    let mut found = Vec::new();
    loop {
        let page = client.conflicts.list_conflicts(request.clone()).await?.into_inner();
        found.extend(page.conflicts);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(found);
        }
    }
}

pub async fn read(
    client: &mut Client,
    place: Option<&AttachedDirectory>,
    state: v1::State,
    path: Bytes,
    version: &str,
) -> Result<(v1::Conflict, Vec<u8>), CliError> {
    let request = v1::ReadConflictRequest {
        state: Some(state),
        workspace: current_workspace(place),
        path,
        version: version.to_owned(),
    };
    let mut stream = client.conflicts.read_conflict(request).await?.into_inner();
    let (mut conflict, mut data) = (v1::Conflict::default(), Vec::new());
    while let Some(part) = stream.message().await? {
        conflict = part.conflict.unwrap_or(conflict);
        data.extend_from_slice(&part.data);
    }
    Ok((conflict, data))
}

pub fn line(conflict: &v1::Conflict) -> String {
    let regions = match conflict.regions {
        0 => String::new(),
        regions => format!(", {}", text::plural(u64::from(regions), "region")),
    };
    let draft = if conflict.versions.iter().any(|version| version.name == "draft") { ", begun" } else { "" };
    let remembered = if conflict.remembered { ", resolved before" } else { "" };
    let about = match conflict.about.is_empty() {
        true => places(conflict),
        false => format!(" {}", text::printable(&conflict.about)),
    };
    let words = format!("{}{about}{regions}{}{draft}{remembered}", conflict.kind, sides(conflict));
    let words = paint(style::FAINT, words);
    format!("{} {}  {words}", paint(style::WARNING, '!'), text::path(&conflict.path))
}

/// Lists the competing versions by their workspaces. Returns an empty string for two versions whose workspaces are not known.
fn sides(conflict: &v1::Conflict) -> String {
    let competing = conflict.versions.iter().step_by(2).filter(|version| version.name != "draft");
    let names: Vec<_> = competing.map(side).collect();
    let is_known = conflict.versions.iter().any(|version| !version.workspace.is_empty());
    if is_known || names.len() > 2 { format!(", of {}", names.join(", ")) } else { String::new() }
}

fn side(version: &v1::ConflictVersion) -> String {
    let name = if version.workspace.is_empty() { &version.name } else { &version.workspace };
    text::printable(name).to_string()
}

/// Describes the paths of the versions of a moved entry.
fn places(conflict: &v1::Conflict) -> String {
    let place = |version: &v1::ConflictVersion| match &version.entry {
        Some(entry) => format!("{} {}", version.name, text::path(&entry.path)),
        None => format!("{} nowhere", version.name),
    };
    match conflict.undecided {
        true => format!(": {}", conflict.versions.iter().map(place).collect::<Vec<_>>().join(", ")),
        false => String::new(),
    }
}

/// Returns the JSON line of a conflict.
pub fn json_line(conflict: &v1::Conflict) -> Value {
    let version = |version: &v1::ConflictVersion| {
        let mut object = json!({
            "name": version.name,
            "kind": version.entry.as_ref().map(|entry| text::kind_word(entry.kind())),
            "mode": version.entry.as_ref().map(|entry| format!("{:04o}", entry.mode)),
            "size": version.entry.as_ref().map(|entry| entry.size),
            "workspace": (!version.workspace.is_empty()).then_some(&version.workspace),
        });
        if let Some(entry) = version.entry.as_ref().filter(|_| conflict.undecided) {
            object = lines::with_path(object, &entry.path);
        }
        if let Some(value) = &version.value {
            lines::put_bytes(&mut object, "value", value);
        }
        object
    };
    let line = lines::line(
        "conflict",
        json!({
            "kind": conflict.kind,
            "id": conflict.id,
            "regions": conflict.regions,
            "remembered": conflict.remembered,
            "undecided": conflict.undecided,
            "about": (!conflict.about.is_empty()).then_some(&conflict.about),
            "versions": conflict.versions.iter().map(version).collect::<Vec<_>>(),
        }),
    );
    lines::with_path(line, &conflict.path)
}
