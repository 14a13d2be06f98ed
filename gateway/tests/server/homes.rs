//! The home and `/tmp` of sandboxes, and the limit of their disk.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use crate::running::Setup;
use crate::site::{Site, WITHIN, agent};

impl Site {
    /// The names of the workspaces that begin so.
    async fn workspaces(&self, prefix: &str) -> Vec<String> {
        let listed = self.call(Method::GET, &format!("/workspaces?prefix={prefix}"), Value::Null).await.json();
        let all = listed["workspaces"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn fork(&self, id: &str) -> String {
        let forked = self.call(Method::POST, &format!("/sandboxes/{id}/fork"), json!({})).await;
        assert_eq!(forked.status, 200, "{:?}", forked.bytes);
        forked.json()["sandboxes"][0]["id"].as_str().unwrap().to_owned()
    }

    async fn home_of(&self, id: &str) -> String {
        self.get(id).await["home"].as_str().unwrap().to_owned()
    }

    async fn stdout(&self, id: &str, command: &str) -> String {
        let done = self.run(id, command).await;
        assert_eq!(done["exitCode"], 0, "{command}: {done}");
        done["stdout"].as_str().unwrap().to_owned()
    }
}

const SHOW: &str = "cat ~/kept /tmp/note; cat ~/.local/bin/tool; stat -c %a /tmp/note; command -v tool";
const SHOWN: &str = "home\ntemporary\n#!/bin/sh\n640\n/sandbox/.local/bin/tool\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn home_and_temporary_files_fork_with_a_running_sandbox() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let set_up = "echo home > ~/kept; echo temporary > /tmp/note; chmod 640 /tmp/note; mkdir -p ~/.local/bin; \
                  echo '#!/bin/sh' > ~/.local/bin/tool; chmod +x ~/.local/bin/tool; mkfifo /tmp/pipe; echo $HOME; cd /tmp && mktemp";
    let made = site.stdout(&id, set_up).await;
    assert!(made.starts_with("/sandbox\n/tmp/tmp."), "{made}");
    let body = json!({"command": "pwd", "cwd": "/tmp"});
    let there = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body).await.json();
    assert_eq!(there["stdout"], "/tmp\n", "{there}");
    let copy = site.fork(&id).await;
    assert_eq!(site.stdout(&copy, SHOW).await, SHOWN);
    // Each has its own.
    site.stdout(&copy, "echo changed > ~/kept; rm /tmp/note").await;
    assert_eq!(site.stdout(&id, SHOW).await, SHOWN);
    let second = site.fork(&copy).await;
    assert_eq!(site.stdout(&second, "cat ~/kept; ls /tmp | grep -c note || true").await, "changed\n0\n");
    // Homes are workspaces, hidden from lists.
    let all = site.workspaces("").await;
    assert!(all.len() == 3 && all.iter().all(|name| !name.contains(".homes")), "{all:?}");
    let mut homes = site.workspaces(".homes/").await;
    homes.sort();
    let mut expected = vec![site.home_of(&id).await, site.home_of(&copy).await, site.home_of(&second).await];
    expected.sort();
    assert_eq!(homes, expected);
    // They go with their sandboxes; undelete brings what forks committed.
    let deleted = site.call(Method::POST, "/sandboxes/batch-delete", json!({"ids": [copy, second]})).await.json();
    assert_eq!(deleted["succeeded"].as_array().unwrap().len(), 2, "{deleted}");
    assert_eq!(site.workspaces(".homes/").await, [site.home_of(&id).await]);
    assert_eq!(site.call(Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await.status, 200);
    assert_eq!(site.workspaces(".homes/").await, Vec::<String>::new());
    assert_eq!(site.workspaces("").await, Vec::<String>::new());
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_outlives_its_sandbox_with_the_workspace_and_goes_when_that_is_gone() {
    let mut site = Site::start_with(|options| options.expiry_interval = Duration::from_millis(100)).await;
    // At expiry it stays for the next start.
    let id = site.create(json!({"template": "host", "timeoutSeconds": 2})).await;
    site.stdout(&id, "echo first > ~/note").await;
    let (workspace, home) = (site.get(&id).await["workspace"].as_str().unwrap().to_owned(), site.home_of(&id).await);
    site.reach(&id, "stopped").await;
    assert_eq!(site.workspaces(".homes/").await, std::slice::from_ref(&home));
    let resumed = site.call(Method::POST, &format!("/sandboxes/{id}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200, "{:?}", resumed.bytes);
    assert_eq!(site.stdout(&id, "cat ~/note; echo second >> ~/note").await, "first\n");
    // Kept with the workspace, the next sandbox in it has it.
    let kept = site.call(Method::DELETE, &format!("/sandboxes/{id}?keepWorkspace=true"), Value::Null).await;
    assert_eq!(kept.status, 200, "{:?}", kept.bytes);
    let next = site.create(json!({"template": "host", "workspace": workspace})).await;
    assert_eq!(site.stdout(&next, "cat ~/note").await, "first\nsecond\n");
    assert_eq!(site.home_of(&next).await, home);
    // A home from a snapshot of another one: the fork committed it.
    let copy = site.fork(&next).await;
    let from = json!({"template": "host", "homeFrom": format!("{}@", &home["workspaces/".len()..])});
    let third = site.create(from).await;
    assert_eq!(site.stdout(&third, "cat ~/note").await, "first\nsecond\n");
    for id in [&copy, &third] {
        assert_eq!(site.call(Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await.status, 200);
    }
    let kept = site.call(Method::DELETE, &format!("/sandboxes/{next}?keepWorkspace=true"), Value::Null).await;
    assert_eq!(kept.status, 200, "{:?}", kept.bytes);
    // Collected with its workspace, not before.
    let admin = site.server.key("admin", &[], false).await;
    let collect = async || {
        let headers = [("x-api-key", admin.as_str())];
        assert_eq!(site.server.rest(Method::POST, "/api/v1/gc", &headers, "{}").await.status, 200);
        site.workspaces(".homes/").await
    };
    assert_eq!(collect().await, [home]);
    let escaped = workspace["workspaces/".len()..].replace('/', "%2F");
    let deleted = site.call(Method::DELETE, &format!("/workspaces/{escaped}"), Value::Null).await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert_eq!(collect().await, Vec::<String>::new());
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_home_of_a_workspace_with_a_long_name_is_collected_with_it_and_not_before() {
    let mut site = Site::start().await;
    let name = "x".repeat(195);
    let made = site.call(Method::POST, "/workspaces", json!({"workspaceId": name})).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let id = site.create(json!({"template": "host", "workspace": format!("workspaces/{name}")})).await;
    site.stdout(&id, "echo kept > ~/note").await;
    let home = site.home_of(&id).await;
    assert!(!home.contains(&name), "{home}");
    let kept = site.call(Method::DELETE, &format!("/sandboxes/{id}?keepWorkspace=true"), Value::Null).await;
    assert_eq!(kept.status, 200, "{:?}", kept.bytes);
    let admin = site.server.key("admin", &[], false).await;
    let collect = async || {
        let headers = [("x-api-key", admin.as_str())];
        assert_eq!(site.server.rest(Method::POST, "/api/v1/gc", &headers, "{}").await.status, 200);
        site.workspaces(".homes/").await
    };
    assert_eq!(collect().await, [home]);
    let deleted = site.call(Method::DELETE, &format!("/workspaces/{name}"), Value::Null).await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert_eq!(collect().await, Vec::<String>::new());
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn homes_are_there_after_a_restart_of_the_server() {
    let mut site = Site::start().await;
    let (one, shown) = (
        site.create(json!({"template": "host"})).await,
        site.create(json!({"template": "host", "readOnly": true})).await,
    );
    site.stdout(&one, "echo kept > ~/note; echo there > /tmp/note").await;
    // A sandbox that may only read its workspace can write its home.
    site.stdout(&shown, "echo kept > ~/note; ! touch /workspace/x 2>/dev/null").await;
    let options = amalgam_gateway::SandboxOptions::new(site.server.home.path().join("sandboxes"), agent());
    site.server = site.server.restart(Setup { sandboxes: Some(options), ..Setup::default() }).await;
    for (id, command, expected) in [(&one, "cat ~/note /tmp/note", "kept\nthere\n"), (&shown, "cat ~/note", "kept\n")] {
        let resumed = site.call(Method::POST, &format!("/sandboxes/{id}/resume"), json!({})).await;
        assert_eq!(resumed.status, 200, "{:?}", resumed.bytes);
        assert_eq!(site.stdout(id, command).await, expected);
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_sandboxes_leaves_those_of_an_earlier_start_as_they_are() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    site.stdout(&id, "echo kept > ~/note; echo kept > /workspace/note").await;
    let before = site.get(&id).await;
    site.server = site.server.restart(Setup::default()).await;
    for (method, path, body) in [
        (Method::DELETE, format!("/sandboxes/{id}"), json!({})),
        (Method::POST, format!("/sandboxes/{id}/resume"), json!({})),
        (Method::POST, format!("/sandboxes/{id}/process/run"), json!({"command": "true"})),
        (Method::POST, "/sandboxes".to_owned(), json!({"template": "host"})),
    ] {
        let refused = site.call(method.clone(), &path, body).await;
        let said = String::from_utf8_lossy(&refused.bytes).into_owned();
        assert!(
            refused.status == 409 && said.contains("this server has no sandboxes"),
            "{method} {path}: {} {said}",
            refused.status
        );
    }
    let options = amalgam_gateway::SandboxOptions::new(site.server.home.path().join("sandboxes"), agent());
    site.server = site.server.restart(Setup { sandboxes: Some(options), ..Setup::default() }).await;
    assert_eq!(site.get(&id).await["workspace"], before["workspace"]);
    let resumed = site.call(Method::POST, &format!("/sandboxes/{id}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200, "{:?}", resumed.bytes);
    assert_eq!(site.stdout(&id, "cat ~/note /workspace/note").await, "kept\nkept\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_beyond_the_disk_of_a_sandbox_fails_and_removed_files_make_room() {
    let mut site = Site::start().await;
    let limited = json!({"template": "host", "resources": {"disk": "8m"}});
    let (id, other) = (site.create(limited).await, site.create(json!({"template": "host"})).await);
    let sandbox = site.get(&id).await;
    let disk = sandbox["limits"].as_array().unwrap().iter().find(|one| one["limit"] == "disk").unwrap().clone();
    assert_eq!((&disk["value"], &disk["enforcedBy"]), (&"8388608".into(), &"quota".into()), "{disk}");
    let fill = |directory: &str| format!("cd {directory} && head -c 6000000 /dev/urandom > a && cat a > b");
    for directory in ["/workspace", "/tmp"] {
        let size = format!("df --output=size -B1 {directory} | tail -1");
        assert_eq!(site.stdout(&id, &size).await.trim(), "8388608", "{directory}");
        let full = site.run(&id, &fill(directory)).await;
        assert_ne!(full["exitCode"], 0, "{full}");
        assert!(full["stderr"].as_str().unwrap().contains("quota"), "{full}");
        assert_eq!(
            site.stdout(&id, &format!("cd {directory}; cmp -n 1000000 a b; wc -c < a")).await,
            "6000000\n",
            "what was written is there"
        );
    }
    site.stdout(&other, &fill("/tmp")).await;
    // The copy of a full sandbox has its own quota; what it copies does not count.
    let copy = site.fork(&id).await;
    site.stdout(&copy, "head -c 6000000 /dev/urandom > /tmp/c; wc -c < /tmp/a").await;
    assert_ne!(site.run(&copy, "cat /tmp/c > /tmp/d").await["exitCode"], 0);
    let began = Instant::now();
    site.stdout(&copy, "rm /tmp/c /tmp/d").await;
    while site.run(&copy, "head -c 5000000 /dev/urandom > /tmp/e").await["exitCode"] != 0 {
        assert!(began.elapsed() < WITHIN, "removed files make no room");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    site.server.stop().await;
}
