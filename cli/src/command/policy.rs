//! `amalgam policy`: what agents may do with which paths.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// The argument that stands for the standard input.
const STDIN: &str = "-";
/// Most bytes of a policy. One byte more is read from the standard input, so that the server refuses a longer policy.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Show, set, test and explain permissions of agents
#[derive(Debug, Args)]
#[command(after_help = "\
A policy says what each agent may do with which paths: none, R (read), RA (read and add), RW- (all but remove) or RW. The
last matching rule decides. It is kept in the store, applies to mounts, file calls, commits and merges, and can be
undone with `amalgam undo --op`. Without a policy every agent may do everything. docs/PERMISSIONS.md describes the format.

Examples:
  amalgam policy
  amalgam policy set policy.toml
  amalgam policy explain ann src/main.rs")]
pub struct Policy {
    #[command(subcommand)]
    command: Option<PolicyCommand>,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Show(Show),
    Set(Set),
    Test(Test),
    Explain(Explain),
    Log(Log),
}

/// Show the policy; the default
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam policy show")]
struct Show {}

/// Replace the policy by a file, or remove it
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  amalgam policy set policy.toml\n  amalgam policy set - < policy.toml\n  amalgam policy set --none"
)]
struct Set {
    /// The file, or - for the standard input
    #[arg(required_unless_present = "none", conflicts_with = "none")]
    file: Option<OsString>,
    /// Remove the policy: every agent may do everything
    #[arg(long)]
    none: bool,
    /// Check the file and print warnings; change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Check the file of a policy for errors; exit with 1 if there are any
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  amalgam policy test policy.toml\n  amalgam policy test policy.toml --agent ann src/main.rs"
)]
struct Test {
    /// The file, or - for the standard input
    file: OsString,
    /// Say what this agent could do with the paths, by this file
    #[arg(long, requires = "paths")]
    agent: Option<String>,
    /// Paths from the root of the tree
    #[arg(requires = "agent")]
    paths: Vec<String>,
}

/// Show what an agent may do with a path, and by which rule
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam policy explain ann src/main.rs")]
struct Explain {
    /// The agent
    agent: String,
    /// The path, from the root of the tree
    path: String,
}

/// List the changes of the policy, newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam policy log\n  amalgam policy log -n 5")]
struct Log {
    /// List at most N changes
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: i32,
}

impl Policy {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command.unwrap_or(PolicyCommand::Show(Show {})) {
            PolicyCommand::Show(show) => show.run(session).await,
            PolicyCommand::Set(set) => set.run(session).await,
            PolicyCommand::Test(test) => test.run(session).await,
            PolicyCommand::Explain(explain) => explain.run(session).await,
            PolicyCommand::Log(log) => log.run(session).await,
        }
    }
}

/// Reads a file, or the standard input if the file is `-`.
fn read(session: &Session, file: &OsStr) -> Result<String, CliError> {
    let mut text = String::new();
    if file == STDIN {
        let read = std::io::stdin().take(POLICY_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| CliError::machine("the standard input", &error))?;
        return Ok(text);
    }
    let path = session.host_path(file);
    std::fs::read_to_string(&path).map_err(|error| CliError::machine(path.display(), &error))
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let found = client.policy.get_policy(v1::GetPolicyRequest {}).await?.into_inner();
        let operation = found.operation.as_ref();
        let fields = json!({
            "text": found.text,
            "operation": operation.map(|operation| operation.sequence),
            "actor": operation.map(|operation| &operation.actor),
        });
        session.output.emit(&lines::line("policy", fields))?;
        if found.text.trim().is_empty() {
            session.output.remark("there is no policy: every agent may do everything")?;
            return Ok(Exit::OK);
        }
        if let Some(operation) = operation {
            let line = format!("# operation {}, by {}", operation.sequence, text::printable(&operation.actor));
            session.output.say(paint(style::FAINT, line))?;
        }
        session.output.say(String::from_utf8_lossy(&text::contents(found.text.trim_end().as_bytes())))?;
        Ok(Exit::OK)
    }
}

impl Set {
    async fn run(self, session: &mut Session) -> Outcome {
        let text = match &self.file {
            Some(file) => read(session, file)?,
            None => String::new(),
        };
        if text.trim().is_empty() && !self.none {
            return Err(CliError::usage("the file is empty; `amalgam policy set --none` removes the policy"));
        }
        let mut client = session.client().await?;
        let request = v1::SetPolicyRequest { text, dry_run: self.dry_run, request_id: String::new() };
        let done = client.policy.set_policy(request).await?.into_inner();
        let fields = json!({
            "changed": done.changed,
            "dry_run": self.dry_run,
            "operation": done.operation.as_ref().map(|operation| operation.sequence),
            "warnings": done.warnings,
        });
        session.output.emit(&lines::line("policy_set", fields))?;
        for warning in &done.warnings {
            session.output.remark(format!("warning: {warning}"))?;
        }
        let words = match (self.dry_run, done.changed, self.none) {
            (true, true, _) => "the policy would change",
            (true, false, _) | (false, false, _) => "the policy stays as it is",
            (false, true, true) => "the policy is removed: every agent may do everything",
            (false, true, false) => "the policy is set, and applies from now on",
        };
        session.output.done(words)?;
        Ok(Exit::OK)
    }
}

impl Test {
    async fn run(self, session: &mut Session) -> Outcome {
        let policy = read(session, &self.file)?;
        let mut client = session.client().await?;
        let checked = client.policy.check_policy(v1::CheckPolicyRequest { text: policy.clone() }).await?;
        let complaints = checked.into_inner().complaints;
        for one in &complaints {
            let fields = json!({"line": one.line, "column": one.column, "message": one.message});
            session.output.emit(&lines::line("policy_complaint", fields))?;
            let message = text::printable(&one.message);
            session.output.say(format!("line {}, column {}: {message}", one.line, one.column))?;
        }
        if !complaints.is_empty() {
            return Ok(Exit::ERROR);
        }
        let Some(agent) = self.agent else {
            session.output.done("the policy is valid")?;
            return Ok(Exit::OK);
        };
        for path in self.paths {
            explain(session, &agent, path, Some(policy.clone())).await?;
        }
        Ok(Exit::OK)
    }
}

impl Explain {
    async fn run(self, session: &mut Session) -> Outcome {
        explain(session, &self.agent, self.path, None).await?;
        Ok(Exit::OK)
    }
}

/// Prints the permissions of an agent for a path, by the policy of the store or by the given policy text.
async fn explain(session: &mut Session, agent: &str, path: String, text: Option<String>) -> Result<(), CliError> {
    let mut client = session.client().await?;
    let request = v1::ExplainPolicyRequest { agent: agent.to_owned(), path, text };
    let found = client.policy.explain_policy(request).await?.into_inner();
    let fields = json!({
        "agent": found.agent,
        "path": found.path,
        "level": found.level,
        "acts": found.acts,
        "line": (found.line > 0).then_some(found.line),
        "patterns": found.patterns,
        "has_policy": found.has_policy,
        "reviewer": found.reviewer,
    });
    session.output.emit(&lines::line("permission", fields))?;
    let acts = if found.acts.is_empty() { "nothing".to_owned() } else { found.acts.join(", ") };
    let (agent, path) = (text::printable(&found.agent), text::printable(&found.path));
    session.output.say(format!("{agent} {path}: {} ({acts})", found.level))?;
    let why = match (found.has_policy, found.line) {
        (false, _) => "there is no policy".to_owned(),
        (true, 0) => "by the policy's default".to_owned(),
        (true, line) => format!("by the rule on line {line}: {}", text::printable(&found.patterns.join(", "))),
    };
    session.output.say(why)?;
    if found.has_policy && found.reviewer {
        session.output.say("may decide reviews and conflicts")?;
    }
    Ok(())
}

impl Log {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request = v1::ListPolicyChangesRequest { page_size: self.limit };
        let found = client.policy.list_policy_changes(request).await?.into_inner();
        if found.operations.is_empty() {
            session.output.remark("the policy was never set")?;
        }
        for operation in &found.operations {
            session.output.emit(&lines::operation(operation))?;
            let actor = text::printable(&operation.actor);
            let action = text::printable(&operation.action);
            session.output.say(format!("{} {actor}: {action}", operation.sequence))?;
        }
        Ok(Exit::OK)
    }
}
