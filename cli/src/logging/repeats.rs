//! Limits how often one place in the code can warn, so that a failure in a loop leaves room in the log for other events.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::rotation::RotatingFile;

/// Most warnings and errors that one place in the code can log within [`WINDOW`].
const EVENTS_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);

/// Returns whether a target belongs to a crate of this project.
pub fn is_ours(target: &str) -> bool {
    target.starts_with("amalgam")
}

/// Passes events of this project's crates, and of warnings and errors a limited number per place in the code.
pub struct RepeatLimit {
    file: Arc<RotatingFile>,
    windows: Mutex<HashMap<Identifier, Window>>,
}

/// The number of events of one place in the code since the window began.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    events: u32,
}

impl Window {
    /// Counts an event. Returns whether it is logged, and the number of events of the previous window that were not.
    fn count(&mut self, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if now.duration_since(self.began) >= WINDOW {
            left_out = self.events.saturating_sub(EVENTS_MAX);
            *self = Self { began: now, events: 0 };
        }
        self.events = self.events.saturating_add(1);
        (self.events <= EVENTS_MAX, left_out)
    }
}

impl RepeatLimit {
    /// Creates a filter that writes to the file how many events were left out.
    pub fn new(file: Arc<RotatingFile>) -> Self {
        Self { file, windows: Mutex::default() }
    }
}

impl<S: Subscriber> Filter<S> for RepeatLimit {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        is_ours(metadata.target())
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return true;
        }
        let (is_logged, left_out) = {
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            windows.entry(metadata.callsite()).or_insert(Window { began: now, events: 0 }).count(now)
        };
        if left_out > 0 {
            let (time, level, target) = (Timestamp::now(), metadata.level(), metadata.target());
            let line = format!("{time} {level} {target}: {left_out} more events like the next one were left out");
            // A failure to write the log cannot be logged.
            self.file.write_line(line.as_bytes()).ok();
        }
        is_logged
    }
}

#[cfg(test)]
mod tests {
    use super::super::rotation::{LogWriter, StandardError};
    use super::*;
    use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
    use tracing_subscriber::{fmt, registry};

    #[test]
    fn a_window_passes_a_number_of_events_and_counts_the_others() {
        let begin = Instant::now();
        let mut window = Window { began: begin, events: 0 };
        let logged = (0..1_000).filter(|_| window.count(begin).0).count();
        assert_eq!(logged, EVENTS_MAX as usize);
        assert_eq!(window.count(begin + WINDOW), (true, 1_000 - EVENTS_MAX));
        assert_eq!(window.count(begin + WINDOW), (true, 0));
    }

    #[test]
    fn repeated_errors_are_left_out_and_other_events_are_not() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        let file = Arc::new(RotatingFile::open(&path, 1 << 20, StandardError::Stays).expect("opened"));
        let limit = RepeatLimit::new(Arc::clone(&file));
        let layer = fmt::layer().with_ansi(false).with_writer(LogWriter(file)).with_filter(limit);
        tracing::subscriber::with_default(registry().with(layer), || {
            for number in 0..10_000 {
                tracing::error!(number, "the disk is gone");
            }
            tracing::error!("another error");
            tracing::info!(target: "h2", "a header of a request");
        });
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text.matches("the disk is gone").count(), EVENTS_MAX as usize);
        assert!(text.contains("another error") && !text.contains("a header"), "{text}");
    }
}
