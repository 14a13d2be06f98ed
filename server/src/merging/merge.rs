//! Merging workspaces at once: one snapshot with all of them, or nothing.

use amalgam_engine::merge::{MergeHow, MergeRequest, merge_base, plan_octopus};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Act, MergeOptions, SnapshotId, merge_trees};
use amalgam_merge::Rules;
use amalgam_merge::trees::{ByRules, units_of};
use amalgam_proto::{Failure, Reason, v1, workspace_id};

use super::made::Maker;
use super::{conflicts_message, files_message, path_bytes};
use crate::failure::{Result, of_engine};
use crate::service::{Marks, Service};

impl Service {
    /// Merges workspaces into another. The directories of the sources are captured first if asked to, that of the target is
    /// captured and brought along.
    pub(crate) fn merge_workspaces(&self, request: &v1::MergeWorkspacesRequest, act: &Act) -> Result<v1::Merge> {
        let target = workspace_id(&request.target).map_err(of_engine)?;
        let sources = request.sources.iter().map(|name| workspace_id(name)).collect::<Result<Vec<_>, _>>();
        let sources = sources.map_err(of_engine)?;
        if sources.is_empty() || sources.contains(&target) {
            let message = format!("name workspaces other than {target} to merge into it");
            return Err(Failure::new(Reason::Invalid, message));
        }
        if request.capture && !request.dry_run {
            for source in &sources {
                self.capture_of(source, &format!("before a merge into {target}"), act)?;
            }
        }
        let agent = |name: &WorkspaceName| self.inner.workspaces.get(name).map(|found| found.agent).map_err(of_engine);
        let theirs = if let [only] = &sources[..] { agent(only)? } else { String::new() };
        if request.dry_run {
            let rules = self.merge_rules(Some(&target), request.rules.as_ref())?;
            let contents = ByRules::new(&rules, &agent(&target)?, &theirs);
            return self.plan_merge(&target, &sources, &rules, &contents, request.fast_forward_only, act);
        }
        let lock = self.inner.merging.lock_of(&target);
        let _turn = lock.lock();
        let mut grasp = self.grasp_of(&target)?;
        let safety = match &mut grasp {
            Some(grasp) => self.secure_before(grasp, "a merge", act)?,
            None => None,
        };
        if request.fast_forward_only && !self.is_behind(&target, &sources)? {
            let mut merge = self.nothing_done(&target, v1::MergeHow::Refused)?;
            merge.reason = format!("{target} has changes of its own, so that its head cannot just move on");
            return Ok(merge);
        }
        // What was in the directory is in the head now, its rules too.
        let rules = self.merge_rules(Some(&target), request.rules.as_ref())?;
        let (contents, maker) = (ByRules::new(&rules, &agent(&target)?, &theirs), Maker::new(self, &rules));
        let options = self.options_for(&target, &sources, &rules, &contents, act)?;
        let mut merge = MergeRequest::new(&target, &sources, &contents);
        merge.regenerate = Some(&maker);
        merge.options = options;
        merge.message = request.message.clone();
        let done = self.inner.workspaces.merge(&self.inner.history, &merge, act).map_err(of_engine)?;
        let mut message = v1::Merge {
            how: how(done.how).into(),
            target: request.target.clone(),
            head: done.head.map(|head| self.snapshot_message(head, &Marks::default())).transpose()?,
            files: files_message(&done.report.files),
            conflicts: conflicts_message(&done.conflicts),
            changed: done.report.changed,
            reason: done.reason,
            sources: sources.iter().zip(1..).map(|(name, place)| source_message(name, place)).collect(),
            ..v1::Merge::default()
        };
        if let Some(grasp) = &mut grasp {
            self.bring_along(grasp, &mut message, act)?;
        }
        message.safety = safety.map(|safety| self.snapshot_message(safety, &Marks::default())).transpose()?;
        Ok(message)
    }

    /// Whether a target's head could just move to that of its only source.
    fn is_behind(&self, target: &WorkspaceName, sources: &[WorkspaceName]) -> Result<bool> {
        let (workspaces, history) = (&self.inner.workspaces, &self.inner.history);
        let [source] = sources else { return Ok(false) };
        let (target, source) =
            (workspaces.get(target).map_err(of_engine)?.head, workspaces.get(source).map_err(of_engine)?.head);
        let Some((target, source)) = target.zip(source) else { return Ok(true) };
        let is = |one, of| history.is_ancestor(one, of).map_err(of_engine);
        Ok(is(target, source)? || is(source, target)?)
    }

    /// How trees are merged: groups of rules become units.
    fn options_for(
        &self,
        target: &WorkspaceName,
        sources: &[WorkspaceName],
        rules: &Rules,
        contents: &ByRules,
        act: &Act,
    ) -> Result<MergeOptions> {
        let mut options = MergeOptions { time: act.time, ..MergeOptions::default() };
        if !rules.has_groups() {
            return Ok(options);
        }
        let (store, workspaces) = (&self.inner.store, &self.inner.workspaces);
        let Some(ours) = workspaces.get(target).map_err(of_engine)?.head else { return Ok(options) };
        let our_root = store.snapshot(ours).map_err(of_engine)?.root;
        for source in sources {
            let Some(theirs) = workspaces.get(source).map_err(of_engine)?.head else { continue };
            let base = merge_base(&self.inner.history, &[ours], theirs, contents, &options).map_err(of_engine)?;
            let their_root = store.snapshot(theirs).map_err(of_engine)?.root;
            let units = units_of(rules, store, base.root, [our_root, their_root]).map_err(of_engine)?;
            options.units.extend(units);
        }
        Ok(options)
    }

    /// What a merge would come to: which sources merge cleanly, in which order, and what stands in the way of the rest.
    fn plan_merge(
        &self,
        target: &WorkspaceName,
        sources: &[WorkspaceName],
        rules: &Rules,
        contents: &ByRules,
        forward_only: bool,
        act: &Act,
    ) -> Result<v1::Merge> {
        let workspaces = &self.inner.workspaces;
        let mut message = self.nothing_done(target, v1::MergeHow::Already)?;
        let mut heads: Vec<(&WorkspaceName, SnapshotId)> = Vec::new();
        for source in sources {
            heads.extend(workspaces.get(source).map_err(of_engine)?.head.map(|head| (source, head)));
        }
        let Some(ours) = workspaces.get(target).map_err(of_engine)?.head else {
            message.how = v1::MergeHow::Forward.into();
            return Ok(message);
        };
        if forward_only && !self.is_behind(target, sources)? {
            message.how = v1::MergeHow::Refused.into();
            message.reason = format!("{target} has changes of its own, so that its head cannot just move on");
            return Ok(message);
        }
        let options = self.options_for(target, sources, rules, contents, act)?;
        let ids: Vec<_> = heads.iter().map(|(_, head)| *head).collect();
        let plan = plan_octopus(&self.inner.history, ours, &ids, contents, &options).map_err(of_engine)?;
        for (at, (name, _)) in heads.iter().enumerate() {
            let place = plan.order.iter().position(|source| *source == at).map_or(0, |place| place as u32 + 1);
            let mut source = source_message(name, place);
            for clash in plan.left.iter().filter(|left| left.source == at).flat_map(|left| &left.clashes) {
                let with = clash.with.map(|with| amalgam_proto::workspace_name(heads[with].0)).unwrap_or_default();
                let paths = clash.paths.iter().map(path_bytes).collect();
                source.clashes.push(v1::MergeClash { workspace: with, paths });
            }
            message.sources.push(source);
        }
        for (_, theirs) in &heads {
            if self.inner.history.is_ancestor(*theirs, ours).map_err(of_engine)? {
                continue;
            }
            message.how = match self.inner.history.is_ancestor(ours, *theirs).map_err(of_engine)? && heads.len() == 1 {
                true => v1::MergeHow::Forward.into(),
                false => v1::MergeHow::Merged.into(),
            };
            let outcome = self.try_merge(ours, *theirs, contents, &options)?;
            message.files.extend(files_message(&outcome.report.files));
            message.conflicts.extend(conflicts_message(&outcome.conflicts));
            message.changed += outcome.report.changed;
        }
        Ok(message)
    }

    fn try_merge(
        &self,
        ours: SnapshotId,
        theirs: SnapshotId,
        contents: &ByRules,
        options: &MergeOptions,
    ) -> Result<amalgam_engine::Outcome> {
        let store = &self.inner.store;
        let base = merge_base(&self.inner.history, &[ours], theirs, contents, options).map_err(of_engine)?;
        let root = |id| store.snapshot(id).map(|snapshot| snapshot.root).map_err(of_engine);
        merge_trees(store, base.root, root(ours)?, root(theirs)?, contents, options).map_err(of_engine)
    }

    /// A merge that changed nothing.
    pub(super) fn nothing_done(&self, target: &WorkspaceName, how: v1::MergeHow) -> Result<v1::Merge> {
        let head = self.inner.workspaces.get(target).map_err(of_engine)?.head;
        Ok(v1::Merge {
            how: how.into(),
            target: amalgam_proto::workspace_name(target),
            head: head.map(|head| self.snapshot_message(head, &Marks::default())).transpose()?,
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
