//! Sandboxes from end to end: a real agent in real namespaces, called over REST.

use std::process::Command;
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_gateway::{ProjectName, SandboxRecord};
use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use amalgam_sandbox::{SandboxState, SecretHash};
use http::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};
use tonic::Request;

use crate::hostile_sandbox::agents_of;
use crate::running::now;
use crate::site::{Site, WITHIN};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_beside_the_workspace_and_a_fork_has_its_own() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host", "name": "one", "envs": {"COLOUR": "blue"}})).await;
    let done = site.run(&id, "echo $COLOUR; echo wrong >&2; echo kept > note; id -u; pwd; exit 3").await;
    assert_eq!(done["stdout"], "blue\n1000\n/workspace\n", "{done}");
    assert_eq!((&done["stderr"], &done["exitCode"]), (&"wrong\n".into(), &3.into()), "{done}");
    let sandbox = site.get(&id).await;
    let workspace = sandbox["workspace"].as_str().unwrap();
    assert_eq!(&site.read(workspace, "note").await.bytes[..], b"kept\n");
    // A fork sees what is in no snapshot yet, and changes nothing of its origin.
    let forked = site.call(Method::POST, &format!("/sandboxes/{id}/fork"), json!({"count": 2})).await;
    let copies: Vec<_> = forked.json()["sandboxes"].as_array().unwrap().clone();
    assert_eq!(copies.len(), 2, "{:?}", forked.bytes);
    for copy in &copies {
        let copy = copy["id"].as_str().unwrap();
        assert_eq!(site.run(copy, "cat note; echo changed > note; echo $COLOUR").await["stdout"], "kept\nblue\n");
    }
    assert_eq!(site.run(&id, "cat note").await["stdout"], "kept\n");
    let listed = site.call(Method::GET, "/sandboxes?state=running&limit=2", Value::Null).await.json();
    assert_eq!((listed["total"].as_i64(), listed["items"].as_array().unwrap().len()), (Some(3), 2), "{listed}");
    let ids: Vec<_> = copies.iter().map(|copy| copy["id"].clone()).chain(["sbx-none".into()]).collect();
    let deleted = site.call(Method::POST, "/sandboxes/batch-delete", json!({"ids": ids})).await.json();
    assert_eq!((deleted["succeeded"].as_array().unwrap().len(), &deleted["failed"][0]["id"]), (2, &"sbx-none".into()));
    let logs = site.call(Method::GET, &format!("/sandboxes/{id}/logs"), Value::Null).await.json();
    assert!(logs["logs"].as_str().unwrap().contains("running"), "{logs}");
    let kept = site.call(Method::DELETE, &format!("/sandboxes/{id}?keep_workspace=true"), Value::Null).await;
    assert_eq!(kept.status, 200, "{:?}", kept.bytes);
    assert_eq!(&site.read(workspace, "note").await.bytes[..], b"kept\n");
    let gone = site.call(Method::GET, &format!("/sandboxes/{id}"), Value::Null).await;
    assert_eq!((gone.status.as_u16(), gone.json()["error"]["code"].as_u64()), (404, Some(2001)));
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_streamed_and_read_again_from_an_offset() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let headers = [("x-api-key", site.key.as_str()), ("accept", "text/event-stream")];
    let path = format!("/api/v1/sandboxes/{id}/process/run");
    let body = json!({"command": "printf one; printf two >&2; exit 4", "stream": true}).to_string();
    let events = site.server.rest(Method::POST, &path, &headers, body).await;
    let text = String::from_utf8_lossy(&events.bytes).into_owned();
    let event = |name: &str| -> Value {
        let after = text.split(&format!("event: {name}\ndata: ")).nth(1).unwrap_or_else(|| panic!("{name}: {text}"));
        serde_json::from_str(after.lines().next().unwrap()).unwrap()
    };
    assert_eq!((&event("stdout")["data"], &event("stderr")["data"]), (&"one".into(), &"two".into()), "{text}");
    assert_eq!(event("exit")["exitCode"], 4);
    // By gRPC: standard input goes in, bytes come out as they are.
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    let authorized = |message| {
        let mut request = Request::new(message);
        request.metadata_mut().insert("x-api-key", site.key.parse().unwrap());
        request
    };
    let request = v1::StreamCommandRequest {
        sandbox_id: id.clone(),
        command: "cat; printf '\\377'".to_owned(),
        stdin: "in".into(),
        binary: true,
        ..v1::StreamCommandRequest::default()
    };
    let mut stream = client.stream_command(authorized(request)).await.unwrap().into_inner();
    let (mut bytes, mut command_id) = (Vec::new(), String::new());
    while let Some(event) = stream.message().await.unwrap() {
        bytes.extend_from_slice(&event.output);
        command_id = event.command_id;
    }
    assert_eq!(bytes, b"in\xff");
    let path = format!("/sandboxes/{id}/process/{command_id}/output?offset=1");
    let attached = site.call(Method::GET, &path, Value::Null).await;
    let lines: Vec<Value> =
        String::from_utf8_lossy(&attached.bytes).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text: String = lines.iter().filter_map(|line| line["data"].as_str()).collect();
    assert_eq!((text.as_str(), &lines.last().unwrap()["type"]), ("n\u{fffd}", &"exit".into()));
    let commands = site.call(Method::GET, &format!("/sandboxes/{id}/process"), Value::Null).await.json();
    assert_eq!(commands["commands"].as_array().unwrap().len(), 2, "{commands}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_after_much_input_with_the_start_is_taken_while_the_command_runs() {
    const BYTES: usize = 2 << 20;
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    // The first command reads what came with its start; the second one reads nothing, and its writer says that no more comes.
    let commands =
        [(format!("head -c {BYTES} > /dev/null; sleep 60"), &["x", ""][..]), ("sleep 60".to_owned(), &[""][..])];
    for (command, inputs) in commands {
        let mut request = Request::new(v1::StreamCommandRequest {
            sandbox_id: id.clone(),
            command: command.clone(),
            stdin: vec![b'i'; BYTES].into(),
            stdin_open: true,
            ..v1::StreamCommandRequest::default()
        });
        request.metadata_mut().insert("x-api-key", site.key.parse().unwrap());
        let mut stream = client.stream_command(request).await.unwrap().into_inner();
        let command_id = stream.message().await.unwrap().unwrap().command_id;
        for data in inputs {
            let mut request = Request::new(v1::WriteCommandRequest {
                sandbox_id: id.clone(),
                command_id: command_id.clone(),
                data: data.as_bytes().to_vec().into(),
                end: data.is_empty(),
            });
            request.metadata_mut().insert("x-api-key", site.key.parse().unwrap());
            let written = tokio::time::timeout(Duration::from_secs(5), client.write_command(request)).await;
            assert!(matches!(written, Ok(Ok(_))), "{command}: {written:?}");
        }
        let all = site.call(Method::GET, &format!("/sandboxes/{id}/process"), Value::Null).await.json();
        let found = all["commands"].as_array().unwrap().iter().find(|one| one["commandId"] == command_id.as_str());
        assert!(found.is_some_and(|one| one["running"] == true), "{all}");
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_takes_input_and_a_size() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let open = json!({"cols": 80, "rows": 24, "shell": "/bin/sh"});
    let opened = site.call(Method::POST, &format!("/sandboxes/{id}/pty"), open).await.json();
    let pty = format!("/sandboxes/{id}/pty/{}", opened["id"].as_str().unwrap());
    let resized = site.call(Method::POST, &format!("{pty}/resize"), json!({"cols": 100, "rows": 40})).await;
    assert_eq!(resized.status, 200, "{:?}", resized.bytes);
    // `stty size; exit 5`
    let typed = site.call(Method::POST, &format!("{pty}/input"), json!({"data": "c3R0eSBzaXplOyBleGl0IDUK"})).await;
    assert_eq!(typed.status, 200, "{:?}", typed.bytes);
    let headers = [("x-api-key", site.key.as_str()), ("accept", "application/octet-stream")];
    let output = site.server.rest(Method::GET, &format!("/api/v1{pty}/output"), &headers, "").await;
    let text = String::from_utf8_lossy(&output.bytes).into_owned();
    assert!(text.contains("40 100"), "{text}");
    let unknown = site.call(Method::DELETE, &format!("/sandboxes/{id}/pty/pty-none"), Value::Null).await;
    assert_eq!((unknown.status.as_u16(), unknown.json()["error"]["code"].as_u64()), (404, Some(4100)));
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_given_time_out_kills_everything_that_the_command_started() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    // A child, a daemon in a session of its own, and the command itself.
    let command = "sleep 900 & setsid sleep 901 & (setsid sleep 902 &) ; sleep 903";
    let body = json!({"command": command, "timeout": 500});
    let late = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body).await;
    assert_eq!((late.status.as_u16(), late.json()["error"]["code"].as_u64()), (504, Some(4000)), "{:?}", late.bytes);
    assert_eq!(late.json()["error"]["details"]["killed"], "true");
    let left = site.run(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    assert!(!left["stdout"].as_str().unwrap().contains("sleep 90"), "{left}");
    // A command that is told to end does so, and the next one finds no zombie.
    let body = json!({"command": "sleep 904", "timeout": 30_000});
    let path = format!("/sandboxes/{id}/process/run");
    let run = site.call(Method::POST, &path, body);
    let kill = async {
        let began = Instant::now();
        loop {
            let all = site.call(Method::GET, &format!("/sandboxes/{id}/process"), Value::Null).await.json();
            let found = all["commands"].as_array().unwrap().iter().find(|one| one["command"] == "sleep 904").cloned();
            if let Some(found) = found {
                let path = format!("/sandboxes/{id}/process/{}/kill", found["commandId"].as_str().unwrap());
                return site.call(Method::POST, &path, json!({"signal": 15})).await;
            }
            assert!(began.elapsed() < WITHIN, "{all}");
        }
    };
    let (killed, sent) = tokio::join!(run, kill);
    assert_eq!(sent.status, 200, "{:?}", sent.bytes);
    assert_eq!(killed.json()["exitCode"], 128 + 15, "{:?}", killed.bytes);
    let states = site.run(&id, "grep -h '^State' /proc/[0-9]*/status").await;
    assert!(!states["stdout"].as_str().unwrap().contains('Z'), "{states}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_sandbox_is_ended_and_its_workspace_committed() {
    let mut site = Site::start_with(|options| options.expiry_interval = Duration::from_millis(100)).await;
    let id = site.create(json!({"template": "host", "timeoutSeconds": 3})).await;
    site.run(&id, "echo saved > result").await;
    let ended = site.reach(&id, "stopped").await;
    assert!(ended["reason"].as_str().unwrap().starts_with("expired"), "{ended}");
    let workspace = ended["workspace"].as_str().unwrap();
    assert_eq!(&site.read(workspace, "result").await.bytes[..], b"saved\n");
    let escaped = workspace.strip_prefix("workspaces/").unwrap().replace('/', "%2F");
    let status = site.call(Method::GET, &format!("/workspaces/{escaped}/status"), Value::Null).await.json();
    assert_eq!(status["changes"].as_array().map(Vec::len), Some(0), "all is in a snapshot: {status}");
    let refused = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), json!({"command": "true"})).await;
    assert_eq!(refused.json()["error"]["name"], "SANDBOX_NOT_READY");
    // A living one can live longer, within bounds.
    let id = site.create(json!({"template": "host"})).await;
    let before = site.get(&id).await["expiresAt"].clone();
    let extended = site.call(Method::POST, &format!("/sandboxes/{id}/extend"), json!({"seconds": 3_600})).await;
    assert_eq!(extended.status, 200, "{:?}", extended.bytes);
    assert_ne!(extended.json()["expiresAt"], before);
    for seconds in [0, -1, 3_601] {
        let path = format!("/sandboxes/{id}/extend");
        assert_eq!(site.call(Method::POST, &path, json!({"seconds": seconds})).await.status, 400, "{seconds}");
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_is_started_again_with_its_id_files_and_variables() {
    let mut site = Site::start().await;
    let body = json!({"template": "host", "envs": {"COLOUR": "blue"}, "metadata": {"user": "ann"}});
    let id = site.create(body).await;
    site.run(&id, "echo kept > note; echo there > /tmp/note; echo home > ~/note").await;
    let at = |what: &str| format!("/sandboxes/{id}/{what}");
    assert_eq!(site.call(Method::POST, &at("resume"), Value::Null).await.json()["error"]["name"], "SANDBOX_NOT_READY");
    let paused = site.call(Method::POST, &at("pause"), Value::Null).await;
    assert_eq!((paused.status.as_u16(), &paused.json()["state"]), (200, &"stopped".into()), "{:?}", paused.bytes);
    assert!(paused.json()["reason"].as_str().unwrap().starts_with("paused"), "{:?}", paused.bytes);
    for what in ["pause", "timeout"] {
        let refused = site.call(Method::POST, &at(what), Value::Null).await;
        assert_eq!(refused.json()["error"]["name"], "SANDBOX_NOT_READY", "{what}");
    }
    let resumed = site.call(Method::POST, &at("resume"), json!({"timeoutSeconds": 100})).await.json();
    assert_eq!((&resumed["id"], &resumed["state"]), (&id.as_str().into(), &"running".into()), "{resumed}");
    assert_eq!(resumed["metadata"], json!({"user": "ann"}));
    let found = site.run(&id, "cat note; echo $COLOUR; cat /tmp/note ~/note").await;
    assert_eq!(found["stdout"], "kept\nblue\nthere\nhome\n", "{found}");
    // It ends on time although expired ones are looked for each minute.
    let set = site.call(Method::POST, &at("timeout"), json!({"seconds": 1})).await;
    assert_eq!(set.status, 200, "{:?}", set.bytes);
    let began = Instant::now();
    let ended = site.reach(&id, "stopped").await;
    assert!(ended["reason"].as_str().unwrap().starts_with("expired") && began.elapsed() < Duration::from_secs(20));
    let resumed = site.call(Method::POST, &at("resume"), Value::Null).await;
    assert_eq!(resumed.status, 200, "{:?}", resumed.bytes);
    assert_eq!(site.run(&id, "cat note ~/note").await["stdout"], "kept\nhome\n");
    for seconds in [-1, 86_401] {
        assert_eq!(site.call(Method::POST, &at("timeout"), json!({"seconds": seconds})).await.status, 400);
    }
    let many: serde_json::Map<_, _> = (0..65).map(|number| (number.to_string(), "x".into())).collect();
    let refused = site.call(Method::POST, "/sandboxes", json!({"template": "host", "metadata": many})).await;
    assert_eq!(refused.status, 400, "{:?}", refused.bytes);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_sandbox_reaches_nothing_of_the_host() {
    let mut site = Site::start().await;
    let home = site.server.home.path().to_owned();
    let id = site.create(json!({"template": "host"})).await;
    let other = site.create(json!({"template": "host"})).await;
    let paths = [home.join("catalog.db"), home.join("projects"), home.join("sandboxes").join(&other)];
    for path in paths.iter().map(|path| path.display().to_string()).chain(["/root".into(), "/etc/shadow".into()]) {
        let tried = site.run(&id, &format!("ls -la {path}")).await;
        assert_ne!(tried["exitCode"], 0, "{path}: {tried}");
    }
    for command in [
        "touch /usr/x",
        "touch /x",
        "touch /run/amalgam/link/x",
        "cat /run/amalgam/link/secret",
        "cat /proc/1/environ",
        "mknod d c 1 3 && cat d",
        "unshare -U true",
        "mount -t tmpfs none /tmp",
        "kill -9 1; kill -0 1 && false",
        "echo 1 > /proc/sys/kernel/core_pattern",
    ] {
        let tried = site.run(&id, &format!("( {command} )")).await;
        assert_ne!(tried["exitCode"], 0, "{command}: {tried}");
    }
    let privileges = site.run(&id, "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status").await;
    let privileges = privileges["stdout"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(privileges, "CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1");
    let filtered = site.run(&id, "grep -w Seccomp /proc/self/status | cut -f2").await;
    assert_eq!(filtered["stdout"], "2\n", "{filtered}");
    // `io_uring_setup` without arguments: refused by the filter, not for its arguments (14, EFAULT).
    let refused = site.run(&id, "perl -e 'syscall(425, 0, 0); print $!+0'").await;
    assert_eq!(refused["stdout"], "1", "{refused}");
    let devices = site.run(&id, "cat /proc/net/dev").await;
    assert_eq!(devices["stdout"].as_str().unwrap().matches(':').count(), 1, "loopback only: {devices}");
    // A flood of output is cut, and said to be.
    let body = json!({"command": "yes | head -c 200000000", "maxOutputSize": 1_000});
    let flood = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body).await.json();
    assert_eq!((flood["stdout"].as_str().unwrap().len(), &flood["truncated"]), (1_000, &true.into()));
    // The socket knows its agent: no other process registers.
    let open = site.run(&id, "test -S /run/amalgam/link/agent.sock && echo there").await;
    assert_eq!(open["stdout"], "there\n");
    assert_eq!(site.run(&other, "echo undisturbed").await["stdout"], "undisturbed\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_enforced_or_the_sandbox_is_not_started() {
    let mut site = Site::start().await;
    let best = json!({"template": "host", "resources": {"disk": "1g", "pids": 40}, "bestEffort": true});
    let id = site.create(best).await;
    let limits = site.get(&id).await["limits"].clone();
    let by =
        |name: &str| limits.as_array().unwrap().iter().find(|one| one["limit"] == name).unwrap()["enforcedBy"].clone();
    assert_eq!(by("disk"), "quota");
    let landlock = limits.as_array().unwrap().iter().find(|one| one["limit"] == "landlock").unwrap();
    match amalgam_sandbox::landlock_version() {
        Ok(version) => {
            assert_eq!(
                (&landlock["value"], &landlock["enforcedBy"]),
                (&format!("ABI {version}").into(), &"kernel".into())
            );
        }
        Err(why) => assert_eq!((&landlock["value"], &landlock["enforcedBy"]), (&why.into(), &"none".into())),
    }
    if by("pids") != "none" {
        // A fork bomb: most of its forks fail, and the sandbox goes on.
        let bomb = "i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i+1)); done; echo all";
        let body = json!({"command": bomb, "timeout": 20_000});
        let bombed = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body).await;
        assert!(!String::from_utf8_lossy(&bombed.bytes).contains("all\\n"), "{:?}", bombed.bytes);
    }
    for (body, name) in [
        (json!({"template": "none"}), "TEMPLATE_NOT_FOUND"),
        (json!({"template": "host", "resources": {"memory": "lots"}}), "INVALID_ARGUMENT"),
        (json!({"template": "host", "timeoutSeconds": 86_401}), "INVALID_ARGUMENT"),
        (json!({"template": "host", "network": "host"}), "SANDBOX_NOT_READY"),
        (json!({"template": "host", "workspace": "workspaces/none"}), "NOT_FOUND"),
    ] {
        let refused = site.call(Method::POST, "/sandboxes", body.clone()).await;
        assert_eq!(refused.json()["error"]["name"], name, "{body}: {:?}", refused.bytes);
    }
    site.server.stop().await;
}

/// Ends a mount when a test ends.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_is_writable_by_mistake_is_not_written_by_commands_and_terminals() {
    let is_root = rustix::process::geteuid().is_root();
    if !amalgam_test_support::has_or_skip("root", is_root, "only root can make a mount") {
        return;
    }
    let has_landlock = amalgam_sandbox::landlock_version().is_ok();
    if !amalgam_test_support::has_or_skip("landlock", has_landlock, "the kernel has no Landlock") {
        return;
    }
    let mut site = Site::start_with(|options| options.has_strict_landlock = true).await;
    let id = site.create(json!({"template": "host"})).await;
    // A directory that the sandbox is shown for reading gets a mount on the host, which the kernel passes on as it is: for writing.
    let mistake = site.server.home.path().join("sandboxes").join(&id).join("link/mistake");
    std::fs::create_dir(&mistake).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "mode=0777", "mistake"]).arg(&mistake).status();
    assert!(mount.unwrap().success());
    let mounted = Mounted(mistake);
    let seen = site.run(&id, "grep mistake /proc/self/mountinfo | cut -d' ' -f6 | cut -d, -f1").await;
    assert_eq!(seen["stdout"], "rw\n", "{seen}");
    for command in ["echo x > @/file", "mkdir @/directory", "ln -s /etc @/link", "cp /bin/true @/program"] {
        let tried = site.run(&id, &command.replace('@', "/run/amalgam/link/mistake")).await;
        assert_ne!(tried["exitCode"], 0, "{command}: {tried}");
        assert!(tried["stderr"].as_str().unwrap().contains("Permission denied"), "{command}: {tried}");
    }
    // `touch /run/amalgam/link/mistake/typed; echo $? > /workspace/typed; exit` in a terminal.
    let open = json!({"cols": 80, "rows": 24, "shell": "/bin/sh"});
    let opened = site.call(Method::POST, &format!("/sandboxes/{id}/pty"), open).await.json();
    let pty = format!("/sandboxes/{id}/pty/{}", opened["id"].as_str().unwrap());
    let keys = "dG91Y2ggL3J1bi9hbWFsZ2FtL2xpbmsvbWlzdGFrZS90eXBlZDsgZWNobyAkPyA+IC93b3Jrc3BhY2UvdHlwZWQ7IGV4aXQK";
    site.call(Method::POST, &format!("{pty}/input"), json!({"data": keys})).await;
    site.call(Method::GET, &format!("{pty}/output"), Value::Null).await;
    assert_eq!(site.run(&id, "cat typed").await["stdout"], "1\n");
    assert_eq!(std::fs::read_dir(&mounted.0).unwrap().count(), 0);
    // What a sandbox may write it still writes: by commands, by a shell in the background, in all of its places.
    let written = "cd /tmp && for d in /workspace $HOME /tmp /dev/shm; do mkdir -p $d/a $d/b && echo 1 > $d/a/f && \
                   mv $d/a/f $d/b/g && ln $d/b/g $d/b/h && : > $d/b/g && rm -r $d/a $d/b || exit 9; done; \
                   echo x > /dev/null && echo y > /dev/stderr && mkfifo p && (echo z > p &) && cat p && rm p";
    let written = site.run(&id, written).await;
    assert_eq!((&written["stdout"], &written["exitCode"]), (&"z\n".into(), &0.into()), "{written}");
    // Commands see and end each other.
    site.run(&id, "sleep 907 > /dev/null 2>&1 & echo $! > other; echo started").await;
    let seen = site.run(&id, "readlink /proc/$(cat other)/exe && kill $(cat other) && echo ended").await;
    assert!(seen["stdout"].as_str().unwrap().ends_with("ended\n"), "{seen}");
    drop(mounted);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_whose_processes_are_killed_is_marked_and_its_work_kept() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    site.run(&id, "echo saved > result").await;
    let record = site.server.catalog.sandbox(&id).await.unwrap().unwrap();
    let pid = record.handle.split(':').next().unwrap();
    assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
    let lost = site.reach(&id, "error").await;
    assert!(!lost["reason"].as_str().unwrap().is_empty(), "{lost}");
    assert_eq!(&site.read(lost["workspace"].as_str().unwrap(), "result").await.bytes[..], b"saved\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_whose_end_failed_is_marked_and_can_be_deleted_later() {
    const ID: &str = "sbx-one";
    let mut site = Site::start().await;
    let admin = site.server.key("admin write run", &[], false).await;
    let call = async |method: Method, path: &str, body: &str| {
        let headers = [("x-api-key", admin.as_str())];
        site.server.rest(method, &format!("/api/v1/projects{path}"), &headers, body.to_owned()).await
    };
    assert_eq!(call(Method::POST, "", r#"{"projectId": "one"}"#).await.status, 200);
    let record = SandboxRecord {
        id: ID.to_owned(),
        project: ProjectName::new("one").unwrap(),
        name: String::new(),
        state: SandboxState::Running,
        reason: String::new(),
        template: "host".to_owned(),
        runtime: "local".to_owned(),
        handle: String::new(),
        // A workspace that cannot be deleted: no workspace has this name.
        workspace: "workspaces/..".to_owned(),
        key_id: String::new(),
        agent: "ann".to_owned(),
        credential: SecretHash::from_hex(""),
        config: json!({"ownsWorkspace": true}),
        created: now(),
        expires: Time(now().0 + 3_600_000_000_000),
    };
    site.server.catalog.add_sandbox(&record).await.unwrap();
    let path = format!("/one/sandboxes/{ID}");
    // The second call is not refused as busy.
    for _ in 0..2 {
        let failed = call(Method::DELETE, &path, "").await;
        assert_eq!(failed.status, 400, "{:?}", failed.bytes);
        let found = site.server.catalog.sandbox(ID).await.unwrap().unwrap();
        assert_eq!(found.state, SandboxState::Error, "{}", found.reason);
    }
    assert!(site.server.catalog.living_sandboxes().await.unwrap().is_empty());
    let deleted = call(Method::DELETE, &format!("{path}?keep_workspace=true"), "").await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert!(site.server.catalog.sandbox(ID).await.unwrap().is_none());
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_is_deleted_while_it_starts_leaves_no_processes_and_no_mounts() {
    let mut site = Site::start().await;
    assert_eq!(site.call(Method::POST, "/workspaces", json!({"workspaceId": "main"})).await.status, 200);
    let body = json!({"template": "host", "workspace": "workspaces/main"});
    for _ in 0..10 {
        let create = site.call(Method::POST, "/sandboxes", body.clone());
        let delete = async {
            let began = Instant::now();
            loop {
                let listed = site.call(Method::GET, "/sandboxes", Value::Null).await.json();
                if let Some(id) = listed["items"][0]["id"].as_str() {
                    let path = format!("/sandboxes/{id}?keep_workspace=true");
                    return (id.to_owned(), site.call(Method::DELETE, &path, Value::Null).await);
                }
                assert!(began.elapsed() < WITHIN, "{listed}");
            }
        };
        let (created, (id, deleted)) = tokio::join!(create, delete);
        assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
        assert_eq!(agents_of(&id), Vec::<String>::new(), "{:?}", created.bytes);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&id), "{mounts}");
        assert_eq!(site.call(Method::GET, &format!("/sandboxes/{id}"), Value::Null).await.status, 404);
    }
    let id = site.create(body).await;
    assert_eq!(site.run(&id, "echo runs").await["stdout"], "runs\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_workspace_is_left_when_the_record_of_a_sandbox_cannot_be_written() {
    let mut site = Site::start().await;
    let url = format!("sqlite://{}", site.server.home.path().join("catalog.db").display());
    let mut catalog = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON sandboxes BEGIN SELECT RAISE(ABORT, 'refused'); END";
    catalog.execute(refuse).await.unwrap();
    catalog.close().await.unwrap();
    let refused = site.call(Method::POST, "/sandboxes", json!({"template": "host"})).await;
    assert!(refused.status.is_server_error(), "{:?}", refused.bytes);
    let left = site.call(Method::GET, "/workspaces", Value::Null).await.json();
    assert_eq!(left["workspaces"].as_array().map_or(0, Vec::len), 0, "{left}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn templates_after_the_first_page_of_labels_are_listed_and_found() {
    let mut site = Site::start().await;
    assert_eq!(site.call(Method::POST, "/workspaces", json!({"workspaceId": "main"})).await.status, 200);
    let labels: Vec<_> = (0..101).map(|number| format!("templates/t{number:03}")).collect();
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": "a"}}], "labels": labels});
    let made = site.call(Method::POST, "/workspaces/main/commit-edits", edits).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let listed = site.call(Method::GET, "/templates", Value::Null).await.json();
    let names: Vec<_> = listed["templates"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(["t000", "t099", "t100"].iter().all(|name| names.contains(name)), "{names:?}");
    let last = site.call(Method::GET, "/templates/t100", Value::Null).await;
    assert_eq!(last.status, 200, "{:?}", last.bytes);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_shows_and_changes_no_more_than_its_key_may() {
    let mut site = Site::start().await;
    let create = json!({"template": "host"});
    let with = async |key: &str| {
        let headers = [("x-api-key", key)];
        site.server.rest(Method::POST, "/api/v1/sandboxes", &headers, create.to_string()).await.status.as_u16()
    };
    let only_run = site.server.key("read run", &[], false).await;
    assert_eq!(with(&only_run).await, 403, "commands change the workspace");
    let admin = site.server.key("admin write run", &[], false).await;
    let policy = json!({"text": "default = \"RW\"\n[[rule]]\npaths = [\"shut\"]\nlevel = \"none\"\n"});
    let set = site.server.rest(Method::PUT, "/api/v1/policy", &[("x-api-key", &admin)], policy.to_string()).await;
    assert_eq!(set.status, 200, "{:?}", set.bytes);
    assert_eq!(with(&site.key).await, 403, "the mount of another agent's workspace would show `shut`");
    assert_eq!(with(&admin).await, 200, "the policy does not apply to admins");
    site.server.stop().await;
}
