//! The merge queue behind `complete` and `publish`: [`Merging::submit`] stores an entry, a fold of the target merges
//! all waiting entries, and each submitter gets the result of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::merge::{AdmitMove, MergeContents, Regenerate as _};
use amalgam_engine::operation::remove_reference;
use amalgam_engine::queue::{
    EntryOutcome, Folded, MergePolicy, QueueEntry, QueueOptions, RefusedChange, Regenerated, TestVerdict, Unreadable,
};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Change, ErrorKind, OperationContext, RootId, TreePath};
use amalgam_merge::Rules;
use amalgam_merge::trees::{RuleMerger, merge_units};
use amalgam_policy::{Guard, Level, OnRefused, Policy};
use amalgam_proto::{Reason, v1};
use parking_lot::{Mutex, MutexGuard};
use tracing::info;

use super::regenerate::Regenerator;
use super::test::{TestPlace, not_started, refuse_long_test, refuse_unstartable};
use super::{Merging, conflicts_message, files_message, path_bytes};
use crate::call_log::{warn_failure, workspace_id};
use crate::caller::{Caller, MergeStage};
use crate::context::ShownNames;
use crate::directory::FilesInMerge;
use crate::error::{Error, Result};
use crate::merge_rules::PROJECT_FILE;
use crate::permissions::{moves_of, refused};

/// How many folds of a target a submitter waits for before it gives up. Each fold takes hundreds of entries.
const FOLDS_MAX: usize = 1_000;
/// The number of targets that background threads fold or publish into at a time.
pub(super) const PARALLEL_TARGETS_MAX: usize = 8;
/// How often a call that waits for its turn checks whether its client is still there.
const TURN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How often a node of a cluster looks for entries that no node folds, such as those of a node that was killed.
const TAKEOVER_INTERVAL: Duration = Duration::from_secs(5);
/// The act of [`Merging::withdraw_entry`], for messages.
const WITHDRAW: &str = "withdraw a queue entry";

/// The merge policy of a target: its merge rules, the permissions of agents, and the tests of entries.
pub(super) struct ServerMergePolicy<'a> {
    merging: &'a Merging,
    rules: Arc<Rules>,
    regenerator: Regenerator<'a>,
    /// The project's permissions when the fold began.
    policy: Option<Arc<Policy>>,
    guards: RefCell<HashMap<String, Guard>>,
    /// The client that waits for the fold.
    caller: &'a Caller,
}

impl<'a> ServerMergePolicy<'a> {
    /// Reads the rules at the start of a fold. An entry that changes the rules changes them for the next fold.
    pub(super) fn new(merging: &'a Merging, target: &WorkspaceName, caller: &'a Caller) -> Result<Self> {
        let rules = merging.rules.merge_rules(Some(target), None)?;
        let (policy, guards) = (merging.context.permissions.policy()?, RefCell::default());
        Ok(Self { merging, regenerator: Regenerator::new(merging, &rules, target), rules, policy, guards, caller })
    }

    /// Returns the permissions of the agent whose changes an entry has.
    fn guard(&self, entry: &QueueEntry) -> Guard {
        let Some(policy) = self.policy.as_ref().filter(|_| !entry.agent.is_empty()) else { return Guard::default() };
        let mut guards = self.guards.borrow_mut();
        let new = || self.merging.context.permissions.observed(Guard::new(vec![Arc::new(policy.agent(&entry.agent))]));
        guards.entry(entry.agent.clone()).or_insert_with(new).clone()
    }
}

impl MergePolicy for ServerMergePolicy<'_> {
    fn contents(&self, entry: &QueueEntry) -> amalgam_engine::Result<Box<dyn MergeContents + '_>> {
        let ours = self.merging.context.workspaces.get(&entry.target)?.agent;
        Ok(Box::new(RuleMerger::new(&self.rules, &ours, &entry.agent)))
    }

    fn is_grouped(&self, path: &TreePath) -> bool {
        self.rules.groups_of(path.as_bytes()).next().is_some()
    }

    fn units(&self, base: Option<RootId>, ours: RootId, theirs: RootId) -> amalgam_engine::Result<Vec<Vec<TreePath>>> {
        match self.rules.has_groups() {
            true => merge_units(&self.rules, &self.merging.context.store, &[(base, [ours, theirs])]),
            false => Ok(Vec::new()),
        }
    }

    fn moves(&self) -> Option<Arc<dyn AdmitMove>> {
        self.policy.as_ref().map(moves_of)
    }

    fn admit(&self, entry: &QueueEntry, change: &Change) -> amalgam_engine::Result<Option<String>> {
        if change.path.as_bytes() == PROJECT_FILE.as_bytes()
            && let Some(complaint) = self.merging.rules.complaint_about(entry.snapshot, &entry.source)
        {
            return Ok(Some(complaint));
        }
        if !entry.options.approver.is_empty() {
            return Ok(None);
        }
        let guard = self.guard(entry);
        let refusal = refused(&guard, change);
        refusal.iter().for_each(|refusal| guard.report(refusal));
        Ok(refusal.map(|refusal| refusal.to_string()))
    }

    fn takes_rest(&self, entry: &QueueEntry) -> bool {
        let default = self.policy.as_ref().is_some_and(|policy| policy.on_refused == OnRefused::Partial);
        entry.options.takes_rest.unwrap_or(default)
    }

    fn keeps_both(&self, entry: &QueueEntry, path: &TreePath) -> bool {
        self.guard(entry).level(path.as_bytes()) == Level::Add
    }

    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.regenerator.is_regenerated(path)
    }

    fn regenerate(&self, _entry: &QueueEntry, tree: RootId, paths: &[TreePath]) -> amalgam_engine::Result<Regenerated> {
        self.caller.enter(MergeStage::Regenerate);
        let made = self.regenerator.regenerate(tree, paths);
        self.caller.enter(MergeStage::Merge);
        made
    }

    fn test(&self, entry: &QueueEntry, tree: RootId) -> amalgam_engine::Result<TestVerdict> {
        // If the machine cannot run the test, the entry fails with that as the reason.
        let place = TestPlace::new(&self.merging.context.home, &entry.id);
        // A node that was expelled has lost the lease of its target, too.
        let is_over =
            || self.caller.is_gone() || self.merging.tests_are_cancelled() || self.merging.context.is_expelled();
        let settings = self.merging.context.command_settings();
        self.caller.enter(MergeStage::Test);
        let verdict =
            settings.and_then(|settings| place.run(&self.merging.context.store, tree, entry, &settings, &is_over));
        self.caller.enter(MergeStage::Merge);
        if is_over() {
            // A cancelled test looks like a failed one, so the entry stays in the queue.
            return Err(amalgam_engine::Error::Interrupted);
        }
        Ok(match verdict.unwrap_or_else(|failure| TestVerdict::Failed(failure.to_string())) {
            // No submitter waits for the message, so the entry becomes a review.
            TestVerdict::NotStarted(reason) if !self.merging.inner.is_awaited(&entry.id) => TestVerdict::Failed(reason),
            verdict => verdict,
        })
    }
}

/// Whether a workspace ends after its changes were merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterMerge {
    KeepWorkspace,
    EndWorkspace,
}

/// The result of a submission to the queue.
pub(crate) struct Submitted {
    pub(crate) entry: v1::QueueEntry,
    pub(crate) merge: v1::Merge,
    pub(crate) is_ended: bool,
}

/// Converts the changes that the policy refused to messages.
fn refused_message(folded: &Folded) -> Vec<v1::RefusedChange> {
    let message = |one: &RefusedChange| v1::RefusedChange {
        path: path_bytes(&one.path),
        agent: folded.entry.agent.clone(),
        why: one.why.clone(),
    };
    folded.refused.iter().map(message).collect()
}

/// The result of an attempt to fold a target.
enum TargetFold {
    /// Entries were merged or set aside. The message tells what happened to the directory of the target.
    Done(Box<v1::Merge>),
    /// No entry waits.
    Nothing,
    /// Another node folds the target now.
    Elsewhere,
}

/// Logs the result of a queue entry.
fn log_folded(folded: &Folded) {
    for one in &folded.refused {
        let (agent, source) = (folded.entry.agent.as_str(), &folded.entry.source);
        info!(agent, %source, "policy.refused");
        tracing::debug!(agent, path = %one.path, why = one.why, "policy.refused");
    }
    let (entry, source, target) = (folded.entry.id.as_str(), &folded.entry.source, &folded.entry.target);
    match &folded.outcome {
        EntryOutcome::Landed(head) => info!(entry, %source, %target, head = %head.short(), "merge landed"),
        EntryOutcome::Already => info!(entry, %source, %target, "nothing to merge"),
        EntryOutcome::Review(_) => {
            info!(entry, %source, %target, conflicts = folded.conflicts.len(), "merge waits for a review")
        }
        EntryOutcome::Refused(_) => info!(entry, %source, %target, "merge refused"),
    }
}

impl Merging {
    /// Puts the changes of a workspace into the queue of its target. Waits for the result, unless the caller detaches.
    pub(crate) fn submit(
        &self,
        asked: &v1::Submission,
        after: AfterMerge,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<Submitted> {
        let source = workspace_id(&asked.workspace)?;
        if let Some(entry) = self.context.queue.find_submitted(act)? {
            return self.submitted(&entry, asked.detach, act, caller);
        }
        let target = self.context.target_of(&source, &asked.target)?;
        refuse_long_test(asked.test_seconds)?;
        refuse_unstartable(&asked.test, &self.context)?;
        if asked.dry_run {
            return self.preview_submission(asked, [&source, &target], after, act, caller);
        }
        if asked.capture {
            caller.enter(MergeStage::Capture);
            self.directories.capture_of(&source, &format!("a merge into {target}"), act)?;
        }
        if after == AfterMerge::EndWorkspace {
            self.views.refuse_live(&source, "it cannot be completed")?;
        }
        let options = queue_options(asked, after)?;
        // Unreadable rules are reported before the entry is queued. The directory may have a corrected version, so it
        // is captured first.
        if self.rules.merge_rules(Some(&target), None).is_err() {
            self.directories.secure_files(&target, "a merge", &OperationContext { request: None, ..act.clone() })?;
            self.rules.merge_rules(Some(&target), None)?;
        }
        let entry = self.context.queue.submit(&source, &target, &options, act)?;
        self.submitted(&entry, asked.detach, act, caller)
    }

    /// Returns the result of a submission; "waiting" if the caller detaches.
    pub(super) fn submitted(
        &self,
        entry: &QueueEntry,
        detach: bool,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<Submitted> {
        if detach {
            self.fold_soon();
            let merge = self.nothing_done(&entry.target, v1::MergeHow::Waiting)?;
            return Ok(Submitted { entry: entry_message(entry, QUEUE), merge, is_ended: false });
        }
        caller.awaits_entry(&entry.id);
        let awaited = self.inner.await_entry(&entry.id);
        let waited = self.fold_until_done(entry, act, caller);
        drop(awaited);
        if waited.is_err() && caller.is_gone() {
            // Entries of the queue are merged, with or without a waiting caller.
            self.fold_soon();
        }
        let (folded, merge) = waited?;
        // An entry without a result here was merged by another node, or by an earlier process.
        let may_end = folded.map_or(entry.options.ends, |folded| folded.is_ended);
        let is_ended = may_end && self.context.workspaces.find(&entry.source)?.is_none();
        Ok(Submitted { entry: entry_message(entry, QUEUE), merge, is_ended })
    }

    /// Previews a submission. Nothing is changed.
    fn preview_submission(
        &self,
        asked: &v1::Submission,
        [source, target]: [&WorkspaceName; 2],
        after: AfterMerge,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<Submitted> {
        let preview = match asked.capture {
            true => Some(self.directories.preview_capture(source, act)?),
            false => None,
        };
        let head = match &preview {
            Some(preview) => preview.head,
            None => self.context.head(source)?,
        };
        let queue = &self.context.queue;
        let entry = queue.draft(source, target, head, &queue_options(asked, after)?, act)?;
        let mut merge = self.preview_entry(&entry, act, caller)?;
        merge.captures.splice(0..0, preview.into_iter().filter_map(|preview| preview.capture));
        Ok(Submitted { entry: entry_message(&entry, QUEUE), merge, is_ended: false })
    }

    /// Previews the merge of an entry with the present files of the target. Nothing is changed.
    pub(super) fn preview_entry(
        &self,
        entry: &QueueEntry,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::Merge> {
        let target = &entry.target;
        let into = self.directories.preview_capture(target, act)?;
        let policy = ServerMergePolicy::new(self, target, caller)?;
        let preview = || self.context.queue.preview_on(into.head, entry, &policy, act);
        let folded = caller.walking(preview)?;
        // The previewed head has no name: the message names the present one.
        let Folded { files, conflicts, changed, .. } = &folded;
        let (how, reason) = match &folded.outcome {
            EntryOutcome::Landed(snapshot) if *snapshot == entry.snapshot => (v1::MergeHow::Forward, String::new()),
            EntryOutcome::Landed(_) => (v1::MergeHow::Merged, String::new()),
            EntryOutcome::Already => (v1::MergeHow::Already, String::new()),
            EntryOutcome::Review(reason) => (v1::MergeHow::Review, reason.clone()),
            EntryOutcome::Refused(reason) => return Err(not_started(reason.clone())),
        };
        Ok(v1::Merge {
            refused: refused_message(&folded),
            files: files_message(files),
            conflicts: conflicts_message(conflicts),
            changed: *changed,
            reason,
            captures: into.capture.into_iter().collect(),
            ..self.nothing_done(target, how)?
        })
    }

    /// Folds a target until an entry has a result.
    pub(super) fn fold_until_done(
        &self,
        entry: &QueueEntry,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<(Option<Folded>, v1::Merge)> {
        let merging = &self.inner;
        let lock = merging.lock_of(&entry.target);
        let mut folds = 0;
        while folds < FOLDS_MAX {
            caller.enter(MergeStage::Wait);
            let turn = self.lock_target_of(entry, &lock, caller)?;
            caller.enter(MergeStage::Merge);
            // The fold before may have taken the entry.
            if let Some(folded) = merging.result_of(&entry.id) {
                let merge = self.folded_message(&folded)?;
                return Ok((Some(folded), merge));
            }
            match self.context.queue.find(&entry.id) {
                Ok(found) if found.is_held => {
                    let merge = self.nothing_done(&entry.target, v1::MergeHow::Waiting)?;
                    return Ok((None, v1::Merge { reason: "an undo brought it back".to_owned(), ..merge }));
                }
                Ok(_) => {}
                // An earlier process or another node has handled it.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let how = match self.context.queue.find_review(&entry.id) {
                        Ok(_) => v1::MergeHow::Review,
                        Err(_) => v1::MergeHow::Replayed,
                    };
                    return Ok((None, self.nothing_done(&entry.target, how)?));
                }
                Err(error) => return Err(error.into()),
            }
            match self.fold_target(&entry.target, act, caller)? {
                TargetFold::Done(update) => {
                    folds += 1;
                    if let Some(folded) = merging.result_of(&entry.id) {
                        let merge = self.folded_message(&folded)?;
                        let v1::Merge { safety, written, removed, notices, .. } = *update;
                        return Ok((Some(folded), v1::Merge { safety, written, removed, notices, ..merge }));
                    }
                }
                TargetFold::Nothing => folds += 1,
                TargetFold::Elsewhere => {
                    drop(turn);
                    caller.enter(MergeStage::Wait);
                    caller.check()?;
                    std::thread::sleep(TURN_CHECK_INTERVAL);
                }
            }
        }
        Err(Error::new(Reason::Busy, format!("the queue of {} stays busy; try again", entry.target)))
    }

    /// Locks the target of an entry. Reports the number of entries before it while it waits.
    fn lock_target_of<'a>(
        &self,
        entry: &QueueEntry,
        lock: &'a Mutex<()>,
        caller: &Caller,
    ) -> Result<MutexGuard<'a, ()>> {
        let is_before = |other: &QueueEntry| !other.is_held && other.id != entry.id && other.time <= entry.time;
        let ahead = || {
            let entries = self.context.queue.list(Some(&entry.target)).unwrap_or_default();
            entries.iter().filter(|other| is_before(other)).count()
        };
        loop {
            if let Some(turn) = lock.try_lock_for(TURN_CHECK_INTERVAL) {
                return Ok(turn);
            }
            caller.check()?;
            caller.set_entries_ahead(ahead);
        }
    }

    /// Folds a target once, and updates its directory. The caller holds the target's lock.
    ///
    /// While a command runs (a test, or one of a rule), the directory is unlocked: edits made meanwhile are merged with the new head.
    fn fold_target(&self, target: &WorkspaceName, act: &OperationContext, caller: &Caller) -> Result<TargetFold> {
        let queue = &self.context.queue;
        let secured = self.directories.secure_files(target, "a merge", act)?;
        let safety = secured.safety();
        let policy = ServerMergePolicy::new(self, target, caller)?;
        let is_long = policy.regenerator.has_commands() || queue.is_next_tested(target)?;
        let secured = if is_long { self.directories.release_files(secured) } else { FilesInMerge::Locked(secured) };
        let act = OperationContext { request: None, ..act.clone() };
        let fold = caller.walking(|| queue.fold(target, &policy, &act))?;
        if fold.is_elsewhere {
            return Ok(TargetFold::Elsewhere);
        }
        if fold.done.is_empty() {
            return Ok(TargetFold::Nothing);
        }
        fold.done.iter().for_each(log_folded);
        let ended: Vec<_> =
            fold.done.iter().filter(|folded| folded.is_ended).map(|folded| folded.entry.source.clone()).collect();
        self.inner.keep_results(fold.done);
        let mut update = v1::Merge::default();
        let updated = match secured {
            FilesInMerge::Locked(secured) => self.directories.update_files(secured, &mut update, &act),
            FilesInMerge::Unlocked => self.directories.catch_up_files(target, &mut update, &act),
        };
        // The files are unlocked by now, because the registry is locked before files. The source has ended in any case;
        // a new workspace of that name has detached the old directories already.
        ended.iter().try_for_each(|workspace| self.directories.detach_deleted(workspace, &act))?;
        updated?;
        update.safety =
            safety.map(|safety| self.context.snapshot_message(safety, &ShownNames::default())).transpose()?;
        Ok(TargetFold::Done(Box::new(update)))
    }

    /// Folds all waiting entries: those of an earlier process, and detached ones. Targets are folded in parallel, so that a
    /// test of one does not stop the others.
    pub(crate) fn fold_all(&self) -> Result<()> {
        let targets = self.context.queue.targets()?;
        // A target that fails does not stop the others; the first error is returned.
        run_in_parallel(targets, |target| self.fold_whole(&target))
    }

    /// Folds a target until its queue is empty.
    fn fold_whole(&self, target: &WorkspaceName) -> Result<()> {
        let act = OperationContext::new("queue", self.context.now());
        let lock = self.inner.lock_of(target);
        for _ in 0..FOLDS_MAX {
            let _lock = lock.lock();
            // Another node that folds the target takes all of its entries.
            if !matches!(self.fold_target(target, &act, &Caller::default())?, TargetFold::Done(_)) {
                break;
            }
        }
        Ok(())
    }

    /// Folds in the background whenever [`fold_soon`](Self::fold_soon) asks for it, until
    /// [`end_folding`](Self::end_folding). Begins with the entries that an earlier process left. A node of a cluster also looks
    /// by itself for entries that no node folds.
    pub(crate) fn keep_folding(&self) {
        let turn = &self.inner.turn;
        turn.wanted.lock().fold = true;
        loop {
            {
                let mut wanted = turn.wanted.lock();
                while !wanted.fold && !wanted.end {
                    if !self.context.is_shared() {
                        turn.changed.wait(&mut wanted);
                    } else if turn.changed.wait_for(&mut wanted, TAKEOVER_INTERVAL).timed_out() {
                        break;
                    }
                }
                if wanted.end {
                    return;
                }
                (wanted.fold, wanted.is_folding) = (false, true);
            }
            let _using = self.context.using();
            // The next request for an entry gets the same failure.
            if !self.context.is_expelled()
                && let Err(failure) = self.fold_all()
            {
                warn_failure(&failure, "the queue could not be merged");
            }
            turn.wanted.lock().is_folding = false;
        }
    }

    /// Asks for a fold in the background.
    fn fold_soon(&self) {
        let turn = &self.inner.turn;
        turn.wanted.lock().fold = true;
        turn.changed.notify_one();
    }

    /// Ends the thread that folds.
    pub(crate) fn end_folding(&self) {
        let turn = &self.inner.turn;
        turn.wanted.lock().end = true;
        turn.changed.notify_one();
    }

    /// Returns whether the background thread folds, or is asked to.
    pub(crate) fn is_folding(&self) -> bool {
        let wanted = self.inner.turn.wanted.lock();
        wanted.fold || wanted.is_folding
    }

    /// Converts the result of an entry to its message. A test that could not be started is an error.
    pub(super) fn folded_message(&self, folded: &Folded) -> Result<v1::Merge> {
        let (how, head, reason) = match &folded.outcome {
            // A target without a head takes over that of the source.
            EntryOutcome::Landed(snapshot) if *snapshot == folded.entry.snapshot => {
                (v1::MergeHow::Forward, Some(*snapshot), String::new())
            }
            EntryOutcome::Landed(snapshot) => (v1::MergeHow::Merged, Some(*snapshot), String::new()),
            EntryOutcome::Already => (v1::MergeHow::Already, None, String::new()),
            EntryOutcome::Review(reason) => (v1::MergeHow::Review, None, reason.clone()),
            EntryOutcome::Refused(reason) => {
                let message = format!("{}; nothing was merged, and nothing waits", reason.trim_end());
                return Err(not_started(message).with("entry", folded.entry.id.as_str()));
            }
        };
        let head = match head {
            Some(head) => Some(head),
            None => self.context.workspaces.get(&folded.entry.target)?.head,
        };
        Ok(v1::Merge {
            how: how.into(),
            target: amalgam_proto::workspace_name(&folded.entry.target),
            head: head.map(|head| self.context.snapshot_message(head, &ShownNames::default())).transpose()?,
            files: files_message(&folded.files),
            conflicts: conflicts_message(&folded.conflicts),
            changed: folded.changed,
            refused: refused_message(folded),
            sources: vec![v1::MergeSource {
                workspace: amalgam_proto::workspace_name(&folded.entry.source),
                place: 1,
                clashes: Vec::new(),
            }],
            reason,
            ..v1::Merge::default()
        })
    }

    /// Returns a page of the waiting entries. The first page also reports entries that cannot be read.
    pub(crate) fn list_queue(&self, request: &v1::ListQueueRequest, limit: usize) -> Result<v1::ListQueueResponse> {
        let (target, queue) = (self.context.here(&request.target)?, &self.context.queue);
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        let (entries, next) = queue.list_page(target.as_ref(), after, limit)?;
        let unreadable = if after.is_none() { queue.unreadable_entries()? } else { Vec::new() };
        let problems = unreadable.iter().take(PROBLEMS_MAX).map(|one| problem_of(one, "amalgam queue withdraw"));
        Ok(v1::ListQueueResponse {
            entries: entries.iter().map(|entry| entry_message(entry, QUEUE)).collect(),
            problems: problems.collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }

    /// Returns the message of one entry.
    pub(crate) fn queue_entry(&self, name: &str) -> Result<v1::QueueEntry> {
        let entry = self.context.queue.find(id_of(name, QUEUE))?;
        Ok(entry_message(&entry, QUEUE))
    }
}

impl Merging {
    /// Merges an entry that an undo brought back.
    pub(crate) fn release_entry(
        &self,
        name: &str,
        dry_run: bool,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::Merge> {
        let queue = &self.context.queue;
        let entry = queue.find(id_of(name, QUEUE))?;
        if dry_run {
            return self.preview_entry(&entry, act, caller);
        }
        refuse_unstartable(&entry.options.test, &self.context)?;
        let entry = match entry.is_held {
            true => queue.release(&entry, act)?,
            false => entry,
        };
        let act = OperationContext { request: None, ..act.clone() };
        self.fold_until_done(&entry, &act, caller).map(|(_, merge)| merge)
    }

    /// Takes an entry out of the queue. Under a policy, reviewers withdraw all entries, and other agents those of their own workspaces.
    pub(crate) fn withdraw_entry(&self, name: &str, dry_run: bool, act: &OperationContext) -> Result<v1::QueueEntry> {
        let queue = &self.context.queue;
        let id = id_of(name, QUEUE);
        let unreadable = queue.unreadable_entries()?;
        if let Some(found) = unreadable.into_iter().find(|one| one.id == id) {
            self.judge_end(None, WITHDRAW)?;
            if !dry_run {
                self.remove_unreadable(&found, "withdraw", act)?;
            }
            return Ok(v1::QueueEntry { name: format!("{QUEUE}{id}"), ..Default::default() });
        }
        let entry = queue.find(id)?;
        self.judge_end(Some(&entry.agent), WITHDRAW)?;
        if !dry_run {
            queue.withdraw(&entry, act)?;
        }
        Ok(entry_message(&entry, QUEUE))
    }
}

impl Merging {
    /// Removes a reference that cannot be read.
    pub(super) fn remove_unreadable(&self, found: &Unreadable, action: &str, act: &OperationContext) -> Result<()> {
        Ok(remove_reference(&self.context.store, &found.name, act, action).map(drop)?)
    }
}

/// Returns the message for a reference that cannot be read, with the command that removes it.
pub(super) fn problem_of(unreadable: &Unreadable, command: &str) -> String {
    let Unreadable { id, name, why } = unreadable;
    format!("{name} cannot be read: {why}; `{command} {id}` removes it")
}

/// Takes the lock of a target. Fails if the client disconnects meanwhile.
pub(super) fn lock_target<'a>(lock: &'a Mutex<()>, caller: &Caller) -> Result<MutexGuard<'a, ()>> {
    loop {
        if let Some(turn) = lock.try_lock_for(TURN_CHECK_INTERVAL) {
            return Ok(turn);
        }
        caller.check()?;
    }
}

/// Runs work for each target on a thread of its own, a few at a time, and returns an error if one failed.
pub(super) fn run_in_parallel<T: Send>(all: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let (threads, waiting) = (all.len().min(PARALLEL_TARGETS_MAX), Mutex::new(all.into_iter()));
    let run = || {
        let mut done = Ok(());
        loop {
            let next = waiting.lock().next();
            let Some(next) = next else { return done };
            done = done.and(work(next));
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let ours = run();
        running.into_iter().map(|thread| thread.join().unwrap_or(Ok(()))).fold(ours, Result::and)
    })
}

pub(super) const QUEUE: &str = "queue/";
/// The most unreadable entries or reviews that a list names.
pub(super) const PROBLEMS_MAX: usize = 1_000;

/// Returns the options of the queue entry for a submission.
fn queue_options(asked: &v1::Submission, after: AfterMerge) -> Result<QueueOptions> {
    let takes_rest = match asked.on_refused.as_str() {
        "" => None,
        word => Some(OnRefused::of_word(word).ok_or_else(|| {
            Error::new(Reason::Invalid, format!("on_refused: {word:?} is neither `review` nor `partial`"))
        })?),
    };
    Ok(QueueOptions {
        takes_rest: takes_rest.map(|word| word == OnRefused::Partial),
        ends: after == AfterMerge::EndWorkspace,
        message: asked.message.clone(),
        test: asked.test.clone(),
        test_seconds: asked.test_seconds,
        ..QueueOptions::default()
    })
}

/// Returns the id in a resource name, which is the whole name if it lacks the prefix.
pub(super) fn id_of<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.strip_prefix(prefix).unwrap_or(name)
}

/// Converts an entry to its message.
pub(super) fn entry_message(entry: &QueueEntry, prefix: &str) -> v1::QueueEntry {
    v1::QueueEntry {
        name: format!("{prefix}{}", entry.id),
        workspace: amalgam_proto::workspace_name(&entry.source),
        target: amalgam_proto::workspace_name(&entry.target),
        snapshot: amalgam_proto::snapshot_name(entry.snapshot),
        agent: entry.agent.clone(),
        actor: entry.actor.clone(),
        time: Some(amalgam_proto::timestamp(entry.time)),
        message: entry.options.message.clone(),
        ends: entry.options.ends,
        held: entry.is_held,
        test: entry.options.test.clone(),
    }
}
