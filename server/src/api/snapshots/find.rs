//! Paths and lines that match a pattern.

use std::collections::HashSet;

use amalgam_conflicts::{Style, render_entry};
use amalgam_engine::content::read_at;
use amalgam_engine::history::LogOrder;
use amalgam_engine::object::{Content, Node};
use amalgam_engine::{DiffOptions, Entry, SnapshotId, TreePath, diff_roots, entry_at, list_directory};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;
use globset::{Candidate, GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};

use super::super::Sender;
use super::past::{From, heads};
use super::{is_wanted, tree_paths};
use crate::context::Marks;
use crate::error::{Error, Result};
use crate::service::Service;

const MATCHES_AT_ONCE: usize = 64;
/// Larger files are not searched.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Files with a zero byte in their first bytes are binary, as in Git.
const BINARY_SAMPLE_BYTES: usize = 8_000;
/// Longer lines are cut.
const LINE_BYTES_MAX: usize = 4_096;

/// A glob that paths are compared with.
struct Pattern {
    glob: GlobMatcher,
    has_slash: bool,
    without_git: bool,
}

impl Pattern {
    fn new(text: &str, without_git: bool) -> Result<Self> {
        let wrong = |error: globset::Error| Error::new(Reason::Invalid, format!("`{text}`: {}", error.kind()));
        let plain = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
        let mut glob = GlobBuilder::new(plain.trim_start_matches('/'));
        let glob = glob.literal_separator(true).backslash_escape(true).build().map_err(wrong)?.compile_matcher();
        Ok(Self { glob, has_slash: plain.contains('/'), without_git })
    }

    fn matches(&self, path: &TreePath) -> bool {
        let bytes = path.as_bytes();
        let compared = if self.has_slash { bytes } else { bytes.rsplit(|byte| *byte == b'/').next().unwrap_or(bytes) };
        !(self.without_git && path.is_in_git()) && self.glob.is_match_candidate(&Candidate::from_bytes(compared))
    }
}

/// Every path that matches and is or was in a history: first those of the snapshots that the search begins from, then those that are
/// gone, newest first.
pub(super) fn paths(
    service: &Service,
    request: &v1::FindPathsRequest,
    sender: &Sender<v1::FindPathsResponse>,
) -> Result<()> {
    let here = service.context.here(&request.workspace)?;
    let pattern = Pattern::new(&request.pattern, request.without_git)?;
    let from = From { revisions: &request.revisions, all: request.all, project: request.project };
    let heads = heads(service, &from, here.as_ref())?;
    let marks = service.context.marks();
    let mut search = PathSearch { service, pattern, marks, sender, seen: HashSet::new() };
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
    marks: Marks,
    sender: &'a Sender<v1::FindPathsResponse>,
    seen: HashSet<TreePath>,
}

impl PathSearch<'_> {
    /// Whether the whole tree of a snapshot is kept.
    fn has_tree(&self, id: SnapshotId) -> Result<bool> {
        Ok(!self.service.context.history.is_thinned(id)?)
    }

    fn tell(
        &mut self,
        path: &TreePath,
        entry: &Entry,
        newest: SnapshotId,
        removed_in: Option<SnapshotId>,
    ) -> Result<()> {
        if !self.pattern.matches(path) || !self.seen.insert(path.clone()) {
            return Ok(());
        }
        let message = |id| self.service.context.snapshot_message(id, &self.marks);
        self.sender.send(v1::FindPathsResponse {
            entry: Some(amalgam_proto::entry(path, entry)),
            snapshot: Some(message(newest)?),
            removed_in: removed_in.map(message).transpose()?,
        })
    }

    /// The paths of a snapshot that the search begins from.
    fn present(&mut self, id: SnapshotId) -> Result<()> {
        if !self.has_tree(id)? {
            return Ok(());
        }
        let store = self.service.context.store.clone();
        let root = store.snapshot(id)?.root;
        for change in diff_roots(&store, None, Some(root), DiffOptions::default())? {
            let change = change?;
            if let Some(entry) = &change.after {
                self.tell(&change.path, entry, id, None)?;
            }
        }
        Ok(())
    }

    /// The paths that a snapshot has no more. A parent whose tree was dropped gives way to the next one before it.
    fn removed(&mut self, mut parent: SnapshotId, child: SnapshotId) -> Result<()> {
        if !self.has_tree(child)? {
            return Ok(());
        }
        let store = self.service.context.store.clone();
        while !self.has_tree(parent)? {
            let next = store.snapshot(parent)?.parents.first().copied();
            let Some(next) = next else { return Ok(()) };
            parent = next;
        }
        let root = |id| store.snapshot(id).map(|snapshot| snapshot.root).map_err(Error::from);
        let diff = diff_roots(&store, Some(root(parent)?), Some(root(child)?), DiffOptions::default());
        for change in diff? {
            let change = change?;
            if let (Some(entry), None) = (&change.before, &change.after) {
                self.tell(&change.path, entry, parent, Some(child))?;
            }
        }
        Ok(())
    }
}

/// The lines of a tree that match a pattern, file by file.
pub(super) fn lines(
    service: &Service,
    request: &v1::SearchFilesRequest,
    sender: &Sender<v1::SearchFilesResponse>,
) -> Result<()> {
    let wanted = tree_paths(&request.paths)?;
    let pattern = if request.fixed { regex::escape(&request.pattern) } else { request.pattern.clone() };
    let built = RegexBuilder::new(&pattern).case_insensitive(request.ignore_case).multi_line(true).build();
    let wrong = |error: regex::Error| Error::new(Reason::Invalid, format!("`{}`: {error}", request.pattern));
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
    let mut search = LineSearch { service, regex: built.map_err(wrong)?, sender, waiting: Vec::new() };
    let mut open: Vec<_> = top.map(|top| (TreePath::root(), top)).into_iter().collect();
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
    regex: Regex,
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
        if text[..text.len().min(BINARY_SAMPLE_BYTES)].contains(&0) {
            if self.regex.is_match(&text) {
                self.found(v1::MatchedLine { path: name, binary: true, ..Default::default() })?;
            }
            return Ok(());
        }
        for (number, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !self.regex.is_match(line) {
                continue;
            }
            let shown = &line[..line.len().min(LINE_BYTES_MAX)];
            self.found(v1::MatchedLine {
                path: name.clone(),
                line: number as u64 + 1,
                text: Bytes::copy_from_slice(shown),
                binary: false,
            })?;
        }
        Ok(())
    }

    /// The bytes of a file; nothing for an entry without bytes, a purged one, or one that is too large. A conflict is searched as it is shown.
    fn text(&self, path: &TreePath, entry: &Entry) -> Result<Option<Vec<u8>>> {
        let store = &self.service.context.store;
        let session = store.session();
        let shown = match &entry.node {
            Node::Conflict(conflict) => {
                let caption = self.service.conflicts.captioner().caption(path, conflict);
                render_entry(store, &session, conflict, Style::Markers, &caption)?
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
            Err(amalgam_engine::Error::Purged { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
