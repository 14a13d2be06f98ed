//! Prometheus metrics of sandboxes.

use std::time::Duration;

use amalgam_sandbox::SandboxState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing::warn;

use super::Sandboxes;

/// The upper bounds of the histogram of creation times, in seconds.
const SECONDS: [f64; 10] = [0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// Metrics of sandboxes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SandboxMetrics {
    states: Family<StateLabels, Gauge>,
    creations: Counter,
    failures: Counter,
    durations: Histogram,
    disconnected_agents: Gauge,
    port_connections: Gauge,
    connections_refused: Counter,
}

impl SandboxMetrics {
    pub(crate) fn new() -> Self {
        let states: Family<StateLabels, Gauge> = Family::default();
        for state in SandboxState::ALL {
            states.get_or_create(&StateLabels { state: state.word() }).set(0);
        }
        Self {
            states,
            creations: Counter::default(),
            failures: Counter::default(),
            durations: Histogram::new(SECONDS),
            disconnected_agents: Gauge::default(),
            port_connections: Gauge::default(),
            connections_refused: Counter::default(),
        }
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("sandbox_total", "Sandboxes by state", self.states.clone());
        // The encoder appends `_total` to counters.
        registry.register(
            "sandbox_creation",
            "Creations that succeeded or failed, without refused ones",
            self.creations.clone(),
        );
        registry.register("sandbox_creation_failures", "Creations that failed", self.failures.clone());
        registry.register(
            "sandbox_create_duration_seconds",
            "Duration of creations that succeeded",
            self.durations.clone(),
        );
        registry.register(
            "sandbox_agents_disconnected",
            "Running sandboxes whose agent is not connected",
            self.disconnected_agents.clone(),
        );
        registry.register(
            "sandbox_port_connections",
            "Connections to ports of sandboxes",
            self.port_connections.clone(),
        );
        registry.register(
            "sandbox_connections_refused",
            "Connections of sandboxes to hosts that they may not reach",
            self.connections_refused.clone(),
        );
    }

    /// Counts a refused connection of a sandbox to a host that it may not reach.
    pub(super) fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// Counts a creation that succeeded or failed, and the duration of one that succeeded.
    pub(crate) fn created(&self, is_success: bool, took: Duration) {
        self.creations.inc();
        match is_success {
            true => self.durations.observe(took.as_secs_f64()),
            false => {
                self.failures.inc();
            }
        }
    }
}

impl Sandboxes {
    /// Returns the metrics. [`Sandboxes::measure`] updates the gauges.
    pub(crate) fn metrics(&self) -> &SandboxMetrics {
        &self.inner.metrics
    }

    /// Updates the gauges: sandboxes by state, disconnected agents and connections to ports.
    pub(crate) async fn measure(&self) {
        if self.inner.parts.is_none() {
            return;
        }
        let counts = match self.inner.catalog.count_sandboxes().await {
            Ok(counts) => counts,
            Err(error) => return warn!(%error, "sandboxes were not counted"),
        };
        let metrics = &self.inner.metrics;
        for state in SandboxState::ALL {
            let count = counts.iter().filter(|(_, found, _)| *found == state).map(|(_, _, count)| count).sum();
            metrics.states.get_or_create(&StateLabels { state: state.word() }).set(count);
        }
        let (disconnected, connections) = {
            let living = self.inner.living.lock();
            let disconnected = living.values().filter(|living| !living.link.is_connected()).count();
            (disconnected, living.values().map(|living| living.link.port_connections()).sum::<usize>())
        };
        metrics.port_connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
        metrics.disconnected_agents.set(i64::try_from(disconnected).unwrap_or(i64::MAX));
    }
}
