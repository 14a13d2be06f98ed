//! Conflicts for the wire, and the bytes of their versions.

use amalgam_conflicts::{Style, kind_word, render_entry, render_text, terms, without_draft};
use amalgam_engine::conflict::{self, PlacedConflict, RememberedResolution, replay};
use amalgam_engine::content::read_at;
use amalgam_engine::merge::OpenDecision;
use amalgam_engine::object::Node;
use amalgam_engine::{Bare, Entry, OperationContext, RootId, TreePath};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::Conflicts;
use super::caption_source::CaptionSource;
use super::captions::Captioner;
use crate::context::HeldTree;
use crate::error::{Error, Result};

const BLOCK_BYTES: u64 = 1 << 20;
const PAGE: usize = 500;

/// A listed conflict: an entry of the tree, or a matter that a merge left undecided.
enum ListedConflict<'a> {
    Entry(&'a PlacedConflict),
    ConflictSubject(&'a OpenDecision),
}

impl Conflicts {
    /// Returns a conflict, for the wire.
    pub(crate) fn conflict_message(&self, placed: &PlacedConflict, captioner: &Captioner<'_>) -> Result<v1::Conflict> {
        let store = &self.context.store;
        let whole = without_draft(store, &placed.conflict)?;
        let caption = captioner.caption(&placed.path, &placed.conflict);
        let terms = terms(store, &placed.conflict)?.into_iter().enumerate();
        let versions = terms.map(|(at, term)| v1::ConflictVersion {
            name: term.word,
            entry: term.entry.as_ref().map(|entry| amalgam_proto::entry(&placed.path, entry)),
            value: None,
            workspace: caption.names.get(at / 2).filter(|_| at % 2 == 0).cloned().unwrap_or_default(),
        });
        let rendered = render_text(store, &placed.conflict, &caption)?;
        Ok(v1::Conflict {
            path: Bytes::copy_from_slice(placed.path.as_bytes()),
            kind: kind_word(&whole).to_owned(),
            id: whole.bare().to_string(),
            versions: versions.collect(),
            regions: rendered.map_or(0, |rendered| rendered.regions as u32),
            remembered: replay(store, &whole)?.is_some(),
            undecided: false,
            about: String::new(),
        })
    }

    /// Lists the conflicts of a state, whose tree the caller holds.
    pub(crate) fn list_conflicts(
        &self,
        request: &v1::ListConflictsRequest,
        held: &HeldTree,
        limit: usize,
    ) -> Result<v1::ListConflictsResponse> {
        let here = self.context.here(&request.workspace)?;
        let Some(root) = held.root else { return Ok(v1::ListConflictsResponse::default()) };
        let paths = tree_paths(&request.paths)?;
        let placed = self.conflicts_of(root, None)?;
        let before = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| Error::new(Reason::Invalid, "page_token: no number"))?,
        };
        let head = self.head_behind(request.state.as_ref(), held.snapshot, here.as_ref())?;
        let matters = self.matters_of(head, root)?;
        let found = placed.iter().filter(|placed| is_wanted(&paths, &placed.path)).map(ListedConflict::Entry);
        let undecided = matters.iter().filter(|matter| is_wanted(&paths, &matter.undecided.path));
        let page: Vec<_> =
            found.chain(undecided.map(ListedConflict::ConflictSubject)).skip(before).take(limit).collect();
        let next = (page.len() == limit).then(|| before.saturating_add(limit).to_string());
        let captioner = self.captioner(CaptionSource::of(head, here.as_ref()));
        let message = |found| match found {
            ListedConflict::Entry(placed) => self.conflict_message(placed, &captioner),
            ListedConflict::ConflictSubject(matter) => self.matter_message(matter, root),
        };
        let conflicts = page.into_iter().map(message).collect::<Result<_>>()?;
        Ok(v1::ListConflictsResponse { conflicts, next_page_token: next.unwrap_or_default() })
    }

    /// Sends one conflict of a state, whose tree the caller holds, and the bytes of one of its versions.
    pub(crate) fn read_conflict(
        &self,
        request: &v1::ReadConflictRequest,
        held: &HeldTree,
        mut send: impl FnMut(v1::ReadConflictResponse) -> Result<()>,
    ) -> Result<()> {
        let here = self.context.here(&request.workspace)?;
        let path = TreePath::new(&request.path[..])?;
        let none = || Error::new(Reason::NotFound, format!("there is no conflict at {path}"));
        let root = held.root.ok_or_else(none)?;
        let placed = self.conflicts_of(root, None)?;
        let head = self.head_behind(request.state.as_ref(), held.snapshot, here.as_ref())?;
        let Some(placed) = placed.iter().find(|placed| placed.path == path) else {
            let matters = self.matters_of(head, root)?;
            let matter = matters.iter().find(|matter| matter.undecided.path == path).ok_or_else(none)?;
            return self.read_matter(&self.matter_message(matter, root)?, root, &request.version, send);
        };
        let captioner = self.captioner(CaptionSource::of(head, here.as_ref()));
        let mut message = Some(self.conflict_message(placed, &captioner)?);
        let store = &self.context.store;
        let session = store.session();
        let entry = if request.version.is_empty() {
            let caption = captioner.caption(&path, &placed.conflict);
            let shown = render_entry(store, &session, &placed.conflict, Style::Markers, &caption)?;
            // If no directory shows the conflict, nothing has stored this text yet.
            session.write_all_ahead()?;
            shown
        } else {
            placed.conflict.terms()[self.term_named(placed, &request.version, &captioner)?].clone()
        };
        self.send_entry(entry, message.take(), &mut send)
    }

    /// Sends the conflict, then the bytes of a file or of a symlink's target.
    fn send_entry(
        &self,
        entry: Option<Entry>,
        mut message: Option<v1::Conflict>,
        send: &mut impl FnMut(v1::ReadConflictResponse) -> Result<()>,
    ) -> Result<()> {
        let store = &self.context.store;
        match entry {
            Some(Entry { node: Node::File { size, content }, .. }) => {
                let mut offset = 0;
                while offset < size || message.is_some() {
                    let mut block = vec![0; BLOCK_BYTES.min(size - offset) as usize];
                    if !block.is_empty() {
                        read_at(store, &content, size, offset, &mut block)?;
                    }
                    offset += block.len() as u64;
                    send(v1::ReadConflictResponse { conflict: message.take(), data: block.into() })?;
                }
                Ok(())
            }
            Some(Entry { node: Node::Symlink(target), .. }) => {
                send(v1::ReadConflictResponse { conflict: message, data: target })
            }
            _ => send(v1::ReadConflictResponse { conflict: message, data: Bytes::new() }),
        }
    }

    /// Sends a matter that is not an entry of the tree, with the bytes or the value of one version. Without a version, takes the
    /// first one that has a value: ours, or theirs where ours removed it.
    fn read_matter(
        &self,
        message: &v1::Conflict,
        root: RootId,
        version: &str,
        mut send: impl FnMut(v1::ReadConflictResponse) -> Result<()>,
    ) -> Result<()> {
        let has_any = |version: &&v1::ConflictVersion| version.entry.is_some() || version.value.is_some();
        let found = match version {
            "" => message.versions.iter().find(has_any),
            name => match message.versions.iter().find(|version| version.name == name) {
                Some(found) => Some(found),
                None => {
                    let words: Vec<_> = message.versions.iter().map(|version| version.name.as_str()).collect();
                    let path = String::from_utf8_lossy(&message.path);
                    let message = format!("{path} has no version {name}; it has {}", words.join(", "));
                    return Err(Error::new(Reason::Invalid, message));
                }
            },
        };
        let conflict = Some(message.clone());
        let place = found.and_then(|found| found.entry.as_ref()).map(|entry| TreePath::new(&entry.path[..]));
        let Some(place) = place.transpose()? else {
            let data = found.and_then(|found| found.value.clone()).unwrap_or_default();
            return send(v1::ReadConflictResponse { conflict, data });
        };
        let store = &self.context.store;
        let root = store.root(root)?;
        let entry = amalgam_engine::entry_at(store, &root, &place)?;
        self.send_entry(entry, conflict, &mut send)
    }

    /// Returns a page of the remembered resolutions.
    pub(crate) fn list_resolutions(
        &self,
        request: &v1::ListResolutionsRequest,
        limit: usize,
    ) -> Result<v1::ListResolutionsResponse> {
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(Bare::from_hex(token).ok_or_else(|| Error::new(Reason::Invalid, "page_token: no hash"))?),
        };
        let found = conflict::remembered(&self.context.store, after, limit)?;
        let next = if found.len() == limit { found.last().map(|last| last.id.to_string()) } else { None };
        let resolutions = found.iter().map(resolution_message).collect();
        Ok(v1::ListResolutionsResponse { resolutions, next_page_token: next.unwrap_or_default() })
    }

    /// Forgets the resolutions with these id prefixes, or all.
    pub(crate) fn forget_resolutions(
        &self,
        request: &v1::ForgetResolutionsRequest,
        act: &OperationContext,
    ) -> Result<v1::ForgetResolutionsResponse> {
        if request.ids.is_empty() != request.all {
            return Err(Error::new(Reason::Invalid, "name resolutions, or choose all"));
        }
        let mut known: Vec<RememberedResolution> = Vec::new();
        loop {
            let after = known.last().map(|found| found.id);
            let page = conflict::remembered(&self.context.store, after, PAGE)?;
            if page.is_empty() {
                break;
            }
            known.extend(page);
        }
        let mut wanted = if request.all { known.iter().collect() } else { Vec::new() };
        for id in &request.ids {
            let is_it = |known: &&RememberedResolution| !id.is_empty() && known.id.to_string().starts_with(id.as_str());
            let mut found = known.iter().filter(is_it);
            match (found.next(), found.next()) {
                // A request may name the same one twice.
                (Some(one), None) if wanted.iter().any(|wanted: &&RememberedResolution| wanted.id == one.id) => {}
                (Some(one), None) => wanted.push(one),
                (None, _) => {
                    return Err(Error::new(Reason::NotFound, format!("no resolution {id} is remembered")));
                }
                _ => {
                    return Err(Error::new(
                        Reason::Ambiguous,
                        format!("{id} is ambiguous: several resolutions begin so"),
                    ));
                }
            }
        }
        let act = OperationContext { request: None, ..act.clone() };
        let mut response = v1::ForgetResolutionsResponse::default();
        for found in wanted {
            if request.dry_run || conflict::forget(&self.context.store, found.id, &act)?.is_some() {
                response.resolutions.push(resolution_message(found));
            }
        }
        response.forgotten = response.resolutions.len() as u64;
        Ok(response)
    }
}

fn resolution_message(found: &RememberedResolution) -> v1::Resolution {
    v1::Resolution {
        id: found.id.to_string(),
        path: Bytes::copy_from_slice(found.path.as_bytes()),
        entry: found.entry.as_ref().map(|entry| amalgam_proto::entry(&found.path, entry)),
    }
}

/// Parses the paths of a request.
pub(super) fn tree_paths(paths: &[Bytes]) -> Result<Vec<TreePath>> {
    Ok(paths.iter().map(TreePath::new).collect::<Result<_, _>>()?)
}

/// Returns whether a path is one of `wanted` or below one. An empty `wanted` accepts every path.
pub(super) fn is_wanted(wanted: &[TreePath], path: &TreePath) -> bool {
    wanted.is_empty() || wanted.iter().any(|above| path.below(above).is_some())
}
