//! Collections of the store by its own process: asked for, or by itself when the store has grown, a day has passed, or room is short.
//!
//! What is done last is kept beside the store, in `collection.json`, and so is whether it was paused.

mod clock;
mod itself;

pub(crate) use itself::Watchfulness;

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_engine::object::Snapshot;
use amalgam_engine::{RefName, SnapshotId, Store, SweepScope, Time, WorkspaceName};
use amalgam_gc::retention::Span;
use amalgam_gc::{
    CollectOptions, Collected, Courtesy, KeepAll, LivedClock, Pace, Plan, Progress, Retention, Stage, StoreUsage,
    collect, log_begins, operations_before, plan, yielding_readers,
};
use amalgam_proto::{Failure, Reason, v1};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::api::Caller;
use crate::failure::{Result, of_engine, of_io};
use crate::home::{Home, replace_file};
use crate::room::{Added, Disk, Shortage, shortage};
use crate::service::{Clocks, Service};
use crate::settings::SettingsSource;

/// By itself it leaves most of the machine to others.
const OBJECTS_PER_SECOND: u64 = 100_000;
const BYTES_PER_SECOND: u64 = 32 << 20;

/// Delay before a wait for the end of a collection looks again.
const HOLD_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Who stands in the log for what nobody asked for.
const ITSELF: &str = "amalgam";

/// What is known of collections.
pub(crate) struct Collections {
    pub(crate) settings: SettingsSource,
    file: PathBuf,
    state: Mutex<State>,
    /// Threads of low priority, if they could be had.
    readers: Option<rayon::ThreadPool>,
    under_way: AtomicBool,
    ending: AtomicBool,
    wanted: AtomicBool,
    /// A workspace is near its quota.
    quota_is_near: AtomicBool,
    /// What workspaces with a quota have added. A collection changes that.
    pub(crate) added: Mutex<HashMap<WorkspaceName, Added>>,
    /// What workspaces kept when they were last measured, and the last operation by then. A collection changes that.
    pub(crate) measured: Mutex<Option<(u64, Arc<StoreUsage>)>>,
    pub(crate) watchfulness: Watchfulness,
    /// How old things are.
    lived: Mutex<LivedClock>,
    uptime: fn() -> Duration,
}

/// What outlives the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    paused: bool,
    /// When the pause ends; nothing if it does not by itself.
    paused_until: Option<i64>,
    last: Option<Last>,
    /// Why the last one that nobody asked for failed.
    problem: Option<String>,
}

impl State {
    fn is_paused(&self, now: Time) -> bool {
        self.paused && self.paused_until.is_none_or(|end| now.0 < end)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Last {
    time: i64,
    why: String,
    objects: u64,
    bytes: u64,
    thinned: u64,
    disk_bytes_before: u64,
    disk_bytes_after: u64,
}

/// Why a collection is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Asked,
    Growth,
    Time,
    Room,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Growth => "growth",
            Self::Time => "time",
            Self::Room => "room",
        }
    }
}

/// How to collect.
pub(crate) struct How<'a> {
    pub(crate) actor: &'a str,
    pub(crate) dry_run: bool,
    pub(crate) grace: Option<Span>,
    pub(crate) why: Why,
}

/// From where a collection marks, and what it thins.
struct Prepared {
    scope: SweepScope,
    plan: Plan,
    /// Where the log begins afterwards.
    operations_from: u64,
    grace: Span,
    forgotten: u64,
}

impl Collections {
    pub(crate) fn open(home: &Home, store: &Store, clocks: Clocks, settings: SettingsSource) -> Result<Self> {
        let uptime = clock::nanoseconds((clocks.uptime)());
        let mut lived = LivedClock::open(&home.store_path(), store, (clocks.wall)(), uptime).map_err(of_engine)?;
        lived.save();
        let file = home.path().join("collection.json");
        // One that cannot be read says nothing that could not be found out again.
        let state = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(Self {
            settings,
            file,
            state: Mutex::new(state.unwrap_or_default()),
            readers: yielding_readers(),
            under_way: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            quota_is_near: AtomicBool::new(false),
            added: Mutex::default(),
            measured: Mutex::default(),
            watchfulness: Watchfulness::default(),
            lived: Mutex::new(lived),
            uptime: clocks.uptime,
        })
    }

    /// Room is short: looks soon whether a collection would help.
    pub(crate) fn wake(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// The same for a workspace that has added much: what is thinned counts no more.
    pub(crate) fn wake_for_quota(&self) {
        self.quota_is_near.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state.lock();
        change(&mut state);
        let bytes = serde_json::to_vec_pretty(&*state).expect("it is plain data");
        replace_file(&self.file, &bytes).map_err(|error| of_io("note what was collected", &error))
    }
}

/// A collection under way, or none allowed, until it is dropped.
pub(crate) struct UnderWay<'a>(&'a AtomicBool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Service {
    /// Whether a collection is under way.
    pub fn is_collecting(&self) -> bool {
        self.inner.collections.under_way.load(Ordering::Relaxed)
    }

    /// Whether what takes long is to end, because the process does.
    pub(crate) fn is_ending(&self) -> bool {
        self.inner.collections.ending.load(Ordering::Relaxed)
    }

    pub(crate) fn end_collecting(&self) {
        self.inner.collections.ending.store(true, Ordering::Relaxed);
    }

    fn begin_collection(&self) -> Result<UnderWay<'_>> {
        let flag = &self.inner.collections.under_way;
        if flag.swap(true, Ordering::Acquire) {
            let message = "a collection is under way already; wait for its end, or end one that runs by itself with \
                           `amalgam gc --pause`";
            return Err(Failure::new(Reason::Busy, message));
        }
        Ok(UnderWay(flag))
    }

    /// Keeps collections from running, for as long as the guard lives. Waits for the end of one that runs; `go_on` is asked meanwhile.
    pub(crate) fn hold_collections(&self, go_on: &dyn Fn() -> bool) -> Result<UnderWay<'_>> {
        loop {
            match self.begin_collection() {
                Err(_) if go_on() && !self.is_ending() => std::thread::sleep(HOLD_RETRY_DELAY),
                held => return held,
            }
        }
    }

    /// Collects. `watch` is asked between steps whether to go on.
    pub(crate) fn collect(
        &self,
        how: &How<'_>,
        watch: &mut (dyn FnMut(&Progress) -> ControlFlow<()> + Send),
    ) -> Result<v1::CollectResult> {
        let _under_way = self.begin_collection()?;
        let before = self.measure_disk()?;
        info!(why = how.why.word(), dry_run = how.dry_run, store_bytes = before.store_bytes, "collection begins");
        if !how.dry_run {
            self.shorten_journals();
        }
        let ending = &self.inner.collections.ending;
        let looking = Progress { stage: Stage::Mark, done: 0, total: 0, deleted: 0 };
        let mut go_on = || !ending.load(Ordering::Relaxed) && watch(&looking).is_continue();
        let prepared = self.prepare(how, &mut go_on)?;
        let thinned = self.trees_there(&prepared.plan)?;
        let sleep = |time: Duration| std::thread::sleep(time);
        let pace = Pace { objects_per_second: OBJECTS_PER_SECOND, bytes_per_second: BYTES_PER_SECOND, sleep: &sleep };
        let options = CollectOptions {
            retention: &prepared.plan,
            scope: Some(&prepared.scope),
            operations_from: prepared.operations_from,
            dry_run: how.dry_run,
            readers: self.inner.collections.readers.as_ref(),
            pace: matches!(how.why, Why::Growth | Why::Time).then_some(pace),
            ..CollectOptions::default()
        };
        let begun = Instant::now();
        let clock = || begun.elapsed();
        let mut courtesy = Courtesy::new(&self.inner.store, &clock, &sleep).map_err(of_engine)?;
        let mut watch = |progress: &Progress| match ending.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => {
                // Whether to rest is no reason to fail.
                let _ = courtesy.rest();
                watch(progress)
            }
        };
        let done = collect(&self.inner.store, &options, &mut watch).map_err(of_engine)?;
        self.inner.collections.added.lock().clear();
        *self.inner.collections.measured.lock() = None;
        if !how.dry_run && self.inner.home.pool_path().exists() {
            let removed = self.pool()?.remove_unused();
            removed.map_err(|source| of_io("remove files that no directory shares", &source))?;
        }
        let after = self.measure_disk()?;
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
        if !how.dry_run && done.ended_in.is_none() {
            let freed = done.freed.total();
            self.inner.collections.change(|state| {
                state.problem = None;
                state.last = Some(Last {
                    time: self.now().0,
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

    /// Forgets what was deleted before the grace time, and plans what is thinned. A dry run forgets nothing.
    fn prepare(&self, how: &How<'_>, go_on: &mut dyn FnMut() -> bool) -> Result<Prepared> {
        let settings = self.settings()?;
        let grace = how.grace.unwrap_or(settings.grace);
        let (lived, now) = (self.lived(), self.now());
        let at = before(now, grace);
        let old = self.inner.workspaces.deleted_before(at, &lived).map_err(of_engine)?;
        let mut without: BTreeSet<RefName> = old.iter().cloned().collect();
        if !how.dry_run {
            let act = self.act(how.actor);
            self.inner.workspaces.forget_deleted(&old, &act).map_err(of_engine)?;
            without.clear();
        }
        let operations_after = operations_before(&self.inner.store, at, &lived).map_err(of_engine)?;
        let operations_from =
            log_begins(&self.inner.store, &settings.log, now, operations_after, &lived).map_err(of_engine)?;
        let scope = SweepScope { operations_after: Some(operations_after), without };
        let mut plan = plan(&self.inner.history, &settings.policies, &scope, at, &lived).map_err(of_engine)?;
        if !how.dry_run {
            plan.make_lean(&self.inner.store, &self.act(how.actor), go_on).map_err(of_engine)?;
        }
        Ok(Prepared { scope, plan, operations_from, grace, forgotten: old.len() as u64 })
    }

    /// The number of the last operation that is older than the grace time: what operations after it moved can be undone.
    pub(crate) fn operations_kept_after(&self) -> Result<u64> {
        let lived = self.lived();
        let at = before(self.now(), self.settings()?.grace);
        operations_before(&self.inner.store, at, &lived).map_err(of_engine)
    }

    /// What retention would do, with the grace time.
    pub(crate) fn plan_collection(&self, grace: Option<Span>) -> Result<(Plan, Span)> {
        let how = How { actor: ITSELF, dry_run: true, grace, why: Why::Asked };
        self.prepare(&how, &mut || true).map(|prepared| (prepared.plan, prepared.grace))
    }

    /// How many of those that go are not gone yet.
    fn trees_there(&self, plan: &Plan) -> Result<u64> {
        let mut there = 0;
        for planned in plan.goers() {
            there += u64::from(!self.inner.history.is_thinned(planned.id).map_err(of_engine)?);
        }
        Ok(there)
    }

    /// How things stand.
    pub(crate) fn collection_message(&self) -> Result<v1::GetCollectionResponse> {
        let settings = self.settings()?;
        let disk = self.measure_disk()?;
        let state = self.inner.collections.state.lock().clone();
        let warnings = match shortage(&disk, settings.budget_bytes) {
            Shortage::None => None,
            Shortage::Near(words) | Shortage::Reached(words) => Some(words),
        };
        let is_paused = state.is_paused(self.now());
        let lived = self.lived();
        let (next_time, next_bytes) = itself::next(&self.inner.collections.watchfulness, state.last.as_ref(), &lived);
        Ok(v1::GetCollectionResponse {
            paused: is_paused,
            paused_until: state.paused_until.filter(|_| is_paused).map(|end| amalgam_proto::timestamp(Time(end))),
            next_time: Some(amalgam_proto::timestamp(next_time.unwrap_or(self.now()))),
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

    /// Collects nothing by itself from now on, for a time or until it is told otherwise.
    pub(crate) fn pause_collection(&self, span: Span) -> Result<()> {
        let end = match span {
            Span::For(span) => Some(self.now().0.saturating_add(span)),
            Span::Forever => None,
        };
        self.inner.collections.change(|state| (state.paused, state.paused_until) = (true, end))
    }

    /// Collects by itself again.
    pub(crate) fn resume_collection(&self) -> Result<()> {
        self.inner.collections.change(|state| (state.paused, state.paused_until) = (false, None))
    }

    /// What would come free if these references went, or the tree of this snapshot: what is dead then and is not now.
    pub(crate) fn measure_without(
        &self,
        without: BTreeSet<RefName>,
        tree: Option<SnapshotId>,
        caller: &Caller,
    ) -> Result<v1::ObjectTally> {
        let _under_way = self.begin_collection()?;
        let dead = |scope: &SweepScope, retention: &dyn Retention| {
            let options = CollectOptions { retention, scope: Some(scope), dry_run: true, ..CollectOptions::default() };
            let mut watch =
                |_: &Progress| if caller.is_gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let done = collect(&self.inner.store, &options, &mut watch).map_err(of_engine)?;
            caller.check()?;
            let (dead, young) = (done.dead.total(), done.young.total());
            Ok::<_, Failure>((dead.objects + young.objects, dead.bytes + young.bytes))
        };
        let but_this = |id: SnapshotId, _: &Snapshot| Some(id) != tree;
        let with = dead(&SweepScope::default(), &KeepAll)?;
        let without = dead(&SweepScope { without, operations_after: None }, &but_this)?;
        Ok(v1::ObjectTally { objects: without.0.saturating_sub(with.0), bytes: without.1.saturating_sub(with.1) })
    }
}

/// So long before a time.
fn before(now: Time, span: Span) -> Time {
    match span {
        Span::For(span) => Time(now.0.saturating_sub(span)),
        Span::Forever => Time(i64::MIN),
    }
}

fn result_message(
    how: &How<'_>,
    prepared: &Prepared,
    done: &Collected,
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verification_waits_for_a_collection_and_keeps_others_from_beginning() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let how = How { actor: "ann", dry_run: false, grace: Some(Span::NONE), why: Why::Asked };
        let collecting = service.begin_collection().expect("one is under way");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| service.hold_collections(&|| true).map(|held| (held, Instant::now())));
            std::thread::sleep(Duration::from_millis(200));
            let ended = Instant::now();
            drop(collecting);
            let (held, begun) = waiting.join().expect("no panic").expect("held");
            assert!(begun >= ended, "it waited");
            let refused = service.collect(&how, &mut |_| ControlFlow::Continue(())).expect_err("collections are held");
            assert_eq!(refused.reason, Reason::Busy);
            drop(held);
        });
        service.collect(&how, &mut |_| ControlFlow::Continue(())).expect("collected");
        let _collecting = service.begin_collection().expect("one is under way");
        assert!(service.hold_collections(&|| false).is_err(), "whoever went away does not wait");
    }

    #[test]
    fn one_at_a_time_while_others_work_and_ended_when_asked() {
        use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};

        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let (workspaces, act) = (&service.inner.workspaces, service.act("ann"));
        let name = WorkspaceName::new("main").expect("a name");
        workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
        let how = How { actor: "ann", dry_run: false, grace: Some(Span::NONE), why: Why::Asked };
        let mut asked = 0_u32;
        let done = service.collect(&how, &mut |_| {
            asked += 1;
            let second = service.collect(&how, &mut |_| ControlFlow::Continue(())).expect_err("one is under way");
            assert_eq!(second.reason, Reason::Busy);
            let mut tree = workspaces.open(&name).expect("open");
            tree.write("n", &asked.to_le_bytes()).expect("write");
            workspaces.commit(&name, &mut tree, &Change::new("meanwhile"), &act).expect("commits go on");
            ControlFlow::Continue(())
        });
        assert_eq!(done.expect("collected").ended_in, "");
        assert!(asked > 3, "it was asked often");
        let read = workspaces.open(&name).expect("open").read("n").expect("read");
        assert_eq!(read, asked.to_le_bytes());
        let ended = service.collect(&how, &mut |_| ControlFlow::Break(())).expect("ended, not failed");
        assert_eq!(ended.ended_in, "mark");
        assert!(!service.is_collecting());
        let last = service.collection_message().expect("the state").last.expect("the first one");
        assert_eq!(last.why, "asked", "one that was ended early does not count");
    }
}
