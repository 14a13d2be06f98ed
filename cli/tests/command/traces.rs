//! Traces of a server, as a collector gets them.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::scratch::Scratch;
use crate::served::{Served, key};

const WITHIN: Duration = Duration::from_secs(30);

/// A collector that hands over everything it gets.
struct Collector {
    runtime: tokio::runtime::Runtime,
    address: SocketAddr,
    received: Receiver<ExportTraceServiceRequest>,
}

struct Receiving(std::sync::mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Receiving {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let _ = self.0.send(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (send, received) = channel();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let service = TraceServiceServer::new(Receiving(send));
        let serving = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { runtime, address, received }
    }

    /// Waits for a span that fits, and returns it with everything that arrived until then.
    fn wait_for(&self, fits: impl Fn(&Span) -> bool) -> (Span, Vec<ExportTraceServiceRequest>) {
        let mut all = Vec::new();
        loop {
            match self.received.recv_timeout(WITHIN) {
                Ok(batch) => all.push(batch),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!("no such span: {all:?}"),
            }
            let found = spans(&all).find(|span| fits(span)).cloned();
            if let Some(span) = found {
                return (span, all);
            }
        }
    }
}

fn spans(batches: &[ExportTraceServiceRequest]) -> impl Iterator<Item = &Span> {
    let scopes = batches.iter().flat_map(|batch| &batch.resource_spans).flat_map(|resource| &resource.scope_spans);
    scopes.flat_map(|scope| &scope.spans)
}

fn text(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn calls_are_spans_of_the_traces_of_their_callers_and_hold_no_secret() {
    let collector = Collector::start();
    let scratch = Scratch::new();
    let key = key(&scratch, "write");
    // The log takes no spans here, and the collector gets them all the same.
    let server = Served::with(&scratch, &format!("--data ../data --otlp-endpoint http://{}", collector.address));
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let curl = |arguments: &str| {
        scratch.run(&format!(
            "curl -sS -o /dev/null -H 'X-API-Key: {key}' -H 'X-Request-Id: mine-1' -H 'traceparent: 00-{trace}-{parent}-01' {arguments}"
        ))
    };
    curl(&format!("-d '{{\"workspaceId\": \"secret-name\"}}' {}/api/v1/workspaces", server.url));
    let (span, mut all) = collector.wait_for(|span| span.name.ends_with("WorkspaceService/CreateWorkspace"));
    assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (trace, parent));
    assert_eq!(text(&span.attributes, "rpc.method"), "CreateWorkspace");
    assert_eq!(text(&span.attributes, "rpc.grpc.status_code"), "0");
    assert_eq!(text(&span.attributes, "amalgam.request_id"), "mine-1");
    assert_eq!(text(&span.attributes, "amalgam.agent"), "ann");
    let resource = all[0].resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(text(&resource.attributes, "service.name"), "amalgam");
    // The work of the store is below the span of the call.
    let is_child = |child: &Span| child.name == "call" && child.parent_span_id == span.span_id;
    if !spans(&all).any(is_child) {
        all.extend(collector.wait_for(is_child).1);
    }
    // A call without a key is a span, too, and so is the last one before the end.
    scratch.run(&format!("curl -sS -o /dev/null -H 'X-Request-Id: last' {}/api/v1/workspaces", server.url));
    server.stop();
    let (last, more) = collector.wait_for(|span| text(&span.attributes, "amalgam.request_id") == "last");
    assert_eq!(text(&last.attributes, "rpc.grpc.status_code"), "16", "UNAUTHENTICATED");
    assert_ne!(hex(&last.trace_id), trace, "a trace of its own");
    all.extend(more);
    let secret = key.rsplit('_').next().expect("a secret");
    assert!(!format!("{all:?}").contains(secret), "the key is in no span");
    collector.runtime.shutdown_background();
}

#[test]
fn a_collector_that_does_not_answer_stops_nobody() {
    let scratch = Scratch::new();
    let key = key(&scratch, "write");
    let server = Served::with(&scratch, "--data ../data --otlp-endpoint http://127.0.0.1:9");
    for name in ["a", "b", "c"] {
        scratch.run(&format!(
            "curl -sS --fail-with-body -o /dev/null -m 10 -H 'X-API-Key: {key}' -d '{{\"workspaceId\": \"{name}\"}}' {}/api/v1/workspaces",
            server.url
        ));
    }
    drop(server);
    let wrong = scratch.output("amalgam serve --listen 127.0.0.1:0 --data ../data --otlp-endpoint collector:4317");
    assert_eq!(wrong.status.code(), Some(2), "{}", String::from_utf8_lossy(&wrong.stderr));
}
