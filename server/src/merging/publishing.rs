//! Publishing by itself: what a workspace changed goes into the queue of its target every so often, or whenever it was
//! committed to, without anybody asking each time.
//!
//! What was asked for is kept beside the store, in `publishing.json`. Each head is tried once. What conflicts or fails its test
//! waits for a person, and while it does nothing more of that workspace is tried; so nothing comes again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{Act, Time};
use amalgam_proto::{Failure, Reason, v1};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::queue::TARGETS_AT_ONCE;
use crate::api::Caller;
use crate::call_log::{warn_failure, workspace_id};
use crate::failure::{Result, of_engine, of_io};
use crate::home::{Home, replace_file};
use crate::service::Service;

/// How often it is looked whether something is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What failed is not tried again before.
const AGAIN_NANOSECONDS: i64 = 60 * SECOND_NANOSECONDS;
const SECOND_NANOSECONDS: i64 = 1_000_000_000;
/// The longest interval: a year.
const EVERY_SECONDS_MAX: u32 = 366 * 24 * 3_600;

/// What is published without being asked for each time.
pub(crate) struct Publishing {
    file: PathBuf,
    plans: Mutex<BTreeMap<String, Plan>>,
    ending: Mutex<bool>,
    changed: Condvar,
}

/// What somebody wants of a workspace, and what came of it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Plan {
    /// 0 without an interval.
    every_seconds: u32,
    on_commit: bool,
    /// Empty for what the workspace is merged into anyway.
    target: String,
    message: String,
    test: Vec<String>,
    test_seconds: u32,
    /// Who asked for it.
    actor: String,
    /// The head that was tried last.
    tried: String,
    /// When it was last looked at, in this life of the process.
    #[serde(skip)]
    looked: i64,
    /// Not before this moment, after something failed.
    not_before: i64,
    last: Option<Last>,
}

/// The last time that something was published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Last {
    time: i64,
    /// `merged`, `already`, `review`, `failed`.
    how: String,
    /// Why it was not merged, if it was not.
    reason: String,
}

impl Plan {
    /// Whether it is time to look at a workspace with this head.
    fn is_due(&self, head: &str, now: Time) -> bool {
        if now.0 < self.not_before {
            return false;
        }
        let since = now.0.saturating_sub(self.looked);
        let by_time = self.every_seconds > 0 && since >= i64::from(self.every_seconds) * SECOND_NANOSECONDS;
        by_time || (self.on_commit && head != self.tried)
    }
}

impl Publishing {
    /// What is kept in a home; also what is wrong with it. A file that cannot be read is set aside.
    pub(crate) fn open(home: &Home) -> Result<(Self, Option<String>)> {
        let file = home.path().join("publishing.json");
        let failed = |source: &std::io::Error| of_io(&format!("read {}", file.display()), source);
        let mut problem = None;
        let plans = match std::fs::read(&file) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(plans) => plans,
                Err(error) => {
                    let aside = file.with_extension("unreadable");
                    std::fs::rename(&file, &aside).map_err(|source| failed(&source))?;
                    problem = Some(format!("nothing is published by itself: {}: {error}", aside.display()));
                    BTreeMap::new()
                }
            },
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(failed(&source)),
        };
        let publishing = Self { file, plans: Mutex::new(plans), ending: Mutex::new(false), changed: Condvar::new() };
        Ok((publishing, problem))
    }

    /// Changes what is kept. Nothing is written where only looks were taken.
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Plan>) -> T) -> Result<T> {
        let text = |plans: &BTreeMap<String, Plan>| serde_json::to_vec_pretty(plans).expect("plans are plain values");
        let mut plans = self.plans.lock();
        let before = text(&plans);
        let done = change(&mut plans);
        let bytes = text(&plans);
        if bytes != before {
            replace_file(&self.file, &bytes)
                .map_err(|source| of_io(&format!("write {}", self.file.display()), &source))?;
        }
        Ok(done)
    }

    /// Whether something is published by interval, for which the process must be there.
    fn has_intervals(&self) -> bool {
        self.plans.lock().values().any(|plan| plan.every_seconds > 0)
    }
}

impl Service {
    /// Says how a workspace is published by itself, or that it is not any more: the workspace as it is then, or, of a dry run,
    /// as it would be.
    pub(crate) fn schedule_publishing(
        &self,
        request: &v1::SchedulePublishingRequest,
        act: &Act,
    ) -> Result<v1::Workspace> {
        let asked = request.submission.clone().unwrap_or_default();
        let name = workspace_id(&asked.workspace).map_err(of_engine)?;
        let workspace = self.inner.workspaces.get(&name).map_err(of_engine)?;
        let plan = self.plan_asked_for(&name, request, asked.clone(), act)?;
        if asked.dry_run {
            let publishing = plan.map(|plan| self.plan_message(&workspace, plan)).transpose()?;
            return Ok(v1::Workspace { publishing, ..self.workspace_message(&name)? });
        }
        let publishing = &self.inner.merging.publishing;
        publishing.change(|plans| match plan {
            Some(plan) => plans.insert(name.to_string(), plan),
            None => plans.remove(name.as_str()),
        })?;
        publishing.changed.notify_one();
        self.workspace_message(&name)
    }

    /// The plan that somebody asks for; nothing where a workspace is not to be published by itself.
    fn plan_asked_for(
        &self,
        name: &WorkspaceName,
        request: &v1::SchedulePublishingRequest,
        asked: v1::Submission,
        act: &Act,
    ) -> Result<Option<Plan>> {
        if request.every_seconds == 0 && !request.on_commit {
            return Ok(None);
        }
        if request.every_seconds > EVERY_SECONDS_MAX {
            return Err(Failure::new(Reason::Invalid, "the longest interval is a year"));
        }
        super::test::refuse_long_test(asked.test_seconds)?;
        super::test::refuse_unstartable(&asked.test, &self.settings()?.commands)?;
        let target = self.target_of(name, &asked.target)?;
        self.inner.workspaces.get(&target).map_err(of_engine)?;
        if target == *name {
            return Err(Failure::new(Reason::Invalid, format!("{name} cannot be published into itself")));
        }
        Ok(Some(Plan {
            every_seconds: request.every_seconds,
            on_commit: request.on_commit,
            target: asked.target,
            message: asked.message,
            test: asked.test,
            test_seconds: asked.test_seconds,
            actor: act.actor.clone(),
            ..Plan::default()
        }))
    }

    /// How a workspace is published by itself, for the wire.
    pub(crate) fn publishing_message(&self, workspace: &Workspace) -> Result<Option<v1::Publishing>> {
        let plan = self.inner.merging.publishing.plans.lock().get(workspace.name.as_str()).cloned();
        plan.map(|plan| self.plan_message(workspace, plan)).transpose()
    }

    fn plan_message(&self, workspace: &Workspace, plan: Plan) -> Result<v1::Publishing> {
        let target = self.target_of(&workspace.name, &plan.target).ok();
        let review = target.as_ref().map(|target| self.waiting(&workspace.name, target)).transpose()?.flatten();
        let last = plan.last.unwrap_or_default();
        Ok(v1::Publishing {
            every_seconds: plan.every_seconds,
            on_commit: plan.on_commit,
            target: target.as_ref().map(amalgam_proto::workspace_name).unwrap_or_default(),
            last_time: (last.time != 0).then(|| amalgam_proto::timestamp(Time(last.time))),
            last_how: last.how,
            reason: last.reason,
            review: review.unwrap_or_default(),
        })
    }

    /// What of a workspace waits for a person before it can be in a target.
    fn waiting(&self, source: &WorkspaceName, target: &WorkspaceName) -> Result<Option<String>> {
        let reviews = self.inner.merging.queue.reviews(Some(target)).map_err(of_engine)?;
        let found = reviews.into_iter().find(|review| review.entry.source == *source);
        Ok(found.map(|review| format!("{}{}", super::review::REVIEWS, review.entry.id)))
    }

    /// Publishes all that is due now: what goes into one target one after another, targets side by side.
    #[cfg(test)]
    fn publish_due(&self) -> Result<()> {
        let due = self.due_by_target(|_| true)?;
        super::queue::side_by_side(due.into_iter().collect(), |(_, plans)| self.publish_all(plans))
    }

    /// The plans that are due, by their targets.
    fn due_by_target(&self, is_wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Vec<(WorkspaceName, Plan)>>> {
        let plans = self.inner.merging.publishing.plans.lock().clone();
        let mut due: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (name, plan) in plans {
            let name = WorkspaceName::new(name).map_err(of_engine)?;
            let Some(workspace) = self.inner.workspaces.find(&name).map_err(of_engine)? else {
                self.forget_ended_publishing(&name)?;
                continue;
            };
            // One without a target fails on its own.
            let target = self.target_of(&name, &plan.target).map(|target| target.to_string()).unwrap_or_default();
            if is_wanted(&target) && plan.is_due(&head_of(&workspace), self.now()) {
                due.entry(target).or_default().push((name, plan));
            }
        }
        Ok(due)
    }

    /// Publishes what is due for one target.
    fn publish_all(&self, plans: Vec<(WorkspaceName, Plan)>) -> Result<()> {
        plans.into_iter().try_for_each(|(name, plan)| self.publish_one(&name, &plan))
    }

    fn publish_one(&self, name: &WorkspaceName, plan: &Plan) -> Result<()> {
        let now = self.now();
        let outcome = self.publish_planned(name, plan);
        match &outcome {
            Ok(Some((_, last))) => info!(workspace = %name, result = last.how, "published as scheduled"),
            Ok(None) => {}
            Err(failure) => warn_failure(failure, &format!("scheduled publish of {name} failed")),
        }
        let again = now.0.saturating_add(AGAIN_NANOSECONDS);
        self.inner.merging.publishing.change(|plans| {
            // Somebody may have said otherwise meanwhile.
            let Some(kept) = plans.get_mut(name.as_str()).filter(|kept| **kept == *plan) else { return };
            kept.looked = now.0;
            match outcome {
                Ok(Some((tried, last))) => (kept.tried, kept.last) = (tried, Some(Last { time: now.0, ..last })),
                Ok(None) => {}
                Err(failure) => {
                    kept.not_before = again;
                    let how = "failed".to_owned();
                    kept.last = Some(Last { time: now.0, how, reason: failure.message });
                }
            }
        })
    }

    /// Publishes a workspace as planned; nothing if there is nothing new, or something waits for a person.
    fn publish_planned(&self, name: &WorkspaceName, plan: &Plan) -> Result<Option<(String, Last)>> {
        let target = self.target_of(name, &plan.target)?;
        if self.waiting(name, &target)?.is_some() {
            return Ok(None);
        }
        let act = Act::new(&plan.actor, self.now());
        if plan.every_seconds > 0 {
            self.capture_of(name, &format!("a merge into {target}"), &act)?;
        }
        let head = head_of(&self.inner.workspaces.get(name).map_err(of_engine)?);
        if head == plan.tried || head.is_empty() {
            return Ok(None);
        }
        let submission = v1::Submission {
            workspace: amalgam_proto::workspace_name(name),
            target: amalgam_proto::workspace_name(&target),
            message: plan.message.clone(),
            test: plan.test.clone(),
            test_seconds: plan.test_seconds,
            detach: false,
            capture: false,
            dry_run: false,
        };
        let merge = match self.submit(&submission, false, &act, &Caller::default()) {
            Ok(done) => done.merge,
            // The test was tried with these files, and will not start with them the next time either.
            Err(failure) if failure.reason == Reason::TestNotStarted && failure.details.contains_key("entry") => {
                return Ok(Some((head, Last { time: 0, how: "failed".to_owned(), reason: failure.message })));
            }
            Err(failure) => return Err(failure),
        };
        let how = match merge.how() {
            v1::MergeHow::Already | v1::MergeHow::Replayed => "already",
            v1::MergeHow::Review | v1::MergeHow::Waiting => "review",
            _ => "merged",
        };
        Ok(Some((head, Last { time: 0, how: how.to_owned(), reason: merge.reason })))
    }

    /// Publishes what is due, for as long as the process lives. Each target has a thread of its own while something is published into
    /// it, so that the test of one keeps no other waiting.
    pub(crate) fn keep_publishing(&self) {
        let publishing = &self.inner.merging.publishing;
        let busy: Mutex<BTreeSet<String>> = Mutex::default();
        std::thread::scope(|scope| {
            loop {
                {
                    let mut ending = publishing.ending.lock();
                    if !*ending {
                        publishing.changed.wait_for(&mut ending, LOOK_EVERY);
                    }
                    if *ending {
                        return;
                    }
                }
                if publishing.plans.lock().is_empty() {
                    continue;
                }
                let due = {
                    let _using = self.using();
                    // Tried again at the next look.
                    let due = self.due_by_target(|target| !busy.lock().contains(target));
                    due.inspect_err(|failure| warn_failure(failure, "scheduled publishing cannot be read"))
                        .unwrap_or_default()
                };
                for (target, plans) in due {
                    let is_free = busy.lock().len() < TARGETS_AT_ONCE;
                    if !is_free {
                        break;
                    }
                    busy.lock().insert(target.clone());
                    let busy = &busy;
                    scope.spawn(move || {
                        let _using = self.using();
                        if let Err(failure) = self.publish_all(plans) {
                            warn_failure(&failure, "the result of a scheduled publish was not saved");
                        }
                        busy.lock().remove(&target);
                    });
                }
            }
        });
    }

    /// Ends the thread that publishes.
    pub(crate) fn end_publishing(&self) {
        let publishing = &self.inner.merging.publishing;
        *publishing.ending.lock() = true;
        publishing.changed.notify_one();
    }

    /// Whether the process must be there for something that is published by interval.
    pub(crate) fn is_publishing(&self) -> bool {
        self.inner.merging.publishing.has_intervals()
    }

    /// A workspace is gone: it is published no more.
    pub(crate) fn forget_publishing(&self, workspace: &WorkspaceName) -> Result<()> {
        self.inner.merging.publishing.change(|plans| drop(plans.remove(workspace.as_str())))
    }

    /// An undo may have taken a workspace away; what was asked for goes with it, unless it has another name now.
    fn forget_ended_publishing(&self, workspace: &WorkspaceName) -> Result<()> {
        let _turn = self.inner.registry.turn();
        match self.inner.workspaces.find(workspace).map_err(of_engine)? {
            Some(_) => Ok(()),
            None => self.forget_publishing(workspace),
        }
    }

    /// A workspace got another name, under which it is published.
    pub(crate) fn publishing_follows(&self, from: &WorkspaceName, to: &WorkspaceName) -> Result<()> {
        self.inner.merging.publishing.change(|plans| {
            if let Some(plan) = plans.remove(from.as_str()) {
                plans.insert(to.to_string(), plan);
            }
        })
    }
}

fn head_of(workspace: &Workspace) -> String {
    workspace.head.map(|head| head.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use amalgam_engine::workspace::{Change, NewWorkspace};

    use super::*;

    /// A clock for each test: they run side by side, and a clock is a plain function.
    macro_rules! clock {
        () => {{
            static NOW: AtomicI64 = AtomicI64::new(1_000 * SECOND_NANOSECONDS);
            fn now() -> Time {
                Time(NOW.load(Ordering::Relaxed))
            }
            (now as fn() -> Time, |seconds: i64| {
                NOW.fetch_add(seconds * SECOND_NANOSECONDS, Ordering::Relaxed);
            })
        }};
    }

    struct House {
        service: Service,
        around: tempfile::TempDir,
    }

    fn name(name: &str) -> WorkspaceName {
        WorkspaceName::new(name).expect("a name")
    }

    impl House {
        fn new(clock: fn() -> Time) -> Self {
            let around = tempfile::tempdir().expect("a directory");
            let service = Service::open(&Home::new(around.path().join("home")), clock, &[]).expect("opened");
            let house = Self { service, around };
            let act = house.service.act("ann");
            let workspaces = &house.service.inner.workspaces;
            workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
            house.write("main", "file", "one\n");
            workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
            house
        }

        fn write(&self, workspace: &str, path: &str, text: &str) {
            let workspaces = &self.service.inner.workspaces;
            let mut tree = workspaces.open(&name(workspace)).expect("open");
            tree.write(path, text.as_bytes()).expect("written");
            let act = self.service.act("ann");
            workspaces.commit(&name(workspace), &mut tree, &Change::new(text), &act).expect("committed");
        }

        fn read(&self, path: &str) -> String {
            let tree = self.service.inner.workspaces.open(&name("main")).expect("open");
            match tree.exists(path).expect("a look") {
                true => String::from_utf8(tree.read(path).expect("a file")).expect("text"),
                false => "absent".to_owned(),
            }
        }

        fn schedule(&self, every_seconds: u32, on_commit: bool) {
            self.schedule_testing(every_seconds, on_commit, &[]);
        }

        fn schedule_testing(&self, every_seconds: u32, on_commit: bool, test: &[&str]) {
            let submission = v1::Submission {
                workspace: "workspaces/try".to_owned(),
                test: test.iter().map(|word| (*word).to_owned()).collect(),
                ..v1::Submission::default()
            };
            let request = v1::SchedulePublishingRequest { submission: Some(submission), every_seconds, on_commit };
            let act = self.service.act("ann");
            self.service.schedule_publishing(&request, &act).expect("scheduled");
        }

        fn look(&self) -> Option<v1::Publishing> {
            self.service.publish_due().expect("a look");
            self.service.workspace_message(&name("try")).expect("it").publishing
        }

        fn reviews(&self) -> usize {
            self.service.inner.merging.queue.reviews(None).expect("reviews").len()
        }
    }

    #[test]
    fn what_changed_is_published_when_the_interval_has_passed() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        house.write("try", "new", "one\n");
        house.schedule(30, false);
        let told = house.look().expect("it is on");
        assert_eq!(
            (told.every_seconds, told.last_how.as_str(), told.target.as_str()),
            (30, "merged", "workspaces/main")
        );
        assert_eq!(house.read("new"), "one\n");
        house.write("try", "new", "two\n");
        pass(29);
        house.look();
        assert_eq!(house.read("new"), "one\n", "it is not time yet");
        pass(1);
        let told = house.look().expect("it is on");
        assert_eq!(house.read("new"), "two\n");
        let at = told.last_time.expect("it was done").seconds;
        pass(30);
        let told = house.look().expect("it is on");
        assert_eq!(told.last_time.expect("it was done").seconds, at, "there was nothing new");
        house.schedule(0, false);
        house.write("try", "new", "three\n");
        pass(60);
        assert_eq!(house.look(), None, "it is off");
        assert_eq!(house.read("new"), "two\n");
        assert!(!house.service.is_publishing());
    }

    #[test]
    fn a_commit_is_published_once() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        house.schedule(0, true);
        assert_eq!(house.look().expect("it is on").last_how, "already", "main has it all");
        let before = house.service.inner.workspaces.get(&name("main")).expect("main").head;
        pass(100);
        house.look();
        assert_eq!(house.service.inner.workspaces.get(&name("main")).expect("main").head, before);
        house.write("try", "new", "one\n");
        assert_eq!(house.look().expect("it is on").last_how, "merged");
        assert_eq!(house.read("new"), "one\n");
        assert!(!house.service.is_publishing(), "commits come through the process, which may end between them");
    }

    #[test]
    fn what_conflicts_waits_for_a_person_and_does_not_come_again() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        house.write("main", "file", "two\n");
        house.write("try", "file", "three\n");
        house.schedule(10, true);
        let told = house.look().expect("it is on");
        assert_eq!((told.last_how.as_str(), house.reviews()), ("review", 1));
        assert!(told.review.starts_with("reviews/"), "{told:?}");
        for text in ["four\n", "five\n", "six\n"] {
            house.write("try", "file", text);
            pass(10);
            house.look();
        }
        assert_eq!(house.reviews(), 1, "nothing more is tried while it waits");
        let act = house.service.act("ann");
        house.service.reject_review(&told.review, false, &act).expect("rejected");
        pass(10);
        assert_eq!((house.look().expect("it is on").last_how.as_str(), house.reviews()), ("review", 1));
        pass(1_000);
        house.look();
        let act = house.service.act("ann");
        let again = house.look().expect("it is on").review;
        house.service.reject_review(&again, false, &act).expect("rejected");
        pass(1_000);
        house.look();
        assert_eq!(house.reviews(), 0, "a head that was tried is not tried again");
    }

    #[test]
    fn a_test_that_fails_is_not_run_again_for_the_same_head() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        let ran = house.around.path().join("ran");
        let count = format!("echo x >>'{}'; false", ran.display());
        house.write("try", "new", "one\n");
        house.schedule_testing(10, false, &["sh", "-c", &count]);
        for _ in 0..3 {
            assert_eq!(house.look().expect("it is on").last_how, "review");
            pass(10);
        }
        assert_eq!(std::fs::read_to_string(&ran).expect("it ran"), "x\n");
        assert_eq!(house.read("new"), "absent");
    }

    #[test]
    fn what_was_asked_for_outlives_the_process_and_follows_its_workspace() {
        let (clock, _) = clock!();
        let House { service, around } = House::new(clock);
        let house = House { service, around };
        house.schedule(30, true);
        let House { service, around } = house;
        service.publishing_follows(&name("try"), &name("parser")).expect("renamed");
        drop(service);
        let service = Service::open(&Home::new(around.path().join("home")), clock, &[]).expect("opened again");
        assert!(service.is_publishing());
        let kept: Vec<_> = service.inner.merging.publishing.plans.lock().keys().cloned().collect();
        assert_eq!(kept, ["parser"]);
        service.publish_due().expect("a look");
        assert!(!service.is_publishing(), "there is no such workspace");
    }

    #[test]
    fn a_failure_is_told_and_tried_again_after_a_while() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        house.write("try", "new", "one\n");
        let rules = house.around.path().join("home/merge.toml");
        std::fs::write(&rules, "nonsense = 1\n").expect("written");
        house.schedule(1, false);
        let told = house.look().expect("it is on");
        assert_eq!(told.last_how, "failed");
        assert!(told.reason.contains("merge.toml, line 1"), "{}", told.reason);
        std::fs::remove_file(&rules).expect("removed");
        pass(59);
        assert_eq!(house.look().expect("it is on").last_how, "failed");
        pass(1);
        assert_eq!(house.look().expect("it is on").last_how, "merged");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_set_aside_and_told() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let (clock, _) = clock!();
        drop(Service::open(&home, clock, &[]).expect("opened"));
        std::fs::write(home.path().join("publishing.json"), "{").expect("written");
        let service = Service::open(&home, clock, &[]).expect("opened all the same");
        assert!(service.inner.problems.iter().any(|problem| problem.contains("publishing.unreadable")));
        assert_eq!(std::fs::read_to_string(home.path().join("publishing.unreadable")).expect("kept"), "{");
    }
}
