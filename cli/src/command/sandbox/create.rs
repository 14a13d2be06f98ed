//! `amalgam sandbox create`.

use amalgam_proto::v1;
use clap::Args;

use super::listing::sandbox_json;
use crate::command::sandbox_calls::{duration, failure, variables};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::{Session, workspace_name};
use crate::text;

/// Start a sandbox, and print its id
///
/// Without --from and --workspace its workspace is new and empty.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam sandbox create --from main
  amalgam sandbox create --workspace agents/a --timeout 4h --memory 1g --best-effort
  id=$(amalgam sandbox create -q --from main) && amalgam exec $id -- make test")]
pub struct Create {
    #[command(flatten)]
    options: CreateOptions,
    /// Work in this existing workspace
    #[arg(short, long, value_name = "NAME", conflicts_with = "from")]
    workspace: Option<String>,
    /// Start with the files of a workspace or a snapshot, in a new workspace
    #[arg(long, value_name = "REV")]
    from: Option<String>,
    /// How long it lives, at most 24h [default: 1h]
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
}

/// The options of every command that starts a sandbox.
#[derive(Debug, Args)]
pub struct CreateOptions {
    /// The name of the sandbox
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// The template: host, a name of `amalgam sandbox templates`, a Docker image, or snapshot:REV
    #[arg(long, value_name = "TEMPLATE", default_value = "host")]
    template: String,
    /// An environment variable of all its commands: NAME=VALUE, or NAME alone to pass on its local value; repeatable
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// CPUs, as in 2 or 0.5
    #[arg(long, value_name = "NUMBER", default_value = "", hide_default_value = true)]
    cpu: String,
    /// Memory, as in 512m or 2g
    #[arg(long, value_name = "SIZE", default_value = "", hide_default_value = true)]
    memory: String,
    /// Bytes that workspace and home may hold beside their last snapshot, each, as in 10g
    #[arg(long, value_name = "SIZE", default_value = "", hide_default_value = true)]
    disk: String,
    /// Processes and threads
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    pids: u32,
    /// Start it even where a limit that was given cannot be enforced
    #[arg(long)]
    best_effort: bool,
    /// Show the workspace for reading only
    #[arg(long)]
    read_only: bool,
    /// The runtime: local or docker [default: the first one of the server that has the template]
    #[arg(long, value_name = "RUNTIME", default_value = "", hide_default_value = true)]
    runtime: String,
    /// Its network: none; bridge or host where the server allows it
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    network: String,
    /// Let it reach this host, and no other one: a name, *.NAME, or either with :PORT; repeatable
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
}

impl CreateOptions {
    /// Builds the request, without the workspace and the lifetime.
    pub fn request(self) -> Result<v1::CreateSandboxRequest, CliError> {
        Ok(v1::CreateSandboxRequest {
            template: self.template,
            name: self.name,
            envs: variables(&self.env)?,
            resources: Some(v1::ResourceConfig {
                cpu: self.cpu,
                memory: self.memory,
                disk: self.disk,
                pids: self.pids,
            }),
            best_effort: self.best_effort,
            read_only: self.read_only,
            runtime: self.runtime,
            network: self.network,
            allowed_hosts: self.allow_host,
            ..v1::CreateSandboxRequest::default()
        })
    }
}

impl Create {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let seconds = self.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
        let too_long = |_| CliError::usage("--timeout: at most 24h");
        let mut request = self.options.request()?;
        request.timeout_seconds = seconds.map_or(Ok(0), |time| i32::try_from(time.as_secs()).map_err(too_long))?;
        request.workspace = workspace_name(self.workspace.as_deref().unwrap_or_default());
        request.from = self.from.unwrap_or_default();
        let mut client = session.sandbox_client().await?.sandboxes;
        let made = client.create_sandbox(request).await.map_err(failure)?.into_inner();
        let sandbox = made.sandbox.unwrap_or_default();
        session.output.emit(&sandbox_json(&sandbox))?;
        session.output.say(&sandbox.id)?;
        for limit in sandbox.limits.iter().filter(|limit| limit.enforced_by == "none") {
            match limit.limit.as_str() {
                "landlock" if sandbox.runtime != "local" => {}
                "landlock" => session.output.remark(format!("without Landlock: {}", limit.value))?,
                name => session.output.remark(format!("nothing enforces the limit `{name}` on this machine"))?,
            }
        }
        if sandbox.provider == "checkout" {
            session.output.remark(format!("its files are a checkout; at a fork, {}", sandbox.fork_cost))?;
        }
        let then = text::wall_clock(text::timestamp(sandbox.expires_at.as_ref()));
        session
            .output
            .remark(format!("it works in workspace {} and expires at {then}", text::id(&sandbox.workspace)))?;
        Ok(Exit::OK)
    }
}
