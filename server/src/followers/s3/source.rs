//! Lists and reads the objects below a prefix of an S3 bucket.
//!
//! Listings and reads are requests of their own, signed by `object_store`: its listing refuses a whole page because of one key
//! that is no path, and here such a key is left out and told.

use std::io::{self, Read};
use std::time::Duration;

use amalgam_exchange::{BucketSource, ListedObject};
use amalgam_proto::Reason;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use object_store::ClientOptions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer, AwsCredentialProvider};
use object_store::client::ReqwestConnector;
use object_store::client::{HttpClient, HttpConnector as _, HttpError, HttpRequest, HttpRequestBody, HttpResponse};
use percent_encoding::percent_encode;
use tokio::runtime::Runtime;
use tonic::codegen::http::{Request, StatusCode, header};

use super::credentials::Credentials;
use super::listing::{self, parse_page};
use super::{ENCODED, ENCODED_PATH, S3Prefix, check_endpoint};
use crate::error::{Error, Result};

/// The most requests that run at once.
const PARALLEL_READS: usize = 16;
/// Attempts of a request, and the delay before the second one, which doubles.
const ATTEMPTS_MAX: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The largest page of a listing.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// Pages without an object, one after another, before a listing counts as endless.
const EMPTY_PAGES_MAX: u32 = 1_000;
/// How long a request waits for the next bytes.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const REGION_DEFAULT: &str = "us-east-1";

/// The objects below a prefix.
pub(in crate::followers) struct S3Source {
    runtime: Runtime,
    client: S3Client,
    token: Option<String>,
    is_at_end: bool,
    empty_pages: u32,
}

/// Sends signed requests.
struct S3Client {
    http: HttpClient,
    /// `None` if requests are not signed.
    credentials: Option<AwsCredentialProvider>,
    region: String,
    /// `{endpoint}/{bucket}`.
    base: String,
    prefix: String,
}

impl S3Source {
    /// Prepares to list a prefix. Nothing is sent yet.
    pub(in crate::followers) fn open(place: &S3Prefix) -> Result<Self> {
        let failed = |why: object_store::Error| Error::new(Reason::Invalid, format!("s3://{}: {why}", place.bucket));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("start a runtime"))?;
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(&place.bucket);
        let found = Credentials::find(&place.credentials)?;
        if let Some(found) = &found {
            builder = builder.with_access_key_id(&found.key_id).with_secret_access_key(&found.secret_key);
            if !found.token.is_empty() {
                builder = builder.with_token(&found.token);
            }
        }
        let setting = |chosen: &str, key: AmazonS3ConfigKey, builder: &AmazonS3Builder| match chosen {
            "" => builder.get_config_value(&key).filter(|value| !value.is_empty()),
            chosen => Some(chosen.to_owned()),
        };
        let region = setting(&place.region, AmazonS3ConfigKey::Region, &builder);
        let region = region.or(found.and_then(|found| found.region)).unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let endpoint = setting(&place.endpoint, AmazonS3ConfigKey::Endpoint, &builder);
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let is_unsigned =
            builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).is_some_and(|value| value == "true");
        check_endpoint(&endpoint)?;
        // A large object may take long, as long as its bytes keep coming.
        let options = ClientOptions::new().with_timeout_disabled().with_read_timeout(READ_TIMEOUT);
        let options = options.with_allow_http(endpoint.starts_with("http://"));
        let http = ReqwestConnector::default().connect(&options).map_err(failed)?;
        let store = builder.with_region(&region).with_allow_http(true).build().map_err(failed)?;
        let credentials = (!is_unsigned).then(|| store.credentials().clone());
        let base = format!("{}/{}", endpoint.trim_end_matches('/'), place.bucket);
        let client = S3Client { http, credentials, region, base, prefix: place.prefix.clone() };
        Ok(Self { runtime, client, token: None, is_at_end: false, empty_pages: 0 })
    }
}

impl S3Client {
    /// Sends a request, and retries it after temporary failures.
    async fn get(&self, url: &str, etag: Option<&str>) -> io::Result<HttpResponse> {
        let mut delay = RETRY_DELAY;
        for attempt in 1.. {
            let answer = self.try_get(url, etag).await;
            let is_passing = match &answer {
                Ok(answer) => answer.status().is_server_error() || answer.status() == StatusCode::TOO_MANY_REQUESTS,
                Err(_) => true,
            };
            if !is_passing || attempt >= ATTEMPTS_MAX {
                return answer;
            }
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
        unreachable!("the attempts are limited")
    }

    async fn try_get(&self, url: &str, etag: Option<&str>) -> io::Result<HttpResponse> {
        let mut request = Request::get(url);
        if let Some(etag) = etag {
            request = request.header(header::IF_MATCH, etag);
        }
        let mut request: HttpRequest = request.body(HttpRequestBody::empty()).map_err(io::Error::other)?;
        if let Some(credentials) = &self.credentials {
            let credential = credentials.get_credential().await.map_err(io::Error::other)?;
            let signed = AwsAuthorizer::new(&credential, "s3", &self.region).try_authorize(&mut request, None);
            signed.map_err(io::Error::other)?;
        }
        self.http.execute(request).await.map_err(io::Error::other)
    }

    /// Reads a page of the listing.
    async fn list(&self, token: Option<&str>) -> io::Result<listing::Page> {
        let encode = |text: &str| percent_encode(text.as_bytes(), ENCODED).to_string();
        let mut url = format!("{}?encoding-type=url&list-type=2&prefix={}", self.base, encode(&self.prefix));
        if let Some(token) = token {
            url = format!("{url}&continuation-token={}", encode(token));
        }
        let answer = self.get(&url, None).await?;
        let status = answer.status();
        let body = read_body(answer, PAGE_BYTES_MAX).await?.ok_or_else(|| io::Error::other("the page is too large"))?;
        match status.is_success() {
            true => parse_page(&body, self.prefix.as_bytes()).map_err(io::Error::other),
            false => Err(io::Error::other(format!("the store answered {status}: {}", listing::error_words(&body)))),
        }
    }

    /// Opens the version of an object that was listed; `None` if the object was replaced or removed since.
    async fn open(&self, object: &ListedObject) -> io::Result<Option<HttpResponse>> {
        let key = [self.prefix.as_bytes(), &object.key].concat();
        let url = format!("{}/{}", self.base, percent_encode(&key, ENCODED_PATH));
        let answer = self.get(&url, Some(&object.etag)).await?;
        match answer.status() {
            StatusCode::NOT_FOUND | StatusCode::PRECONDITION_FAILED => Ok(None),
            status if status.is_success() => {
                // Some stores ignore the `If-Match` header.
                let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
                let is_same = etag.is_none_or(|etag| etag.trim_matches('"') == object.etag.trim_matches('"'));
                Ok(is_same.then_some(answer))
            }
            status => Err(io::Error::other(format!("the store answered {status} for {}", object.key.escape_ascii()))),
        }
    }

    async fn read(&self, object: &ListedObject) -> io::Result<Option<Vec<u8>>> {
        let Some(answer) = self.open(object).await? else { return Ok(None) };
        read_body(answer, usize::try_from(object.size).unwrap_or(usize::MAX)).await
    }
}

/// Reads a body; `None` if it is longer than `bytes_max`.
async fn read_body(answer: HttpResponse, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut stream = answer.into_body().bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.map_err(io::Error::other)?);
        if bytes.len() > bytes_max {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

fn host(action: &str, source: io::Error) -> amalgam_exchange::Error {
    amalgam_exchange::Error::Host { action: action.to_owned(), source }
}

impl BucketSource for S3Source {
    fn next_page(&mut self) -> amalgam_exchange::Result<Option<Vec<ListedObject>>> {
        if self.is_at_end {
            return Ok(None);
        }
        let failed = |source| host("list the bucket", source);
        let page = self.runtime.block_on(self.client.list(self.token.as_deref())).map_err(failed)?;
        self.empty_pages = if page.objects.is_empty() { self.empty_pages + 1 } else { 0 };
        let is_endless = page.next.is_some() && (page.next == self.token || self.empty_pages > EMPTY_PAGES_MAX);
        if is_endless {
            return Err(failed(io::Error::other("the store's listing does not end")));
        }
        self.is_at_end = page.next.is_none();
        self.token = page.next;
        Ok(Some(page.objects))
    }

    fn read_many(&mut self, objects: &[ListedObject]) -> amalgam_exchange::Result<Vec<Option<Vec<u8>>>> {
        let reads = futures_util::stream::iter(objects).map(|object| self.client.read(object)).buffered(PARALLEL_READS);
        let bodies: Vec<io::Result<_>> = self.runtime.block_on(reads.collect());
        bodies.into_iter().map(|body| body.map_err(|source| host("read an object", source))).collect()
    }

    fn read_one(&mut self, object: &ListedObject) -> amalgam_exchange::Result<Option<Box<dyn Read + Send + '_>>> {
        let opened =
            self.runtime.block_on(self.client.open(object)).map_err(|source| host("read an object", source))?;
        Ok(opened.map(|answer| {
            let stream = answer.into_body().bytes_stream();
            Box::new(BodyReader { runtime: &self.runtime, stream, piece: Bytes::new() }) as Box<dyn Read + Send>
        }))
    }
}

/// The body of a large object.
struct BodyReader<'a> {
    runtime: &'a Runtime,
    stream: BoxStream<'static, Result<Bytes, HttpError>>,
    piece: Bytes,
}

impl Read for BodyReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                Some(piece) => self.piece = piece.map_err(io::Error::other)?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        buffer[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}
