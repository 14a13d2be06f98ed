//! Sandboxes that try to leave, to disturb others or to exhaust the server, and requests about sandboxes with ids of abuse.

use std::time::Instant;

use http::Method;
use serde_json::{Value, json};

use crate::site::{Site, WITHIN};

/// How many commands run one after the other. `AMALGAM_SOAK_COMMANDS=10000` makes it a long test.
const COMMANDS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_fifos_and_devices_of_a_sandbox_lead_the_server_nowhere() {
    let mut site = Site::start().await;
    let home = site.server.home.path().to_owned();
    let id = site.create(json!({"template": "host"})).await;
    let canary = home.join("canary");
    std::fs::write(&canary, "canary of the host").unwrap();
    let made = format!(
        "ln -s {canary} out; ln -s {home} up; ln -s / root; ln -s ../../../../../../..{canary} climb; mkfifo fifo; \
         ln -s loop loop; ln -s /proc/1/root/etc/passwd proc; mkdir real; echo mine > real/file; mknod dev c 1 3; true",
        canary = canary.display(),
        home = home.display()
    );
    site.run(&id, &made).await;
    let workspace = site.get(&id).await["workspace"].as_str().unwrap().to_owned();
    let paths =
        ["out", "climb", "loop", "proc", "fifo", "dev", "up/canary", "root/etc/passwd", "up", "root", "real/../out"];
    let is_foreign = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.contains("canary of the host") || text.contains("root:x:0:0")
    };
    // While it runs, and from the snapshot that is left of it.
    for is_ended in [false, true] {
        for path in paths {
            let read =
                tokio::time::timeout(WITHIN, site.read(&workspace, path)).await.expect("a fifo is not waited for");
            assert!(!is_foreign(&read.bytes), "{path}: {:?}", read.bytes);
        }
        assert_eq!(&site.read(&workspace, "real/file").await.bytes[..], b"mine\n");
        for path in ["out", "up/planted", "climb", "root/tmp/planted"] {
            let name = workspace.strip_prefix("workspaces/").unwrap().replace('/', "%2F");
            let path = format!("/workspaces/{name}/files/{path}");
            let written = site.call(Method::PUT, &path, json!("changed")).await;
            assert!(written.status.as_u16() < 500, "{path}: {:?}", written.bytes);
            assert_eq!(std::fs::read_to_string(&canary).unwrap(), "canary of the host", "{path}");
            assert!(!home.join("planted").exists(), "{path}");
        }
        if !is_ended {
            let path = format!("/sandboxes/{id}?keep_workspace=true");
            assert_eq!(site.call(Method::DELETE, &path, Value::Null).await.status, 200);
        }
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_finds_no_socket_of_others_and_no_way_around_its_directories() {
    let mut site = Site::start().await;
    let home = site.server.home.path().display().to_string();
    let id = site.create(json!({"template": "host"})).await;
    let other = site.create(json!({"template": "host"})).await;
    site.run(&other, "echo private > note; echo private > ~/note; echo private > /tmp/note").await;
    for command in [
        "test -e /var/run/docker.sock -o -e /run/docker.sock".to_owned(),
        format!("ls {home}/sandboxes/{other}/link/agent.sock"),
        format!("test -e /run/amalgam/link/../../{other}"),
        format!("grep -q {other} /proc/self/mountinfo /proc/mounts"),
        "grep -l private /workspace/note /sandbox/note /tmp/note".to_owned(),
        "ls /proc/1/root/ /proc/1/cwd/ /proc/1/fd".to_owned(),
        format!("grep -q -e {other} -e docker -e {home} /proc/net/unix"),
        format!("ls /sys/fs/cgroup/{other}"),
    ] {
        let tried = site.run(&id, &command).await;
        assert_ne!(tried["exitCode"], 0, "{command}: {tried}");
    }
    // Another process of its own cannot take the place of the agent: it knows no secret.
    let claim = "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"/run/amalgam/link/agent.sock\"); \
                 s.sendall(b\"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\" + b\"x\" * 1000); s.settimeout(9); s.recv(9)'";
    site.run(&id, &format!("{claim}; true")).await;
    assert_eq!(site.run(&id, "echo still the agent").await["stdout"], "still the agent\n");
    assert_eq!(site.run(&other, "cat note").await["stdout"], "private\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_and_paths_of_abuse_are_refused_by_every_call() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let long = "a".repeat(4_096);
    let abuses = [
        "%2e%2e",
        "..%2F..%2Fcatalog.db",
        "%2e%2e%2f",
        "%00",
        "sbx-%00",
        &long,
        "%F0%9F%98%80",
        "%FF%FE",
        "%25%32%65",
        "-",
        "%20",
        "sbx-none%27%20OR%201=1--",
        "%0d%0aX-Injected:%201",
        "sbx-none",
        "~",
        "*",
    ];
    let calls: [(Method, &str, Value); 21] = [
        (Method::GET, "/sandboxes/@", Value::Null),
        (Method::DELETE, "/sandboxes/@", Value::Null),
        (Method::GET, "/sandboxes/@/logs", Value::Null),
        (Method::GET, "/sandboxes/@/stats", Value::Null),
        (Method::POST, "/sandboxes/@/extend", json!({"seconds": 60})),
        (Method::POST, "/sandboxes/@/timeout", json!({"seconds": 60})),
        (Method::POST, "/sandboxes/@/pause", json!({})),
        (Method::POST, "/sandboxes/@/resume", json!({})),
        (Method::POST, "/sandboxes/@/fork", json!({"count": 1})),
        (Method::POST, "/sandboxes/@/process/run", json!({"command": "true"})),
        (Method::GET, "/sandboxes/@/process", Value::Null),
        (Method::POST, "/sandboxes/@/pty", json!({"cols": 80, "rows": 24})),
        (Method::POST, "/sandboxes/@/ports/80", json!({})),
        (Method::GET, "/sandboxes/@/ports/80/", Value::Null),
        (Method::GET, "/sandboxes/ID/process/@/output", Value::Null),
        (Method::POST, "/sandboxes/ID/process/@/kill", json!({"signal": 9})),
        (Method::POST, "/sandboxes/ID/process/@/input", json!({"data": "eA=="})),
        (Method::POST, "/sandboxes/ID/pty/@/input", json!({"data": "eA=="})),
        (Method::POST, "/sandboxes/ID/pty/@/resize", json!({"cols": 80, "rows": 24})),
        (Method::DELETE, "/sandboxes/ID/pty/@", Value::Null),
        (Method::POST, "/sandboxes/ID/ports/@", json!({})),
    ];
    for abuse in abuses {
        for (method, path, body) in &calls {
            let path = path.replace('@', abuse).replace("ID", &id);
            let shown = &path[..path.len().min(120)];
            let answer = site.call(method.clone(), &path, body.clone()).await;
            assert!(answer.status.is_client_error(), "{method} {shown}: {} {:?}", answer.status, answer.bytes);
            assert!(!answer.headers.contains_key("x-injected"), "{method} {shown}");
        }
    }
    let many: Vec<_> = abuses.iter().map(|abuse| json!(*abuse)).chain([json!("../x"), json!("a\u{0}b")]).collect();
    let deleted = site.call(Method::POST, "/sandboxes/batch-delete", json!({"ids": many})).await;
    assert!(deleted.json()["succeeded"].as_array().is_none_or(Vec::is_empty), "{:?}", deleted.bytes);
    // Working directories and names of variables are those of a command, which fails; the agent goes on.
    for body in [
        json!({"command": "true", "cwd": "/nowhere/../../x"}),
        json!({"command": "true", "cwd": "a\u{0}b"}),
        json!({"command": "a\u{0}b"}),
        json!({"command": "true", "envs": {"A=B": "x"}}),
        json!({"command": "true", "envs": {"A": "x\u{0}y"}}),
        json!({"command": "true", "secrets": {"../../x": "y"}}),
        json!({"command": "true", "secrets": {"A\u{0}": "y"}}),
    ] {
        let answer = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body.clone()).await;
        assert_ne!(answer.status, 500, "{body}: {:?}", answer.bytes);
        assert_eq!(site.run(&id, "echo alive").await["stdout"], "alive\n", "{body}");
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_output_is_bounded_and_another_sandbox_is_undisturbed() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let other = site.create(json!({"template": "host"})).await;
    let before = resident_bytes();
    let path = format!("/sandboxes/{id}/process/run");
    let flood = || {
        let body = json!({"command": "timeout 5 yes | head -c 400000000; echo end >&2", "maxOutputSize": 4_096});
        site.call(Method::POST, &path, body)
    };
    let work = async {
        for number in 0..10 {
            assert_eq!(site.run(&other, &format!("echo {number}")).await["stdout"], format!("{number}\n"));
        }
    };
    let (first, second, third, ()) = tokio::join!(flood(), flood(), flood(), work);
    for flood in [first, second, third] {
        let flood = flood.json();
        assert!(flood["stdout"].as_str().unwrap().len() <= 4_096, "{flood}");
        assert_eq!(flood["truncated"], true);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "1.2 GB of output made the server grow by {grown} bytes");
    site.server.stop().await;
}

/// The memory of this process, which is the server, too.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// What the processes of a sandbox hold: descriptors and threads of the agent, and processes that are dead or not its own command.
const HELD: &str = "t=$(ls /proc/1/task | wc -l); z=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l); \
                    p=$(ls -d /proc/[0-9]* | wc -l); echo $t $z $p";

#[allow(clippy::print_stdout, reason = "the long form reports what it measured")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_leave_no_descriptor_thread_zombie_or_memory_behind() {
    let count = std::env::var("AMALGAM_SOAK_COMMANDS").ok().and_then(|text| text.parse().ok()).unwrap_or(COMMANDS);
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let held = async || site.run(&id, HELD).await["stdout"].as_str().unwrap().trim().to_owned();
    let agent = agent_of(&id);
    let descriptors = || std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap().count();
    let memory = || {
        let statm = std::fs::read_to_string(format!("/proc/{agent}/statm")).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
    };
    // The first ones fill caches: the server keeps the output of 64 commands that have ended, in open files.
    for _ in 0..80 {
        site.run(&id, "(sleep 0 &); echo x").await;
    }
    let (before, descriptors_before, memory_before) = (held().await, descriptors(), memory());
    let server_before = Held::of_this_process();
    for number in 0..count {
        let done = site.run(&id, &format!("(sleep 0 &); echo {number}")).await;
        assert_eq!(done["stdout"], format!("{number}\n"), "{done}");
    }
    let began = Instant::now();
    loop {
        let (after, descriptors_after, server_after) = (held().await, descriptors(), Held::of_this_process());
        // Other tests run in this process, unless it is the long form.
        let is_server_same = count == COMMANDS || server_after.is_at_most(server_before);
        let shown = format!(
            "{before} and {descriptors_before} became {after} and {descriptors_after}, the server {server_before:?} became {server_after:?}"
        );
        if is_no_more(&after, &before) && descriptors_after <= descriptors_before && is_server_same {
            let memory_after = memory();
            println!(
                "{count} commands: threads, zombies, processes, descriptors: {shown}; the agent's memory: {memory_before} became {memory_after}"
            );
            break;
        }
        assert!(began.elapsed() < WITHIN, "threads, zombies, processes, descriptors: {shown}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let grown = memory().saturating_sub(memory_before);
    assert!(grown < 16 << 20, "{count} commands made the agent grow by {grown} bytes");
    site.server.stop().await;
}

/// Whether no number of a line is larger than before. The first look may have seen a process that was about to end.
fn is_no_more(after: &str, before: &str) -> bool {
    let numbers = |line: &str| line.split(' ').map(|number| number.parse::<u64>().unwrap()).collect::<Vec<_>>();
    numbers(after).into_iter().zip(numbers(before)).all(|(after, before)| after <= before)
}

/// What the server holds, which is this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    zombies: usize,
    bytes: u64,
}

impl Held {
    /// Memory that an allocator may keep.
    const SLACK_BYTES: u64 = 32 << 20;
    /// Descriptors and threads that come and go with calls and with files of the store.
    const SLACK: usize = 8;

    fn of_this_process() -> Self {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        let own = std::process::id().to_string();
        let is_zombie = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<_> =
                stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
            fields.first() == Some(&"Z") && fields.get(1) == Some(&own.as_str())
        };
        let processes =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            zombies: processes.filter(is_zombie).count(),
            bytes: resident_bytes(),
        }
    }

    fn is_at_most(self, before: Self) -> bool {
        self.descriptors <= before.descriptors + Self::SLACK
            && self.threads <= before.threads + Self::SLACK
            && self.zombies <= before.zombies
            && self.bytes <= before.bytes + Self::SLACK_BYTES
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_exhausts_its_memory_is_contained_and_another_one_is_undisturbed() {
    const LIMIT_BYTES: u64 = 96 << 20;
    let mut site = Site::start().await;
    let body = json!({"template": "host", "resources": {"memory": "96m"}, "bestEffort": true});
    let (id, other) = (site.create(body).await, site.create(json!({"template": "host"})).await);
    let limits = site.get(&id).await["limits"].clone();
    let memory = limits.as_array().unwrap().iter().find(|one| one["limit"] == "memory").unwrap().clone();
    let is_enforced = memory["enforcedBy"] == "cgroup";
    if !amalgam_test_support::has_or_skip("cgroup", is_enforced, "nothing limits the memory of a local sandbox here") {
        return site.server.stop().await;
    }
    site.run(&id, "echo kept > note").await;
    // One process that takes too much, many that do together, and files in memory.
    let one = "python3 -c 'b = bytearray(1 << 30); print(len(b))'";
    let many = "for i in 1 2 3 4 5 6 7 8; do python3 -c 'import time; b = bytearray(40 << 20); time.sleep(2); print(\"all\")' & done; wait";
    let shared = "dd if=/dev/zero of=/dev/shm/file bs=1M count=400 && echo all";
    let path = format!("/sandboxes/{id}/process/run");
    for command in [one, many, shared] {
        let hungry = site.call(Method::POST, &path, json!({"command": command, "timeout": 60_000}));
        let work = async {
            for number in 0..10 {
                assert_eq!(site.run(&other, &format!("echo {number}")).await["stdout"], format!("{number}\n"));
            }
        };
        let (hungry, ()) = tokio::join!(hungry, work);
        let text = String::from_utf8_lossy(&hungry.bytes).into_owned();
        assert!(text.matches("all\\n").count() < 8 && !text.contains("1073741824"), "{command}: {text}");
        site.run(&other, "true").await;
    }
    // It goes on, or it is marked; its work is there either way.
    let workspace = site.get(&id).await["workspace"].as_str().unwrap().to_owned();
    match site.get(&id).await["state"].as_str().unwrap() {
        "running" => {
            site.run(&id, "rm -f /dev/shm/file").await;
            assert_eq!(site.run(&id, "cat note").await["stdout"], "kept\n");
            let stats = site.call(Method::GET, &format!("/sandboxes/{id}/stats"), Value::Null).await.json();
            let used = stats["memory"]["usage"].as_str().and_then(|text| text.parse().ok());
            assert!(used.or(stats["memory"]["usage"].as_u64()).unwrap_or(0) <= LIMIT_BYTES, "{stats}");
        }
        state => assert!(["error", "stopping"].contains(&state), "{state}"),
    }
    assert_eq!(&site.read(&workspace, "note").await.bytes[..], b"kept\n");
    assert_eq!(site.run(&other, "echo undisturbed").await["stdout"], "undisturbed\n");
    site.server.stop().await;
}

/// The process of the agent of a sandbox, on the host.
fn agent_of(sandbox: &str) -> String {
    agents_of(sandbox).pop().expect("an agent")
}

/// The processes on this machine that are agents of a sandbox.
pub fn agents_of(sandbox: &str) -> Vec<String> {
    let variable = format!("SANDBOX_ID={sandbox}");
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let agents = processes.filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_agent = std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "agent");
        is_agent && environ.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    });
    agents.collect()
}
