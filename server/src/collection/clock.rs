//! The age of objects for collections: the time that the store has lived through, independent of jumps of the clock.

use amalgam_engine::LivedTime;

use super::{Collections, nanoseconds};

impl Collections {
    /// Reads the clocks, and returns the time that the store has lived through.
    pub(crate) fn lived(&self) -> LivedTime {
        let collections = &self.inner;
        let mut clock = collections.lived.lock();
        clock.observe(self.context.now(), nanoseconds((collections.uptime)()));
        clock.lived().clone()
    }

    /// Counts the time that the clock jumped over as lived. Returns it in seconds.
    pub(crate) fn confirm_clock(&self) -> u64 {
        let missing = self.lived().jump().map_or(0, |jump| jump.missing);
        self.inner.lived.lock().confirm();
        missing.unsigned_abs() / 1_000_000_000
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use amalgam_engine::Time;
    use amalgam_engine::operation::{redo, undo};
    use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};
    use amalgam_gc::retention::AUTOMATIC_KEY;
    use amalgam_proto::v1;

    use crate::collection::{CollectionReason, CollectionRequest};
    use crate::context::Clocks;
    use crate::home::Home;
    use crate::service::{Service, ServiceOptions};
    use crate::settings::Settings;

    const MINUTE: i64 = 60 * 1_000_000_000;
    const DAY: i64 = 24 * 60 * MINUTE;
    static WALL: AtomicI64 = AtomicI64::new(20_000 * DAY);
    static UPTIME: AtomicI64 = AtomicI64::new(0);

    fn wall() -> Time {
        Time(WALL.load(Ordering::Relaxed))
    }

    fn uptime() -> Duration {
        Duration::from_nanos(UPTIME.load(Ordering::Relaxed).unsigned_abs())
    }

    /// Lets time pass, and makes the wall clock jump in addition.
    fn pass(time: i64, jump: i64) {
        UPTIME.fetch_add(time, Ordering::Relaxed);
        WALL.fetch_add(time + jump, Ordering::Relaxed);
    }

    fn open(home: &Home) -> Service {
        let settings = || Ok(Settings { floor_bytes: Some(0), ..Settings::default() });
        let clocks = Clocks { wall, uptime };
        Service::open_with(home, ServiceOptions { settings: Arc::new(settings), ..ServiceOptions::new(clocks) })
            .expect("opened")
    }

    fn collect(service: &Service) -> v1::CollectResult {
        let how = CollectionRequest { actor: "ann", dry_run: false, grace: None, why: CollectionReason::Asked };
        service.collections.collect(&how, &mut |_| ControlFlow::Continue(())).expect("collected")
    }

    #[track_caller]
    fn assert_nothing_went(done: &v1::CollectResult) {
        assert_eq!((done.thinned, done.forgotten, done.operations_trimmed), (0, 0, 0), "{done:?}");
        assert_eq!(done.warnings.len(), 1, "the jump is told: {:?}", done.warnings);
    }

    #[test]
    fn a_clock_that_jumps_takes_no_history_until_the_time_is_confirmed() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let service = open(&home);
        let workspaces = &service.context.workspaces;
        let name = |name: &str| WorkspaceName::new(name).expect("a name");
        for workspace in ["main", "gone"] {
            workspaces.create(&name(workspace), &NewWorkspace::default(), &service.context.act("ann")).expect("made");
        }
        for n in 0..10_u8 {
            pass(3 * MINUTE, 0);
            let mut tree = workspaces.open(&name("main")).expect("open");
            tree.write("n", &[n]).expect("write");
            let mut change = Change::new("automatic");
            change.metadata.insert(AUTOMATIC_KEY.to_owned(), "true".to_owned());
            let act = service.context.act("ann");
            workspaces.commit(&name("main"), &mut tree, &change, &act).expect("commit");
        }
        workspaces.delete(&name("gone"), &service.context.act("ann")).expect("delete");
        undo(&service.context.store, &name("main").reference(), &service.context.act("ann")).expect("undo");

        pass(MINUTE, 2 * DAY);
        assert_nothing_went(&collect(&service));
        pass(MINUTE, 3_650 * DAY);
        assert_nothing_went(&collect(&service));
        let next = service.collections.collection_message().expect("the state").next_time.expect("a time");
        pass(MINUTE, -3_652 * DAY);
        assert_nothing_went(&collect(&service));
        let corrected = service.collections.collection_message().expect("the state").next_time.expect("a time");
        assert!(corrected.seconds < next.seconds && corrected.seconds * 1_000_000_000 <= wall().0 + DAY);
        let act = service.context.act("ann");
        redo(&service.context.store, &name("main").reference(), &act).expect("what was undone is still there");
        drop(service);

        // Between two starts the clock jumps by ten years: one day of them counts.
        pass(5 * MINUTE, 3_650 * DAY);
        let service = open(&home);
        let newest = service.context.store.last_operation().expect("a number");
        let redone = service.context.store.list_operations(newest - 1, 1).expect("the log").remove(0).draft.time;
        let age = |service: &Service| wall().0 - service.collections.lived().place(redone).0;
        assert!((DAY..DAY + 10 * MINUTE).contains(&age(&service)), "{}", age(&service) / MINUTE);
        let done = service.collections.collect(
            &CollectionRequest { actor: "ann", dry_run: true, grace: None, why: CollectionReason::Asked },
            &mut |_| ControlFlow::Continue(()),
        );
        assert!(done.expect("tried").warnings[0].contains("--confirm-clock"));
        assert_eq!(service.collections.confirm_clock() / 86_400, 3_649);
        assert!(age(&service) > 3_650 * DAY);
        let done = collect(&service);
        assert!(done.thinned > 0 && done.forgotten == 1 && done.warnings.is_empty(), "{done:?}");
    }
}
