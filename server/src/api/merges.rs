//! The gRPC methods of `MergeService`: merges, the queue and reviews.

use std::sync::Arc;

use amalgam_proto::Reason;
use amalgam_proto::v1;
use amalgam_proto::v1::merge_service_server::MergeService;
use bytes::Bytes;
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

use super::{Answers, Api, Step, actor, page_size};
use crate::call_log::{restricted_agent, workspace_id};
use crate::caller::{MergeState, MergeWatch, Origin};
use crate::calls::Kind;
use crate::error::{Error, Result};
use crate::merge_rules::check_rules;
use crate::merging::AfterMerge;
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// Returns the submission of a request. Refuses a request without one.
fn submission(asked: Option<v1::Submission>) -> Result<v1::Submission> {
    asked.ok_or_else(|| Error::new(Reason::Invalid, "submission: missing"))
}

/// Removes paths that are hidden from the caller from the result of a merge. The result is always `Some`.
pub(super) fn visible_merge(service: &Service, mut merge: v1::Merge) -> Result<Option<v1::Merge>> {
    let guard = service.context.permissions.reading(None)?;
    if guard.hides() {
        let is_shown = |path: &Bytes| guard.is_visible(path, false);
        merge.files.retain(|file| is_shown(&file.path));
        merge.conflicts.retain(|file| is_shown(&file.path));
        merge.files.iter_mut().chain(&mut merge.conflicts).for_each(|file| file.others.retain(is_shown));
        merge.refused.retain(|refused| is_shown(&refused.path));
        merge.notices.retain(|notice| is_shown(&notice.path));
        let clashes = merge.sources.iter_mut().flat_map(|source| &mut source.clashes);
        clashes.for_each(|clash| clash.paths.retain(is_shown));
        // The reason may name paths that only the agent of the source can see.
        if !is_own_merge(service, &merge)? && !service.context.permissions.is_reviewer()? {
            merge.reason.clear();
        }
    }
    Ok(Some(merge))
}

/// Returns whether all sources of a merge are workspaces of the caller's agent.
fn is_own_merge(service: &Service, merge: &v1::Merge) -> Result<bool> {
    let Some(caller) = restricted_agent() else { return Ok(true) };
    for source in &merge.sources {
        let name = amalgam_proto::workspace_id(&source.workspace)?;
        if service.context.workspaces.find(&name)?.is_none_or(|found| found.agent != caller) {
            return Ok(false);
        }
    }
    Ok(!merge.sources.is_empty())
}

/// Returns the progress of a submission, for the wire.
fn submit_progress(state: &MergeState) -> v1::SubmitProgress {
    v1::SubmitProgress {
        stage: state.stage.word().to_owned(),
        stage_seconds: u32::try_from(state.since.elapsed().as_secs()).unwrap_or(u32::MAX),
        entries_ahead: state.entries_ahead as u64,
        entry: if state.entry.is_empty() { String::new() } else { format!("queue/{}", state.entry) },
    }
}

impl Api {
    /// Refuses a submission with a test from the network: tests are commands.
    fn check_local(&self, asked: Option<&v1::Submission>) -> Result<(), Status> {
        match asked.is_some_and(|asked| !asked.test.is_empty()) {
            true => self.local_only(),
            false => Ok(()),
        }
    }
}

/// Refuses a capture of a directory of the host for a caller on the network. Uncommitted changes of live trees may be captured.
fn check_capture(service: &Service, origin: Origin, is_asked: bool, sources: &[String]) -> Result<()> {
    if !is_asked || origin != Origin::Network {
        return Ok(());
    }
    sources.iter().try_for_each(|name| service.files.refuse_directory(&workspace_id(name)?))
}

fn check_submission(service: &Service, origin: Origin, asked: &v1::Submission) -> Result<()> {
    check_capture(service, origin, asked.capture, std::slice::from_ref(&asked.workspace))
}

#[tonic::async_trait]
impl MergeService for Api {
    type SubmitWorkspaceStream = Answers<v1::SubmitWorkspaceResponse>;

    async fn merge_workspaces(
        &self,
        request: Request<v1::MergeWorkspacesRequest>,
    ) -> Answer<v1::MergeWorkspacesResponse> {
        let (actor, request) = self.identified(request);
        let origin = self.origin;
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            check_capture(service, origin, request.capture, &request.sources)?;
            let act = service.context.act_for(&actor, &request)?;
            Ok(v1::MergeWorkspacesResponse {
                merge: visible_merge(service, service.merging.merge_workspaces(&request, &act, caller)?)?,
            })
        })
        .await
    }

    async fn complete_workspace(
        &self,
        request: Request<v1::CompleteWorkspaceRequest>,
    ) -> Answer<v1::CompleteWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.check_local(request.submission.as_ref())?;
        let origin = self.origin;
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let act = service.context.act_for(&actor, &request)?;
            let submission = submission(request.submission)?;
            check_submission(service, origin, &submission)?;
            let done = service.merging.submit(&submission, AfterMerge::EndWorkspace, &act, caller)?;
            let (entry, merge) = (Some(done.entry), visible_merge(service, done.merge)?);
            Ok(v1::CompleteWorkspaceResponse { entry, merge, ended: done.is_ended })
        })
        .await
    }

    async fn publish_workspace(
        &self,
        request: Request<v1::PublishWorkspaceRequest>,
    ) -> Answer<v1::PublishWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.check_local(request.submission.as_ref())?;
        let origin = self.origin;
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let act = service.context.act_for(&actor, &request)?;
            let submission = submission(request.submission)?;
            check_submission(service, origin, &submission)?;
            let done = service.merging.submit(&submission, AfterMerge::KeepWorkspace, &act, caller)?;
            Ok(v1::PublishWorkspaceResponse { entry: Some(done.entry), merge: visible_merge(service, done.merge)? })
        })
        .await
    }

    async fn submit_workspace(
        &self,
        request: Request<v1::SubmitWorkspaceRequest>,
    ) -> Answer<Self::SubmitWorkspaceStream> {
        use v1::submit_workspace_response::Event;
        let (actor, request) = self.identified(request);
        self.check_local(request.submission.as_ref())?;
        let origin = self.origin;
        let watch = Arc::new(MergeWatch::default());
        let told = Mutex::new(None);
        let follow = {
            let watch = Arc::clone(&watch);
            move |step: Step<'_, v1::SubmitWorkspaceResponse>| {
                let Step::Tick(send) = step else { return };
                let state = watch.state();
                let now = (state.stage, state.entries_ahead, state.since.elapsed().as_secs());
                if told.lock().replace(now) != Some(now) {
                    let event = Some(Event::Progress(submit_progress(&state)));
                    // A slow reader misses this message and gets the next one.
                    drop(send.try_send(Ok(v1::SubmitWorkspaceResponse { event })));
                }
            }
        };
        self.begin(&actor.clone(), Kind::Merge, follow, move |service, sender| {
            let _using = service.using();
            let caller = sender.caller.watching_merge(&watch);
            caller.check()?;
            let act = service.context.act_for(&actor, &request)?;
            let after = if request.complete { AfterMerge::EndWorkspace } else { AfterMerge::KeepWorkspace };
            let submission = submission(request.submission)?;
            check_submission(service, origin, &submission)?;
            let done = service.merging.submit(&submission, after, &act, &caller)?;
            let (entry, merge) = (Some(done.entry), visible_merge(service, done.merge)?);
            let result = v1::SubmitResult { entry, merge, ended: done.is_ended };
            sender.send(v1::SubmitWorkspaceResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn schedule_publishing(
        &self,
        request: Request<v1::SchedulePublishingRequest>,
    ) -> Answer<v1::SchedulePublishingResponse> {
        let (actor, request) = self.identified(request);
        // An interval captures directories, too.
        match request.every_seconds > 0 {
            true => self.local_only()?,
            false => self.check_local(request.submission.as_ref())?,
        }
        let origin = self.origin;
        self.short(move |service| {
            let asked = submission(request.submission.clone())?;
            check_capture(service, origin, asked.capture || request.on_write, std::slice::from_ref(&asked.workspace))?;
            service.context.once(&actor, &request, || {
                let act = service.context.act(&actor);
                let workspace = Some(service.merging.schedule_publishing(&request, &act)?);
                Ok(v1::SchedulePublishingResponse { workspace })
            })
        })
        .await
    }

    async fn list_queue(&self, request: Request<v1::ListQueueRequest>) -> Answer<v1::ListQueueResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.merging.list_queue(&request, page_size(request.page_size)?)).await
    }

    async fn get_queue_entry(&self, request: Request<v1::GetQueueEntryRequest>) -> Answer<v1::GetQueueEntryResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            Ok(v1::GetQueueEntryResponse { entry: Some(service.merging.queue_entry(&request.name)?) })
        })
        .await
    }

    async fn release_queue_entry(
        &self,
        request: Request<v1::ReleaseQueueEntryRequest>,
    ) -> Answer<v1::ReleaseQueueEntryResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let act = service.context.act_for(&actor, &request)?;
            let merge = service.merging.release_entry(&request.name, request.dry_run, &act, caller)?;
            Ok(v1::ReleaseQueueEntryResponse { merge: visible_merge(service, merge)? })
        })
        .await
    }

    async fn withdraw_queue_entry(
        &self,
        request: Request<v1::WithdrawQueueEntryRequest>,
    ) -> Answer<v1::WithdrawQueueEntryResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            let entry = service.merging.withdraw_entry(&request.name, request.dry_run, &act)?;
            Ok(v1::WithdrawQueueEntryResponse { entry: Some(entry) })
        })
        .await
    }

    async fn list_reviews(&self, request: Request<v1::ListReviewsRequest>) -> Answer<v1::ListReviewsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.merging.list_reviews(&request, page_size(request.page_size)?)).await
    }

    async fn get_review(&self, request: Request<v1::GetReviewRequest>) -> Answer<v1::GetReviewResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            Ok(v1::GetReviewResponse { review: Some(service.merging.review_with_versions(&request.name)?) })
        })
        .await
    }

    async fn accept_review(&self, request: Request<v1::AcceptReviewRequest>) -> Answer<v1::AcceptReviewResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let act = service.context.act_for(&actor, &request)?;
            let merge = service.merging.accept_review(&request.name, request.dry_run, &act, caller)?;
            Ok(v1::AcceptReviewResponse { merge: visible_merge(service, merge)? })
        })
        .await
    }

    async fn take_review(&self, request: Request<v1::TakeReviewRequest>) -> Answer<v1::TakeReviewResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let act = service.context.act_for(&actor, &request)?;
            Ok(v1::TakeReviewResponse {
                merge: visible_merge(service, service.merging.take_review(&request, &act, caller)?)?,
            })
        })
        .await
    }

    async fn reject_review(&self, request: Request<v1::RejectReviewRequest>) -> Answer<v1::RejectReviewResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Merge, move |service, _| {
            let act = service.context.act_for(&actor, &request)?;
            let workspace = service.merging.reject_review(&request.name, request.dry_run, &act)?;
            Ok(v1::RejectReviewResponse { workspace })
        })
        .await
    }

    async fn get_rules(&self, request: Request<v1::GetRulesRequest>) -> Answer<v1::GetRulesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.rules.get_rules(&request)).await
    }

    async fn check_rules(&self, request: Request<v1::CheckRulesRequest>) -> Answer<v1::CheckRulesResponse> {
        let request = request.into_inner();
        self.short(move |_| Ok(check_rules(&request))).await
    }

    async fn explain_rules(&self, request: Request<v1::ExplainRulesRequest>) -> Answer<v1::ExplainRulesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.rules.explain_rules(&request)).await
    }

    async fn list_rule_commands(
        &self,
        request: Request<v1::ListRuleCommandsRequest>,
    ) -> Answer<v1::ListRuleCommandsResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            Ok(v1::ListRuleCommandsResponse { commands: service.merging.list_rule_commands(&request.workspace)? })
        })
        .await
    }

    async fn approve_rule_command(
        &self,
        request: Request<v1::ApproveRuleCommandRequest>,
    ) -> Answer<v1::ApproveRuleCommandResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            service.context.once(&actor, &request, || {
                let command = Some(service.merging.approve_rule_command(&request, &actor)?);
                Ok(v1::ApproveRuleCommandResponse { command })
            })
        })
        .await
    }

    async fn revoke_rule_command(
        &self,
        request: Request<v1::RevokeRuleCommandRequest>,
    ) -> Answer<v1::RevokeRuleCommandResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let revoke = || service.merging.revoke_rule_command(&request.hash);
            service.context.once(&actor, &request, || revoke().map(|()| v1::RevokeRuleCommandResponse {}))
        })
        .await
    }
}
