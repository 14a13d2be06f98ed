//! The help: commands in groups, prose before options, options of every command once, and pages about topics. Also the answer to a
//! command line that cannot be read.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};

use crate::args::{Arguments, Global};
use crate::command::definition_of;
use crate::error::CliError;
use crate::text;
use crate::version::LONG_VERSION;

/// The commands, grouped by purpose.
const GROUPS: [(&str, &[&str]); 13] = [
    ("Protect a directory", &["init", "status", "commit", "watch"]),
    ("Compare, read and search", &["diff", "log", "show", "ls", "cat", "grep", "find", "blame", "bisect"]),
    ("Go back", &["restore", "undo", "redo", "op"]),
    ("Workspaces (lines of work) and labels", &["fork", "checkout", "ws", "label"]),
    ("Mount workspaces and snapshots as file systems", &["mount", "umount", "mounts", "exports", "unexport"]),
    ("Run commands", &["run", "explore"]),
    ("Sandboxes", &["sandbox", "exec", "shell", "ps", "attach"]),
    (
        "Merge workspaces",
        &[
            "merge",
            "complete",
            "publish",
            "follow",
            "unfollow",
            "update",
            "radar",
            "queue",
            "review",
            "conflicts",
            "rules",
        ],
    ),
    ("Copy to other stores, back up", &["send", "receive", "backup", "restore-backup", "store"]),
    ("Archives, git repositories, container images", &["import", "export"]),
    (
        "Agents and other machines",
        &["policy", "login", "context", "clone", "push", "pull", "remote", "serve", "key", "webhook"],
    ),
    ("Models and coding agents", &["mcp", "hooks"]),
    (
        "Store, machine, settings, help",
        &["du", "gc", "verify", "purge", "doctor", "logs", "stop", "config", "completions", "help"],
    ),
];

/// Commands of Git and other tools, with their counterparts here.
const HABITS: [(&str, &str); 21] = [
    ("add", "nothing needs to be staged: `amalgam commit` takes everything"),
    ("branch", "`amalgam fork NAME` creates a workspace, a line of work; `amalgam ws` lists them"),
    ("checkpoint", "`amalgam commit` takes a snapshot"),
    ("cherry-pick", "`amalgam restore REV -- PATH` takes paths of another snapshot, `amalgam merge` whole workspaces"),
    ("clean", "`amalgam restore @` restores the directory to the last snapshot"),
    ("delete", "`amalgam ws rm NAME` removes a workspace"),
    ("history", "`amalgam log` lists snapshots, `amalgam op log` all operations"),
    ("list", "`amalgam log` lists snapshots, `amalgam ws` workspaces"),
    ("rebase", "`amalgam merge NAME` merges another workspace into this one"),
    ("reflog", "`amalgam op log` lists all operations"),
    ("reset", "`amalgam undo` takes the last thing back, `amalgam restore REV` goes back to a snapshot"),
    ("revert", "`amalgam undo` takes the last thing back, `amalgam restore REV -- PATH` brings paths back"),
    ("rollback", "`amalgam undo` takes the last thing back, `amalgam restore REV` goes back to a snapshot"),
    ("save", "`amalgam commit` takes a snapshot"),
    ("snapshot", "`amalgam commit` takes a snapshot, `amalgam log` lists them"),
    ("stash", "`amalgam commit` and `amalgam restore @~` put changes aside, `amalgam restore REV` brings them back"),
    (
        "switch",
        "`amalgam checkout REV DIR` writes another line of work into a directory, `amalgam restore NAME` into this one",
    ),
    ("tag", "`amalgam label NAME` puts a name on a snapshot"),
    ("unmount", "`amalgam umount` unmounts a directory"),
    ("workspace", "`amalgam ws` lists workspaces"),
    ("worktree", "`amalgam fork NAME --dir DIR` makes a copy to work in"),
];

/// Options of Git's commands, with their counterparts here.
const OPTION_HABITS: [(&str, &str, &str); 5] = [
    ("commit", "-a", "`amalgam commit -m MESSAGE` takes all changes, there is nothing to add"),
    ("commit", "--all", "`amalgam commit` takes all changes, there is nothing to add"),
    ("diff", "--cached", "there is no index: `amalgam diff` shows all changes since the last snapshot"),
    ("diff", "--staged", "there is no index: `amalgam diff` shows all changes since the last snapshot"),
    ("restore", "--staged", "there is no index: `amalgam restore PATH` restores the file"),
];

/// Help pages about topics.
const TOPICS: [(&str, &str); 1] = [("revisions", REVISIONS)];

const REVISIONS: &str = "\
A revision names a snapshot. Every command that takes one takes all of these:

  @                        the last snapshot of the workspace of this directory
  main, main@              the last snapshot of a workspace
  v1                       the snapshot that a label is on; if a workspace has the same name,
                           NAME is the label and NAME@ the workspace
  3f9a2c1e                 the snapshot whose id begins with these digits, four at least
  @~, @~3, main~           the parent of @, the third ancestor of @, the parent of main
  @{10 minutes ago}        the last snapshot of the workspace at that time
  @{yesterday 14:00}       units: seconds, minutes, hours, days, weeks, months, years;
  @{14:00}                 days: today, yesterday, 2026-01-31; a day without a time is its end;
  main@{2026-01-31 09:30}  times are local, unless they end with Z or an offset such as +02:00
  @{op:123}                the files of the workspace right after operation 123;
                           `amalgam op log` lists operations

`diff` and `log` take ranges:

  amalgam diff A..B        what differs from A to B, like `amalgam diff A B`
  amalgam log A..B         B and its ancestors, without A and its ancestors
  A.., ..B                 @ stands for the missing side

`show`, `ls`, `cat` and `blame` take a path after a colon: main:src/lib.rs, @{1 hour ago}:notes.txt.
The path is relative to the root of the snapshot; a path that begins with ./ or ../ is relative to
the current directory.

Put a revision with braces or spaces in quotes, because the shell interprets them.

Examples:
  amalgam log -5 main
  amalgam diff --stat '@{yesterday 14:00}'
  amalgam restore '@{10 minutes ago}' -- src
  amalgam cat v1:README.md";

const ROOT_TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}Options of every command:
{options}{after-help}";

const TEMPLATE: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

/// The last line of the help of each command.
const FOOTER: &str = "`amalgam help` lists the options of every command, such as --json, -q and -C DIR.";

/// A word joiner. It is put into `{n}`, which clap would replace by a line break; [`render`] removes it.
const JOINER: &str = "\u{2060}";

/// The answer to a command line that asks for help or cannot be parsed.
pub enum ParseAnswer {
    /// A text for standard output.
    Text(String),
    /// An error, and the text for people if it differs from the message.
    Failure { error: CliError, text: Option<String> },
}

/// Reads a command line.
pub fn parse(words: Vec<OsString>) -> Result<Arguments, ParseAnswer> {
    if let Some(arguments) = parse_one(&words) {
        return Ok(arguments);
    }
    if let Some(text) = version_asked_for(&words) {
        return Err(ParseAnswer::Text(text));
    }
    let plain = Arguments::command().try_get_matches_from(words.clone());
    if let Ok(arguments) = plain.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        return Ok(arguments);
    }
    // Building the complete help is slower than parsing most command lines, so it is done only if needed.
    let mut command = command();
    let read = command.try_get_matches_from_mut(words);
    read.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(|error| answer(&error, &command))
}

/// Reads a valid command line that begins with the name of a command, by the definition of that command alone.
fn parse_one(words: &[OsString]) -> Option<Arguments> {
    let one = definition_of(words.get(1)?.to_str()?)?;
    let root = Global::augment_args(Command::new("amalgam")).subcommand(one).disable_help_subcommand(true);
    let matches = root.try_get_matches_from(words).ok()?;
    Arguments::from_arg_matches(&matches).ok()
}

/// Returns the version if a command line begins with the question for it.
fn version_asked_for(words: &[OsString]) -> Option<String> {
    match words.get(1)?.to_str()? {
        "-V" => Some(format!("amalgam {}", env!("CARGO_PKG_VERSION"))),
        "--version" => Some(format!("amalgam {LONG_VERSION}")),
        _ => None,
    }
}

/// Returns whether a command line names a store, without parsing it. A store that the environment names does not count.
pub fn names_store(words: &[OsString]) -> bool {
    let is_option =
        |word: &OsString| word == "--store" || word.to_str().is_some_and(|word| word.starts_with("--store="));
    words.iter().take_while(|word| *word != "--").any(is_option)
}

/// Returns the help page of a command or a topic; without words, the list of commands.
pub fn page(words: &[String]) -> Result<String, CliError> {
    if let [topic] = words
        && let Some((_, text)) = TOPICS.iter().find(|(name, _)| name == topic)
    {
        return Ok((*text).to_owned());
    }
    let mut root = command();
    let mut here = &mut root;
    for word in words {
        let name = here.get_name().to_owned();
        here = match here.find_subcommand_mut(word) {
            Some(found) => found,
            None if name == "amalgam" => return Err(unknown(word, &[])),
            None => return Err(CliError::usage(format!("`amalgam {name}` has no command `{word}`"))),
        };
    }
    Ok(render(&here.render_long_help()))
}

fn answer(error: &clap::Error, command: &Command) -> ParseAnswer {
    let text = render(&error.render());
    // Clap prints arguments as they are.
    let text = text::line(text.trim_end());
    let text = text.as_ref();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ParseAnswer::Text(text.to_owned()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let error = CliError::usage("a command is needed").hint("`amalgam help` lists them");
            ParseAnswer::Failure { error, text: Some(text.to_owned()) }
        }
        ErrorKind::InvalidSubcommand => match (error.get(ContextKind::InvalidSubcommand), is_of_root(error, command)) {
            (Some(ContextValue::String(name)), true) => {
                ParseAnswer::Failure { error: unknown(name, &suggested(error, command)), text: None }
            }
            _ => usage(text),
        },
        ErrorKind::UnknownArgument => match (option_habit(error), usage(text)) {
            (Some(habit), ParseAnswer::Failure { error, .. }) => {
                let error = CliError { hint: None, ..error };
                ParseAnswer::Failure { error: error.hint(habit), text: None }
            }
            (_, answer) => answer,
        },
        _ => usage(text),
    }
}

/// Returns what stands here for an unknown option that Git's command has.
fn option_habit(error: &clap::Error) -> Option<&'static str> {
    let (Some(ContextValue::String(option)), Some(ContextValue::StyledStr(usage))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::Usage))
    else {
        return None;
    };
    let usage = usage.to_string();
    let is_of = |command: &str| usage.contains(&format!("amalgam {command} "));
    OPTION_HABITS.iter().find(|(command, name, _)| name == option && is_of(command)).map(|(.., habit)| *habit)
}

/// Converts an error text of clap to a failure.
fn usage(text: &str) -> ParseAnswer {
    let plain = anstream::adapter::strip_str(text).to_string();
    let mut parts = plain
        .split("\n\n")
        .map(|part| part.trim().trim_start_matches("error: ").trim_start_matches("tip: ").replace("\n  ", " "));
    let error = CliError::usage(parts.next().unwrap_or_default());
    let hint = parts.filter(|part| !part.starts_with("For more information")).collect::<Vec<_>>().join("; ");
    let error = if hint.is_empty() { error } else { error.hint(hint) };
    ParseAnswer::Failure { error, text: Some(text.to_owned()) }
}

/// Returns whether the unknown word stands in the place of a command, not of a subcommand.
fn is_of_root(error: &clap::Error, command: &Command) -> bool {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let below = command.get_subcommands().map(|one| format!("amalgam {} ", one.get_name()));
    !below.into_iter().any(|start| usage.contains(&start))
}

fn suggested(error: &clap::Error, command: &Command) -> Vec<String> {
    let names = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.clone(),
        Some(ContextValue::String(name)) => vec![name.clone()],
        _ => Vec::new(),
    };
    names.into_iter().filter(|name| command.find_subcommand(name).is_some_and(|found| !found.is_hide_set())).collect()
}

/// Returns the error for an unknown command, with a hint for commands of other tools or a similar name.
fn unknown(name: &str, suggested: &[String]) -> CliError {
    let error = CliError::usage(format!("there is no command `{name}`"));
    if let Some((_, habit)) = HABITS.iter().find(|(habit, _)| *habit == name) {
        return error.hint(*habit);
    }
    // clap lists the most similar name last.
    match suggested.last() {
        None => error.hint("`amalgam help` lists the commands"),
        Some(name) => error.hint(format!("did you mean `{name}`?")),
    }
}

/// Builds the clap command with the help as it is printed.
fn command() -> Command {
    let mut root = Arguments::command();
    root.build();
    let groups = groups(&root);
    let examples = root.get_after_help().map(ToString::to_string).unwrap_or_default();
    let root = root.mut_subcommands(arrange);
    root.help_template(ROOT_TEMPLATE).before_help(with_joiners(&groups)).after_help(with_joiners(&examples))
}

/// Puts the prose of a command's help first, and hides global options.
fn arrange(command: Command) -> Command {
    let text = |text: Option<&StyledStr>| text.map(|text| text.to_string()).unwrap_or_default();
    let after = text(command.get_after_help());
    let (prose, examples) = after.split_at(after.find("Examples:").unwrap_or(after.len()));
    let (prose, examples) = (with_joiners(&join_wrapped_lines(prose.trim())), with_joiners(examples.trim()));
    let after = if examples.is_empty() { FOOTER.to_owned() } else { format!("{examples}\n\n{FOOTER}") };
    let about = with_joiners(&text(command.get_about()));
    let command = command.mut_args(|argument| {
        let help = argument.get_help().map(|help| with_joiners(&help.to_string()));
        let argument = if argument.is_global_set() { argument.hide(true) } else { argument };
        match help {
            Some(help) if help.contains(JOINER) => argument.help(help),
            _ => argument,
        }
    });
    let command = command.help_template(TEMPLATE).about(about).after_help(after).mut_subcommands(arrange);
    if prose.is_empty() { command } else { command.before_help(prose) }
}

fn groups(root: &Command) -> String {
    let about = |name: &str| {
        let found = root.find_subcommand(name).filter(|found| !found.is_hide_set())?;
        let about = found.get_about().map(|about| about.to_string()).unwrap_or_default();
        Some(format!("  {name:<15} {about}\n"))
    };
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{title}:\n"));
        text.extend(names.iter().filter_map(|name| about(name)));
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// Joins the lines of each paragraph, so that the text is wrapped to the terminal. Paragraphs with indented lines stay.
fn join_wrapped_lines(text: &str) -> String {
    let paragraph = |text: &str| match text.lines().any(|line| line.starts_with(' ')) {
        true => text.to_owned(),
        false => text.replace('\n', " "),
    };
    text.split("\n\n").map(paragraph).collect::<Vec<_>>().join("\n\n")
}

/// Protects `{n}` in a text from clap, which would replace it by a line break.
fn with_joiners(text: &str) -> String {
    text.replace("{n}", &format!("{{{JOINER}n}}"))
}

/// Renders a styled text of clap, without the joiners of [`with_joiners`].
fn render(text: &StyledStr) -> String {
    text.ansi().to_string().replace(JOINER, "")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn failure(line: &str) -> CliError {
        match parse(line.split(' ').map(OsString::from).collect()) {
            Err(ParseAnswer::Failure { error, .. }) => error,
            Err(ParseAnswer::Text(text)) => panic!("{line}: {text}"),
            Ok(arguments) => panic!("{line}: {arguments:?}"),
        }
    }

    fn text(words: &[&str]) -> String {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        anstream::adapter::strip_str(&page(&words).expect("a page")).to_string()
    }

    #[test]
    fn every_command_is_in_one_group() {
        let root = Arguments::command();
        let seen: BTreeSet<_> =
            root.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name()).collect();
        let grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), seen);
        assert_eq!(grouped.len(), seen.len(), "each once");
        let habits = HABITS.iter().filter(|(name, _)| root.find_subcommand(name).is_some()).collect::<Vec<_>>();
        assert!(habits.is_empty(), "{habits:?}");
    }

    #[test]
    fn prose_comes_first_and_options_of_every_command_come_once() {
        let root = text(&[]);
        assert!(root.contains("\nGo back:\n  restore"), "{root}");
        assert!(root.contains("--in-process"), "{root}");
        assert!(root.contains("../try-{n}"), "{root}");
        let fork = text(&["fork"]);
        assert!(!fork.contains("--in-process"), "{fork}");
        assert!(fork.contains("{name} stands for"), "{fork}");
        assert!(fork.find("{n} for") < fork.find("Usage:"), "{fork}");
        assert!(fork.find("Usage:") < fork.find("Examples:"), "{fork}");
        assert!(text(&["revisions"]).contains("@{10 minutes ago}"));
        assert!(text(&["ws", "rm"]).contains("--dir"));
    }

    #[test]
    fn an_option_of_git_gets_a_pointer() {
        for (line, hint) in [
            ("commit -am message", "takes all changes"),
            ("commit -a", "takes all changes"),
            ("diff --cached", "there is no index"),
            ("restore --staged a", "there is no index"),
        ] {
            let words = std::iter::once("amalgam").chain(line.split(' ')).map(OsString::from).collect();
            let Err(ParseAnswer::Failure { error, text }) = parse(words) else { panic!("{line} was read") };
            assert!(text.is_none() && error.to_string().contains(hint), "{line}: {error}");
        }
    }

    #[test]
    fn an_unknown_command_gets_a_pointer_and_never_a_hidden_one() {
        let stash = failure("amalgam stash");
        assert_eq!(stash.message, "there is no command `stash`");
        assert!(stash.hint.is_some_and(|hint| hint.contains("amalgam commit")));
        assert_eq!(failure("amalgam comit").hint.as_deref(), Some("did you mean `commit`?"));
        for hidden in ["amalgam supervis", "amalgam ente"] {
            let hint = failure(hidden).hint.unwrap_or_default();
            assert!(!["supervise", "enter"].iter().any(|name| hint.contains(name)), "{hidden}: {hint}");
        }
    }

    #[test]
    fn a_usage_error_has_a_message_and_a_hint() {
        let error = failure("amalgam status --nowhere");
        assert_eq!(error.reason, "USAGE");
        assert_eq!(error.message, "unexpected argument '--nowhere' found");
        assert!(error.hint.is_some_and(|hint| hint.contains("Usage: amalgam status")));
    }

    /// Calls `visit` with each visible command and its full name.
    fn each_command(command: &Command, name: &str, visit: &mut dyn FnMut(&Command, &str)) {
        visit(command, name);
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            each_command(one, &format!("{name} {}", one.get_name()), visit);
        }
    }

    #[test]
    fn every_command_has_examples_and_calls_itself_by_its_name() {
        each_command(&Arguments::command(), "amalgam", &mut |command, name| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = after.split_once("Examples:").map(|(_, examples)| examples).unwrap_or_default();
            assert!(examples.contains(name), "`{name}` has no example");
        });
    }

    #[test]
    fn a_command_that_is_defined_alone_takes_the_arguments_that_it_takes_beside_the_others() {
        let arguments = |command: &Command| -> Vec<String> {
            command.get_arguments().map(|argument| format!("{argument:?}")).collect()
        };
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            let alone = definition_of(name).unwrap_or_else(|| panic!("{name} is not defined alone"));
            assert_eq!(arguments(&alone), arguments(command), "of {name}");
            let below = |command: &Command| -> Vec<String> {
                command.get_subcommands().map(|one| one.get_name().to_owned()).collect()
            };
            assert_eq!(below(&alone), below(command), "of {name}");
        }
        let words: Vec<OsString> = ["amalgam", "ws", "--json", "-C", "x"].map(OsString::from).into();
        let arguments = parse_one(&words).expect("it is valid");
        assert!(arguments.global.json && arguments.global.directory.is_some());
        assert!(parse_one(&["amalgam", "ws", "--wrong"].map(OsString::from)).is_none());
        for question in ["-V", "--version"] {
            let words = ["amalgam", question].map(OsString::from);
            let by_clap =
                Arguments::command().try_get_matches_from(words.clone()).expect_err("the version").to_string();
            assert_eq!(version_asked_for(&words).as_deref(), Some(by_clap.trim_end()));
        }
    }

    #[test]
    fn a_workspace_can_be_named_by_the_same_option_everywhere() {
        /// Options that take patterns of workspaces, not a workspace.
        const PATTERNS: [&str; 2] = ["amalgam remote add", "amalgam webhook create"];
        each_command(&Arguments::command(), "amalgam", &mut |command, name| {
            let option = command.get_arguments().find(|argument| argument.get_long() == Some("workspace"));
            if let Some(option) = option.filter(|_| !PATTERNS.contains(&name)) {
                assert_eq!(option.get_short(), Some('w'), "--workspace of {name}");
            }
        });
        let names = |line: &str| parse(line.split(' ').map(OsString::from).collect()).is_ok();
        for command in ["update", "unfollow", "complete", "publish"] {
            for form in ["", " try", " -w try", " --workspace try"] {
                assert!(names(&format!("amalgam {command}{form}")), "{command}{form}");
            }
            assert!(!names(&format!("amalgam {command} try -w other")), "{command} with two workspaces");
        }
    }

    #[test]
    fn a_short_option_means_the_same_everywhere() {
        /// Options that share a letter because they mean the same.
        const SAME: [(char, &[&str]); 1] = [('n', &["limit", "number"])];
        fn letters(command: &Command, name: &str, seen: &mut Vec<(char, String, String)>) {
            for argument in command.get_arguments() {
                if let (Some(short), Some(long)) = (argument.get_short(), argument.get_long()) {
                    seen.push((short, long.to_owned(), name.to_owned()));
                }
            }
            command.get_subcommands().for_each(|one| letters(one, &format!("{name} {}", one.get_name()), seen));
        }
        let mut seen = Vec::new();
        letters(&Arguments::command(), "amalgam", &mut seen);
        for (short, long, name) in &seen {
            let (_, first, other) = seen.iter().find(|(letter, ..)| letter == short).expect("it is in the list");
            let same = SAME.iter().any(|(letter, longs)| {
                letter == short && longs.contains(&long.as_str()) && longs.contains(&first.as_str())
            });
            assert!(long == first || same, "-{short} is --{long} of {name} and --{first} of {other}");
        }
    }
}
