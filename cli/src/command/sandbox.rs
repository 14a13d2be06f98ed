//! `amalgam sandbox`: sandboxes beside workspaces, on a server or beside the store of this machine.

mod create;
mod listing;
mod port;
mod run;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use super::sandbox_calls::{SandboxCalls, duration, failure};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;
use listing::{sandbox_json, tell};

/// Sandboxes that one call lists.
const PAGE_SIZE: i32 = 100;

/// Start, list and end sandboxes: isolated processes beside a workspace
#[derive(Debug, Args)]
#[command(after_help = "\
A sandbox shows its workspace at /workspace. Without --server the sandboxes are those of the local
store. SANDBOX is an id (sbx-...) or the name of the only running sandbox that has it.

`amalgam exec` runs a command in a sandbox, `amalgam shell` opens a terminal, `amalgam ps` lists
commands, `amalgam attach` follows one.

Examples:
  amalgam sandbox create --from main --name try
  amalgam exec try -- make test
  amalgam sandbox fork try -n 3
  amalgam sandbox ls
  amalgam sandbox rm try --keep-workspace
  amalgam sandbox run --from main -- make generate")]
pub struct Sandbox {
    #[command(subcommand)]
    command: SandboxCommand,
}

#[derive(Debug, Subcommand)]
enum SandboxCommand {
    Create(create::Create),
    Ls(Ls),
    Rm(Rm),
    Logs(Logs),
    Stats(Stats),
    Extend(Extend),
    Fork(Fork),
    Port(port::Port),
    Run(run::Run),
    Templates(Templates),
}

/// List sandboxes, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam sandbox ls
  amalgam sandbox ls --state running --name-prefix try")]
struct Ls {
    /// List only sandboxes in this state: starting, running, stopping, stopped, error
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// List only sandboxes whose names begin with this
    #[arg(long, value_name = "TEXT")]
    name_prefix: Option<String>,
}

/// End sandboxes and forget them
///
/// A workspace that was made for a sandbox is deleted with it; `amalgam ws undelete` brings it back.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam sandbox rm try\n  amalgam sandbox rm try --keep-workspace")]
struct Rm {
    /// The sandboxes
    #[arg(value_name = "SANDBOX", required = true)]
    sandboxes: Vec<String>,
    /// Commit and keep the workspaces
    #[arg(long)]
    keep_workspace: bool,
}

/// Show the log of a sandbox: its start, its end, failures
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam sandbox logs try -n 20")]
struct Logs {
    /// The sandbox
    sandbox: String,
    /// Print at most this many of the last lines
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 100)]
    number: u32,
}

/// Show the resources that a sandbox uses
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam sandbox stats try")]
struct Stats {
    /// The sandbox
    sandbox: String,
}

/// List templates: the root directories that sandboxes can be started with
///
/// The files of a label below `templates/` are the root directory of a sandbox, read-only: an imported image, for example, or a snapshot
/// after the set-up. `snapshot:REV` names any other snapshot.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam import oci python.tar -w images/python && amalgam label templates/python images/python@
  amalgam sandbox templates
  amalgam sandbox create --template python --from main
  amalgam sandbox create --template snapshot:images/python@")]
struct Templates {
    /// Show only this template
    name: Option<String>,
}

/// Let a sandbox live longer, by one hour at most and 24 hours in all
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam sandbox extend try 30m")]
struct Extend {
    /// The sandbox
    sandbox: String,
    /// How much longer, such as 600s, 30m or 1h
    #[arg(value_name = "TIME")]
    by: String,
}

/// Copy the workspace of a running sandbox, and start a sandbox on each copy
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam sandbox fork try -n 3")]
struct Fork {
    /// The sandbox
    sandbox: String,
    /// Number of copies
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=50))]
    number: u32,
    /// The name of the new sandboxes
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
}

impl Sandbox {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            SandboxCommand::Create(create) => create.run(session).await,
            SandboxCommand::Ls(ls) => ls.run(session).await,
            SandboxCommand::Rm(rm) => rm.run(session).await,
            SandboxCommand::Logs(logs) => logs.run(session).await,
            SandboxCommand::Stats(stats) => stats.run(session).await,
            SandboxCommand::Extend(extend) => extend.run(session).await,
            SandboxCommand::Fork(fork) => fork.run(session).await,
            SandboxCommand::Port(port) => port.run(session).await,
            SandboxCommand::Run(run) => run.run(session).await,
            SandboxCommand::Templates(templates) => templates.run(session).await,
        }
    }
}

impl Ls {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.sandbox_client().await?.sandboxes;
        let (mut page, mut is_empty) = (1, true);
        loop {
            let request = v1::ListSandboxesRequest {
                page,
                limit: PAGE_SIZE,
                state: self.state.clone().unwrap_or_default(),
                name_prefix: self.name_prefix.clone().unwrap_or_default(),
            };
            let listed = client.list_sandboxes(request).await.map_err(failure)?.into_inner();
            for sandbox in &listed.items {
                is_empty = false;
                tell(session, sandbox)?;
            }
            if i64::from(page) * i64::from(PAGE_SIZE) >= listed.total || listed.items.is_empty() {
                break;
            }
            page += 1;
        }
        if is_empty {
            session.output.remark("there is no sandbox; `amalgam sandbox create` starts one")?;
        }
        Ok(Exit::OK)
    }
}

impl Rm {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut calls = SandboxCalls::connect(session).await?;
        let mut exit = Exit::OK;
        for word in &self.sandboxes {
            let removed = calls.remove(word, self.keep_workspace).await;
            match removed {
                Ok(sandbox) => {
                    let (id, workspace) = (&sandbox.id, text::id(&sandbox.workspace));
                    let is_kept = self.keep_workspace || !sandbox.owns_workspace;
                    let told = json!({"id": id, "workspace": workspace, "workspace_kept": is_kept});
                    session.output.emit(&lines::line("sandbox_deleted", told))?;
                    let what = if is_kept { "is kept" } else { "is deleted" };
                    session.output.done(format!("deleted sandbox {id}; its workspace {workspace} {what}"))?;
                }
                Err(error) if self.sandboxes.len() > 1 => {
                    session.output.failure(&error);
                    exit = exit.or(error.exit);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(exit)
    }
}

impl Logs {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut calls = SandboxCalls::connect(session).await?;
        let id = calls.id(&self.sandbox).await?;
        let tail = i32::try_from(self.number).unwrap_or(i32::MAX);
        let request = v1::GetSandboxLogsRequest { id: id.clone(), tail, ..Default::default() };
        let found = calls.client.get_sandbox_logs(request).await.map_err(failure)?.into_inner();
        for line in found.logs.lines() {
            session.output.emit(&lines::line("sandbox_log", json!({"sandbox": id, "line": line})))?;
            session.output.say(line)?;
        }
        if found.truncated {
            session.output.remark("there are older lines; -n N shows more")?;
        }
        Ok(Exit::OK)
    }
}

impl Stats {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut calls = SandboxCalls::connect(session).await?;
        let id = calls.id(&self.sandbox).await?;
        let request = v1::GetSandboxStatsRequest { id: id.clone() };
        let stats = calls.client.get_sandbox_stats(request).await.map_err(failure)?.into_inner();
        let cpu = stats.cpu.unwrap_or_default();
        let (memory, disk) = (stats.memory.unwrap_or_default(), stats.disk.unwrap_or_default());
        let network = stats.network.unwrap_or_default();
        let told = json!({
            "id": id,
            "cpu_percent": cpu.usage,
            "cpu_limit": cpu.limit,
            "memory_bytes": memory.usage,
            "memory_bytes_max": memory.limit,
            "disk_bytes": disk.usage,
            "processes": stats.processes,
            "received_bytes": network.rx_bytes,
            "sent_bytes": network.tx_bytes,
            "measured": lines::time(stats.updated_at.as_ref()),
        });
        session.output.emit(&lines::line("sandbox_stats", told))?;
        if stats.updated_at.is_none() {
            session.output.remark("nothing was measured yet")?;
        }
        let size = |bytes: i64| text::bytes(bytes.unsigned_abs());
        session.output.say(format!("cpu        {:.1} % (of {} CPUs)", cpu.usage, cpu.limit))?;
        session.output.say(format!("memory     {} of {}", size(memory.usage), size(memory.limit)))?;
        session.output.say(format!("home, tmp  {}", size(disk.usage)))?;
        session.output.say(format!("processes  {}", stats.processes))?;
        session.output.say(format!(
            "network    {} received, {} sent",
            size(network.rx_bytes),
            size(network.tx_bytes)
        ))?;
        Ok(Exit::OK)
    }
}

impl Templates {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.sandbox_client().await?.sandboxes;
        let templates = match self.name {
            Some(name) => {
                let found = client.get_template(v1::GetTemplateRequest { name }).await.map_err(failure)?;
                found.into_inner().template.into_iter().collect()
            }
            None => client.list_templates(v1::ListTemplatesRequest {}).await.map_err(failure)?.into_inner().templates,
        };
        for template in &templates {
            let snapshot = (!template.snapshot.is_empty()).then(|| text::id(&template.snapshot));
            let told = json!({
                "name": template.name,
                "description": template.description,
                "tags": template.tags,
                "snapshot": snapshot,
            });
            session.output.emit(&lines::line("sandbox_template", told))?;
            session.output.say(format!("{}  {}", template.name, template.description))?;
        }
        Ok(Exit::OK)
    }
}

impl Extend {
    async fn run(self, session: &mut Session) -> Outcome {
        let by = duration("TIME", &self.by)?;
        let seconds = i32::try_from(by.as_secs()).map_err(|_| CliError::usage("TIME: at most one hour"))?;
        let mut calls = SandboxCalls::connect(session).await?;
        let id = calls.id(&self.sandbox).await?;
        let request = v1::ExtendSandboxRequest { id, seconds };
        let extended = calls.client.extend_sandbox(request).await.map_err(failure)?.into_inner();
        let sandbox = extended.sandbox.unwrap_or_default();
        session.output.emit(&sandbox_json(&sandbox))?;
        let then = text::wall_clock(text::timestamp(sandbox.expires_at.as_ref()));
        session.output.done(format!("sandbox {} expires at {then}", sandbox.id))?;
        Ok(Exit::OK)
    }
}

impl Fork {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut calls = SandboxCalls::connect(session).await?;
        let id = calls.id(&self.sandbox).await?;
        let count = i32::try_from(self.number).unwrap_or(i32::MAX);
        let request = v1::ForkSandboxRequest { id, count, name: self.name };
        let forked = calls.client.fork_sandbox(request).await.map_err(failure)?.into_inner();
        for sandbox in &forked.sandboxes {
            session.output.emit(&sandbox_json(sandbox))?;
            session.output.say(&sandbox.id)?;
        }
        Ok(Exit::OK)
    }
}
