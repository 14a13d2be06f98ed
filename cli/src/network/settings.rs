//! The options of a server on the network, from its settings.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amalgam_gateway::{
    AccessSetting, Authentication, ClusterOptions, DockerSettings, HostRule, RatePreset, RuntimeChoice, SandboxOptions,
    ServerOptions, TlsFiles, WebhookOptions,
};
use amalgam_server::{Home, HostFeatures, Network, NfsListen};

use crate::error::CliError;
use crate::serve_settings::ServerSettings;

/// The file of the catalog in a data directory or in the home of a store.
pub const CATALOG: &str = "catalog.db";
/// The file of the audit log in the same directory.
const AUDIT_LOG: &str = "audit.log";
/// The word for no runtime of sandboxes.
const NO_RUNTIME: &str = "none";
/// The directory of sandboxes.
const SANDBOXES: &str = "sandboxes";
/// The program of the agent in a sandbox.
const AGENT: &str = "amalgam-agent";
/// The usual socket of a Docker engine.
const DOCKER_HOST: &str = "unix:///var/run/docker.sock";
/// Connections of a node to the database of its cluster, beside those of the catalog.
const CLUSTER_CONNECTIONS: u32 = 16;
/// Size of the cache of a node on its disk.
const NODE_CACHE_BYTES: u64 = 4_000_000_000;

/// Options of a server on the network: its data, its addresses and its services.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// The directory of many projects; without one the local store is served as project `default`.
    pub data: Option<PathBuf>,
    /// The cluster that the server is a node of, if it is.
    pub cluster: Option<ClusterOptions>,
    /// The size of a node's cache on its disk; 0 for none.
    pub node_cache_bytes: u64,
    /// The home of the local store.
    pub home: PathBuf,
    /// Where the exports of the local store are served over NFS, if they are.
    pub nfs: Option<NfsListen>,
    /// How the server listens, which callers it accepts, and how it starts sandboxes.
    pub server: ServerOptions,
    /// The collector that gets traces, if there is one.
    pub otlp_endpoint: Option<String>,
}

impl NetworkOptions {
    /// Reads the options. `home` is that of the local store.
    pub fn load(
        settings: &ServerSettings,
        listen: SocketAddr,
        nfs: Option<NfsListen>,
        home: &Path,
    ) -> Result<Self, CliError> {
        settings.require("cluster", "bucket")?;
        settings.require("bucket", "cluster")?;
        settings.require("tls-cert", "tls-key")?;
        settings.require("tls-key", "tls-cert")?;
        settings.require("tls-client-ca", "tls-cert")?;
        let tls = settings.path("tls-cert").zip(settings.path("tls-key"));
        let client_authorities = settings.path("tls-client-ca");
        let is_open = settings.is_on("insecure-no-auth")?;
        let (data, cluster) = (settings.path("data"), cluster(settings));
        // A sandbox mounts its workspace, which only the node that holds it can.
        let sandboxes = match cluster {
            None => sandboxes(settings, data.as_deref(), &Home::new(home))?,
            Some(_) => None,
        };
        let e2b = settings.e2b()?;
        if e2b.is_some() && sandboxes.is_none() {
            return Err(CliError::usage("e2b clients use sandboxes, which this server has not; leave out e2b"));
        }
        let otlp_endpoint = settings.text("otlp-endpoint").map(str::to_owned);
        let server = ServerOptions {
            listen,
            e2b,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key, client_authorities }),
            is_behind_tls_proxy: settings.is_on("behind-tls-proxy")?,
            authentication: if is_open { Authentication::Off } else { Authentication::Keys },
            metrics_open: settings.is_on("open-metrics")?,
            rates: rates(settings)?,
            webhooks: webhooks(settings)?,
            audit_log: Some(data.as_deref().unwrap_or(home).join(AUDIT_LOG)),
            sandboxes,
            has_traces: otlp_endpoint.is_some(),
        };
        let node_cache_bytes = settings.size("node-cache")?.unwrap_or(NODE_CACHE_BYTES);
        Ok(Self { data, cluster, node_cache_bytes, home: home.to_owned(), nfs, server, otlp_endpoint })
    }

    /// Returns the features of the stores of projects: without sandboxes they need nothing of the host. The local store has all
    /// features, for its user.
    pub fn host_features(&self) -> HostFeatures {
        let is_local = self.data.is_none() && self.cluster.is_none();
        match is_local || self.server.sandboxes.is_some() {
            true => HostFeatures::Enabled,
            false => HostFeatures::Disabled,
        }
    }

    /// Returns the directory of the catalog, the lock and the audit log.
    pub fn directory(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| self.home.clone())
    }
}

/// Returns the cluster whose projects are served, or `None` if the server is not a node of a cluster.
fn cluster(settings: &ServerSettings) -> Option<ClusterOptions> {
    let (database, bucket) = settings.text("cluster").zip(settings.text("bucket"))?;
    Some(ClusterOptions {
        database: database.to_owned(),
        bucket: bucket.to_owned(),
        connections: CLUSTER_CONNECTIONS,
        cache: None,
    })
}

/// Reads the settings of the delivery of webhooks.
fn webhooks(settings: &ServerSettings) -> Result<WebhookOptions, CliError> {
    let default = WebhookOptions::default();
    let seconds = settings.number("webhook-timeout", 1..=60)?.map(u64::from);
    Ok(WebhookOptions {
        timeout: seconds.map_or(default.timeout, Duration::from_secs),
        retries: settings.number("webhook-retries", 0..=20)?.unwrap_or(default.retries),
        allow: settings.list("webhook-allow", |word| word.parse::<Network>().map_err(|error| error.to_string()))?,
        authorities: settings.path("webhook-ca"),
        ..default
    })
}

/// Reads the settings of sandboxes. Returns `None` for a server without sandboxes.
fn sandboxes(settings: &ServerSettings, data: Option<&Path>, home: &Home) -> Result<Option<SandboxOptions>, CliError> {
    let is_none = settings.parsed("sandbox-runtimes", |text| {
        let mut words = text.split(',').map(str::trim);
        match (words.any(|word| word == NO_RUNTIME), text.trim() == NO_RUNTIME) {
            (true, false) => Err(format!("`{NO_RUNTIME}` stands alone; leave it out to have sandboxes")),
            (_, is_none) => Ok(is_none),
        }
    })?;
    if is_none == Some(true) {
        return Ok(None);
    }
    let host = settings.text("docker-host").unwrap_or(DOCKER_HOST);
    let network = settings.text("docker-network").filter(|network| *network != "none");
    let pulls = settings.is_on("docker-pull")?;
    let runtimes = settings.list("sandbox-runtimes", |word| match word {
        "local" => Ok(RuntimeChoice::Local),
        "docker" => {
            let unix = |path: &str| format!("docker-host is `{path}`, and only unix:// and a path can be used");
            let socket = host.strip_prefix("unix://").filter(|path| path.starts_with('/')).ok_or_else(|| unix(host))?;
            let network = network.map(str::to_owned);
            Ok(RuntimeChoice::Docker(DockerSettings { socket: socket.into(), network, pulls }))
        }
        _ => Err(format!("`{word}` is neither local nor docker nor {NO_RUNTIME}")),
    })?;
    let number = |name: &str| {
        let number = settings.number(name, 1..=10_000)?;
        Ok::<_, CliError>(number.and_then(|value| usize::try_from(value).ok()))
    };
    let mut options = sandbox_options(data, home)?;
    if !runtimes.is_empty() {
        options.runtimes = runtimes;
    }
    options.workspace_access =
        settings.list("workspace-access", str::parse::<AccessSetting>)?.pop().unwrap_or_default();
    options.total_max = number("max-sandboxes")?.unwrap_or(options.total_max);
    options.per_key_max = number("max-sandboxes-per-key")?.unwrap_or(options.per_key_max);
    options.has_strict_landlock = settings.is_on("strict-landlock")?;
    options.port_domain = settings.port_domain()?;
    options.hosts = settings.list("sandbox-hosts", str::parse::<HostRule>)?;
    options.networks =
        settings.list("sandbox-networks", |word| word.parse::<Network>().map_err(|error| error.to_string()))?;
    Ok(Some(options))
}

/// Returns the options of sandboxes, with the agent program that lies beside this program.
pub fn sandbox_options(data: Option<&Path>, home: &Home) -> Result<SandboxOptions, CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::machine("the path of this program", &error))?;
    // A workspace may be mounted outside of the home of its store, or among its forks.
    let directory = match data {
        Some(data) => data.join(SANDBOXES),
        None => home.forks_path().join(SANDBOXES),
    };
    // The paths in the kernel's table of mounts are absolute.
    let directory = std::path::absolute(directory).map_err(|error| CliError::machine("the data directory", &error))?;
    Ok(SandboxOptions::new(directory, program.with_file_name(AGENT)))
}

/// Reads the rate limits of a key, in calls per minute.
fn rates(settings: &ServerSettings) -> Result<RatePreset, CliError> {
    Ok(settings.parsed("rate", parse_rate)?.unwrap_or(RatePreset::DEFAULT))
}

fn parse_rate(text: &str) -> Result<RatePreset, String> {
    match text {
        "default" => Ok(RatePreset::DEFAULT),
        "strict" => Ok(RatePreset::STRICT),
        number => {
            let number = number.parse().map_err(|_| "write `default`, `strict` or a number above 0".to_owned())?;
            Ok(RatePreset::uniform(number))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve_settings::ServerArgs;

    fn load(file: &str) -> Result<NetworkOptions, CliError> {
        let settings = ServerSettings::resolve(&ServerArgs::default(), |_| None, Some(("s.toml".into(), file.into())))?;
        NetworkOptions::load(&settings, "127.0.0.1:0".parse().expect("an address"), None, Path::new("/local"))
    }

    #[test]
    fn only_a_server_with_sandboxes_and_the_local_store_use_features_of_the_host() {
        for (file, has_sandboxes, host) in [
            ("data = '/data'", true, HostFeatures::Enabled),
            ("data = '/data'\nsandbox-runtimes = 'none'", false, HostFeatures::Disabled),
            ("", true, HostFeatures::Enabled),
            ("sandbox-runtimes = ' none '", false, HostFeatures::Enabled),
            ("data = '/data'\ncluster = 'postgres://host/db'\nbucket = 's3://bucket'", false, HostFeatures::Disabled),
        ] {
            let options = load(file).expect("options");
            let audit = if options.data.is_some() { "/data/audit.log" } else { "/local/audit.log" };
            assert_eq!(options.server.audit_log.as_deref(), Some(Path::new(audit)), "{file}");
            assert_eq!((options.server.sandboxes.is_some(), options.host_features()), (has_sandboxes, host), "{file}");
        }
        for wrong in ["none,local", "local, none", "nothing"] {
            let error = load(&format!("sandbox-runtimes = '{wrong}'")).expect_err("refused");
            assert!(
                error.message.contains("sandbox-runtimes (") && error.message.contains("none"),
                "{}",
                error.message
            );
        }
        let error = load("data = '/data'\nsandbox-runtimes = 'none'\ne2b = '127.0.0.1:0'").expect_err("refused");
        assert!(error.message.contains("e2b"), "{}", error.message);
    }

    #[test]
    fn settings_of_sandboxes_are_read() {
        let sandboxes = |file: &str| load(file).expect("options").server.sandboxes.expect("sandboxes");
        let default = sandboxes("");
        assert_eq!(default.runtimes, [RuntimeChoice::Local]);
        let chosen = sandboxes("max-sandboxes = 7\nmax-sandboxes-per-key = 3\nstrict-landlock = true");
        assert_eq!((chosen.total_max, chosen.per_key_max, chosen.has_strict_landlock), (7, 3, true));
        assert!((default.total_max, default.has_strict_landlock) != (7, true));
        let both = sandboxes("data = '/data'\nsandbox-runtimes = 'docker,local'\nworkspace-access = 'checkout'");
        assert!(matches!(both.runtimes[..], [RuntimeChoice::Docker(_), RuntimeChoice::Local]));
        assert_eq!(both.directory, Path::new("/data/sandboxes"));
    }

    #[test]
    fn a_rate_is_a_name_or_a_number_above_zero() {
        assert_eq!(parse_rate("default"), Ok(RatePreset::DEFAULT));
        assert_eq!(parse_rate("strict"), Ok(RatePreset::STRICT));
        assert_eq!(parse_rate("7").expect("a number").create_sandbox.get(), 7);
        for wrong in ["fast", "0", "-1", ""] {
            assert!(parse_rate(wrong).expect_err(wrong).contains("above 0"), "{wrong}");
        }
    }
}
