//! gRPC calls made of REST requests.

use amalgam_server::api::ACTOR_HEADER;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, TE};
use http::{HeaderMap, HeaderValue, Method as Verb, Request};
use http_body_util::Full;
use prost::Message;
use tonic::body::Body;

use crate::gate::{PROJECT_HEADER, REQUEST_ID_HEADER};
use crate::trace::TRACEPARENT;

/// Headers of a REST request that are copied to its gRPC call.
const PASSED_ON: [HeaderName; 8] = [
    HeaderName::from_static(ACTOR_HEADER),
    AUTHORIZATION,
    HOST,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static(PROJECT_HEADER),
    HeaderName::from_static(REQUEST_ID_HEADER),
    HeaderName::from_static("grpc-timeout"),
    HeaderName::from_static(TRACEPARENT),
];

/// Builds a gRPC call of a method, `package.Service/Method`, with the headers of a REST request.
pub(crate) fn grpc_call(method: &str, headers: &HeaderMap, bytes: Bytes) -> Request<Body> {
    let mut request = Request::new(Body::new(Full::new(bytes)));
    *request.method_mut() = Verb::POST;
    // Names of methods are valid URL paths.
    *request.uri_mut() = format!("/{method}").parse().unwrap_or_default();
    let to = request.headers_mut();
    to.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    to.insert(TE, HeaderValue::from_static("trailers"));
    for name in PASSED_ON {
        if let Some(value) = headers.get(&name) {
            to.insert(name, value.clone());
        }
    }
    request
}

/// Encodes a message as a frame of a gRPC stream: a flag, the length and the bytes.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.freeze()
}
