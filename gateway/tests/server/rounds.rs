//! The whole round of an attempt in one call, the events of sandboxes as a stream, and the server's own statistics.

use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::run_on_fork_response::Event;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use http::Method;
use serde_json::{Value, json};
use tonic::Request;

use crate::site::Site;

async fn start() -> (Site, String) {
    let site = Site::start().await;
    let key = site.server.key("write run merge", &[], false).await;
    let made = rest(&site, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    assert_eq!(made.0, 200, "{}", made.1);
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": "one\n"}}]});
    assert_eq!(rest(&site, &key, Method::POST, "/workspaces/main/commit-edits", edits).await.0, 200);
    (site, key)
}

async fn rest(site: &Site, key: &str, method: Method, path: &str, body: Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = site.server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    (answer.status.as_u16(), String::from_utf8_lossy(&answer.bytes).into_owned())
}

/// The lines of a round: its stages, its standard output, and its last line.
async fn round(site: &Site, key: &str, body: Value) -> (Vec<String>, String, Value) {
    let (status, text) = rest(site, key, Method::POST, "/sandboxes/run", body).await;
    assert_eq!(status, 200, "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stages = lines.iter().filter_map(|line| line["stage"]["stage"].as_str().map(str::to_owned)).collect();
    let output = lines.iter().filter_map(|line| line["output"]["data"].as_str()).collect();
    (stages, output, lines.last().unwrap().clone())
}

async fn read(site: &Site, key: &str, path: &str) -> (u16, String) {
    rest(site, key, Method::GET, &format!("/workspaces/main/files/{path}"), Value::Null).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_forks_runs_detects_merges_and_cleans_up() {
    let (mut site, key) = start().await;
    let command = "cat a.txt; echo two >> a.txt; echo new > b.txt; echo $WHO";
    let body = json!({"from": "workspaces/main", "command": command, "envs": {"WHO": "me"}, "message": "a round"});
    let (stages, output, last) = round(&site, &key, body).await;
    assert_eq!(stages, ["update", "fork", "sandbox", "run", "end", "detect", "merge"]);
    assert_eq!(output, "one\nme\n");
    let result = &last["result"];
    assert_eq!((&result["exitCode"], &result["merged"], &result["kept"]), (&0.into(), &true.into(), &false.into()));
    let mut paths: Vec<_> =
        result["changes"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["a.txt", "b.txt"], "{last}");
    assert_eq!(read(&site, &key, "a.txt").await.1, "one\ntwo\n");
    assert_eq!(read(&site, &key, "b.txt").await.1, "new\n");
    let listed = rest(&site, &key, Method::GET, "/sandboxes", Value::Null).await.1;
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap()["total"], 0, "{listed}");
    let fork = result["workspace"].as_str().unwrap().replace("workspaces/", "/workspaces/");
    assert_eq!(rest(&site, &key, Method::GET, &fork, Value::Null).await.0, 404, "the fork has ended");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_whose_command_fails_merges_nothing_and_its_work_can_be_had() {
    let (mut site, key) = start().await;
    let body = json!({"from": "workspaces/main", "command": "echo lost > b.txt; exit 3"});
    let (stages, _, last) = round(&site, &key, body).await;
    assert_eq!(stages.last().map(String::as_str), Some("clean"));
    let result = &last["result"];
    assert_eq!((&result["exitCode"], &result["merged"], &result["merge"]), (&3.into(), &false.into(), &Value::Null));
    assert_eq!(read(&site, &key, "b.txt").await.0, 404);
    let fork = result["workspace"].as_str().unwrap().replace("workspaces/", "/workspaces/");
    assert_eq!(rest(&site, &key, Method::GET, &fork, Value::Null).await.0, 404);
    assert_eq!(rest(&site, &key, Method::POST, &format!("{fork}/undelete"), json!({})).await.0, 200);
    assert_eq!(rest(&site, &key, Method::GET, &format!("{fork}/files/b.txt"), Value::Null).await.1, "lost\n");
    // Kept, without a merge, with a time-out.
    let body =
        json!({"from": "workspaces/main", "command": "echo kept > c.txt; sleep 60", "timeout": 300, "keep": true});
    let (_, _, last) = round(&site, &key, body).await;
    let result = &last["result"];
    assert_eq!((&result["timedOut"], &result["merged"], &result["kept"]), (&true.into(), &false.into(), &true.into()));
    let fork = result["workspace"].as_str().unwrap().replace("workspaces/", "/workspaces/");
    assert_eq!(rest(&site, &key, Method::GET, &format!("{fork}/files/c.txt"), Value::Null).await.1, "kept\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_with_a_conflict_waits_for_a_decision_and_keeps_its_fork() {
    let (mut site, key) = start().await;
    // The command waits until somebody else has changed the same line.
    let command = "echo mine > a.txt; while ! test -e go; do sleep 0.05; done";
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    let message = v1::RunOnForkRequest {
        from: "workspaces/main".to_owned(),
        command: command.replace("test -e go", "test -s /workspace/go"),
        ..Default::default()
    };
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    let mut events = client.run_on_fork(request).await.unwrap().into_inner();
    let mut result = None;
    while let Some(message) = events.message().await.unwrap() {
        match message.event.unwrap() {
            Event::Output(output) if output.r#type == "started" => {
                let theirs = json!({"edits": [{"write": {"path": "a.txt", "text": "theirs\n"}}]});
                assert_eq!(rest(&site, &key, Method::POST, "/workspaces/main/commit-edits", theirs).await.0, 200);
                let listed = rest(&site, &key, Method::GET, "/sandboxes", Value::Null).await.1;
                let listed: Value = serde_json::from_str(&listed).unwrap();
                let fork = listed["items"][0]["workspace"].as_str().unwrap().to_owned();
                let go = json!({"edits": [{"write": {"path": "go", "text": "x"}}]});
                let path = format!("/{fork}/edits");
                assert_eq!(rest(&site, &key, Method::POST, &path, go).await.0, 200);
            }
            Event::Result(done) => result = Some(done),
            _ => {}
        }
    }
    let result = result.expect("a result");
    assert_eq!(result.merge.as_ref().map(v1::Merge::how), Some(v1::MergeHow::Review), "{result:?}");
    assert!(result.kept && !result.merged, "{result:?}");
    assert_eq!(read(&site, &key, "a.txt").await.1, "theirs\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_leaves_a_round_ends_its_command_and_nothing_is_merged() {
    let (mut site, key) = start().await;
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    let message = v1::RunOnForkRequest {
        from: "workspaces/main".to_owned(),
        command: "echo half > b.txt; sleep 600".to_owned(),
        ..Default::default()
    };
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    let mut events = client.run_on_fork(request).await.unwrap().into_inner();
    while let Some(message) = events.message().await.unwrap() {
        if matches!(message.event, Some(Event::Output(_))) {
            break;
        }
    }
    drop(events);
    drop(client);
    let began = std::time::Instant::now();
    loop {
        let listed = rest(&site, &key, Method::GET, "/sandboxes", Value::Null).await.1;
        let spaces = rest(&site, &key, Method::GET, "/workspaces", Value::Null).await.1;
        let is_clean = serde_json::from_str::<Value>(&listed).unwrap()["total"] == 0 && !spaces.contains("main-run-");
        if is_clean {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{listed} {spaces}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read(&site, &key, "b.txt").await.0, 404);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_cannot_be_is_refused_before_anything_is_made() {
    let (mut site, key) = start().await;
    for (body, status) in [
        (json!({"command": "true"}), 400),
        (json!({"from": "workspaces/main", "command": "true", "sandbox": {"from": "x"}}), 400),
        (json!({"from": "workspaces/main", "command": "true", "sandbox": {"timeoutSeconds": -1}}), 400),
        (json!({"from": "workspaces/main", "command": "true", "secrets": {"no name": "x"}}), 400),
    ] {
        let (found, text) = rest(&site, &key, Method::POST, "/sandboxes/run", body).await;
        assert_eq!(found, status, "{text}");
    }
    // What fails later is the last line of the stream.
    for body in [
        json!({"from": "workspaces/nothing", "command": "true"}),
        json!({"from": "workspaces/main", "command": "true", "sandbox": {"template": "nothing"}}),
        json!({"from": "workspaces/main", "command": ""}),
    ] {
        let (_, text) = rest(&site, &key, Method::POST, "/sandboxes/run", body).await;
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert!(last["error"]["code"].is_number(), "{text}");
    }
    let spaces = rest(&site, &key, Method::GET, "/workspaces", Value::Null).await.1;
    assert!(!spaces.contains("-run-"), "{spaces}");
    let reader = site.server.key("write run", &[], false).await;
    let body = json!({"from": "workspaces/main", "command": "true"});
    assert_eq!(rest(&site, &reader, Method::POST, "/sandboxes/run", body).await.0, 403, "it merges");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_are_watched_from_a_position_without_a_gap() {
    let mut site = Site::start().await;
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    let watch = |after: &str, kinds: &[&str]| {
        let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let message = v1::WatchSandboxesRequest { after: after.to_owned(), kinds, ..Default::default() };
        let mut request = Request::new(message);
        request.metadata_mut().insert("x-api-key", site.key.parse().unwrap());
        request
    };
    let mut live = client.watch_sandboxes(watch("", &[])).await.unwrap().into_inner();
    let begun = live.message().await.unwrap().unwrap();
    assert_eq!((begun.position.as_str(), begun.event), ("0", None));
    let id = site.create(json!({"template": "host", "name": "watched"})).await;
    site.call(Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, kind)| kind != "sandbox.deleted") {
        let next = tokio::time::timeout(Duration::from_secs(20), live.message()).await.unwrap().unwrap().unwrap();
        let event = next.event.unwrap();
        let sandbox = event.sandbox.unwrap();
        assert_eq!((sandbox.id.as_str(), sandbox.name.as_str(), event.actor.as_str()), (id.as_str(), "watched", "ann"));
        assert!(sandbox.created_at.is_some() && event.time.is_some());
        seen.push((next.position, event.kind));
    }
    let mut kinds: Vec<_> = seen.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds.first(), Some(&"sandbox.starting"));
    kinds.sort_unstable();
    let all = ["agent.connected", "sandbox.created", "sandbox.deleted", "sandbox.running", "sandbox.starting"];
    assert!(all.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    // Again, from the first event, and from the middle, of some kinds.
    let mut again = client.watch_sandboxes(watch("first", &["sandbox.*"])).await.unwrap().into_inner();
    again.message().await.unwrap();
    let first = again.message().await.unwrap().unwrap();
    assert_eq!(first.event.unwrap().kind, "sandbox.starting");
    let mut rest = client.watch_sandboxes(watch(&first.position, &["sandbox.deleted"])).await.unwrap().into_inner();
    rest.message().await.unwrap();
    assert_eq!(rest.message().await.unwrap().unwrap().event.unwrap().kind, "sandbox.deleted");
    for (after, code) in [("nothing", tonic::Code::InvalidArgument), ("9999", tonic::Code::OutOfRange)] {
        assert_eq!(client.watch_sandboxes(watch(after, &[])).await.unwrap_err().code(), code, "{after}");
    }
    assert!(client.watch_sandboxes(watch("", &["nothing"])).await.is_err(), "there is no such kind");
    drop((live, again, rest, client));
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_tells_what_it_uses_and_cleans_up_on_request() {
    let mut site = Site::start().await;
    let admin = site.server.key("admin", &[], false).await;
    let reader = site.server.key("read", &[], false).await;
    let id = site.create(json!({"template": "host"})).await;
    let (status, text) = rest(&site, &reader, Method::GET, "/stats", Value::Null).await;
    assert_eq!(status, 200, "{text}");
    let stats: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&stats["sandboxes"]["total"], &stats["sandboxes"]["running"]), (&1.into(), &1.into()), "{stats}");
    for name in ["cpuUsage", "memoryUsage", "diskUsage"] {
        let usage = stats["resources"][name].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&usage), "{name}: {stats}");
    }
    assert!(stats["resources"]["memoryUsage"].as_f64() > Some(0.0), "{stats}");
    assert_eq!((&stats["nfs"]["mode"], &stats["nfs"]["connections"]), (&"embedded".into(), &0.into()));
    let others = site.server.key("read", &["other"], false).await;
    let stats: Value = serde_json::from_str(&rest(&site, &others, Method::GET, "/stats", Value::Null).await.1).unwrap();
    assert_eq!(stats["sandboxes"]["total"], 0, "a key of another project");
    // A directory that no sandbox has.
    let orphan = site.server.home.path().join("sandboxes/sbx-orphan/files");
    std::fs::create_dir_all(&orphan).unwrap();
    std::fs::write(orphan.join("agent.log"), vec![b'x'; 5_000]).unwrap();
    assert_eq!(rest(&site, &reader, Method::POST, "/gc", json!({})).await.0, 403);
    let (status, text) = rest(&site, &admin, Method::POST, "/gc", json!({"stores": true})).await;
    assert_eq!(status, 200, "{text}");
    let done: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&done["cleanedSandboxes"], &done["cleanedWorkspaces"]), (&0.into(), &1.into()), "{done}");
    assert!(done["freedSpace"].as_i64() >= Some(5_000), "{done}");
    assert_eq!(done["collectedProjects"], 1, "{done}");
    assert!(!orphan.exists());
    assert_eq!(site.get(&id).await["state"], "running", "one that runs stays");
    site.server.stop().await;
}
