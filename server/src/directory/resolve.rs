//! Resolves conflicts of a workspace: in its directory if it has one, else in its head, which its mount then follows.

use amalgam_engine::OperationContext;
use amalgam_engine::merge::ConflictSubject;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_materializer::{Progress, Times};
use amalgam_proto::{Reason, v1};

use super::Directories;
use super::capture::CommitDraft;
use super::restore::Target;
use crate::caller::Caller;
use crate::conflicts::resolve::{RESOLVE, change_of, nothing};
use crate::context::ShownNames;
use crate::error::{Error, Result};
use crate::messages::notice;
use crate::views::WriterRule;

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
            None => self.resolve_in_mount_or_head(&workspace, request, act, caller),
        }
    }

    /// Resolves conflicts in the head of a workspace without a directory. The edits in its mount are committed before, and the mount
    /// follows the head afterwards.
    fn resolve_in_mount_or_head(
        &self,
        workspace: &WorkspaceName,
        request: &v1::ResolveConflictsRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let Some(locked) = self.views.lock_view_of(workspace)? else {
            return self.conflicts.resolve_in_head(workspace, request, act, caller);
        };
        let head = self.context.head(workspace)?;
        match self.views.preview_in_view(&locked, head) {
            // A request that cannot be carried out must not commit the edits.
            Ok((_held, root)) => {
                let _pin = self.context.store.hold(root)?;
                let plan = caller.walking(|| self.conflicts.plan_resolving(head, root, request, act))?;
                if request.dry_run || plan.is_empty() {
                    return self.conflicts.response(&plan);
                }
            }
            Err(error) if error.reason() == Reason::StaleHead && request.dry_run => {
                return self.conflicts.resolve_in_head(workspace, request, act, caller);
            }
            // Its edits are merged with the head below.
            Err(error) if error.reason() == Reason::StaleHead => {}
            Err(error) => return Err(error),
        }
        let secured = self.views.secure_view_before(&locked, "resolve", act)?;
        let safety = secured.snapshot;
        let mut response = self.conflicts.resolve_in_head(workspace, request, act, caller)?;
        self.views.update_view(&locked, secured, WriterRule::Overrule, &mut v1::Merge::default(), act)?;
        response.safety =
            safety.map(|safety| self.context.snapshot_message(safety, &ShownNames::default())).transpose()?;
        Ok(response)
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
        let head = self.context.head(&locked.workspace)?;
        // A request that cannot be carried out must not commit the edits. Those of a directory behind the head are merged below.
        if request.dry_run || self.is_in_step(&locked, head)? {
            let captured = self.capture_all(&mut locked, &progress)?;
            let (edited, _pin) = self.hold_with_states_of(&captured, self.context.head_root(head)?)?;
            let plan = caller.walking(|| self.conflicts.plan_resolving(head, edited, request, act))?;
            if request.dry_run || plan.is_empty() {
                return self.conflicts.response(&plan);
            }
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
            response.snapshot = Some(self.context.snapshot_message(snapshot, &ShownNames::default())?);
            response.notices = brought.notices.iter().map(notice).collect();
        }
        locked.save(&self.context);
        response.safety =
            safety.map(|safety| self.context.snapshot_message(safety, &ShownNames::default())).transpose()?;
        Ok(response)
    }
}
