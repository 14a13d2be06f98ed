//! The settings of `amalgam serve`: from a flag, else the environment, else a file, else the default. [`KEYS`] lists them all.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use toml_edit::{DocumentMut, Item, Value};

use crate::error::CliError;

/// The environment variable that names the file of settings.
const FILE_VARIABLE: &str = "AMALGAM_CONFIG";
/// The file of settings that is read if none is named.
const FILE_DEFAULT: &str = "/etc/amalgam/server.toml";
/// The port of NFS.
const NFS_PORT: u16 = 2_049;

/// A setting of the server.
#[derive(Debug)]
pub struct ServerSetting {
    /// Its name in the file, and with `--` before it the flag.
    pub name: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// The default, in words.
    pub default: &'static str,
    /// The description.
    pub doc: &'static str,
}

const fn setting(
    name: &'static str,
    variable: &'static str,
    default: &'static str,
    doc: &'static str,
) -> ServerSetting {
    ServerSetting { name, variable, default, doc }
}

/// All settings of the server.
pub const KEYS: [ServerSetting; 32] = [
    setting("listen", "AMALGAM_LISTEN", "none", "address and port of gRPC and REST"),
    setting("e2b", "AMALGAM_E2B", "none", "address and port for e2b clients"),
    setting("data", "AMALGAM_DATA", "the local store", "directory of the projects; files of this node in a cluster"),
    setting(
        "cluster",
        "AMALGAM_CLUSTER",
        "none",
        "PostgreSQL database of a cluster, as `postgres://USER:PASSWORD@HOST/DATABASE`",
    ),
    setting(
        "bucket",
        "AMALGAM_BUCKET",
        "none",
        "bucket of a cluster: `s3://BUCKET`, or `file:///DIRECTORY` for a trial",
    ),
    setting("node-cache", "AMALGAM_NODE_CACHE", "4GB", "cache of a node of a cluster on its disk; 0 for none"),
    setting("tls-cert", "AMALGAM_TLS_CERT", "no TLS", "certificate with its chain, as PEM"),
    setting("tls-key", "AMALGAM_TLS_KEY", "no TLS", "private key of the certificate, as PEM"),
    setting("tls-client-ca", "AMALGAM_TLS_CLIENT_CA", "all clients", "authorities that clients need a certificate of"),
    setting("behind-tls-proxy", "AMALGAM_BEHIND_TLS_PROXY", "false", "a proxy in front of the server terminates TLS"),
    setting("insecure-no-auth", "AMALGAM_INSECURE_NO_AUTH", "false", "no keys, on loopback only"),
    setting("open-metrics", "AMALGAM_OPEN_METRICS", "false", "/metrics needs no key"),
    setting(
        "rate",
        "AMALGAM_RATE",
        "default",
        "calls per minute and key, by class: `default`, `strict`, or a number for each class",
    ),
    setting("nfs", "AMALGAM_NFS", "none", "address and port of NFS, for the local store"),
    setting("nfs-allow", "AMALGAM_NFS_ALLOW", "this machine", "networks that may connect by NFS, separated by commas"),
    setting(
        "webhook-allow",
        "AMALGAM_WEBHOOK_ALLOW",
        "public addresses",
        "private networks that webhooks may call, separated by commas",
    ),
    setting("webhook-timeout", "AMALGAM_WEBHOOK_TIMEOUT", "5", "seconds that the receiver of a webhook may take"),
    setting("webhook-retries", "AMALGAM_WEBHOOK_RETRIES", "3", "how often a failed delivery is tried again"),
    setting(
        "webhook-ca",
        "AMALGAM_WEBHOOK_CA",
        "those of the system",
        "authorities of the receivers of webhooks, as PEM",
    ),
    setting(
        "sandbox-runtimes",
        "AMALGAM_SANDBOX_RUNTIMES",
        "local",
        "runtimes of sandboxes: `local`, `docker`, or both, separated by commas; the first one that has the template is used; `none` for a server without sandboxes",
    ),
    setting("docker-host", "DOCKER_HOST", "unix:///var/run/docker.sock", "Unix socket of the Docker engine"),
    setting("docker-network", "DOCKER_NETWORK", "none", "network of containers that ask for `bridge`"),
    setting("docker-pull", "AMALGAM_DOCKER_PULL", "false", "pull images that the Docker engine does not have"),
    setting(
        "workspace-access",
        "AMALGAM_WORKSPACE_ACCESS",
        "auto",
        "how sandboxes get at their files: `fuse` for mounts, `checkout` for directories with all files, `auto` for what the machine permits",
    ),
    setting("max-sandboxes", "AMALGAM_MAX_SANDBOXES", "100", "sandboxes at a time"),
    setting("max-sandboxes-per-key", "AMALGAM_MAX_SANDBOXES_PER_KEY", "10", "sandboxes of one key at a time"),
    setting(
        "strict-landlock",
        "AMALGAM_STRICT_LANDLOCK",
        "false",
        "Landlock restricts writes of sandboxes that outlive the server, too: their processes cannot write after a restart",
    ),
    setting(
        "sandbox-port-domain",
        "AMALGAM_SANDBOX_PORT_DOMAIN",
        "none: paths of the server",
        "domain with a wildcard DNS record for the server: each URL of a port of a sandbox gets a host name",
    ),
    setting(
        "sandbox-hosts",
        "AMALGAM_SANDBOX_HOSTS",
        "none",
        "hosts that sandboxes may be allowed to reach, separated by commas: `pypi.org`, `*.example.org`, `*` for all",
    ),
    setting(
        "sandbox-networks",
        "AMALGAM_SANDBOX_NETWORKS",
        "public addresses",
        "private networks that those hosts may be in, separated by commas",
    ),
    setting("log", "AMALGAM_LOG", "info", "filter of the log"),
    setting(
        "otlp-endpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "no traces",
        "URL of a collector that takes traces by OTLP over gRPC",
    ),
];

/// The options of the server on the command line.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerArgs {
    /// Serve gRPC and REST at this address and port [env: AMALGAM_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Serve sandboxes to e2b clients at this address and port [env: AMALGAM_E2B]
    #[arg(long, value_name = "ADDRESS:PORT")]
    e2b: Option<String>,
    /// The directory of the projects, made if it does not exist [env: AMALGAM_DATA]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Serve the projects of a cluster, with other nodes: its PostgreSQL database [env: AMALGAM_CLUSTER]
    #[arg(long, value_name = "URL")]
    cluster: Option<String>,
    /// The bucket of the cluster: s3://BUCKET, or file:///DIRECTORY for a trial [env: AMALGAM_BUCKET]
    #[arg(long, value_name = "URL")]
    bucket: Option<String>,
    /// The cache of a node of a cluster on its disk, such as 10GB; 0 for none [env: AMALGAM_NODE_CACHE] [default: 4GB]
    #[arg(long, value_name = "SIZE")]
    node_cache: Option<String>,
    /// The certificate for TLS with its chain, as PEM [env: AMALGAM_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// The private key for TLS, as PEM [env: AMALGAM_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Let in only clients with a certificate of these authorities, as PEM [env: AMALGAM_TLS_CLIENT_CA]
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<String>,
    /// A proxy in front of the server terminates TLS [env: AMALGAM_BEHIND_TLS_PROXY]
    #[arg(long)]
    behind_tls_proxy: bool,
    /// Let every process on this machine in without a key [env: AMALGAM_INSECURE_NO_AUTH]
    #[arg(long)]
    insecure_no_auth: bool,
    /// Answer /metrics without a key [env: AMALGAM_OPEN_METRICS]
    #[arg(long)]
    open_metrics: bool,
    /// Calls per minute and key: `default` (60,000), `strict` (1,000) or a number [env: AMALGAM_RATE]
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Serve NFS at this address; the port is 2049 if none is given [env: AMALGAM_NFS]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    nfs: Option<String>,
    /// Let this network connect by NFS, and mount exports that name none; repeatable [default: only this machine]
    #[arg(long, value_name = "CIDR")]
    nfs_allow: Vec<String>,
    /// Let webhooks call this private network; repeatable [default: only public addresses]
    #[arg(long, value_name = "CIDR")]
    webhook_allow: Vec<String>,
    /// How long the receiver of a webhook may take, in seconds [env: AMALGAM_WEBHOOK_TIMEOUT] [default: 5]
    #[arg(long, value_name = "SECONDS")]
    webhook_timeout: Option<String>,
    /// How often a failed delivery of a webhook is tried again [env: AMALGAM_WEBHOOK_RETRIES] [default: 3]
    #[arg(long, value_name = "NUMBER")]
    webhook_retries: Option<String>,
    /// Check the certificates of webhook receivers with these authorities, as PEM [env: AMALGAM_WEBHOOK_CA]
    #[arg(long, value_name = "FILE")]
    webhook_ca: Option<String>,
    /// Runtimes of sandboxes, local or docker; repeatable, the first one that has the template is used; none for a server
    /// without sandboxes [env: AMALGAM_SANDBOX_RUNTIMES]
    #[arg(long, value_name = "RUNTIME")]
    sandbox_runtimes: Vec<String>,
    /// The Unix socket of the Docker engine [env: DOCKER_HOST] [default: unix:///var/run/docker.sock]
    #[arg(long, value_name = "URL")]
    docker_host: Option<String>,
    /// The network of containers that ask for `bridge` [env: DOCKER_NETWORK] [default: they are refused]
    #[arg(long, value_name = "NAME")]
    docker_network: Option<String>,
    /// Pull images that the Docker engine does not have [env: AMALGAM_DOCKER_PULL]
    #[arg(long)]
    docker_pull: bool,
    /// How sandboxes get at their files: fuse, checkout, or auto for what the machine permits [env:
    /// AMALGAM_WORKSPACE_ACCESS] [default: auto]
    #[arg(long, value_name = "WORD")]
    workspace_access: Option<String>,
    /// Sandboxes at a time [env: AMALGAM_MAX_SANDBOXES] [default: 100]
    #[arg(long, value_name = "NUMBER")]
    max_sandboxes: Option<String>,
    /// Sandboxes of one key at a time [env: AMALGAM_MAX_SANDBOXES_PER_KEY] [default: 10]
    #[arg(long, value_name = "NUMBER")]
    max_sandboxes_per_key: Option<String>,
    /// Restrict writes of sandboxes that outlive this server by Landlock, too [env: AMALGAM_STRICT_LANDLOCK]
    #[arg(long)]
    strict_landlock: bool,
    /// A domain with a wildcard DNS record for this server, for URLs of ports of sandboxes [env:
    /// AMALGAM_SANDBOX_PORT_DOMAIN]
    #[arg(long, value_name = "DOMAIN")]
    sandbox_port_domain: Option<String>,
    /// A host that sandboxes may be allowed to reach: a name, *.NAME, or * for all; repeatable [env: AMALGAM_SANDBOX_HOSTS]
    #[arg(long, value_name = "HOST")]
    sandbox_hosts: Vec<String>,
    /// A private network that those hosts may be in; repeatable [env: AMALGAM_SANDBOX_NETWORKS] [default: only public addresses]
    #[arg(long, value_name = "CIDR")]
    sandbox_networks: Vec<String>,
    /// Send traces of all calls to this collector, by OTLP over gRPC [env: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Read settings from this file [env: AMALGAM_CONFIG] [default: /etc/amalgam/server.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ServerArgs {
    /// Returns the value of a flag, or `None` if the command line does not have it.
    fn given(&self, name: &str) -> Option<String> {
        let is_set = |is_set: bool| is_set.then(|| "true".to_owned());
        match name {
            "listen" => self.listen.clone(),
            "e2b" => self.e2b.clone(),
            "data" => self.data.clone(),
            "cluster" => self.cluster.clone(),
            "bucket" => self.bucket.clone(),
            "node-cache" => self.node_cache.clone(),
            "tls-cert" => self.tls_cert.clone(),
            "tls-key" => self.tls_key.clone(),
            "tls-client-ca" => self.tls_client_ca.clone(),
            "behind-tls-proxy" => is_set(self.behind_tls_proxy),
            "insecure-no-auth" => is_set(self.insecure_no_auth),
            "open-metrics" => is_set(self.open_metrics),
            "rate" => self.rate.clone(),
            "nfs" => self.nfs.clone(),
            "nfs-allow" => (!self.nfs_allow.is_empty()).then(|| self.nfs_allow.join(",")),
            "webhook-allow" => (!self.webhook_allow.is_empty()).then(|| self.webhook_allow.join(",")),
            "webhook-timeout" => self.webhook_timeout.clone(),
            "webhook-retries" => self.webhook_retries.clone(),
            "webhook-ca" => self.webhook_ca.clone(),
            "sandbox-runtimes" => (!self.sandbox_runtimes.is_empty()).then(|| self.sandbox_runtimes.join(",")),
            "docker-host" => self.docker_host.clone(),
            "docker-network" => self.docker_network.clone(),
            "docker-pull" => is_set(self.docker_pull),
            "workspace-access" => self.workspace_access.clone(),
            "max-sandboxes" => self.max_sandboxes.clone(),
            "max-sandboxes-per-key" => self.max_sandboxes_per_key.clone(),
            "strict-landlock" => is_set(self.strict_landlock),
            "sandbox-port-domain" => self.sandbox_port_domain.clone(),
            "sandbox-hosts" => (!self.sandbox_hosts.is_empty()).then(|| self.sandbox_hosts.join(",")),
            "sandbox-networks" => (!self.sandbox_networks.is_empty()).then(|| self.sandbox_networks.join(",")),
            "otlp-endpoint" => self.otlp_endpoint.clone(),
            _ => None,
        }
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The default: no flag, variable or file sets the value.
    Default,
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Environment(&'static str),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// The settings of a server, each with its source.
#[derive(Debug)]
pub struct ServerSettings {
    /// The values and their sources, in the order of [`KEYS`].
    values: Vec<(Option<String>, Source)>,
}

impl ServerSettings {
    /// Reads the settings of this process. A background process, which has a socket of its own, takes flags only.
    pub fn load(args: &ServerArgs, is_background: bool) -> Result<Self, CliError> {
        if is_background {
            return Self::resolve(args, |_| None, None);
        }
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let named = args.config.clone().or_else(|| set(FILE_VARIABLE).map(PathBuf::from));
        let (path, is_named) = (named.clone().unwrap_or_else(|| PathBuf::from(FILE_DEFAULT)), named.is_some());
        let file = match fs::read_to_string(&path) {
            Ok(text) => Some((path, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => None,
            Err(error) => return Err(CliError::machine(path.display(), &error)),
        };
        Self::resolve(args, set, file)
    }

    pub fn resolve(
        args: &ServerArgs,
        variable: impl Fn(&str) -> Option<String>,
        file: Option<(PathBuf, String)>,
    ) -> Result<Self, CliError> {
        let (path, document) = match file {
            Some((path, text)) => {
                let wrong = |error| CliError::refused(format!("{}: {error}", path.display())).hint("correct the file");
                let document = text.parse::<DocumentMut>().map_err(wrong)?;
                (path, document)
            }
            None => (PathBuf::new(), DocumentMut::new()),
        };
        let unknown = document.iter().map(|(name, _)| name).find(|name| KEYS.iter().all(|key| key.name != *name));
        if let Some(name) = unknown {
            let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
            let message = format!("{}: `{name}` is no setting of the server", path.display());
            return Err(CliError::refused(message).hint(format!("there are {}", names.join(", "))));
        }
        let value = |key: &'static ServerSetting| {
            let in_file = || document.get(key.name).map(|item| (Some(plain(item)), Source::File(path.clone())));
            args.given(key.name)
                .map(|value| (Some(value), Source::Flag(key.name)))
                .or_else(|| variable(key.variable).map(|value| (Some(value), Source::Environment(key.variable))))
                .or_else(in_file)
                .unwrap_or((None, Source::Default))
        };
        Ok(Self { values: KEYS.iter().map(value).collect() })
    }

    /// Iterates over all settings, with their values, if set, and the sources of these.
    pub fn iter(&self) -> impl Iterator<Item = (&'static ServerSetting, Option<&str>, &Source)> {
        KEYS.iter().zip(&self.values).map(|(key, (value, source))| (key, value.as_deref(), source))
    }

    fn find(&self, name: &str) -> (Option<&str>, &Source) {
        let (_, value, source) = self.iter().find(|(key, ..)| key.name == name).expect("it is in the table");
        (value, source)
    }

    /// Returns a setting as text, or `None` if it is not set.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.find(name).0
    }

    /// Returns a setting as a path, or `None` if it is not set.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// Parses a setting, or returns `None` if it is not set. The error names the setting and its source.
    pub fn parsed<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, CliError> {
        let (value, source) = self.find(name);
        let wrong = |why: String| CliError::usage(format!("{name} ({source}): {why}"));
        value.map(|value| parse(value).map_err(wrong)).transpose()
    }

    /// Returns whether a boolean setting is on; one that is not set is off.
    pub fn is_on(&self, name: &str) -> Result<bool, CliError> {
        let parse = |text: &str| match text {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            other => Err(format!("`{other}` is neither true nor false")),
        };
        Ok(self.parsed(name, parse)?.unwrap_or(false))
    }

    /// Parses a setting as a number within limits.
    pub fn number(&self, name: &str, limits: RangeInclusive<u32>) -> Result<Option<u32>, CliError> {
        self.parsed(name, |text| {
            let number = text.parse().ok().filter(|number| limits.contains(number));
            number.ok_or_else(|| format!("write a number from {} to {}", limits.start(), limits.end()))
        })
    }

    /// Parses a setting as a size such as `20GiB`, in bytes.
    pub fn size(&self, name: &str) -> Result<Option<u64>, CliError> {
        self.parsed(name, crate::config::size)
    }

    /// Returns the address for gRPC and REST, or `None` if it is not set.
    pub fn listen(&self) -> Result<Option<SocketAddr>, CliError> {
        self.address("listen")
    }

    /// Returns the address for e2b clients, or `None` if it is not set.
    pub fn e2b(&self) -> Result<Option<SocketAddr>, CliError> {
        self.address("e2b")
    }

    /// Returns the domain for host names of sandbox ports, which may end with a port, or `None` if it is not set.
    pub fn port_domain(&self) -> Result<Option<String>, CliError> {
        self.parsed("sandbox-port-domain", |text| {
            let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            let is_name = !name.is_empty() && name.bytes().all(is_plain) && !name.starts_with('.');
            let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
            (is_name && is_port)
                .then(|| text.to_owned())
                .ok_or("write a domain such as sandboxes.example.org".to_owned())
        })
    }

    fn address(&self, name: &str) -> Result<Option<SocketAddr>, CliError> {
        self.parsed(name, |text| {
            text.parse().map_err(|_| format!("`{text}` is no address and port, such as 127.0.0.1:8080 or [::]:8443"))
        })
    }

    /// Returns the address for NFS, or `None` if it is not set.
    pub fn nfs(&self) -> Result<Option<SocketAddr>, CliError> {
        self.parsed("nfs", parse_address)
    }

    /// Parses a comma-separated list; empty if it is not set.
    pub fn list<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, CliError> {
        let words = |text: &str| text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(&parse).collect();
        Ok(self.parsed(name, words)?.unwrap_or_default())
    }

    /// Fails if a setting is set without another one that it needs.
    pub fn require(&self, name: &str, needed: &str) -> Result<(), CliError> {
        match (self.find(name), self.text(needed)) {
            ((Some(_), source), None) => {
                Err(CliError::usage(format!("{name} ({source}) needs {needed}")).hint(format!("add --{needed}")))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the address of a database without its password, for people.
pub fn without_password(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    match authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{scheme}://{user}:***@{host}{path}"),
        None => value.to_owned(),
    }
}

/// Converts a value of the file to text; an array becomes a comma-separated list.
fn plain(item: &Item) -> String {
    match item.as_array() {
        Some(array) => array.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        None => item.as_str().map_or_else(|| item.to_string().trim().to_owned(), str::to_owned),
    }
}

/// Reads an address with or without a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let bare =
        text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().map(|ip| SocketAddr::new(ip, NFS_PORT));
    text.parse().or(bare).map_err(|_| "write an address such as 127.0.0.1:2049 or [::1]:2049".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The environment variables of the earlier design, each with the setting that replaces it.
    const EQUIVALENTS: [(&str, &str); 18] = [
        ("API_PORT", "`listen`: REST and gRPC have one port"),
        ("GRPC_PORT", "`listen`: REST and gRPC have one port"),
        ("NFS_MODE", "none: NFS is always served by the program itself; `nfs` turns it on"),
        ("NFS_PORT", "`nfs`, as ADDRESS:PORT"),
        ("NFS_ALLOWED_IPS", "`nfs-allow`; without it only this machine, and there is no `*`"),
        ("METRICS_PORT", "`listen`: /metrics has the same port; `open-metrics` lets it be read without a key"),
        ("API_KEY", "`API_KEY`, in the environment only: the text of the first admin key"),
        ("WORKSPACE_ROOT", "`data`"),
        ("DOCKER_HOST", "`docker-host`, with `docker` among `sandbox-runtimes`; a Unix socket"),
        ("DOCKER_NETWORK", "`docker-network`; without it containers have no network"),
        ("DEFAULT_SANDBOX_TIMEOUT", "none: 3,600 seconds, unless the creation says otherwise"),
        ("MAX_SANDBOXES", "`max-sandboxes`"),
        ("MAX_CONCURRENT_CREATIONS", "none: 10"),
        ("RUST_LOG", "`log`"),
        ("WEBHOOK_URL", "none: `amalgam webhook create URL`, any number of them"),
        ("WEBHOOK_SECRET", "none: each webhook has a secret of its own"),
        ("WEBHOOK_TIMEOUT", "`webhook-timeout`"),
        ("WEBHOOK_RETRY", "`webhook-retries`"),
    ];

    /// Returns the tables of settings and of equivalents, as Markdown.
    fn tables() -> String {
        let mut text = "| setting and flag | environment | default | is |\n|---|---|---|---|\n".to_owned();
        for key in &KEYS {
            let name = key.name;
            let flag = if name == "log" { "`log`".to_owned() } else { format!("`{name}`, `--{name}`") };
            text.push_str(&format!("| {flag} | `{}` | {} | {} |\n", key.variable, key.default, key.doc));
        }
        text.push_str("\n| variable elsewhere | here |\n|---|---|\n");
        EQUIVALENTS.iter().for_each(|(variable, here)| text.push_str(&format!("| `{variable}` | {here} |\n")));
        text
    }

    fn resolve(args: &ServerArgs, set: &[(&str, &str)], file: &str) -> Result<ServerSettings, CliError> {
        let variable = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ServerSettings::resolve(args, variable, Some((PathBuf::from("s.toml"), file.to_owned())))
    }

    #[test]
    fn a_flag_goes_before_the_environment_and_that_before_the_file() {
        let file = "listen = '127.0.0.1:1'\ndata = '/file'\nopen-metrics = true\nnfs-allow = ['10.0.0.0/8', '::1/128']";
        let set = [("AMALGAM_LISTEN", "127.0.0.1:2"), ("AMALGAM_DATA", "/environment")];
        let args = ServerArgs { listen: Some("127.0.0.1:3".to_owned()), ..ServerArgs::default() };
        let settings = resolve(&args, &set, file).expect("settings");
        assert_eq!(settings.listen().expect("an address"), Some("127.0.0.1:3".parse().expect("an address")));
        assert_eq!(settings.find("listen").1, &Source::Flag("listen"));
        assert_eq!(settings.find("data"), (Some("/environment"), &Source::Environment("AMALGAM_DATA")));
        assert_eq!(settings.find("open-metrics"), (Some("true"), &Source::File(PathBuf::from("s.toml"))));
        assert!(settings.is_on("open-metrics").expect("a switch"));
        assert_eq!(settings.find("rate"), (None, &Source::Default));
        let words = settings.list("nfs-allow", |word| Ok(word.to_owned())).expect("a list");
        assert_eq!(words, ["10.0.0.0/8", "::1/128"]);
    }

    #[test]
    fn a_wrong_value_names_its_setting_and_its_source() {
        let settings =
            resolve(&ServerArgs::default(), &[("AMALGAM_MAX_SANDBOXES", "many")], "listen = 'here'").expect("settings");
        let error = settings.number("max-sandboxes", 1..=9).expect_err("no number").to_string();
        assert!(error.contains("max-sandboxes (environment AMALGAM_MAX_SANDBOXES)"), "{error}");
        let error = settings.listen().expect_err("no address").to_string();
        assert!(error.contains("listen (file s.toml)"), "{error}");
        let error = resolve(&ServerArgs::default(), &[], "port = 1").expect_err("unknown").to_string();
        assert!(error.contains("`port` is no setting"), "{error}");
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("postgres://ann:s3cret@db:5432/x?a=b"), "postgres://ann:***@db:5432/x?a=b");
        for plain in ["postgres://db/x", "postgres://ann@db/x", "postgres:///x?host=/run/a:b@c", "127.0.0.1:80"] {
            assert_eq!(without_password(plain), plain);
        }
    }

    #[test]
    fn every_setting_is_a_flag_but_the_log() {
        let flags = <ServerArgs as Args>::augment_args(clap::Command::new("x"));
        let flags: Vec<_> = flags.get_arguments().filter_map(clap::Arg::get_long).map(str::to_owned).collect();
        let missing: Vec<_> =
            KEYS.iter().map(|key| key.name).filter(|name| !flags.iter().any(|flag| flag == name)).collect();
        assert_eq!(missing, ["log"]);
    }

    /// Compares the tables of the guide with the settings. `UPDATE_DOCS=1` rewrites them.
    #[test]
    fn the_operators_guide_has_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATING.md");
        let page = fs::read_to_string(&path).expect("the page");
        let (begin, end) = ("<!-- settings -->\n", "<!-- end of settings -->\n");
        let (before, rest) = page.split_once(begin).expect("the beginning of the tables");
        let (_, after) = rest.split_once(end).expect("the end of the tables");
        let wanted = format!("{before}{begin}\n{}\n{end}{after}", tables());
        if env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &wanted).expect("written");
        }
        assert_eq!(page, wanted, "UPDATE_DOCS=1 writes the tables anew");
    }
}
