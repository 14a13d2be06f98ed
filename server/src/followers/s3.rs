//! The objects below a prefix of an S3 bucket: where they are, and how they are listed and read.
//!
//! Listings and reads are requests of their own, signed by `object_store`: its listing refuses a whole page because of one key
//! that is no path, and here such a key is left out and told.

mod credentials;
mod listing;

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
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use tokio::runtime::Runtime;
use tonic::codegen::http::{Request, StatusCode, header};
use url::Url;

use crate::error::{Error, Result};
use credentials::Credentials;
use listing::parse_page;

/// The characters that are percent-encoded in URLs, by the rules of signatures.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ENCODED_PATH: &AsciiSet = &ENCODED.remove(b'/');
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

/// A prefix of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct S3Prefix {
    pub(super) bucket: String,
    /// It ends with a slash, or is empty.
    pub(super) prefix: String,
    /// The URL of an S3 store other than that of AWS.
    pub(super) endpoint: String,
    pub(super) region: String,
    /// The file with the credentials; empty for those of the environment.
    pub(super) credentials: String,
}

impl S3Prefix {
    /// Reads `s3://BUCKET[/PREFIX]`.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = || Error::new(Reason::Invalid, format!("`{}` is not s3://BUCKET[/PREFIX]", url.escape_debug()));
        let rest = url.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = (3..=255).contains(&bucket.len())
            && bucket.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            && !bucket.contains("..");
        // A client would resolve `..` in the URL of an object, and read another one.
        let has_dots = prefix.split('/').any(|part| matches!(part, "." | ".."));
        if !is_bucket || has_dots || prefix.starts_with('/') || prefix.contains(char::is_control) {
            return Err(wrong());
        }
        let prefix = match prefix.trim_end_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self { bucket: bucket.to_owned(), prefix, ..Self::default() })
    }

    /// Returns the prefix as it is stored in the record of a workspace, after `s3:`. It contains no secret key.
    pub(super) fn text(&self) -> String {
        let encode = |text: &str| percent_encode(text.as_bytes(), ENCODED).to_string();
        let prefix = percent_encode(self.prefix.as_bytes(), ENCODED_PATH);
        let settings = [("endpoint", &self.endpoint), ("region", &self.region), ("credentials", &self.credentials)];
        let settings = settings.iter().filter(|(_, value)| !value.is_empty());
        let settings: Vec<_> = settings.map(|(name, value)| format!("{name}={}", encode(value))).collect();
        match settings.is_empty() {
            true => format!("//{}/{prefix}", self.bucket),
            false => format!("//{}/{prefix}?{}", self.bucket, settings.join("&")),
        }
    }

    /// Parses the text that [`S3Prefix::text`] returns.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned());
        let (place, settings) = text.split_once('?').unwrap_or((text, ""));
        let (bucket, prefix) = place.strip_prefix("//")?.split_once('/')?;
        let mut found = Self { bucket: bucket.to_owned(), prefix: decode(prefix)?, ..Self::default() };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=')?;
            match name {
                "endpoint" => found.endpoint = decode(value)?,
                "region" => found.region = decode(value)?,
                "credentials" => found.credentials = decode(value)?,
                _ => return None,
            }
        }
        Some(found)
    }
}

/// Checks the URL of a store. One with a password would show it in records and messages.
pub(super) fn check_endpoint(endpoint: &str) -> Result<()> {
    let url = Url::parse(endpoint).ok().filter(|url| {
        let is_bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none() && is_bare
    });
    match url {
        Some(_) => Ok(()),
        None => {
            let message =
                "endpoint: a URL that begins with https:// or http://, without a user, a password, `?` and `#`";
            Err(Error::new(Reason::Invalid, message))
        }
    }
}

/// The objects below a prefix.
pub(super) struct S3Source {
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
    pub(super) fn open(place: &S3Prefix) -> Result<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_stored_and_read_back() {
        let mut place = S3Prefix::parse("s3://data/some prefix/of?it/").expect("a prefix");
        assert_eq!((place.bucket.as_str(), place.prefix.as_str()), ("data", "some prefix/of?it/"));
        assert_eq!(S3Prefix::of_text(&place.text()), Some(place.clone()));
        place.endpoint = "http://127.0.0.1:8333".to_owned();
        place.credentials = "/keys & more".to_owned();
        assert_eq!(S3Prefix::of_text(&place.text()), Some(place));
        assert_eq!(S3Prefix::parse("s3://data").expect("a bucket").prefix, "");
        for text in [
            "s3://",
            "s3://a",
            "s3://data//x",
            "http://data/x",
            "s3://../x",
            "s3://da ta/x",
            "s3://data/../x",
            "s3://data/a/.",
            "s3://data/a/../b",
        ] {
            assert!(S3Prefix::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_endpoint_with_a_password_is_refused_without_showing_it() {
        for url in ["http://127.0.0.1:8333", "https://s3.eu-west-1.amazonaws.com", "http://[::1]:9000/under"] {
            check_endpoint(url).expect(url);
        }
        for url in
            ["ftp://x", "http://", "https://me:hush@x", "http://me@x", "http://x?hush", "http://x:99999", "x", ""]
        {
            let error = check_endpoint(url).expect_err(url).to_string();
            assert!(error.contains("https://") && !error.contains("hush"), "{error}");
        }
    }
}
