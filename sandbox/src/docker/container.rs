//! A sandbox as a container: what the engine is asked to create.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, ImageConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType,
};

use crate::bwrap::{AGENT, HOME_PROGRAMS, LINK, NPM_PREFIX, PATH, SECRETS, SECRETS_BYTES_MAX, TMPFS_BYTES_MAX};
use crate::error::{Result, SandboxError};
use crate::runtime::{HOME, Network, StartSpec, TEMPORARY_DIRECTORY};

/// The label with the id of the server that a container belongs to.
pub(super) const SERVER_LABEL: &str = "dev.amalgam.server";
/// The label with the id of the sandbox.
pub(super) const SANDBOX_LABEL: &str = "dev.amalgam.sandbox";
/// The label of an image whose sandboxes may write outside of the workspace: `writable`.
const ROOT_LABEL: &str = "dev.amalgam.root";
const WRITABLE: &str = "writable";
const NANOSECONDS_PER_CPU: f64 = 1e9;
/// The log of an agent is short.
const LOG_BYTES_MAX: &str = "1m";

/// Parameters that all containers of a server share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common<'a> {
    pub(super) server_id: &'a str,
    pub(super) agent: &'a Path,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The network of sandboxes that ask for one.
    pub(super) network: Option<&'a str>,
}

/// Builds the request that creates the container of a sandbox. `image` is the configuration of its image.
pub(super) fn body(spec: &StartSpec, common: Common<'_>, image: &ImageConfig) -> Result<ContainerCreateBody> {
    let (uid, gid) = (common.uid, common.gid);
    let has_label = image.labels.iter().flatten().any(|(name, value)| name == ROOT_LABEL && value == WRITABLE);
    let labels = [(SERVER_LABEL, common.server_id), (SANDBOX_LABEL, spec.id.as_str())];
    let host = HostConfig {
        mounts: Some(mounts(spec, common)?),
        tmpfs: Some(tmpfs(uid, gid, image)),
        readonly_rootfs: Some(!has_label),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        privileged: Some(false),
        // The agent reaps orphans.
        init: Some(false),
        nano_cpus: Some(integer((spec.limits.cpus * NANOSECONDS_PER_CPU).round())),
        memory: i64::try_from(spec.limits.memory_bytes).ok(),
        // Memory and swap together: no swap.
        memory_swap: i64::try_from(spec.limits.memory_bytes).ok(),
        pids_limit: i64::try_from(spec.limits.pids).ok(),
        shm_size: TMPFS_BYTES_MAX.parse().ok(),
        network_mode: Some(network(spec.network, common.network)?),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        auto_remove: Some(false),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(owned(&[("max-size", LOG_BYTES_MAX), ("max-file", "1")])),
        }),
        ..HostConfig::default()
    };
    Ok(ContainerCreateBody {
        image: Some(spec.template.clone()),
        hostname: Some("sandbox".to_owned()),
        user: Some(format!("{uid}:{gid}")),
        entrypoint: Some(vec![AGENT.to_owned()]),
        cmd: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        env: Some(environment(&spec.id, image)),
        labels: Some(owned(&labels)),
        // Commands that the image would run beside those of the caller.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        attach_stdin: Some(false),
        attach_stdout: Some(false),
        attach_stderr: Some(false),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    })
}

fn owned(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[allow(clippy::cast_possible_truncation, reason = "CPUs are few and not negative")]
fn integer(number: f64) -> i64 {
    number as i64
}

/// Returns the mounts of a container: the agent, the link, the workspace and the home. The socket of the engine is never mounted.
fn mounts(spec: &StartSpec, common: Common<'_>) -> Result<Vec<Mount>> {
    // The next server mounts workspace and home again; the container gets these mounts, and the host gets none of the container's.
    let propagation = match spec.is_mounted_later {
        true => MountBindOptionsPropagationEnum::RSLAVE,
        false => MountBindOptionsPropagationEnum::RPRIVATE,
    };
    // Below a mount that comes later nothing may be written: it would not be in the workspace.
    let is_read_only = spec.is_read_only || spec.is_mounted_later;
    let rprivate = MountBindOptionsPropagationEnum::RPRIVATE;
    Ok(vec![
        bind(common.agent, AGENT, true, rprivate)?,
        bind(&spec.link, LINK, true, rprivate)?,
        bind(&spec.workspace, "/workspace", is_read_only, propagation)?,
        bind(&spec.home, HOME, spec.is_mounted_later, propagation)?,
    ])
}

fn bind(
    source: &Path,
    target: &str,
    is_read_only: bool,
    propagation: MountBindOptionsPropagationEnum,
) -> Result<Mount> {
    let text = source.to_str().ok_or_else(|| {
        let why = format!("the engine takes paths in UTF-8 only, and {} is none", source.display());
        SandboxError::NotStarted(why)
    })?;
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(text.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(is_read_only),
        bind_options: Some(MountBindOptions { propagation: Some(propagation), ..MountBindOptions::default() }),
        ..Mount::default()
    })
}

/// Returns the directories in memory. The volumes of the image are among them: as volumes they would be on the host's disk, without
/// a limit.
fn tmpfs(uid: u32, gid: u32, image: &ImageConfig) -> HashMap<String, String> {
    let sized = format!("rw,exec,nosuid,nodev,size={TMPFS_BYTES_MAX}");
    // A volume at a mount of the container, or above one, would hide it.
    let is_own = |path: &str| [AGENT, LINK, "/workspace", HOME].iter().any(|own| Path::new(own).starts_with(path));
    let mut all = HashMap::new();
    for volume in image.volumes.iter().flatten().filter_map(|volume| cleaned(volume)) {
        if !is_own(&volume) {
            all.insert(volume, format!("{sized},mode=0755,uid={uid},gid={gid}"));
        }
    }
    all.insert("/tmp".to_owned(), format!("{sized},mode=1777"));
    let secrets = format!("rw,noexec,nosuid,nodev,size={SECRETS_BYTES_MAX},mode=0700,uid={uid},gid={gid}");
    all.insert(SECRETS.to_owned(), secrets);
    all
}

/// Returns an absolute path as the engine reads it: without empty parts, `.`, `..` and a slash at the end. Returns `None` for a
/// relative path.
fn cleaned(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.strip_prefix('/')?.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// Returns the environment variables that are added to those of the image.
fn environment(id: &str, image: &ImageConfig) -> Vec<String> {
    let has = |name: &str| image.env.iter().flatten().any(|one| one.split('=').next() == Some(name));
    let mut all = vec![
        format!("HOME={HOME}"),
        // An image has a `/tmp` of its own, which stays in memory.
        format!("TMPDIR={HOME}/{TEMPORARY_DIRECTORY}"),
        "USER=sandbox".to_owned(),
        format!("SANDBOX_ID={id}"),
        format!("AMALGAM_LINK={LINK}"),
    ];
    let path = image.env.iter().flatten().find_map(|one| one.strip_prefix("PATH="));
    all.push(format!("PATH={HOME_PROGRAMS}:{}", path.unwrap_or(PATH)));
    for (name, value) in [("LANG", "C.UTF-8"), ("SHELL", "/bin/sh"), NPM_PREFIX] {
        if !has(name) {
            all.push(format!("{name}={value}"));
        }
    }
    all
}

fn network(asked: Network, allowed: Option<&str>) -> Result<String> {
    match (asked, allowed) {
        (Network::None, _) => Ok("none".to_owned()),
        (Network::Bridge, Some(network)) => Ok(network.to_owned()),
        (Network::Bridge, None) => {
            let why = "this server gives containers no network; its operator can name one (docker-network)";
            Err(SandboxError::NotStarted(why.to_owned()))
        }
        (Network::Host, _) => {
            let why = "a container does not get the network of the host; give `bridge` or `none`";
            Err(SandboxError::NotStarted(why.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limits::Limits;
    use crate::runtime::Progress;
    use crate::secret::Secret;

    fn spec() -> StartSpec {
        StartSpec {
            id: "sbx-1".to_owned(),
            template: "python:3.12".to_owned(),
            link: "/s/link".into(),
            root: None,
            files: "/s/files".into(),
            workspace: "/s/workspace".into(),
            home: "/s/home".into(),
            is_read_only: false,
            is_mounted_later: true,
            secret: Secret::generate().expect("random"),
            network: Network::None,
            limits: Limits { cpus: 0.5, memory_bytes: 1 << 20, pids: 9, ..Limits::default() },
            progress: Progress(Arc::new(|_| {})),
        }
    }

    fn common(network: Option<&'static str>) -> Common<'static> {
        Common { server_id: "srv", agent: Path::new("/a/agent"), uid: 1_000, gid: 1_001, network }
    }

    #[test]
    fn a_container_has_limits_no_capability_and_none_of_the_hosts_sockets() {
        let spec = spec();
        let body = body(&spec, common(None), &ImageConfig::default()).expect("a container");
        let text = serde_json::to_string(&body).expect("JSON");
        assert!(!text.contains(spec.secret.reveal()) && !text.contains("docker.sock"), "{text}");
        assert_eq!(body.user.as_deref(), Some("1000:1001"));
        let host = body.host_config.expect("a host configuration");
        assert_eq!(host.nano_cpus, Some(500_000_000));
        assert_eq!((host.memory, host.memory_swap, host.pids_limit), (Some(1 << 20), Some(1 << 20), Some(9)));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges:true".to_owned()]));
        assert_eq!((host.readonly_rootfs, host.privileged), (Some(true), Some(false)));
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        let mounts = host.mounts.expect("mounts");
        assert_eq!(mounts.len(), 4);
        assert!(mounts.iter().all(|mount| mount.read_only == Some(true)), "nothing below a mount that comes later");
        let workspace = mounts.iter().find(|mount| mount.target.as_deref() == Some("/workspace")).expect("mounted");
        let propagation = workspace.bind_options.as_ref().and_then(|options| options.propagation);
        assert_eq!(propagation, Some(MountBindOptionsPropagationEnum::RSLAVE));
    }

    #[test]
    fn an_image_says_whether_its_root_is_writable_and_its_volumes_are_in_memory() {
        let image = ImageConfig {
            labels: Some(owned(&[(ROOT_LABEL, WRITABLE)])),
            volumes: Some(vec!["/data".to_owned(), "/run".to_owned(), "/workspace".to_owned(), "relative".to_owned()]),
            env: Some(vec!["LANG=de_DE.UTF-8".to_owned(), "PATH=/opt/bin".to_owned()]),
            ..ImageConfig::default()
        };
        let body = body(&spec(), common(None), &image).expect("a container");
        let host = body.host_config.expect("a host configuration");
        assert_eq!(host.readonly_rootfs, Some(false));
        let mut places: Vec<_> = host.tmpfs.expect("in memory").into_keys().collect();
        places.sort();
        assert_eq!(places, ["/data", SECRETS, "/tmp"]);
        let variables = body.env.expect("variables");
        assert!(!variables.iter().any(|one| one.starts_with("LANG=")));
        assert!(variables.contains(&"PATH=/sandbox/.local/bin:/opt/bin".to_owned()), "{variables:?}");
    }

    #[test]
    fn volumes_at_the_mounts_of_a_container_are_left_out_in_each_spelling() {
        let places = |volumes: &[&str]| {
            let volumes = Some(volumes.iter().map(|volume| (*volume).to_owned()).collect());
            let image = ImageConfig { volumes, ..ImageConfig::default() };
            let mut places: Vec<_> = tmpfs(1_000, 1_001, &image).into_keys().collect();
            places.sort();
            places
        };
        let own = ["/", "/workspace/", "//workspace", "/x/../workspace/.", "/sandbox/", "/run/", LINK, AGENT];
        assert_eq!(places(&own), [SECRETS, "/tmp"]);
        assert_eq!(
            places(&["/tmp/", "/run/amalgam/secrets/", "/workspaces", "/data/"]),
            ["/data", SECRETS, "/tmp", "/workspaces"]
        );
    }

    #[test]
    fn a_network_is_given_only_where_the_operator_names_one() {
        let with = |network, allowed| {
            let body = body(&StartSpec { network, ..spec() }, common(allowed), &ImageConfig::default());
            body.map(|body| body.host_config.and_then(|host| host.network_mode).expect("a mode"))
        };
        assert_eq!(with(Network::Bridge, Some("agents")).expect("allowed"), "agents");
        assert!(with(Network::Bridge, None).is_err());
        assert!(with(Network::Host, Some("agents")).is_err());
        assert_eq!(with(Network::None, Some("agents")).expect("none"), "none");
    }
}
