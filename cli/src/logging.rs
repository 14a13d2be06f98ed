//! The log: where events of this process go, and which of them.
//!
//! The process that holds a store writes to `log` in the store's home and rotates that file by size. Other commands log to standard
//! error, and only if `AMALGAM_LOG` is set. Events of other crates are never written: `h2` logs headers, for example.
//! `docs/LOGGING.md` describes levels, fields and files.

mod repeats;
mod rotation;
#[cfg(feature = "network")]
mod server_log;
mod tail;
#[cfg(feature = "network")]
mod traces;

pub use tail::last_lines;
#[cfg(feature = "network")]
pub use traces::Traces;

use std::io;
use std::path::Path;
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing::warn;
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::{fmt, registry};

use repeats::{RepeatLimit, is_ours};
use rotation::{LogWriter, RotatingFile, StandardError};

/// The environment variable with the filter of events, in the syntax of `tracing_subscriber::EnvFilter`.
pub const VARIABLE: &str = "AMALGAM_LOG";
/// The size at which a log file is rotated, unless the setting `log.max-size` says otherwise.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Which process logs to the file of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOwner {
    /// The background process: its standard error is the log file, and follows when that is rotated.
    Background,
    /// A command that opened the store itself. Its standard error belongs to the user.
    Command,
}

/// Options of the log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The value of [`VARIABLE`]; `None` if it is not set.
    pub filter: Option<String>,
    /// The size at which a file is rotated.
    pub file_bytes_max: u64,
}

impl LogOptions {
    /// Starts logging to a file.
    pub fn log_to_file(&self, path: &Path, owner: LogOwner) -> io::Result<()> {
        let stderr = match owner {
            LogOwner::Background => StandardError::Follows,
            LogOwner::Command => StandardError::Stays,
        };
        let file = Arc::new(RotatingFile::open(path, self.file_bytes_max, stderr)?);
        let limit = RepeatLimit::new(Arc::clone(&file));
        let layer = fmt::layer().with_ansi(false).with_writer(LogWriter(file)).with_filter(limit);
        let (filter, problem) = parse(self.filter.as_deref());
        // A second logger is refused. The first one stays.
        let _ = tracing::subscriber::set_global_default(registry().with(filter).with(layer));
        problem.iter().for_each(|problem| warn!("{problem}"));
        Ok(())
    }

    /// Starts logging to standard error, if [`VARIABLE`] is set.
    pub fn log_to_stderr(&self) {
        if self.filter.is_none() {
            return;
        }
        let layer = fmt::layer().with_ansi(false).with_writer(io::stderr);
        let layer = layer.with_filter(filter_fn(|metadata| is_ours(metadata.target())));
        let (filter, problem) = parse(self.filter.as_deref());
        let _ = tracing::subscriber::set_global_default(registry().with(filter).with(layer));
        problem.iter().for_each(|problem| warn!("{problem}"));
    }
}

/// Parses a log filter. For an invalid text, returns the default filter and a message about the problem.
fn parse(text: Option<&str>) -> (EnvFilter, Option<String>) {
    let default = || EnvFilter::default().add_directive(LevelFilter::INFO.into());
    match text.map(EnvFilter::try_new) {
        None => (default(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (default(), Some(format!("{VARIABLE} cannot be read, so `info` is used: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_falls_back_to_info() {
        assert_eq!(parse(None).0.to_string(), "info");
        let (filter, problem) = parse(Some("amalgam_server=debug"));
        assert_eq!((filter.to_string().as_str(), problem), ("amalgam_server=debug", None));
        let (filter, problem) = parse(Some("amalgam_server=loud"));
        assert_eq!(filter.to_string(), "info");
        assert!(problem.is_some_and(|problem| problem.starts_with("AMALGAM_LOG cannot be read")));
    }

    #[test]
    fn targets_of_other_crates_are_left_out() {
        assert!(is_ours("amalgam_server::call_log") && is_ours("amalgam::connect"));
        assert!(!is_ours("h2::codec") && !is_ours("tonic"));
    }
}
