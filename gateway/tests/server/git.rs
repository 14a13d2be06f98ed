//! A real git client clones and fetches a workspace.

use std::process::{Command, Output};

use http::Method;
use serde_json::json;

use crate::running::Running;

/// Runs git without the settings of the machine, in a thread.
async fn git(arguments: Vec<String>) -> Output {
    let run = move || {
        let mut command = Command::new("git");
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("GIT_TERMINAL_PROMPT", "0");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent").args(arguments).output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_is_cloned_and_fetched_with_a_key() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    server.rest(Method::POST, "/api/v1/workspaces", &auth, json!({"workspaceId": "agents/ann"}).to_string()).await;
    let commit = async |text: &str| {
        let files = "/api/v1/workspaces/agents%2Fann";
        let written = server.rest(Method::PUT, &format!("{files}/files/a.txt"), &auth, text.to_owned()).await;
        assert_eq!(written.status, 200, "{:?}", written.bytes);
        let done =
            server.rest(Method::POST, &format!("{files}/commit"), &auth, json!({"message": text}).to_string()).await;
        assert_eq!(done.status, 200, "{:?}", done.bytes);
    };
    commit("one").await;
    let place = tempfile::tempdir().unwrap();
    let clone = place.path().join("clone").to_str().unwrap().to_owned();
    let url = format!("http://key:{key}@{}/default/agents/ann.git", server.address);
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let done = git(text(&["clone", "-q", &url, &clone])).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(std::fs::read_to_string(place.path().join("clone/a.txt")).unwrap(), "one");
    commit("two").await;
    let done = git(text(&["-C", &clone, "pull", "-q", "--ff-only"])).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(std::fs::read_to_string(place.path().join("clone/a.txt")).unwrap(), "two");
    let log = git(text(&["-C", &clone, "log", "--format=%s"])).await;
    assert_eq!(String::from_utf8_lossy(&log.stdout), "two\none\n");
    let without = format!("http://{}/default/agents/ann.git", server.address);
    for refused in [without.clone(), url.replace("/default/", "/other/"), url.replace("ann.git", "bob.git")] {
        assert!(!git(text(&["ls-remote", &refused])).await.status.success(), "{refused}");
    }
    let push = git(text(&["-C", &clone, "push", "-q", "origin", "HEAD:main"])).await;
    assert!(!push.status.success(), "it is read-only");
    let asked = server.rest(Method::GET, "/default/agents/ann.git/info/refs?service=git-upload-pack", &[], "").await;
    assert_eq!(
        (asked.status.as_u16(), &asked.headers["www-authenticate"]),
        (401, &"Basic realm=\"amalgam\"".parse().unwrap())
    );
    server.stop().await;
}
