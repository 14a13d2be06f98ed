//! Sends one request to one receiver. The address is resolved and checked here, and the connection goes to the checked address: a name that
//! resolves differently later leads nowhere else.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amalgam_server::Network;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::public_address::is_public;

/// Factor between a retry delay and the next one.
const BACK_OFF_FACTOR: u32 = 5;
/// Maximum delay between two attempts.
const DELAY_MAX: Duration = Duration::from_secs(3_600);
/// Files in which systems keep the certificates of trusted authorities.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How deliveries are made.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// Maximum time that a receiver may take to answer.
    pub timeout: Duration,
    /// Maximum number of retries of a failed delivery.
    pub retries: u32,
    /// The delay before the first retry. Each further one is five times as long.
    pub first_delay: Duration,
    /// Networks that receivers may be in beside the public internet.
    pub allow: Vec<Network>,
    /// The certificates of trusted authorities, as PEM; `None` for those of the system.
    pub authorities: Option<PathBuf>,
}

impl Default for WebhookOptions {
    /// Returns a time-out of 5 seconds, 3 retries, the first after a second, and no private network.
    fn default() -> Self {
        let (timeout, first_delay) = (Duration::from_secs(5), Duration::from_secs(1));
        Self { timeout, retries: 3, first_delay, allow: Vec::new(), authorities: None }
    }
}

impl WebhookOptions {
    /// Returns the delay before the next attempt, or `None` after the last one.
    pub(super) fn next_try(&self, attempts: u32) -> Option<Duration> {
        let factor = BACK_OFF_FACTOR.saturating_pow(attempts.saturating_sub(1));
        (attempts <= self.retries).then(|| self.first_delay.saturating_mul(factor).min(DELAY_MAX))
    }

    fn permits(&self, address: IpAddr) -> bool {
        // An IPv4-mapped address counts as the IPv4 address in it.
        let address = address.to_canonical();
        is_public(address) || self.allow.iter().any(|network| network.contains(address))
    }
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the receiver did not answer within {0:?}")]
    Late(Duration),
    #[error("{0} has no address: {1}")]
    Unresolved(String, io::Error),
    #[error("{0} leads to {1}, which is no public address; `amalgam serve --webhook-allow {1}` allows it")]
    Private(String, IpAddr),
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
}

/// Sends requests to receivers.
pub(super) struct Sender {
    pub(super) options: WebhookOptions,
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Sender {
    pub(super) fn new(options: WebhookOptions) -> Self {
        Self { options, tls: OnceLock::new() }
    }

    /// Sends a request, and returns the status of the response. Redirects are not followed.
    pub(super) async fn post(&self, url: &Uri, headers: HeaderMap, body: Bytes) -> Result<StatusCode, SendError> {
        let within = self.options.timeout;
        match tokio::time::timeout(within, self.post_untimed(url, headers, body)).await {
            Ok(sent) => sent,
            Err(_) => Err(SendError::Late(within)),
        }
    }

    async fn post_untimed(&self, url: &Uri, headers: HeaderMap, body: Bytes) -> Result<StatusCode, SendError> {
        let is_https = url.scheme_str() == Some("https");
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let stream = self.connect(&host, port).await?;
        let request = request(url, headers, body);
        if !is_https {
            return exchange(stream, request).await;
        }
        let invalid = |why: String| SendError::Tls(io::Error::new(io::ErrorKind::InvalidInput, why));
        let name = ServerName::try_from(host).map_err(|error| invalid(error.to_string()))?;
        let config = self.tls.get_or_init(|| self.tls_config()).clone().map_err(invalid)?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(SendError::Tls)?;
        exchange(stream, request).await
    }

    /// Connects to the first address of a host that is permitted and accepts the connection.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, SendError> {
        let unresolved = |error| SendError::Unresolved(host.to_owned(), error);
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.map_err(unresolved)?.collect();
        let Some(first) = addresses.first() else {
            return Err(unresolved(io::Error::from(io::ErrorKind::NotFound)));
        };
        let mut last = SendError::Private(host.to_owned(), first.ip().to_canonical());
        for address in addresses.iter().filter(|address| self.options.permits(address.ip())) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = SendError::Connect(error),
            }
        }
        Err(last)
    }

    fn tls_config(&self) -> Result<Arc<ClientConfig>, String> {
        let known = AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
        let path = self.options.authorities.clone().or(known).ok_or("the system has no file of authorities")?;
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(&path).map_err(|error| error.to_string())?;
        // A system may have certificates that cannot be used here.
        roots.add_parsable_certificates(certificates.flatten());
        if roots.is_empty() {
            return Err(format!("{}: no authority is in it", path.display()));
        }
        Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
    }
}

fn request(url: &Uri, headers: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.path_and_query().map_or("/", |path| path.as_str()).parse().unwrap_or_default();
    *request.headers_mut() = headers;
    if let Some(host) = url.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    request
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<StatusCode, SendError> {
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The status is enough: the connection is closed when this call ends or times out.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    Ok(send.send_request(request).await?.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_end_after_the_last_retry() {
        let options = WebhookOptions::default();
        let delays: Vec<_> = (1..=4).map(|attempts| options.next_try(attempts)).collect();
        let seconds = |number| Some(Duration::from_secs(number));
        assert_eq!(delays, [seconds(1), seconds(5), seconds(25), None]);
        let stubborn = WebhookOptions { retries: 100, ..options };
        assert_eq!(stubborn.next_try(100), Some(DELAY_MAX));
    }

    #[test]
    fn only_allowed_networks_are_called_beside_the_public_one() {
        let allow = vec!["127.0.0.0/8".parse().expect("a network")];
        let options = WebhookOptions { allow, ..WebhookOptions::default() };
        for (address, is_permitted) in
            [("127.0.0.1", true), ("::ffff:127.0.0.1", true), ("::1", false), ("10.0.0.1", false), ("8.8.8.8", true)]
        {
            assert_eq!(options.permits(address.parse().expect("an address")), is_permitted, "{address}");
        }
    }
}
