//! Sandboxes on this machine by bubblewrap: no root, no Docker.
//!
//! A sandbox sees the host's `/usr` read-only, its workspace, a home with its `/tmp`, and a `/dev/shm` of its own in memory. Its user,
//! mounts, processes, IPC, host name and (unless the server allows otherwise) network are its own; it has no capability and gets none.
//! Where the kernel has Landlock, its commands write nothing but the workspace, the home and `/dev`, even if a mount permits more.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::bwrap::{BWRAP, Confinement, ETC, isolation, root_entries, words};
use crate::cgroup::Cgroups;
use crate::confinement::landlock_version;
use crate::error::{Result, SandboxError};
use crate::limits::{Enforced, Limits};
use crate::process::{self, living};
use crate::propagation;
use crate::runtime::{MountPlace, Network, Runtime, StartSpec, Started, Template};
use crate::seccomp;

/// The template with the programs of the host.
pub const HOST_TEMPLATE: &str = "host";
/// How long bubblewrap may take to make the namespaces.
const START_WITHIN: Duration = Duration::from_secs(10);
/// How long killed processes may take to go.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Read limit for the information that bubblewrap writes about a sandbox, which is shorter.
const INFO_BYTES_MAX: usize = 4_096;
/// Joins control groups, then becomes bubblewrap: no process of the sandbox is ever outside.
const JOIN: &str = "\
    while [ \"$1\" != -- ]; do echo $$ > \"$1\" || exit 125; shift; done; shift; exec \"$@\"";

/// Options of the local runtime.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The program of the agent.
    pub agent: PathBuf,
    /// Whether a sandbox may have the network of the host.
    pub allows_host_network: bool,
    /// Whether Landlock restricts writes of sandboxes that outlive the server, too. Processes that run when the server ends can then not
    /// write the workspace that the next server mounts.
    pub has_strict_landlock: bool,
}

/// Starts sandboxes on this machine.
#[derive(Debug)]
pub struct LocalRuntime {
    options: LocalOptions,
    cgroups: Cgroups,
    is_root: bool,
    /// The version of Landlock, or why there is none.
    landlock: std::result::Result<i32, String>,
    /// Channels by the handle of a sandbox; each becomes true when the processes of its sandbox have ended.
    monitors: Arc<Mutex<HashMap<String, watch::Receiver<bool>>>>,
}

impl LocalRuntime {
    /// Creates a runtime. It finds the control groups that this process may divide, and the version of Landlock.
    pub fn new(options: LocalOptions) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let landlock = landlock_version();
        if let Err(why) = &landlock {
            warn!(why, "sandboxes have no Landlock; mounts alone keep them from writing");
        }
        Self { options, cgroups: Cgroups::find(), is_root, landlock, monitors: Arc::default() }
    }

    fn check(&self, spec: &StartSpec) -> Result<()> {
        if spec.template != HOST_TEMPLATE && spec.root.is_none() {
            return Err(SandboxError::NoTemplate(spec.template.clone()));
        }
        let refused = |why: &str| Err(SandboxError::NotStarted(why.to_owned()));
        match spec.network {
            Network::Host if !self.options.allows_host_network => refused("this server gives sandboxes no network"),
            Network::Bridge => refused("the local runtime has no network `bridge`; the runtime `docker` has"),
            Network::None | Network::Host => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Runtime for LocalRuntime {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> Result<()> {
        if !self.options.agent.is_file() {
            let why = format!("the program of the agent is not at {}", self.options.agent.display());
            return Err(SandboxError::NotIsolated { why });
        }
        let mut command = Command::new(BWRAP);
        command.args(isolation(Network::None)).args(["--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/true"]);
        let tried = command.stdin(Stdio::null()).output().await;
        let why = match tried {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                format!(
                    "bubblewrap says `{said}`; allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
                     kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap; in Docker a seccomp profile \
                     that permits them)"
                )
            }
            Err(error) => format!("bubblewrap cannot be started ({error}); install the package bubblewrap"),
        };
        Err(SandboxError::NotIsolated { why })
    }

    async fn has_template(&self, name: &str) -> Result<bool> {
        Ok(name == HOST_TEMPLATE)
    }

    async fn templates(&self) -> Vec<Template> {
        vec![Template {
            name: HOST_TEMPLATE.to_owned(),
            description: "the programs of the server's host, read-only".to_owned(),
            tags: vec!["local".to_owned()],
        }]
    }

    fn enforce(&self, limits: &Limits) -> Result<Vec<Enforced>> {
        let mut enforced = limits.enforce(self.cgroups.means(self.is_root))?;
        enforced.push(Enforced::landlock(self.landlock.as_ref().map_err(String::as_str)));
        Ok(enforced)
    }

    async fn start(&self, spec: &StartSpec) -> Result<Started> {
        self.check(spec)?;
        let enforced = self.enforce(&spec.limits)?;
        prepare(spec).map_err(SandboxError::io("the files of a sandbox"))?;
        let groups =
            self.cgroups.create(&spec.id, &spec.limits).map_err(SandboxError::io("the control groups of a sandbox"))?;
        match self.spawn(spec, &groups).await {
            Ok(handle) => {
                info!(sandbox = spec.id, handle, "sandbox started");
                Ok(Started { handle, enforced })
            }
            Err(error) => {
                self.cgroups.remove(&spec.id);
                Err(error)
            }
        }
    }

    async fn stop(&self, id: &str, handle: &str) {
        if let Some(pid) = living(handle) {
            // Its first process: the kernel ends all others with it.
            let _ = kill_process(pid, Signal::KILL);
            if tokio::time::timeout(STOP_WITHIN, self.ended(handle)).await.is_err() {
                warn!(sandbox = id, handle, "the processes of a sandbox do not end");
            }
        }
        self.cgroups.remove(id);
    }

    async fn last_words(&self, _: &str, files: &Path) -> String {
        std::fs::read_to_string(files.join("agent.log")).unwrap_or_default().trim().to_owned()
    }

    fn carries_mounts(&self, directory: &Path) -> bool {
        propagation::carries_mounts(directory, self.is_root)
    }

    fn release(&self, directory: &Path) {
        if self.is_root {
            propagation::release(directory);
        }
    }

    fn sees_mount(&self, handle: &str, place: MountPlace) -> bool {
        living(handle).is_some_and(|pid| propagation::sees_mount(pid.as_raw_nonzero().get(), place.path()))
    }

    fn is_alive(&self, handle: &str) -> bool {
        living(handle).is_some()
    }

    async fn ended(&self, handle: &str) {
        let monitor = self.monitors.lock().get(handle).cloned();
        if let Some(mut monitor) = monitor {
            // An error says that the monitor was forgotten, because it has ended.
            let _ = monitor.wait_for(|has_ended| *has_ended).await;
        }
        // One that an earlier server started is no child of this process.
        process::ended(handle).await;
    }
}

impl LocalRuntime {
    fn confinement(&self, spec: &StartSpec) -> Confinement {
        match self.landlock {
            Err(_) => Confinement::None,
            // Rules for writes name the mounts of this server.
            Ok(_) if spec.is_mounted_later && !self.options.has_strict_landlock => Confinement::Scope,
            Ok(_) => Confinement::Writes,
        }
    }

    /// Starts bubblewrap. Returns the handle of the sandbox's first process.
    async fn spawn(&self, spec: &StartSpec, groups: &[PathBuf]) -> Result<String> {
        let failed = |error| SandboxError::io("start bubblewrap")(error);
        let log = std::fs::File::options().create(true).append(true).open(spec.files.join("agent.log"));
        let mut command = Command::new(if groups.is_empty() { BWRAP } else { "/bin/sh" });
        if !groups.is_empty() {
            command.args(["-c", JOIN, "sh"]).args(groups).args(["--", BWRAP]);
        }
        // Open until bubblewrap was started, which reads them.
        let filters = seccomp::filter_files().map_err(failed)?;
        let root = spec.root.as_deref().map_or(Ok(Vec::new()), root_entries).map_err(failed)?;
        command
            .args(words(spec, &self.options.agent, &filters, &root, self.confinement(spec)))
            .current_dir("/")
            .process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        drop(filters);
        let mut stdout = child.stdout.take().ok_or_else(|| failed(std::io::Error::other("no standard output")))?;
        let mut info = Vec::new();
        let reading = async {
            let mut block = [0; 512];
            while info.len() < INFO_BYTES_MAX && !info.ends_with(b"}\n") {
                match stdout.read(&mut block).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => info.extend_from_slice(&block[..read]),
                }
            }
        };
        let _ = tokio::time::timeout(START_WITHIN, reading).await;
        let pid = child_pid(&String::from_utf8_lossy(&info));
        let handle = pid.and_then(process::handle_of);
        let Some(handle) = handle else {
            let _ = child.kill().await;
            let said = std::fs::read_to_string(spec.files.join("agent.log")).unwrap_or_default();
            return Err(SandboxError::NotStarted(said.trim().to_owned()));
        };
        let (ended, monitor) = watch::channel(false);
        self.monitors.lock().insert(handle.clone(), monitor);
        let (monitors, name) = (Arc::clone(&self.monitors), handle.clone());
        tokio::spawn(async move {
            // Bubblewrap waits for the first process in the sandbox.
            let _ = child.wait().await;
            ended.send_replace(true);
            monitors.lock().remove(&name);
        });
        Ok(handle)
    }
}

/// Writes the files that a sandbox is shown.
fn prepare(spec: &StartSpec) -> std::io::Result<()> {
    for (name, text) in ETC {
        std::fs::write(spec.files.join(name), text)?;
    }
    spec.write_secret()
}

/// Reads the id of the first process from the information that bubblewrap writes.
fn child_pid(info: &str) -> Option<i32> {
    let after = info.split_once("\"child-pid\":")?.1.trim_start();
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_is_read_from_what_bubblewrap_says() {
        assert_eq!(child_pid("{\n    \"child-pid\": 4711,\n    \"ipc-namespace\": 1\n}\n"), Some(4_711));
        for bad in ["", "{}", "{\"child-pid\": }", "\"child-pid\": x"] {
            assert_eq!(child_pid(bad), None, "{bad}");
        }
    }
}
