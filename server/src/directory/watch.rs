//! Watches of directories: events show the changes without a walk, and snapshots are taken automatically if a caller asks for them.
//!
//! All watches of a directory share one watcher, and each ends on its own: a foreground watch when its client disconnects, the
//! background watch when it is stopped. The background watch is part of the directory's record, so every process that opens the
//! store resumes it, and retries while the directory is gone or cannot be watched.

mod foreground;
mod writes;

pub(crate) use writes::WriteWatch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amalgam_engine::workspace::Change;
use amalgam_gc::retention::AUTOMATIC_KEY;
use amalgam_materializer::{Progress, Watcher};
use amalgam_proto::v1::watch_directory_response::Event;
use amalgam_proto::{Reason, v1};

use super::capture::{CaptureScope, CommitDraft};
use super::watcher::{BackgroundState, SharedWatcher, Watch};
use super::{Directories, LockedDirectory};
use crate::call_log::warn_failure;
use crate::error::Result;
use crate::registry::{BackgroundWatch, Record};
use crate::states::{CAPTURE, Direction};

/// How long a watch sleeps before it checks whether it is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// How often a watch checks whether its directory is still the one at its path: inotify does not report a move of it.
const CHECK_DIRECTORY_EVERY: Duration = Duration::from_secs(2);
/// Delay before a background watch that could not start, or had to end, is retried.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Delay before an automatic snapshot that failed is retried without an event. The retry reads all files of the directory.
const CAPTURE_RETRY_DELAY: Duration = Duration::from_secs(10);
/// How long the end of the process waits for a call that works in a directory.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The session of the background watch; those of calls have other numbers.
const BACKGROUND: u64 = 0;

impl Directories {
    /// Returns the number of watched directories.
    pub fn watched(&self) -> usize {
        self.watches.active.lock().len()
    }

    /// Returns whether a directory is watched, or will be watched as soon as possible.
    pub(crate) fn is_watching(&self) -> bool {
        self.watched() > 0 || !self.watches.supervised.lock().is_empty()
    }

    /// Returns the number of calls that watch a directory. Their watches end with this process.
    pub(crate) fn watching_calls(&self) -> usize {
        self.watches.foreground.load(Ordering::Relaxed)
    }

    /// Returns the number of background watches that the records ask for.
    pub(crate) fn background_watches(&self) -> usize {
        self.context.registry.all().iter().filter(|record| record.background.is_some()).count()
    }

    /// Returns the watcher of a directory, which is kept until this session ends. Marks the store as in use meanwhile.
    fn begin_watch(&self, name: &str, session: u64) -> Result<Arc<SharedWatcher>> {
        let _using = self.context.using();
        self.begin_session(name, session)
    }

    /// Returns the watcher of a directory like [`begin_watch`](Self::begin_watch), for a thread that uses the store already.
    fn begin_session(&self, name: &str, session: u64) -> Result<Arc<SharedWatcher>> {
        let mut locked = self.lock(name)?;
        if let Some(watch) = &mut locked.live.watch {
            watch.sessions.insert(session);
            return Ok(Arc::clone(&watch.eye));
        }
        let rules = self.rules(&locked.record)?;
        let watcher = Watcher::start(&locked.host, &rules)?;
        let eye = Arc::new(SharedWatcher::new(watcher));
        let (id, watches) = (locked.record.id.clone(), Arc::clone(&self.watches));
        watches.active.lock().insert(id.clone());
        let watch = Watch { eye: Arc::clone(&eye), sessions: BTreeSet::from([session]), id, watches };
        locked.live.watch = Some(watch);
        Ok(eye)
    }

    /// Ends a session, and the watcher with the last one.
    fn end_session(&self, name: &str, session: u64) -> Result<()> {
        // If the directory was detached, its watches have ended.
        let Ok(record) = self.record(name) else { return Ok(()) };
        let live = self.live(&record.id);
        let mut live = live.lock();
        let is_last = live.watch.as_mut().is_some_and(|watch| {
            watch.sessions.remove(&session);
            watch.sessions.is_empty()
        });
        if is_last {
            live.watch = None;
            self.save_watched_index(&live, &record.id)?;
        }
        Ok(())
    }

    /// Writes the index that was kept in memory while its directory was watched.
    fn save_watched_index(&self, live: &super::Live, id: &str) -> Result<()> {
        match &live.index {
            Some(index) => Ok(index.save(&self.context.registry.index_file(id))?),
            None => Ok(()),
        }
    }

    /// Takes snapshots of a directory until `over` returns `true`. Returns an error when the directory is gone or was replaced.
    fn keep_watch(
        &self,
        name: &str,
        actor: &str,
        eye: &SharedWatcher,
        pace: &Pace,
        tell: &mut impl FnMut(Event) -> Result<()>,
        over: &impl Fn() -> bool,
    ) -> Result<()> {
        let mut checked = Instant::now();
        let mut schedule = Schedule::new(checked);
        let mut seen = *eye.events.borrow();
        while !over() {
            if eye.watcher.wait(pace.look_every())? {
                eye.gather();
            }
            let events = *eye.events.borrow();
            if events != seen {
                seen = events;
                schedule.note_event(Instant::now());
            }
            if checked.elapsed() >= CHECK_DIRECTORY_EVERY {
                checked = Instant::now();
                self.open_host(&self.record(name)?)?;
            }
            if schedule.next_due(pace).is_none_or(|due| due > Instant::now()) {
                continue;
            }
            schedule.begin_capture();
            match self.capture_by_itself(name, actor) {
                Ok(Some(result)) => tell(Event::Captured(result))?,
                Ok(None) => {}
                Err(failure) if is_lost(failure.reason()) => return Err(failure),
                Err(failure) => {
                    schedule.note_failure(Instant::now());
                    tell(Event::Problem(failure.to_string()))?;
                }
            }
        }
        Ok(())
    }

    fn capture_by_itself(&self, name: &str, actor: &str) -> Result<Option<v1::CaptureResult>> {
        let _using = self.context.using();
        let act = self.context.act(actor);
        let mut locked = self.lock(name)?;
        let mut change = Change::new("automatic");
        change.metadata.insert(AUTOMATIC_KEY.to_owned(), "true".to_owned());
        let saying = CommitDraft { action: CAPTURE, change };
        if self.would_only_end_redo(&mut locked)? {
            return Ok(None);
        }
        let result = self.snapshot_directory(&mut locked, &saying, CaptureScope::Dirty, &act, &Progress::default())?;
        Ok(result.changed.then_some(result))
    }

    /// Returns whether an undo can be redone and nothing but `.git` changed since: a snapshot of that would be a new step, which ends
    /// what can be redone. The next snapshot with another change has it.
    fn would_only_end_redo(&self, locked: &mut LockedDirectory) -> Result<bool> {
        match self.states.next_to_revert(&locked.workspace, Direction::Redo) {
            Err(error) if error.reason() == Reason::NothingToRevert => return Ok(false),
            next => drop(next?),
        }
        let captured = self.capture(locked, &Progress::default())?;
        let (state, git) =
            (self.states.state_root(&locked.workspace)?, self.states.default_git_scope(&locked.workspace)?);
        let is_step = self.differs_from(locked, state, &captured, git)?;
        if !is_step {
            locked.save(&self.context);
        }
        Ok(!is_step)
    }
}

/// The background watches.
impl Directories {
    /// Resumes the background watches of the records. From here on this process stays when a call has ended.
    pub(crate) fn resume_watches(&self) {
        self.watches.is_lasting.store(true, Ordering::Relaxed);
        let now = self.context.now();
        for record in self.context.registry.all().into_iter().filter(|record| record.background.is_some()) {
            self.watches.note(&record.id, |state| state.resumed = Some(now));
            self.supervise(&record.id);
        }
    }

    /// Ends all watches, because the process ends. The next process resumes background watches.
    pub(crate) fn end_watching(&self) {
        let watches = &self.watches;
        watches.is_ending.store(true, Ordering::Relaxed);
        watches.changed.notify_all();
        let active: Vec<_> = watches.active.lock().iter().cloned().collect();
        for id in active {
            let live = self.live(&id);
            if let Some(mut live) = live.try_lock_for(END_TIMEOUT) {
                live.end_watch();
                // Without the index, the next capture reads all files.
                if let Err(failure) = self.save_watched_index(&live, &id) {
                    warn_failure(&failure, "the index of a watched directory was not saved");
                }
            }
        }
    }

    /// Records that a directory is watched in the background, and starts the thread for it.
    fn keep_in_background(&self, name: &str, background: BackgroundWatch) -> Result<()> {
        let mut locked = self.lock(name)?;
        let head = self.context.head(&locked.workspace)?;
        if !self.is_left_behind(&locked, head)? {
            self.adopt_equal_head(&mut locked, head, &Progress::default())?;
            self.refuse_out_of_step(&locked, head)?;
        }
        drop(locked);
        let id = self.set_background(name, Some(background))?;
        self.watches.note(&id, |state| *state = BackgroundState::default());
        self.supervise(&id);
        Ok(())
    }

    /// Ends the background watch of a directory, and no other.
    fn stop_background(&self, name: &str) -> Result<()> {
        let id = self.set_background(name, None)?;
        self.end_session(name, BACKGROUND)?;
        self.watches.background.lock().remove(&id);
        self.watches.changed.notify_all();
        Ok(())
    }

    /// Ends the session of a background watch that could not be recorded. A watch that the record asks for goes on.
    fn end_unwanted_background(&self, name: &str) {
        let is_wanted = self.record(name).is_ok_and(|record| record.background.is_some());
        // The watcher has ended even if its index cannot be saved; then files are only read again.
        if !is_wanted && let Err(failure) = self.end_session(name, BACKGROUND) {
            warn_failure(&failure, "the index of a watched directory was not saved");
        }
    }

    fn set_background(&self, name: &str, background: Option<BackgroundWatch>) -> Result<String> {
        let id = self.record(name)?.id;
        // A call that works in the directory would write the old record again.
        let _turn = self.live(&id).lock_arc();
        let record = Record { background, ..self.record(name)? };
        if self.context.registry.get(&id).as_ref() != Some(&record) {
            self.context.registry.put(record)?;
        }
        Ok(id)
    }

    /// Starts the thread of a background watch, unless there is one.
    fn supervise(&self, id: &str) {
        if self.watches.supervised.lock().insert(id.to_owned()) {
            let (service, id) = (self.clone(), id.to_owned());
            std::thread::spawn(move || service.keep_background_watch(&id));
        }
        self.watches.changed.notify_all();
    }

    /// Watches a directory while its record asks for it, and restarts the watch when it had to end.
    fn keep_background_watch(&self, id: &str) {
        let watches = &self.watches;
        loop {
            let wanted = {
                let mut supervised = watches.supervised.lock();
                let wanted = self.context.registry.get(id).and_then(|record| record.background);
                match wanted.filter(|_| !watches.is_ending()) {
                    Some(wanted) => wanted,
                    None => {
                        supervised.remove(id);
                        return;
                    }
                }
            };
            let ended = self.watch_in_background(id, &wanted);
            if let Err(failure) = ended {
                watches.note(id, |state| state.problem = Some(failure.to_string()));
                let mut supervised = watches.supervised.lock();
                if !watches.is_ending() {
                    watches.changed.wait_for(&mut supervised, RETRY_DELAY);
                }
            }
        }
    }

    fn watch_in_background(&self, id: &str, wanted: &BackgroundWatch) -> Result<()> {
        let (name, watches) = (amalgam_proto::directory_name(id), &self.watches);
        let eye = self.begin_watch(&name, BACKGROUND)?;
        watches.note(id, |state| state.problem = eye.watcher.incomplete());
        let over = || {
            let is_wanted =
                || self.context.registry.get(id).is_some_and(|record| record.background.as_ref() == Some(wanted));
            watches.is_ending() || eye.is_ended() || !is_wanted()
        };
        let mut tell = |event| {
            watches.note(id, |state| match event {
                Event::Problem(problem) => state.problem = Some(problem),
                _ => state.problem = eye.watcher.incomplete(),
            });
            Ok(())
        };
        let pace = Pace::new(wanted.quiet_milliseconds, wanted.interval_milliseconds);
        let done = self.keep_watch(&name, &wanted.actor, &eye, &pace, &mut tell, &over);
        let is_still_wanted = self.context.registry.get(id).is_some_and(|record| record.background.is_some());
        // With another pace, the watch continues at once with the same watcher.
        if done.is_err() || !is_still_wanted || watches.is_ending() {
            self.end_session(&name, BACKGROUND)?;
        }
        done
    }

    /// Makes a background watch retry at once, because its directory was replaced.
    pub(super) fn retry_background(&self, id: &str) {
        let watches = &self.watches;
        if let Some(state) = watches.background.lock().get_mut(id) {
            state.problem = None;
        }
        watches.changed.notify_all();
    }

    /// Adds to a directory's message whether it is watched, and the state of its background watch.
    pub(super) fn tell_watch(&self, record: &Record, directory: &mut v1::Directory) {
        let watches = &self.watches;
        let state = watches.background.lock().get(&record.id).cloned().unwrap_or_default();
        let is_active = watches.active.lock().contains(&record.id);
        directory.watch_wanted = record.background.is_some();
        directory.watched = is_active;
        if !directory.watch_wanted {
            return;
        }
        directory.watch_problem = match state.problem {
            Some(problem) => problem,
            None if !watches.is_lasting.load(Ordering::Relaxed) => {
                "there is no background process (--in-process)".to_owned()
            }
            None => String::new(),
        };
        // A watch that is being resumed misses nothing: its first capture reads everything.
        directory.watched |= directory.watch_problem.is_empty();
        directory.watch_resume_time = state.resumed.map(amalgam_proto::timestamp);
    }
}

/// Returns whether an error means that the watched directory does not exist any more.
fn is_lost(reason: Reason) -> bool {
    matches!(reason, Reason::DirectoryGone | Reason::DirectoryReplaced | Reason::NoDirectory)
}

/// When snapshots are taken.
struct Pace {
    quiet: Duration,
    interval: Duration,
}

impl Pace {
    fn new(quiet_milliseconds: u64, interval_milliseconds: u64) -> Self {
        let (quiet, interval) =
            (Duration::from_millis(quiet_milliseconds), Duration::from_millis(interval_milliseconds));
        Self { quiet, interval }
    }

    fn look_every(&self) -> Duration {
        if self.quiet.is_zero() { CHECK_INTERVAL } else { CHECK_INTERVAL.min(self.quiet / 4) }
    }

    /// Returns when a snapshot is due, given the times of the first and the last event since the one before; `None` if the pace
    /// sets no delay.
    fn next_due(&self, first: Instant, last: Instant) -> Option<Instant> {
        let quiet = (!self.quiet.is_zero()).then(|| last.checked_add(self.quiet)).flatten();
        let time = (!self.interval.is_zero()).then(|| first.checked_add(self.interval)).flatten();
        quiet.into_iter().chain(time).min()
    }
}

/// The events since the last snapshot of a watch, which determine when the next one is due.
struct Schedule {
    /// The times of the first and of the last event; no snapshot is due without a first one.
    first: Option<Instant>,
    last: Instant,
    /// The time before which a failed snapshot is not retried without an event.
    not_before: Instant,
}

impl Schedule {
    /// Creates the schedule of a new watch. Its first snapshot has the files that exist now.
    fn new(now: Instant) -> Self {
        Self { first: Some(now), last: now, not_before: now }
    }

    /// Records an event. The files have changed, so that a snapshot that failed is not delayed any more.
    fn note_event(&mut self, now: Instant) {
        (self.last, self.not_before) = (now, now);
        self.first.get_or_insert(now);
    }

    /// Records that a snapshot begins: only later events make the next one due.
    fn begin_capture(&mut self) {
        self.first = None;
    }

    /// Records that the snapshot failed: another one is due after a delay, even without an event.
    fn note_failure(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.not_before = now + CAPTURE_RETRY_DELAY;
    }

    /// Returns when the next snapshot is due; `None` without events, or if the pace sets no delay.
    fn next_due(&self, pace: &Pace) -> Option<Instant> {
        let due = pace.next_due(self.first?, self.last)?;
        Some(due.max(self.not_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_snapshot_is_due_again_without_an_event() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let pace = Pace::new(1_000, 0);
        let mut schedule = Schedule::new(begun);
        assert_eq!(schedule.next_due(&pace), Some(begun + second));
        schedule.begin_capture();
        assert_eq!(schedule.next_due(&pace), None, "no event since");
        schedule.note_event(begun + 2 * second);
        schedule.begin_capture();
        let failed = begun + 4 * second;
        schedule.note_failure(failed);
        assert_eq!(schedule.next_due(&pace), Some(failed + CAPTURE_RETRY_DELAY));
        schedule.note_event(failed + second);
        assert_eq!(schedule.next_due(&pace), Some(failed + 2 * second), "an event ends the delay");
        schedule.begin_capture();
        assert_eq!(schedule.next_due(&pace), None, "the retry is under way");
        assert_eq!(Schedule::new(begun).next_due(&Pace::new(0, 0)), None, "this pace takes no snapshots");
    }
}
