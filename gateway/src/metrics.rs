//! Metrics of the server in the text format of Prometheus.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use amalgam_cloud::CloudCalls;
use amalgam_server::NfsStatistics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::sandboxes::SandboxMetrics;

/// The upper bounds of the histogram of call durations, in seconds.
const SECONDS: [f64; 14] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    endpoint: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

/// The metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    calls: Family<CallLabels, Counter>,
    durations: Family<EndpointLabels, Histogram>,
    under_way: Gauge,
    connections: Gauge,
    authentication_failures: Counter,
    rate_limited: Counter,
    open_projects: Gauge,
    nfs_operations: Family<OperationLabels, Counter>,
    nfs_bytes: Family<DirectionLabels, Counter>,
    nfs_mounts: Gauge,
    cluster_requests: Family<OperationLabels, Counter>,
    cluster_cache_reads: Family<OperationLabels, Counter>,
    cluster_cache_bytes: Family<OperationLabels, Counter>,
    started: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Registers all metrics of the server, with those of sandboxes.
    pub(crate) fn new(started_seconds: f64, sandboxes: &SandboxMetrics) -> Self {
        let mut registry = Registry::default();
        sandboxes.register(&mut registry);
        let metrics = Self {
            calls: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            under_way: Gauge::default(),
            connections: Gauge::default(),
            authentication_failures: Counter::default(),
            rate_limited: Counter::default(),
            open_projects: Gauge::default(),
            nfs_operations: Family::default(),
            nfs_bytes: Family::default(),
            nfs_mounts: Gauge::default(),
            cluster_requests: Family::default(),
            cluster_cache_reads: Family::default(),
            cluster_cache_bytes: Family::default(),
            started: Gauge::default(),
            registry: Arc::default(),
        };
        metrics.started.set(started_seconds);
        // The encoder appends `_total` to counters.
        registry.register("api_request", "Calls that ended, by method and result", metrics.calls.clone());
        registry.register("api_request_duration_seconds", "Duration of calls by method", metrics.durations.clone());
        registry.register("amalgam_calls_running", "Calls that run", metrics.under_way.clone());
        registry.register("amalgam_connections", "Open connections", metrics.connections.clone());
        registry.register(
            "amalgam_authentication_failures",
            "Calls that were refused because of their key",
            metrics.authentication_failures.clone(),
        );
        registry.register(
            "amalgam_rate_limited",
            "Calls that were refused by a rate limit",
            metrics.rate_limited.clone(),
        );
        registry.register("amalgam_projects_open", "Open projects", metrics.open_projects.clone());
        registry.register("nfs_operations", "Calls of NFS clients by operation", metrics.nfs_operations.clone());
        registry.register("nfs_bytes", "Bytes from and to NFS clients", metrics.nfs_bytes.clone());
        registry.register("amalgam_nfs_mounts", "Mounts of NFS clients", metrics.nfs_mounts.clone());
        registry.register(
            "amalgam_cluster_requests",
            "Requests to the database and the bucket of the cluster",
            metrics.cluster_requests.clone(),
        );
        registry.register(
            "amalgam_cluster_cache_reads",
            "Objects of the cluster that were read, by the place where they were",
            metrics.cluster_cache_reads.clone(),
        );
        registry.register(
            "amalgam_cluster_cache_bytes",
            "Bytes of objects from caches and from the bucket of the cluster",
            metrics.cluster_cache_bytes.clone(),
        );
        registry.register(
            "process_start_time_seconds",
            "Start of the process, in seconds since 1970",
            metrics.started.clone(),
        );
        Self { registry: Arc::new(registry), ..metrics }
    }

    /// Counts a call as running.
    pub(crate) fn call_began(&self) {
        self.under_way.inc();
    }

    /// Counts a call as ended, with its method, its result and its duration.
    pub(crate) fn call_ended(&self, method: &'static str, code: Code, duration: Duration) {
        self.under_way.dec();
        self.calls.get_or_create(&CallLabels { endpoint: method, status: code_word(code) }).inc();
        self.durations.get_or_create(&EndpointLabels { endpoint: method }).observe(duration.as_secs_f64());
        if code == Code::Unauthenticated {
            self.authentication_failures.inc();
        }
    }

    /// Counts a call that a rate limit refused.
    pub(crate) fn limited(&self) {
        self.rate_limited.inc();
    }

    /// Counts an open connection until the returned value is dropped.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    /// Raises the NFS counters to those of the NFS server.
    fn count_nfs(&self, nfs: &NfsStatistics) {
        for (op, count) in &nfs.operations {
            raise(&self.nfs_operations.get_or_create(&OperationLabels { op }), *count);
        }
        for (direction, bytes) in [("in", nfs.received_bytes), ("out", nfs.sent_bytes)] {
            raise(&self.nfs_bytes.get_or_create(&DirectionLabels { direction }), bytes);
        }
        self.nfs_mounts.set(i64::try_from(nfs.mounts).unwrap_or(i64::MAX));
    }

    /// Raises the counters of requests to the cluster's database and bucket to their present values.
    pub(crate) fn count_cluster(&self, calls: &CloudCalls) {
        let CloudCalls { statements, puts, gets, deletes, cache } = *calls;
        for (op, count) in [("sql", statements), ("put", puts), ("get", gets), ("delete", deletes)] {
            raise(&self.cluster_requests.get_or_create(&OperationLabels { op }), count);
        }
        let reads = [
            ("memory", cache.memory_hits),
            ("disk", cache.disk_hits),
            ("miss", cache.misses),
            ("damaged", cache.damaged),
        ];
        for (op, count) in reads {
            raise(&self.cluster_cache_reads.get_or_create(&OperationLabels { op }), count);
        }
        for (op, count) in [("hit", cache.hit_bytes), ("bucket", cache.read_bytes)] {
            raise(&self.cluster_cache_bytes.get_or_create(&OperationLabels { op }), count);
        }
    }

    /// Updates the gauges and counters, and returns all metrics in the OpenMetrics text format.
    pub(crate) fn text(&self, open_projects: usize, nfs: Option<&NfsStatistics>) -> String {
        self.open_projects.set(i64::try_from(open_projects).unwrap_or(i64::MAX));
        if let Some(nfs) = nfs {
            self.count_nfs(nfs);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Raises a counter to `to`; never lowers it.
fn raise(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

/// A connection that counts until it is dropped.
pub(crate) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Returns the word of a result code in metrics.
fn code_word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_dashboards_expect() {
        let metrics = Metrics::new(5.0, &SandboxMetrics::new());
        metrics.call_began();
        metrics.call_ended("amalgam.v1.WorkspaceService/GetWorkspace", Code::Ok, Duration::from_millis(3));
        let nfs = NfsStatistics {
            operations: vec![("READ", 7), ("WRITE", 1)],
            received_bytes: 100,
            sent_bytes: 200,
            mounts: 1,
            ..NfsStatistics::default()
        };
        metrics.count_cluster(&CloudCalls { statements: 5, puts: 1, ..CloudCalls::default() });
        metrics.text(2, Some(&nfs));
        let text = metrics.text(2, Some(&nfs));
        assert!(
            text.contains("nfs_operations_total{op=\"READ\"} 7")
                && text.contains("nfs_bytes_total{direction=\"out\"} 200"),
            "{text}"
        );
        assert!(text.contains("amalgam_cluster_requests_total{op=\"sql\"} 5"), "{text}");
        let call = r#"api_request_total{endpoint="amalgam.v1.WorkspaceService/GetWorkspace",status="OK"} 1"#;
        assert!(text.contains(call), "{text}");
        assert!(text.contains("api_request_duration_seconds_bucket{le=\"0.005\","), "{text}");
        assert!(text.contains("amalgam_calls_running 0") && text.contains("amalgam_projects_open 2"), "{text}");
    }

    /// Returns all words in a text that begin with a prefix of this server's metrics.
    fn names_in(text: &str) -> std::collections::BTreeSet<String> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words = text.split(|letter: char| !is_name(letter));
        let prefixes = ["amalgam_", "api_", "sandbox_", "nfs_", "process_"];
        let ours = words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)));
        ours.map(str::to_owned).collect()
    }

    #[test]
    fn alerts_and_dashboards_use_only_metrics_that_are_exported() {
        let sandboxes = SandboxMetrics::new();
        sandboxes.created(true, Duration::from_millis(3));
        let metrics = Metrics::new(5.0, &sandboxes);
        metrics.call_began();
        metrics.call_ended("amalgam.v1.WorkspaceService/GetWorkspace", Code::Ok, Duration::from_millis(3));
        metrics.count_cluster(&CloudCalls::default());
        let nfs = NfsStatistics { operations: vec![("READ", 1)], ..NfsStatistics::default() };
        let exported = metrics.text(0, Some(&nfs));
        let described = |name: &str| {
            let bare = name.strip_suffix("_total").unwrap_or(name).trim_end_matches("_bucket");
            exported.contains(&format!("# TYPE {bare} ")) || exported.contains(&format!("# TYPE {name} "))
        };
        let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
        for (file, least) in [("prometheus-alerts.yaml", 8), ("grafana-dashboard.json", 14)] {
            let text = std::fs::read_to_string(packaging.join(file)).expect("the file");
            let names = names_in(&text);
            assert!(names.len() >= least, "{file}: {names:?}");
            let missing: Vec<_> = names.iter().filter(|name| !described(name)).collect();
            assert!(missing.is_empty(), "{file} uses metrics that nothing exports: {missing:?}");
        }
    }
}
