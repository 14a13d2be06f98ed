//! The gRPC methods of `PolicyService`: the policy of a project.

use std::sync::Arc;

use amalgam_engine::reference::Operation;
use amalgam_policy::{Act, Policy};
use amalgam_proto::v1::policy_service_server::PolicyService;
use amalgam_proto::{Reason, v1};
use tonic::{Request, Response, Status};

use super::{Api, actor, page_size};
use crate::call_log::restricted_agent;
use crate::error::{Error, Result};
use crate::files::parse_path;
use crate::messages::operation_message;
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PolicyService for Api {
    async fn get_policy(&self, _request: Request<v1::GetPolicyRequest>) -> Answer<v1::GetPolicyResponse> {
        self.short(|service| {
            let stored = service.context.permissions.stored()?;
            let operation = stored.operation.as_ref().map(operation_message);
            Ok(v1::GetPolicyResponse { text: stored.text, operation })
        })
        .await
    }

    async fn set_policy(&self, request: Request<v1::SetPolicyRequest>) -> Answer<v1::SetPolicyResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| set(service, &actor, &request)).await
    }

    async fn check_policy(&self, request: Request<v1::CheckPolicyRequest>) -> Answer<v1::CheckPolicyResponse> {
        let complaints = match Policy::read(&request.into_inner().text) {
            Ok(_) => Vec::new(),
            Err(bad) => bad.complaints,
        };
        let message = |one: amalgam_policy::Complaint| v1::PolicyComplaint {
            line: one.line as u32,
            column: one.column as u32,
            message: one.what,
        };
        let complaints = complaints.into_iter().map(message).collect();
        Ok(Response::new(v1::CheckPolicyResponse { complaints }))
    }

    async fn explain_policy(&self, request: Request<v1::ExplainPolicyRequest>) -> Answer<v1::ExplainPolicyResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| explain(service, &actor, &request)).await
    }

    async fn list_policy_changes(
        &self,
        request: Request<v1::ListPolicyChangesRequest>,
    ) -> Answer<v1::ListPolicyChangesResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            let limit = page_size(request.page_size)?;
            let operations: Vec<Operation> = service.context.permissions.history(limit)?;
            Ok(v1::ListPolicyChangesResponse { operations: operations.iter().map(operation_message).collect() })
        })
        .await
    }
}

fn set(service: &Service, actor: &str, request: &v1::SetPolicyRequest) -> Result<v1::SetPolicyResponse> {
    let permissions = &service.context.permissions;
    let warnings = permissions.warnings(&request.text)?;
    if request.dry_run {
        let changed = permissions.stored()?.text != request.text;
        return Ok(v1::SetPolicyResponse { changed, operation: None, warnings });
    }
    let act = service.context.act_for(actor, request)?;
    let done = match service.context.done_before(&act)? {
        Some(done) => Some(done),
        None => permissions.set(&request.text, &act)?,
    };
    service.views.apply_policy()?;
    Ok(v1::SetPolicyResponse { changed: done.is_some(), operation: done.as_ref().map(operation_message), warnings })
}

fn explain(service: &Service, actor: &str, request: &v1::ExplainPolicyRequest) -> Result<v1::ExplainPolicyResponse> {
    let agent = if request.agent.is_empty() { actor } else { &request.agent };
    let caller = restricted_agent();
    if caller.as_ref().is_some_and(|caller| caller != agent || request.text.is_some()) {
        let message = "a key without the scope `admin` may ask only about its own agent, by the present policy";
        return Err(Error::new(Reason::Forbidden, message));
    }
    let path = parse_path(&request.path)?;
    let policy = match &request.text {
        Some(text) => Some(Arc::new(Policy::read(text)?)),
        None => service.context.permissions.policy()?,
    };
    let mut answer =
        v1::ExplainPolicyResponse { agent: agent.to_owned(), path: request.path.clone(), ..Default::default() };
    let Some(policy) = policy else {
        answer.level = amalgam_policy::Level::Full.word().to_owned();
        answer.acts = Act::ALL.iter().map(|act| act.word().to_owned()).collect();
        answer.reviewer = true;
        return Ok(answer);
    };
    let decision = policy.agent(agent).decide(path.as_bytes());
    answer.has_policy = true;
    answer.reviewer = policy.is_reviewer(agent);
    answer.level = decision.level.word().to_owned();
    answer.acts =
        Act::ALL.iter().filter(|act| decision.level.permits(**act)).map(|act| act.word().to_owned()).collect();
    // The rule that hides a path is hidden, too.
    let is_told = caller.is_none() || !answer.acts.is_empty();
    if let Some(rule) = decision.rule.filter(|_| is_told).map(|place| &policy.rules()[place]) {
        answer.line = rule.line as u32;
        answer.patterns = rule.paths().map(str::to_owned).collect();
    }
    Ok(answer)
}
