//! The queue behind `complete` and `publish`: an entry is put there, the target is folded, and the caller gets what came of it.

use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::merge::{MergeContents, Regenerate as _};
use amalgam_engine::operation::remove_reference;
use amalgam_engine::queue::{Fate, Folded, Judge, QueueEntry, Regenerated, TestVerdict, Unreadable, Wish};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Act, ErrorKind, RootId, TreePath};
use amalgam_merge::Rules;
use amalgam_merge::trees::{ByRules, units_of};
use amalgam_proto::{Failure, Reason, v1};
use parking_lot::{Mutex, MutexGuard};
use tracing::info;

use super::made::Maker;
use super::rules::PROJECT_FILE;
use super::test::{TestPlace, not_started, refuse_long_test, refuse_unstartable};
use super::{conflicts_message, files_message};
use crate::api::Caller;
use crate::call_log::{warn_failure, workspace_id};
use crate::directory::Free;
use crate::failure::{Result, of_engine};
use crate::service::{Marks, Service};

/// So often a target is folded before one that waits for its own entry gives up: each fold takes hundreds.
const FOLDS_MAX: usize = 1_000;
/// How many targets are folded or published into at a time without anybody waiting.
pub(super) const TARGETS_AT_ONCE: usize = 8;
/// How often somebody who waits for a turn looks whether its caller is still there.
const TURN_LOOK_EVERY: Duration = Duration::from_millis(50);

/// What decides in the folds of a target: its rules, and the tests of entries.
pub(super) struct Referee<'a> {
    service: &'a Service,
    rules: Arc<Rules>,
    maker: Maker<'a>,
    /// Who waits for the fold.
    caller: &'a Caller,
}

impl<'a> Referee<'a> {
    /// By the rules that hold when a fold begins: what lands in it changes them for the next one.
    pub(super) fn new(service: &'a Service, target: &WorkspaceName, caller: &'a Caller) -> Result<Self> {
        let rules = service.merge_rules(Some(target), None)?;
        Ok(Self { service, maker: Maker::new(service, &rules, target), rules, caller })
    }
}

impl Judge for Referee<'_> {
    fn contents(&self, entry: &QueueEntry) -> amalgam_engine::Result<Box<dyn MergeContents + '_>> {
        let ours = self.service.inner.workspaces.get(&entry.target)?.agent;
        Ok(Box::new(ByRules::new(&self.rules, &ours, &entry.agent)))
    }

    fn is_grouped(&self, path: &TreePath) -> bool {
        self.rules.groups_of(path.as_bytes()).next().is_some()
    }

    fn units(&self, base: Option<RootId>, ours: RootId, theirs: RootId) -> amalgam_engine::Result<Vec<Vec<TreePath>>> {
        match self.rules.has_groups() {
            true => units_of(&self.rules, &self.service.inner.store, base, [ours, theirs]),
            false => Ok(Vec::new()),
        }
    }

    fn admit(&self, entry: &QueueEntry, path: &TreePath) -> amalgam_engine::Result<Option<String>> {
        match path.as_bytes() == PROJECT_FILE.as_bytes() {
            true => Ok(self.service.complaint_about(entry.snapshot, &entry.source)),
            false => Ok(None),
        }
    }

    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.maker.is_regenerated(path)
    }

    fn regenerate(&self, _entry: &QueueEntry, tree: RootId, paths: &[TreePath]) -> amalgam_engine::Result<Regenerated> {
        self.maker.regenerate(tree, paths)
    }

    fn test(&self, entry: &QueueEntry, tree: RootId) -> amalgam_engine::Result<TestVerdict> {
        // What the machine refuses is no verdict on the tree, and is told as the reason all the same.
        let place = TestPlace::new(&self.service.inner.home, &entry.id);
        let is_over = || self.caller.is_gone() || self.service.tests_are_cancelled();
        let settings = self.service.settings().map(|settings| settings.commands);
        let verdict =
            settings.and_then(|settings| place.run(&self.service.inner.store, tree, entry, &settings, &is_over));
        if is_over() {
            // Whether it failed or was ended cannot be told: its entry waits on.
            return Err(amalgam_engine::Error::Interrupted);
        }
        Ok(match verdict.unwrap_or_else(|failure| TestVerdict::Failed(failure.message)) {
            // Without a submitter who could be told, a person has to be.
            TestVerdict::NotStarted(reason) if !self.service.inner.merging.is_awaited(&entry.id) => {
                TestVerdict::Failed(reason)
            }
            verdict => verdict,
        })
    }
}

/// What came of putting something into the queue.
pub(crate) struct Submitted {
    pub(crate) entry: v1::QueueEntry,
    pub(crate) merge: v1::Merge,
    pub(crate) is_ended: bool,
}

/// Logs the result of a queue entry.
fn log_folded(folded: &Folded) {
    let (entry, source, target) = (folded.entry.id.as_str(), &folded.entry.source, &folded.entry.target);
    match &folded.fate {
        Fate::Landed(head) => info!(entry, %source, %target, head = %head.short(), "merge landed"),
        Fate::Already => info!(entry, %source, %target, "nothing to merge"),
        Fate::Review(_) => {
            info!(entry, %source, %target, conflicts = folded.conflicts.len(), "merge waits for a review")
        }
        Fate::Refused(_) => info!(entry, %source, %target, "merge refused"),
    }
}

impl Service {
    /// Puts what a workspace changed into the queue of its target, and waits until it is dealt with unless asked not to.
    pub(crate) fn submit(&self, asked: &v1::Submission, ends: bool, act: &Act, caller: &Caller) -> Result<Submitted> {
        let source = workspace_id(&asked.workspace).map_err(of_engine)?;
        if let Some(entry) = self.inner.merging.queue.find_submitted(act).map_err(of_engine)? {
            return self.submitted(&entry, asked.detach, act, caller);
        }
        let target = self.target_of(&source, &asked.target)?;
        refuse_long_test(asked.test_seconds)?;
        refuse_unstartable(&asked.test, &self.settings()?.commands)?;
        if asked.dry_run {
            return self.preview_submission(asked, [&source, &target], ends, act, caller);
        }
        if asked.capture {
            self.capture_of(&source, &format!("a merge into {target}"), act)?;
        }
        if ends {
            self.refuse_live(&source, "it cannot be completed")?;
        }
        let wish = wish_of(asked, ends);
        // Rules that cannot be read are said before anything waits for them; they may be mended in the directory already.
        if self.merge_rules(Some(&target), None).is_err() {
            self.secure_place(&target, "a merge", &Act { request: None, ..act.clone() })?;
            self.merge_rules(Some(&target), None)?;
        }
        let entry = self.inner.merging.queue.submit(&source, &target, &wish, act).map_err(of_engine)?;
        self.submitted(&entry, asked.detach, act, caller)
    }

    /// What became of what was put into the queue; nothing yet if nobody waits for it.
    fn submitted(&self, entry: &QueueEntry, detach: bool, act: &Act, caller: &Caller) -> Result<Submitted> {
        if detach {
            self.fold_soon();
            let merge = self.nothing_done(&entry.target, v1::MergeHow::Waiting)?;
            return Ok(Submitted { entry: entry_message(entry, QUEUE), merge, is_ended: false });
        }
        let awaited = self.inner.merging.await_entry(&entry.id);
        let waited = self.wait_for(entry, act, caller);
        drop(awaited);
        if waited.is_err() && caller.is_gone() {
            // What is in the queue is merged, whether anybody waits for it or not.
            self.fold_soon();
        }
        let (folded, merge) = waited?;
        let is_ended = folded.is_some_and(|folded| folded.is_ended)
            && self.inner.workspaces.find(&entry.source).map_err(of_engine)?.is_none();
        Ok(Submitted { entry: entry_message(entry, QUEUE), merge, is_ended })
    }

    /// What would come of putting it into the queue. Nothing is changed.
    fn preview_submission(
        &self,
        asked: &v1::Submission,
        [source, target]: [&WorkspaceName; 2],
        ends: bool,
        act: &Act,
        caller: &Caller,
    ) -> Result<Submitted> {
        let from = match asked.capture {
            true => Some(self.look_ahead(source, act)?),
            false => None,
        };
        let head = match &from {
            Some(ahead) => ahead.head,
            None => self.head(source)?,
        };
        let queue = &self.inner.merging.queue;
        let entry = queue.draft(source, target, head, &wish_of(asked, ends), act).map_err(of_engine)?;
        let mut merge = self.preview_entry(&entry, act, caller)?;
        merge.captures.splice(0..0, from.into_iter().filter_map(|ahead| ahead.capture));
        Ok(Submitted { entry: entry_message(&entry, QUEUE), merge, is_ended: false })
    }

    /// What would become of an entry now, with what is in the target's directory. Nothing is changed.
    pub(super) fn preview_entry(&self, entry: &QueueEntry, act: &Act, caller: &Caller) -> Result<v1::Merge> {
        let target = &entry.target;
        let into = self.look_ahead(target, act)?;
        let referee = Referee::new(self, target, caller)?;
        let preview = || self.inner.merging.queue.preview_on(into.head, entry, &referee, act);
        let folded = caller.walking(preview).map_err(of_engine)?;
        // What it would be has no name: the message is about the head that is.
        let Folded { files, conflicts, changed, .. } = &folded;
        let (how, reason) = match &folded.fate {
            Fate::Landed(snapshot) if *snapshot == entry.snapshot => (v1::MergeHow::Forward, String::new()),
            Fate::Landed(_) => (v1::MergeHow::Merged, String::new()),
            Fate::Already => (v1::MergeHow::Already, String::new()),
            Fate::Review(reason) => (v1::MergeHow::Review, reason.clone()),
            Fate::Refused(reason) => return Err(not_started(reason.clone())),
        };
        Ok(v1::Merge {
            files: files_message(files),
            conflicts: conflicts_message(conflicts),
            changed: *changed,
            reason,
            captures: into.capture.into_iter().collect(),
            ..self.nothing_done(target, how)?
        })
    }

    /// What a workspace's changes are merged into.
    pub(super) fn target_of(&self, source: &WorkspaceName, asked: &str) -> Result<WorkspaceName> {
        if !asked.is_empty() {
            return workspace_id(asked).map_err(of_engine);
        }
        self.inner.workspaces.get(source).map_err(of_engine)?.target.ok_or_else(|| {
            let message = format!("{source} has no target to merge into; name one with --into");
            Failure::new(Reason::Invalid, message)
        })
    }

    /// Folds a target until an entry is dealt with.
    pub(super) fn wait_for(
        &self,
        entry: &QueueEntry,
        act: &Act,
        caller: &Caller,
    ) -> Result<(Option<Folded>, v1::Merge)> {
        let merging = &self.inner.merging;
        let lock = merging.lock_of(&entry.target);
        for _ in 0..FOLDS_MAX {
            let _turn = turn_of(&lock, caller)?;
            // Whoever folded before may have taken it along.
            if let Some(folded) = merging.result_of(&entry.id) {
                let merge = self.folded_message(&folded)?;
                return Ok((Some(folded), merge));
            }
            match merging.queue.find(&entry.id) {
                Ok(found) if found.is_held => {
                    let merge = self.nothing_done(&entry.target, v1::MergeHow::Waiting)?;
                    return Ok((None, v1::Merge { reason: "an undo brought it back".to_owned(), ..merge }));
                }
                Ok(_) => {}
                // Done in another life of this process.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let how = match merging.queue.find_review(&entry.id) {
                        Ok(_) => v1::MergeHow::Review,
                        Err(_) => v1::MergeHow::Replayed,
                    };
                    return Ok((None, self.nothing_done(&entry.target, how)?));
                }
                Err(error) => return Err(of_engine(error)),
            }
            if let Some(along) = self.fold_target(&entry.target, act, caller)?
                && let Some(folded) = merging.result_of(&entry.id)
            {
                let merge = self.folded_message(&folded)?;
                let v1::Merge { safety, written, removed, notices, .. } = along;
                return Ok((Some(folded), v1::Merge { safety, written, removed, notices, ..merge }));
            }
        }
        Err(Failure::new(Reason::Busy, format!("the queue of {} stays busy; try again", entry.target)))
    }

    /// One fold of a target, and its directory brought along. Nothing when nothing waits. Whoever calls has the target's lock.
    ///
    /// While a command runs, a test or one of a rule, the directory is free: what is written there meanwhile is merged with what landed.
    fn fold_target(&self, target: &WorkspaceName, act: &Act, caller: &Caller) -> Result<Option<v1::Merge>> {
        let queue = &self.inner.merging.queue;
        let place = self.secure_place(target, "a merge", act)?;
        let safety = place.safety();
        let referee = Referee::new(self, target, caller)?;
        let is_long = referee.maker.has_commands() || queue.is_next_tested(target).map_err(of_engine)?;
        let place = if is_long { self.let_go_of_place(place) } else { Ok(place) };
        let act = Act { request: None, ..act.clone() };
        let fold = caller.walking(|| queue.fold(target, &referee, &act)).map_err(of_engine)?;
        if fold.done.is_empty() {
            return Ok(None);
        }
        fold.done.iter().for_each(log_folded);
        let ended: Vec<_> =
            fold.done.iter().filter(|folded| folded.is_ended).map(|folded| folded.entry.source.clone()).collect();
        self.inner.merging.keep_results(fold.done);
        let mut along = v1::Merge::default();
        let brought = match place {
            Ok(place) => self.bring_place_along(place, &mut along, &act),
            Err(Free) => self.catch_place_up(target, &mut along, &act),
        };
        // The place is let go of by now: a turn of the registry comes before any. What landed has ended, whatever became of the place;
        // whoever took the name meanwhile has let go of what it had.
        ended.iter().try_for_each(|workspace| self.end_places_of(workspace, &act))?;
        brought?;
        along.safety = safety.map(|safety| self.snapshot_message(safety, &Marks::default())).transpose()?;
        Ok(Some(along))
    }

    /// Folds all that waits: what a process that ended left, and what nobody waited for. Targets are folded side by side, so that a
    /// test of one does not stop the others.
    pub(crate) fn fold_all(&self) -> Result<()> {
        let targets = self.inner.merging.queue.targets().map_err(of_engine)?;
        // One that cannot be merged into keeps no other waiting; one that went wrong is told.
        side_by_side(targets, |target| self.fold_whole(&target))
    }

    fn fold_whole(&self, target: &WorkspaceName) -> Result<()> {
        let act = Act::new("queue", self.now());
        let lock = self.inner.merging.lock_of(target);
        for _ in 0..FOLDS_MAX {
            let _turn = lock.lock();
            if self.fold_target(target, &act, &Caller::default())?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Folds in the background whenever somebody asks for it, until it is ended. What waited before this process began comes
    /// first.
    pub(crate) fn keep_folding(&self) {
        let turn = &self.inner.merging.turn;
        turn.wanted.lock().fold = true;
        loop {
            {
                let mut wanted = turn.wanted.lock();
                while !wanted.fold && !wanted.end {
                    turn.changed.wait(&mut wanted);
                }
                if wanted.end {
                    return;
                }
                (wanted.fold, wanted.is_folding) = (false, true);
            }
            let _using = self.using();
            // The next call about an entry meets the same failure and returns it.
            if let Err(failure) = self.fold_all() {
                warn_failure(&failure, "the queue could not be merged");
            }
            turn.wanted.lock().is_folding = false;
        }
    }

    /// Asks for a fold in the background.
    fn fold_soon(&self) {
        let turn = &self.inner.merging.turn;
        turn.wanted.lock().fold = true;
        turn.changed.notify_one();
    }

    /// Ends the thread that folds.
    pub(crate) fn end_folding(&self) {
        let turn = &self.inner.merging.turn;
        turn.wanted.lock().end = true;
        turn.changed.notify_one();
    }

    /// Whether something is folded in the background, or is about to be.
    pub(crate) fn is_folding(&self) -> bool {
        let wanted = self.inner.merging.turn.wanted.lock();
        wanted.fold || wanted.is_folding
    }

    /// What became of an entry, for the wire.
    pub(super) fn folded_message(&self, folded: &Folded) -> Result<v1::Merge> {
        let (how, head, reason) = match &folded.fate {
            // A target without a head takes over that of the source.
            Fate::Landed(snapshot) if *snapshot == folded.entry.snapshot => {
                (v1::MergeHow::Forward, Some(*snapshot), String::new())
            }
            Fate::Landed(snapshot) => (v1::MergeHow::Merged, Some(*snapshot), String::new()),
            Fate::Already => (v1::MergeHow::Already, None, String::new()),
            Fate::Review(reason) => (v1::MergeHow::Review, None, reason.clone()),
            Fate::Refused(reason) => {
                let message = format!("{}; nothing was merged, and nothing waits", reason.trim_end());
                return Err(not_started(message).with("entry", folded.entry.id.as_str()));
            }
        };
        let head = match head {
            Some(head) => Some(head),
            None => self.inner.workspaces.get(&folded.entry.target).map_err(of_engine)?.head,
        };
        Ok(v1::Merge {
            how: how.into(),
            target: amalgam_proto::workspace_name(&folded.entry.target),
            head: head.map(|head| self.snapshot_message(head, &Marks::default())).transpose()?,
            files: files_message(&folded.files),
            conflicts: conflicts_message(&folded.conflicts),
            changed: folded.changed,
            sources: vec![v1::MergeSource {
                workspace: amalgam_proto::workspace_name(&folded.entry.source),
                place: 1,
                clashes: Vec::new(),
            }],
            reason,
            ..v1::Merge::default()
        })
    }

    /// What waits, for the wire.
    pub(crate) fn list_queue(&self, target: &str) -> Result<v1::ListQueueResponse> {
        let (target, queue) = (self.here(target)?, &self.inner.merging.queue);
        let entries = queue.list(target.as_ref()).map_err(of_engine)?;
        let unreadable = queue.unreadable_entries().map_err(of_engine)?;
        Ok(v1::ListQueueResponse {
            entries: entries.iter().map(|entry| entry_message(entry, QUEUE)).collect(),
            problems: unreadable.iter().map(|one| problem_of(one, "amalgam queue withdraw")).collect(),
        })
    }

    /// One entry, for the wire.
    pub(crate) fn queue_entry(&self, name: &str) -> Result<v1::QueueEntry> {
        let entry = self.inner.merging.queue.find(id_of(name, QUEUE)).map_err(of_engine)?;
        Ok(entry_message(&entry, QUEUE))
    }
}

impl Service {
    /// Merges an entry that an undo brought back.
    pub(crate) fn release_entry(&self, name: &str, dry_run: bool, act: &Act, caller: &Caller) -> Result<v1::Merge> {
        let queue = &self.inner.merging.queue;
        let entry = queue.find(id_of(name, QUEUE)).map_err(of_engine)?;
        if dry_run {
            return self.preview_entry(&entry, act, caller);
        }
        refuse_unstartable(&entry.wish.test, &self.settings()?.commands)?;
        let entry = match entry.is_held {
            true => queue.release(&entry, act).map_err(of_engine)?,
            false => entry,
        };
        let act = Act { request: None, ..act.clone() };
        self.wait_for(&entry, &act, caller).map(|(_, merge)| merge)
    }

    /// Takes an entry out of the queue.
    pub(crate) fn withdraw_entry(&self, name: &str, dry_run: bool, act: &Act) -> Result<v1::QueueEntry> {
        let queue = &self.inner.merging.queue;
        let id = id_of(name, QUEUE);
        let unreadable = queue.unreadable_entries().map_err(of_engine)?;
        if let Some(found) = unreadable.into_iter().find(|one| one.id == id) {
            if !dry_run {
                self.remove_unreadable(&found, "withdraw", act)?;
            }
            return Ok(v1::QueueEntry { name: format!("{QUEUE}{id}"), ..Default::default() });
        }
        let entry = queue.find(id).map_err(of_engine)?;
        if !dry_run {
            queue.withdraw(&entry, act).map_err(of_engine)?;
        }
        Ok(entry_message(&entry, QUEUE))
    }
}

impl Service {
    /// Removes a reference that cannot be read.
    pub(super) fn remove_unreadable(&self, found: &Unreadable, action: &str, act: &Act) -> Result<()> {
        remove_reference(&self.inner.store, &found.name, act, action).map(drop).map_err(of_engine)
    }
}

/// What is said of a reference that cannot be read.
pub(super) fn problem_of(unreadable: &Unreadable, command: &str) -> String {
    let Unreadable { id, name, why } = unreadable;
    format!("{name} cannot be read: {why}; `{command} {id}` removes it")
}

/// The turn to fold a target, as soon as it comes; an error when the caller is gone before.
pub(super) fn turn_of<'a>(lock: &'a Mutex<()>, caller: &Caller) -> Result<MutexGuard<'a, ()>> {
    loop {
        if let Some(turn) = lock.try_lock_for(TURN_LOOK_EVERY) {
            return Ok(turn);
        }
        caller.check()?;
    }
}

/// Does something for each target on a thread of its own, a few at a time. One that went wrong is told.
pub(super) fn side_by_side<T: Send>(all: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let (threads, waiting) = (all.len().min(TARGETS_AT_ONCE), Mutex::new(all.into_iter()));
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

fn wish_of(asked: &v1::Submission, ends: bool) -> Wish {
    Wish {
        ends,
        message: asked.message.clone(),
        test: asked.test.clone(),
        test_seconds: asked.test_seconds,
        ..Wish::default()
    }
}

/// The id in a resource name.
pub(super) fn id_of<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.strip_prefix(prefix).unwrap_or(name)
}

/// An entry for the wire.
pub(super) fn entry_message(entry: &QueueEntry, prefix: &str) -> v1::QueueEntry {
    v1::QueueEntry {
        name: format!("{prefix}{}", entry.id),
        workspace: amalgam_proto::workspace_name(&entry.source),
        target: amalgam_proto::workspace_name(&entry.target),
        snapshot: amalgam_proto::snapshot_name(entry.snapshot),
        agent: entry.agent.clone(),
        actor: entry.actor.clone(),
        time: Some(amalgam_proto::timestamp(entry.time)),
        message: entry.wish.message.clone(),
        ends: entry.wish.ends,
        held: entry.is_held,
        test: entry.wish.test.clone(),
    }
}
