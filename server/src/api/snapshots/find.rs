//! Paths and lines that match a pattern.

use std::collections::HashSet;

use amalgam_conflicts::{Style, render_entry};
use amalgam_engine::content::read_at;
use amalgam_engine::history::LogOrder;
use amalgam_engine::object::{Content, Node};
use amalgam_engine::{
    DiffOptions, Entry, Error as EngineError, SnapshotId, TreePath, diff_roots, entry_at, list_directory,
};
use amalgam_proto::v1;
use bytes::Bytes;

use super::super::Sender;
use super::past::{From, heads};
use super::paths::{is_wanted, tree_paths};
use crate::conflicts::CaptionSource;
use crate::conflicts::captions::Captioner;
use crate::context::ShownNames;
use crate::error::{Error, Result};
use crate::files::{FILE_BYTES_MAX, Glob, LineMatcher};
use crate::permissions::VisibleEntries;
use crate::service::Service;

const MATCHES_AT_ONCE: usize = 64;

/// A glob that paths are compared with.
struct Pattern {
    glob: Glob,
    without_git: bool,
}

impl Pattern {
    fn new(text: &str, without_git: bool) -> Result<Self> {
        Ok(Self { glob: Glob::new(text)?, without_git })
    }

    fn matches(&self, path: &TreePath) -> bool {
        !(self.without_git && path.is_in_git()) && self.glob.matches(path)
    }
}

/// Sends every path that matches and is or was in a history: first the paths of the snapshots that the search begins from, then
/// removed ones, newest first.
pub(super) fn paths(
    service: &Service,
    request: &v1::FindPathsRequest,
    sender: &Sender<v1::FindPathsResponse>,
) -> Result<()> {
    let here = service.context.here(&request.workspace)?;
    let pattern = Pattern::new(&request.pattern, request.without_git)?;
    let from = From { revisions: &request.revisions, all: request.all, project: request.project };
    let heads = heads(service, &from, here.as_ref())?;
    let names = service.context.shown_names();
    let guard = service.context.permissions.reading(here.as_ref())?;
    let visible = VisibleEntries::new(&service.context.store, guard);
    let mut search = PathSearch { service, pattern, names, visible, sender, seen: HashSet::new() };
    for head in &heads {
        search.present(*head)?;
    }
    for entry in service.context.history.log(&heads, LogOrder::Time)? {
        let entry = entry?;
        for parent in &entry.snapshot.parents {
            search.removed(*parent, entry.id)?;
        }
    }
    Ok(())
}

struct PathSearch<'a> {
    service: &'a Service,
    pattern: Pattern,
    names: ShownNames,
    visible: VisibleEntries,
    sender: &'a Sender<v1::FindPathsResponse>,
    seen: HashSet<TreePath>,
}

impl PathSearch<'_> {
    /// Returns whether the whole tree of a snapshot is kept.
    fn has_tree(&self, id: SnapshotId) -> Result<bool> {
        Ok(!self.service.context.history.is_thinned(id)?)
    }

    /// Sends a path that matches, once. `newest` is the snapshot that has the entry.
    fn send(
        &mut self,
        path: &TreePath,
        entry: &Entry,
        newest: SnapshotId,
        removed_in: Option<SnapshotId>,
    ) -> Result<()> {
        let is_new = self.pattern.matches(path) && !self.seen.contains(path);
        if !is_new || !self.visible.is_visible(newest, path, entry)? {
            return Ok(());
        }
        self.seen.insert(path.clone());
        let message = |id| self.service.context.snapshot_message(id, &self.names);
        self.sender.send(v1::FindPathsResponse {
            entry: Some(amalgam_proto::entry(path, entry)),
            snapshot: Some(message(newest)?),
            removed_in: removed_in.map(message).transpose()?,
        })
    }

    /// Sends the matching paths of a snapshot that the search begins from.
    fn present(&mut self, id: SnapshotId) -> Result<()> {
        if !self.has_tree(id)? {
            return Ok(());
        }
        let store = self.service.context.store.clone();
        let root = store.snapshot(id)?.root;
        for change in diff_roots(&store, None, Some(root), DiffOptions::default())? {
            let change = change?;
            if let Some(entry) = &change.after {
                self.send(&change.path, entry, id, None)?;
            }
        }
        Ok(())
    }

    /// Returns a snapshot, or its nearest first-parent ancestor, whose whole tree is kept; `None` if the history ends before.
    fn nearest_with_tree(&self, mut id: SnapshotId) -> Result<Option<SnapshotId>> {
        loop {
            let snapshot = match self.service.context.store.snapshot(id) {
                Ok(snapshot) => snapshot,
                // Its record was collected: the history ends here.
                Err(EngineError::Missing { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if self.has_tree(id)? {
                return Ok(Some(id));
            }
            let Some(next) = snapshot.parents.first() else { return Ok(None) };
            id = *next;
        }
    }

    /// Sends the matching paths that a snapshot removed. A parent whose tree was dropped is replaced by its nearest first-parent
    /// ancestor with a tree.
    fn removed(&mut self, parent: SnapshotId, child: SnapshotId) -> Result<()> {
        if !self.has_tree(child)? {
            return Ok(());
        }
        let Some(parent) = self.nearest_with_tree(parent)? else { return Ok(()) };
        let store = self.service.context.store.clone();
        let root = |id| store.snapshot(id).map(|snapshot| snapshot.root).map_err(Error::from);
        let diff = diff_roots(&store, Some(root(parent)?), Some(root(child)?), DiffOptions::default());
        for change in diff? {
            let change = change?;
            if let (Some(entry), None) = (&change.before, &change.after) {
                self.send(&change.path, entry, parent, Some(child))?;
            }
        }
        Ok(())
    }
}

/// Sends the lines of a tree that match a pattern, file by file.
pub(super) fn lines(
    service: &Service,
    request: &v1::SearchFilesRequest,
    sender: &Sender<v1::SearchFilesResponse>,
) -> Result<()> {
    let wanted = tree_paths(&request.paths)?;
    let matcher = LineMatcher::new(&request.pattern, request.fixed, request.ignore_case)?;
    let here = service.context.here(&request.workspace)?;
    let held = service.directories.hold_state(request.state.as_ref(), here.as_ref())?;
    let Some(root) = held.root else { return Ok(()) };
    let root = service.context.store.root(root)?;
    let top = entry_at(&service.context.store, &root, &TreePath::root())?;
    for path in &wanted {
        if entry_at(&service.context.store, &root, path)?.is_none() {
            return Err(held.not_found(path));
        }
    }
    let captioner = service.conflicts.captioner(CaptionSource::of(held.snapshot, here.as_ref()));
    let mut search = LineSearch { service, captioner, matcher, sender, waiting: Vec::new() };
    let mut open: Vec<_> = top.map(|top| (TreePath::root(), top)).into_iter().collect();
    let mut count = service.context.store.path_count();
    while let Some((path, entry)) = open.pop() {
        let Node::Directory(contents) = entry.node else {
            if is_wanted(&path, &wanted) {
                search.file(&path, &entry)?;
            }
            continue;
        };
        let mut below = Vec::new();
        for item in list_directory(&service.context.store, contents)? {
            let (name, entry) = item?;
            count.add(1)?;
            let path = path.join(&name);
            let leads_to_wanted =
                is_wanted(&path, &wanted) || wanted.iter().any(|wanted| wanted.below(&path).is_some());
            if leads_to_wanted && !(request.without_git && name.as_bytes() == b".git") {
                below.push((path, entry));
            }
        }
        open.extend(below.into_iter().rev());
    }
    search.flush()
}

struct LineSearch<'a> {
    service: &'a Service,
    captioner: Captioner<'a>,
    matcher: LineMatcher,
    sender: &'a Sender<v1::SearchFilesResponse>,
    waiting: Vec<v1::MatchedLine>,
}

impl LineSearch<'_> {
    fn flush(&mut self) -> Result<()> {
        self.sender.send(v1::SearchFilesResponse { matches: std::mem::take(&mut self.waiting) })
    }

    fn found(&mut self, found: v1::MatchedLine) -> Result<()> {
        self.waiting.push(found);
        if self.waiting.len() == MATCHES_AT_ONCE { self.flush() } else { Ok(()) }
    }

    fn file(&mut self, path: &TreePath, entry: &Entry) -> Result<()> {
        let Some(text) = self.text(path, entry)? else { return Ok(()) };
        let name = Bytes::copy_from_slice(path.as_bytes());
        let mut matches = Vec::new();
        self.matcher.each_match(&text, |line| {
            let text = Bytes::copy_from_slice(line.text);
            matches.push(v1::MatchedLine { path: name.clone(), line: line.line, text, binary: line.is_binary });
            Ok(true)
        })?;
        matches.into_iter().try_for_each(|found| self.found(found))
    }

    /// Returns the bytes of a file as it is rendered; `None` for an entry without bytes, a purged file, or one that is too large.
    fn text(&self, path: &TreePath, entry: &Entry) -> Result<Option<Vec<u8>>> {
        let store = &self.service.context.store;
        let session = store.session();
        let shown = match &entry.node {
            Node::Conflict(conflict) => {
                let caption = self.captioner.caption(path, conflict);
                let shown = render_entry(store, &session, conflict, Style::Markers, &caption)?;
                // If no directory shows the conflict, nothing has stored this text yet.
                session.write_all_ahead()?;
                shown
            }
            _ => None,
        };
        let Node::File { size, content } = shown.as_ref().unwrap_or(entry).node else { return Ok(None) };
        if size > FILE_BYTES_MAX || content == Content::Empty {
            return Ok(None);
        }
        let mut bytes = vec![0; size as usize];
        match read_at(store, &content, size, 0, &mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            Err(EngineError::Purged { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::object::Snapshot;
    use amalgam_engine::workspace::{NewWorkspace, WorkspaceName};
    use amalgam_engine::{Time, WorkingTree};
    use tokio_stream::StreamExt as _;

    use super::super::super::Api;
    use super::*;
    use crate::home::Home;
    use crate::serve::Calls;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_search_ends_at_a_parent_without_a_record() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let store = &service.context.store;
        let mut tree = WorkingTree::new(store);
        tree.write("kept", b"x").expect("written");
        let session = store.session();
        let root = tree.freeze().write(&session).expect("written");
        let snapshot = Snapshot {
            root,
            parents: vec![SnapshotId::of(b"collected")],
            author: "ann".to_owned(),
            time: Time(5),
            message: "after it".to_owned(),
            metadata: Default::default(),
            generation: 1,
        };
        let id = session.put_snapshot(snapshot).expect("put");
        session.write_all_ahead().expect("written");
        let name = WorkspaceName::new("main").expect("a name");
        let new = NewWorkspace { from: Some(id), ..NewWorkspace::default() };
        service.context.workspaces.create(&name, &new, &service.context.act("ann")).expect("created");
        drop(session);

        let request = v1::FindPathsRequest {
            workspace: "workspaces/main".to_owned(),
            pattern: "kept".to_owned(),
            ..Default::default()
        };
        let api = Api::new(service, Calls::new(), crate::api::Origin::Local);
        let search = move |service: &Service, sender: &Sender<v1::FindPathsResponse>| paths(service, &request, sender);
        let answers: Vec<_> = api.stream("ada", search).expect("begun").into_inner().collect().await;
        let found: Vec<_> =
            answers.into_iter().map(|answer| answer.expect("no failure").entry.expect("an entry")).collect();
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
