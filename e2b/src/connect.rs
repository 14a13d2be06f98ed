//! The Connect protocol: unary calls and streams over HTTP.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method as Verb, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use prost::{Message, Name};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::body::Body;

use crate::codec::Codec;
use crate::envelope::{END, Envelopes, MESSAGE_BYTES_MAX, framed};
use crate::gzip;
use crate::refusal::{Refusal, json_answer};

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const KEEPALIVE: HeaderName = HeaderName::from_static("keepalive-ping-interval");
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);
const KEEPALIVE_SECONDS_MAX: u64 = 600;
/// How long the message of a request may take to arrive.
const MESSAGE_WITHIN: Duration = Duration::from_secs(60);
/// Limit on messages that wait for a slow reader.
const QUEUE: usize = 16;
const STREAM_PREFIX: &str = "application/connect+";

/// Whether a method has one message each way, or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Unary,
    Stream,
}

/// One call.
pub(crate) struct Rpc {
    codec: Codec,
    body: Body,
    is_gzip: bool,
    /// How long the client waits.
    pub(crate) timeout: Option<Duration>,
    /// Time without an event after which a keepalive message is sent.
    pub(crate) keepalive: Duration,
}

impl Rpc {
    /// Reads the head of a call; the error is the answer.
    pub(crate) fn new(shape: Shape, head: &Parts, body: Body) -> Result<Self, Box<Response<Body>>> {
        if head.method != Verb::POST {
            let mut response =
                json_answer(StatusCode::METHOD_NOT_ALLOWED, &json!({"code": 405, "message": "send POST"}));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return Err(Box::new(response));
        }
        let Some(codec) = codec_of(shape, &head.headers) else { return Err(Box::new(unsupported(shape))) };
        let refuse = |refusal: Refusal| Box::new(answer_refusal(shape, codec, refusal));
        let version = head.headers.get(PROTOCOL_VERSION).map(HeaderValue::as_bytes);
        if version.is_some_and(|version| version != b"1") {
            return Err(refuse(Refusal::invalid("connect-protocol-version: 1 is served")));
        }
        let encoding = match shape {
            Shape::Unary => CONTENT_ENCODING,
            Shape::Stream => STREAM_ENCODING,
        };
        let is_gzip = match text(&head.headers, &encoding) {
            None | Some("" | "identity") => false,
            Some("gzip") => true,
            Some(other) => {
                let message = format!("{encoding}: `{}` is not served; send gzip or identity", other.escape_debug());
                return Err(refuse(Refusal::new(Code::Unimplemented, message)));
            }
        };
        let timeout = timeout(&head.headers).map_err(refuse)?;
        Ok(Self { codec, body, is_gzip, timeout, keepalive: keepalive(&head.headers) })
    }

    /// Answers a unary call.
    pub(crate) async fn unary<Q: Message + Name + Default, A: Message + Name>(
        self,
        work: impl AsyncFnOnce(Q) -> Result<A, Refusal>,
    ) -> Response<Body> {
        let codec = self.codec;
        let request = match self.whole().await.and_then(|bytes| codec.decode(&bytes)) {
            Ok(request) => request,
            Err(refusal) => return refusal.into_connect(),
        };
        match work(request).await {
            Ok(message) => answer(codec.unary_type(), Body::new(Full::new(codec.encode(&message)))),
            Err(refusal) => refusal.into_connect(),
        }
    }

    /// Reads the whole body of a unary call, and decompresses it.
    async fn whole(self) -> Result<Bytes, Refusal> {
        let collected =
            tokio::time::timeout(MESSAGE_WITHIN, Limited::new(self.body, MESSAGE_BYTES_MAX).collect()).await;
        let bytes = match collected.map_err(|_| late())? {
            Ok(collected) => collected.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                return Err(gzip::too_long(MESSAGE_BYTES_MAX));
            }
            Err(error) => return Err(Refusal::invalid(format!("the request ended early: {error}"))),
        };
        match self.is_gzip && !bytes.is_empty() {
            true => gzip::decompress(&bytes, MESSAGE_BYTES_MAX),
            false => Ok(bytes),
        }
    }

    /// Answers a stream. The work gets the only message of the request, and goes on when the client has left.
    pub(crate) async fn stream<Q, A, W>(self, work: impl FnOnce(Q, Events<A>) -> W + Send + 'static) -> Response<Body>
    where
        Q: Message + Name + Default + Send,
        A: Message + Name,
        W: Future<Output = Result<(), Refusal>> + Send + 'static,
    {
        let codec = self.codec;
        let mut envelopes = Envelopes::new(self.body, self.is_gzip);
        let first = async {
            let first = envelopes.next().await?.ok_or_else(|| Refusal::invalid("the request has no message"))?;
            match envelopes.next().await? {
                None => codec.decode(&first),
                Some(_) => Err(Refusal::invalid("the request has more than one message")),
            }
        };
        let request = match tokio::time::timeout(MESSAGE_WITHIN, first).await.unwrap_or_else(|_| Err(late())) {
            Ok(request) => request,
            Err(refusal) => return answer_refusal(Shape::Stream, codec, refusal),
        };
        let (send, receive) = mpsc::channel(QUEUE);
        let events = Events { codec, send: send.clone(), message: PhantomData };
        let done = work(request, events);
        tokio::spawn(async move {
            let last = last_message(done.await.err().as_ref());
            // A client that has left needs no end.
            let _ = send.send(last).await;
        });
        let frames = ReceiverStream::new(receive).map(|bytes| Ok::<_, std::convert::Infallible>(Frame::data(bytes)));
        answer(codec.stream_type(), Body::new(StreamBody::new(frames)))
    }

    /// Answers a call whose request is a stream. The work takes the messages one by one.
    pub(crate) async fn client_stream<Q: Message + Name + Default, A: Message + Name + Default>(
        self,
        work: impl AsyncFnOnce(Requests<Q>) -> Result<(), Refusal>,
    ) -> Response<Body> {
        let codec = self.codec;
        let envelopes = Envelopes::new(self.body, self.is_gzip);
        let requests = Requests { envelopes, codec, message: PhantomData };
        if let Err(refusal) = work(requests).await {
            return answer_refusal(Shape::Stream, codec, refusal);
        }
        let message = framed(0, &codec.encode(&A::default()));
        let bytes = [message, last_message(None)].concat();
        answer(codec.stream_type(), Body::new(Full::new(Bytes::from(bytes))))
    }
}

/// The messages of a request that is a stream.
pub(crate) struct Requests<Q> {
    envelopes: Envelopes,
    codec: Codec,
    message: PhantomData<Q>,
}

impl<Q: Message + Name + Default> Requests<Q> {
    pub(crate) async fn next(&mut self) -> Result<Option<Q>, Refusal> {
        let message = self.envelopes.next().await?;
        message.map(|message| self.codec.decode(&message)).transpose()
    }
}

/// The events of a stream that is answered.
pub(crate) struct Events<A> {
    codec: Codec,
    send: mpsc::Sender<Bytes>,
    message: PhantomData<fn(A)>,
}

impl<A: Message + Name> Events<A> {
    /// Sends an event. Returns whether the client is still there.
    pub(crate) async fn send(&self, message: &A) -> bool {
        self.send.send(framed(0, &self.codec.encode(message))).await.is_ok()
    }

    /// Completes when the client has left.
    pub(crate) async fn closed(&self) {
        self.send.closed().await;
    }
}

/// Builds the last message of a stream, with the error if there is one.
fn last_message(refusal: Option<&Refusal>) -> Bytes {
    let last = refusal.map_or_else(|| json!({}), |refusal| json!({"error": refusal.connect_error()}));
    framed(END, last.to_string().as_bytes())
}

/// Builds the answer to a refused call. A stream has the refusal in its last message, unless the sandbox is gone and a proxy would
/// answer.
fn answer_refusal(shape: Shape, codec: Codec, refusal: Refusal) -> Response<Body> {
    match shape {
        Shape::Stream if !refusal.is_gone() => {
            answer(codec.stream_type(), Body::new(Full::new(last_message(Some(&refusal)))))
        }
        _ => refusal.into_connect(),
    }
}

/// Refuses a call before its messages are read.
pub(crate) fn refuse(shape: Shape, head: &Parts, refusal: Refusal) -> Response<Body> {
    answer_refusal(shape, codec_of(shape, &head.headers).unwrap_or(Codec::Json), refusal)
}

fn answer(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn unsupported(shape: Shape) -> Response<Body> {
    let types = match shape {
        Shape::Unary => "application/json, application/proto",
        Shape::Stream => "application/connect+json, application/connect+proto",
    };
    let message = format!("content-type: send one of {types}");
    let mut response =
        json_answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!({"code": "unimplemented", "message": message}));
    response.headers_mut().insert(ACCEPT_POST, HeaderValue::from_static(types));
    response.headers_mut().insert(ACCEPT, HeaderValue::from_static(types));
    response
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Returns the codec that the content type names; `None` if the content type does not fit the shape of the call.
fn codec_of(shape: Shape, headers: &HeaderMap) -> Option<Codec> {
    let named = text(headers, &CONTENT_TYPE)?;
    let named = named.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let word = match shape {
        Shape::Unary => named.strip_prefix("application/")?,
        Shape::Stream => named.strip_prefix(STREAM_PREFIX)?,
    };
    Codec::of_word(word)
}

fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    let Some(given) = text(headers, &TIMEOUT) else { return Ok(None) };
    let is_number = given.len() <= 10 && !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit());
    let milliseconds = given.parse().ok().filter(|_| is_number);
    let wrong = || Refusal::invalid("connect-timeout-ms: at most ten digits");
    milliseconds.map(|milliseconds| Some(Duration::from_millis(milliseconds))).ok_or_else(wrong)
}

fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = text(headers, &KEEPALIVE).and_then(|given| given.parse().ok());
    seconds.map_or(KEEPALIVE_DEFAULT, |seconds: u64| Duration::from_secs(seconds.clamp(1, KEEPALIVE_SECONDS_MAX)))
}

fn late() -> Refusal {
    Refusal::new(Code::DeadlineExceeded, "the message of the request did not arrive in time")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::wire::process::{ListRequest, ListResponse, StartRequest, StartResponse};

    fn head(content_type: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::post("/process.Process/List").header(CONTENT_TYPE, content_type);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    async fn list(head: &Parts, body: &[u8]) -> (StatusCode, String) {
        let body = Body::new(Full::new(Bytes::copy_from_slice(body)));
        let response = match Rpc::new(Shape::Unary, head, body) {
            Ok(rpc) => rpc.unary(async |_: ListRequest| Ok(ListResponse::default())).await,
            Err(response) => *response,
        };
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn start(head: &Parts, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
        let body = Body::new(Full::new(Bytes::from(body)));
        let response = match Rpc::new(Shape::Stream, head, body) {
            Ok(rpc) => {
                rpc.stream(|_: StartRequest, events: Events<StartResponse>| async move {
                    events.send(&StartResponse::default()).await;
                    Ok(())
                })
                .await
            }
            Err(response) => *response,
        };
        let status = response.status();
        (status, response.into_body().collect().await.expect("a body").to_bytes().to_vec())
    }

    #[tokio::test]
    async fn a_unary_call_is_answered_in_its_own_form() {
        assert_eq!(list(&head("application/json", &[]), b"{}").await, (StatusCode::OK, "{}".to_owned()));
        assert_eq!(list(&head("application/json; charset=utf-8", &[]), b"").await.0, StatusCode::OK);
        assert_eq!(list(&head("application/proto", &[]), b"").await, (StatusCode::OK, String::new()));
    }

    #[tokio::test]
    async fn wrong_content_types_versions_encodings_and_timeouts_are_refused() {
        for wrong in ["text/plain", "application/grpc", "application/connect+json", "application/", ""] {
            assert_eq!(list(&head(wrong, &[]), b"{}").await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{wrong}");
        }
        let json = "application/json";
        for (name, value, status) in [
            ("connect-protocol-version", "2", StatusCode::BAD_REQUEST),
            ("content-encoding", "br", StatusCode::NOT_IMPLEMENTED),
            ("connect-timeout-ms", "-1", StatusCode::BAD_REQUEST),
            ("connect-timeout-ms", "99999999999", StatusCode::BAD_REQUEST),
            ("connect-timeout-ms", "", StatusCode::BAD_REQUEST),
        ] {
            assert_eq!(list(&head(json, &[(name, value)]), b"{}").await.0, status, "{name}: {value}");
        }
        let (status, body) = list(&head(json, &[]), b"[").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body.contains("invalid_argument"), "{body}");
        let huge = vec![b' '; MESSAGE_BYTES_MAX + 1];
        assert_eq!(list(&head(json, &[]), &huge).await.0, StatusCode::TOO_MANY_REQUESTS);
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_last_message() {
        let stream = head("application/connect+json", &[]);
        let (status, body) = start(&stream, framed(0, b"{}").to_vec()).await;
        assert_eq!((status, body), (StatusCode::OK, [framed(0, b"{}"), framed(END, b"{}")].concat()));
    }

    #[tokio::test]
    async fn a_malformed_stream_is_refused_in_its_last_message() {
        let stream = head("application/connect+json", &[]);
        let many = [framed(0, b"{}"), framed(0, b"{}")].concat();
        for wrong in [Vec::new(), many, framed(0, b"x").to_vec(), vec![0, 0xff, 0xff, 0xff, 0xff]] {
            let (status, body) = start(&stream, wrong).await;
            assert_eq!((status, body[0]), (StatusCode::OK, END));
            assert!(String::from_utf8_lossy(&body[5..]).starts_with("{\"error\":{\"code\":"), "{body:?}");
        }
        assert_eq!(start(&head("application/json", &[]), Vec::new()).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }

    #[test]
    fn keepalives_have_bounds() {
        for (given, seconds) in [("50", 50), ("0", 1), ("999999", 600), ("x", 90)] {
            let headers = head("a/b", &[("keepalive-ping-interval", given)]).headers;
            assert_eq!(keepalive(&headers).as_secs(), seconds, "{given}");
        }
    }
}
