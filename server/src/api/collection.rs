//! The gRPC methods of `CollectionService`: garbage collection and disk usage.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use amalgam_engine::{SnapshotId, Time};
use amalgam_gc::retention::Span;
use amalgam_gc::{PlannedAction, PlannedSnapshot, Progress};
use amalgam_proto::v1::collect_store_response::Event;
use amalgam_proto::v1::collection_service_server::CollectionService;
use amalgam_proto::v1::measure_exactly_request::Target;
use amalgam_proto::{Reason, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor};
use crate::calls::Kind;
use crate::collection::Subject;
use crate::collection::{CollectionReason, CollectionRequest};
use crate::error::{Error, Result};
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// The most snapshots of a plan in one message.
const PLAN_PART: usize = 500;

#[tonic::async_trait]
impl CollectionService for Api {
    type CollectStoreStream = Answers<v1::CollectStoreResponse>;
    type PlanCollectionStream = Answers<v1::PlanCollectionResponse>;
    type MeasureUsageStream = Answers<v1::MeasureUsageResponse>;
    type ListGrowthStream = Answers<v1::ListGrowthResponse>;

    async fn collect_store(&self, request: Request<v1::CollectStoreRequest>) -> Answer<Self::CollectStoreStream> {
        let (actor, request) = self.identified(request);
        self.run(&actor.clone(), Kind::Work, move |service, sender| {
            let _using = service.using();
            let mut told = Instant::now();
            let mut watch = |progress: &Progress| {
                if sender.is_closed() {
                    return ControlFlow::Break(());
                }
                if told.elapsed() < PROGRESS_EVERY {
                    return ControlFlow::Continue(());
                }
                told = Instant::now();
                let Progress { stage, done, total, deleted } = *progress;
                let progress = v1::CollectProgress { stage: stage.word().to_owned(), done, total, deleted };
                match sender.send(v1::CollectStoreResponse { event: Some(Event::Progress(progress)) }) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            };
            let grace = request.grace_seconds.map(span);
            let how =
                CollectionRequest { actor: &actor, dry_run: request.dry_run, grace, why: CollectionReason::Asked };
            let result = service.context.once(&actor, &request, || service.collections.collect(&how, &mut watch))?;
            sender.send(v1::CollectStoreResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn plan_collection(&self, request: Request<v1::PlanCollectionRequest>) -> Answer<Self::PlanCollectionStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| {
            let only = service.context.here(&request.workspace)?;
            if let Some(workspace) = &only {
                service.context.workspaces.get(workspace)?;
            }
            let (plan, grace) = service.collections.plan_collection(request.grace_seconds.map(span))?;
            let of_workspace = |planned: &&PlannedSnapshot| {
                only.as_ref().is_none_or(|only| planned.workspace.as_deref() == Some(only.as_str()))
            };
            let wanted: Vec<_> = plan.snapshots.iter().filter(of_workspace).collect();
            for part in wanted.chunks(PLAN_PART) {
                let snapshots = part.iter().map(|planned| planned_message(service, planned, grace));
                sender.send(v1::PlanCollectionResponse { snapshots: snapshots.collect::<Result<_>>()? })?;
            }
            Ok(())
        })
    }

    async fn get_collection(&self, request: Request<v1::GetCollectionRequest>) -> Answer<v1::GetCollectionResponse> {
        let caller = actor(&request);
        self.read(&caller, |service| service.collections.collection_message()).await
    }

    async fn pause_collection(
        &self,
        request: Request<v1::PauseCollectionRequest>,
    ) -> Answer<v1::PauseCollectionResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            service.context.once(&actor, &request, || {
                match request.paused {
                    true => service.collections.pause_collection(request.seconds.map_or(Span::Forever, span))?,
                    false => service.collections.resume_collection()?,
                }
                Ok(v1::PauseCollectionResponse {})
            })
        })
        .await
    }

    async fn confirm_clock(&self, request: Request<v1::ConfirmClockRequest>) -> Answer<v1::ConfirmClockResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let confirm = || Ok(v1::ConfirmClockResponse { counted_seconds: service.collections.confirm_clock() });
            service.context.once(&actor, &request, confirm)
        })
        .await
    }

    async fn measure_exactly(&self, request: Request<v1::MeasureExactlyRequest>) -> Answer<v1::MeasureExactlyResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.slow(&caller, Kind::Work, move |service, caller| match request.target.as_ref() {
            Some(Target::Workspace(name)) => {
                let workspace = amalgam_proto::workspace_id(name)?;
                service.context.workspaces.get(&workspace)?;
                let freed =
                    service.collections.measure_without(BTreeSet::from([workspace.reference()]), None, caller)?;
                Ok(v1::MeasureExactlyResponse { freed: Some(freed), subject: workspace.to_string() })
            }
            Some(Target::Revision(revision)) => {
                let here = service.context.here(&request.here)?;
                let held = service.context.hold_revision(revision, here.as_ref())?;
                let snapshot = held.snapshot.expect("a revision is a snapshot");
                // While the tree is held, none of its objects looks dead.
                drop(held);
                let freed = service.collections.measure_without(BTreeSet::new(), Some(snapshot), caller)?;
                Ok(v1::MeasureExactlyResponse { freed: Some(freed), subject: snapshot.short() })
            }
            None => Err(Error::new(Reason::Invalid, "name a workspace or a snapshot")),
        })
        .await
    }

    async fn measure_usage(&self, request: Request<v1::MeasureUsageRequest>) -> Answer<Self::MeasureUsageStream> {
        use v1::measure_usage_request::Target;
        use v1::measure_usage_response::Event;
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| {
            let subject = match &request.target {
                None => Subject::Store,
                Some(Target::Workspace(name)) => {
                    let workspace = amalgam_proto::workspace_id(name)?;
                    Subject::Workspace(workspace, usize::try_from(request.snapshots).unwrap_or(usize::MAX))
                }
                Some(Target::Revision(revision)) => {
                    Subject::Snapshot(known_snapshot(service, revision, &request.here)?)
                }
            };
            let mut told = Instant::now();
            let mut tell = |stage: &str, done, total| {
                if sender.is_closed() {
                    return ControlFlow::Break(());
                }
                if told.elapsed() < PROGRESS_EVERY {
                    return ControlFlow::Continue(());
                }
                told = Instant::now();
                let progress = v1::UsageProgress { stage: stage.to_owned(), done, total };
                match sender.send(v1::MeasureUsageResponse { event: Some(Event::Progress(progress)) }) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            };
            let events = service.collections.measure_usage(&subject, &mut tell)?;
            events.into_iter().try_for_each(|event| sender.send(v1::MeasureUsageResponse { event: Some(event) }))
        })
    }

    async fn list_growth(&self, request: Request<v1::ListGrowthRequest>) -> Answer<Self::ListGrowthStream> {
        use v1::list_growth_request::Target;
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| {
            let head = match &request.target {
                Some(Target::Workspace(name)) => {
                    let workspace = amalgam_proto::workspace_id(name)?;
                    service.context.workspaces.get(&workspace)?.head
                }
                Some(Target::Revision(revision)) => Some(known_snapshot(service, revision, &request.here)?),
                None => return Err(Error::new(Reason::Invalid, "name a workspace or a snapshot")),
            };
            let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
            let names = service.context.shown_names();
            for snapshot in service.collections.log_of(head, limit)? {
                let account = service.collections.growth_of(snapshot, &names)?;
                sender.send(v1::ListGrowthResponse { snapshot: Some(account) })?;
            }
            Ok(())
        })
    }
}

/// Resolves a revision to a snapshot whose record the store has. Its tree may have been dropped.
fn known_snapshot(service: &Service, revision: &str, here: &str) -> Result<SnapshotId> {
    let here = service.context.here(here)?;
    let snapshot = service.context.resolve(revision, here.as_ref())?;
    service.context.store.snapshot(snapshot)?;
    Ok(snapshot)
}

/// Converts seconds into a span. A number that does not fit into nanoseconds means forever.
fn span(seconds: u64) -> Span {
    let nanoseconds = i64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(1_000_000_000));
    nanoseconds.map_or(Span::Forever, Span::For)
}

fn planned_message(service: &Service, planned: &PlannedSnapshot, grace: Span) -> Result<v1::PlannedSnapshot> {
    // Rules are evaluated a grace time ago, so a tree that they release at `until` is dropped that much later.
    let later = |until: Time| match grace {
        Span::For(grace) => Some(Time(until.0.saturating_add(grace))),
        Span::Forever => None,
    };
    let (fate, why, go_time) = match &planned.action {
        PlannedAction::Thin if service.context.history.is_thinned(planned.id)? => (v1::Fate::Gone, String::new(), None),
        PlannedAction::Thin => (v1::Fate::Goes, String::new(), None),
        PlannedAction::KeepNamed(name) => (v1::Fate::Stays, name.clone(), None),
        PlannedAction::KeepByRule { why, until } => {
            let is_near = until.is_some_and(|until| until <= service.context.now());
            let caches = if planned.without_caches { ", without caches" } else { "" };
            (if is_near { v1::Fate::Soon } else { v1::Fate::Stays }, format!("{why}{caches}"), until.and_then(later))
        }
    };
    Ok(v1::PlannedSnapshot {
        snapshot: amalgam_proto::snapshot_name(planned.id),
        workspace: planned.workspace.as_ref().map(|name| format!("workspaces/{name}")).unwrap_or_default(),
        time: Some(amalgam_proto::timestamp(planned.time)),
        message: planned.message.clone(),
        automatic: planned.automatic,
        fate: fate.into(),
        why,
        go_time: go_time.map(amalgam_proto::timestamp),
    })
}
