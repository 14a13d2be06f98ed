//! Watches that a client waits for. Each is a task, not a thread: one task reads the inotify events for all watches of a directory,
//! and a thread is taken only for the time of a snapshot.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amalgam_proto::v1::watch_directory_response::Event;
use amalgam_proto::{Reason, v1};
use tokio::net::unix::pipe;

use super::{BACKGROUND, CHECK_DIRECTORY_EVERY, CHECK_INTERVAL, Pace, Schedule, is_lost};
use crate::directory::Directories;
use crate::directory::watcher::SharedWatcher;
use crate::error::{Error, Result};
use crate::registry::BackgroundWatch;
use crate::subscriber::Subscriber;

/// How long inotify events accumulate before they are read (debounce).
const GATHER_FOR: Duration = Duration::from_millis(20);

type Listener = Subscriber<v1::WatchDirectoryResponse>;

/// A watch of a call, counted while it runs. Dropping it ends its session.
struct Session {
    directories: Directories,
    name: String,
    number: u64,
    eye: Arc<SharedWatcher>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.directories.watches.foreground.fetch_sub(1, Ordering::Relaxed);
        let (service, name, number) = (self.directories.clone(), std::mem::take(&mut self.name), self.number);
        // This may wait for a call that holds the directory, and writes the index.
        tokio::task::spawn_blocking(move || drop(service.end_session(&name, number)));
    }
}

impl Directories {
    /// Watches a directory while the client is connected, or in the background until it is stopped.
    pub(crate) async fn watch_directory(
        &self,
        request: v1::WatchDirectoryRequest,
        actor: String,
        listener: &Listener,
    ) -> Result<()> {
        let pace = Pace::new(request.quiet_milliseconds, request.interval_milliseconds);
        let (name, asker) = (request.name.clone(), actor.clone());
        let (begun, session) = self.aside(listener, move |service| service.begin_asked(&request, &asker)).await?;
        for event in begun {
            tell(listener, event).await?;
        }
        match session {
            Some(session) => self.keep_watch_for(&name, &actor, &session.eye, &pace, listener).await,
            None => Ok(()),
        }
    }

    /// Runs work on a blocking thread, with a permit for long calls.
    async fn aside<T: Send + 'static>(
        &self,
        listener: &Listener,
        work: impl FnOnce(&Directories) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = tokio::select! {
            permit = listener.permit() => permit,
            why = listener.ended() => return Err(why),
        };
        let service = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&service)
        });
        done.await.unwrap_or_else(|error| Err(Error::new(Reason::Fault, format!("a bug in the server: {error}"))))
    }

    /// Starts or stops the watch that a request asks for. Returns the first events, and the session of a foreground watch.
    fn begin_asked(&self, request: &v1::WatchDirectoryRequest, actor: &str) -> Result<(Vec<Event>, Option<Session>)> {
        if request.stop {
            return self.stop_background(&request.name).map(|()| (Vec::new(), None));
        }
        let watches = &self.watches;
        if request.detach && !watches.is_lasting.load(Ordering::Relaxed) {
            let message = "a watch in the background needs the background process; run this without --in-process";
            return Err(Error::new(Reason::Invalid, message));
        }
        let number = match request.detach {
            true => BACKGROUND,
            false => watches.last_session.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let eye = self.begin_watch(&request.name, number)?;
        let begun = Event::Begun(v1::WatchBegun { directories: eye.watcher.watches() as u64 });
        let events = std::iter::once(begun).chain(eye.watcher.incomplete().map(Event::Problem)).collect();
        if request.detach {
            let background = BackgroundWatch {
                quiet_milliseconds: request.quiet_milliseconds,
                interval_milliseconds: request.interval_milliseconds,
                actor: actor.to_owned(),
            };
            if let Err(failure) = self.keep_in_background(&request.name, background) {
                self.end_unwanted_background(&request.name);
                return Err(failure);
            }
            return Ok((events, None));
        }
        watches.foreground.fetch_add(1, Ordering::Relaxed);
        Ok((events, Some(Session { directories: self.clone(), name: request.name.clone(), number, eye })))
    }

    /// Takes snapshots of a directory until the client disconnects or the directory is gone.
    async fn keep_watch_for(
        &self,
        name: &str,
        actor: &str,
        eye: &Arc<SharedWatcher>,
        pace: &Pace,
        listener: &Listener,
    ) -> Result<()> {
        let (mut events, mut lost) = (eye.events.subscribe(), eye.lost.subscribe());
        self.tend(name, eye);
        let mut schedule = Schedule::new(Instant::now());
        loop {
            let due = schedule.next_due(pace);
            tokio::select! {
                why = listener.ended() => return ended(&why),
                found = lost.wait_for(Option::is_some) => {
                    let why = found.ok().and_then(|why| why.clone());
                    return Err(why.map_or_else(|| Error::new(Reason::NoDirectory, "the watch ended"), Error::from));
                }
                changed = events.changed() => {
                    if changed.is_ok() {
                        schedule.note_event(Instant::now());
                    }
                    continue;
                }
                () = sleep_until(due) => {}
            }
            schedule.begin_capture();
            let (directory, author) = (name.to_owned(), actor.to_owned());
            match self.aside(listener, move |service| service.capture_by_itself(&directory, &author)).await {
                Ok(Some(result)) => tell(listener, Event::Captured(result)).await?,
                Ok(None) => {}
                Err(failure) if is_lost(failure.reason()) => return Err(failure),
                Err(failure) if failure.reason() == Reason::Cancelled => return Ok(()),
                Err(failure) => {
                    schedule.note_failure(Instant::now());
                    tell(listener, Event::Problem(failure.to_string())).await?;
                }
            }
        }
    }

    /// Starts a task that reads the inotify events, unless one runs.
    fn tend(&self, name: &str, eye: &Arc<SharedWatcher>) {
        if eye.is_tended.swap(true, Ordering::AcqRel) {
            return;
        }
        let (service, name, eye) = (self.clone(), name.to_owned(), Arc::clone(eye));
        tokio::spawn(async move {
            loop {
                if let Err(failure) = service.keep_reading(&name, &eye).await {
                    eye.lose(failure);
                }
                eye.is_tended.store(false, Ordering::Release);
                // A watch may have started after the task found none.
                let is_needed = eye.events.receiver_count() > 0 && !eye.is_ended() && eye.lost.borrow().is_none();
                if !is_needed || eye.is_tended.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    /// Reads inotify events while a foreground watch exists, and checks whether the directory is still there.
    async fn keep_reading(&self, name: &str, eye: &Arc<SharedWatcher>) -> Result<()> {
        let failed = |source: std::io::Error| Error::io("watch the directory")(source);
        let noted = eye.watcher.as_fd().try_clone_to_owned().map_err(failed)?;
        // Only for polling: the watcher reads the events.
        let noted = pipe::Receiver::from_owned_fd_unchecked(noted).map_err(failed)?;
        let mut checked = Instant::now();
        while eye.events.receiver_count() > 0 && !eye.is_ended() {
            let ready = tokio::time::timeout(CHECK_INTERVAL, noted.readable()).await;
            let is_ready = match ready {
                Ok(Ok(())) => {
                    tokio::time::sleep(GATHER_FOR).await;
                    // Clears the readiness, so that the next poll waits for new events.
                    let _ = noted.try_io(|| Err::<(), _>(std::io::ErrorKind::WouldBlock.into()));
                    true
                }
                Ok(Err(source)) => return Err(failed(source)),
                Err(_) => false,
            };
            let is_check_due = checked.elapsed() >= CHECK_DIRECTORY_EVERY;
            if !is_ready && !is_check_due {
                continue;
            }
            if is_check_due {
                checked = Instant::now();
            }
            let (service, name, eye) = (self.clone(), name.to_owned(), Arc::clone(eye));
            let looked = tokio::task::spawn_blocking(move || {
                if is_ready {
                    eye.gather();
                }
                // inotify does not report a move of the directory itself.
                if is_check_due { service.open_host(&service.record(&name)?).map(drop) } else { Ok(()) }
            });
            match looked.await {
                Ok(Err(failure)) if is_lost(failure.reason()) => return Err(failure),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the result of a watch that ended: success if the client disconnected, an error if the process ends.
fn ended(why: &Error) -> Result<()> {
    match why.reason() {
        Reason::Cancelled => Ok(()),
        _ => Err(Error::new(Reason::Busy, "the background process was told to end; run `amalgam watch` again")),
    }
}

async fn tell(listener: &Listener, event: Event) -> Result<()> {
    listener.send(v1::WatchDirectoryResponse { event: Some(event) }).await
}

/// Sleeps until a time; forever without one.
async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;

    use super::*;
    use crate::home::Home;
    use crate::messages::path_bytes;
    use crate::service::Service;

    #[test]
    fn a_background_watch_that_cannot_be_recorded_leaves_no_watcher() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let service = Service::open(&home, || Time(5), &[]).expect("opened");
        let directories = &service.directories;
        directories.resume_watches();
        let path = around.path().join("main");
        std::fs::create_dir(&path).expect("made");
        let attach = v1::AttachDirectoryRequest { path: path_bytes(&path), ..Default::default() };
        let record = directories.attach(&attach, &service.context.act("ann")).expect("attached");
        // A directory in the place of the record's file, which cannot be replaced then.
        let file = home.directories_path().join(format!("{}.json", record.id));
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir_all(file.join("full")).expect("made");
        let request = v1::WatchDirectoryRequest {
            name: amalgam_proto::directory_name(&record.id),
            quiet_milliseconds: 1_000,
            detach: true,
            ..Default::default()
        };
        let refused = directories.begin_asked(&request, "ann").err().expect("the record cannot be written");
        assert_eq!(refused.reason(), Reason::Fault, "{refused}");
        assert!(!directories.is_watching());
    }
}
