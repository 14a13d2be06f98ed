//! Permissions of agents over the network: each level with each act, and the ways around them.

use amalgam_proto::v1;
use amalgam_proto::v1::exchange_service_client::ExchangeServiceClient;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use http::Method;
use serde_json::{Value, json};

use crate::running::{Answer, Running};

/// The bytes of files that must not reach an agent.
const CANARY: &str = "canary-7f3a";

/// A server with a workspace `main` of an admin and a committed tree, and keys.
struct House {
    server: Running,
    admin: String,
    ann: String,
    bob: String,
    lea: String,
}

impl House {
    async fn new() -> Self {
        let server = Running::start().await;
        let admin = server.key_of("root", "admin,read,write,merge,run", &[], false).await;
        let ann = server.key_of("ann", "read,write,merge,run", &[], false).await;
        let bob = server.key_of("bob", "read,write,merge,run", &[], false).await;
        let lea = server.key_of("lea", "read,write,merge,run", &[], false).await;
        let house = Self { server, admin, ann, bob, lea };
        house.ok(&house.admin, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
        let write = |path: &str| json!({"write": {"path": path, "text": CANARY, "createParents": true}});
        let edits: Vec<_> = ["a/file", "a/deep/file", "open/file", "shut/file"].map(write).into();
        let edits = json!({"edits": edits, "message": "first"});
        house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", edits).await;
        house
    }

    async fn call(&self, key: &str, method: Method, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await
    }

    #[track_caller]
    fn ok<'a>(
        &'a self,
        key: &'a str,
        method: Method,
        path: &'a str,
        body: Value,
    ) -> impl Future<Output = Value> + use<'a> {
        let place = std::panic::Location::caller();
        async move {
            let answer = self.call(key, method, path, body).await;
            assert_eq!(answer.status, 200, "{place}: {path}: {:?}", answer.bytes);
            if answer.bytes.is_empty() { Value::Null } else { answer.json() }
        }
    }

    async fn get(&self, key: &str, path: &str) -> Answer {
        self.call(key, Method::GET, path, Value::Null).await
    }

    /// Sets the policy.
    async fn policy(&self, text: &str) {
        self.ok(&self.admin, Method::PUT, "/policy", json!({"text": text})).await;
    }

    /// Sets a policy in which `a` has a level, `shut` is hidden, and all else may be written.
    async fn level_of_a(&self, level: &str) {
        let text = format!("default = \"RW\"\n{}{}", rule("a/**", level), rule("shut", "none"));
        self.policy(&text).await;
    }

    /// Makes a workspace `plain` of the admin with one file, which every agent may change.
    async fn plain(&self) {
        self.ok(&self.admin, Method::POST, "/workspaces", json!({"workspaceId": "plain"})).await;
        let edit = json!({"write": {"path": "open/x", "text": "x", "createParents": true}});
        let edits = json!({"edits": [edit], "message": "plain"});
        self.ok(&self.admin, Method::POST, "/workspaces/plain/commit-edits", edits).await;
    }

    /// Everything that a key can read of `main`'s head.
    async fn seen(&self, key: &str) -> Vec<String> {
        let listed = self.ok(key, Method::GET, "/workspaces/main/list?recursive=true", Value::Null).await;
        let files = listed["files"].as_array().cloned().unwrap_or_default();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    }
}

fn rule(path: &str, level: &str) -> String {
    format!("[[rule]]\npaths = [\"{path}\"]\nlevel = \"{level}\"\n")
}

fn reason(answer: &Answer) -> String {
    answer.json().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_level_permits_exactly_its_acts_by_file_calls_and_commits() {
    let house = House::new().await;
    let edits = [
        (2, "add", json!({"write": {"path": "a/new", "text": "x"}})),
        (2, "make a directory", json!({"makeDirectory": {"path": "a/new"}})),
        (2, "link", json!({"createSymlink": {"path": "a/new", "target": "file"}})),
        (3, "write", json!({"write": {"path": "a/file", "text": "x"}})),
        (3, "replace", json!({"replace": {"path": "a/file", "oldText": "canary", "newText": "x"}})),
        (
            3,
            "patch",
            json!({"patch": {"path": "a/file", "patch": format!("@@ -1 +1 @@\n-{CANARY}\n\\ No newline at end of file\n+x\n\\ No newline at end of file\n")}}),
        ),
        (3, "chmod", json!({"setAttributes": {"path": "a/file", "mode": 0o600}})),
        (4, "remove", json!({"remove": {"path": "a/file"}})),
        (4, "remove all", json!({"remove": {"path": "a/deep", "recursive": true}})),
        (4, "rename", json!({"rename": {"path": "a/file", "newPath": "open/stolen"}})),
        (3, "rename onto", json!({"rename": {"path": "open/file", "newPath": "a/file"}})),
    ];
    for (number, level) in ["none", "R", "RA", "RW-", "RW"].iter().enumerate() {
        house.level_of_a(level).await;
        for (at, (least, what, edit)) in edits.iter().enumerate() {
            for door in ["edits", "commit-edits"] {
                let name = format!("t{number}-{at}-{door}");
                let fork = json!({"workspaceIds": [name]});
                house.ok(&house.ann, Method::POST, "/workspaces/main/fork", fork).await;
                let (path, body) = (format!("/workspaces/{name}/{door}"), json!({"edits": [edit]}));
                let answer = house.call(&house.ann, Method::POST, &path, body).await;
                let words = format!("{what} with {level} by {door}: {:?}", answer.bytes);
                if number >= *least {
                    assert_eq!(answer.status, 200, "{words}");
                } else {
                    let hidden =
                        number == 0 && !matches!(*what, "add" | "make a directory" | "link" | "write" | "rename onto");
                    assert_eq!(answer.status, if hidden { 404 } else { 403 }, "{words}");
                    assert!(!answer.bytes.windows(6).any(|part| part == b"canary"), "{words}");
                }
            }
        }
        let read = house.get(&house.ann, "/workspaces/main/files/a/file").await;
        assert_eq!(read.status, if number == 0 { 404 } else { 200 }, "read with {level}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_has_hidden_paths_or_their_contents() {
    let house = House::new().await;
    house.level_of_a("R").await;
    let forked = json!({"workspaceIds": ["mine"]});
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", forked).await;
    let paths = [
        "/workspaces/main/list?recursive=true",
        "/workspaces/mine/list?recursive=true",
        "/workspaces/main/list?recursive=true&revision=@",
        "/workspaces/main/list?path=shut",
        "/workspaces/main/stat?path=shut/file",
        "/workspaces/main/glob?pattern=**",
        "/workspaces/main/glob?pattern=*&path=shut",
        "/workspaces/main/grep?pattern=.",
        "/workspaces/main/grep?pattern=.&paths=shut",
        "/workspaces/main/files/shut/file",
        "/workspaces/main/files/shut/file?revision=main@",
        "/diff?before.empty=true&after.revision=main@",
        "/insight?before.empty=true&after.revision=main@",
        "/patch?before.empty=true&after.revision=main@",
        "/search?pattern=.&state.revision=main@",
        "/find?pattern=**&revisions=main@",
        "/snapshots/main@/blame?path=shut/file",
        "/snapshots/main@/versions?path=shut/file",
        "/snapshots?revisions=main@&paths=shut/file",
        "/usage",
        "/growth",
        "/workspaces/main/conflicts",
        "/resolutions",
        "/reviews",
        "/tombstones",
        "/workspaces/main/status",
        "/snapshots/main@",
        "/policy",
        "/policy/explain?path=shut/file",
    ];
    for path in paths {
        let answer = house.get(&house.ann, path).await;
        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
        // An error may repeat the path that the caller named.
        let named = path.contains("shut");
        assert!(named || !text.contains("shut"), "{path}: {text}");
        let is_a_read_of_shut = named && text.contains(CANARY);
        assert!(!is_a_read_of_shut, "{path}: {text}");
        let count = text.matches(CANARY).count();
        assert!(count <= 3, "{path}: {text}");
    }
    for path in
        ["/workspaces/main/stat?path=shut/file", "/workspaces/main/files/shut/file", "/workspaces/main/list?path=shut"]
    {
        assert_eq!(house.get(&house.ann, path).await.status, 404, "{path}");
        assert_eq!(house.get(&house.admin, path).await.status, 200, "{path} for the admin");
    }
    assert_eq!(house.seen(&house.ann).await, ["a", "a/deep", "a/deep/file", "a/file", "open", "open/file"]);
    assert!(house.seen(&house.admin).await.contains(&"shut/file".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gets_no_rights_by_forks_restores_undos_and_other_agents() {
    let house = House::new().await;
    let first = house.ok(&house.admin, Method::GET, "/snapshots/main@", Value::Null).await;
    let first = first["snapshot"]["name"].as_str().unwrap().trim_start_matches("snapshots/").to_owned();
    let edit = json!({"edits": [{"write": {"path": "a/file", "text": "second"}}], "message": "second"});
    house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", edit).await;
    house.level_of_a("R").await;
    // A fork belongs to its maker.
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["mine"]})).await;
    let mine = house.ok(&house.ann, Method::GET, "/workspaces/mine", Value::Null).await;
    assert_eq!(mine["workspace"]["agent"], "ann", "{mine}");
    for (path, body) in [
        ("/workspaces", json!({"workspaceId": "x", "agent": "bob"})),
        ("/workspaces/mine/restore", json!({"revision": first})),
        ("/workspaces/main/restore", json!({"revision": first, "paths": ["a/file"]})),
        ("/operations/undo", json!({"workspace": "workspaces/main"})),
    ] {
        let answer = house.call(&house.ann, Method::POST, path, body).await;
        assert_eq!(answer.status, 403, "{path}: {:?}", answer.bytes);
    }
    let other = house.call(&house.ann, Method::PATCH, "/workspaces/mine", json!({"agent": "root"})).await;
    assert_eq!(other.status, 403, "{:?}", other.bytes);
    // Neither does an undo change the agent of a workspace.
    house.ok(&house.admin, Method::PATCH, "/workspaces/main", json!({"agent": "bob"})).await;
    let listed = house.ok(&house.admin, Method::GET, "/operations?workspace=workspaces/main", Value::Null).await;
    let described = listed["operations"][0]["name"].as_str().unwrap().to_owned();
    for undo in [json!({"workspace": "workspaces/main"}), json!({"operation": described})] {
        let answer = house.call(&house.ann, Method::POST, "/operations/undo", undo).await;
        assert_eq!(answer.status, 403, "{:?}", answer.bytes);
    }
    let main = house.ok(&house.admin, Method::GET, "/workspaces/main", Value::Null).await;
    assert_eq!(main["workspace"]["agent"], "bob", "{main}");
    for (method, path, body) in [
        (Method::PUT, "/policy", json!({"text": ""})),
        (Method::GET, "/policy", Value::Null),
        (Method::GET, "/policy/changes", Value::Null),
    ] {
        assert_eq!(house.call(&house.ann, method, path, body).await.status, 403, "{path}");
    }
    // An undo of the policy is one of its changes.
    let changes = house.ok(&house.admin, Method::GET, "/policy/changes", Value::Null).await;
    let operation = changes["operations"][0]["name"].as_str().unwrap().to_owned();
    let undo = json!({"operation": operation});
    assert_eq!(house.call(&house.ann, Method::POST, "/operations/undo", undo.clone()).await.status, 403);
    house.ok(&house.admin, Method::POST, "/operations/undo", undo).await;
    assert!(house.seen(&house.ann).await.contains(&"shut/file".to_owned()), "without a policy all is open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_locks_everybody_out_is_undone_by_the_admin() {
    let house = House::new().await;
    let set = house.ok(&house.admin, Method::PUT, "/policy", json!({"text": "default = \"none\""})).await;
    assert!(!set["warnings"].as_array().unwrap().is_empty(), "{set}");
    assert!(house.seen(&house.ann).await.is_empty());
    let operation = set["operation"]["name"].as_str().unwrap();
    house.ok(&house.admin, Method::POST, "/operations/undo", json!({"operation": operation})).await;
    assert!(!house.seen(&house.ann).await.is_empty());
    let bad = house.call(&house.admin, Method::PUT, "/policy", json!({"text": "default = \"everything\""})).await;
    assert_eq!(bad.status, 400, "{:?}", bad.bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merges_with_refused_changes_are_held_or_taken_in_part() {
    let house = House::new().await;
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["mine"]})).await;
    let edits = json!({"message": "mine", "edits": [
        {"write": {"path": "a/file", "text": "not permitted"}},
        {"write": {"path": "open/file", "text": "permitted"}},
        {"write": {"path": ".amalgam/rules.toml", "text": "", "createParents": true}},
    ]});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/commit-edits", edits).await;
    let hidden = format!("default = \"RW\"\nreviewers = [\"lea\"]\n{}{}", rule("a/**", "R"), rule(".amalgam", "R"));
    house.policy(&hidden).await;
    let publish = |on_refused: &str| json!({"submission": {"onRefused": on_refused}});
    let held = house.ok(&house.ann, Method::POST, "/workspaces/mine/publish", publish("")).await;
    assert_eq!(held["merge"]["how"], "MERGE_HOW_REVIEW", "{held}");
    assert_eq!(held["merge"]["refused"].as_array().unwrap().len(), 3, "{held}");
    assert!(held["merge"]["reason"].as_str().unwrap().contains("ann may not change a/file"), "{held}");
    let part = house.ok(&house.ann, Method::POST, "/workspaces/mine/publish", publish("partial")).await;
    assert_eq!(part["merge"]["how"], "MERGE_HOW_MERGED", "{part}");
    assert_eq!(part["merge"]["refused"].as_array().unwrap().len(), 3, "{part}");
    let text = async |path: &str| String::from_utf8(house.get(&house.admin, path).await.bytes.to_vec()).unwrap();
    assert_eq!(text("/workspaces/main/files/open/file").await, "permitted");
    assert_eq!(text("/workspaces/main/files/a/file").await, CANARY);
    assert_eq!(text("/workspaces/mine/files/a/file").await, "not permitted", "it stays in the workspace");
    // A direct merge is refused as a whole.
    let direct = json!({"sources": ["workspaces/mine"]});
    let direct = house.ok(&house.ann, Method::POST, "/workspaces/main/merge", direct).await;
    assert_eq!(direct["merge"]["how"], "MERGE_HOW_REFUSED", "{direct}");
    // Another agent can neither approve nor reject it, a reviewer can.
    let reviews = house.ok(&house.admin, Method::GET, "/reviews", Value::Null).await;
    let review = reviews["reviews"][0]["entry"]["name"].as_str().unwrap().to_owned();
    let accept = |review: &str| format!("/{review}/accept");
    let again = house.ok(&house.bob, Method::POST, &accept(&review), json!({})).await;
    assert_eq!(again["merge"]["how"], "MERGE_HOW_REVIEW", "{again}");
    let reviews = house.ok(&house.lea, Method::GET, "/reviews", Value::Null).await;
    let review = reviews["reviews"][0]["entry"]["name"].as_str().unwrap().to_owned();
    let rejected = house.call(&house.bob, Method::POST, &format!("/{review}/reject"), json!({})).await;
    assert_eq!(rejected.status, 403, "{:?}", rejected.bytes);
    let landed = house.ok(&house.lea, Method::POST, &accept(&review), json!({})).await;
    assert_eq!(landed["merge"]["how"], "MERGE_HOW_MERGED", "{landed}");
    assert_eq!(text("/workspaces/main/files/a/file").await, "not permitted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_that_add_the_same_name_both_keep_their_file() {
    let house = House::new().await;
    house.policy(&format!("default = \"R\"\n{}", rule("drop/**", "RA"))).await;
    let make = json!({"edits": [{"makeDirectory": {"path": "drop"}}], "message": "drop"});
    house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", make).await;
    for (key, name, text) in [(&house.ann, "of-ann", "by ann"), (&house.bob, "of-bob", "by bob")] {
        house.ok(key, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": [name]})).await;
        let edit = json!({"edits": [{"write": {"path": "drop/report.md", "text": text}}], "message": text});
        house.ok(key, Method::POST, &format!("/workspaces/{name}/commit-edits"), edit).await;
    }
    for (key, name) in [(&house.ann, "of-ann"), (&house.bob, "of-bob")] {
        let done = house.ok(key, Method::POST, &format!("/workspaces/{name}/publish"), json!({"submission": {}})).await;
        assert_eq!(done["merge"]["how"], "MERGE_HOW_MERGED", "{done}");
    }
    let text = async |path: &str| String::from_utf8(house.get(&house.ann, path).await.bytes.to_vec()).unwrap();
    assert_eq!(text("/workspaces/main/files/drop/report.md").await, "by ann");
    assert_eq!(text("/workspaces/main/files/drop/report.bob.md").await, "by bob");
    let change = json!({"edits": [{"write": {"path": "drop/report.md", "text": "x"}}]});
    let refused = house.call(&house.bob, Method::POST, "/workspaces/of-bob/edits", change).await;
    assert_eq!(refused.status, 403, "{}", reason(&refused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncommitted_work_is_judged_again_at_the_commit() {
    let house = House::new().await;
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["mine"]})).await;
    let edit = json!({"edits": [{"write": {"path": "a/file", "text": "mine"}}]});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/edits", edit).await;
    house.level_of_a("R").await;
    let refused = house.call(&house.ann, Method::POST, "/workspaces/mine/commit", json!({"message": "late"})).await;
    assert_eq!(refused.status, 403, "{:?}", refused.bytes);
    house.level_of_a("RW").await;
    house.ok(&house.ann, Method::POST, "/workspaces/mine/commit", json!({"message": "now"})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_watch_follows_the_policy_and_is_not_cut() {
    let house = House::new().await;
    let key: tonic::metadata::MetadataValue<_> = house.ann.parse().unwrap();
    let channel = house.server.channel().await;
    let mut files = FileServiceClient::with_interceptor(channel, move |mut request: tonic::Request<()>| {
        request.metadata_mut().insert("x-api-key", key.clone());
        Ok(request)
    });
    let request = amalgam_proto::v1::WatchFilesRequest { workspace: "workspaces/main".into(), ..Default::default() };
    let mut watch = files.watch_files(request).await.unwrap().into_inner();
    house.level_of_a("R").await;
    for path in ["shut/file", "open/file"] {
        let edit = json!({"edits": [{"write": {"path": path, "text": "new"}}]});
        house.ok(&house.admin, Method::POST, "/workspaces/main/edits", edit).await;
    }
    loop {
        let told = tokio::time::timeout(std::time::Duration::from_secs(20), watch.message()).await.unwrap().unwrap();
        let paths: Vec<_> = told.unwrap().changes.into_iter().map(|change| change.path).collect();
        assert!(!paths.iter().any(|path| path.contains("shut")), "{paths:?}");
        if paths.contains(&"open/file".to_owned()) {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_learns_its_own_level_and_not_that_of_others() {
    let house = House::new().await;
    house.level_of_a("RA").await;
    let told = house.ok(&house.ann, Method::GET, "/policy/explain?path=a/file", Value::Null).await;
    assert_eq!((&told["level"], &told["agent"]), (&json!("RA"), &json!("ann")), "{told}");
    assert_eq!(told["patterns"], json!(["a/**"]));
    let hidden = house.ok(&house.ann, Method::GET, "/policy/explain?path=shut/x", Value::Null).await;
    assert_eq!(hidden["level"], "none");
    assert!(hidden.get("patterns").is_none_or(|patterns| patterns == &json!([])), "{hidden}");
    assert_eq!(house.get(&house.ann, "/policy/explain?path=a/file&agent=bob").await.status, 403);
    assert_eq!(house.get(&house.admin, "/policy/explain?path=a/file&agent=bob").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_moves_no_file_to_where_other_rules_apply() {
    let house = House::new().await;
    let text = format!("default = \"RW\"\n{}{}", rule("open/secret/**", "none"), rule("open/kept/**", "R"));
    house.policy(&text).await;
    let fork = json!({"workspaceIds": ["mine"]});
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", fork).await;
    let moved = json!({"edits": [{"rename": {"path": "open", "newPath": "mine"}}], "message": "moved"});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/commit-edits", moved).await;
    let write = |path: &str| json!({"write": {"path": path, "text": CANARY, "createParents": true}});
    let added: Vec<_> = ["open/secret/key", "open/kept/file", "open/other"].map(write).into();
    let added = json!({"edits": added, "message": "added"});
    house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", added).await;

    // Into the workspace whose agent renamed the directory: what is hidden stays hidden.
    let sources = json!({"sources": ["workspaces/main"]});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/merge", sources).await;
    let listed = house.ok(&house.ann, Method::GET, "/workspaces/mine/list?recursive=true", Value::Null).await;
    let listed = listed.to_string();
    assert!(listed.contains("mine/other") && listed.contains("open/kept/file"), "{listed}");
    for path in ["mine/secret/key", "open/secret/key"] {
        assert_eq!(house.get(&house.ann, &format!("/workspaces/mine/files/{path}")).await.status, 404, "{path}");
    }
    let kept = house.get(&house.admin, "/workspaces/mine/files/open/secret/key").await;
    assert_eq!(kept.status, 200, "{:?}", kept.bytes);

    // Out of it: the rename of a directory moves no file that its agent may not move.
    let fork = json!({"workspaceIds": ["again"], "revision": "mine@~1"});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/fork", fork).await;
    let publish = json!({"submission": {"target": "workspaces/main"}});
    let published = house.call(&house.ann, Method::POST, "/workspaces/again/publish", publish).await;
    assert_eq!(published.status, 200, "{:?}", published.bytes);
    let seen = house.seen(&house.admin).await;
    for path in ["mine/file", "mine/other", "open/kept/file", "open/secret/key"] {
        assert!(seen.iter().any(|seen| seen == path), "{path}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_does_not_follow_a_file_to_where_other_rules_apply() {
    let house = House::new().await;
    house.policy(&format!("default = \"RW\"\n{}", rule("kept/**", "R"))).await;
    let first = house.ok(&house.admin, Method::GET, "/snapshots/main@", Value::Null).await;
    let first = first["snapshot"]["name"].as_str().unwrap().trim_start_matches("snapshots/").to_owned();
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["mine"]})).await;
    let edit = json!({"write": {"path": "open/file", "text": "changed"}});
    let edits = json!({"edits": [edit], "message": "edit"});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/commit-edits", edits).await;
    let rename = json!({"rename": {"path": "open/file", "newPath": "kept/file", "createParents": true}});
    let edits = json!({"edits": [rename], "message": "kept"});
    house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", edits).await;
    for (path, body) in [
        ("/workspaces/main/commit-edits", json!({"edits": [edit], "message": "late", "revision": first})),
        ("/workspaces/main/merge", json!({"sources": ["workspaces/mine"]})),
        ("/workspaces/mine/publish", json!({"submission": {"target": "workspaces/main"}})),
    ] {
        let answer = house.call(&house.ann, Method::POST, path, body).await;
        let kept = house.get(&house.admin, "/workspaces/main/files/kept/file").await;
        assert_eq!(kept.status, 200, "{path}: {:?}", answer.bytes);
        assert_eq!(&kept.bytes[..], CANARY.as_bytes(), "{path}: {:?}", answer.bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_file_gets_no_contents_that_were_written_at_a_hidden_path() {
    let house = House::new().await;
    let lines: String = (0..60).map(|number| format!("line {number} of a text\n")).collect();
    let write = |path: &str, text: &str| json!({"write": {"path": path, "text": text}});
    let edits = json!({"edits": [write("open/text", &lines)], "message": "text"});
    house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", edits).await;
    house.policy(&format!("default = \"RW\"\n{}", rule("shut", "none"))).await;
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["mine"]})).await;
    let rename = |to: &str| json!({"rename": {"path": "open/text", "newPath": to}});
    let edits = json!({"edits": [rename("open/mine")], "message": "mine"});
    house.ok(&house.ann, Method::POST, "/workspaces/mine/commit-edits", edits).await;
    let secret = format!("{lines}{CANARY}\n");
    let edits = json!({"edits": [rename("shut/text"), write("shut/text", &secret)], "message": "secret"});
    house.ok(&house.admin, Method::POST, "/workspaces/main/commit-edits", edits).await;

    house.ok(&house.ann, Method::POST, "/workspaces/mine/merge", json!({"sources": ["workspaces/main"]})).await;
    let mine = house.get(&house.ann, "/workspaces/mine/files/open/mine").await;
    assert_eq!(&mine.bytes[..], lines.as_bytes(), "{}", mine.status);
    let hidden = house.get(&house.admin, "/workspaces/mine/files/shut/text").await;
    assert_eq!(&hidden.bytes[..], secret.as_bytes(), "{}", hidden.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restricted_agent_removes_and_renames_only_its_own_workspaces() {
    let house = House::new().await;
    house.level_of_a("R").await;
    let rename = json!({"newWorkspaceId": "other"});
    let answer = house.call(&house.ann, Method::POST, "/workspaces/main/rename", rename.clone()).await;
    assert_eq!(answer.status, 403, "{:?}", answer.bytes);
    let answer = house.call(&house.ann, Method::DELETE, "/workspaces/main", Value::Null).await;
    assert_eq!(answer.status, 403, "{:?}", answer.bytes);
    let fork = json!({"workspaceIds": ["mine"]});
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", fork).await;
    house.ok(&house.ann, Method::POST, "/workspaces/mine/rename", rename).await;
    house.ok(&house.ann, Method::DELETE, "/workspaces/other", Value::Null).await;
    // An undo removes no workspace of another agent, also where the agent may change all its files.
    house.plain().await;
    let fork = json!({"workspaceIds": ["bobs"]});
    let forked = house.ok(&house.bob, Method::POST, "/workspaces/plain/fork", fork).await;
    let undo = json!({"operation": forked["operation"]["name"]});
    let answer = house.call(&house.ann, Method::POST, "/operations/undo", undo.clone()).await;
    assert_eq!(answer.status, 403, "{:?}", answer.bytes);
    house.ok(&house.bob, Method::POST, "/operations/undo", undo).await;
    house.policy("").await;
    house.ok(&house.ann, Method::DELETE, "/workspaces/main", Value::Null).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_in_a_workspace_is_judged_for_every_workspace_of_the_operation() {
    let house = House::new().await;
    house.plain().await;
    let fork = json!({"workspaceIds": ["one", "two"], "agent": "bob"});
    house.ok(&house.admin, Method::POST, "/workspaces/plain/fork", fork).await;
    house.level_of_a("R").await;
    let undo = json!({"workspace": "workspaces/one"});
    let answer = house.call(&house.ann, Method::POST, "/operations/undo", undo.clone()).await;
    assert_eq!(answer.status, 403, "{:?}", answer.bytes);
    assert_eq!(house.get(&house.admin, "/workspaces/two").await.status, 200);
    // The agent of both may.
    house.ok(&house.bob, Method::POST, "/operations/undo", undo).await;
    assert_eq!(house.get(&house.admin, "/workspaces/two").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_nothing_about_whether_a_hidden_path_exists() {
    let house = House::new().await;
    house.level_of_a("RW").await;
    let fork = json!({"workspaceIds": ["mine"]});
    house.ok(&house.ann, Method::POST, "/workspaces/main/fork", fork).await;
    let mut answers = Vec::new();
    for name in ["file", "none"] {
        let edit = json!({"rename": {"path": "open/file", "newPath": format!("shut/{name}")}});
        let answer = house.call(&house.ann, Method::POST, "/workspaces/mine/edits", json!({"edits": [edit]})).await;
        let mut answer = answer.json();
        answer["error"]["requestId"] = Value::Null;
        answers.push(answer.to_string().replace(name, "NAME"));
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_a_refused_merge_names_no_path_that_is_hidden_from_the_caller() {
    let house = House::new().await;
    let only = |agent: &str, path: &str, level: &str| {
        format!("[[rule]]\nagents = [\"{agent}\"]\npaths = [\"{path}\"]\nlevel = \"{level}\"\n")
    };
    let fork = json!({"workspaceIds": ["bobs"]});
    house.ok(&house.bob, Method::POST, "/workspaces/main/fork", fork).await;
    let edit = json!({"edits": [{"write": {"path": "shut/file", "text": "x"}}], "message": "edit"});
    house.ok(&house.bob, Method::POST, "/workspaces/bobs/commit-edits", edit).await;
    house.policy(&format!("default = \"RW\"\n{}{}", only("ann", "shut", "none"), only("bob", "shut", "R"))).await;
    for (path, body) in [
        ("/workspaces/main/merge", json!({"sources": ["workspaces/bobs"]})),
        ("/workspaces/bobs/publish", json!({"submission": {"target": "workspaces/main"}})),
    ] {
        let answer = house.call(&house.ann, Method::POST, path, body).await;
        assert!(!reason(&answer).contains("shut"), "{path}: {}", reason(&answer));
    }
}

/// A tar archive of files, each with its text or with the name of the earlier file that it is a hard link to.
fn tar_of(files: &[(&str, Result<&str, &str>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        let (text, target) = (content.unwrap_or_default(), content.err().unwrap_or_default());
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", text.len()).as_bytes());
        header[136..148].copy_from_slice(b"00000000000\0");
        header[148..156].copy_from_slice(b"        ");
        header[156] = if target.is_empty() { b'0' } else { b'1' };
        header[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(text.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1_024, 0);
    archive
}

impl House {
    /// Imports a tar archive into a workspace, as the admin.
    async fn import(&self, workspace: &str, archive: Vec<u8>) {
        use v1::import_tree_request::Event;
        let options = v1::ImportOptions {
            source: Some(v1::import_options::Source::Tar(v1::TarSource::default())),
            workspace_id: workspace.to_owned(),
            ..Default::default()
        };
        let sent = [Event::Options(options), Event::Data(archive.into())];
        let sent = sent.map(|event| v1::ImportTreeRequest { event: Some(event) });
        let mut request = tonic::Request::new(tokio_stream::iter(sent));
        request.metadata_mut().insert("x-api-key", self.admin.parse().unwrap());
        let mut exchange = ExchangeServiceClient::new(self.server.channel().await);
        let mut events = exchange.import_tree(request).await.expect("accepted").into_inner();
        while events.message().await.expect("imported").is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_a_hidden_name_is_absent_from_blame_versions_and_find() {
    let house = House::new().await;
    let files = [("shut/key", Ok(CANARY)), ("open/alias", Err("shut/key")), ("open/twin", Err("open/alias"))];
    house.import("linked", tar_of(&files)).await;
    house.import("plain", tar_of(&[("open/one", Ok("text\n")), ("open/two", Err("open/one"))])).await;
    let edit = json!({"edits": [{"remove": {"path": "open/twin"}}], "message": "one name less"});
    house.ok(&house.admin, Method::POST, "/workspaces/linked/commit-edits", edit).await;
    house.policy(&format!("default = \"RW\"\n{}", rule("shut", "none"))).await;
    let empty = [
        "/find?pattern=**&revisions=linked@",
        "/snapshots/linked@/versions?path=open/alias",
        "/snapshots/linked@/versions?path=open/twin&follow=true",
        "/snapshots?revisions=linked@&paths=open/alias",
        "/snapshots?revisions=linked@&paths=open/twin",
    ];
    for path in empty {
        let text = |answer: Answer| (answer.status, String::from_utf8_lossy(&answer.bytes).into_owned());
        let (status, seen) = text(house.get(&house.ann, path).await);
        assert_eq!(status, 200, "{path}: {seen}");
        for hidden in ["alias", "twin", "shut"] {
            assert!(!seen.contains(hidden), "{path}: {seen}");
        }
        // A directory that the agent sees is found, with its snapshot.
        assert!(path.starts_with("/find") || !seen.contains("one name less"), "{path}: {seen}");
        let (status, all) = text(house.get(&house.admin, path).await);
        assert!(status == 200 && all.len() > seen.len(), "{path} for the admin: {all}");
    }
    for path in ["/snapshots/linked@/blame?path=open/alias", "/snapshots/linked@~/blame?path=open/twin"] {
        assert_eq!(house.get(&house.ann, path).await.status, 404, "{path}");
        assert_eq!(house.get(&house.admin, path).await.status, 200, "{path} for the admin");
    }
    // So it is from the changes of a workspace, from those that a restore would make, and from the radar.
    house.ok(&house.admin, Method::POST, "/workspaces/linked/fork", json!({"workspaceIds": ["one", "two"]})).await;
    for name in ["one", "two"] {
        let edits = json!({"edits": [{"write": {"path": "open/alias", "text": name}}], "message": name});
        house.ok(&house.admin, Method::POST, &format!("/workspaces/{name}/commit-edits"), edits).await;
    }
    let edits = json!({"edits": [{"write": {"path": "open/alias", "text": "live"}}]});
    house.ok(&house.admin, Method::POST, "/workspaces/linked/edits", edits).await;
    let restore = json!({"revision": "linked@~", "dryRun": true});
    for (method, path, body, hidden) in [
        (Method::GET, "/workspaces/linked/status", Value::Null, "alias"),
        (Method::POST, "/workspaces/linked/restore", restore, "twin"),
        (Method::GET, "/radar", Value::Null, "alias"),
    ] {
        let seen = house.ok(&house.ann, method.clone(), path, body.clone()).await.to_string();
        assert!(!seen.contains(hidden), "{path}: {seen}");
        let all = house.ok(&house.admin, method, path, body).await.to_string();
        assert!(all.contains(hidden), "{path} for the admin: {all}");
    }
    // A file whose names are all visible stays.
    for path in ["/snapshots/plain@/blame?path=open/two", "/snapshots/plain@/versions?path=open/two"] {
        let answer = house.get(&house.ann, path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(String::from_utf8_lossy(&answer.bytes).contains("open/two"), "{path}: {:?}", answer.bytes);
    }
    let found = house.get(&house.ann, "/find?pattern=open/*&revisions=plain@").await;
    let found = String::from_utf8_lossy(&found.bytes);
    assert!(found.contains("open/one") && found.contains("open/two"), "{found}");
}
