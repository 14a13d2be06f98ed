//! The log of a server in the foreground, and its traces.

use std::io;

use tracing::{Level, Metadata, Subscriber, warn};
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{fmt, registry};

use super::repeats::is_ours;
use super::traces::Traces;
use super::{LogOptions, parse};

impl LogOptions {
    /// Starts logging JSON lines to standard error, for a server in the foreground. With `traces`, all spans also go to a
    /// collector, independently of the filter of the log.
    pub fn log_server(&self, traces: Option<&Traces>) {
        let ours = filter_fn(|metadata| is_ours(metadata.target()));
        let (filter, problem) = parse(self.filter.as_deref());
        let _ = match traces {
            None => {
                let layers = registry().with(filter).with(json_lines().with_filter(ours));
                tracing::subscriber::set_global_default(layers)
            }
            Some(traces) => {
                let is_sent = |metadata: &Metadata<'_>| {
                    metadata.is_span() && is_ours(metadata.target()) && *metadata.level() <= Level::INFO
                };
                let layers = registry().with(traces.layer().with_filter(filter_fn(is_sent)));
                let layers = layers.with(json_lines().with_filter(filter.and(ours)));
                tracing::subscriber::set_global_default(layers)
            }
        };
        problem.iter().for_each(|problem| warn!("{problem}"));
    }
}

/// Returns a layer that writes JSON lines to standard error.
fn json_lines<S: Subscriber + for<'span> LookupSpan<'span>>() -> impl Layer<S> {
    fmt::layer().json().flatten_event(true).with_writer(io::stderr)
}
