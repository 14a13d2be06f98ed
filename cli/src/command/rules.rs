//! `amalgam rules`: how files are merged, and why.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use super::merge::ways;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// Show, check and explain the rules of merging
#[derive(Debug, Args)]
#[command(after_help = "\
The rules of a store are in merge.toml in its home; docs/MERGE.md says what may stand there.

Examples:
  amalgam rules
  amalgam rules check merge.toml
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
}

/// Show the rules of the store; what `amalgam rules` does
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules show\n  amalgam rules show --built-in")]
struct Show {
    /// Those that are built in, too
    #[arg(long)]
    built_in: bool,
}

/// Say what is wrong with a file of rules
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules check merge.toml")]
struct Check {
    /// The file
    file: OsString,
}

/// Say in which way a path is merged, and why
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules explain src/main.rs\n  amalgam rules explain logo.png --binary")]
struct Explain {
    /// The path, from the root of the tree
    path: OsString,
    /// As a file that is no text
    #[arg(long)]
    binary: bool,
    /// With this rule before all others
    #[arg(long = "way", value_name = "PATH=WAY")]
    ways: Vec<String>,
}

impl Rules {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            None => Show { built_in: false }.run(session).await,
            Some(RulesCommand::Show(show)) => show.run(session).await,
            Some(RulesCommand::Check(check)) => check.run(session).await,
            Some(RulesCommand::Explain(explain)) => explain.run(session).await,
        }
    }
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let rules = client.merges.get_rules(v1::GetRulesRequest {}).await?.into_inner();
        let output = &mut session.output;
        let built_in = self.built_in.then_some(&rules.built_in);
        let line = lines::line("rules", json!({"text": rules.text, "built_in": built_in}));
        output.emit(&lines::with_path(line, &rules.path))?;
        if let Some(built_in) = built_in {
            output.say(built_in.trim_end())?;
        }
        match rules.text.is_empty() {
            true => output.remark(format!("{} is not there: the built-in rules hold", text::path(&rules.path)))?,
            false => output.say(rules.text.trim_end())?,
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
            session.output.done("nothing is wrong with them")?;
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
        let request = v1::ExplainRulesRequest { path: path.clone().into(), binary: self.binary, rules };
        let found = client.merges.explain_rules(request).await?.into_inner();
        let fields = json!({
            "way": found.way,
            "what": found.what,
            "source": found.source,
            "line": found.line,
            "pattern": found.pattern,
            "groups": found.groups,
        });
        session.output.emit(&lines::with_path(lines::line("rule", fields), &path))?;
        session.output.say(format!("{}: {} ({})", text::path(&path), found.way, found.what))?;
        session.output.say(format!("by `{}` in {}, line {}", found.pattern, found.source, found.line))?;
        if !found.groups.is_empty() {
            session.output.say(format!("merges as a unit with: {}", found.groups.join(", ")))?;
        }
        Ok(Exit::OK)
    }
}
