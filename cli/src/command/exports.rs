//! `amalgam exports`: lists what NFS clients can mount. Also the words and JSON lines about exports.

use amalgam_proto::v1;
use amalgam_server::Network;
use clap::Args;
use serde_json::{Value, json};

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::Session;
use crate::text;

/// List workspaces and snapshots that are exported over NFS
#[derive(Debug, Args)]
#[command(after_help = "\
The command prints where the NFS server listens, each export, and the line that mounts it.

Examples:
  amalgam exports
  amalgam exports --commands       also for Docker and Kubernetes")]
pub struct Exports {
    /// Print all commands that mount each export: mount, Docker, Kubernetes
    #[arg(long)]
    commands: bool,
}

impl Exports {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let listed = exports(&mut client).await?;
        if !listed.address.is_empty() {
            let line = json!({"address": listed.address, "connections": listed.connections});
            session.output.emit(&lines::line("nfs_server", line))?;
            let clients = text::plural(u64::from(listed.connections), "client");
            session.output.remark(format!("NFS is served at {}, {clients} connected", listed.address))?;
        }
        for export in &listed.exports {
            session.output.emit(&json_line("nfs_export", export))?;
            let since = text::ago(text::timestamp(export.create_time.as_ref()), session.now);
            session.output.say(format!("{}, since {since}", words(export)))?;
            match self.commands {
                true => say_commands(&mut session.output, export)?,
                false => session.output.say(format!("  {}", commands(export).mount))?,
            }
        }
        for problem in &listed.problems {
            session.output.emit(&lines::line("warning", json!({"message": problem})))?;
            let problem = text::printable(problem);
            session.output.remark(format!("{} {problem}", paint(style::WARNING, "warning:")))?;
        }
        if listed.exports.is_empty() {
            session.output.remark("nothing is exported; `amalgam export nfs WORKSPACE` exports a workspace")?;
        }
        Ok(Exit::OK)
    }
}

/// Returns all exports, and the state of the NFS server.
pub async fn exports(client: &mut Client) -> Result<v1::ListExportsResponse, CliError> {
    Ok(client.exports.list_exports(v1::ListExportsRequest {}).await?.into_inner())
}

/// Returns the commands that mount an export.
pub fn commands(export: &v1::Export) -> v1::MountCommands {
    export.commands.clone().unwrap_or_default()
}

/// Describes an export.
pub fn words(export: &v1::Export) -> String {
    let workspace = paint(style::WORKSPACE, text::id(&export.workspace));
    let what = match export.mode() {
        v1::MountMode::Snapshot => format!("snapshot {}", paint(style::ID, text::short(&export.snapshot))),
        v1::MountMode::Follow => format!("the last snapshot of {workspace}"),
        v1::MountMode::ReadWrite | v1::MountMode::Unspecified => workspace,
    };
    let mut words = format!("{}: {what}", text::printable(&export.path));
    for (holds, word) in [
        (export.read_only, ", read-only"),
        (export.path != export.mount_path, ", with a secret"),
        (export.trusts_users, ", user ids trusted"),
        (export.in_use, ", in use"),
    ] {
        if holds {
            words.push_str(word);
        }
    }
    let is_local = |network: &String| network.parse().is_ok_and(|network: Network| network.is_loopback());
    match export.allow.iter().all(is_local) {
        true => words.push_str(", for this machine"),
        false => words.push_str(&format!(", for {}", export.allow.join(" "))),
    }
    words
}

/// Prints the commands that mount an export.
pub fn say_commands(output: &mut Output, export: &v1::Export) -> Result<(), CliError> {
    let commands = commands(export);
    output.say("  on a Linux machine, as root:")?;
    output.say(format!("    {}", commands.mount))?;
    output.say("  for Docker:")?;
    output.say(format!("    {}", commands.docker))?;
    output.say("  for Kubernetes:")?;
    commands.kubernetes.lines().try_for_each(|line| output.say(format!("    {line}")))
}

/// Returns the JSON line of an export, of the type `kind`.
pub fn json_line(kind: &str, export: &v1::Export) -> Value {
    let commands = commands(export);
    let workspace = (!export.workspace.is_empty()).then(|| text::id(&export.workspace));
    let snapshot = (!export.snapshot.is_empty()).then(|| text::id(&export.snapshot));
    let mode = match export.mode() {
        v1::MountMode::Snapshot => "snapshot",
        v1::MountMode::Follow => "follow",
        v1::MountMode::ReadWrite | v1::MountMode::Unspecified => "live",
    };
    lines::line(
        kind,
        json!({
            "path": export.path,
            "mode": mode,
            "workspace": workspace,
            "snapshot": snapshot,
            "read_only": export.read_only,
            "allow": export.allow,
            "mount_path": export.mount_path,
            "trusts_users": export.trusts_users,
            "host": export.host,
            "port": export.port,
            "in_use": export.in_use,
            "create_time": lines::time(export.create_time.as_ref()),
            "mount_command": commands.mount,
            "docker_command": commands.docker,
            "kubernetes_volume": commands.kubernetes,
        }),
    )
}
