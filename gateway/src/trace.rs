//! Spans of calls, for distributed traces: each continues the trace that its caller names by the W3C header `traceparent`.
//!
//! A span holds method, result, request id, agent and project. It holds no key, no argument and no path.

use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tonic::Code;
use tracing::field::Empty;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The header with the trace context of the caller.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// Creates the span of a call, as a child of the trace that the caller sent.
pub(crate) fn span(method: &'static str, headers: &HeaderMap) -> Span {
    let (service, name) = method.rsplit_once('/').unwrap_or(("", method));
    let span = info_span!(
        "request",
        otel.name = method,
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = name,
        rpc.grpc.status_code = Empty,
        amalgam.request_id = Empty,
        amalgam.agent = Empty,
        amalgam.project = Empty,
    );
    let parent = headers.get(TRACEPARENT).and_then(|value| parse(value.to_str().ok()?));
    if let Some(parent) = parent {
        // A span that is not sampled cannot have a parent.
        let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
    }
    span
}

/// Records the result of a call in its span. Does nothing for a disabled span.
pub(crate) fn record_end(span: &Span, code: Code, request_id: &str, agent: &str, project: &str) {
    if span.is_disabled() {
        return;
    }
    span.record("rpc.grpc.status_code", i64::from(code as i32));
    // Refusals are no errors of the server.
    if matches!(code, Code::Internal | Code::DataLoss | Code::Unknown | Code::Unavailable) {
        span.record("otel.status_code", "ERROR");
    }
    span.record("amalgam.request_id", request_id);
    span.record("amalgam.agent", agent);
    span.record("amalgam.project", project);
}

/// Parses a `traceparent`: version, trace id, span id and flags, in hex. Returns `None` if it is malformed.
fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    // Later versions may add parts; version 255 is not allowed, and version 0 has exactly these.
    let is_known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !is_known || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context =
        SpanContext::new(trace, span, TraceFlags::new(flags) & TraceFlags::SAMPLED, true, TraceState::default());
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_callers_are_read_and_malformed_ones_are_not() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let read = parse(&format!("00-{trace}-00f067aa0ba902b7-01")).expect("a context");
        assert_eq!((read.trace_id().to_string().as_str(), read.is_sampled(), read.is_remote()), (trace, true, true));
        assert!(!parse(&format!("00-{trace}-00f067aa0ba902b7-00")).expect("a context").is_sampled());
        assert!(parse(&format!("cc-{trace}-00f067aa0ba902b7-01-more")).is_some(), "a later version has more parts");
        for bad in [
            String::new(),
            "00".to_owned(),
            format!("00-{trace}-00f067aa0ba902b7"),
            format!("00-{trace}-00f067aa0ba902b7-01-more"),
            format!("ff-{trace}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()),
            format!("00-{trace}-00f067aa0ba902b7-0g"),
        ] {
            assert!(parse(&bad).is_none(), "{bad}");
        }
    }
}
