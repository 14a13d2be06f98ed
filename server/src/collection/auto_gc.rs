//! Automatic collections: when the store has grown, when a day has passed, and when space is short.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_gc::Progress;
use amalgam_proto::Reason;

use super::policy::{CollectionRequest, LastCollection, due, due_for_quota};
use super::{AUTOMATIC_ACTOR, Collections};
use crate::call_log::warn_failure;
use crate::disk_quota::Disk;
use crate::error::Result;

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Delay before a collection that failed is tried again: it doubles with each failure.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(60);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(6 * 3_600);

impl Collections {
    /// Collects automatically until the process ends. `idle` returns the time since the last call. A failure is logged once, kept
    /// for the status, and retried with a growing delay.
    pub(crate) fn keep_collecting(&self, idle: &dyn Fn() -> Duration, tell: &dyn Fn(&str)) {
        let collections = &self.inner;
        let mut looked = Instant::now();
        let mut failures = Failures::default();
        while !collections.ending.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL.min(collections.policy.check_every));
            let is_wanted = self.quota.take_collection_request();
            if !is_wanted && looked.elapsed() < collections.policy.check_every {
                continue;
            }
            looked = Instant::now();
            if failures.are_fresh(looked) {
                continue;
            }
            let _using = self.context.using();
            let lived = self.lived();
            let state = collections.state.lock().clone();
            if state.is_paused(self.context.now()) || self.is_collecting() {
                continue;
            }
            // The time of the last collection by the present clock, which may have jumped since.
            let placed = state.last.map(|last| LastCollection { time: lived.place(Time(last.time)).0, ..last });
            let StoreGrowth { last, disk, budget } = match self.growth(placed) {
                Ok(Some(growth)) => growth,
                Ok(None) => continue,
                Err(failure) => {
                    warn_failure(&failure, "whether a collection is due cannot be decided");
                    continue;
                }
            };
            let last = last.as_ref();
            let why = due(&collections.policy, last, &disk, budget, self.context.now(), idle());
            let is_near = self.quota.take_quota_note();
            let Some(why) = why.or_else(|| due_for_quota(is_near, last, self.context.now())) else { continue };
            let how = CollectionRequest { actor: AUTOMATIC_ACTOR, dry_run: false, grace: None, why };
            let mut watch = |_: &Progress| match collections.state.lock().is_paused(self.context.now()) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            match self.collect(&how, &mut watch) {
                Ok(_) => failures = Failures::default(),
                Err(failure) if failure.reason() == Reason::Busy => {}
                Err(failure) => {
                    let words = format!("the last collection failed: {failure}");
                    if failures.add(&words, Instant::now()) {
                        tell(&words);
                        let _ = collections.change(|state| state.problem = Some(words));
                    }
                }
            }
        }
    }
}

/// The values that decide whether a collection is due.
struct StoreGrowth {
    last: Option<LastCollection>,
    disk: Disk,
    budget: Option<u64>,
}

impl Collections {
    /// Returns the last collection, the disk and the budget. Any node may have collected a store that several nodes share; its size
    /// is that of all packs, and no budget applies to it. Returns `None` while another node collects it.
    fn growth(&self, own: Option<LastCollection>) -> Result<Option<StoreGrowth>> {
        let (disk, settings) = (self.quota.measure_disk()?, self.context.settings()?);
        let Some(shared) = self.context.store.last_collection()? else {
            return Ok(Some(StoreGrowth { last: own, disk, budget: settings.budget_bytes }));
        };
        if shared.is_under_way {
            return Ok(None);
        }
        let now = self.context.now().0;
        let last = shared.age.map(|age| {
            let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
            LastCollection {
                time: now.saturating_sub(age),
                disk_bytes_after: shared.bytes_after,
                ..LastCollection::default()
            }
        });
        let disk = Disk { store_bytes: shared.bytes, ..disk };
        Ok(Some(StoreGrowth { last, disk, budget: None }))
    }
}

/// Consecutive failures of collections.
#[derive(Default)]
struct Failures {
    count: u32,
    retry_at: Option<Instant>,
    told: String,
}

impl Failures {
    /// Returns whether it is too early to retry.
    fn are_fresh(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|retry_at| now < retry_at)
    }

    /// Counts a failure. Returns whether to report it: a message that was reported last is not reported again.
    fn add(&mut self, message: &str, now: Instant) -> bool {
        self.retry_at = now.checked_add(retry_delay(self.count));
        self.count = self.count.saturating_add(1);
        let is_new = self.told != message;
        message.clone_into(&mut self.told);
        is_new
    }
}

/// Returns the delay before the next attempt after this many failures.
fn retry_delay(failures: u32) -> Duration {
    RETRY_DELAY_MIN.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(RETRY_DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};
    use amalgam_gc::retention::Span;

    use super::super::policy::{AutoGcPolicy, IDLE};
    use super::*;
    use crate::home::Home;
    use crate::service::{Service, ServiceOptions};
    use crate::settings::{Settings, SettingsSource};

    #[test]
    fn a_failing_collection_is_told_once_and_tried_less_and_less() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        assert!(!failures.are_fresh(now));
        assert!(failures.add("no room", now), "it is told");
        assert!(failures.are_fresh(now + RETRY_DELAY_MIN / 2) && !failures.are_fresh(now + RETRY_DELAY_MIN));
        let mut delays = Vec::new();
        for _ in 0..40 {
            assert!(!failures.add("no room", now), "it was told");
            delays.push(failures.retry_at.expect("there was one") - now);
        }
        assert!(delays.is_sorted() && delays[0] == 2 * RETRY_DELAY_MIN && delays[39] == RETRY_DELAY_MAX, "{delays:?}");
        assert!(failures.add("damaged", now), "another one is told");
    }

    #[test]
    fn a_collection_that_fails_is_not_tried_at_every_look() {
        let around = tempfile::tempdir().expect("a directory");
        let known: Arc<std::sync::OnceLock<Service>> = Arc::default();
        let tries = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let settings = {
            let (known, tries) = (Arc::clone(&known), Arc::clone(&tries));
            move || match known.get().is_some_and(|service: &Service| service.collections.is_collecting()) {
                true => {
                    tries.fetch_add(1, Ordering::Relaxed);
                    Err(crate::error::Error::new(Reason::Fault, "settings that cannot be read"))
                }
                false => Ok(Settings::default()),
            }
        };
        let home = Home::new(around.path().join("home"));
        let mut service = open_with(&home, Arc::new(settings));
        let inner = Arc::get_mut(&mut service.collections.inner).expect("nobody else has it yet");
        inner.policy.check_every = Duration::from_millis(5);
        assert!(known.set(service.clone()).is_ok());
        let told = parking_lot::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let _end = End(&service);
            scope.spawn(|| service.collections.keep_collecting(&|| IDLE, &|words| told.lock().push(words.to_owned())));
            std::thread::sleep(Duration::from_millis(500));
        });
        assert_eq!(tries.load(Ordering::Relaxed), 1);
        assert_eq!(told.lock().len(), 1, "{told:?}");
        let problem = service.collections.inner.state.lock().problem.clone();
        assert!(problem.is_some_and(|problem| problem.contains("settings that cannot be read")));
    }

    #[test]
    fn a_pause_ends_by_itself_if_it_was_for_a_time() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let state = || service.collections.inner.state.lock().clone();
        service.collections.pause_collection(Span::For(10)).expect("paused");
        assert_eq!((state().is_paused(Time(14)), state().is_paused(Time(15))), (true, false));
        let told = service.collections.collection_message().expect("the state");
        assert_eq!((told.paused, told.paused_until), (true, Some(amalgam_proto::timestamp(Time(15)))));
        service.collections.pause_collection(Span::Forever).expect("paused");
        assert!(state().is_paused(Time(i64::MAX)));
        service.collections.resume_collection().expect("resumed");
        assert!(!state().is_paused(Time(5)));
    }

    /// Returns a time that advances with each call.
    fn tick() -> Time {
        static TIME: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(5);
        Time(TIME.fetch_add(1, Ordering::Relaxed))
    }

    fn open_with(home: &Home, settings: SettingsSource) -> Service {
        let clock: crate::context::Clock = tick;
        Service::open_with(home, ServiceOptions { settings, ..ServiceOptions::new(clock.into()) }).expect("opened")
    }

    /// Returns a service that checks for collections every few milliseconds, and a switch that makes its disk look full.
    fn watched(around: &std::path::Path) -> (Service, Arc<AtomicBool>) {
        let is_full = Arc::new(AtomicBool::new(false));
        let settings = {
            let is_full = Arc::clone(&is_full);
            move || {
                let floor_bytes = is_full.load(Ordering::Relaxed).then_some(u64::MAX / 4);
                Ok(Settings { grace: Span::NONE, floor_bytes: floor_bytes.or(Some(0)), ..Settings::default() })
            }
        };
        let home = Home::new(around.join("home"));
        let mut service = open_with(&home, Arc::new(settings));
        let inner = Arc::get_mut(&mut service.collections.inner).expect("nobody else has it yet");
        inner.policy = AutoGcPolicy {
            check_every: Duration::from_millis(20),
            growth_bytes_min: 1_000_000,
            growth_bytes_short: 100_000,
        };
        (service, is_full)
    }

    /// Creates a workspace with this many private bytes, and deletes it at once.
    fn waste(service: &Service, name: &str, bytes: usize) {
        let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
        let workspace = WorkspaceName::new(name).expect("a name");
        workspaces.create(&workspace, &NewWorkspace::default(), &act).expect("made");
        let mut tree = workspaces.open(&workspace).expect("open");
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ bytes as u64;
        let noise = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        tree.write("waste", &noise.take(bytes).collect::<Vec<_>>()).expect("write");
        workspaces.commit(&workspace, &mut tree, &Change::new("waste"), &act).expect("commit");
        workspaces.delete(&workspace, &act).expect("delete");
    }

    /// Waits until the last collection is no longer `after`, and returns it; `None` after `at_most`.
    fn wait_for(service: &Service, after: &Option<LastCollection>, at_most: Duration) -> Option<LastCollection> {
        let begun = Instant::now();
        while begun.elapsed() < at_most {
            let last = service.collections.inner.state.lock().last.clone();
            if last != *after {
                return last;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Ends automatic collections when the test ends, even by a panic.
    struct End<'a>(&'a Service);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.collections.end_collecting();
        }
    }

    #[test]
    fn it_collects_by_itself_when_the_store_grows_or_room_is_short_unless_it_is_paused() {
        const LONG: Duration = Duration::from_secs(120);
        let around = tempfile::tempdir().expect("a directory");
        let (service, is_full) = watched(around.path());
        std::thread::scope(|scope| {
            let _end = End(&service);
            scope.spawn(|| service.collections.keep_collecting(&|| Duration::ZERO, &|_| {}));
            // Otherwise a collection may run between the write and the deletion.
            service.collections.pause_collection(Span::Forever).expect("paused");
            waste(&service, "one", 3_000_000);
            service.collections.resume_collection().expect("resumed");
            let grown = wait_for(&service, &None, LONG);
            let why = grown.as_ref().map(|last| last.why.as_str());
            assert_eq!(why, Some("growth"), "{grown:?}");
            assert!(grown.as_ref().is_some_and(|last| last.bytes >= 3_000_000), "{grown:?}");

            service.collections.pause_collection(Span::Forever).expect("paused");
            waste(&service, "two", 30_000_000);
            is_full.store(true, Ordering::Relaxed);
            assert_eq!(wait_for(&service, &grown, Duration::from_millis(500)), None, "it is paused");
            service.collections.resume_collection().expect("resumed");
            let short = wait_for(&service, &grown, LONG);
            let why = short.as_ref().map(|last| last.why.as_str());
            assert_eq!(why, Some("room"), "{short:?}");
            assert!(short.as_ref().is_some_and(|last| last.bytes >= 30_000_000), "{short:?}");
            assert!(
                service.collections.quota.check_space().is_err(),
                "where no room comes back commits are still refused"
            );
        });
    }
}
