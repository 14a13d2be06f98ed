//! Files by REST: `GET`, `HEAD`, `PUT` and `DELETE` of `/workspaces/{workspace}/files/{path}`, with ranges and etags.

use amalgam_proto::v1;
use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH,
    LAST_MODIFIED, RANGE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method as Verb, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use percent_encoding::percent_decode_str;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

use super::answer::{Messages, copy_headers, error_answer, json_answer, one_message};
use super::grpc_call::{framed, grpc_call};
use super::json::escape;
use super::{IDEMPOTENCY_KEY, Refusal, pairs, refuse_encoded, refused};
use crate::error_code::ErrorCode;
use crate::gate::{Gate, Peer};

const READ: &str = "amalgam.v1.FileService/ReadFile";
const STAT: &str = "amalgam.v1.FileService/StatFile";
const WRITE: &str = "amalgam.v1.FileService/WriteFile";
const REMOVE: &str = "amalgam.v1.FileService/RemoveFile";
/// The header with the BLAKE3 digest of a body, in hex. A write whose body has another digest is refused.
const DIGEST: &str = "amalgam-digest";
/// Maximum number of bytes of file data in one message.
const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of messages that are queued for a slow client.
const QUEUE: usize = 4;

/// The file that a request names.
pub(crate) struct FilePlace {
    workspace: String,
    path: String,
}

/// Returns the file that a path below the API's root names, or `None` if it names none.
pub(crate) fn place(path: &str) -> Option<FilePlace> {
    let (workspace, file) = path.strip_prefix("/workspaces/")?.split_once("/files/")?;
    if workspace.contains('/') {
        return None;
    }
    let workspace = percent_decode_str(workspace).decode_utf8().ok()?;
    let bytes: Vec<u8> = percent_decode_str(file).collect();
    Some(FilePlace { workspace: format!("workspaces/{workspace}"), path: escape(&bytes) })
}

/// The query parameters of a request.
#[derive(Default)]
struct Query {
    revision: String,
    mode: Option<u32>,
    recursive: bool,
}

impl Query {
    fn of(head: &Parts) -> Result<Self, Refusal> {
        let invalid = |message: String| Refusal(ErrorCode::INVALID_ARGUMENT, message);
        let mut query = Self::default();
        for (name, value) in head.uri.query().map(pairs).transpose().map_err(invalid)?.unwrap_or_default() {
            match (name.as_str(), value.as_str()) {
                ("revision", _) => query.revision = value,
                ("recursive", "true" | "1") => query.recursive = true,
                ("recursive", "false" | "0") => query.recursive = false,
                ("recursive", _) => return Err(invalid("recursive: it is `true` or `false`".to_owned())),
                ("mode", text) => {
                    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
                    query.mode = Some(mode.ok_or_else(|| invalid("mode: octal digits, as in 755".to_owned()))?);
                }
                _ => return Err(invalid(format!("query: there is no `{}` here", name.escape_debug()))),
            }
        }
        Ok(query)
    }
}

/// Answers a request about a file.
pub(crate) async fn answer(gate: &Gate, place: FilePlace, head: &Parts, body: Body, peer: Peer) -> Response<Body> {
    let query = match Query::of(head).and_then(|query| refuse_encoded(&head.headers).map(|()| query)) {
        Ok(query) => query,
        Err(refusal) => return refused(gate, STAT, &head.headers, peer, refusal).await,
    };
    match head.method {
        Verb::GET => read(gate, place, query, head, peer).await,
        Verb::HEAD => stat(gate, place, query, head, peer).await,
        Verb::PUT => write(gate, place, &query, head, body, peer).await,
        Verb::DELETE => remove(gate, place, &query, head, peer).await,
        _ => {
            let refusal = Refusal(ErrorCode::METHOD_NOT_ALLOWED, "a file takes GET, HEAD, PUT and DELETE".to_owned());
            let mut response = refused(gate, STAT, &head.headers, peer, refusal).await;
            if response.status() == StatusCode::METHOD_NOT_ALLOWED {
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE"));
            }
            response
        }
    }
}

async fn read(gate: &Gate, place: FilePlace, query: Query, head: &Parts, peer: Peer) -> Response<Body> {
    let range = head.headers.get(RANGE).and_then(|value| parse_range(value.to_str().ok()?));
    let (mut offset, mut length) = range.unwrap_or_default();
    if offset.is_none() && length.is_some() {
        // A suffix range: the offset depends on the size of the file, which is not known yet.
        match file_stat(gate, &place, &query, head, peer).await {
            Ok(file) => offset = Some(file.size.saturating_sub(length.take().unwrap_or_default())),
            Err(response) => return *response,
        }
    }
    let request = v1::FileServiceReadFileRequest {
        workspace: place.workspace,
        revision: query.revision,
        path: place.path,
        offset: offset.unwrap_or_default(),
        length: length.unwrap_or_default(),
        if_match: etag_header(&head.headers, &IF_MATCH),
    };
    let response = gate.call(grpc_call(READ, &head.headers, framed(&request)), peer).await;
    let (answered, body) = response.into_parts();
    if let Some(status) = Status::from_header_map(&answered.headers).filter(|status| status.code() != Code::Ok) {
        return error_answer(&status, &answered.headers);
    }
    let mut messages = Messages::new(body);
    let first = match next_read(&mut messages).await {
        Ok(Some(first)) => first,
        Ok(None) => return error_answer(&Status::internal("the answer is empty"), &answered.headers),
        Err(status) => return error_answer(&status, &answered.headers),
    };
    let file = first.file.clone().unwrap_or_default();
    let mut headers = file_headers(&file);
    copy_headers(&answered.headers, &mut headers);
    if matches_etag(&head.headers, &file.etag) {
        return with_headers(StatusCode::NOT_MODIFIED, headers, Body::empty());
    }
    let begin = offset.unwrap_or_default();
    let left = file.size.saturating_sub(begin);
    let sent = length.map_or(left, |length| left.min(length));
    let status = match range {
        Some(_) if sent == 0 => {
            insert(&mut headers, &CONTENT_RANGE, &format!("bytes */{}", file.size));
            return with_headers(StatusCode::RANGE_NOT_SATISFIABLE, headers, Body::empty());
        }
        Some(_) => {
            insert(&mut headers, &CONTENT_RANGE, &format!("bytes {begin}-{}/{}", begin + sent - 1, file.size));
            StatusCode::PARTIAL_CONTENT
        }
        None => StatusCode::OK,
    };
    insert(&mut headers, &CONTENT_LENGTH, &sent.to_string());
    with_headers(status, headers, streamed(first.data, messages))
}

/// Streams the data of a file as it arrives. An error breaks the connection, so that the client notices that bytes are missing.
fn streamed(first: Bytes, mut messages: Messages) -> Body {
    let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, Status>>(QUEUE);
    tokio::spawn(async move {
        let mut data = first;
        loop {
            if !data.is_empty() && send.send(Ok(Frame::data(data))).await.is_err() {
                return;
            }
            data = match next_read(&mut messages).await {
                Ok(Some(message)) => message.data,
                Ok(None) => return,
                Err(status) => return drop(send.send(Err(status)).await),
            };
        }
    });
    Body::new(StreamBody::new(ReceiverStream::new(receive)))
}

async fn next_read(messages: &mut Messages) -> Result<Option<v1::FileServiceReadFileResponse>, Status> {
    match messages.next().await? {
        Some(bytes) => decoded(bytes).map(Some),
        None => Ok(None),
    }
}

async fn stat(gate: &Gate, place: FilePlace, query: Query, head: &Parts, peer: Peer) -> Response<Body> {
    match file_stat(gate, &place, &query, head, peer).await {
        Ok(file) => {
            let mut headers = file_headers(&file);
            insert(&mut headers, &CONTENT_LENGTH, &file.size.to_string());
            with_headers(StatusCode::OK, headers, Body::empty())
        }
        Err(response) => *response,
    }
}

async fn file_stat(
    gate: &Gate,
    place: &FilePlace,
    query: &Query,
    head: &Parts,
    peer: Peer,
) -> Result<v1::FileStat, Box<Response<Body>>> {
    let (workspace, revision, path) = (place.workspace.clone(), query.revision.clone(), place.path.clone());
    let request = v1::StatFileRequest { workspace, revision, path };
    let (answered, body) = gate.call(grpc_call(STAT, &head.headers, framed(&request)), peer).await.into_parts();
    let found = one_message(&answered.headers, body).await.and_then(decoded::<v1::StatFileResponse>);
    let found = found.map_err(|status| Box::new(error_answer(&status, &answered.headers)))?;
    Ok(found.file.unwrap_or_default())
}

async fn write(gate: &Gate, place: FilePlace, query: &Query, head: &Parts, body: Body, peer: Peer) -> Response<Body> {
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let header = v1::WriteFileHeader {
        workspace: place.workspace,
        path: place.path,
        mode: query.mode,
        create_parents: true,
        if_match: etag_header(&head.headers, &IF_MATCH),
        if_absent: text(IF_NONE_MATCH.as_str()) == "*",
        offset: None,
        modify_time: None,
        request_id: text(IDEMPOTENCY_KEY),
    };
    let part = |part| framed(&v1::WriteFileRequest { part: Some(part) });
    let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, Status>>(QUEUE);
    let (begin, digest) = (part(v1::write_file_request::Part::Header(header)), text(DIGEST));
    tokio::spawn(async move {
        let mut body = body;
        if send.send(Ok(Frame::data(begin))).await.is_err() {
            return;
        }
        loop {
            let mut data = match body.frame().await {
                None => break,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                // The call ends without its last message, so that it changes nothing.
                Some(Err(error)) => return drop(send.send(Err(error)).await),
            };
            while !data.is_empty() {
                let piece = data.split_to(data.len().min(PIECE_BYTES));
                if send.send(Ok(Frame::data(part(v1::write_file_request::Part::Data(piece))))).await.is_err() {
                    return;
                }
            }
        }
        let end = part(v1::write_file_request::Part::End(v1::WriteFileEnd { digest }));
        let _ = send.send(Ok(Frame::data(end))).await;
    });
    let mut request = grpc_call(WRITE, &head.headers, Bytes::new());
    *request.body_mut() = Body::new(StreamBody::new(ReceiverStream::new(receive)));
    let (answered, body) = gate.call(request, peer).await.into_parts();
    match one_message(&answered.headers, body).await.and_then(decoded::<v1::WriteFileResponse>) {
        Err(status) => error_answer(&status, &answered.headers),
        Ok(written) => {
            let file = written.file.unwrap_or_default();
            let value = serde_json::json!({"etag": file.etag, "size": file.size, "digest": written.digest});
            let mut response = json_answer(StatusCode::OK, &value);
            insert(response.headers_mut(), &ETAG, &format!("\"{}\"", file.etag));
            copy_headers(&answered.headers, response.headers_mut());
            response
        }
    }
}

async fn remove(gate: &Gate, place: FilePlace, query: &Query, head: &Parts, peer: Peer) -> Response<Body> {
    let request = v1::RemoveFileRequest {
        workspace: place.workspace,
        path: place.path,
        recursive: query.recursive,
        if_match: etag_header(&head.headers, &IF_MATCH),
        allow_missing: false,
        request_id: head.headers.get(IDEMPOTENCY_KEY).and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned(),
    };
    let (answered, body) = gate.call(grpc_call(REMOVE, &head.headers, framed(&request)), peer).await.into_parts();
    match one_message(&answered.headers, body).await {
        Err(status) => error_answer(&status, &answered.headers),
        Ok(_) => {
            let mut headers = HeaderMap::new();
            copy_headers(&answered.headers, &mut headers);
            with_headers(StatusCode::NO_CONTENT, headers, Body::empty())
        }
    }
}

fn decoded<T: Message + Default>(bytes: Bytes) -> Result<T, Status> {
    T::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}

fn file_headers(file: &v1::FileStat) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let media_type = if file.media_type.is_empty() { "application/octet-stream" } else { &file.media_type };
    insert(&mut headers, &CONTENT_TYPE, media_type);
    insert(&mut headers, &ETAG, &format!("\"{}\"", file.etag));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // An HTML file of the workspace must not run as a page of this server.
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    headers.insert(HeaderName::from_static("content-security-policy"), HeaderValue::from_static("sandbox"));
    if let Some(time) = file.modify_time.as_ref().and_then(|time| u64::try_from(time.seconds).ok()) {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(time.min(u64::from(u32::MAX)));
        insert(&mut headers, &LAST_MODIFIED, &httpdate::fmt_http_date(time));
    }
    headers
}

fn insert(headers: &mut HeaderMap, name: &HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name.clone(), value);
    }
}

fn with_headers(status: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn etag_header(headers: &HeaderMap, name: &HeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.trim_matches('"').to_owned()
}

fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    let Some(value) = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()) else { return false };
    value
        .split(',')
        .any(|one| matches!(one.trim(), "*") || one.trim().trim_start_matches("W/").trim_matches('"') == etag)
}

/// Parses a range into its first byte and its length; a suffix range has a length only. Returns `None` for several ranges or a
/// malformed one: then the whole file is sent, as HTTP permits.
fn parse_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let range = text.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-').filter(|(_, last)| !last.contains(','))?;
    match (first.trim(), last.trim()) {
        ("", last) => Some((None, Some(last.parse().ok()?))),
        (first, "") => Some((Some(first.parse().ok()?), None)),
        (first, last) => {
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            let length = last.checked_sub(first)?.checked_add(1)?;
            Some((Some(first), Some(length)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        assert_eq!(parse_range("bytes=0-9"), Some((Some(0), Some(10))));
        assert_eq!(parse_range("bytes=5-"), Some((Some(5), None)));
        assert_eq!(parse_range("bytes=-3"), Some((None, Some(3))));
        for bad in
            ["", "bytes=", "bytes=a-b", "bytes=9-5", "bytes=0-1,3-4", "lines=0-1", "bytes=0-18446744073709551615"]
        {
            assert_eq!(parse_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_path_may_have_slashes_and_any_byte() {
        let found = place("/workspaces/agents%2Fann/files/src/a%20b/%ff").expect("a file");
        assert_eq!((found.workspace.as_str(), found.path.as_str()), ("workspaces/agents/ann", "src/a b/\\xff"));
        assert!(place("/workspaces/a/b/files/x").is_none() && place("/snapshots/a/files/x").is_none());
    }
}
