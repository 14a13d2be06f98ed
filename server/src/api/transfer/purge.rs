//! Purges: plans them, carries them out, and lists their tombstones.

use std::collections::BTreeSet;

use amalgam_engine::purge::{self, PurgeOptions, PurgeTarget};
use amalgam_engine::{ChunkId, Error as EngineError, ObjectId, ObjectKind, Tombstone, TreePath};
use amalgam_proto::{Reason, snapshot_name, timestamp, v1};
use bytes::Bytes;

use crate::api::page_size;
use crate::error::{Error, Result};
use crate::service::Service;

/// Plans a purge.
pub(super) fn plan(service: &Service, request: &v1::PlanPurgeRequest) -> Result<v1::PurgePlan> {
    let store = &service.context.store;
    let (target, options) = meant(service, request.target.as_ref(), request.everywhere)?;
    let operation = store.last_operation()?;
    let plan = purge::plan_purge(store, &target, &options)?;
    refuse_nothing(&target, &plan)?;
    let place = |place: &purge::PurgePlace| v1::PurgePlace {
        path: Bytes::copy_from_slice(place.path.as_bytes()),
        snapshots: place.snapshots.iter().copied().map(snapshot_name).collect(),
    };
    let snapshots: BTreeSet<_> = plan.places.iter().flat_map(|place| &place.snapshots).collect();
    let shared = plan.shared.iter().map(|shared| v1::SharedChunk {
        chunk: shared.chunk.to_string(),
        place: Some(place(&shared.place)),
        places_more: shared.places_more,
    });
    Ok(v1::PurgePlan {
        chunks: plan.chunks.len() as u64,
        bytes: plan.bytes,
        snapshots: snapshots.len() as u64,
        places: plan.places.iter().map(place).collect(),
        places_more: plan.places_more,
        shared: shared.collect(),
        purged_before: plan.purged_before.len() as u64,
        etag: operation.to_string(),
    })
}

/// Purges contents. The caller has exclusive use of the store.
pub(super) fn purge(service: &Service, request: &v1::PurgeContentRequest, actor: &str) -> Result<v1::PurgeResult> {
    let store = &service.context.store;
    let (target, options) = meant(service, request.target.as_ref(), request.everywhere)?;
    let operation = store.last_operation()?;
    if !request.etag.is_empty() && request.etag != operation.to_string() {
        let message = "the store has changed since the purge was planned; nothing was purged";
        return Err(Error::new(Reason::StaleHead, message).with("etag", operation.to_string()));
    }
    let plan = purge::plan_purge(store, &target, &options)?;
    refuse_nothing(&target, &plan)?;
    let act = service.context.act(actor);
    let done = purge::purge(store, &plan, &request.reason, &act)?;
    if service.context.home.pool_path().exists() {
        // The pool knows files only by their hashes; a file that is needed again is written again.
        let cleared = service.context.pool()?.clear();
        cleared.map_err(Error::io("remove the files that directories share"))?;
    }
    Ok(v1::PurgeResult { chunks: done.chunks, bytes: done.bytes })
}

/// Returns a page of the tombstones. The page token is the last object of the page before.
pub(super) fn list(service: &Service, request: &v1::ListTombstonesRequest) -> Result<v1::ListTombstonesResponse> {
    let after = match request.page_token.as_str() {
        "" => None,
        token => Some(buried(token).map_err(|_| Error::new(Reason::Invalid, "page_token: not one of this call's"))?),
    };
    let limit = page_size(request.page_size)?;
    let all = purge::tombstones(&service.context.store)?;
    let rest = all.iter().filter(|(id, _)| after.is_none_or(|after| *id > after));
    let tombstones: Vec<_> = rest.take(limit).map(|(id, tombstone)| tombstone_message(*id, tombstone)).collect();
    let last = tombstones.last().filter(|_| tombstones.len() == limit);
    let next_page_token = last.map(|last| last.object.clone()).unwrap_or_default();
    Ok(v1::ListTombstonesResponse { tombstones, next_page_token })
}

/// Removes a tombstone. Refuses an object that has none.
pub(super) fn forget(
    service: &Service,
    request: &v1::ForgetTombstoneRequest,
    actor: &str,
) -> Result<v1::ForgetTombstoneResponse> {
    let (store, id) = (&service.context.store, buried(&request.object)?);
    let found = store.tombstone(id)?;
    let act = service.context.act(actor);
    match found {
        Some(tombstone) if purge::forget_tombstone(store, id, &act)? => {
            Ok(v1::ForgetTombstoneResponse { tombstone: Some(tombstone_message(id, &tombstone)) })
        }
        _ => {
            let message = format!("{} was never purged here; `amalgam purge --list` shows what was", named(id));
            Err(Error::new(Reason::NotFound, message))
        }
    }
}

/// Parses the object of a tombstone, which is always a chunk.
fn buried(text: &str) -> Result<ObjectId> {
    let wrong = || Error::new(Reason::Invalid, format!("`{text}` is not chunk:ID with 64 hex digits"));
    let hex = text.strip_prefix("chunk:").unwrap_or(text);
    ChunkId::from_hex(hex).map(|chunk| chunk.object()).ok_or_else(wrong)
}

fn named(id: ObjectId) -> String {
    format!("{}:{}", id.kind.word(), ChunkId::from_bytes(id.hash))
}

fn tombstone_message(id: ObjectId, tombstone: &Tombstone) -> v1::Tombstone {
    v1::Tombstone {
        object: named(id),
        time: Some(timestamp(tombstone.time)),
        actor: tombstone.actor.clone(),
        reason: tombstone.reason.clone(),
    }
}

fn refuse_nothing(target: &PurgeTarget, plan: &purge::PurgePlan) -> Result<()> {
    if !(plan.chunks.is_empty() && plan.shared.is_empty() && plan.purged_before.is_empty()) {
        return Ok(());
    }
    let message = match target {
        PurgeTarget::Path(path) => format!("no snapshot has bytes of a file at {path}"),
        PurgeTarget::Object(id) => format!("no snapshot has bytes of {id}"),
    };
    Err(Error::new(Reason::NotFound, message))
}

fn meant(service: &Service, target: Option<&v1::PurgeTarget>, everywhere: bool) -> Result<(PurgeTarget, PurgeOptions)> {
    use v1::purge_target::Target;
    let target = match target.and_then(|target| target.target.as_ref()) {
        Some(Target::Path(path)) => PurgeTarget::Path(TreePath::new(path)?),
        Some(Target::Object(text)) => PurgeTarget::Object(object(service, text)?),
        None => return Err(Error::new(Reason::Invalid, "target: name a path or an object")),
    };
    Ok((target, PurgeOptions { everywhere }))
}

/// Finds an object by its kind and id, or by its id alone.
fn object(service: &Service, text: &str) -> Result<ObjectId> {
    let wrong = || Error::new(Reason::Invalid, format!("`{text}` is not chunk:ID or rope:ID with 64 hex digits"));
    let (kinds, hex) = match text.split_once(':') {
        Some(("chunk", hex)) => (&[ObjectKind::Chunk][..], hex),
        Some(("rope", hex)) => (&[ObjectKind::Rope][..], hex),
        Some(_) => return Err(wrong()),
        None => (&[ObjectKind::Chunk, ObjectKind::Rope][..], text),
    };
    let hash = ChunkId::from_hex(hex).ok_or_else(wrong)?.object().hash;
    for kind in kinds {
        let id = ObjectId { kind: *kind, hash };
        match service.context.store.canonical(id) {
            Ok(_) | Err(EngineError::Purged { .. }) => return Ok(id),
            Err(EngineError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::new(Reason::NotFound, format!("the store has no chunk and no rope {hex}")))
}
