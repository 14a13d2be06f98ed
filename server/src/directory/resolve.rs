//! Resolves conflicts of a workspace: in its directory if it has one, else in its head.

use amalgam_engine::OperationContext;
use amalgam_engine::merge::ConflictSubject;
use amalgam_materializer::{Progress, Times};
use amalgam_proto::{Reason, v1};

use super::Directories;
use super::capture::CommitDraft;
use super::restore::Target;
use crate::caller::Caller;
use crate::conflicts::resolve::{RESOLVE, change_of, nothing};
use crate::context::Marks;
use crate::error::{Error, Result};
use crate::messages::notice;

impl Directories {
    /// Resolves conflicts of a workspace. A retry of the same request returns the first result.
    pub(crate) fn resolve_conflicts(
        &self,
        request: &v1::ResolveConflictsRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let workspace = amalgam_proto::workspace_id(&request.workspace)?;
        if request.resolution.is_none() {
            return Err(Error::new(
                Reason::Invalid,
                "choose how to resolve: a version, contents, or a remembered resolution",
            ));
        }
        if let Some(first) = self.conflicts.resolved_before(&workspace, act)? {
            return Ok(first);
        }
        let record = self.context.registry.all().into_iter().find(|record| record.workspace == workspace.as_str());
        match record {
            Some(record) => self.resolve_in_directory(&amalgam_proto::directory_name(&record.id), request, act, caller),
            None => self.conflicts.resolve_in_head(&workspace, request, act, caller),
        }
    }

    pub(crate) fn resolve_in_directory(
        &self,
        name: &str,
        request: &v1::ResolveConflictsRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let progress = Progress::default();
        let mut locked = self.lock(name)?;
        if request.dry_run {
            let head = self.context.head(&locked.workspace)?;
            let captured = self.capture_all(&mut locked, &progress)?;
            let plan = caller.walking(|| self.conflicts.plan_resolving(head, captured.root, request, act))?;
            return self.conflicts.response(&plan);
        }
        let safety = self.secure_before(&mut locked, "resolve", act)?;
        let head = self.context.head(&locked.workspace)?;
        let Some(root) = self.context.head_root(head)? else { return Err(nothing(&[])) };
        let plan = caller.walking(|| self.conflicts.plan_resolving(head, root, request, act))?;
        let mut response = self.conflicts.response(&plan)?;
        if !plan.is_empty() {
            let target = Target { root: plan.root, paths: Some(&plan.touched), with_git: true, set_id: false };
            let times = Times::OfBytes(act.time);
            let (brought, mut captured) = self.bring_to(&mut locked, &target, times, &progress)?;
            // No directory holds state values.
            for (matter, decision) in &plan.decided {
                if matches!(matter.undecided.subject, ConflictSubject::State { .. }) {
                    matter.undecided.decide(&mut captured.tree, *decision)?;
                }
            }
            let mut saying = CommitDraft { action: RESOLVE, change: change_of(&plan, 0) };
            saying.change.resolutions = self.conflicts.new_resolutions(&plan, request)?;
            let (snapshot, _) = self.commit_captured(&mut locked, &mut captured, &saying, act)?;
            response.snapshot = Some(self.context.snapshot_message(snapshot, &Marks::default())?);
            response.notices = brought.notices.iter().map(notice).collect();
        }
        locked.save(&self.context);
        response.safety = safety.map(|safety| self.context.snapshot_message(safety, &Marks::default())).transpose()?;
        Ok(response)
    }
}
