//! Keeping an eye on a directory: what happened is known without a walk, and snapshots are taken by themselves if asked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amalgam_engine::TreePath;
use amalgam_engine::workspace::Change;
use amalgam_gc::retention::AUTOMATIC;
use amalgam_materializer::{Dirty, Progress, Watcher};
use amalgam_proto::v1;
use amalgam_proto::v1::watch_directory_response::Event;
use parking_lot::Mutex;

use super::capture::{CAPTURE, Saying};
use crate::failure::{Result, of_materializer};
use crate::service::Service;

/// Nothing happened anywhere.
pub(super) static NOWHERE: &BTreeSet<TreePath> = &BTreeSet::new();

/// How long a watch sleeps before it looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An eye on a directory, for as long as the directory is watched.
pub(crate) struct Watch {
    eye: Arc<Eye>,
    /// How many directories are watched.
    watched: Arc<AtomicUsize>,
}

/// What the directory itself and whoever waits for something to happen share.
struct Eye {
    watcher: Watcher,
    /// What happened since the last capture.
    since: Mutex<Dirty>,
    ended: AtomicBool,
}

impl Watch {
    /// Where something happened since the last capture; from now on only what happens next counts.
    pub(super) fn take_dirty(&self) -> Dirty {
        self.eye.gather();
        std::mem::replace(&mut self.eye.since.lock(), Dirty::Nothing)
    }

    /// The same for a look that changes nothing.
    pub(super) fn look_dirty(&self) -> Dirty {
        self.eye.gather();
        self.eye.since.lock().clone()
    }

    /// What was taken did not come to a capture: look everywhere next time.
    pub(super) fn doubt(&self) {
        *self.eye.since.lock() = Dirty::Everything;
    }
}

impl Eye {
    /// Reads what the kernel noted; whether there was anything.
    fn gather(&self) -> bool {
        let mut since = self.since.lock();
        let before = std::mem::replace(&mut *since, Dirty::Nothing);
        let new = self.watcher.take_dirty();
        let happened = new != Dirty::Nothing;
        *since = match (before, new) {
            (Dirty::Nothing, new) => new,
            (old, Dirty::Nothing) => old,
            (Dirty::Directories(mut old), Dirty::Directories(new)) => {
                old.extend(new);
                Dirty::Directories(old)
            }
            _ => Dirty::Everything,
        };
        happened
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.eye.ended.store(true, Ordering::Relaxed);
        self.watched.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    /// Watches a directory for as long as somebody listens, or until it is told to stop.
    pub(crate) fn watch_directory(
        &self,
        request: &v1::WatchDirectoryRequest,
        actor: &str,
        mut tell: impl FnMut(Event) -> Result<()>,
        is_over: impl Fn() -> bool,
    ) -> Result<()> {
        if request.stop {
            self.unwatch(&request.name)?;
            return Ok(());
        }
        let eye = self.begin_watch(&request.name)?;
        tell(Event::Begun(v1::WatchBegun { directories: eye.watcher.watches() as u64 }))?;
        if let Some(problem) = eye.watcher.incomplete() {
            tell(Event::Problem(problem))?;
        }
        let pace = Pace {
            quiet: Duration::from_millis(request.quiet_milliseconds),
            interval: Duration::from_millis(request.interval_milliseconds),
        };
        if request.detach {
            let (service, name, actor) = (self.clone(), request.name.clone(), actor.to_owned());
            std::thread::spawn(move || {
                let over = || eye.ended.load(Ordering::Relaxed);
                // Nobody listens: what goes wrong shows in the next status.
                let _ = service.keep_watch(&name, &actor, &eye, &pace, &mut |_| Ok(()), &over);
                let _ = service.unwatch(&name);
            });
            return Ok(());
        }
        let over = || is_over() || eye.ended.load(Ordering::Relaxed);
        let done = self.keep_watch(&request.name, actor, &eye, &pace, &mut tell, &over);
        self.unwatch(&request.name)?;
        done
    }

    fn begin_watch(&self, name: &str) -> Result<Arc<Eye>> {
        let _using = self.using();
        let mut grasp = self.grasp(name)?;
        if let Some(Watch { eye, .. }) = &grasp.live.watch {
            return Ok(Arc::clone(eye));
        }
        let rules = self.rules(&grasp.record)?;
        let watcher = Watcher::start(&grasp.host, &rules).map_err(of_materializer)?;
        // What happened before the eye was on it is found by one look everywhere.
        let eye = Arc::new(Eye { watcher, since: Mutex::new(Dirty::Everything), ended: AtomicBool::new(false) });
        self.inner.watched.fetch_add(1, Ordering::Relaxed);
        grasp.live.watch = Some(Watch { eye: Arc::clone(&eye), watched: Arc::clone(&self.inner.watched) });
        Ok(eye)
    }

    fn unwatch(&self, name: &str) -> Result<()> {
        // Whoever let go of the directory has ended its watch.
        let Ok(record) = self.record(name) else { return Ok(()) };
        let live = self.live(&record.id);
        let mut live = live.lock();
        if live.watch.take().is_some()
            && let Some(index) = &live.index
        {
            index.save(&self.inner.registry.index_file(&record.id)).map_err(of_materializer)?;
        }
        Ok(())
    }

    fn keep_watch(
        &self,
        name: &str,
        actor: &str,
        eye: &Eye,
        pace: &Pace,
        tell: &mut impl FnMut(Event) -> Result<()>,
        over: &impl Fn() -> bool,
    ) -> Result<()> {
        let mut last = Instant::now();
        // What is there now is the first snapshot.
        let mut first = Some(last);
        while !over() {
            if eye.watcher.wait(pace.look_every()).map_err(of_materializer)? && eye.gather() {
                last = Instant::now();
                first.get_or_insert(last);
            }
            if !pace.is_due(first, last) {
                continue;
            }
            first = None;
            match self.capture_by_itself(name, actor) {
                Ok(Some(result)) => tell(Event::Captured(result))?,
                Ok(None) => {}
                Err(failure) => tell(Event::Problem(failure.message))?,
            }
        }
        Ok(())
    }

    fn capture_by_itself(&self, name: &str, actor: &str) -> Result<Option<v1::CaptureResult>> {
        let _using = self.using();
        let act = self.act(actor, "")?;
        let mut grasp = self.grasp(name)?;
        let mut change = Change::new("automatic");
        change.metadata.insert(AUTOMATIC.to_owned(), "true".to_owned());
        let saying = Saying { action: CAPTURE, change };
        let result = self.snapshot_directory(&mut grasp, &saying, &act, &Progress::default())?;
        Ok(result.changed.then_some(result))
    }
}

/// When snapshots are taken.
struct Pace {
    quiet: Duration,
    interval: Duration,
}

impl Pace {
    fn look_every(&self) -> Duration {
        if self.quiet.is_zero() { LOOK_EVERY } else { LOOK_EVERY.min(self.quiet / 4) }
    }

    fn is_due(&self, first: Option<Instant>, last: Instant) -> bool {
        let Some(first) = first else { return false };
        let is_quiet = !self.quiet.is_zero() && last.elapsed() >= self.quiet;
        let is_time = !self.interval.is_zero() && first.elapsed() >= self.interval;
        is_quiet || is_time
    }
}
