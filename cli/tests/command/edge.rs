//! A local store that syncs with a server by itself: both directions, offline work, conflicts, deletions, kills.
#![expect(clippy::print_stdout, reason = "times are printed")]

use std::time::{Duration, Instant};

use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

use crate::scratch::Scratch;
use crate::served::{Served, key};

/// How long a background sync may take.
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// A store with a server that the user has logged in to as `dev`, and the key.
fn place() -> (Scratch, Served, String) {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,admin");
    let server = Served::start(&scratch);
    scratch.run(&format!("echo {key} | amalgam login {} --name dev -q", server.url));
    (scratch, server, key)
}

/// A shell line that works on a second store of the same user.
fn other(line: &str) -> String {
    format!("export AMALGAM_STORE=../other; {line}")
}

/// The JSON lines of a type that a command prints.
#[track_caller]
fn told(scratch: &Scratch, line: &str, kind: &str) -> Vec<Value> {
    let printed = String::from_utf8(scratch.output(line).stdout).expect("text");
    let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["type"] == kind).collect()
}

/// The state of a workspace of the only remote.
#[track_caller]
fn state(scratch: &Scratch, workspace: &str) -> Value {
    let lines = told(scratch, "amalgam remote status --json", "remote_workspace");
    lines.into_iter().find(|line| line["workspace"] == workspace).unwrap_or_default()
}

/// What a command prints that ends with this code.
#[track_caller]
fn ends(scratch: &Scratch, line: &str, code: i32) -> String {
    let done = scratch.output(line);
    let said = String::from_utf8([done.stdout, done.stderr].concat()).expect("text");
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    said
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SYNC_TIMEOUT, "{what} did not come");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Sends the key with each call, if there is one.
#[derive(Clone)]
struct WithKey(Option<String>);

impl Interceptor for WithKey {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("x-api-key", key.parse().expect("a key"));
        }
        Ok(request)
    }
}

type Files = FileServiceClient<InterceptedService<Channel, WithKey>>;

async fn files_of_server(server: &Served, key: &str) -> Files {
    let channel = Endpoint::from_shared(server.url.clone()).expect("a URL").connect().await.expect("a connection");
    FileServiceClient::with_interceptor(channel, WithKey(Some(key.to_owned())))
}

async fn files_of_store(scratch: &Scratch) -> Files {
    let socket = std::fs::read_to_string(scratch.path().join("store/socket")).expect("where the process listens");
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    let channel =
        Endpoint::from_static("http://amalgam").connect_with_connector(connector).await.expect("a connection");
    FileServiceClient::with_interceptor(channel, WithKey(None))
}

/// Commits a file with its text to the workspace `main`.
async fn commit(files: &mut Files, path: &str, text: &str, message: &str) -> Result<(), Status> {
    let content = Some(v1::write_edit::Content::Text(text.to_owned()));
    let write = v1::WriteEdit { path: path.to_owned(), content, create_parents: true, ..Default::default() };
    let request = v1::CommitEditsRequest {
        workspace: "workspaces/main".to_owned(),
        edits: vec![v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write)) }],
        message: message.to_owned(),
        buffered: true,
        ..Default::default()
    };
    files.commit_edits(request).await.map(drop)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// The messages of all snapshots of `main`, sorted.
fn messages(scratch: &Scratch, options: &str) -> Vec<String> {
    let lines = told(scratch, &format!("amalgam {options} log main -n 100000 --json"), "snapshot");
    let mut found: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect();
    found.sort_unstable();
    found
}

#[test]
fn two_stores_are_synced_through_a_server_with_conflicts_stored() {
    let (scratch, _server, _) = place();
    scratch.run("echo one > a; echo same > b; amalgam init -q --workspace main");
    scratch.run("amalgam remote add dev --sync manual -q && amalgam remote sync");
    assert_eq!(scratch.run("amalgam --server dev cat main:a"), "one\n");
    assert!(scratch.run("amalgam remote sync").contains("are the same"));
    // The second store gets the workspace, and its changes come back into the directory of the first.
    scratch.run(&other("amalgam remote add dev --sync manual -q && amalgam remote sync && amalgam checkout main@ ../clone --workspace main -q"));
    scratch.run(&other("cd ../clone; echo two > a; echo new > c; amalgam commit -q; amalgam remote sync"));
    scratch.run("amalgam remote sync && amalgam status --exit-code");
    assert_eq!(scratch.run("cat a c"), "two\nnew\n");
    // Both change the same line: the one that syncs last stores the conflict, and the other one gets it.
    scratch.run("echo here > b; echo x > only-here; amalgam commit -q; amalgam remote sync");
    scratch.run(&other("cd ../clone; echo there > b; echo y > only-there; amalgam commit -q"));
    let said = ends(&scratch, &other("cd ../clone; amalgam remote sync"), 5);
    assert!(said.contains("1 conflict") && said.contains("amalgam conflicts list --rev main@"), "{said}");
    assert!(scratch.run(&other("amalgam conflicts list --rev main@")).contains('b'), "the step that the message names");
    scratch.run("amalgam remote sync");
    assert_eq!(scratch.run("cat only-here only-there"), "x\ny\n");
    assert!(scratch.run("amalgam conflicts list").contains('b'));
    assert_eq!(state(&scratch, "main")["conflicts"], 1);
    // The heads are one, and each store knows what the server has.
    let heads = ["amalgam log main", "amalgam --server dev log main", "amalgam log remote/origin/main"];
    let heads = heads.map(|line| told(&scratch, &format!("{line} -n 1 --json"), "snapshot")[0]["id"].clone());
    assert!(heads[0] == heads[1] && heads[1] == heads[2], "{heads:?}");
    scratch.run(&other("amalgam stop --force -q"));
}

#[test]
fn a_remote_that_is_synced_by_itself_sends_and_gets_what_is_new() {
    let (scratch, server, key) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; amalgam remote add dev -q");
    wait_until("the first push", || scratch.output("amalgam --server dev cat main:a").status.success());
    scratch.run("echo two > a; amalgam commit -q");
    wait_until("a commit", || scratch.run("amalgam --server dev cat main:a") == "two\n");
    runtime().block_on(async {
        let mut files = files_of_server(&server, &key).await;
        commit(&mut files, "b", "from the server\n", "there").await.expect("committed");
    });
    wait_until("a file of the server", || scratch.project().join("b").exists());
    // A push of another store is an event, too: it does not wait for the next round.
    scratch.run(&other(
        "amalgam clone -q dev/default/main ../clone; cd ../clone; echo pushed > c; amalgam commit -q; amalgam push -q",
    ));
    let began = Instant::now();
    wait_until("a file of another store", || scratch.project().join("c").exists());
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    scratch.run(&other("amalgam stop --force -q"));
    // Workspaces that are left out stay where they are.
    scratch.run(
        "amalgam remote add dev -q --workspace '!scratch/*'; amalgam fork --from main scratch/1 kept -q > /dev/null",
    );
    wait_until("a fork", || scratch.output("amalgam --server dev cat kept:a").status.success());
    assert!(!scratch.run("amalgam --server dev ws --json").contains("scratch/1"));
    let listed = scratch.run("amalgam remote ls && amalgam remote ls --json && amalgam remote status");
    assert!(
        listed.contains("when either side changes") && listed.contains("up to date") && !listed.contains("am_"),
        "{listed}"
    );
    scratch.run("amalgam remote rm origin && amalgam ws --json");
    assert!(!scratch.run("amalgam ws --json").contains("remote/origin"), "tracking workspaces are gone");
    assert_eq!(scratch.run("amalgam cat kept:a"), "two\n");
}

#[test]
fn the_process_stays_while_a_remote_is_synced_by_itself() {
    let (scratch, server, key) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; amalgam config set idle-seconds 1; amalgam stop -q");
    scratch.run("amalgam remote add dev -q && amalgam remote sync");
    // No command starts the process from here on.
    std::thread::sleep(Duration::from_secs(4));
    runtime().block_on(async {
        let mut files = files_of_server(&server, &key).await;
        commit(&mut files, "b", "from the server\n", "there").await.expect("committed");
    });
    wait_until("a file of the server", || scratch.project().join("b").exists());
    let has_process = || std::fs::read(scratch.path().join("store/socket")).is_ok_and(|path| !path.is_empty());
    scratch.run("amalgam remote add dev -q --sync manual");
    wait_until("the end of the process", || !has_process());
}

#[test]
fn a_thousand_commits_offline_on_both_sides_are_reconciled() {
    const COMMITS: usize = 1_000;
    let (scratch, server, key) = place();
    let begun = Instant::now();
    scratch
        .run("echo base > shared; amalgam init -q --workspace main; amalgam remote add dev -q && amalgam remote sync");
    let address = server.url.trim_start_matches("http://").to_owned();
    server.stop();
    let runtime = runtime();
    runtime.block_on(async {
        let mut files = files_of_store(&scratch).await;
        for number in 0..COMMITS {
            let (path, text) = (format!("here/{}", number % 50), format!("{number}\n"));
            commit(&mut files, &path, &text, &format!("here {number}")).await.expect("committed");
        }
        commit(&mut files, "shared", "here\n", "here shared").await.expect("committed");
    });
    assert_eq!(state(&scratch, "main")["ahead"], COMMITS + 1);
    println!("{COMMITS} commits here: {:?}", begun.elapsed());
    // With one command for each look: it counts the snapshots of both sides, beside the sync that the test waits for.
    let look = || {
        let printed = String::from_utf8(scratch.output("amalgam remote status --json").stdout).expect("text");
        let lines: Vec<Value> = printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let find = |kind: &str| lines.iter().find(|line| line["type"] == kind).cloned().unwrap_or_default();
        (find("remote_status"), find("remote_workspace"))
    };
    wait_until("a failure", || look().0["failures"].as_u64() > Some(0));
    println!("a failure: {:?}", begun.elapsed());
    let (status, _) = look();
    assert!(status["problem"].as_str().is_some_and(|problem| problem.contains("cannot be reached")), "{status}");
    assert!(status["succeeded"].is_string() && status["hint"] != "", "{status}");
    // The server is elsewhere, so that the store cannot reach it.
    let elsewhere = Served::start(&scratch);
    runtime.block_on(async {
        let mut files = files_of_server(&elsewhere, &key).await;
        for number in 0..COMMITS {
            let (path, text) = (format!("there/{}", number % 50), format!("{number}\n"));
            commit(&mut files, &path, &text, &format!("there {number}")).await.expect("committed");
        }
        commit(&mut files, "shared", "there\n", "there shared").await.expect("committed");
    });
    elsewhere.stop();
    let _server = Served::at(&scratch, &address);
    println!("{COMMITS} commits there: {:?}", begun.elapsed());
    wait_until("the sync", || {
        let (status, state) = look();
        state["ahead"] == 0 && state["behind"] == 0 && status["failures"] == 0
    });
    println!("both sides are the same: {:?}", begun.elapsed());
    let (here, there) = (messages(&scratch, ""), messages(&scratch, "--server dev"));
    assert_eq!(here, there);
    for side in ["here", "there"] {
        let count = |text: &str| here.iter().filter(|message| *message == text).count();
        for number in 0..COMMITS {
            assert_eq!(count(&format!("{side} {number}")), 1);
        }
        assert_eq!(count(&format!("{side} shared")), 1);
        assert_eq!(
            scratch.run(&format!("amalgam cat main:{side}/49; amalgam --server dev cat main:{side}/49")),
            "999\n999\n"
        );
    }
    assert_eq!(state(&scratch, "main")["conflicts"], 1);
    assert!(scratch.run("amalgam --server dev conflicts list --rev main@").contains("shared"));
    assert!(scratch.run("cat there/0") == "950\n", "the directory has what the server brought");
}

/// Ends the process that holds the store as a crash would.
fn kill(scratch: &Scratch) -> bool {
    let printed = String::from_utf8(scratch.output("amalgam doctor --json").stdout).expect("text");
    let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let id = lines.into_iter().find_map(|line| line.get("process_id")?.as_i64());
    let id = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    id.is_some_and(|id| kill_process(id, Signal::KILL).is_ok())
}

#[test]
fn kills_of_the_background_process_in_mid_sync_lose_and_double_nothing() {
    const ROUNDS: usize = 12;
    let (scratch, server, key) = place();
    scratch.run("echo base > base; amalgam init -q --workspace main; amalgam remote add dev -q && amalgam remote sync");
    let runtime = runtime();
    let (mut kills, mut expected) = (0, Vec::new());
    for round in 0..ROUNDS {
        runtime.block_on(async {
            let mut there = files_of_server(&server, &key).await;
            // A large file makes the transfer take long enough to be hit.
            let large: String = (0..20_000).map(|line| format!("{}\n", (line * 7_919 + round) % 1_000_003)).collect();
            for number in 0..5 {
                let message = format!("there {round} {number}");
                commit(&mut there, &format!("there/{round}-{number}"), &large, &message).await.expect("committed");
                expected.push(message);
            }
        });
        for number in 0..3 {
            let message = format!("here {round} {number}");
            std::fs::write(scratch.project().join(format!("here-{round}-{number}")), "x\n").expect("written");
            // A kill may have come before; the command starts the process again.
            wait_until("a commit", || scratch.output(&format!("amalgam commit -q -m '{message}'")).status.success());
            expected.push(message);
        }
        std::thread::sleep(Duration::from_millis(61 * (round as u64 % 13)));
        kills += usize::from(kill(&scratch));
    }
    assert!(kills >= ROUNDS / 2, "{kills} kills");
    wait_until("the last sync", || scratch.output("amalgam remote sync").status.success());
    let (here, there) = (messages(&scratch, ""), messages(&scratch, "--server dev"));
    assert_eq!(here, there);
    for message in &expected {
        assert_eq!(here.iter().filter(|found| *found == message).count(), 1, "{message}");
    }
    // Merges are done once for each pair of heads.
    let merges: Vec<_> = told(&scratch, "amalgam log main -n 100000 --json", "snapshot")
        .into_iter()
        .filter(|line| line["parents"].as_array().is_some_and(|parents| parents.len() > 1))
        .map(|line| line["parents"].to_string())
        .collect();
    let different: std::collections::BTreeSet<_> = merges.iter().collect();
    assert_eq!(different.len(), merges.len(), "{merges:?}");
    scratch.run("amalgam verify -q && amalgam --server dev verify -q");
}

#[test]
fn a_deleted_workspace_is_neither_resurrected_nor_deleted_on_the_other_side() {
    let (scratch, _server, _) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; amalgam fork --from main left right -q > /dev/null");
    scratch.run("amalgam remote add dev --sync manual -q && amalgam remote sync -q");
    scratch.run("amalgam --server dev ws rm left -q; amalgam ws rm right -q");
    for _ in 0..2 {
        let said = scratch.run("amalgam remote sync");
        assert!(said.contains("left deleted on the server") && said.contains("right deleted here"), "{said}");
        assert!(said.contains("amalgam push left") && said.contains("amalgam pull right"), "{said}");
    }
    scratch.run("amalgam cat left:a && amalgam --server dev cat right:a");
    assert!(!scratch.output("amalgam --server dev cat left:a").status.success());
    assert!(!scratch.output("amalgam cat right:a").status.success());
    assert_eq!(state(&scratch, "left")["outcome"], "deleted-there");
    // The steps that the messages name.
    scratch.run("amalgam push left --server dev -q && amalgam pull right --server dev -q && amalgam remote sync");
    assert_eq!(state(&scratch, "left")["outcome"], "same");
    assert_eq!(state(&scratch, "right")["outcome"], "same");
    // One that neither side has any more is forgotten.
    scratch.run("amalgam ws rm left -q; amalgam --server dev ws rm left -q; amalgam remote sync -q");
    assert!(!scratch.run("amalgam ws --json; amalgam remote status --json").contains("left"));
}

#[test]
fn an_undo_stays_on_its_side_until_the_other_side_moves_on() {
    let (scratch, _server, _) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; amalgam remote add dev --sync manual -q && amalgam remote sync -q");
    scratch.run("echo two > a; amalgam commit -q; amalgam remote sync -q; amalgam undo -q");
    let said = scratch.run("amalgam remote sync");
    assert!(said.contains("undone here"), "{said}");
    assert_eq!(scratch.run("cat a; amalgam --server dev cat main:a"), "one\ntwo\n");
    // New work brings the snapshot back, merged.
    scratch.run("echo new > b; amalgam commit -q; amalgam remote sync -q");
    assert_eq!(scratch.run("cat a b; amalgam --server dev cat main:a"), "two\nnew\ntwo\n");
    scratch.run("amalgam --server dev undo -w main -q");
    let said = scratch.run("amalgam remote sync");
    assert!(said.contains("undone on the server"), "{said}");
    assert_eq!(scratch.run("cat a b"), "two\nnew\n");
}

#[test]
fn likely_secrets_and_wrong_keys_are_told_and_nothing_is_sent() {
    let (scratch, server, _) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; amalgam fork --from main fine -q > /dev/null");
    scratch.run("printf 'id = AKIAABCDEFGHIJKLMNOP\\n' > creds; amalgam commit -q; rm creds; amalgam commit -q");
    scratch.run("amalgam remote add dev --sync manual -q");
    let said = ends(&scratch, "amalgam remote sync", 3);
    assert!(said.contains("creds") && said.contains("--allow-secrets") && !said.contains("AKIAABCD"), "{said}");
    assert!(scratch.output("amalgam --server dev cat fine:a").status.success(), "other workspaces are synced");
    assert!(!scratch.output("amalgam --server dev cat main:a").status.success());
    scratch.run("amalgam remote add dev --sync manual -q --allow-secrets && amalgam remote sync");
    scratch.run("amalgam --server dev cat main:a");
    // A key that can only read gets what is new, and cannot send.
    let reader = key(&scratch, "read");
    scratch.run(&format!("amalgam login {} --key {reader} --name dev -q; echo two > a; amalgam commit -q", server.url));
    let said = ends(&scratch, "amalgam remote sync", 3);
    assert!(said.contains("scope `write`"), "{said}");
    let wrong = format!("{}x", &reader[..reader.len() - 1]);
    let said = ends(&scratch, &format!("amalgam remote add {} --key {wrong} --name bad", server.url), 1);
    assert!(said.contains("not valid") && !said.contains(&wrong), "{said}");
    assert_eq!(told(&scratch, "amalgam remote ls --json", "remote").len(), 1);
    let said = ends(&scratch, "amalgam remote sync --remote nothing; true", 0);
    assert!(said.contains("origin"), "{said}");
}

#[test]
fn a_server_that_cannot_be_reached_is_added_and_tried_again() {
    let (scratch, server, _) = place();
    let address = server.url.trim_start_matches("http://").to_owned();
    server.stop();
    scratch.run("echo one > a; amalgam init -q --workspace main");
    assert!(ends(&scratch, "amalgam remote add dev", 0).contains("tried again"));
    let status = || told(&scratch, "amalgam remote status --json", "remote_status").remove(0);
    wait_until("two attempts", || status()["failures"].as_u64() >= Some(2));
    assert!(status()["next_try"].is_string() && status()["succeeded"].is_null(), "{}", status());
    assert!(ends(&scratch, "amalgam remote sync", 1).contains("cannot be reached"));
    let _server = Served::at(&scratch, &address);
    wait_until("the sync", || status()["failures"] == 0);
    assert_eq!(scratch.run("amalgam --server dev cat main:a"), "one\n");
    let said = scratch.run("amalgam remote status");
    assert!(said.contains("last success") && said.contains("up to date"), "{said}");
}

/// The snapshot of each label of a store.
#[track_caller]
fn labels(scratch: &Scratch, line: &str) -> std::collections::BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    told(scratch, line, "label").iter().map(|label| (text(&label["name"]), text(&label["snapshot"]))).collect()
}

#[test]
fn labels_of_synced_workspaces_are_synced_and_none_is_overwritten() {
    const HERE: &str = "amalgam label --json";
    const SERVER: &str = "amalgam --server dev label --json";
    let (scratch, _server, _) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; echo two > a; amalgam commit -q; echo three > a; amalgam commit -q");
    scratch.run("amalgam label -q first @~2; amalgam label -q works @~1");
    // A label that belongs to no synced workspace stays here.
    scratch
        .run("mkdir ../own; cd ../own; echo own > own; amalgam init -q --workspace own; amalgam label -q hidden own@");
    scratch.run("amalgam remote add dev --sync manual --workspace main -q");
    let said = scratch.run("amalgam remote sync");
    assert!(said.contains("label works pushed") && said.contains("label first pushed"), "{said}");
    let mut expected = labels(&scratch, HERE);
    assert!(expected.remove("hidden").is_some());
    assert_eq!(labels(&scratch, SERVER), expected);
    assert!(scratch.run("amalgam remote sync").contains("are the same"));

    // The second store gets them, and moves one.
    let elsewhere = other(HERE);
    scratch.run(&other("amalgam remote add dev --sync manual -q; amalgam remote sync"));
    assert_eq!(labels(&scratch, &elsewhere), expected);
    scratch.run(&other("amalgam label -q works main@; amalgam remote sync"));
    assert!(scratch.run("amalgam remote sync").contains("label works pulled"));
    let head = told(&scratch, "amalgam log main -n 1 --json", "snapshot")[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(labels(&scratch, HERE)["works"], head);

    // Both move it: both are kept, however often it is synced.
    scratch.run("amalgam label -q works main@~1");
    scratch.run(&other("amalgam label -q works main@~2; amalgam remote sync -q"));
    let (ours, theirs) = (labels(&scratch, HERE)["works"].clone(), labels(&scratch, SERVER)["works"].clone());
    assert!(ours != theirs);
    for _ in 0..2 {
        let said = scratch.run("amalgam remote sync");
        assert!(said.contains("label works moved on both sides") && said.contains("remote/origin/works"), "{said}");
        let here = labels(&scratch, HERE);
        assert_eq!((&here["works"], &here["remote/origin/works"]), (&ours, &theirs));
        assert_eq!(labels(&scratch, SERVER)["works"], theirs, "nothing is overwritten");
    }
    assert!(scratch.run("amalgam remote status").contains("moved on both sides"));
    let status = told(&scratch, "amalgam remote status --json", "remote_label");
    assert!(status.iter().any(|line| line["label"] == "works" && line["outcome"] == "diverged"), "{status:?}");
    // The step that the message names.
    scratch.run(&format!("amalgam label -q works {theirs}"));
    assert!(scratch.run("amalgam remote sync").contains("are the same"));
    assert!(!labels(&scratch, HERE).contains_key("remote/origin/works"));

    // A label that was deleted on one side stays on the other one, and is not brought back.
    scratch.run("amalgam --server dev label first --delete -q");
    for _ in 0..2 {
        let said = scratch.run("amalgam remote sync");
        assert!(said.contains("label first deleted on the server"), "{said}");
        assert!(labels(&scratch, HERE).contains_key("first") && !labels(&scratch, SERVER).contains_key("first"));
    }
    scratch.run("amalgam label first --delete -q; amalgam remote sync -q");
    assert!(told(&scratch, "amalgam remote status --json", "remote_label").iter().all(|line| line["label"] != "first"));
    scratch.run(&other("amalgam stop --force -q"));
}

#[test]
fn a_label_that_is_elsewhere_than_expected_is_not_moved() {
    let (scratch, server, key) = place();
    scratch.run("echo one > a; amalgam init -q --workspace main; echo two > a; amalgam commit -q; amalgam push main --server dev -q");
    let ids: Vec<_> = told(&scratch, "amalgam log main --json", "snapshot")
        .iter()
        .map(|snapshot| snapshot["id"].as_str().expect("an id").to_owned())
        .collect();
    let [newer, older] = &ids[..] else { panic!("two snapshots: {ids:?}") };
    runtime().block_on(async {
        let channel = Endpoint::from_shared(server.url.clone()).expect("a URL").connect().await.expect("a connection");
        let mut snapshots = SnapshotServiceClient::with_interceptor(channel, WithKey(Some(key)));
        let mut set = async |revision: &str, expected: &str| {
            let request = v1::SetLabelRequest {
                label_id: "works".to_owned(),
                revision: revision.to_owned(),
                expected_snapshot: Some(expected.to_owned()),
                ..Default::default()
            };
            snapshots.set_label(request).await.map(drop).map_err(|status| status.code())
        };
        assert_eq!(set(older, newer).await, Err(Code::Aborted), "there is no such label");
        assert_eq!(set(older, "").await, Ok(()));
        assert_eq!(set(newer, "").await, Err(Code::Aborted), "there is one");
        assert_eq!(set(older, newer).await, Err(Code::Aborted), "it is elsewhere");
        assert_eq!(set(newer, older).await, Ok(()));
    });
    assert_eq!(&labels(&scratch, "amalgam --server dev label --json")["works"], newer);
}
