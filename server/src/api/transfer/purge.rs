//! Purges: what one would do, and doing it.

use std::collections::BTreeSet;

use amalgam_engine::purge::{self, PurgeOptions, PurgeTarget};
use amalgam_engine::{ChunkId, Error, ObjectId, ObjectKind, TreePath};
use amalgam_proto::{Failure, Reason, snapshot_name, v1};
use bytes::Bytes;

use crate::failure::{Result, of_engine};
use crate::service::Service;

/// What a purge would do.
pub(super) fn plan(service: &Service, request: &v1::PlanPurgeRequest) -> Result<v1::PurgePlan> {
    let store = &service.inner.store;
    let (target, options) = meant(service, request.target.as_ref(), request.everywhere)?;
    let operation = store.last_operation().map_err(of_engine)?;
    let plan = purge::plan_purge(store, &target, &options).map_err(of_engine)?;
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

/// Does it. Whoever calls has the store alone.
pub(super) fn purge(service: &Service, request: &v1::PurgeContentRequest, actor: &str) -> Result<v1::PurgeResult> {
    let store = &service.inner.store;
    let (target, options) = meant(service, request.target.as_ref(), request.everywhere)?;
    let operation = store.last_operation().map_err(of_engine)?;
    if !request.etag.is_empty() && request.etag != operation.to_string() {
        let message = "the store has changed since the purge was planned; nothing was purged";
        return Err(Failure::new(Reason::StaleHead, message).with("etag", operation.to_string()));
    }
    let plan = purge::plan_purge(store, &target, &options).map_err(of_engine)?;
    refuse_nothing(&target, &plan)?;
    let act = service.act(actor, "")?;
    let done = purge::purge(store, &plan, &request.reason, &act).map_err(of_engine)?;
    Ok(v1::PurgeResult { chunks: done.chunks, bytes: done.bytes })
}

fn refuse_nothing(target: &PurgeTarget, plan: &purge::PurgePlan) -> Result<()> {
    if !(plan.chunks.is_empty() && plan.shared.is_empty() && plan.purged_before.is_empty()) {
        return Ok(());
    }
    let message = match target {
        PurgeTarget::Path(path) => format!("no snapshot has bytes of a file at {path}"),
        PurgeTarget::Object(id) => format!("no snapshot has bytes of {id}"),
    };
    Err(Failure::new(Reason::NotFound, message))
}

fn meant(service: &Service, target: Option<&v1::PurgeTarget>, everywhere: bool) -> Result<(PurgeTarget, PurgeOptions)> {
    use v1::purge_target::Target;
    let target = match target.and_then(|target| target.target.as_ref()) {
        Some(Target::Path(path)) => PurgeTarget::Path(TreePath::new(path).map_err(|source| of_engine(source.into()))?),
        Some(Target::Object(text)) => PurgeTarget::Object(object(service, text)?),
        None => return Err(Failure::new(Reason::Invalid, "target: name a path or an object")),
    };
    Ok((target, PurgeOptions { everywhere }))
}

/// An object by its kind and id, or by its id alone.
fn object(service: &Service, text: &str) -> Result<ObjectId> {
    let wrong = || Failure::new(Reason::Invalid, format!("`{text}` is no chunk:ID or rope:ID with 64 hex digits"));
    let (kinds, hex) = match text.split_once(':') {
        Some(("chunk", hex)) => (&[ObjectKind::Chunk][..], hex),
        Some(("rope", hex)) => (&[ObjectKind::Rope][..], hex),
        Some(_) => return Err(wrong()),
        None => (&[ObjectKind::Chunk, ObjectKind::Rope][..], text),
    };
    let hash = ChunkId::from_hex(hex).ok_or_else(wrong)?.object().hash;
    for kind in kinds {
        let id = ObjectId { kind: *kind, hash };
        match service.inner.store.canonical(id) {
            Ok(_) | Err(Error::Purged { .. }) => return Ok(id),
            Err(Error::Missing { .. }) => {}
            Err(error) => return Err(of_engine(error)),
        }
    }
    Err(Failure::new(Reason::NotFound, format!("the store has no chunk and no rope {hex}")))
}
