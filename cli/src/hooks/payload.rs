//! The payload that an agent passes to a hook, and the message and metadata of the snapshot that follows.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use super::agents::Agent;
use crate::text;

/// The most characters of a prompt, and of the arguments of a tool, in a message.
const PROMPT_CHARACTERS: usize = 60;
const TOOL_CHARACTERS: usize = 80;
/// The metadata key with the name of the agent; `log --agent` lists the snapshots that have it.
pub const AGENT_KEY: &str = "agent";

/// An event of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The user gave a prompt.
    Prompt(String),
    /// A tool is about to run, or has run.
    Tool {
        /// `before` or `after`.
        when: &'static str,
        /// The name of the tool.
        name: String,
        /// The argument that describes the call best.
        argument: String,
        /// The id of the call.
        call: String,
    },
    /// The session is over.
    End,
    /// Any other event.
    Other,
}

/// The payload of a hook.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The event.
    pub event: Event,
    /// The directory that the agent works in.
    pub directory: PathBuf,
    /// The session.
    pub session: String,
}

impl Payload {
    /// Reads a payload.
    ///
    /// # Errors
    /// Names the missing field, or the error of the JSON.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("the payload is not JSON: {error}"))?;
        let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let directory = field("cwd");
        if directory.is_empty() {
            return Err("the payload has no cwd".to_owned());
        }
        let tool = |when| Event::Tool {
            when,
            name: field("tool_name"),
            argument: argument(value.get("tool_input")),
            call: field("tool_use_id"),
        };
        let event = match field("hook_event_name").as_str() {
            "UserPromptSubmit" | "BeforeAgent" => Event::Prompt(field("prompt")),
            "PreToolUse" | "BeforeTool" => tool("before"),
            "PostToolUse" | "PostToolUseFailure" | "AfterTool" => tool("after"),
            "SessionEnd" => Event::End,
            _ => Event::Other,
        };
        Ok(Self { event, directory: directory.into(), session: field("session_id") })
    }

    /// Returns the message of the snapshot of a tool call, which begins with the prompt; empty for other events.
    pub fn message(&self, prompt: &str) -> String {
        let Event::Tool { when, name, argument, .. } = &self.event else { return String::new() };
        let tool = match argument.is_empty() {
            true => name.clone(),
            false => format!("{name} {}", first_line(argument, TOOL_CHARACTERS)),
        };
        let prompt = first_line(prompt, PROMPT_CHARACTERS);
        if prompt.is_empty() { format!("{when} {tool}") } else { format!("{prompt}: {when} {tool}") }
    }

    /// Returns the metadata of the snapshot of a tool call; empty for other events.
    pub fn metadata(&self, agent: Agent) -> HashMap<String, String> {
        let Event::Tool { when, name, call, .. } = &self.event else { return HashMap::new() };
        let fields = [
            (amalgam_server::retention::AUTOMATIC_KEY, "true"),
            (AGENT_KEY, agent.word()),
            ("session", &self.session),
            ("tool", name),
            ("when", when),
            ("call", call),
        ];
        let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
        given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// Returns the argument of a tool that describes the call best, such as its command or its path; empty if there is none.
fn argument(input: Option<&Value>) -> String {
    let keys =
        ["command", "file_path", "path", "absolute_path", "notebook_path", "pattern", "url", "query", "description"];
    let found = |key: &&str| match input?.get(*key)? {
        Value::String(text) => Some(text.clone()),
        // Codex passes a command as an array of words.
        Value::Array(words) => Some(words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        _ => None,
    };
    keys.iter().find_map(found).unwrap_or_default()
}

/// Returns the first line of a text, with control characters escaped, cut to a number of characters.
pub fn first_line(text: &str, characters: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let line = text::printable(line).into_owned();
    match line.char_indices().nth(characters) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_payloads_of_all_agents_are_read() {
        let cases = [
            (
                r#"{"session_id":"s","transcript_path":"/t","cwd":"/w","hook_event_name":"PreToolUse","permission_mode":"default",
                   "tool_name":"Bash","tool_input":{"command":"npm test","description":"Run tests"},"tool_use_id":"toolu_1"}"#,
                "fix it: before Bash npm test",
            ),
            (
                r#"{"session_id":"s","turn_id":"t","model":"m","cwd":"/w","hook_event_name":"PostToolUse","tool_name":"shell",
                   "tool_input":{"command":["ls","-l"]},"tool_response":{}}"#,
                "fix it: after shell ls -l",
            ),
            (
                r#"{"session_id":"s","cwd":"/w","hook_event_name":"AfterTool","timestamp":"2026-01-01T00:00:00Z","tool_name":"write_file",
                   "tool_input":{"file_path":"a.py","content":"x"},"tool_response":{"llmContent":"ok"}}"#,
                "fix it: after write_file a.py",
            ),
        ];
        for (text, expected) in cases {
            let payload = Payload::parse(text).expect("a payload");
            assert_eq!(payload.message("fix it\nand more"), expected);
            let metadata = payload.metadata(Agent::Claude);
            assert_eq!(metadata.get("automatic").map(String::as_str), Some("true"));
            assert_eq!(metadata.get("agent").map(String::as_str), Some("claude"));
        }
        let prompt = r#"{"session_id":"s","cwd":"/w","hook_event_name":"UserPromptSubmit","prompt":"do"}"#;
        assert_eq!(Payload::parse(prompt).expect("a payload").event, Event::Prompt("do".to_owned()));
        for bad in ["", "[]", "{}", r#"{"cwd":5}"#] {
            assert!(Payload::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn long_and_odd_texts_are_cut() {
        assert_eq!(first_line("  a\u{e9}bc\nd", 3), "a\u{e9}b...");
        assert_eq!(first_line("", 3), "");
    }
}
