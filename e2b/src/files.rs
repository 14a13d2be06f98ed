//! Whole files over plain HTTP: downloads and uploads.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::calls::{Calls, key_in};
use crate::gzip::{Inflater, SLICE_BYTES};
use crate::program::{self, Operation, Options};
use crate::refusal::{Refusal, json_answer};
use crate::signature::{Signed, Signer};
use crate::state::State;
use crate::target::{PORT, Target, check_user, is_named, named};

/// Size of the pieces in which a file is read, each by an operation of its own, so that a slow client loses nothing.
const PIECE_BYTES: u64 = 4 << 20;
/// Size of the parts in which an upload is sent to the sandbox.
const PART_BYTES: usize = 512 << 10;
/// Limit on the files of one upload.
const FILES_MAX: usize = 1_000;
const METADATA_PREFIX: &str = "x-metadata-";
const METADATA_BYTES_MAX: usize = 4 << 10;

/// The fields of the query.
#[derive(Default)]
struct Query {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    /// Seconds since 1970.
    expiration: Option<String>,
}

impl Query {
    fn of(head: &Parts) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "path" => query.path = Some(value.into_owned()),
                "username" => query.username = Some(value.into_owned()),
                "signature" => query.signature = Some(value.into_owned()),
                "signature_expiration" => query.expiration = Some(value.into_owned()),
                _ => {}
            }
        }
        query
    }

    /// Checks the request, and finds its sandbox. A key in its headers goes before a signature.
    async fn target(
        &self,
        state: &State,
        calls: &Calls,
        head: &Parts,
        operation: &'static str,
    ) -> Result<Target, Refusal> {
        if key_in(&head.headers).is_some() {
            check_user(&head.headers, self.username.as_deref())?;
            return Ok(Target::find(calls, head).await?.0);
        }
        match self.signer(state, head, operation) {
            Ok(signer) => {
                check_user(&head.headers, self.username.as_deref())?;
                Target::find_for(calls, head, &signer).await
            }
            Err(why) => {
                // The gate records and limits requests without a key.
                calls.of(&head.headers).record_unknown().await;
                Err(Refusal::new(Code::Unauthenticated, why))
            }
        }
    }

    /// Checks the signature in the query. Returns the signer, or the reason why the signature is not valid.
    fn signer(&self, state: &State, head: &Parts, operation: &'static str) -> Result<Signer, &'static str> {
        let signature = self.signature.as_deref().ok_or("missing access token or signature")?;
        let signed = Signed {
            path: self.path.as_deref().unwrap_or_default(),
            operation,
            user: self.username.as_deref().unwrap_or_default(),
            expiration: self.expiration.as_deref(),
        };
        // A URL below a common address of all sandboxes names no sandbox; the token that signed the URL does.
        let named = match is_named(&head.headers) {
            true => Some(named(&head.headers).map_err(|_| "invalid signature")?),
            false => None,
        };
        if named.as_ref().is_some_and(|(_, port)| port != PORT) {
            return Err("invalid signature");
        }
        let sandbox = named.as_ref().map(|(sandbox, _)| sandbox.as_str());
        let signer = state.signers.find(signed, signature, sandbox).ok_or("invalid signature")?;
        let expires = self.expiration.as_deref().map(str::parse::<i64>);
        match expires.transpose().map_err(|_| "invalid signature expiration")? {
            Some(expires) if expires < (state.now)().0 / 1_000_000_000 => Err("signature is already expired"),
            _ => Ok(signer),
        }
    }
}

/// Changes the HTTP status of a refusal to one that clients expect for files.
fn with_status(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::ResourceExhausted if refusal.status == StatusCode::TOO_MANY_REQUESTS => {
            refusal.with_status(StatusCode::INSUFFICIENT_STORAGE)
        }
        Code::PermissionDenied | Code::AlreadyExists => refusal.with_status(StatusCode::BAD_REQUEST),
        _ => refusal,
    }
}

/// Answers with the bytes of a file.
pub(crate) async fn download(state: &State, calls: &Calls, head: &Parts) -> Result<Response<Body>, Refusal> {
    let query = Query::of(head);
    let target = query.target(state, calls, head, "read").await?;
    let path = query.path.filter(|path| !path.is_empty()).ok_or_else(|| Refusal::invalid("path: name a file"))?;
    let (size, first) = piece(&target, &path, 0).await.map_err(with_status)?;
    let body = match first.len() as u64 >= size {
        true => Body::new(Full::new(first)),
        false => {
            let (send, receive) = mpsc::channel(1);
            tokio::spawn(send_pieces(target, path, size, first, send));
            Body::new(StreamBody::new(ReceiverStream::new(receive)))
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if size > PIECE_BYTES {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    Ok(response)
}

/// Sends the pieces of a large file. A file that became shorter breaks the answer, so that the client notices.
async fn send_pieces(
    target: Target,
    path: String,
    size: u64,
    first: Bytes,
    send: mpsc::Sender<Result<Frame<Bytes>, Status>>,
) {
    let (mut offset, mut next) = (0, first);
    loop {
        let left = usize::try_from(size - offset).unwrap_or(usize::MAX);
        next.truncate(left);
        offset += next.len() as u64;
        if send.send(Ok(Frame::data(next))).await.is_err() || offset >= size {
            return;
        }
        next = match piece(&target, &path, offset).await {
            Ok((_, bytes)) if !bytes.is_empty() => bytes,
            Ok(_) => Bytes::new(),
            Err(refusal) => {
                let _ = send.send(Err(Status::new(refusal.code, refusal.message))).await;
                return;
            }
        };
        if next.is_empty() {
            let _ = send.send(Err(Status::data_loss("the file became shorter"))).await;
            return;
        }
    }
}

/// Reads a piece of a file. Returns the size of the whole.
async fn piece(target: &Target, path: &str, offset: u64) -> Result<(u64, Bytes), Refusal> {
    let words = ["read", path, &offset.to_string(), &PIECE_BYTES.to_string()];
    let mut output = program::run(target, &words).await?;
    let malformed = || Refusal::new(Code::Internal, "the sandbox answered with something else than a file");
    let end = output.iter().position(|byte| *byte == b'\n').ok_or_else(malformed)?;
    let line: Value = serde_json::from_slice(&output[..end]).map_err(|_| malformed())?;
    let size = line["size"].as_u64().ok_or_else(malformed)?;
    Ok((size, output.split_off(end + 1)))
}

/// Writes files.
pub(crate) async fn upload(state: &State, calls: &Calls, head: &Parts, body: Body) -> Result<Response<Body>, Refusal> {
    let query = Query::of(head);
    let target = query.target(state, calls, head, "write").await?;
    let metadata = metadata(&head.headers)?;
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let written = match kind.as_str() {
        "multipart/form-data" => {
            let boundary = multer::parse_boundary(content_type);
            let boundary = boundary.map_err(|error| Refusal::invalid(format!("content-type: {error}")))?;
            form(&target, query.path, &metadata, boundary, plain(&head.headers, body)?).await
        }
        "application/octet-stream" => {
            let path = query.path.filter(|path| !path.is_empty());
            let path = path.ok_or_else(|| Refusal::invalid("path: name the file that is written"))?;
            let is_gzip = is_gzip(&head.headers)?;
            stream(&target, &path, &metadata, body, is_gzip).await.map(|entry| vec![entry])
        }
        _ => {
            let message = "content-type: send multipart/form-data or application/octet-stream";
            return Err(Refusal::invalid(message).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
    };
    Ok(json_answer(StatusCode::OK, &Value::Array(written.map_err(with_status)?)))
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, Refusal> {
    match headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("identity" | "") => Ok(false),
        Some("gzip") => Ok(true),
        Some(other) => {
            let message = format!("content-encoding: `{}` is not served; send gzip or identity", other.escape_debug());
            Err(Refusal::invalid(message))
        }
    }
}

/// Refuses a compressed form: its encoding would be that of all files together.
fn plain(headers: &HeaderMap, body: Body) -> Result<Body, Refusal> {
    match is_gzip(headers)? {
        true => Err(Refusal::invalid("content-encoding: gzip needs content-type: application/octet-stream")),
        false => Ok(body),
    }
}

/// Reads the metadata of files from the headers, as `KEY=VALUE`.
fn metadata(headers: &HeaderMap) -> Result<Vec<String>, Refusal> {
    let mut all = Vec::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
        let value = value.to_str().map_err(|_| Refusal::invalid(format!("{name}: not ASCII")))?;
        if key.is_empty() || key.len() + value.len() > METADATA_BYTES_MAX {
            return Err(Refusal::invalid(format!("{name}: a name, and at most 4 KiB")));
        }
        all.push(format!("{key}={value}"));
    }
    Ok(all)
}

async fn form(
    target: &Target,
    path: Option<String>,
    metadata: &[String],
    boundary: String,
    body: Body,
) -> Result<Vec<Value>, Refusal> {
    let wrong = |error: multer::Error| Refusal::invalid(format!("the form: {error}"));
    let mut form = multer::Multipart::new(body.into_data_stream(), boundary);
    let mut written = Vec::new();
    while let Some(mut field) = form.next_field().await.map_err(wrong)? {
        if field.name() != Some("file") {
            continue;
        }
        if written.len() >= FILES_MAX {
            return Err(Refusal::invalid(format!("the form has more than {FILES_MAX} files")));
        }
        // Without a path in the query each file has its own.
        let named = path.as_deref().or_else(|| field.file_name()).filter(|path| !path.is_empty()).map(str::to_owned);
        if path.is_some() && !written.is_empty() {
            return Err(Refusal::invalid("path: the form has several files"));
        }
        let named = named.ok_or_else(|| Refusal::invalid("a file of the form has no name"))?;
        let mut upload = Upload::new(target, &named, metadata);
        while let Some(bytes) = field.chunk().await.map_err(wrong)? {
            upload.push(&bytes).await?;
        }
        written.push(upload.finish().await?);
    }
    match written.is_empty() {
        true => Err(Refusal::invalid("the form has no field `file`")),
        false => Ok(written),
    }
}

async fn stream(
    target: &Target,
    path: &str,
    metadata: &[String],
    mut body: Body,
    is_gzip: bool,
) -> Result<Value, Refusal> {
    let mut upload = Upload::new(target, path, metadata);
    let mut inflater = is_gzip.then(Inflater::new);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::invalid(format!("the upload ended early: {error}")))?;
        let Some(data) = frame.data_ref() else { continue };
        match &mut inflater {
            Some(inflater) => {
                for slice in data.chunks(SLICE_BYTES) {
                    upload.push(&inflater.push(slice)?).await?;
                }
            }
            None => upload.push(data).await?,
        }
    }
    if let Some(inflater) = inflater {
        upload.push(&inflater.finish()?).await?;
    }
    upload.finish().await
}

/// A file that is being written. Without its end nothing is changed.
struct Upload<'a> {
    target: &'a Target,
    words: Vec<&'a str>,
    /// Parts that were not sent yet, each with its length.
    waiting: BytesMut,
    operation: Option<Operation>,
}

impl<'a> Upload<'a> {
    fn new(target: &'a Target, path: &'a str, metadata: &'a [String]) -> Self {
        let words = ["write", path].into_iter().chain(metadata.iter().map(String::as_str)).collect();
        Self { target, words, waiting: BytesMut::new(), operation: None }
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        for part in bytes.chunks(PART_BYTES) {
            self.waiting.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
            self.waiting.extend_from_slice(part);
            if self.waiting.len() >= PART_BYTES {
                self.send(false).await?;
            }
        }
        Ok(())
    }

    /// Sends the parts that wait. A short upload is one call.
    async fn send(&mut self, is_end: bool) -> Result<(), Refusal> {
        let data = self.waiting.split().freeze();
        match &self.operation {
            Some(operation) => operation.write(data, is_end).await,
            None => {
                let options = Options { stdin: data, is_stdin_open: !is_end, ..Options::default() };
                self.operation = Some(Operation::start(self.target, &self.words, options).await?);
                Ok(())
            }
        }
    }

    async fn finish(mut self) -> Result<Value, Refusal> {
        self.waiting.put_u32(0);
        self.send(true).await?;
        let Some(operation) = self.operation.take() else {
            return Err(Refusal::new(Code::Internal, "the upload was not sent"));
        };
        let output = operation.output().await?;
        let entry: Value = serde_json::from_slice(&output).unwrap_or_default();
        let mut told = json!({"path": entry["path"], "name": entry["name"], "type": "file"});
        if entry["metadata"].as_object().is_some_and(|metadata| !metadata.is_empty()) {
            told["metadata"] = entry["metadata"].clone();
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(uri: &str) -> Parts {
        Request::get(uri).body(()).expect("a request").into_parts().0
    }

    #[test]
    fn a_path_is_decoded_once() {
        let query = Query::of(&head("/files?path=%2Ftmp%2Fa%2520b&username=user"));
        assert_eq!(query.path.as_deref(), Some("/tmp/a%20b"));
        assert_eq!(query.username.as_deref(), Some("user"));
        let signed = Query::of(&head("/files?signature=v1_a%2Bb%2F&signature_expiration=7"));
        assert_eq!((signed.signature.as_deref(), signed.expiration.as_deref()), (Some("v1_a+b/"), Some("7")));
        assert!(Query::of(&head("/files")).path.is_none());
    }

    #[test]
    fn metadata_comes_from_headers_within_limits() {
        let long = "v".repeat(METADATA_BYTES_MAX);
        let headers = |name: &str, value: &str| {
            HeaderMap::from_iter([(name.parse().expect("a name"), HeaderValue::from_str(value).expect("a value"))])
        };
        assert_eq!(metadata(&headers("x-metadata-owner", "ann")).expect("fits"), ["owner=ann"]);
        assert!(metadata(&headers("x-other", "ann")).expect("none").is_empty());
        assert!(metadata(&headers("x-metadata-a", &long)).is_err());
        assert!(metadata(&headers("x-metadata-", "x")).is_err());
    }
}
