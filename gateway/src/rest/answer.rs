//! Answers of the REST API: gRPC responses as JSON, as a stream of lines or of events, or as an error body.

use amalgam_proto::{Failure, Reason};
use bytes::{Buf as _, Bytes, BytesMut};
use data_encoding::BASE64;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

use super::json::to_json;
use crate::error_code::ErrorCode;
use crate::gate::REQUEST_ID_HEADER;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The bytes before each message of a gRPC stream: a flag and the length.
const FRAME_HEADER_BYTES: usize = 5;
/// Maximum size of a message that is read.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of messages that are queued for a slow client.
const QUEUE: usize = 8;
/// Interval of keep-alive comments on an idle stream of events.
const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(15);

/// The form of a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamForm {
    /// One JSON object in each line.
    Lines,
    /// Server-sent events.
    Events,
    /// The bytes of the field `data` of all messages, one after another.
    Raw,
}

impl StreamForm {
    /// Returns the form that the `Accept` header of a request selects.
    pub(crate) fn of(headers: &HeaderMap, output: &MessageDescriptor) -> Self {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let has_data = output.get_field_by_name("data").is_some_and(|field| matches!(field.kind(), Kind::Bytes));
        let wants_bytes =
            ["text/plain", "text/x-diff", "application/octet-stream"].iter().any(|one| accept.contains(one));
        match () {
            () if accept.contains("text/event-stream") => Self::Events,
            () if has_data && wants_bytes => Self::Raw,
            () => Self::Lines,
        }
    }

    fn content_type(self) -> HeaderValue {
        match self {
            Self::Lines => HeaderValue::from_static("application/x-ndjson"),
            Self::Events => HeaderValue::from_static("text/event-stream"),
            Self::Raw => HeaderValue::from_static("text/plain; charset=utf-8"),
        }
    }

    fn message(self, value: &Value, id: Option<String>) -> Bytes {
        match self {
            Self::Lines => format!("{value}\n").into(),
            Self::Events => {
                let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
                // Only events of commands have an SSE event name.
                let name = value.get("commandId").and(value.get("type")).and_then(Value::as_str);
                let name = name.map_or(String::new(), |name| format!("event: {name}\n"));
                format!("{id}{name}data: {value}\n\n").into()
            }
            // The field `data` is base64 in the JSON form of messages.
            Self::Raw => {
                let text = value.get("data").and_then(Value::as_str).unwrap_or_default();
                BASE64.decode(text.as_bytes()).unwrap_or_default().into()
            }
        }
    }

    fn error(self, value: &Value) -> Bytes {
        match self {
            Self::Lines => format!("{value}\n").into(),
            Self::Events => format!("event: error\ndata: {value}\n\n").into(),
            Self::Raw => Bytes::new(),
        }
    }
}

/// Builds a response with a JSON body.
pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from(format!("{value}\n")))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// Returns the error code and the JSON body for a failed status.
fn error_body(status: &Status, request_id: &str) -> (ErrorCode, Value) {
    let failure = Failure::of_status(status);
    let code = error_code(status.code(), failure.as_ref().map(|failure| failure.reason));
    let mut details = serde_json::Map::new();
    if let Some(failure) = failure {
        details.insert("reason".to_owned(), failure.reason.word().into());
        details.extend(failure.details.into_iter().map(|(key, value)| (key, Value::String(value))));
    }
    (code, code.body(status.message(), &Value::Object(details), request_id))
}

/// Builds the error response of a call that failed.
pub(crate) fn error_answer(status: &Status, headers: &HeaderMap) -> Response<Body> {
    let request_id = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (code, body) = error_body(status, request_id);
    let mut response =
        json_answer(StatusCode::from_u16(code.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body);
    copy_headers(headers, response.headers_mut());
    let seconds = status.metadata().get(crate::status::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(seconds) = seconds.or((code.http_status == 503).then(|| HeaderValue::from_static("1"))) {
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
    if code.http_status == 401 {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Copies the id of the request into other headers.
pub(crate) fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    if let Some(id) = from.get(REQUEST_ID_HEADER) {
        to.insert(REQUEST_ID_HEADER, id.clone());
    }
}

/// Maps a gRPC code and a reason to an error code of the REST API. The reason takes precedence.
fn error_code(code: Code, reason: Option<Reason>) -> ErrorCode {
    match reason {
        Some(Reason::KeyExpired) => return ErrorCode::KEY_EXPIRED,
        Some(Reason::KeyRevoked) => return ErrorCode::KEY_REVOKED,
        Some(Reason::LocalOnly) => return ErrorCode::LOCAL_ONLY,
        Some(Reason::RateLimited) => return ErrorCode::RATE_LIMITED,
        Some(Reason::Purged) => return ErrorCode::GONE,
        Some(Reason::RequestReused) => return ErrorCode::REQUEST_ID_REUSED,
        Some(Reason::Full) => return ErrorCode::NO_SPACE,
        Some(Reason::StaleHead) => return ErrorCode::MOVED,
        Some(Reason::SandboxNotFound) => return ErrorCode::SANDBOX_NOT_FOUND,
        Some(Reason::TemplateNotFound) => return ErrorCode::TEMPLATE_NOT_FOUND,
        Some(Reason::SandboxLimit) => return ErrorCode::SANDBOX_LIMIT_EXCEEDED,
        Some(Reason::LimitNotEnforced) => return ErrorCode::LIMIT_NOT_ENFORCED,
        Some(Reason::NotIsolated) => return ErrorCode::NOT_ISOLATED,
        Some(Reason::SandboxNotReady) => return ErrorCode::SANDBOX_NOT_READY,
        Some(Reason::PortUnreachable) => return ErrorCode::PORT_UNREACHABLE,
        Some(Reason::ProcessTimeout) => return ErrorCode::PROCESS_TIMEOUT,
        Some(Reason::CommandFailed) => return ErrorCode::COMMAND_FAILED,
        Some(Reason::CommandNotFound) => return ErrorCode::COMMAND_NOT_FOUND,
        Some(Reason::PtyNotFound) => return ErrorCode::PTY_NOT_FOUND,
        Some(Reason::PtyLimit) => return ErrorCode::PTY_LIMIT_EXCEEDED,
        // The path exists, but the state does not permit the call.
        Some(Reason::Unsupported) => return ErrorCode::NOT_POSSIBLE,
        // The bytes that the caller sent are damaged, not those of the store.
        Some(Reason::DamagedStream) => return ErrorCode::INVALID_ARGUMENT,
        _ => {}
    }
    match code {
        Code::Unauthenticated => ErrorCode::UNAUTHORIZED,
        Code::PermissionDenied => ErrorCode::FORBIDDEN,
        Code::NotFound => ErrorCode::NOT_FOUND,
        Code::AlreadyExists => ErrorCode::ALREADY_EXISTS,
        Code::Aborted => ErrorCode::MOVED,
        Code::FailedPrecondition => ErrorCode::NOT_POSSIBLE,
        Code::OutOfRange => ErrorCode::OUT_OF_RANGE,
        Code::DataLoss => ErrorCode::DAMAGED,
        Code::InvalidArgument => ErrorCode::INVALID_ARGUMENT,
        Code::ResourceExhausted => ErrorCode::TOO_MANY,
        Code::Unavailable => ErrorCode::UNAVAILABLE,
        Code::DeadlineExceeded => ErrorCode::DEADLINE_EXCEEDED,
        Code::Cancelled => ErrorCode::CANCELLED,
        Code::Unimplemented => ErrorCode::UNIMPLEMENTED,
        Code::Internal | Code::Unknown | Code::Ok => ErrorCode::INTERNAL_ERROR,
    }
}

/// The messages of a gRPC response, one after another.
pub(crate) struct Messages {
    body: Body,
    buffer: BytesMut,
    trailers: Option<HeaderMap>,
}

impl Messages {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), trailers: None }
    }

    /// Returns the next message, or `None` at the end of a stream that succeeded.
    ///
    /// # Errors
    /// The status with which the stream ended.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                Some(Err(status)) => return Err(status),
                None => return self.ended(),
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(header) = self.buffer.first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(None) };
        let [flag, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if flag != 0 || length > MESSAGE_BYTES_MAX {
            return Err(Status::internal("a message of the store is too large"));
        }
        if self.buffer.len() < FRAME_HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEADER_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    fn ended(&mut self) -> Result<Option<Bytes>, Status> {
        match self.trailers.take().and_then(|trailers| Status::from_header_map(&trailers)) {
            Some(status) if status.code() != Code::Ok => Err(status),
            Some(_) => Ok(None),
            None => Err(Status::internal("the answer ended early")),
        }
    }
}

/// Converts the response of a call with one message. `is_bare` leaves out the field around the resource.
pub(crate) async fn unary(output: &MessageDescriptor, is_bare: bool, response: Response<Body>) -> Response<Body> {
    let (head, body) = response.into_parts();
    match one_message(&head.headers, body).await.and_then(|bytes| decode(output, bytes)) {
        Ok(mut value) => {
            if is_bare && let Value::Object(fields) = &mut value {
                value = fields.values_mut().next().map(Value::take).unwrap_or_default();
            }
            let mut answer = json_answer(StatusCode::OK, &value);
            copy_headers(&head.headers, answer.headers_mut());
            if let Some(etag) = etag_of(&value) {
                answer.headers_mut().insert(http::header::ETAG, etag);
            }
            answer
        }
        Err(status) => error_answer(&status, &head.headers),
    }
}

/// Returns the only message of a gRPC response.
pub(crate) async fn one_message(headers: &HeaderMap, body: Body) -> Result<Bytes, Status> {
    if let Some(status) = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok) {
        return Err(status);
    }
    let mut messages = Messages::new(body);
    let first = messages.next().await?.ok_or_else(|| Status::internal("the answer is empty"))?;
    // The trailers with the result come after the message.
    messages.next().await?;
    Ok(first)
}

fn decode(output: &MessageDescriptor, bytes: Bytes) -> Result<Value, Status> {
    let message = DynamicMessage::decode(output.clone(), bytes).map_err(|error| Status::internal(error.to_string()))?;
    to_json(&message).map_err(Status::internal)
}

/// Returns the etag of the only resource in a response for the `ETag` header, or `None` if there is no etag or more than one.
fn etag_of(value: &Value) -> Option<HeaderValue> {
    let Value::Object(fields) = value else { return None };
    let mut resources = fields.values().filter_map(|field| field.get("etag")?.as_str()).filter(|etag| !etag.is_empty());
    let etag = resources.next()?;
    if resources.next().is_some() { None } else { HeaderValue::from_str(&format!("\"{etag}\"")).ok() }
}

/// Converts the response of a call with a stream of messages.
pub(crate) async fn stream(output: &MessageDescriptor, response: Response<Body>, form: StreamForm) -> Response<Body> {
    let (head, body) = response.into_parts();
    if let Some(status) = Status::from_header_map(&head.headers).filter(|status| status.code() != Code::Ok) {
        return error_answer(&status, &head.headers);
    }
    let mut messages = Messages::new(body);
    // A call that fails at once gets an HTTP status of its own. A subscription may have no message for a long time.
    let first = match form {
        StreamForm::Lines | StreamForm::Raw => match messages.next().await {
            Ok(first) => first,
            Err(status) => return error_answer(&status, &head.headers),
        },
        StreamForm::Events => None,
    };
    let is_over = form != StreamForm::Events && first.is_none();
    let request_id = head.headers.get(REQUEST_ID_HEADER).and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, Status>>(QUEUE);
    let output = output.clone();
    tokio::spawn(async move {
        let mut next = first;
        let mut is_over = is_over;
        while !is_over {
            let bytes = match next.take() {
                Some(bytes) => Ok(Some(bytes)),
                None => tokio::select! {
                    found = messages.next() => found,
                    () = send.closed() => return,
                    () = tokio::time::sleep(KEEP_ALIVE), if form == StreamForm::Events => {
                        if send.send(Ok(Frame::data(Bytes::from_static(b": keep-alive\n\n")))).await.is_err() {
                            return;
                        }
                        continue;
                    }
                },
            };
            let text = match bytes.and_then(|bytes| bytes.map(|bytes| decode(&output, bytes)).transpose()) {
                Ok(Some(value)) => form.message(&value, position_of(&value)),
                Ok(None) => return,
                // The connection breaks, so that the client notices that bytes are missing.
                Err(status) if form == StreamForm::Raw => return drop(send.send(Err(status)).await),
                Err(status) => {
                    is_over = true;
                    form.error(&error_body(&status, &request_id).1)
                }
            };
            if send.send(Ok(Frame::data(text))).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(Body::new(StreamBody::new(ReceiverStream::new(receive))));
    answer.headers_mut().insert(CONTENT_TYPE, form.content_type());
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    copy_headers(&head.headers, answer.headers_mut());
    answer
}

/// Returns the position of an event, after which a subscriber can resume. `None` for messages without a position.
fn position_of(value: &Value) -> Option<String> {
    let of_operation = || value.get("operation")?.get("sequence")?.as_u64().map(|sequence| sequence.to_string());
    value.get("position").and_then(Value::as_str).map(str::to_owned).or_else(of_operation)
}

/// Builds an error response that does not come from a call. `headers` hold the id of the request.
pub(crate) fn error_of(code: ErrorCode, message: &str, headers: &HeaderMap) -> Response<Body> {
    let status = StatusCode::from_u16(code.http_status).unwrap_or(StatusCode::NOT_FOUND);
    let request_id = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut response = json_answer(status, &code.body(message, &json!({}), request_id));
    copy_headers(headers, response.headers_mut());
    response
}
