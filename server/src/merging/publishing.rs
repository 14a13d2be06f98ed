//! Publishing by itself: what a workspace changed goes into the queue of its target every so often, whenever it was
//! committed to, or when its files were written and have been quiet since, without a request for each time.
//!
//! Plans are kept beside the store, in `publishing.json`. Each head is tried once. A merge that conflicts or fails its test
//! waits for a person, and while it does nothing more of that workspace is tried; so nothing comes again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use amalgam_engine::OperationContext;
use amalgam_engine::queue::QueueEntry;
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_proto::{Reason, v1};
use parking_lot::Mutex;
use tracing::info;

use super::Merging;
use super::queue::{AfterMerge, PARALLEL_TARGETS_MAX};
use crate::call_log::{warn_failure, workspace_id};
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::publishing::{Last, Plan, PublishOutcome, RETRY_DELAY_NANOSECONDS};
use crate::repeated_problem::RepeatedProblem;

/// How often the plans are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The longest interval: a year.
const EVERY_SECONDS_MAX: u32 = 366 * 24 * 3_600;
/// The quiet time after writes, if the caller gives none.
const QUIET_MILLISECONDS_DEFAULT: u32 = 2_000;
/// The longest quiet time: an hour.
const QUIET_MILLISECONDS_MAX: u32 = 3_600_000;

/// The result of one attempt to publish a workspace.
enum Attempt {
    /// This head was tried, with this outcome.
    Tried(String, Last),
    /// The head was tried before.
    NothingNew,
    /// A review of earlier changes is open. The files were not captured.
    ReviewOpen,
}

impl Merging {
    /// Sets or removes the publishing plan of a workspace, and returns the workspace as it is then, or, for a dry run,
    /// as it would be.
    pub(crate) fn schedule_publishing(
        &self,
        request: &v1::SchedulePublishingRequest,
        act: &OperationContext,
    ) -> Result<v1::Workspace> {
        let asked = request.submission.clone().unwrap_or_default();
        let name = workspace_id(&asked.workspace)?;
        let workspace = self.context.workspaces.get(&name)?;
        let plan = self.plan_asked_for(&name, request, asked.clone(), act)?;
        if asked.dry_run {
            let publishing = plan.map(|plan| self.publishing.plan_message(&workspace, plan)).transpose()?;
            return Ok(v1::Workspace { publishing, ..self.views.workspace_message(&name)? });
        }
        let publishing = &self.publishing.inner;
        publishing.change(|plans| match plan {
            Some(plan) => plans.insert(name.to_string(), plan),
            None => plans.remove(name.as_str()),
        })?;
        publishing.changed.notify_one();
        self.views.workspace_message(&name)
    }

    /// Returns the plan that a request asks for, or `None` if the workspace is not to be published automatically.
    fn plan_asked_for(
        &self,
        name: &WorkspaceName,
        request: &v1::SchedulePublishingRequest,
        asked: v1::Submission,
        act: &OperationContext,
    ) -> Result<Option<Plan>> {
        if !request.on_write && request.quiet_milliseconds > 0 {
            return Err(Error::new(Reason::Invalid, "quiet_milliseconds: only together with on_write"));
        }
        if request.quiet_milliseconds > QUIET_MILLISECONDS_MAX {
            return Err(Error::new(Reason::Invalid, "quiet_milliseconds: at most an hour"));
        }
        if request.every_seconds == 0 && !request.on_commit && !request.on_write {
            return Ok(None);
        }
        if request.every_seconds > EVERY_SECONDS_MAX {
            return Err(Error::new(Reason::Invalid, "the longest interval is a year"));
        }
        super::test::refuse_long_test(asked.test_seconds)?;
        super::test::refuse_unstartable(&asked.test, &self.context)?;
        let target = self.context.target_of(name, &asked.target)?;
        self.context.workspaces.get(&target)?;
        if target == *name {
            return Err(Error::new(Reason::Invalid, format!("{name} cannot be published into itself")));
        }
        Ok(Some(Plan {
            every_seconds: request.every_seconds,
            on_commit: request.on_commit,
            quiet_milliseconds: match (request.on_write, request.quiet_milliseconds) {
                (false, _) => 0,
                (true, 0) => QUIET_MILLISECONDS_DEFAULT,
                (true, asked) => asked,
            },
            target: asked.target,
            message: asked.message,
            test: asked.test,
            test_seconds: asked.test_seconds,
            actor: act.actor.clone(),
            ..Plan::default()
        }))
    }

    /// Publishes the plans that are due: those of one target one after another, targets in parallel.
    #[cfg(test)]
    fn publish_due(&self) -> Result<()> {
        let due = self.due_by_target(|_| true)?;
        super::queue::run_in_parallel(due.into_iter().collect(), |(_, plans)| self.publish_all(plans))
    }

    /// Returns the due plans of the wanted targets, by target. Removes the plans of workspaces that are gone.
    fn due_by_target(&self, is_wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Vec<(WorkspaceName, Plan)>>> {
        let plans = self.publishing.inner.plans.lock().clone();
        self.inner.writes.retain(|name| plans.get(name.as_str()).is_some_and(|plan| plan.quiet().is_some()));
        let mut due: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (name, plan) in plans {
            let name = WorkspaceName::new(name)?;
            let Some(workspace) = self.context.workspaces.find(&name)? else {
                self.publishing.forget_ended_plan(&name)?;
                continue;
            };
            // A plan without a target fails when it is published.
            let target =
                self.context.target_of(&name, &plan.target).map(|target| target.to_string()).unwrap_or_default();
            let now = self.context.now();
            // Checked in each round, so that no write is missed. An error here comes again in the publish, which records it.
            let is_written = plan.quiet().filter(|_| plan.may_try(now)).is_some_and(|quiet| {
                self.inner.writes.is_quiet(&self.directories, &self.views, &name, quiet).unwrap_or(true)
            });
            if is_wanted(&target) && (is_written || plan.is_due(&head_of(&workspace), now)) {
                due.entry(target).or_default().push((name, plan));
            }
        }
        Ok(due)
    }

    /// Publishes the plans that are due for one target.
    fn publish_all(&self, plans: Vec<(WorkspaceName, Plan)>) -> Result<()> {
        plans.into_iter().try_for_each(|(name, plan)| self.publish_one(&name, &plan))
    }

    fn publish_one(&self, name: &WorkspaceName, plan: &Plan) -> Result<()> {
        let now = self.context.now();
        let has_writes = self.inner.writes.begin(name);
        let outcome = self.publish_planned(name, plan);
        match &outcome {
            Err(_) => self.inner.writes.retry(name),
            Ok(Attempt::ReviewOpen) if has_writes => self.inner.writes.hold(name),
            Ok(_) => {}
        }
        match &outcome {
            Ok(Attempt::Tried(_, last)) => info!(workspace = %name, result = ?last.outcome, "published as scheduled"),
            Ok(Attempt::NothingNew | Attempt::ReviewOpen) => {}
            Err(failure) => warn_failure(failure, &format!("scheduled publish of {name} failed")),
        }
        let again = now.0.saturating_add(RETRY_DELAY_NANOSECONDS);
        self.publishing.inner.record(|plans| {
            // The plan may have been changed meanwhile.
            let Some(kept) = plans.get_mut(name.as_str()).filter(|kept| **kept == *plan) else { return };
            kept.looked = now.0;
            match outcome {
                Ok(Attempt::Tried(tried, last)) => {
                    (kept.tried, kept.last) = (tried, Some(Last { time: now.0, ..last }));
                }
                Ok(Attempt::NothingNew | Attempt::ReviewOpen) => {}
                Err(failure) => {
                    kept.not_before = again;
                    let outcome = PublishOutcome::Failed;
                    kept.last = Some(Last { time: now.0, outcome, reason: failure.to_string() });
                }
            }
        })
    }

    /// Publishes a workspace as planned, unless nothing is new or a review is open.
    fn publish_planned(&self, name: &WorkspaceName, plan: &Plan) -> Result<Attempt> {
        let target = self.context.target_of(name, &plan.target)?;
        if self.publishing.waiting(name, &target)?.is_some() {
            return Ok(Attempt::ReviewOpen);
        }
        let act = OperationContext::new(&plan.actor, self.context.now());
        if plan.every_seconds > 0 || plan.quiet().is_some() {
            self.directories.capture_of(name, &format!("a merge into {target}"), &act)?;
        }
        let head = head_of(&self.context.workspaces.get(name)?);
        if head == plan.tried || head.is_empty() {
            return Ok(Attempt::NothingNew);
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
            on_refused: String::new(),
        };
        let queued = self.context.queue.list(Some(&target))?;
        let is_queued =
            |entry: &&QueueEntry| entry.source == *name && entry.snapshot.to_string() == head && !entry.is_held;
        let submitted = match queued.iter().find(is_queued) {
            // An earlier attempt failed after it had queued the head.
            Some(entry) => self.submitted(entry, false, &act, &Caller::default()),
            None => self.submit(&submission, AfterMerge::KeepWorkspace, &act, &Caller::default()),
        };
        let merge = match submitted {
            Ok(done) => done.merge,
            // The test was tried with these files, and will not start with them the next time either.
            Err(failure) if failure.reason() == Reason::TestNotStarted && failure.details().contains_key("entry") => {
                let last = Last { time: 0, outcome: PublishOutcome::Failed, reason: failure.to_string() };
                return Ok(Attempt::Tried(head, last));
            }
            Err(failure) => return Err(failure),
        };
        let outcome = match merge.how() {
            v1::MergeHow::Already | v1::MergeHow::Replayed => PublishOutcome::Already,
            v1::MergeHow::Review | v1::MergeHow::Waiting => PublishOutcome::Review,
            _ => PublishOutcome::Merged,
        };
        Ok(Attempt::Tried(head, Last { time: 0, outcome, reason: merge.reason }))
    }

    /// Publishes due plans until the process ends. Each target has a thread of its own while something is published into
    /// it, so that the test of one keeps no other waiting.
    pub(crate) fn keep_publishing(&self, tell: &(dyn Fn(&str) + Sync)) {
        let publishing = &self.publishing.inner;
        let busy: Mutex<BTreeSet<String>> = Mutex::default();
        let problem: Mutex<RepeatedProblem> = Mutex::default();
        std::thread::scope(|scope| {
            loop {
                {
                    let mut ending = publishing.ending.lock();
                    if !*ending {
                        publishing.changed.wait_for(&mut ending, CHECK_INTERVAL);
                    }
                    if *ending {
                        return;
                    }
                }
                if publishing.plans.lock().is_empty() {
                    continue;
                }
                let due = {
                    let _using = self.context.using();
                    // Tried again in the next round.
                    let due = self.due_by_target(|target| !busy.lock().contains(target));
                    due.inspect_err(|failure| warn_failure(failure, "scheduled publishing cannot be read"))
                        .unwrap_or_default()
                };
                for (target, plans) in due {
                    let is_free = busy.lock().len() < PARALLEL_TARGETS_MAX;
                    if !is_free {
                        break;
                    }
                    busy.lock().insert(target.clone());
                    let (busy, problem) = (&busy, &problem);
                    scope.spawn(move || {
                        let _using = self.context.using();
                        // The outcome of each workspace is in its plan. An error here means that the plans were not written.
                        match self.publish_all(plans) {
                            Ok(()) => problem.lock().clear(),
                            Err(error) => problem
                                .lock()
                                .add(&error.to_string(), Instant::now())
                                .iter()
                                .for_each(|words| tell(words)),
                        }
                        busy.lock().remove(&target);
                    });
                }
            }
        });
    }
}

fn head_of(workspace: &Workspace) -> String {
    workspace.head.map(|head| head.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use amalgam_engine::Time;
    use amalgam_engine::workspace::{Change, NewWorkspace};

    use super::*;
    use crate::home::Home;
    use crate::publishing::SECOND_NANOSECONDS;
    use crate::service::Service;

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
            let act = house.service.context.act("ann");
            let workspaces = &house.service.context.workspaces;
            workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
            house.write("main", "file", "one\n");
            workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
            house
        }

        fn write(&self, workspace: &str, path: &str, text: &str) {
            let workspaces = &self.service.context.workspaces;
            let mut tree = workspaces.open(&name(workspace)).expect("open");
            tree.write(path, text.as_bytes()).expect("written");
            let act = self.service.context.act("ann");
            workspaces.commit(&name(workspace), &mut tree, &Change::new(text), &act).expect("committed");
        }

        fn read(&self, path: &str) -> String {
            let tree = self.service.context.workspaces.open(&name("main")).expect("open");
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
            let request = v1::SchedulePublishingRequest {
                submission: Some(submission),
                every_seconds,
                on_commit,
                ..Default::default()
            };
            let act = self.service.context.act("ann");
            self.service.merging.schedule_publishing(&request, &act).expect("scheduled");
        }

        fn look(&self) -> Option<v1::Publishing> {
            self.service.merging.publish_due().expect("a look");
            self.service.views.workspace_message(&name("try")).expect("it").publishing
        }

        fn reviews(&self) -> usize {
            self.service.context.queue.reviews(None).expect("reviews").len()
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
        assert!(!house.service.publishing.is_publishing());
    }

    #[test]
    fn a_commit_is_published_once() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        house.schedule(0, true);
        assert_eq!(house.look().expect("it is on").last_how, "already", "main has it all");
        let before = house.service.context.workspaces.get(&name("main")).expect("main").head;
        pass(100);
        house.look();
        assert_eq!(house.service.context.workspaces.get(&name("main")).expect("main").head, before);
        house.write("try", "new", "one\n");
        assert_eq!(house.look().expect("it is on").last_how, "merged");
        assert_eq!(house.read("new"), "one\n");
        assert!(
            !house.service.publishing.is_publishing(),
            "commits come through the process, which may end between them"
        );
    }

    fn edit(house: &House, text: &str) {
        let write = v1::WriteEdit {
            path: "new".to_owned(),
            content: Some(v1::write_edit::Content::Text(text.to_owned())),
            ..Default::default()
        };
        let edit = v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write)) };
        house.service.files.edit("workspaces/try", &[edit]).expect("written");
    }

    fn schedule_on_write(house: &House, quiet_milliseconds: u32) {
        let submission = Some(v1::Submission { workspace: "workspaces/try".to_owned(), ..v1::Submission::default() });
        let on_write = true;
        let request = v1::SchedulePublishingRequest { submission, on_write, quiet_milliseconds, ..Default::default() };
        let act = house.service.context.act("ann");
        house.service.merging.schedule_publishing(&request, &act).expect("scheduled");
    }

    #[test]
    fn what_is_written_by_calls_is_published_when_it_is_quiet() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        schedule_on_write(&house, 300);
        house.look();
        pass(1);
        edit(&house, "one\n");
        let mut told = house.look().expect("it is on");
        assert_eq!((told.on_write, told.quiet_milliseconds), (true, 300));
        assert!(house.service.merging.has_pending_writes() && house.service.publishing.is_publishing());
        // The first round published the earlier files; the write is not quiet yet.
        assert_eq!(house.read("new"), "absent");
        let began = Instant::now();
        while house.read("new") == "absent" {
            assert!(began.elapsed() < Duration::from_secs(20), "it is published: {told:?}");
            // Writes go on for a while: nothing is published between them.
            if began.elapsed() < Duration::from_millis(400) {
                edit(&house, &format!("{:?}\n", began.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(20));
            told = house.look().expect("it is on");
            assert!(house.read("new") == "absent" || began.elapsed() > Duration::from_millis(600));
        }
        assert!(!house.service.merging.has_pending_writes());
        let head = house.service.context.workspaces.get(&name("main")).expect("main").head;
        std::thread::sleep(Duration::from_millis(400));
        house.look();
        assert_eq!(house.service.context.workspaces.get(&name("main")).expect("main").head, head, "nothing new");
        // A commit counts, too.
        pass(1);
        house.write("try", "committed", "x\n");
        house.look();
        assert_eq!(house.read("committed"), "x\n");
        house.schedule(0, false);
        house.look();
        edit(&house, "off\n");
        assert!(!house.service.merging.has_pending_writes() && !house.service.publishing.is_publishing());
    }

    #[test]
    fn a_write_during_a_review_is_published_after_it() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        let merging = &house.service.merging;
        house.write("main", "file", "two\n");
        house.write("try", "file", "three\n");
        schedule_on_write(&house, QUIET_MILLISECONDS_MAX);
        let told = house.look().expect("it is on");
        assert_eq!((told.last_how.as_str(), house.reviews()), ("review", 1));
        pass(1);
        edit(&house, "one\n");
        house.look();
        assert!(merging.has_pending_writes(), "the write was seen");
        let attempt = || {
            let plan = house.service.publishing.inner.plans.lock().get("try").cloned().expect("a plan");
            merging.publish_one(&name("try"), &plan).expect("tried");
        };
        let is_quiet = || {
            let quiet =
                merging.inner.writes.is_quiet(&merging.directories, &merging.views, &name("try"), Duration::ZERO);
            quiet.expect("checked")
        };
        attempt();
        assert!(!merging.has_pending_writes() && is_quiet(), "it waits for the end of the review");
        let act = house.service.context.act("ann");
        merging.reject_review(&told.review, false, &act).expect("rejected");
        attempt();
        assert!(!is_quiet(), "it was tried");
        let tree = house.service.context.workspaces.open(&name("try")).expect("open");
        assert_eq!(tree.read("new").expect("captured"), b"one\n");
    }

    #[test]
    fn a_quiet_time_without_writes_or_of_days_is_refused() {
        let (clock, _) = clock!();
        let house = House::new(clock);
        let submission = Some(v1::Submission { workspace: "workspaces/try".to_owned(), ..v1::Submission::default() });
        for (on_write, quiet_milliseconds) in [(false, 500), (true, u32::MAX)] {
            let submission = submission.clone();
            let request =
                v1::SchedulePublishingRequest { submission, on_write, quiet_milliseconds, ..Default::default() };
            let act = house.service.context.act("ann");
            let refused = house.service.merging.schedule_publishing(&request, &act).expect_err("refused");
            assert_eq!(refused.reason(), Reason::Invalid);
        }
    }

    #[test]
    fn a_plan_says_when_it_is_due_by_itself() {
        let second = SECOND_NANOSECONDS;
        let plan = |every_seconds, looked, not_before| Plan { every_seconds, looked, not_before, ..Plan::default() };
        let now = Time(100 * second);
        assert_eq!(plan(30, 90 * second, 0).next_due(now), Some(Time(120 * second)));
        assert_eq!(plan(30, 90 * second, 150 * second).next_due(now), Some(Time(150 * second)));
        assert_eq!(plan(0, 0, 0).next_due(now), None, "commits and writes come by calls");
        assert_eq!(plan(0, 0, 150 * second).next_due(now), Some(Time(150 * second)), "a retry");
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_publish() {
        let second = SECOND_NANOSECONDS;
        let plan = Plan { every_seconds: 30, looked: 990 * second, not_before: 1_050 * second, ..Plan::default() };
        assert!(!plan.is_due("", Time(1_000 * second)), "it failed, and waits");
        assert!(plan.is_due("", Time(100 * second)));
        assert!(plan.next_due(Time(100 * second)).is_some_and(|time| time.0 <= 100 * second));
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
        let act = house.service.context.act("ann");
        house.service.merging.reject_review(&told.review, false, &act).expect("rejected");
        pass(10);
        assert_eq!((house.look().expect("it is on").last_how.as_str(), house.reviews()), ("review", 1));
        pass(1_000);
        house.look();
        let act = house.service.context.act("ann");
        let again = house.look().expect("it is on").review;
        house.service.merging.reject_review(&again, false, &act).expect("rejected");
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
        service.publishing.rename_plan(&name("try"), &name("parser")).expect("renamed");
        drop(service);
        let service = Service::open(&Home::new(around.path().join("home")), clock, &[]).expect("opened again");
        assert!(service.publishing.is_publishing());
        let kept: Vec<_> = service.publishing.inner.plans.lock().keys().cloned().collect();
        assert_eq!(kept, ["parser"]);
        service.merging.publish_due().expect("a look");
        assert!(!service.publishing.is_publishing(), "there is no such workspace");
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
    fn a_failed_publish_is_retried_with_the_entry_that_it_queued() {
        let (clock, pass) = clock!();
        let house = House::new(clock);
        let (directory, aside) = (house.around.path().join("copy"), house.around.path().join("aside"));
        std::fs::create_dir(&directory).expect("a directory");
        let asked = v1::AttachDirectoryRequest {
            path: crate::messages::path_bytes(&directory),
            workspace_id: "main".to_owned(),
            ..Default::default()
        };
        house.service.directories.attach(&asked, &house.service.context.act("ann")).expect("attached");
        house.write("try", "new", "one\n");
        house.schedule(1, false);
        std::fs::rename(&directory, &aside).expect("renamed");
        let queued = || house.service.context.queue.list(Some(&name("main"))).expect("listed").len();
        for _ in 0..3 {
            assert_eq!(house.look().expect("it is on").last_how, "failed");
            assert_eq!(queued(), 1);
            pass(60);
        }
        std::fs::rename(&aside, &directory).expect("renamed");
        assert_eq!(house.look().expect("it is on").last_how, "merged");
        assert_eq!((house.read("new").as_str(), queued()), ("one\n", 0));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_set_aside_and_told() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let (clock, _) = clock!();
        drop(Service::open(&home, clock, &[]).expect("opened"));
        std::fs::write(home.path().join("publishing.json"), "{").expect("written");
        let service = Service::open(&home, clock, &[]).expect("opened all the same");
        assert!(service.problems.iter().any(|problem| problem.contains("publishing.unreadable")));
        assert_eq!(std::fs::read_to_string(home.path().join("publishing.unreadable")).expect("kept"), "{");
    }
}
