//! The history of a state.

use std::collections::HashSet;

use amalgam_engine::history::{LogOrder, PathChange, Version};
use amalgam_engine::{Error as EngineError, SnapshotId, TreePath, WorkspaceName};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::super::{Sender, page_size};
use super::paths::{tree_path, tree_paths};
use crate::context::ShownNames;
use crate::error::{Error, Result};
use crate::permissions::VisibleEntries;
use crate::service::Service;

/// Returns a page of a log. The token holds the number of snapshots before the page and the heads of the log, so that later commits
/// do not shift the pages. With more than [`TOKEN_HEADS_MAX`] heads, every page begins from the present ones.
pub(super) fn list(service: &Service, request: &v1::ListSnapshotsRequest) -> Result<v1::ListSnapshotsResponse> {
    let here = service.context.here(&request.workspace)?;
    let limit = page_size(request.page_size)?;
    let paths = tree_paths(&request.paths)?;
    paths.iter().try_for_each(|path| service.context.ensure_visible(path, here.as_ref()))?;
    let (known, skip) = match request.page_token.as_str() {
        "" => (Vec::new(), 0),
        token => read_token(token)?,
    };
    let heads = if known.is_empty() {
        let from = From { revisions: &request.revisions, all: request.all, project: request.project };
        heads(service, &from, here.as_ref())?
    } else {
        known
    };
    let history = &service.context.history;
    let excluded = ancestors(service, &request.exclude, here.as_ref())?;
    let is_listed = |id: &amalgam_engine::Result<SnapshotId>| id.as_ref().map_or(true, |id| !excluded.contains(id));
    let mut found: Vec<SnapshotId> = match &paths[..] {
        [] => {
            let log = history.log(&heads, LogOrder::Time)?;
            let ids = log.map(|entry| entry.map(|entry| entry.id)).filter(is_listed);
            ids.skip(skip).take(limit + 1).collect::<Result<_, _>>()?
        }
        [path] => {
            let [head] = heads[..] else {
                return Err(Error::new(Reason::Invalid, "with a path, name one revision at most"));
            };
            let mut visible = visible_entries(service, here.as_ref())?;
            let mut listed = Vec::new();
            for version in history.versions(head, path, false)? {
                let version = version?;
                if !excluded.contains(&version.id) && is_version_visible(service, &mut visible, &version)? {
                    listed.push(version.id);
                }
                if listed.len() > skip.saturating_add(limit) {
                    break;
                }
            }
            listed.split_off(skip.min(listed.len()))
        }
        _ => return Err(Error::new(Reason::Invalid, "name one path at most")),
    };
    let is_last = found.len() <= limit;
    found.truncate(limit);
    let names = service.context.shown_names();
    let snapshots = found.iter().map(|id| service.context.snapshot_message(*id, &names)).collect::<Result<_>>()?;
    let next_page_token = if is_last { String::new() } else { token(&heads, skip.saturating_add(limit)) };
    Ok(v1::ListSnapshotsResponse { snapshots, next_page_token })
}

/// The start of a search through history.
pub(super) struct From<'a> {
    /// Revisions; the workspace's head if there are none.
    pub(super) revisions: &'a [String],
    /// All workspaces and labels.
    pub(super) all: bool,
    /// All workspaces and labels that share history with the workspace.
    pub(super) project: bool,
}

/// Returns the snapshots from which a search through history begins.
pub(super) fn heads(service: &Service, from: &From<'_>, here: Option<&WorkspaceName>) -> Result<Vec<SnapshotId>> {
    if from.all || from.project {
        let heads = service.context.named_snapshots()?;
        return if from.all { Ok(heads) } else { related(service, heads, here) };
    }
    if from.revisions.is_empty() {
        let Some(here) = here else {
            return Err(Error::new(Reason::Invalid, "name a workspace or a snapshot to begin from"));
        };
        let head = service.context.workspaces.get(here)?.head;
        return Ok(head.into_iter().collect());
    }
    from.revisions.iter().map(|revision| service.context.resolve(revision, here)).collect()
}

/// Returns the snapshots of these revisions and all their ancestors.
fn ancestors(service: &Service, revisions: &[String], here: Option<&WorkspaceName>) -> Result<HashSet<SnapshotId>> {
    let heads = revisions.iter().map(|revision| service.context.resolve(revision, here)).collect::<Result<Vec<_>>>()?;
    let log = service.context.history.log(&heads, LogOrder::Generation)?;
    Ok(log.map(|entry| entry.map(|entry| entry.id)).collect::<Result<_, _>>()?)
}

/// Returns those heads whose history shares a snapshot with that of a workspace.
fn related(service: &Service, heads: Vec<SnapshotId>, here: Option<&WorkspaceName>) -> Result<Vec<SnapshotId>> {
    let Some(here) = here else {
        return Err(Error::new(Reason::Invalid, "name the workspace whose project is meant"));
    };
    let Some(head) = service.context.workspaces.get(here)?.head else { return Ok(Vec::new()) };
    let mut related = ancestors(service, &[head.to_string()], None)?;
    let mut unrelated = HashSet::new();
    let mut found = Vec::new();
    for head in heads {
        let (mut open, mut seen, mut meets) = (vec![head], HashSet::new(), false);
        while let Some(id) = open.pop() {
            if related.contains(&id) {
                meets = true;
            } else if !unrelated.contains(&id) && seen.insert(id) {
                match service.context.store.snapshot(id) {
                    Ok(snapshot) => open.extend(&snapshot.parents),
                    // Its record was collected: the history ends here.
                    Err(EngineError::Missing { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if meets {
            found.push(head);
            related.extend(seen);
        } else {
            unrelated.extend(seen);
        }
    }
    Ok(found)
}

/// The most heads that a page token holds. The token of a log with more heads holds none of them.
const TOKEN_HEADS_MAX: usize = 512;

fn token(heads: &[SnapshotId], skip: usize) -> String {
    let mut token = skip.to_string();
    let held: &[SnapshotId] = if heads.len() > TOKEN_HEADS_MAX { &[] } else { heads };
    for head in held {
        token.push('.');
        token.push_str(&head.to_string());
    }
    token
}

fn read_token(token: &str) -> Result<(Vec<SnapshotId>, usize)> {
    let wrong = || Error::new(Reason::Invalid, "page_token: not one of this call's");
    let mut parts = token.split('.');
    let skip = parts.next().and_then(|skip| skip.parse().ok()).ok_or_else(wrong)?;
    let heads = parts.map(|head| SnapshotId::from_hex(head).ok_or_else(wrong)).collect::<Result<_>>()?;
    Ok((heads, skip))
}

/// Returns the visibility filter for a call that reads stored snapshots.
fn visible_entries(service: &Service, here: Option<&WorkspaceName>) -> Result<VisibleEntries> {
    Ok(VisibleEntries::new(&service.context.store, service.context.permissions.reading(here)?))
}

/// Returns whether the caller can see a version of a path: the file that the snapshot has there, or the one that it
/// removed.
fn is_version_visible(service: &Service, visible: &mut VisibleEntries, version: &Version) -> Result<bool> {
    if let Some(entry) = &version.entry {
        return visible.is_visible(version.id, &version.path, entry);
    }
    for parent in &service.context.store.snapshot(version.id)?.parents {
        if !visible.is_path_visible(*parent, &version.path)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sends the snapshots that changed a path, at most as many as the request's limit.
pub(super) fn versions(
    service: &Service,
    request: &v1::ListVersionsRequest,
    sender: &Sender<v1::ListVersionsResponse>,
) -> Result<()> {
    let here = service.context.here(&request.workspace)?;
    let head = service.context.resolve(&request.revision, here.as_ref())?;
    let path = tree_path(&request.path)?;
    service.context.ensure_visible(&path, here.as_ref())?;
    let guard = service.context.permissions.reading(here.as_ref())?;
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let names = service.context.shown_names();
    let mut visible = visible_entries(service, here.as_ref())?;
    let mut sent = 0;
    for version in service.context.history.versions(head, &path, request.follow)? {
        let version = version?;
        // The file had a hidden path before: its visible history ends here.
        if !guard.is_visible(version.path.as_bytes(), false) {
            break;
        }
        if !is_version_visible(service, &mut visible, &version)? {
            continue;
        }
        let (kind, from) = match &version.change {
            PathChange::Added => (v1::ChangeKind::Added, None),
            PathChange::Removed => (v1::ChangeKind::Removed, None),
            PathChange::Modified => (v1::ChangeKind::Modified, None),
            PathChange::Renamed { from } => {
                let parent = version.snapshot.parents.first();
                let is_shown = parent.map_or(Ok(false), |parent| visible.is_path_visible(*parent, from))?;
                (v1::ChangeKind::Renamed, Some(from).filter(|_| is_shown))
            }
        };
        sender.send(v1::ListVersionsResponse {
            snapshot: Some(service.context.snapshot_message(version.id, &names)?),
            path: Bytes::copy_from_slice(version.path.as_bytes()),
            kind: kind.into(),
            from_path: from.map(|from| Bytes::copy_from_slice(from.as_bytes())).unwrap_or_default(),
            entry: version.entry.as_ref().map(|entry| amalgam_proto::entry(&version.path, entry)),
        })?;
        sent += 1;
        if sent == limit {
            break;
        }
    }
    Ok(())
}

/// Returns the snapshot from which each line of a file comes.
pub(super) fn blame(service: &Service, request: &v1::BlameFileRequest) -> Result<v1::BlameFileResponse> {
    let here = service.context.here(&request.workspace)?;
    let head = service.context.resolve(&request.revision, here.as_ref())?;
    let path = tree_path(&request.path)?;
    let mut visible = visible_entries(service, here.as_ref())?;
    if !visible.is_path_visible(head, &path)? {
        return Err(EngineError::NotFound { path }.into());
    }
    let blame = service.context.history.blame(head, &path)?;
    let names = ShownNames::default();
    let mut shown = |id: SnapshotId, path: &TreePath| {
        Ok::<_, Error>(match visible.is_path_visible(id, path)? {
            true => Bytes::copy_from_slice(path.as_bytes()),
            false => Bytes::new(),
        })
    };
    let run = |run: &amalgam_engine::history::BlamedLines| {
        Ok(v1::BlamedLines {
            first_line: run.lines.start as u64,
            lines: run.lines.len() as u64,
            snapshot: Some(service.context.snapshot_message(run.id, &names)?),
            path: shown(run.id, &run.path)?,
            original_first_line: run.first_line as u64,
        })
    };
    Ok(v1::BlameFileResponse { runs: blame.runs.iter().map(run).collect::<Result<_>>()?, text: blame.text })
}

/// Returns the next snapshot to try in a bisection; the first bad ones if none is left to try.
pub(super) fn bisect_step(
    service: &Service,
    request: &v1::NextBisectStepRequest,
) -> Result<v1::NextBisectStepResponse> {
    let here = service.context.here(&request.workspace)?;
    let all = |names: &[String]| {
        names.iter().map(|name| service.context.resolve(name, here.as_ref())).collect::<Result<Vec<_>>>()
    };
    let (good, skipped) = (all(&request.good)?, all(&request.skipped)?);
    let bad = service.context.resolve(&request.bad, here.as_ref())?;
    let step = service.context.history.bisect_step(&good, bad, &skipped)?;
    let names = service.context.shown_names();
    let message = |id: SnapshotId| service.context.snapshot_message(id, &names);
    let first_bad = if step.next.is_none() { &step.candidates[..] } else { &[] };
    Ok(v1::NextBisectStepResponse {
        candidates: step.candidates.len() as u64,
        first_bad: first_bad.iter().map(|id| message(*id)).collect::<Result<_>>()?,
        next: step.next.map(message).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use amalgam_engine::object::Snapshot;
    use amalgam_engine::{Time, WorkingTree, WriteSession};

    use super::*;
    use crate::home::Home;

    /// Puts snapshots without parents, and returns their names.
    fn put_snapshots(service: &Service, session: &WriteSession, count: usize) -> Vec<String> {
        let mut tree = WorkingTree::new(&service.context.store);
        tree.write("a", b"x").expect("written");
        let root = tree.freeze().write(session).expect("written");
        let put = |number: usize| {
            let snapshot = Snapshot {
                root,
                parents: Vec::new(),
                author: "ann".to_owned(),
                time: Time(5),
                message: number.to_string(),
                metadata: Default::default(),
                generation: 0,
            };
            session.put_snapshot(snapshot).expect("put").to_string()
        };
        let ids = (0..count).map(put).collect();
        session.write_all_ahead().expect("written");
        ids
    }

    #[test]
    fn pages_of_more_heads_than_a_token_holds_have_every_snapshot_once() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let session = service.context.store.session();
        let revisions = put_snapshots(&service, &session, TOKEN_HEADS_MAX + 2);
        let mut request = v1::ListSnapshotsRequest { revisions, page_size: 200, ..Default::default() };
        let mut listed = HashSet::new();
        loop {
            let page = list(&service, &request).expect("listed");
            for snapshot in page.snapshots {
                assert!(listed.insert(snapshot.name.clone()), "{} is listed twice", snapshot.name);
            }
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(listed.len(), TOKEN_HEADS_MAX + 2);
    }

    #[test]
    fn a_page_after_the_largest_number_of_snapshots_is_empty() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let session = service.context.store.session();
        let request = v1::ListSnapshotsRequest {
            revisions: put_snapshots(&service, &session, 1),
            paths: vec![Bytes::from_static(b"a")],
            page_token: usize::MAX.to_string(),
            ..Default::default()
        };
        assert!(list(&service, &request).expect("listed").snapshots.is_empty());
    }
}
