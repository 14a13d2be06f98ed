//! `amalgam rules commands`, `approve` and `revoke`: which commands of a project's rules may run.

use amalgam_proto::v1;
use clap::Args;
use serde_json::{Value, json};

use super::target::target;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::prompt::confirm;
use crate::session::Session;
use crate::text;

/// The digits of a hash that are shown.
const SHORT: usize = 16;
/// The fewest digits that name a command.
const DIGITS_MIN: usize = 8;

/// List the commands of the project's rules, and which of them may run
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules commands\n  amalgam rules commands --into main")]
pub struct Commands {
    /// The workspace that would be merged into [default: the one of this directory]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
}

/// Allow commands of the project's rules to regenerate files in merges
#[derive(Debug, Args)]
#[command(after_help = "\
The rules of a project are a file in its tree, so anyone whose work was merged may have written them. A command in them
runs only after you approved it. An approval holds for exactly this text, in this store, for all workspaces; it is not
part of snapshots, streams and backups. An approved command runs in a sandbox with the files of the merged tree. The
approval does not cover files that the command reads, such as a Makefile.

Examples:
  amalgam rules approve
  amalgam rules approve 3f1c09ab5d2e7788
  amalgam rules approve 3f1c09ab5d2e7788 --into main --yes")]
pub struct Approve {
    /// The hashes of commands, or the first 8 or more digits of them [default: all commands that are not approved]
    #[arg(value_name = "HASH")]
    hashes: Vec<String>,
    /// The workspace that would be merged into [default: the one of this directory]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Print what would be approved, change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Revoke approvals of commands
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam rules revoke 3f1c09ab5d2e7788")]
pub struct Revoke {
    /// The hashes of commands, or the first 8 or more digits of them
    #[arg(value_name = "HASH", required = true)]
    hashes: Vec<String>,
    /// Print what would be revoked, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Commands {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let workspace = target(session, self.into.as_deref()).await?;
        let commands = list(session, workspace).await?;
        for command in &commands {
            session.output.emit(&json_line(command))?;
            say(session, command)?;
        }
        if commands.is_empty() {
            session.output.remark("no rule of the project has a command, and none was approved")?;
        }
        Ok(Exit::OK)
    }
}

impl Approve {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let workspace = target(session, self.into.as_deref()).await?;
        let listed = list(session, workspace.clone()).await?;
        let listed: Vec<_> = listed.into_iter().filter(|command| !command.source.is_empty()).collect();
        let chosen: Vec<_> = match self.hashes.is_empty() {
            true => listed.iter().filter(|command| !command.approved).collect(),
            false => self.hashes.iter().map(|hash| find(&listed, hash)).collect::<Result<_, _>>()?,
        };
        if chosen.is_empty() {
            session.output.remark("every command of the project's rules is approved already")?;
            return Ok(Exit::OK);
        }
        for command in &chosen {
            say(session, command)?;
        }
        if self.dry_run {
            for command in &chosen {
                session.output.emit(&json_line(command))?;
            }
            session.output.remark("nothing was approved (--dry-run)")?;
            return Ok(Exit::OK);
        }
        if !self.yes {
            let number = text::plural(chosen.len() as u64, "command");
            confirm(session, &format!("Allow {number} to run, in a sandbox, to regenerate files in merges?")).await?;
        }
        let mut client = session.client().await?;
        for command in chosen {
            let request = v1::ApproveRuleCommandRequest {
                workspace: workspace.clone(),
                hash: command.hash.clone(),
                ..Default::default()
            };
            let approved = client.merges.approve_rule_command(request).await?.into_inner().command;
            let approved =
                v1::RuleCommand { source: command.source.clone(), line: command.line, ..approved.unwrap_or_default() };
            session.output.emit(&json_line(&approved))?;
            session.output.done(format!("{} is approved", &approved.hash[..SHORT.min(approved.hash.len())]))?;
        }
        Ok(Exit::OK)
    }
}

impl Revoke {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let listed = list(session, String::new()).await?;
        let mut client = session.client().await?;
        for hash in &self.hashes {
            let command = find(&listed, hash)?;
            let fields = json!({"hash": command.hash, "dry_run": self.dry_run});
            if self.dry_run {
                session.output.emit(&lines::line("rule_command_revoked", fields))?;
                say(session, command)?;
                session.output.remark("nothing was revoked (--dry-run)")?;
                continue;
            }
            let request = v1::RevokeRuleCommandRequest { hash: command.hash.clone(), ..Default::default() };
            client.merges.revoke_rule_command(request).await?;
            session.output.emit(&lines::line("rule_command_revoked", fields))?;
            session
                .output
                .done(format!("{} is not approved any more", command.hash.get(..SHORT).unwrap_or(&command.hash)))?;
        }
        Ok(Exit::OK)
    }
}

async fn list(session: &mut Session, workspace: String) -> Result<Vec<v1::RuleCommand>, CliError> {
    let mut client = session.client().await?;
    let request = v1::ListRuleCommandsRequest { workspace };
    Ok(client.merges.list_rule_commands(request).await?.into_inner().commands)
}

/// Finds the only command whose hash begins with these digits.
fn find<'a>(listed: &'a [v1::RuleCommand], hash: &str) -> Result<&'a v1::RuleCommand, CliError> {
    let listing = "`amalgam rules commands` lists them; --into names another workspace";
    if hash.len() < DIGITS_MIN {
        return Err(CliError::usage(format!("`{hash}` is too short: {DIGITS_MIN} digits at least")).hint(listing));
    }
    let mut found = listed.iter().filter(|command| command.hash.starts_with(hash));
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(CliError::refused(format!("several commands begin with {hash}; give more digits"))),
        (None, _) => {
            Err(CliError::refused(format!("no command here has a hash that begins with {hash}")).hint(listing))
        }
    }
}

fn json_line(command: &v1::RuleCommand) -> Value {
    let or_null = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
    let fields = json!({
        "hash": command.hash,
        "command": command.command,
        "source": or_null(&command.source),
        "line": (command.line > 0).then_some(command.line),
        "approved": command.approved,
        "approver": or_null(&command.approver),
        "approve_time": lines::time(command.approve_time.as_ref()),
    });
    lines::line("rule_command", fields)
}

/// Prints a command with its approval and its place. Invisible characters are escaped.
fn say(session: &mut Session, command: &v1::RuleCommand) -> Result<(), CliError> {
    let state = match command.approved {
        true => {
            let time = text::timestamp(command.approve_time.as_ref());
            let who = text::printable(&command.approver).into_owned();
            paint(style::GOOD, format!("approved by {who}, {}", text::ago(time, session.now)))
        }
        false => "not approved".to_owned(),
    };
    let place = match command.source.is_empty() {
        true => "in no rule here".to_owned(),
        false => format!("{}, line {}", text::printable(&command.source), command.line),
    };
    let hash = paint(style::ID, command.hash.get(..SHORT).unwrap_or(&command.hash));
    session.output.say(format!("{hash}  {state}  {}", paint(style::FAINT, place)))?;
    session.output.say(format!("    {}", text::printable(&command.command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_found_by_enough_digits_that_are_its_own() {
        let command = |hash: &str| v1::RuleCommand { hash: hash.to_owned(), ..Default::default() };
        let listed = [command("0123456789abcdef"), command("0123456780abcdef")];
        assert_eq!(find(&listed, "0123456789").expect("one").hash, "0123456789abcdef");
        assert!(find(&listed, "0123456").is_err(), "too short");
        assert!(find(&listed, "01234567").is_err(), "two have it");
        assert!(find(&listed, "ffffffffff").is_err());
    }
}
