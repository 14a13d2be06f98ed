//! Hooks of coding agents: the payloads that they document, through the commands that are installed.

use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::scratch::Scratch;

/// Runs the installed command of an event as the agent does: by a shell, with the payload on standard input.
fn fire(scratch: &Scratch, file: &str, event: &str, payload: &Value) -> Output {
    let settings: Value = serde_json::from_str(&scratch.run(&format!("cat {file}"))).expect("JSON");
    let command = settings["hooks"][event][0]["hooks"][0]["command"].as_str().expect("a command").to_owned();
    fire_command(scratch, &command, payload)
}

fn fire_command(scratch: &Scratch, command: &str, payload: &Value) -> Output {
    let mut shell = scratch.shell(command);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
    // A command that does not read may have ended.
    let _ = child.stdin.take().expect("an input").write_all(payload.to_string().as_bytes());
    child.wait_with_output().expect("an end")
}

fn payload(scratch: &Scratch, event: &str, more: &Value) -> Value {
    let mut payload = json!({
        "session_id": "abc123", "transcript_path": "/tmp/transcript.jsonl", "cwd": scratch.project(), "hook_event_name": event,
    });
    for (key, value) in more.as_object().expect("fields") {
        payload[key] = value.clone();
    }
    payload
}

#[test]
fn a_tool_call_of_claude_is_between_two_automatic_snapshots() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > a; amalgam init -q; amalgam hooks install claude");
    let file = ".claude/settings.json";
    let tell = |event: &str, more: &Value| {
        let done = fire(&scratch, file, event, &payload(&scratch, event, more));
        assert!(done.status.success() && done.stdout.is_empty() && done.stderr.is_empty(), "{event}: {done:?}");
    };
    tell("UserPromptSubmit", &json!({"prompt": "make it two\nplease"}));
    scratch.run("echo mine > b");
    let tool = json!({"tool_name": "Bash", "tool_input": {"command": "echo 2 > a"}, "tool_use_id": "toolu_01"});
    tell("PreToolUse", &tool);
    scratch.run("echo 2 > a");
    tell("PostToolUse", &tool);
    tell("SessionEnd", &json!({"reason": "exit"}));
    let log = scratch.run("amalgam log --agent --json");
    let steps: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let messages: Vec<_> = steps.iter().filter_map(|step| step["message"].as_str()).collect();
    assert_eq!(messages, ["make it two: after Bash echo 2 > a", "make it two: before Bash echo 2 > a"]);
    for step in &steps {
        let metadata = &step["metadata"];
        assert_eq!((&metadata["automatic"], &metadata["agent"]), (&json!("true"), &json!("claude")), "{step}");
        assert_eq!((&metadata["session"], &metadata["call"]), (&json!("abc123"), &json!("toolu_01")), "{step}");
    }
    // The commit of the init is not of an agent.
    assert_eq!(scratch.run("amalgam log --json").lines().count(), 3);
    let before = steps[1]["id"].as_str().expect("an id");
    scratch.run(&format!("amalgam restore {before}"));
    assert_eq!(scratch.run("cat a b"), "1\nmine\n");
}

#[test]
fn codex_and_gemini_are_told_nothing_that_disturbs_them() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > a; amalgam init -q; amalgam hooks install codex; amalgam hooks install gemini");
    scratch.run("amalgam commit -q");
    let tool = json!({"turn_id": "t", "model": "m", "tool_name": "shell", "tool_input": {"command": ["touch", "b"]}});
    scratch.run("touch b");
    let done = fire(&scratch, ".codex/hooks.json", "PostToolUse", &payload(&scratch, "PostToolUse", &tool));
    assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
    scratch.run("touch c");
    let tool =
        json!({"timestamp": "2026-01-01T00:00:00Z", "tool_name": "write_file", "tool_input": {"file_path": "c"}});
    let done = fire(&scratch, ".gemini/settings.json", "AfterTool", &payload(&scratch, "AfterTool", &tool));
    let answer: Value = serde_json::from_slice(&done.stdout).expect("Gemini reads JSON");
    assert_eq!(answer, json!({}));
    let log = scratch.run("amalgam log --agent");
    assert!(log.contains("after write_file c") && log.contains("after shell touch b"), "{log}");
}

#[test]
fn hooks_are_harmless_without_the_program_a_store_or_a_payload() {
    let scratch = Scratch::new();
    let event = payload(&scratch, "PreToolUse", &json!({"tool_name": "Bash", "tool_input": {"command": "true"}}));
    // No store, and none is made.
    let done = fire_command(&scratch, "amalgam hooks record claude", &event);
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    scratch.run("test ! -e ../store");
    scratch.run("mkdir ../protected && cd ../protected && amalgam init -q");
    // A directory that is not protected.
    let done = fire_command(&scratch, "amalgam hooks record claude", &event);
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let done = fire_command(&scratch, "amalgam hooks record gemini", &json!("surprise"));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(done.stdout, b"{}\n");
    // The program is gone.
    for agent in ["claude", "codex", "gemini"] {
        let snippet = scratch.run(&format!("amalgam hooks install {agent} --print"));
        let snippet: Value = serde_json::from_str(&snippet).expect("JSON");
        let (_, entries) = snippet["hooks"].as_object().and_then(|events| events.iter().next()).expect("an event");
        let command =
            entries[0]["hooks"][0]["command"].as_str().expect("a command").replace("amalgam", "no-such-program");
        let done = fire_command(&scratch, &command, &event);
        assert!(done.status.success() && done.stderr.is_empty(), "{agent}: {done:?}");
        assert_eq!(done.stdout.is_empty(), agent != "gemini");
    }
}

#[test]
fn hooks_are_installed_for_a_project_or_a_user_and_removed() {
    let scratch = Scratch::new();
    let home = scratch.path().join("home");
    scratch.run(&format!("HOME={} amalgam hooks install claude --user", home.display()));
    assert!(home.join(".claude/settings.json").exists());
    scratch.run(&format!("HOME={} amalgam hooks install claude --user --remove", home.display()));
    assert!(!home.join(".claude/settings.json").exists());
    assert!(scratch.run("amalgam hooks install gemini --remove").contains("no hooks"));
}
