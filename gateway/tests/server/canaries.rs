//! Canaries: whatever sequence of acts an agent tries over the network, what it may not change stays, and bytes that it may not read do
//! not reach it. Also the events of refusals and overlaps, and exports, as agents see them.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use amalgam_proto::v1::exchange_service_client::ExchangeServiceClient;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use http::Method;
use serde_json::{Value, json};
use tonic::Request;

use crate::running::{Answer, Running};

/// The bytes of a file that must not reach the agent.
const HIDDEN: &str = "hidden-9c1e";
/// The bytes of files that the agent may read and not change.
const FIXED: &str = "fixed-41d7";
const WITHIN: Duration = Duration::from_secs(20);
/// So many acts in each of three sequences where nobody says otherwise in this variable.
const ACTS: usize = 120;
const ACTS_VARIABLE: &str = "AMALGAM_CANARY_ACTS";
const SEED_VARIABLE: &str = "AMALGAM_SEED";

/// A server whose policy hides `shut` and protects `a`, with keys of an admin and of the agents ann and bob.
struct House {
    server: Running,
    admin: String,
    ann: String,
    bob: String,
}

impl House {
    async fn new() -> Self {
        let server = Running::start().await;
        let admin = server.key_of("root", "admin,read,write,merge,run", &[], false).await;
        let ann = server.key_of("ann", "read,write,merge,run", &[], false).await;
        let bob = server.key_of("bob", "read,write,merge,run", &[], false).await;
        let house = Self { server, admin, ann, bob };
        house.ok(&house.admin, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
        let write = |path: &str, text: &str| json!({"write": {"path": path, "text": text, "createParents": true}});
        let files = [("a/file", FIXED), ("a/deep/file", FIXED), ("open/file", "open"), ("shut/file", HIDDEN)];
        let edits: Vec<_> = files.iter().map(|(path, text)| write(path, text)).collect();
        let edits = json!({"edits": edits, "message": "first"});
        house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", edits).await;
        let policy = "default = \"RW\"\n[[rule]]\nagents = [\"ann\"]\npaths = [\"/a\"]\nlevel = \"R\"\n\
                      [[rule]]\nagents = [\"ann\"]\npaths = [\"/shut\"]\nlevel = \"none\"\n";
        house.ok(&house.admin, Method::PUT, "/policy", json!({"text": policy})).await;
        house
    }

    async fn call(&self, key: &str, method: Method, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await
    }

    async fn ok(&self, key: &str, method: Method, path: &str, body: Value) -> Value {
        let answer = self.call(key, method, path, body).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
        if answer.bytes.is_empty() { Value::Null } else { answer.json() }
    }

    async fn fork(&self, key: &str, name: &str) {
        self.ok(key, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": [name]})).await;
    }

    async fn write(&self, key: &str, workspace: &str, path: &str, text: &str) {
        let edits = json!({"edits": [{"write": {"path": path, "text": text, "createParents": true}}]});
        self.ok(key, Method::POST, &format!("/workspaces/{workspace}/commit-edits"), edits).await;
    }

    async fn subscribe(&self, key: &str, kinds: &[&str]) -> tonic::Streaming<v1::SubscribeResponse> {
        let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let mut request = Request::new(v1::SubscribeRequest { kinds, ..Default::default() });
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
        let mut events = EventServiceClient::new(self.server.channel().await);
        let mut stream = events.subscribe(request).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().unwrap().event.is_none(), "the first message tells the position");
        stream
    }
}

async fn next(stream: &mut tonic::Streaming<v1::SubscribeResponse>) -> v1::Event {
    loop {
        let message = tokio::time::timeout(WITHIN, stream.message()).await.expect("in time").unwrap().expect("no end");
        if let Some(event) = message.event {
            return event;
        }
    }
}

/// A generator of numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// An act of an agent that does its worst.
fn act(random: &mut Random) -> (Method, String, Value) {
    let workspaces = ["main", "mine", "second", "admins"];
    let paths = [
        "a/file",
        "a/deep/file",
        "a/new",
        "shut/file",
        "shut/new",
        "shut",
        "a",
        "open/file",
        "open/new",
        "SHUT/file",
        "A/file",
        "top",
    ];
    let workspace = random.pick(&workspaces);
    let (path, other) = (random.pick(&paths), random.pick(&paths));
    let post = |path: &str, body: Value| (Method::POST, path.to_owned(), body);
    let get = |path: String| (Method::GET, path, Value::Null);
    match random.below(24) {
        0 => {
            post(&format!("/workspaces/{workspace}/fork"), json!({"workspaceIds": [random.pick(&["mine", "second"])]}))
        }
        at @ 1..=7 => {
            let edit = match random.below(7) {
                0 => json!({"write": {"path": path, "text": "changed", "createParents": true}}),
                1 => json!({"remove": {"path": path, "recursive": true}}),
                2 => json!({"rename": {"path": path, "newPath": other}}),
                3 => json!({"createSymlink": {"path": path, "target": format!("../{other}")}}),
                4 => json!({"setAttributes": {"path": path, "mode": 0o777}}),
                5 => json!({"makeDirectory": {"path": path}}),
                _ => json!({"replace": {"path": path, "oldText": "-", "newText": "+"}}),
            };
            let door = if at % 2 == 0 { "edits" } else { "commit-edits" };
            post(&format!("/workspaces/{workspace}/{door}"), json!({"edits": [edit]}))
        }
        8 => post(&format!("/workspaces/{workspace}/commit"), json!({"message": "x"})),
        9 => post(
            &format!("/workspaces/{workspace}/merge"),
            json!({"sources": [format!("workspaces/{}", random.pick(&workspaces))]}),
        ),
        10 => {
            let partial = random.pick(&["", "partial", "review"]);
            let submission = json!({"target": "workspaces/main", "onRefused": partial});
            post(&format!("/workspaces/{workspace}/publish"), json!({"submission": submission}))
        }
        11 => {
            let source =
                json!({"sourceWorkspace": format!("workspaces/{}", random.pick(&workspaces)), "mode": "event"});
            post(&format!("/workspaces/{workspace}/follow"), source)
        }
        12 => post(&format!("/workspaces/{workspace}/update"), json!({})),
        13 => post(
            &format!("/workspaces/{workspace}/restore"),
            json!({"revision": format!("{}@~", random.pick(&workspaces))}),
        ),
        14 => post("/operations/undo", json!({"workspace": format!("workspaces/{workspace}")})),
        15 => post("/operations/redo", json!({"workspace": format!("workspaces/{workspace}")})),
        16 => get(format!("/workspaces/{workspace}/files/{path}")),
        17 => get(format!("/workspaces/{workspace}/grep?pattern=.")),
        18 => get(format!("/patch?before.empty=true&after.revision={workspace}@")),
        19 => get("/radar".to_owned()),
        20 => get(format!("/snapshots/{workspace}@/blame?path={path}")),
        21 => get(format!("/search?pattern=.&state.revision={workspace}@")),
        22 => get(format!("/workspaces/{workspace}/list?recursive=true")),
        _ => get(format!("/workspaces/{workspace}/conflicts")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_agent_tries_protected_files_stay_and_hidden_bytes_do_not_reach_it() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number(SEED_VARIABLE).unwrap_or_else(|| u64::from(std::process::id()));
    let acts = number(ACTS_VARIABLE).map_or(ACTS, |acts| acts as usize);
    for round in 0..3 {
        println!("{SEED_VARIABLE}={} {ACTS_VARIABLE}={acts}", seed + round);
        let mut random = Random(seed + round);
        let house = House::new().await;
        house.fork(&house.admin, "admins").await;
        house.write(&house.admin, "admins", "shut/more", HIDDEN).await;
        let mut done = 0;
        for _ in 0..acts {
            let (method, path, body) = act(&mut random);
            let words = format!("{method} {path} {body}");
            let answer = house.call(&house.ann, method, &path, body).await;
            let text = String::from_utf8_lossy(&answer.bytes).into_owned();
            println!("{words}: {}", answer.status);
            assert!(!text.contains(HIDDEN), "{words}: {text}");
            assert_ne!(answer.status.as_u16(), 500, "{words}: {text}");
            done += usize::from(answer.status == 200);
        }
        assert!(done > acts / 10, "hardly anything was permitted: {done}");
        for (path, text) in [("a/file", FIXED), ("a/deep/file", FIXED), ("shut/file", HIDDEN)] {
            let place = format!("/workspaces/main/files/{path}?revision=main@");
            let read = house.call(&house.admin, Method::GET, &place, Value::Null).await;
            assert_eq!(String::from_utf8_lossy(&read.bytes), text, "{path} of main");
        }
        let place = "/workspaces/main/list?recursive=true&revision=main@";
        let listed = house.ok(&house.admin, Method::GET, place, Value::Null).await["files"].to_string();
        for path in ["\"a/new\"", "\"shut/new\""] {
            assert!(!listed.contains(path), "{path} was added: {listed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_an_event_without_paths_that_the_subscriber_cannot_see() {
    let house = House::new().await;
    let mut told = house.subscribe(&house.admin, &["policy.refused"]).await;
    let mut told_ann = house.subscribe(&house.ann, &["policy.*"]).await;
    house.fork(&house.ann, "mine").await;
    for path in ["a/file", "a/file", "shut/new"] {
        let edits = json!({"edits": [{"write": {"path": path, "text": "x"}}]});
        assert_eq!(house.call(&house.ann, Method::POST, "/workspaces/mine/edits", edits).await.status, 403, "{path}");
    }
    let event = next(&mut told).await;
    assert_eq!(
        (event.kind.as_str(), event.agent.as_str(), &event.paths[..]),
        ("policy.refused", "ann", &["a/file".to_owned()][..])
    );
    assert!(event.detail.contains("change a/file: the rule on line 2"), "{event:?}");
    assert_eq!(next(&mut told).await.paths, ["shut/new"], "the same act is told once");
    assert_eq!(next(&mut told_ann).await.paths, ["a/file"]);
    let hidden = next(&mut told_ann).await;
    assert!(hidden.paths.is_empty() && !format!("{hidden:?}").contains("shut"), "{hidden:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlaps_are_told_to_subscribers_and_the_radar_hides_hidden_paths() {
    let house = House::new().await;
    let mut told = house.subscribe(&house.admin, &["overlap.*"]).await;
    house.fork(&house.ann, "mine").await;
    house.fork(&house.bob, "bobs").await;
    house.fork(&house.bob, "third").await;
    house.write(&house.ann, "mine", "open/file", "ann").await;
    house.write(&house.bob, "bobs", "open/file", "bob").await;
    let event = next(&mut told).await;
    assert_eq!((event.kind.as_str(), &event.paths[..]), ("overlap.began", &["open/file".to_owned()][..]));
    let workspaces: std::collections::BTreeSet<_> = event.workspaces.iter().map(String::as_str).collect();
    assert_eq!(workspaces, ["workspaces/bobs", "workspaces/mine"].into());
    for workspace in ["bobs", "third"] {
        house.write(&house.bob, workspace, "shut/file", workspace).await;
    }
    assert_eq!(next(&mut told).await.paths, ["shut/file"]);
    let seen = house.ok(&house.ann, Method::GET, "/radar", Value::Null).await;
    assert_eq!(seen["overlaps"].as_array().map(Vec::len), Some(1), "{seen}");
    assert_eq!(seen["overlaps"][0]["pairs"][0]["merge"], "conflict", "{seen}");
    let sides = seen["overlaps"][0]["sides"].as_array().unwrap();
    assert!(sides.iter().any(|side| side["agent"] == "ann"), "{seen}");
    let seen = house.ok(&house.admin, Method::GET, "/radar?workspace=workspaces/third", Value::Null).await;
    assert_eq!(seen["overlaps"][0]["path"], "shut/file", "{seen}");
    house.ok(&house.bob, Method::DELETE, "/workspaces/bobs", Value::Null).await;
    let ended = [next(&mut told).await, next(&mut told).await];
    assert!(ended.iter().all(|event| event.kind == "overlap.ended"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_of_a_merge_does_not_name_a_hidden_path_of_the_other_side() {
    let house = House::new().await;
    // A group of a visible and a hidden path: each side changes one of them.
    let rules = "[[group]]\npaths = [\"manifest\", \"shut-lock\"]\n";
    for (path, text) in [(".amalgam/rules.toml", rules), ("manifest", "1\n"), ("shut-lock", "1\n")] {
        house.write(&house.admin, "main", path, text).await;
    }
    let policy = "default = \"RW\"\n[[rule]]\nagents = [\"ann\"]\npaths = [\"/shut-lock\"]\nlevel = \"none\"\n";
    house.ok(&house.admin, Method::PUT, "/policy", json!({"text": policy})).await;
    house.fork(&house.ann, "mine").await;
    house.write(&house.admin, "main", "shut-lock", "2\n").await;
    house.write(&house.ann, "mine", "manifest", "2\n").await;
    let conflicts = async |key: &str| {
        let mut request = Request::new(v1::MergeWorkspacesRequest {
            target: "workspaces/mine".to_owned(),
            sources: vec!["workspaces/main".to_owned()],
            dry_run: true,
            ..Default::default()
        });
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
        let mut merges = MergeServiceClient::new(house.server.channel().await);
        merges.merge_workspaces(request).await.unwrap().into_inner().merge.unwrap().conflicts
    };
    let is_hidden_named = |conflict: &v1::MergedPath| conflict.others.iter().any(|other| other.starts_with(b"shut"));
    let all = conflicts(&house.admin).await;
    assert!(all.iter().any(is_hidden_named), "{all:?}");
    let seen = conflicts(&house.ann).await;
    assert!(!seen.is_empty() && !seen.iter().any(is_hidden_named), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_that_no_directory_shows_is_searched_and_read() {
    let house = House::new().await;
    house.fork(&house.ann, "mine").await;
    house.write(&house.ann, "mine", "open/file", "of ann\n").await;
    house.write(&house.admin, "main", "open/file", "of root\n").await;
    let sources = json!({"sources": ["workspaces/main"]});
    let merged = house.ok(&house.ann, Method::POST, "/workspaces/mine/merge", sources).await;
    assert_eq!(merged["merge"]["conflicts"].as_array().map(Vec::len), Some(1), "{merged}");
    let state = Some(v1::State { state: Some(v1::state::State::Revision("mine@".to_owned())) });
    let mut snapshots = SnapshotServiceClient::new(house.server.channel().await);
    let path = "open/file".into();
    let mut request = Request::new(v1::ReadFileRequest { state: state.clone(), path, ..Default::default() });
    request.metadata_mut().insert("x-api-key", house.ann.parse().unwrap());
    let mut stream = snapshots.read_file(request).await.unwrap().into_inner();
    let mut text = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        text.extend_from_slice(&message.data);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("of ann") && text.contains("of root") && text.contains("<<<<<<<"), "{text}");
    // In another conflict, whose text nothing has read.
    house.write(&house.admin, "main", "open/file", "newer\n").await;
    house.fork(&house.ann, "second").await;
    house.write(&house.ann, "second", "open/file", "second\n").await;
    house.write(&house.admin, "main", "open/file", "newest\n").await;
    let sources = json!({"sources": ["workspaces/main"]});
    house.ok(&house.ann, Method::POST, "/workspaces/second/merge", sources).await;
    let place = "/search?pattern=newest&state.revision=second@";
    let found = house.ok(&house.ann, Method::GET, place, Value::Null).await;
    assert_eq!(found["matches"][0]["text"], "newest", "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_is_updated_over_rest_and_a_path_of_the_host_is_refused() {
    let house = House::new().await;
    house.fork(&house.ann, "mine").await;
    let follow = json!({"sourceWorkspace": "workspaces/main", "everySeconds": 3600});
    let followed = house.ok(&house.ann, Method::POST, "/workspaces/mine/follow", follow).await;
    assert_eq!(followed["workspace"]["following"]["source"], "workspaces/main", "{followed}");
    house.write(&house.admin, "main", "open/file", "newer").await;
    let updated = house.ok(&house.ann, Method::POST, "/workspaces/mine/update", json!({})).await;
    assert_eq!(updated["update"]["how"], "updated", "{updated}");
    assert_eq!(updated["update"]["synced"].to_string().trim_matches('"'), "1", "{updated}");
    let read = house.call(&house.ann, Method::GET, "/workspaces/mine/files/open/file", Value::Null).await;
    assert_eq!(&read.bytes[..], b"newer");
    let local = json!({"directory": "L2V0Yw=="});
    let refused = house.call(&house.ann, Method::POST, "/workspaces/mine/follow", local).await;
    assert!(refused.status.is_client_error(), "{:?}", refused.bytes);
    let ended = house.ok(&house.ann, Method::POST, "/workspaces/mine/unfollow", json!({})).await;
    assert!(ended["workspace"].get("following").is_none_or(Value::is_null), "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exported_archive_leaves_hidden_paths_out_and_layers_are_refused() {
    let house = House::new().await;
    let export = async |key: &str, target: v1::export_tree_request::Target| {
        let request =
            v1::ExportTreeRequest { revision: "main@".to_owned(), target: Some(target), ..Default::default() };
        let mut request = Request::new(request);
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
        let mut exchange = ExchangeServiceClient::new(house.server.channel().await);
        let mut answers = exchange.export_tree(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(answer) = answers.message().await? {
            if let Some(v1::export_tree_response::Event::Data(data)) = answer.event {
                bytes.extend_from_slice(&data);
            }
        }
        Ok::<_, tonic::Status>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let tar = || {
        let compression = v1::ArchiveCompression::None.into();
        v1::export_tree_request::Target::Tar(v1::TarTarget { compression })
    };
    let all = export(&house.admin, tar()).await.unwrap();
    assert!(all.contains(HIDDEN) && all.contains("shut/file"));
    let seen = export(&house.ann, tar()).await.unwrap();
    assert!(seen.contains(FIXED) && !seen.contains(HIDDEN) && !seen.contains("shut"));
    let layers = v1::export_tree_request::Target::Oci(v1::OciTarget::default());
    assert_eq!(export(&house.ann, layers).await.unwrap_err().code(), tonic::Code::PermissionDenied);
}
