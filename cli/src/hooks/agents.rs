//! The configuration files in which agents keep hooks, and how the hooks of this program are added and removed.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::json_file::{JsonFile, Node, pretty};

/// Part of the command of each hook, by which installed hooks are found.
const MARK: &str = "hooks record ";
/// Time limit that an agent sets for a hook.
const TIMEOUT_SECONDS: u64 = 30;

/// A coding agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// Claude Code: `.claude/settings.json`
    Claude,
    /// Codex: `.codex/hooks.json`; it asks once whether the hooks may run
    Codex,
    /// Gemini CLI: `.gemini/settings.json`
    Gemini,
}

impl Agent {
    /// Returns the name in command lines and in snapshots.
    pub fn word(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
        }
    }

    /// Returns the path of the file with the hooks, below a project or the home of the user.
    pub fn file(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::Claude => ".claude/settings.json",
            Self::Codex => ".codex/hooks.json",
            Self::Gemini => ".gemini/settings.json",
        })
    }

    /// Returns the events that get a hook, and whether each has a matcher for tools.
    fn events(self) -> &'static [(&'static str, bool)] {
        match self {
            Self::Claude => &[
                ("UserPromptSubmit", false),
                ("PreToolUse", true),
                ("PostToolUse", true),
                ("PostToolUseFailure", true),
                ("SessionEnd", false),
            ],
            Self::Codex => {
                &[("UserPromptSubmit", false), ("PreToolUse", true), ("PostToolUse", true), ("SessionEnd", false)]
            }
            Self::Gemini => &[("BeforeAgent", false), ("BeforeTool", true), ("AfterTool", true), ("SessionEnd", false)],
        }
    }

    /// Returns the shell command of a hook. It succeeds without effect if the program is not installed.
    fn command(self, program: &str) -> String {
        let program = shell_quoted(program);
        // Gemini reads JSON from standard output.
        let otherwise = if self == Self::Gemini { "else echo '{}'; fi" } else { "fi" };
        format!("if command -v {program} >/dev/null 2>&1; then {program} {MARK}{}; {otherwise}", self.word())
    }

    /// Returns the entry of one event in the file.
    fn entry(self, program: &str, has_matcher: bool) -> Value {
        let timeout = if self == Self::Gemini { TIMEOUT_SECONDS * 1_000 } else { TIMEOUT_SECONDS };
        let mut hook = json!({"type": "command", "command": self.command(program), "timeout": timeout});
        if self == Self::Gemini {
            hook["name"] = "amalgam".into();
        }
        let mut entry = json!({"hooks": [hook]});
        if has_matcher {
            entry["matcher"] = if self == Self::Gemini { ".*" } else { "*" }.into();
        }
        entry
    }

    /// Returns the JSON text of a file with all hooks.
    pub fn snippet(self, program: &str) -> String {
        let mut root = Node::object();
        self.enter(&mut root, program);
        pretty(&root)
    }

    fn enter(self, root: &mut Node, program: &str) -> Option<()> {
        let hooks = root.entry("hooks", Node::object)?;
        for (event, has_matcher) in self.events() {
            let Node::Array(entries) = hooks.entry(event, Node::array)? else { return None };
            entries.push(self.entry(program, *has_matcher).into());
        }
        Some(())
    }

    /// Adds the hooks to a file, or replaces those that it has.
    pub fn install(self, file: &Path, program: &str) -> Result<(), CliError> {
        let mut found = JsonFile::load(file)?;
        take_out(&mut found.root);
        let wrong = || CliError::refused(format!("{}: `hooks` has an unexpected form", file.display()));
        self.enter(&mut found.root, program).ok_or_else(wrong)?;
        found.save()
    }

    /// Removes the hooks from a file. Returns whether there were any.
    pub fn remove(self, file: &Path) -> Result<bool, CliError> {
        let mut found = JsonFile::load(file)?;
        let was_there = take_out(&mut found.root);
        if was_there {
            found.save()?;
        }
        Ok(was_there)
    }
}

/// Removes the hooks with a command of this program, and entries and events that become empty. Returns whether there were any.
fn take_out(root: &mut Node) -> bool {
    let mut was_there = false;
    let Some(hooks) = root.get_mut("hooks") else { return false };
    if let Node::Object(events) = hooks {
        for (_, event) in events.iter_mut() {
            let Node::Array(entries) = event else { continue };
            entries.retain_mut(|entry| {
                if !entry.mentions(MARK) {
                    return true;
                }
                was_there = true;
                // Hooks of others can be in the same entry.
                let Some(Node::Array(group)) = entry.get_mut("hooks") else { return false };
                group.retain(|hook| !hook.mentions(MARK));
                !group.is_empty()
            });
        }
        if was_there {
            events.retain(|(_, event)| !event.is_empty());
        }
    }
    if was_there && hooks.is_empty() {
        root.remove("hooks");
    }
    was_there
}

/// Quotes a word for the shell, if necessary.
fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn hooks_are_installed_once_and_removed_without_a_trace() {
        let directory = tempfile::tempdir().expect("a directory");
        for agent in Agent::value_variants() {
            let file = agent.file(directory.path());
            agent.install(&file, "amalgam").expect("installed");
            let first = fs::read_to_string(&file).expect("a file");
            agent.install(&file, "amalgam").expect("installed again");
            assert_eq!(fs::read_to_string(&file).expect("a file"), first);
            assert_eq!(first.trim_end(), agent.snippet("amalgam"));
            assert!(agent.remove(&file).expect("removed"));
            assert!(!agent.remove(&file).expect("gone"));
            assert!(!file.exists());
        }
    }

    #[test]
    fn settings_and_hooks_of_others_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = Agent::Claude.file(directory.path());
        let mine = json!({"model": "m", "hooks": {"Stop": [], "PreToolUse": [{"matcher": "Bash", "hooks": [{"command": "x"}]}]}});
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        fs::write(&file, format!("{}\n", pretty(&mine.clone().into()))).expect("a file");
        Agent::Claude.install(&file, "/opt/my amalgam").expect("installed");
        let text = fs::read_to_string(&file).expect("a file");
        assert!(text.contains("'/opt/my amalgam' hooks record claude"), "{text}");
        Agent::Claude.remove(&file).expect("removed");
        let left: Value = serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
        assert_eq!(left["hooks"]["PreToolUse"], mine["hooks"]["PreToolUse"]);
        assert_eq!(left["model"], "m");
    }

    #[test]
    fn hooks_of_others_in_the_same_entry_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = Agent::Claude.file(directory.path());
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        let own = json!({"type": "command", "command": Agent::Claude.command("amalgam")});
        let other = json!({"type": "command", "command": "lint"});
        let with = |hooks: Value| json!({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": hooks}]}});
        fs::write(&file, with(json!([own, other])).to_string()).expect("a file");
        let read = || -> Value { serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON") };
        Agent::Claude.install(&file, "amalgam").expect("installed again");
        let installed = read();
        let entries = &installed["hooks"]["PreToolUse"];
        assert_eq!(entries[0]["hooks"], json!([other]));
        assert_eq!(entries.as_array().map(Vec::len), Some(2), "{entries}");
        assert!(Agent::Claude.remove(&file).expect("removed"));
        assert_eq!(read(), with(json!([other])));
    }
}
