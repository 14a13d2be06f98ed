//! A server on the network: its URL, the key for it, and the connection to it.

use std::error::Error as _;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use crate::error::CliError;
use crate::exit::Exit;

/// Time limit for a connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of keep-alive probes, so that a long call notices a server that has disappeared.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// The URL of a server, with the project to work in: `https://HOST[:PORT][/PROJECT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Scheme, host and port.
    origin: String,
    /// The host alone.
    host: String,
    is_tls: bool,
    /// The project; without one, the server chooses it by the key.
    pub project: Option<String>,
}

impl ServerUrl {
    /// Reads a URL.
    pub fn parse(text: &str) -> Result<Self, CliError> {
        let (url, rest) = Self::parse_path(text)?;
        match rest.as_slice() {
            [] => Ok(url),
            [project] => Ok(Self { project: Some(project.clone()), ..url }),
            _ => Err(wrong(text, "it names more than a project behind the host")),
        }
    }

    /// Reads a URL whose path names a project and a workspace: `https://HOST/PROJECT/WORKSPACE`.
    pub fn parse_workspace(text: &str) -> Result<(Self, String), CliError> {
        let (url, rest) = Self::parse_path(text)?;
        match rest.as_slice() {
            [project, workspace @ ..] if !workspace.is_empty() => {
                Ok((Self { project: Some(project.clone()), ..url }, workspace.join("/")))
            }
            _ => Err(wrong(text, "it names no project and workspace behind the host")),
        }
    }

    /// Reads a URL without its project, and the components of its path.
    fn parse_path(text: &str) -> Result<(Self, Vec<String>), CliError> {
        let uri: Uri = text.parse().map_err(|_| wrong(text, "it is malformed"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong(text, "it begins with neither https:// nor http://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong(text, "it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong(text, "a key does not belong into it"));
        }
        if uri.query().is_some() {
            return Err(wrong(text, "it has a query"));
        }
        let scheme = if is_tls { "https" } else { "http" };
        let rest = uri.path().split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let (origin, host) = (format!("{scheme}://{authority}"), authority.host().to_owned());
        Ok((Self { origin, host, is_tls, project: None }, rest))
    }

    /// Returns scheme, host and port.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns host and port, for the name of a context.
    pub fn authority(&self) -> &str {
        self.origin.split_once("://").map_or(&self.origin, |(_, authority)| authority)
    }

    /// Returns whether the host is this machine: `localhost` or a loopback address.
    fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.project {
            Some(project) => write!(f, "{}/{project}", self.origin),
            None => f.write_str(&self.origin),
        }
    }
}

fn wrong(text: &str, why: &str) -> CliError {
    let message = format!("`{text}` is no URL of a server: {why}");
    CliError::usage(message).hint("write https://HOST[:PORT][/PROJECT]")
}

/// The text of an API key. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey(String);

impl ServerKey {
    /// Creates a key from a text without surrounding blanks, or returns `None` if it is empty.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns the secret text, for a header or for the contexts file.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerKey(..)")
    }
}

/// The files of a client certificate, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate with its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A server that commands work on instead of the store of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its URL.
    pub url: ServerUrl,
    /// The API key; `None` for a server without keys.
    pub key: Option<ServerKey>,
    /// The certificates that its TLS is checked with, as PEM; without a file, those of the system.
    pub authorities: Option<PathBuf>,
    /// The certificate of this client, for a server that asks for one.
    pub client: Option<ClientCertificate>,
}

impl Server {
    /// Connects to the server. A key is sent only over TLS or to this machine.
    pub async fn connect(&self) -> Result<Channel, CliError> {
        let url = &self.url;
        if self.key.is_some() && !url.is_tls && !url.is_loopback() {
            let message = format!("{url} has no TLS, so other machines could read the key on its way");
            return Err(CliError::refused(message).hint("use https://, or a tunnel to an address of this machine"));
        }
        let failed = |error: tonic::transport::Error| unreachable(url, &error);
        let mut endpoint = Endpoint::from_shared(url.origin().to_owned())
            .map_err(failed)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .tcp_nodelay(true);
        if url.is_tls {
            endpoint = self.with_tls(endpoint)?;
        }
        endpoint.connect().await.map_err(failed)
    }

    #[cfg(not(feature = "network"))]
    fn with_tls(&self, _: Endpoint) -> Result<Endpoint, CliError> {
        Err(CliError::without_network("--server https://HOST"))
    }

    #[cfg(feature = "network")]
    fn with_tls(&self, endpoint: Endpoint) -> Result<Endpoint, CliError> {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| CliError::machine(path.display(), &error));
        let tls = match &self.authorities {
            Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        let tls = match &self.client {
            Some(client) => tls.identity(Identity::from_pem(read(&client.certificate)?, read(&client.key)?)),
            None => tls,
        };
        endpoint.tls_config(tls).map_err(|error| unreachable(&self.url, &error))
    }
}

/// Returns the error for a server that cannot be reached, with the causes that tonic hides behind `transport error`.
fn unreachable(url: &ServerUrl, error: &tonic::transport::Error) -> CliError {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(found) = cause {
        let text = found.to_string();
        if !causes.last().is_some_and(|last: &String| last.contains(&text)) {
            causes.push(text);
        }
        cause = found.source();
    }
    let why = if causes.is_empty() { error.to_string() } else { causes.join(": ") };
    // rustls reports the plain HTTP answer of a server without TLS in these words.
    let is_plain_http = url.is_tls && why.contains("InvalidContentType");
    let why = if is_plain_http { "the server does not speak TLS".to_owned() } else { why };
    let error = CliError::new(Exit::ERROR, "UNAVAILABLE", format!("{url} cannot be reached: {why}"));
    match why.contains("certificate") {
        _ if is_plain_http => error.hint(format!("try {}", url.to_string().replacen("https://", "http://", 1))),
        true => error.hint("`amalgam login --ca FILE` names the authority of its certificate"),
        false => error.hint("is `amalgam serve` running there?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_server_and_a_project() {
        let url = ServerUrl::parse("https://state.example.com:8443/demo/").expect("a URL");
        assert_eq!((url.origin(), url.project.as_deref()), ("https://state.example.com:8443", Some("demo")));
        assert_eq!(url.to_string(), "https://state.example.com:8443/demo");
        assert_eq!(ServerUrl::parse("http://127.0.0.1:8080").expect("a URL").project, None);
        let (url, workspace) = ServerUrl::parse_workspace("http://[::1]:80/demo/team/main").expect("a URL");
        assert_eq!((url.project.as_deref(), workspace.as_str()), (Some("demo"), "team/main"));
    }

    #[test]
    fn other_urls_are_refused() {
        for text in ["ftp://a", "https://", "https://a/b/c", "https://key@a", "https://a?b=c", "a b", "/x"] {
            assert!(ServerUrl::parse(text).is_err(), "{text}");
        }
        assert!(ServerUrl::parse_workspace("https://a/b").is_err(), "no workspace");
    }

    #[test]
    fn this_machine_has_several_names() {
        let is_loopback = |text: &str| ServerUrl::parse(text).expect("a URL").is_loopback();
        for text in ["http://localhost:1", "http://127.0.0.1", "http://127.8.0.1:3", "http://[::1]:8080"] {
            assert!(is_loopback(text), "{text}");
        }
        assert!(!is_loopback("http://10.0.0.1") && !is_loopback("http://localhost.example.com"));
    }

    #[test]
    fn a_key_is_not_printed() {
        let key = ServerKey::new(" am_a_b\n").expect("a key");
        assert_eq!((key.reveal(), format!("{key:?}").as_str()), ("am_a_b", "ServerKey(..)"));
    }
}
