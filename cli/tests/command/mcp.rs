//! `amalgam mcp` as a client starts it: messages over its standard input and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::scratch::{Scratch, can_mount};
use crate::served::{Served, key};
use crate::watching::until;

/// A client of the server.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last_id: u64,
}

impl Client {
    fn start(scratch: &Scratch, line: &str) -> Self {
        let mut command = scratch.shell(&format!("exec {line}"));
        command.env_remove("AMALGAM_AUTHOR").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a server");
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("an output")));
        let mut client = Self { child, input, output, last_id: 0 };
        let told = client.ask(
            "initialize",
            &json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}}),
        );
        assert_eq!(told["serverInfo"]["name"], "amalgam");
        assert_eq!(told["protocolVersion"], "2025-06-18");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().expect("an input"), "{message}").expect("sent");
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters}));
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("an answer"), 0, "the server ended");
            let answer: Value = serde_json::from_str(&line).expect("only messages are on standard output");
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Calls a tool: its text, and whether it failed.
    fn call(&mut self, name: &str, arguments: &Value) -> Result<String, String> {
        let result = self.ask("tools/call", &json!({"name": name, "arguments": arguments}));
        let text = result["content"][0]["text"].as_str().expect("a text").to_owned();
        if result["isError"] == true { Err(text) } else { Ok(text) }
    }

    fn done(&mut self, name: &str, arguments: &Value) -> String {
        self.call(name, arguments).unwrap_or_else(|text| panic!("{name} {arguments}: {text}"))
    }

    /// Closes the input; the server ends by itself.
    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("an end").success());
    }
}

#[test]
fn every_tool_does_its_work_in_a_directory_and_in_a_fork() {
    let scratch = Scratch::new();
    scratch.run("printf 'one\\ntwo\\n' > a.txt; amalgam init -q --workspace main");
    let mut client = Client::start(&scratch, "amalgam mcp");
    assert!(client.done("edit", &json!({"path": "a.txt", "old": "two", "new": "2"})).contains("1 replaced"));
    assert!(client.done("status", &json!({"workspaces": true})).contains("a.txt"));
    client.done("snapshot", &json!({"message": "with a digit", "label": "digit"}));
    let history = client.done("history", &json!({"limit": 5}));
    assert!(history.contains("with a digit") && history.contains("digit"), "{history}");
    assert!(scratch.run("amalgam log -1 -v").contains("tester"), "the client is the author");
    let diff = client.done("diff", &json!({"from": "@~", "to": "@"}));
    assert!(diff.contains("-two\n+2"), "{diff}");
    assert!(client.done("diff", &json!({"from": "@~", "to": "@", "form": "names"})).contains("a.txt"));
    assert_eq!(client.done("read", &json!({"path": "a.txt", "revision": "@~"})), "one\ntwo");
    assert!(client.done("read", &json!({"path": "."})).contains("a.txt"));
    assert!(client.done("search", &json!({"pattern": "^o", "globs": ["*.txt"]})).contains("a.txt:1:one"));
    // A fork has no directory.
    client.done("fork", &json!({"names": ["try"]}));
    client.done("edit", &json!({"path": "new/b.txt", "new": "from the fork\n", "workspace": "try"}));
    assert_eq!(client.done("read", &json!({"path": "new/b.txt", "workspace": "try"})), "from the fork");
    if can_mount() {
        let ran = client.done("run", &json!({"command": "cat new/b.txt; echo more > c.txt", "workspace": "try"}));
        assert!(ran.contains("from the fork"), "{ran}");
        client.done("merge", &json!({"sources": ["try"]}));
        assert_eq!(scratch.run("cat new/b.txt c.txt"), "from the fork\nmore\n");
    }
    assert!(
        client.done("conflicts", &json!({})).contains("no conflict") || !scratch.run("amalgam conflicts").is_empty()
    );
    let failed = client.done("run", &json!({"command": "echo error: mine >&2; exit 3"}));
    assert!(failed.contains("exit status 3"), "{failed}");
    client.end();
}

#[test]
fn run_returns_when_its_command_leaves_a_background_process() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > a; amalgam init -q");
    let mut client = Client::start(&scratch, "amalgam mcp");
    let begin = Instant::now();
    let ran = client.done("run", &json!({"command": "sleep 30 & echo $! > id; echo started"}));
    let took = begin.elapsed();
    scratch.run("kill $(cat id)");
    assert!(ran.contains("started"), "{ran}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    client.end();
}

#[test]
fn a_restore_is_shown_before_it_is_done() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > a; amalgam init -q; echo 2 > a; amalgam commit -q; echo 3 > a");
    let mut client = Client::start(&scratch, "amalgam mcp");
    let arguments = json!({"revision": "@~"});
    let shown = client.done("restore", &arguments);
    assert_eq!(scratch.run("cat a"), "3\n", "a dry run changes nothing");
    let plan = |shown: &str| shown.split("plan=\"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned);
    let first = plan(&shown).expect("a plan");
    let other = client.call("restore", &json!({"revision": "@", "plan": first}));
    assert!(other.is_err_and(|text| text.contains("does not fit")), "a plan belongs to its arguments");
    let done = client.call("restore", &json!({"revision": "@~", "plan": first}));
    done.expect("the same plan is done");
    assert_eq!(scratch.run("cat a"), "1\n");
    scratch.run("amalgam undo");
    assert_eq!(scratch.run("cat a"), "3\n", "uncommitted changes were kept");
    client.end();
}

#[test]
fn errors_say_what_to_do() {
    let scratch = Scratch::new();
    let mut client = Client::start(&scratch, "amalgam mcp --tools status,edit,diff,read");
    assert!(client.call("status", &json!({})).is_err_and(|text| text.contains("amalgam init")));
    scratch.run("printf 'x x' > a; printf '\\0' > b; amalgam init -q");
    for (name, arguments, expected) in [
        ("snapshot", json!({"message": "m"}), "the tools are: status, diff, read, edit"),
        ("edit", json!({"path": "a", "old": "x", "new": "y"}), "replace_all"),
        ("edit", json!({"path": "a", "new": 5}), "must be a string"),
        ("edit", json!({"new": "y"}), "`path` is missing"),
        ("edit", json!({"path": "../a", "new": "y"}), "relative to the root"),
        ("edit", json!({"path": "a", "new": "y", "workspace": "none"}), "none"),
        ("diff", json!({"from": "nothing"}), "nothing"),
        ("diff", json!({"surprise": 1}), "this tool takes: from, to, paths, form"),
        ("read", json!({"path": "b"}), "binary"),
        ("read", json!({"path": "missing"}), "missing"),
    ] {
        let failed = client.call(name, &arguments).expect_err(&arguments.to_string());
        assert!(failed.contains(expected), "{name} {arguments}: {failed}");
    }
    client.end();
    let wrong = scratch.output("amalgam mcp --tools nothing < /dev/null");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("the tools are: status, snapshot"));
}

#[test]
fn tools_have_schemas_and_annotations_and_a_read_only_server_offers_few() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > a; amalgam init -q");
    let list = |line: &str| {
        let mut client = Client::start(&scratch, line);
        let tools = client.ask("tools/list", &json!({}))["tools"].as_array().expect("tools").clone();
        client.end();
        tools
    };
    let all = list("amalgam mcp");
    assert_eq!(all.len(), 12);
    for tool in &all {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(tool["annotations"]["readOnlyHint"].is_boolean() && tool["annotations"]["title"].is_string(), "{tool}");
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 20), "{tool}");
    }
    let readers = list("amalgam mcp --read-only");
    let names: Vec<_> = readers.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["status", "history", "diff", "conflicts", "read", "search"]);
    let mut client = Client::start(&scratch, "amalgam mcp --read-only");
    assert!(client.call("edit", &json!({"path": "a", "new": "2"})).is_err());
    assert!(client.call("conflicts", &json!({"take": "ours"})).is_err());
    assert_eq!(scratch.run("cat a"), "1\n");
    client.end();
}

#[test]
fn configurations_of_clients_are_written_and_taken_out() {
    let scratch = Scratch::new();
    let home = scratch.path().join("home");
    let run = |line: &str| scratch.run(&format!("export HOME={}; {line}", home.display()));
    for (client, file) in [
        ("claude", ".mcp.json".to_owned()),
        ("cursor", ".cursor/mcp.json".to_owned()),
        ("vscode", ".vscode/mcp.json".to_owned()),
        ("codex", format!("{}/.codex/config.toml", home.display())),
    ] {
        run(&format!("amalgam mcp init {client} --read-only"));
        let text = run(&format!("cat {file}"));
        assert!(text.contains("\"amalgam\"") && text.contains("--read-only"), "{client}: {text}");
        assert_eq!(text.trim_end(), run(&format!("amalgam mcp init {client} --read-only --print")).trim_end());
        run(&format!("amalgam mcp init {client} --remove"));
        run(&format!("test ! -s {file}"));
    }
}

#[test]
fn tools_work_on_a_workspace_of_a_server() {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,run");
    let server = Served::start(&scratch);
    scratch.run(&format!("echo {key} | amalgam login {} --name dev", server.url));
    let url = &server.url;
    scratch.run(&format!("amalgam --server {url} ws create main"));
    let missing = scratch.output(&format!("amalgam --server {url} mcp < /dev/null"));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(2) && said.contains("-w"), "{said}");
    let unknown = scratch.output(&format!("amalgam --server {url} mcp -w nothing < /dev/null"));
    assert!(!unknown.status.success());
    let mut client = Client::start(&scratch, &format!("amalgam --server {url} mcp -w main"));
    client.done("edit", &json!({"path": "src/a.txt", "new": "one\ntwo\n"}));
    assert!(client.done("status", &json!({})).contains("src/a.txt"));
    client.done("snapshot", &json!({"message": "first"}));
    client.done("edit", &json!({"path": "src/a.txt", "old": "two", "new": "2"}));
    client.done("snapshot", &json!({"message": "second"}));
    let history = client.done("history", &json!({}));
    assert!(history.contains("first") && history.contains("second"), "{history}");
    assert!(client.done("diff", &json!({})).contains("-two\n+2"));
    assert_eq!(client.done("read", &json!({"path": "src/a.txt", "revision": "@~"})), "one\ntwo");
    assert!(client.done("search", &json!({"pattern": "^o"})).contains("src/a.txt:1:one"));
    client.done("fork", &json!({"names": ["try"]}));
    client.done("edit", &json!({"path": "b.txt", "new": "fork\n", "workspace": "try"}));
    client.done("snapshot", &json!({"message": "in the fork", "workspace": "try"}));
    client.done("merge", &json!({"sources": ["try"]}));
    assert_eq!(client.done("read", &json!({"path": "b.txt"})), "fork");
    assert!(client.done("conflicts", &json!({})).contains("no conflicts"));
    // The same line in both, taken from one side.
    client.done("edit", &json!({"path": "b.txt", "new": "ours\n"}));
    client.done("snapshot", &json!({"message": "ours"}));
    client.done("edit", &json!({"path": "b.txt", "new": "theirs\n", "workspace": "try"}));
    client.done("snapshot", &json!({"message": "theirs", "workspace": "try"}));
    client.done("merge", &json!({"sources": ["try"]}));
    assert!(client.done("conflicts", &json!({})).contains("b.txt"));
    let shown = client.done("conflicts", &json!({"path": "b.txt"}));
    assert!(shown.contains("ours") && shown.contains("theirs"), "{shown}");
    assert!(client.done("conflicts", &json!({"path": "b.txt", "take": "theirs"})).contains("resolved 1; 0 left"));
    assert_eq!(client.done("read", &json!({"path": "b.txt"})), "theirs");
    let shown = client.done("restore", &json!({"revision": "main@~"}));
    let plan = shown.split("plan=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a plan").to_owned();
    client.done("restore", &json!({"revision": "main@~", "plan": plan}));
    let tools = client.ask("tools/list", &json!({}))["tools"].as_array().expect("tools").clone();
    if tools.iter().any(|tool| tool["name"] == "run") {
        match client.call("run", &json!({"command": "echo $((6 * 7)) > c.txt; cat c.txt; exit 3"})) {
            Ok(ran) => {
                assert_eq!(ran, "42\nexit status 3");
                assert_eq!(client.done("read", &json!({"path": "c.txt"})), "42");
                runs_leave_no_sandbox(&scratch, &mut client, url);
            }
            // The machine cannot isolate processes, or has no agent.
            Err(said) => {
                assert!(said.contains("isolat") || said.contains("agent") || said.contains("sandbox"), "{said}")
            }
        }
    }
    client.end();
    let written = scratch.run(&format!("amalgam --server {url} mcp init claude -w main --print"));
    assert!(written.contains("--server") && written.contains("--workspace=main"), "{written}");
    assert!(!written.contains(&key), "the key is not in the configuration");
    server.stop();
}

/// Makes a call of `run` that is refused and one that is cancelled, and checks that the workspace can be used after each.
fn runs_leave_no_sandbox(scratch: &Scratch, client: &mut Client, url: &str) {
    let wrong = client.call("run", &json!({"command": ["ls"]}));
    assert!(wrong.is_err_and(|text| text.contains("must be a string")));
    assert_eq!(client.done("run", &json!({"command": "echo x"})), "x");
    client.last_id += 1;
    let id = client.last_id;
    let call = json!({"name": "run", "arguments": {"command": "sleep 300"}});
    client.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call}));
    let list = format!("amalgam --server {url} sandbox ls");
    until("the sandbox runs", || scratch.run(&list).contains("running"));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    until("the sandbox is deleted", || !scratch.run(&list).contains("sbx-"));
    assert_eq!(client.done("run", &json!({"command": "echo y"})), "y");
}
