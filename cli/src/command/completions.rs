//! Files for shells and for `man`, made from the command line itself.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::Session;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam completions bash > ~/.local/share/bash-completion/completions/amalgam
  amalgam completions fish > ~/.config/fish/completions/amalgam.fish
  amalgam completions zsh > \"${fpath[1]}/_amalgam\"")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script. `root` is the command line of the program.
    pub fn run(self, session: &mut Session, root: &Command) -> Outcome {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut without_hidden(root), "amalgam", &mut text);
        session.output.raw(&text)?;
        Ok(Exit::OK)
    }
}

/// Returns a command line without its hidden commands, which other programs call.
fn without_hidden(root: &Command) -> Command {
    let visible = root.get_subcommands().filter(|command| !command.is_hide_set());
    let command = Command::new("amalgam").version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    command.args(root.get_arguments()).subcommands(visible)
}

/// Write manual pages
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam man --out ~/.local/share/man/man1")]
pub struct Man {
    /// The directory to write to
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Man {
    /// Writes a page for each command. `root` is the command line of the program.
    pub fn run(self, session: &mut Session, root: Command) -> Outcome {
        let failed = |error| CliError::machine(self.out.display(), &error);
        fs::create_dir_all(&self.out).map_err(failed)?;
        clap_mangen::generate_to(root, &self.out).map_err(failed)?;
        session.output.say(self.out.display())?;
        Ok(Exit::OK)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn completions_offer_every_visible_command_and_no_hidden_one() {
        let root = Arguments::command();
        let mut text = Vec::new();
        clap_complete::generate(Shell::Fish, &mut without_hidden(&root), "amalgam", &mut text);
        let text = String::from_utf8(text).expect("text");
        for command in root.get_subcommands() {
            let is_offered = text.contains(&format!("-a \"{}\"", command.get_name()));
            assert_eq!(is_offered, !command.is_hide_set(), "{}", command.get_name());
        }
        assert!(text.contains("-l store") && text.contains("-l json"), "options of every command");
    }
}
