//! Conflicts for the wire, and the bytes of their versions.

use amalgam_conflicts::{render, terms, without_draft, word};
use amalgam_engine::conflict::{self, PlacedConflict, replay};
use amalgam_engine::content::read_at;
use amalgam_engine::object::Node;
use amalgam_engine::{Act, Bare, Entry, TreePath};
use amalgam_proto::{Failure, Reason, v1};
use bytes::Bytes;

use crate::failure::{Result, of_engine};
use crate::service::Service;

const BLOCK_BYTES: u64 = 1 << 20;
const PAGE: usize = 500;

impl Service {
    /// A conflict for the wire.
    pub(crate) fn conflict_message(&self, placed: &PlacedConflict) -> Result<v1::Conflict> {
        let store = &self.inner.store;
        let whole = without_draft(store, &placed.conflict).map_err(of_engine)?;
        let versions = terms(store, &placed.conflict).map_err(of_engine)?.into_iter().map(|term| v1::ConflictVersion {
            name: term.word,
            entry: term.entry.as_ref().map(|entry| amalgam_proto::entry(&placed.path, entry)),
        });
        let rendered = render(store, &placed.conflict).map_err(of_engine)?;
        Ok(v1::Conflict {
            path: Bytes::copy_from_slice(placed.path.as_bytes()),
            kind: word(&whole).to_owned(),
            id: whole.bare().to_string(),
            versions: versions.collect(),
            regions: rendered.map_or(0, |rendered| rendered.regions as u32),
            remembered: replay(store, &whole).map_err(of_engine)?.is_some(),
        })
    }

    /// The conflicts of a state.
    pub(crate) fn list_conflicts(
        &self,
        request: &v1::ListConflictsRequest,
        limit: usize,
    ) -> Result<v1::ListConflictsResponse> {
        let here = self.here(&request.workspace)?;
        let held = self.hold_state(request.state.as_ref(), here.as_ref())?;
        let Some(root) = held.root else { return Ok(v1::ListConflictsResponse::default()) };
        let paths = tree_paths(&request.paths)?;
        let placed = self.conflicts_of(root, None)?;
        let before = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| Failure::new(Reason::Invalid, "page_token: no number"))?,
        };
        let found = placed.iter().filter(|placed| is_wanted(&paths, &placed.path));
        let page: Vec<_> = found.skip(before).take(limit).collect();
        let next = (page.len() == limit).then(|| before.saturating_add(limit).to_string());
        let conflicts = page.into_iter().map(|placed| self.conflict_message(placed)).collect::<Result<_>>()?;
        Ok(v1::ListConflictsResponse { conflicts, next_page_token: next.unwrap_or_default() })
    }

    /// One conflict, and the bytes of one of its versions.
    pub(crate) fn read_conflict(
        &self,
        request: &v1::ReadConflictRequest,
        mut send: impl FnMut(v1::ReadConflictResponse) -> Result<()>,
    ) -> Result<()> {
        let here = self.here(&request.workspace)?;
        let held = self.hold_state(request.state.as_ref(), here.as_ref())?;
        let path = TreePath::new(&request.path[..]).map_err(|source| of_engine(source.into()))?;
        let none = || Failure::new(Reason::NotFound, format!("there is no conflict at {path}"));
        let root = held.root.ok_or_else(none)?;
        let placed = self.conflicts_of(root, None)?;
        let placed = placed.iter().find(|placed| placed.path == path).ok_or_else(none)?;
        let mut message = Some(self.conflict_message(placed)?);
        let store = &self.inner.store;
        let session = store.session();
        let entry = if request.version.is_empty() {
            amalgam_conflicts::shown_as(store, &session, &placed.conflict, Default::default()).map_err(of_engine)?
        } else {
            let terms = terms(store, &placed.conflict).map_err(of_engine)?;
            let words: Vec<_> = terms.iter().map(|term| term.word.clone()).collect();
            let found = terms.into_iter().find(|term| term.word == request.version);
            let unknown = || {
                let message = format!("{path} has no version {}; it has {}", request.version, words.join(", "));
                Failure::new(Reason::Invalid, message)
            };
            found.ok_or_else(unknown)?.entry
        };
        match entry {
            Some(Entry { node: Node::File { size, content }, .. }) => {
                let mut offset = 0;
                while offset < size || message.is_some() {
                    let mut block = vec![0; BLOCK_BYTES.min(size - offset) as usize];
                    if !block.is_empty() {
                        read_at(store, &content, size, offset, &mut block).map_err(of_engine)?;
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

    /// The resolutions that are remembered.
    pub(crate) fn list_resolutions(
        &self,
        request: &v1::ListResolutionsRequest,
        limit: usize,
    ) -> Result<v1::ListResolutionsResponse> {
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(Bare::from_hex(token).ok_or_else(|| Failure::new(Reason::Invalid, "page_token: no hash"))?),
        };
        let found = conflict::remembered(&self.inner.store, after, limit).map_err(of_engine)?;
        let next = if found.len() == limit { found.last().map(|last| last.id.to_string()) } else { None };
        let resolutions = found.iter().map(|found| v1::Resolution {
            id: found.id.to_string(),
            path: Bytes::copy_from_slice(found.path.as_bytes()),
            entry: found.entry.as_ref().map(|entry| amalgam_proto::entry(&found.path, entry)),
        });
        Ok(v1::ListResolutionsResponse {
            resolutions: resolutions.collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }

    /// Forgets resolutions by the beginnings of their ids, or all.
    pub(crate) fn forget_resolutions(&self, request: &v1::ForgetResolutionsRequest, act: &Act) -> Result<u64> {
        if request.ids.is_empty() != request.all {
            return Err(Failure::new(Reason::Invalid, "name resolutions, or ask for all of them"));
        }
        let mut known = Vec::new();
        loop {
            let page = conflict::remembered(&self.inner.store, known.last().copied(), PAGE).map_err(of_engine)?;
            if page.is_empty() {
                break;
            }
            known.extend(page.iter().map(|found| found.id));
        }
        let mut wanted = if request.all { known.clone() } else { Vec::new() };
        for id in &request.ids {
            let mut found = known.iter().filter(|known| !id.is_empty() && known.to_string().starts_with(id.as_str()));
            match (found.next(), found.next()) {
                (Some(one), None) => wanted.push(*one),
                (None, _) => {
                    return Err(Failure::new(Reason::NotFound, format!("no resolution {id} is remembered")));
                }
                _ => return Err(Failure::new(Reason::Ambiguous, format!("{id} stands for several resolutions"))),
            }
        }
        let act = Act { request: None, ..act.clone() };
        let mut forgotten = 0;
        for id in wanted {
            let done = conflict::forget(&self.inner.store, id, &act).map_err(of_engine)?;
            forgotten += u64::from(done.is_some());
        }
        Ok(forgotten)
    }
}

/// Paths of a request.
pub(super) fn tree_paths(paths: &[Bytes]) -> Result<Vec<TreePath>> {
    paths.iter().map(TreePath::new).collect::<Result<_, _>>().map_err(|source| of_engine(source.into()))
}

/// Whether a path is one of these or below one; all are without any.
pub(super) fn is_wanted(wanted: &[TreePath], path: &TreePath) -> bool {
    wanted.is_empty() || wanted.iter().any(|above| path.below(above).is_some())
}
