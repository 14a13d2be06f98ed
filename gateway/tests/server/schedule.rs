//! Work that is due in closed projects.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use crate::running::{Running, Setup};

async fn call(server: &Running, key: &str, method: Method, path: &str, body: Value) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

/// How many projects are open.
async fn open_projects(server: &Running, key: &str) -> String {
    let answer = server.rest(Method::GET, "/metrics", &[("x-api-key", key)], "").await;
    let text = String::from_utf8_lossy(&answer.bytes).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("amalgam_projects_open "));
    line.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_opens_the_projects_in_which_work_is_due_and_no_others() {
    let server = Running::start().await;
    let key = server.key("admin merge write", &[], false).await;
    for project in ["busy", "quiet"] {
        call(&server, &key, Method::POST, "/projects", json!({"projectId": project})).await;
        for workspace in ["main", "try"] {
            let path = format!("/projects/{project}/workspaces");
            call(&server, &key, Method::POST, &path, json!({"workspaceId": workspace})).await;
        }
    }
    let follow = json!({"sourceWorkspace": "workspaces/main", "everySeconds": 2});
    call(&server, &key, Method::POST, "/projects/busy/workspaces/try/follow", follow).await;
    let edits = json!({"edits": [{"write": {"path": "new", "text": "one\n"}}]});
    call(&server, &key, Method::POST, "/projects/busy/workspaces/main/commit-edits", edits).await;
    let mut server = server.restart(Setup::default()).await;
    // No call names a project.
    let began = Instant::now();
    while open_projects(&server, &key).await != "1" {
        assert!(began.elapsed() < Duration::from_secs(20), "{} are open", open_projects(&server, &key).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Without the file, a server that is killed now leaves nothing from which the next one could take an old time.
    let has_due = |project: &str| server.home.path().join("projects").join(project).join("due").exists();
    assert!(!has_due("busy"), "an open project has no due time");
    assert!(has_due("quiet"), "a closed project has one");
    loop {
        let path = "/api/v1/projects/busy/workspaces/try/files/new";
        let found = server.rest(Method::GET, path, &[("x-api-key", &key)], "").await;
        if found.status == 200 {
            assert_eq!(&found.bytes[..], b"one\n");
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the follower is updated");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(open_projects(&server, &key).await, "1", "nothing is due in the others");
    server.stop().await;
    // Without its file, the server looks for itself.
    let projects = server.home.path().join("projects");
    let due: Vec<_> = std::fs::read_dir(projects).unwrap().map(|home| home.unwrap().path().join("due")).collect();
    assert_eq!(due.len(), 3);
    due.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let mut server = server.restart(Setup::default()).await;
    let began = Instant::now();
    while open_projects(&server, &key).await != "3" {
        assert!(began.elapsed() < Duration::from_secs(20), "all are looked at");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undeleted_project_is_opened_because_work_may_be_due_in_it() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    call(&server, &key, Method::POST, "/projects", json!({"projectId": "busy"})).await;
    assert_eq!(open_projects(&server, &key).await, "2");
    call(&server, &key, Method::DELETE, "/projects/busy", Value::Null).await;
    assert_eq!(open_projects(&server, &key).await, "1");
    call(&server, &key, Method::POST, "/projects/busy/undelete", json!({})).await;
    // No call names the project.
    let began = Instant::now();
    while open_projects(&server, &key).await != "2" {
        assert!(began.elapsed() < Duration::from_secs(20), "the project is opened");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop().await;
}
