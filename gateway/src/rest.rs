//! The REST API under `/api/v1`. A request becomes a gRPC call, which passes the gate like any other; its answer becomes JSON.

mod answer;
mod files;
mod grpc_call;
mod json;
pub(crate) mod openapi;
mod route;

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, IF_MATCH};
use http::{HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tonic::body::Body;

use crate::error_code::ErrorCode;
use crate::gate::{Gate, PROJECT_HEADER, Peer, UNKNOWN_METHOD};
use answer::{StreamForm, error_of, json_answer};
use grpc_call::{framed, grpc_call};
use json::{check_types, from_json, given_twice, object_of_query, set};
use route::{NoRoute, RouteMatch};

/// The root of the REST API.
pub(crate) const ROOT: &str = "/api/v1";
/// Maximum size of the body of a request.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum time that the body of a request may take to arrive.
const BODY_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);
/// Size from which the body of a request is parsed on a blocking thread.
const LONG_BODY_BYTES: usize = 256 << 10;
/// Maximum time and size for which the rest of a refused body is read.
const DISCARD_WITHIN: std::time::Duration = std::time::Duration::from_secs(2);
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// The header with the idempotency key of a call: retries with the same key run it once.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header with the last event that a subscriber has received.
const LAST_EVENT_ID: &str = "last-event-id";
/// A request that is refused before the gate: the error and its message.
struct Refusal(ErrorCode, String);

/// Answers a request below [`ROOT`].
pub(crate) async fn answer(gate: &Gate, request: Request<Body>, peer: Peer) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path().strip_prefix(ROOT).unwrap_or_default().to_owned();
    let path = match in_project(&path, &mut head.headers) {
        Ok(path) => path,
        Err(refusal) => return refused(gate, UNKNOWN_METHOD, &head.headers, peer, refusal).await,
    };
    if let Some(place) = files::place(path) {
        return files::answer(gate, place, &head, body, peer).await;
    }
    let path = &streamed(path, &head.headers);
    let found = match route::find(&head.method, path) {
        Ok(found) => found,
        Err(missing) => return without_route(gate, &head, path, peer, &missing).await,
    };
    let (method, output) = (found.route.method.name, found.route.descriptor.output());
    let is_bare = found.route.is_bare();
    // The body of a caller without a valid key is not read. The gate refuses the call, and records that.
    if gate.authenticate(&head.headers).await.is_err() {
        let call = grpc_call(method, &head.headers, Bytes::new());
        return answer::unary(&output, is_bare, gate.call(call, peer).await).await;
    }
    let call = match grpc_request(&found, &head, body).await {
        Ok(call) => call,
        Err(refusal) => return refused(gate, method, &head.headers, peer, refusal).await,
    };
    let response = gate.call(call, peer).await;
    match found.route.descriptor.is_server_streaming() {
        true => answer::stream(&output, response, StreamForm::of(&head.headers, &output)).await,
        false => answer::unary(&output, is_bare, response).await,
    }
}

/// Returns the path of a request. If the client accepts server-sent events, `process/run` becomes `process/stream`.
fn streamed<'a>(path: &'a str, headers: &HeaderMap) -> Cow<'a, str> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match path.strip_suffix("/process/run") {
        Some(sandbox) if accept.contains("text/event-stream") => Cow::Owned(format!("{sandbox}/process/stream")),
        _ => Cow::Borrowed(path),
    }
}

/// Removes `/projects/NAME` from the front of a path, and puts the name into the project header.
fn in_project<'a>(path: &'a str, headers: &mut HeaderMap) -> Result<&'a str, Refusal> {
    let Some((name, rest)) = path.strip_prefix("/projects/").and_then(|rest| rest.split_once('/')) else {
        return Ok(path);
    };
    // These paths are about the project itself.
    if matches!(rest, "usage" | "undelete" | "") {
        return Ok(path);
    }
    let invalid = || Refusal(ErrorCode::INVALID_ARGUMENT, "the name of the project is malformed".to_owned());
    let name = percent_decode_str(name).decode_utf8().map_err(|_| invalid())?;
    let value = HeaderValue::from_str(&name).map_err(|_| invalid())?;
    headers.insert(HeaderName::from_static(PROJECT_HEADER), value);
    Ok(&path[path.len() - rest.len() - 1..])
}

async fn without_route(
    gate: &Gate,
    head: &http::request::Parts,
    path: &str,
    peer: Peer,
    missing: &NoRoute,
) -> Response<Body> {
    let (verb, path) = (&head.method, path.escape_debug());
    let (refusal, allowed) = match missing {
        NoRoute::NotFound => {
            let message = format!("there is no {ROOT}{path}; {ROOT}/openapi.json lists all paths");
            (Refusal(ErrorCode::UNIMPLEMENTED, message), None)
        }
        NoRoute::Malformed => (Refusal(ErrorCode::INVALID_ARGUMENT, "the path is not UTF-8".to_owned()), None),
        NoRoute::OtherVerbs(verbs) => {
            let allowed = verbs.iter().map(Verb::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("{verb} {ROOT}{path} does not exist; it takes {allowed}");
            (Refusal(ErrorCode::METHOD_NOT_ALLOWED, message), HeaderValue::from_str(&allowed).ok())
        }
    };
    let mut response = refused(gate, UNKNOWN_METHOD, &head.headers, peer, refusal).await;
    if let Some(allowed) = allowed.filter(|_| response.status() == StatusCode::METHOD_NOT_ALLOWED) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// Answers a request that never becomes a call. It counts against the rate limit of its key, and is in the audit log.
async fn refused(
    gate: &Gate,
    method: &'static str,
    headers: &HeaderMap,
    peer: Peer,
    Refusal(code, message): Refusal,
) -> Response<Body> {
    match gate.refuse(method, code.grpc_code(), headers, peer).await {
        Ok(()) => error_of(code, &message, headers),
        Err(status) => answer::error_answer(&status, headers),
    }
}

/// Builds the gRPC call of a REST request from its query, body, path and headers.
async fn grpc_request(found: &RouteMatch, head: &http::request::Parts, body: Body) -> Result<Request<Body>, Refusal> {
    let invalid = |message: String| Refusal(ErrorCode::INVALID_ARGUMENT, message);
    let input = found.route.descriptor.input();
    refuse_encoded(&head.headers)?;
    let query = head.uri.query().map(pairs).transpose().map_err(invalid)?.unwrap_or_default();
    let mut object = object_of_query(&input, query).map_err(|why| invalid(format!("query: {why}")))?;
    let bytes = collected(&head.headers, body).await?;
    if !bytes.is_empty() {
        if head.method == Verb::GET {
            return Err(invalid("a GET request has no body".to_owned()));
        }
        let given = parsed(bytes).await.map_err(|error| invalid(format!("the body is not JSON: {error}")))?;
        let (Value::Object(all), Value::Object(given)) = (&mut object, given) else {
            return Err(invalid("the body is not a JSON object".to_owned()));
        };
        if let Some(twice) = given_twice(&input, &given) {
            return Err(invalid(format!("the field `{twice}` is given twice, under both of its names")));
        }
        check_types(&input, &given).map_err(invalid)?;
        for (name, value) in given {
            // A field of the query under its other name would take precedence.
            if let Some(field) = input.get_field_by_json_name(&name).or_else(|| input.get_field_by_name(&name)) {
                all.remove(field.name());
                all.remove(field.json_name());
            }
            all.insert(name, value);
        }
    }
    for (field, value) in &found.fields {
        set(&input, &mut object, field, value).map_err(|why| invalid(format!("path: {why}")))?;
    }
    for (field, value) in header_fields(&head.headers)? {
        if input.get_field_by_name(field).is_some() {
            set(&input, &mut object, field, &value).map_err(invalid)?;
        }
    }
    let message = from_json(&input, object).map_err(invalid)?;
    Ok(grpc_call(found.route.method.name, &head.headers, framed(&message)))
}

/// Parses a body as JSON. A large one is parsed on a blocking thread, so that other requests do not wait for it.
async fn parsed(bytes: Bytes) -> Result<Value, String> {
    let is_short = bytes.len() < LONG_BODY_BYTES;
    let parse = move || serde_json::from_slice(&bytes).map_err(|error| error.to_string());
    match is_short {
        true => parse(),
        false => tokio::task::spawn_blocking(parse).await.map_err(|error| error.to_string())?,
    }
}

/// Refuses a compressed body: a small one could expand to a very large one.
fn refuse_encoded(headers: &HeaderMap) -> Result<(), Refusal> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Ok(());
    }
    Err(Refusal(ErrorCode::UNSUPPORTED_MEDIA, "content-encoding: send the body as it is, not compressed".to_owned()))
}

/// Returns the fields of a request message that its headers set: `request_id`, `etag` and `after`.
fn header_fields(headers: &HeaderMap) -> Result<Vec<(&'static str, String)>, Refusal> {
    let mut fields = Vec::new();
    let text = |name: &str, value: &HeaderValue| {
        let message = format!("{name}: not ASCII");
        value.to_str().map(str::to_owned).map_err(|_| Refusal(ErrorCode::INVALID_ARGUMENT, message))
    };
    if let Some(value) = headers.get(IDEMPOTENCY_KEY) {
        fields.push(("request_id", text(IDEMPOTENCY_KEY, value)?));
    }
    if let Some(value) = headers.get(IF_MATCH) {
        fields.push(("etag", text("if-match", value)?.trim_matches('"').to_owned()));
    }
    if let Some(value) = headers.get(LAST_EVENT_ID) {
        fields.push(("after", text(LAST_EVENT_ID, value)?));
    }
    Ok(fields)
}

async fn collected(headers: &HeaderMap, mut body: Body) -> Result<Bytes, Refusal> {
    let too_large = || Refusal(ErrorCode::TOO_LARGE, format!("the body is larger than {} MiB", BODY_BYTES_MAX >> 20));
    let declared: Option<usize> = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|declared| declared > BODY_BYTES_MAX) {
        discard(body).await;
        return Err(too_large());
    }
    let collected = tokio::time::timeout(BODY_WITHIN, Limited::new(&mut body, BODY_BYTES_MAX).collect()).await;
    let late =
        || Refusal(ErrorCode::DEADLINE_EXCEEDED, format!("the body did not arrive within {} s", BODY_WITHIN.as_secs()));
    match collected.map_err(|_| late())? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            discard(body).await;
            Err(too_large())
        }
        Err(error) => Err(Refusal(ErrorCode::INVALID_ARGUMENT, format!("the body ended early: {error}"))),
    }
}

/// Reads and discards the rest of a body for a short time: many clients read the response only after they have sent everything.
async fn discard(mut body: Body) {
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > DISCARD_BYTES_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_WITHIN, reading).await;
}

/// Parses a URL query into pairs of names and values, percent-decoded.
fn pairs(query: &str) -> Result<Vec<(String, String)>, String> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned);
        decoded.map_err(|_| "the query is not UTF-8".to_owned())
    };
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decoded(name)?, decoded(value)?))
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect()
}

/// Returns the OpenAPI document as a response.
pub(crate) fn openapi_answer() -> Response<Body> {
    json_answer(StatusCode::OK, openapi::document())
}

/// Answers a request for a path that does not exist.
pub(crate) async fn not_found(gate: &Gate, headers: &HeaderMap, peer: Peer, message: &str) -> Response<Body> {
    refused(gate, UNKNOWN_METHOD, headers, peer, Refusal(ErrorCode::UNIMPLEMENTED, message.to_owned())).await
}

/// Builds the response to a request that is forbidden for every caller.
pub(crate) fn forbidden(headers: &HeaderMap, message: &str) -> Response<Body> {
    error_of(ErrorCode::FORBIDDEN, message, headers)
}

/// Builds the error response of a request that was refused.
pub(crate) fn failed(status: &tonic::Status, headers: &HeaderMap) -> Response<Body> {
    answer::error_answer(status, headers)
}
