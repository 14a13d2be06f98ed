//! `amalgam rules`: how files are merged, and why.

mod approval;
mod target;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use super::merge::ways;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;
use target::target;

/// Show, check and explain merge rules, and approve their commands
#[derive(Debug, Args)]
#[command(after_help = "\
A merge rule says how files are merged, by path. Rules are tried in this order: rules of the call (--way); rules of the
project, in .amalgam/rules.toml of the target workspace; rules of the store, in merge.toml in the directory of the
store; built-in rules. A command in a project's rules runs only after `amalgam rules approve`. docs/MERGE.md describes
the format.

Examples:
  amalgam rules
  amalgam rules check .amalgam/rules.toml
  amalgam rules explain package.json")]
pub struct Rules {
    #[command(subcommand)]
    command: Option<RulesCommand>,
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    Show(Show),
    Check(Check),
    Explain(Explain),
    Commands(approval::Commands),
    Approve(approval::Approve),
    Revoke(approval::Revoke),
}

/// Show the rules of the project and of the store; the default
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules show\n  amalgam rules show --built-in")]
struct Show {
    /// Show built-in rules, too
    #[arg(long)]
    built_in: bool,
    /// The workspace that would be merged into [default: the one of this directory]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
}

/// Check a file of merge rules for errors; exit with 1 if there are any
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules check merge.toml")]
struct Check {
    /// The file
    file: OsString,
}

/// Show which rule merges a path, and why
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules explain src/main.rs\n  amalgam rules explain logo.png --binary")]
struct Explain {
    /// The path, from the root of the tree
    path: OsString,
    /// Treat the path as a binary file
    #[arg(long)]
    binary: bool,
    /// Try this rule before all others, as `merge --way` does; repeatable
    #[arg(long = "way", value_name = "PATH=WAY")]
    ways: Vec<String>,
    /// The workspace that would be merged into [default: the one of this directory]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
}

impl Rules {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            None => Show { built_in: false, into: None }.run(session).await,
            Some(RulesCommand::Show(show)) => show.run(session).await,
            Some(RulesCommand::Check(check)) => check.run(session).await,
            Some(RulesCommand::Explain(explain)) => explain.run(session).await,
            Some(RulesCommand::Commands(commands)) => commands.run(session).await,
            Some(RulesCommand::Approve(approve)) => approve.run(session).await,
            Some(RulesCommand::Revoke(revoke)) => revoke.run(session).await,
        }
    }
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let workspace = target(session, self.into.as_deref()).await?;
        let rules = client.merges.get_rules(v1::GetRulesRequest { workspace }).await?.into_inner();
        let output = &mut session.output;
        let built_in = self.built_in.then_some(&rules.built_in);
        let line = lines::line("rules", json!({"text": rules.text, "built_in": built_in, "project": rules.project}));
        output.emit(&lines::with_path(line, &rules.path))?;
        let store = text::path(&rules.path).to_string();
        let parts = [
            ("built in", built_in.map_or("", String::as_str)),
            (store.as_str(), &rules.text),
            (rules.project_source.as_str(), &rules.project),
        ];
        // Printed in the order in which they apply: later rules override earlier ones, as in one file.
        for (source, text) in parts.iter().filter(|(_, text)| !text.trim().is_empty()) {
            output.say(paint(style::FAINT, format!("# {}", text::printable(source))))?;
            output.say(text.trim_end())?;
        }
        if rules.text.is_empty() && rules.project.is_empty() {
            let project = if rules.project_source.is_empty() {
                String::new()
            } else {
                format!(", nor does {}", rules.project_source)
            };
            output.remark(format!("{store} does not exist{project}: only the built-in rules apply"))?;
        }
        Ok(Exit::OK)
    }
}

impl Check {
    async fn run(self, session: &mut Session) -> Outcome {
        let path = session.host_path(&self.file);
        let text = std::fs::read_to_string(&path).map_err(|error| CliError::machine(path.display(), &error))?;
        let mut client = session.client().await?;
        let request = v1::CheckRulesRequest { text, source: path.display().to_string() };
        let complaints = client.merges.check_rules(request).await?.into_inner().complaints;
        for one in &complaints {
            let fields = json!({"line": one.line, "column": one.column, "message": one.message});
            session.output.emit(&lines::line("rule_complaint", fields))?;
            session.output.say(format!(
                "{}, line {}, column {}: {}",
                path.display(),
                one.line,
                one.column,
                text::printable(&one.message)
            ))?;
        }
        if complaints.is_empty() {
            session.output.done("the rules are valid")?;
            return Ok(Exit::OK);
        }
        Ok(Exit::ERROR)
    }
}

impl Explain {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let rules = Some(v1::CallRules { ways: ways(&self.ways)? });
        let path = self.path.into_vec();
        let workspace = target(session, self.into.as_deref()).await?;
        let request = v1::ExplainRulesRequest { path: path.clone().into(), binary: self.binary, rules, workspace };
        let found = client.merges.explain_rules(request).await?.into_inner();
        let fields = json!({
            "way": found.way,
            "what": found.what,
            "source": found.source,
            "line": found.line,
            "pattern": found.pattern,
            "groups": found.groups,
            "tried": found.tried.iter().map(tried_json).collect::<Vec<_>>(),
        });
        session.output.emit(&lines::with_path(lines::line("rule", fields), &path))?;
        session.output.say(format!("{}: {} ({})", text::path(&path), found.way, found.what))?;
        session.output.say(format!("by `{}` in {}, line {}", found.pattern, found.source, found.line))?;
        for rule in found.tried.iter().filter(|rule| rule.other_content) {
            let sort = if self.binary { "is for text files" } else { "is for binary files" };
            session.output.say(format!("not by {}, line {}, which {sort}", rule.source, rule.line))?;
        }
        if !found.groups.is_empty() {
            session.output.say(format!("merges as a unit with: {}", found.groups.join(", ")))?;
        }
        Ok(Exit::OK)
    }
}

fn tried_json(rule: &v1::TriedRule) -> serde_json::Value {
    let why = if rule.other_content { "content" } else { "path" };
    json!({"source": rule.source, "line": rule.line, "why": why})
}
