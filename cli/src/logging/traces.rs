//! Traces of a server: its spans, sent to a collector by OTLP over gRPC.
//!
//! A collector that does not answer holds nothing up: spans wait in a queue of limited length, and what does not fit is dropped.
//! The variables of OpenTelemetry apply (`OTEL_TRACES_SAMPLER`, `OTEL_BSP_SCHEDULE_DELAY`, `OTEL_EXPORTER_OTLP_HEADERS`, ...).

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tracing::{Subscriber, warn};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use crate::error::CliError;

/// The name of the service in its traces.
const SERVICE: &str = "amalgam";

/// Sends spans to a collector.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Prepares a connection, which is opened when the first spans are sent. The caller must be inside of a Tokio runtime.
    pub fn connect(endpoint: &str) -> Result<Self, CliError> {
        let wrong = |why: String| {
            CliError::usage(format!("otlp-endpoint: {why}")).hint("write a URL such as http://127.0.0.1:4317")
        };
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(wrong(format!("`{endpoint}` is no URL")));
        }
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.map_err(|error| wrong(error.to_string()))?;
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(SERVICE).with_attribute(version).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider })
    }

    /// Returns the layer that exports spans as OpenTelemetry traces.
    pub fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> OpenTelemetryLayer<S, Tracer> {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer(SERVICE))
    }

    /// Sends the queued spans, for some seconds at most.
    pub fn end(self) {
        if let Err(error) = self.provider.shutdown() {
            warn!(%error, "the last traces were not sent");
        }
    }
}
