//! Garbage collections that the store's own process runs: on request, and automatically when the store has grown, a day
//! has passed, or disk space is short.
//!
//! [`Collections::collect`] prepares a collection (grace time, retention plan, lean trees) and passes it to
//! `amalgam_gc::collect`, which marks and deletes. `collection.json` beside the store keeps the result of the last
//! collection, and whether collections are paused.

mod auto_gc;
mod clock;
mod measured_usage;
mod policy;
mod usage;

pub(crate) use policy::{AutoGcPolicy, CollectionReason, CollectionRequest};
pub(crate) use usage::Subject;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_engine::object::Snapshot;
use amalgam_engine::{RefName, SnapshotId, SweepScope, Time};
use amalgam_gc::retention::Span;
use amalgam_gc::{
    CollectOptions, CollectReport, KeepAll, LivedClock, Plan, Progress, RateLimit, Retention, Stage, Throttle, collect,
    first_kept_operation, last_operation_before, low_priority_readers, plan,
};
use amalgam_proto::{Reason, v1};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::caller::Caller;
use crate::context::{Clocks, Context};
use crate::disk_quota::{Disk, DiskQuota, Shortage, shortage};
use crate::error::{Error, Result};
use crate::home::replace_file;
use crate::views::Views;

use measured_usage::MeasuredUsage;
use policy::LastCollection;

/// Rate limits of an automatic collection, so that it leaves most of the machine to callers.
const OBJECTS_PER_SECOND: u64 = 100_000;
const BYTES_PER_SECOND: u64 = 32 << 20;

/// How often a thread that waits for the end of a collection checks for it.
const HOLD_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The actor in the operation log for automatic work.
const AUTOMATIC_ACTOR: &str = "amalgam";

/// Collects the garbage of a store, on request and automatically, and measures the usage of workspaces.
#[derive(Clone)]
pub(crate) struct Collections {
    context: Arc<Context>,
    pub(crate) quota: DiskQuota,
    views: Views,
    inner: Arc<Inner>,
}

struct Inner {
    file: PathBuf,
    state: Mutex<State>,
    /// A pool of low-priority threads, if the system allows it.
    readers: Option<rayon::ThreadPool>,
    under_way: AtomicBool,
    ending: AtomicBool,
    /// The last measured usage of workspaces.
    measured: Mutex<MeasuredUsage>,
    policy: AutoGcPolicy,
    /// The age of objects and operations.
    lived: Mutex<LivedClock>,
    uptime: fn() -> Duration,
}

/// The state that is kept in `collection.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    paused: bool,
    /// When the pause ends; `None` if only a caller ends it.
    paused_until: Option<i64>,
    last: Option<LastCollection>,
    /// Why the last automatic collection failed.
    problem: Option<String>,
}

impl State {
    fn is_paused(&self, now: Time) -> bool {
        self.paused && self.paused_until.is_none_or(|end| now.0 < end)
    }
}

/// The roots of a collection, and the retention plan.
struct PreparedCollection {
    scope: SweepScope,
    plan: Plan,
    /// The first operation that the log keeps.
    log_from: u64,
    grace: Span,
    forgotten: u64,
}

impl Inner {
    /// Changes the state, and writes it to `collection.json`.
    fn change(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state.lock();
        change(&mut state);
        let bytes = serde_json::to_vec_pretty(&*state).expect("it is plain data");
        replace_file(&self.file, &bytes).map_err(Error::io("write collection.json"))
    }
}

/// Prevents other collections until it is dropped.
pub(crate) struct CollectionGuard<'a>(&'a AtomicBool);

impl Drop for CollectionGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Collections {
    /// Reads the state of earlier collections from the home.
    pub(crate) fn open(context: &Arc<Context>, quota: &DiskQuota, views: &Views, clocks: Clocks) -> Result<Self> {
        let (home, uptime) = (&context.home, nanoseconds((clocks.uptime)()));
        let mut lived = LivedClock::open(&home.store_path(), &context.store, context.now(), uptime)?;
        lived.save();
        let file = home.path().join("collection.json");
        // A file that cannot be read holds nothing that a collection needs.
        let state = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let inner = Inner {
            file,
            state: Mutex::new(state.unwrap_or_default()),
            readers: low_priority_readers(),
            under_way: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            measured: Mutex::default(),
            policy: AutoGcPolicy::default(),
            lived: Mutex::new(lived),
            uptime: clocks.uptime,
        };
        let (context, quota, views) = (Arc::clone(context), quota.clone(), views.clone());
        Ok(Self { context, quota, views, inner: Arc::new(inner) })
    }

    /// Returns whether a collection runs.
    pub(crate) fn is_collecting(&self) -> bool {
        self.inner.under_way.load(Ordering::Relaxed)
    }

    /// Returns whether the process ends, so that long work must stop.
    pub(crate) fn is_ending(&self) -> bool {
        self.inner.ending.load(Ordering::Relaxed)
    }

    /// Makes a running collection stop, because the process ends.
    pub(crate) fn end_collecting(&self) {
        self.inner.ending.store(true, Ordering::Relaxed);
    }

    /// Prevents other collections while the guard exists. Refused if one runs already.
    fn begin_collection(&self) -> Result<CollectionGuard<'_>> {
        let flag = &self.inner.under_way;
        if flag.swap(true, Ordering::Acquire) {
            let message =
                "a collection is already running; wait for its end, or end an automatic one with `amalgam gc --pause`";
            return Err(Error::new(Reason::Busy, message));
        }
        Ok(CollectionGuard(flag))
    }

    /// Prevents collections while the guard exists. Waits for the end of a running one, and gives up as soon as `should_continue`
    /// returns `false`.
    pub(crate) fn hold_collections(&self, should_continue: &dyn Fn() -> bool) -> Result<CollectionGuard<'_>> {
        loop {
            match self.begin_collection() {
                Err(_) if should_continue() && !self.is_ending() => std::thread::sleep(HOLD_RETRY_DELAY),
                held => return held,
            }
        }
    }

    /// Runs a collection. `watch` is called between steps with the progress, and can end the collection.
    pub(crate) fn collect(
        &self,
        how: &CollectionRequest<'_>,
        watch: &mut (dyn FnMut(&Progress) -> ControlFlow<()> + Send),
    ) -> Result<v1::CollectResult> {
        let _under_way = self.begin_collection()?;
        let before = self.quota.measure_disk()?;
        info!(why = how.why.word(), dry_run = how.dry_run, store_bytes = before.store_bytes, "collection begins");
        if !how.dry_run {
            self.views.shorten_journals();
        }
        let ending = &self.inner.ending;
        let looking = Progress { stage: Stage::Mark, done: 0, total: 0, deleted: 0 };
        let mut should_continue = || !ending.load(Ordering::Relaxed) && watch(&looking).is_continue();
        let prepared = self.prepare(how, &mut should_continue)?;
        let thinned = self.trees_to_drop(&prepared.plan)?;
        let sleep = |time: Duration| std::thread::sleep(time);
        let rate_limit =
            RateLimit { objects_per_second: OBJECTS_PER_SECOND, bytes_per_second: BYTES_PER_SECOND, sleep: &sleep };
        let options = CollectOptions {
            retention: &prepared.plan,
            scope: Some(&prepared.scope),
            log_from: prepared.log_from,
            dry_run: how.dry_run,
            readers: self.inner.readers.as_ref(),
            rate_limit: matches!(how.why, CollectionReason::Growth | CollectionReason::Time).then_some(rate_limit),
            ..CollectOptions::default()
        };
        let begun = Instant::now();
        let clock = || begun.elapsed();
        let mut throttle = Throttle::new(&self.context.store, &clock, &sleep)?;
        let mut watch = |progress: &Progress| match ending.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => {
                // A throttle that cannot read the load does not end the collection.
                let _ = throttle.pause();
                watch(progress)
            }
        };
        let done = collect(&self.context.store, &options, &mut watch)?;
        self.quota.forget_added();
        self.inner.measured.lock().clear();
        if !how.dry_run && self.context.home.pool_path().exists() {
            let removed = self.context.pool()?.remove_unused();
            removed.map_err(Error::io("remove files that no directory shares"))?;
        }
        let after = self.quota.measure_disk()?;
        info!(
            freed_objects = done.freed.total().objects,
            freed_bytes = done.freed.total().bytes,
            thinned,
            operations = done.operations,
            store_bytes = after.store_bytes,
            ended_in = done.ended_in.map(Stage::word),
            "collection ends"
        );
        let mut result = result_message(how, &prepared, &done, thinned, [&before, &after]);
        result.warnings.extend(self.lived().jump().map(|jump| jump.words()));
        let is_waiting = done.young.total().objects > 0;
        result.waiting_since = self.quota.oldest_incoming().filter(|_| is_waiting).map(amalgam_proto::timestamp);
        if !how.dry_run && done.ended_in.is_none() {
            let freed = done.freed.total();
            self.inner.change(|state| {
                state.problem = None;
                state.last = Some(LastCollection {
                    time: self.context.now().0,
                    why: how.why.word().to_owned(),
                    objects: freed.objects,
                    bytes: freed.bytes,
                    thinned,
                    disk_bytes_before: before.store_bytes,
                    disk_bytes_after: after.store_bytes,
                });
            })?;
        }
        Ok(result)
    }

    /// Forgets workspaces that were deleted before the grace time, plans which snapshots lose their trees, and makes
    /// lean trees. A dry run only plans.
    fn prepare(
        &self,
        how: &CollectionRequest<'_>,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<PreparedCollection> {
        let settings = self.context.settings()?;
        let grace = how.grace.unwrap_or(settings.grace);
        let (lived, now) = (self.lived(), self.context.now());
        let at = before(now, grace);
        let old = self.context.workspaces.deleted_before(at, &lived)?;
        let mut without: BTreeSet<RefName> = old.iter().map(|(name, _)| name.clone()).collect();
        if !how.dry_run {
            let act = self.context.act(how.actor);
            self.context.workspaces.forget_deleted(&old, &act)?;
            without.clear();
        }
        let undoable_after = last_operation_before(&self.context.store, at, &lived)?;
        let log_from = first_kept_operation(&self.context.store, &settings.log, now, undoable_after, &lived)?;
        let scope = SweepScope { undoable_after: Some(undoable_after), without };
        let mut plan = plan(&self.context.history, &settings.policies, &scope, at, &lived)?;
        if !how.dry_run {
            plan.make_lean(&self.context.store, &self.context.act(how.actor), should_continue)?;
        }
        Ok(PreparedCollection { scope, plan, log_from, grace, forgotten: old.len() as u64 })
    }

    /// Returns the number of the last operation that is older than the grace time. Later operations can be undone.
    pub(crate) fn operations_kept_after(&self) -> Result<u64> {
        let lived = self.lived();
        let at = before(self.context.now(), self.context.settings()?.grace);
        Ok(last_operation_before(&self.context.store, at, &lived)?)
    }

    /// Returns the retention plan and the grace time, without a collection.
    pub(crate) fn plan_collection(&self, grace: Option<Span>) -> Result<(Plan, Span)> {
        let how = CollectionRequest { actor: AUTOMATIC_ACTOR, dry_run: true, grace, why: CollectionReason::Asked };
        self.prepare(&how, &mut || true).map(|prepared| (prepared.plan, prepared.grace))
    }

    /// Returns how many snapshots that the plan thins still have their trees.
    fn trees_to_drop(&self, plan: &Plan) -> Result<u64> {
        let mut there = 0;
        for planned in plan.thinned() {
            there += u64::from(!self.context.history.is_thinned(planned.id)?);
        }
        Ok(there)
    }

    /// Returns when the next daily collection is due; `None` while collections are paused, or before the first one.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let state = self.inner.state.lock().clone();
        match state.is_paused(self.context.now()) || self.context.is_shared() {
            true => None,
            false => policy::next(&self.inner.policy, state.last.as_ref(), &self.lived()).0,
        }
    }

    /// Returns the state of collections, for the wire.
    pub(crate) fn collection_message(&self) -> Result<v1::GetCollectionResponse> {
        let settings = self.context.settings()?;
        let disk = self.quota.measure_disk()?;
        let state = self.inner.state.lock().clone();
        let warnings = match shortage(&disk, settings.budget_bytes) {
            Shortage::None => None,
            Shortage::Near(words) | Shortage::Reached(words) => Some(words),
        };
        let is_paused = state.is_paused(self.context.now());
        let lived = self.lived();
        let (next_time, next_bytes) = policy::next(&self.inner.policy, state.last.as_ref(), &lived);
        Ok(v1::GetCollectionResponse {
            paused: is_paused,
            paused_until: state.paused_until.filter(|_| is_paused).map(|end| amalgam_proto::timestamp(Time(end))),
            next_time: Some(amalgam_proto::timestamp(next_time.unwrap_or(self.context.now()))),
            next_bytes,
            under_way: self.is_collecting(),
            last: state.last.map(|last| v1::LastCollection {
                time: Some(amalgam_proto::timestamp(Time(last.time))),
                freed: Some(v1::ObjectTally { objects: last.objects, bytes: last.bytes }),
                thinned: last.thinned,
                disk_bytes_before: last.disk_bytes_before,
                disk_bytes_after: last.disk_bytes_after,
                why: last.why,
            }),
            disk_bytes: disk.store_bytes,
            free_bytes: disk.free_bytes,
            budget_bytes: settings.budget_bytes.unwrap_or(0),
            floor_bytes: disk.floor_bytes,
            warnings: warnings.into_iter().chain(state.problem).chain(lived.jump().map(|jump| jump.words())).collect(),
        })
    }

    /// Pauses automatic collections for a time, or until [`resume_collection`](Self::resume_collection).
    pub(crate) fn pause_collection(&self, span: Span) -> Result<()> {
        let end = match span {
            Span::For(span) => Some(self.context.now().0.saturating_add(span)),
            Span::Forever => None,
        };
        self.inner.change(|state| (state.paused, state.paused_until) = (true, end))
    }

    /// Resumes automatic collections.
    pub(crate) fn resume_collection(&self) -> Result<()> {
        self.inner.change(|state| (state.paused, state.paused_until) = (false, None))
    }

    /// Measures the bytes that a collection would free without these references, or without the tree of this snapshot: objects that
    /// are dead then and alive now.
    pub(crate) fn measure_without(
        &self,
        without: BTreeSet<RefName>,
        tree: Option<SnapshotId>,
        caller: &Caller,
    ) -> Result<v1::ObjectTally> {
        // A collection may start at any time: waiting for it is better than a refusal.
        let _held = self.hold_collections(&|| !caller.is_gone())?;
        let dead = |scope: &SweepScope, retention: &dyn Retention| {
            let options = CollectOptions { retention, scope: Some(scope), dry_run: true, ..CollectOptions::default() };
            let mut watch =
                |_: &Progress| if caller.is_gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let done = collect(&self.context.store, &options, &mut watch)?;
            caller.check()?;
            let (dead, young) = (done.dead.total(), done.young.total());
            Ok::<_, Error>((dead.objects + young.objects, dead.bytes + young.bytes))
        };
        let but_this = |id: SnapshotId, _: &Snapshot| Some(id) != tree;
        let with = dead(&SweepScope::default(), &KeepAll)?;
        let without = dead(&SweepScope { without, undoable_after: None }, &but_this)?;
        Ok(v1::ObjectTally { objects: without.0.saturating_sub(with.0), bytes: without.1.saturating_sub(with.1) })
    }
}

/// Returns the time that is a span before `now`.
fn before(now: Time, span: Span) -> Time {
    match span {
        Span::For(span) => Time(now.0.saturating_sub(span)),
        Span::Forever => Time(i64::MIN),
    }
}

fn result_message(
    how: &CollectionRequest<'_>,
    prepared: &PreparedCollection,
    done: &CollectReport,
    thinned: u64,
    [before, after]: [&Disk; 2],
) -> v1::CollectResult {
    let tally = |tallies: &amalgam_engine::Tallies| {
        let total = tallies.total();
        Some(v1::ObjectTally { objects: total.objects, bytes: total.bytes })
    };
    v1::CollectResult {
        dry_run: how.dry_run,
        roots: done.roots,
        alive: tally(&done.alive),
        dead: tally(&done.dead),
        young: tally(&done.young),
        freed: tally(&done.freed),
        thinned,
        forgotten: prepared.forgotten,
        operations_trimmed: done.operations,
        disk_bytes_before: before.store_bytes,
        disk_bytes_after: after.store_bytes,
        journal_bytes_before: before.journal_bytes,
        journal_bytes_after: after.journal_bytes,
        ended_in: done.ended_in.map(|stage| stage.word().to_owned()).unwrap_or_default(),
        grace_seconds: prepared.grace.duration().map_or(u64::MAX, |grace| grace.as_secs()),
        warnings: Vec::new(),
        waiting_since: None,
    }
}

/// Converts a duration into nanoseconds, as the engine counts them.
fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    #[test]
    fn a_verification_waits_for_a_collection_and_keeps_others_from_beginning() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let how =
            CollectionRequest { actor: "ann", dry_run: false, grace: Some(Span::NONE), why: CollectionReason::Asked };
        let collecting = service.collections.begin_collection().expect("one is under way");
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| service.collections.hold_collections(&|| true).map(|held| (held, Instant::now())));
            std::thread::sleep(Duration::from_millis(200));
            let ended = Instant::now();
            drop(collecting);
            let (held, begun) = waiting.join().expect("no panic").expect("held");
            assert!(begun >= ended, "it waited");
            let refused = service
                .collections
                .collect(&how, &mut |_| ControlFlow::Continue(()))
                .expect_err("collections are held");
            assert_eq!(refused.reason(), Reason::Busy);
            drop(held);
        });
        let collecting = service.collections.begin_collection().expect("one is under way");
        std::thread::scope(|scope| {
            let measured =
                scope.spawn(|| service.collections.measure_without(BTreeSet::new(), None, &Caller::default()));
            std::thread::sleep(Duration::from_millis(50));
            drop(collecting);
            measured.join().expect("no panic").expect("a measurement waits for the collection");
        });
        service.collections.collect(&how, &mut |_| ControlFlow::Continue(())).expect("collected");
        let _collecting = service.collections.begin_collection().expect("one is under way");
        assert!(service.collections.hold_collections(&|| false).is_err(), "whoever went away does not wait");
    }

    #[test]
    fn one_at_a_time_while_others_work_and_ended_when_asked() {
        use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};

        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
        let name = WorkspaceName::new("main").expect("a name");
        workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
        let how =
            CollectionRequest { actor: "ann", dry_run: false, grace: Some(Span::NONE), why: CollectionReason::Asked };
        let mut asked = 0_u32;
        let done = service.collections.collect(&how, &mut |_| {
            asked += 1;
            let second =
                service.collections.collect(&how, &mut |_| ControlFlow::Continue(())).expect_err("one is under way");
            assert_eq!(second.reason(), Reason::Busy);
            let mut tree = workspaces.open(&name).expect("open");
            tree.write("n", &asked.to_le_bytes()).expect("write");
            workspaces.commit(&name, &mut tree, &Change::new("meanwhile"), &act).expect("commits go on");
            ControlFlow::Continue(())
        });
        assert_eq!(done.expect("collected").ended_in, "");
        assert!(asked > 3, "it was asked often");
        let read = workspaces.open(&name).expect("open").read("n").expect("read");
        assert_eq!(read, asked.to_le_bytes());
        let ended = service.collections.collect(&how, &mut |_| ControlFlow::Break(())).expect("ended, not failed");
        assert_eq!(ended.ended_in, "mark");
        assert!(!service.collections.is_collecting());
        let last = service.collections.collection_message().expect("the state").last.expect("the first one");
        assert_eq!(last.why, "asked", "one that was ended early does not count");
    }
}
