//! `amalgam merge`: merges workspaces into another at once, without the queue, as one snapshot or not at all.

use amalgam_engine::merge::{AdmitSource, MergeHeads, MergeHow, MergeRequest, merge_base, plan_octopus};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{MergeOptions, OperationContext, SnapshotId};
use amalgam_merge::Rules;
use amalgam_merge::trees::RuleMerger;
use amalgam_proto::{Reason, v1};

use super::queue::lock_target;
use super::regenerate::Regenerator;
use super::{Merging, conflicts_message, files_message, path_bytes};
use crate::call_log::workspace_id;
use crate::caller::Caller;
use crate::context::ShownNames;
use crate::error::{Error, Result};
use crate::views::WriterRule;

/// Refuses sources whose changes the agent of the source workspace may not make.
struct SourcePermissions<'a> {
    merging: &'a Merging,
    contents: &'a RuleMerger,
}

impl AdmitSource for SourcePermissions<'_> {
    fn refusal(
        &self,
        source: &WorkspaceName,
        head: SnapshotId,
        target: Option<SnapshotId>,
    ) -> amalgam_engine::Result<Option<String>> {
        let Merging { context, .. } = self.merging;
        let invalid = |error: Error| amalgam_engine::Error::Invalid { what: "policy", why: error.to_string() };
        let guard = context.permissions.workspace_guard(source).map_err(invalid)?;
        if guard.is_open() {
            return Ok(None);
        }
        let options = MergeOptions::default();
        let base = target.map(|target| merge_base(&context.history, &[target], head, self.contents, &options));
        let before = base.transpose()?.and_then(|base| base.root);
        let after = context.store.snapshot(head)?.root;
        context.permissions.refusal_of(&guard, before, Some(after)).map_err(invalid)
    }
}

impl Merging {
    /// Merges workspaces into another. Captures the directories and mounts of the sources first if asked to. Captures
    /// those of the target always, and updates them afterwards.
    pub(crate) fn merge_workspaces(
        &self,
        request: &v1::MergeWorkspacesRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::Merge> {
        self.merge_with(request, WriterRule::Overrule, act, caller)
    }

    /// Merges workspaces into another, with a rule for processes that write into the target's mounts meanwhile.
    pub(crate) fn merge_with(
        &self,
        request: &v1::MergeWorkspacesRequest,
        writers: WriterRule,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::Merge> {
        let target = workspace_id(&request.target)?;
        let sources = request.sources.iter().map(|name| workspace_id(name)).collect::<Result<Vec<_>, _>>();
        let sources = sources?;
        if sources.is_empty() || sources.contains(&target) {
            let message = format!("name workspaces other than {target} to merge into it");
            return Err(Error::new(Reason::Invalid, message));
        }
        if request.capture && !request.dry_run {
            for source in &sources {
                self.directories.capture_of(source, &format!("a merge into {target}"), act)?;
            }
        }
        let agent = |name: &WorkspaceName| Ok::<_, Error>(self.context.workspaces.get(name)?.agent);
        let theirs = if let [only] = &sources[..] { agent(only)? } else { String::new() };
        if request.dry_run {
            let rules = self.rules.merge_rules(Some(&target), request.rules.as_ref())?;
            let contents = RuleMerger::new(&rules, &agent(&target)?, &theirs);
            let plan = || self.plan_merge(request, &target, &sources, &rules, &contents, act);
            return caller.walking(plan);
        }
        // A target that does not exist gets no lock.
        self.context.workspaces.get(&target)?;
        let lock = self.inner.lock_of(&target);
        let _lock = lock_target(&lock, caller)?;
        if let Some(done) = self.nothing_to_merge(request, &target, &sources, act)? {
            return Ok(done);
        }
        let secured = self.directories.secure_files(&target, "a merge", act)?;
        let safety = secured.safety();
        let heads = self.heads_of(&target, &sources)?;
        if request.fast_forward_only && !self.has_all(&heads)? && !self.is_behind(&heads)? {
            return self.refused_to_forward(&target);
        }
        // The edits of the directory are in the head now, its rules too.
        let rules = self.rules.merge_rules(Some(&target), request.rules.as_ref())?;
        let (contents, regenerator) =
            (RuleMerger::new(&rules, &agent(&target)?, &theirs), Regenerator::new(self, &rules, &target));
        let options = caller.walking(|| self.rules.merge_options(&heads, &rules, &contents, act))?;
        let mut merge = MergeRequest::new(&target, &sources, &contents);
        merge.regenerate = Some(&regenerator);
        merge.use_remembered = !request.no_remembered;
        merge.options = options;
        merge.message = request.message.clone();
        let permissions = SourcePermissions { merging: self, contents: &contents };
        merge.admit = Some(&permissions);
        let done = caller.walking(|| self.context.workspaces.merge(&self.context.history, &merge, act))?;
        tracing::info!(%target, sources = sources.len(), how = ?done.how, conflicts = done.conflicts.len(), "workspaces merged");
        let mut message = v1::Merge {
            how: how(done.how).into(),
            target: request.target.clone(),
            head: done.head.map(|head| self.context.one_snapshot(head)).transpose()?,
            files: files_message(&done.report.files),
            conflicts: conflicts_message(&done.conflicts),
            changed: done.report.changed,
            reason: done.reason,
            sources: sources.iter().zip(1..).map(|(name, place)| source_message(name, place)).collect(),
            ..v1::Merge::default()
        };
        self.directories.update_files_by(secured, writers, &mut message, act)?;
        message.safety =
            safety.map(|safety| self.context.snapshot_message(safety, &ShownNames::default())).transpose()?;
        Ok(message)
    }

    /// Returns the result of a merge that changes nothing, because the target has all sources or may not be fast-forwarded. The edits
    /// in the target's files are not committed for it.
    fn nothing_to_merge(
        &self,
        request: &v1::MergeWorkspacesRequest,
        target: &WorkspaceName,
        sources: &[WorkspaceName],
        act: &OperationContext,
    ) -> Result<Option<v1::Merge>> {
        let heads = self.heads_of(target, sources)?;
        let has_all = self.has_all(&heads)?;
        if !(has_all || request.fast_forward_only) || self.context.done_before(act)?.is_some() {
            return Ok(None);
        }
        let previewed = match self.directories.preview_capture(target, act) {
            Ok(previewed) => previewed,
            // The files missed an earlier move of the head, and are updated first.
            Err(error) if error.reason() == Reason::StaleHead => return Ok(None),
            Err(error) => return Err(error),
        };
        if has_all {
            let mut merge = self.nothing_done(target, v1::MergeHow::Already)?;
            merge.sources = sources.iter().zip(1..).map(|(name, place)| source_message(name, place)).collect();
            return Ok(Some(merge));
        }
        match self.is_behind(&MergeHeads { target: previewed.head, ..heads })? {
            true => Ok(None),
            false => self.refused_to_forward(target).map(Some),
        }
    }

    /// Returns whether a target has all changes of the sources.
    fn has_all(&self, heads: &MergeHeads) -> Result<bool> {
        let Some(target) = heads.target else { return Ok(false) };
        for (_, source) in &heads.sources {
            if !self.context.history.is_ancestor(*source, target)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the message of a merge that would not be a fast-forward, although only that is wanted.
    fn refused_to_forward(&self, target: &WorkspaceName) -> Result<v1::Merge> {
        let mut merge = self.nothing_done(target, v1::MergeHow::Refused)?;
        merge.reason = format!("{target} has changes of its own, so a fast-forward is not possible");
        Ok(merge)
    }

    /// Returns the current heads of workspaces.
    fn heads_of(&self, target: &WorkspaceName, sources: &[WorkspaceName]) -> Result<MergeHeads> {
        let mut heads = MergeHeads { target: self.context.head(target)?, sources: Vec::new() };
        for source in sources {
            heads.sources.extend(self.context.head(source)?.map(|head| (source.clone(), head)));
        }
        Ok(heads)
    }

    /// Returns whether a fast-forward is possible: there is one source, and the target has no changes of its own.
    fn is_behind(&self, heads: &MergeHeads) -> Result<bool> {
        let (source, target) = match (&heads.sources[..], heads.target) {
            ([(_, source)], Some(target)) => (*source, target),
            ([_] | [], _) => return Ok(true),
            _ => return Ok(false),
        };
        let is = |one, of| Ok::<_, Error>(self.context.history.is_ancestor(one, of)?);
        Ok(is(target, source)? || is(source, target)?)
    }

    /// Previews a merge: which sources merge cleanly, in which order, and which conflicts the rest have. Reads
    /// directories as they are now.
    fn plan_merge(
        &self,
        request: &v1::MergeWorkspacesRequest,
        target: &WorkspaceName,
        sources: &[WorkspaceName],
        rules: &Rules,
        contents: &RuleMerger,
        act: &OperationContext,
    ) -> Result<v1::Merge> {
        let mut message = self.nothing_done(target, v1::MergeHow::Already)?;
        let mut heads = self.heads_of(target, sources)?;
        // Held until the end: no reference keeps a previewed snapshot.
        let mut previews = Vec::new();
        if request.capture {
            heads.sources.clear();
            for source in sources {
                let preview = self.directories.preview_capture(source, act)?;
                heads.sources.extend(preview.head.map(|head| (source.clone(), head)));
                previews.push(preview);
            }
            let preview = self.directories.preview_capture(target, act)?;
            heads.target = preview.head;
            previews.push(preview);
        }
        message.captures = previews.iter().filter_map(|preview| preview.capture.clone()).collect();
        if request.fast_forward_only && !self.has_all(&heads)? && !self.is_behind(&heads)? {
            message.how = v1::MergeHow::Refused.into();
            message.reason = format!("{target} has changes of its own, so a fast-forward is not possible");
            return Ok(message);
        }
        let options = self.rules.merge_options(&heads, rules, contents, act)?;
        if let Some(ours) = heads.target {
            message.sources = self.plan_sources(ours, &heads, contents, &options)?;
        }
        let mut merge = MergeRequest::new(target, sources, contents);
        merge.options = options;
        merge.use_remembered = !request.no_remembered;
        let permissions = SourcePermissions { merging: self, contents };
        merge.admit = Some(&permissions);
        let done = self.context.workspaces.preview_merge(&self.context.history, &merge, &heads, act)?;
        message.how = how(done.how).into();
        message.files = files_message(&done.report.files);
        message.conflicts = conflicts_message(&done.conflicts);
        message.changed = done.report.changed;
        message.reason = done.reason;
        Ok(message)
    }

    /// Returns the position of each source in the planned order, counted from 1, and the clashes of the sources that are left out.
    fn plan_sources(
        &self,
        ours: SnapshotId,
        heads: &MergeHeads,
        contents: &RuleMerger,
        options: &MergeOptions,
    ) -> Result<Vec<v1::MergeSource>> {
        let ids: Vec<_> = heads.sources.iter().map(|(_, head)| *head).collect();
        let plan = plan_octopus(&self.context.history, ours, &ids, contents, options)?;
        let mut messages = Vec::new();
        for (at, (name, _)) in heads.sources.iter().enumerate() {
            let place = plan.order.iter().position(|source| *source == at).map_or(0, |place| place as u32 + 1);
            let mut source = source_message(name, place);
            for clash in plan.left.iter().filter(|left| left.source == at).flat_map(|left| &left.clashes) {
                let with = clash.with.map(|with| amalgam_proto::workspace_name(&heads.sources[with].0));
                let paths = clash.paths.iter().map(path_bytes).collect();
                source.clashes.push(v1::MergeClash { workspace: with.unwrap_or_default(), paths });
            }
            messages.push(source);
        }
        Ok(messages)
    }

    /// Returns the message of a merge that changed nothing.
    pub(super) fn nothing_done(&self, target: &WorkspaceName, how: v1::MergeHow) -> Result<v1::Merge> {
        let head = self.context.workspaces.get(target)?.head;
        Ok(v1::Merge {
            how: how.into(),
            target: amalgam_proto::workspace_name(target),
            head: head.map(|head| self.context.snapshot_message(head, &ShownNames::default())).transpose()?,
            ..v1::Merge::default()
        })
    }
}

fn source_message(name: &WorkspaceName, place: u32) -> v1::MergeSource {
    v1::MergeSource { workspace: amalgam_proto::workspace_name(name), place, clashes: Vec::new() }
}

fn how(how: MergeHow) -> v1::MergeHow {
    match how {
        MergeHow::Already => v1::MergeHow::Already,
        MergeHow::Forward => v1::MergeHow::Forward,
        MergeHow::Merged => v1::MergeHow::Merged,
        MergeHow::Refused => v1::MergeHow::Refused,
        MergeHow::Replayed => v1::MergeHow::Replayed,
    }
}
