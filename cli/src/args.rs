//! The command line. The arguments of each command are defined beside its code, in `command/`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser};

use crate::command::Command;
use crate::output::Color;
use crate::version::LONG_VERSION;

/// Snapshots, undo and forks for directories that people and agents work in.
#[derive(Debug, Parser)]
#[command(name = "amalgam", version, long_version = LONG_VERSION, max_term_width = 100, after_help = EXAMPLES, infer_subcommands = false,
    disable_help_subcommand = true)]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  amalgam init                     protect the directory you are in
  amalgam run -- make test         snapshot before and after a command
  amalgam diff                     what changed since the last snapshot
  amalgam undo                     undo the last change
  amalgam fork -n 3 --dir ../try-{n}
                                   three copies to try three things in

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done except for the paths that were named,
4 differences found (--exit-code), 5 conflicts or merges that need a decision, 6 changed by another
process meanwhile, 10 no store, 11 store in use, 13 disk full or quota reached, 130 interrupted.

`amalgam help COMMAND` explains a command, `amalgam help revisions` how snapshots are named.";

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Directory of the store [default: $XDG_DATA_HOME/amalgam or ~/.local/share/amalgam]
    #[arg(long, global = true, value_name = "PATH", env = "AMALGAM_STORE", hide_env_values = true)]
    pub store: Option<PathBuf>,
    /// Work on a server instead of the store of this machine: https://HOST[:PORT][/PROJECT], a context, or `local`
    #[arg(long, global = true, value_name = "URL|CONTEXT", env = "AMALGAM_SERVER", hide_env_values = true)]
    pub server: Option<String>,
    /// Print one JSON object per line instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Print only results: no progress, no hints, no confirmations
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more: every path, every notice, full log entries
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Do not prompt; fail where a confirmation is needed
    #[arg(long, global = true)]
    pub no_input: bool,
    /// When to use colours [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<Color>,
    /// Do not use a pager
    #[arg(long, global = true)]
    pub no_pager: bool,
    /// Open the store in this process instead of the background process, which `amalgam stop` ends
    #[arg(long, global = true)]
    pub in_process: bool,
    /// Run as if started in DIR
    #[arg(id = "run_in", short = 'C', global = true, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use super::*;

    /// The commands about merging.
    const MERGING: [&str; 7] = ["merge", "conflicts", "complete", "publish", "queue", "review", "rules"];
    /// The subcommands of [`MERGING`] that only read. All others change something.
    const LOOKS: [&str; 11] = [
        "conflicts list",
        "conflicts show",
        "conflicts remembered",
        "queue list",
        "queue show",
        "review list",
        "review show",
        "rules show",
        "rules check",
        "rules explain",
        "rules commands",
    ];

    /// Returns the commands without subcommands, each with its full name, for example `queue list`.
    fn leaves<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Command)> {
        let below: Vec<_> = command.get_subcommands().filter(|one| one.get_name() != "help").collect();
        match below.is_empty() {
            true => vec![(name.to_owned(), command)],
            false => below.iter().flat_map(|one| leaves(one, &format!("{name} {}", one.get_name()))).collect(),
        }
    }

    /// Checks the ids of all options: clap takes a global option and an option of a command with the same id for one option.
    #[test]
    fn no_option_of_a_command_has_the_id_of_a_global_one() {
        let amalgam = Arguments::command();
        let globals: Vec<_> =
            amalgam.get_arguments().filter(|one| one.is_global_set()).map(|one| one.get_id()).collect();
        assert!(globals.len() > 5);
        let mut open: Vec<&Command> = amalgam.get_subcommands().collect();
        while let Some(command) = open.pop() {
            for argument in command.get_arguments() {
                assert!(!globals.contains(&argument.get_id()), "{}: {}", command.get_name(), argument.get_id());
            }
            open.extend(command.get_subcommands());
        }
    }

    fn takes(command: &Command, option: &str) -> bool {
        command.get_arguments().any(|argument| argument.get_long() == Some(option))
    }

    #[test]
    fn all_that_changes_something_about_merging_can_be_tried_first_and_read_by_programs() {
        let mut amalgam = Arguments::command();
        amalgam.build();
        let mut seen = Vec::new();
        for name in MERGING {
            let command = amalgam.find_subcommand(name).unwrap_or_else(|| panic!("there is no {name}"));
            for (name, leaf) in leaves(command, name) {
                assert!(takes(leaf, "json"), "{name} takes no --json");
                let looks = LOOKS.contains(&name.as_str());
                assert_ne!(
                    takes(leaf, "dry-run"),
                    looks,
                    "{name}: what changes something takes --dry-run, and only that"
                );
                seen.push(name);
            }
        }
        assert!(LOOKS.iter().all(|name| seen.iter().any(|seen| seen == name)), "all of them are there: {seen:?}");
    }
}
