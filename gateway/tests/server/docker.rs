//! Sandboxes in containers of a real Docker engine, which `make integration` starts. The image is made of a busybox of this machine.
//! One test has an engine of its own, which only answers.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_gateway::{
    Catalog, DockerSettings, ProjectName, RuntimeChoice, SandboxOptions, SandboxRecord, WebhookOptions,
};
use amalgam_sandbox::{SandboxState, SecretHash};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use crate::checkouts::{assert_life_in_a_checkout, by_checkout};
use crate::receiver::Receiver;
use crate::running::{Running, Setup, now};
use crate::site::{Site, WITHIN, agent};
use crate::terminals::{read_until, send, type_in};

/// The environment variable with the socket of the engine.
const SOCKET_VARIABLE: &str = "AMALGAM_TEST_DOCKER";
const BUSYBOX: &str = "/bin/busybox";
/// An image with a read-only root, and one that may be written.
const IMAGE: &str = "amalgam-test:1";
const WRITABLE_IMAGE: &str = "amalgam-test:writable";

/// An engine that answers, with the images of the tests.
struct Engine {
    socket: PathBuf,
}

impl Engine {
    /// Finds the engine, or says that the test is skipped.
    fn find() -> Option<Self> {
        static MADE: OnceLock<()> = OnceLock::new();
        let why = format!("{SOCKET_VARIABLE} names no engine; `make integration` starts one");
        let Some(socket) = std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from) else {
            amalgam_test_support::skip("docker", &why);
            return None;
        };
        let engine = Self { socket };
        MADE.get_or_init(|| engine.make_images());
        Some(engine)
    }

    /// Runs `docker`, which has to succeed. Returns its standard output.
    fn docker(&self, words: &[&str]) -> String {
        let host = format!("unix://{}", self.socket.display());
        let done = Command::new("docker").args(["--host", &host]).args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn make_images(&self) {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
        for name in [
            "sh", "ls", "cat", "sleep", "id", "echo", "touch", "dd", "stty", "ps", "mkdir", "grep", "wc", "env", "ln",
            "chmod", "mkfifo", "stat", "rm", "readlink",
        ] {
            std::os::unix::fs::symlink("busybox", bin.join(name)).unwrap();
        }
        let archive = root.path().with_extension("tar");
        assert!(
            Command::new("tar")
                .arg("-cf")
                .arg(&archive)
                .arg("-C")
                .arg(root.path())
                .arg(".")
                .status()
                .unwrap()
                .success()
        );
        let archive = archive.to_str().unwrap();
        let env = "ENV FLAVOUR=plain";
        self.docker(&["import", "--change", env, "--change", "VOLUME /data", archive, IMAGE]);
        self.docker(&["import", "--change", "LABEL dev.amalgam.root=writable", archive, WRITABLE_IMAGE]);
        std::fs::remove_file(archive).unwrap();
    }

    fn choice(&self) -> RuntimeChoice {
        RuntimeChoice::Docker(DockerSettings { socket: self.socket.clone(), network: None, pulls: false })
    }

    /// The containers of a sandbox.
    fn containers(&self, sandbox: &str) -> Vec<String> {
        let filter = format!("label=dev.amalgam.sandbox={sandbox}");
        self.docker(&["ps", "-aq", "--no-trunc", "--filter", &filter]).lines().map(str::to_owned).collect()
    }
}

async fn site(engine: &Engine) -> Site {
    let choice = engine.choice();
    Site::start_with(|options| options.runtimes = vec![RuntimeChoice::Local, choice]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_container_runs_commands_beside_the_workspace_and_is_removed() {
    let Some(engine) = Engine::find() else { return };
    let mut site = site(&engine).await;
    let body = json!({"template": IMAGE, "runtime": "docker", "name": "one", "envs": {"COLOUR": "blue"},
        "resources": {"cpu": "0.5", "memory": "128m", "pids": 40}});
    let id = site.create(body).await;
    let done = site.run(&id, "echo $COLOUR $FLAVOUR; echo wrong >&2; echo kept > note; id -u; pwd; exit 3").await;
    assert_eq!(done["stdout"], "blue plain\n1000\n/workspace\n", "{done}");
    assert_eq!((&done["stderr"], &done["exitCode"]), (&"wrong\n".into(), &3.into()), "{done}");
    let sandbox = site.get(&id).await;
    let by = |limit: &str| {
        let all = sandbox["limits"].as_array().unwrap();
        all.iter().find(|one| one["limit"] == limit).unwrap()["enforcedBy"].clone()
    };
    assert_eq!(["cpu", "memory", "pids"].map(by), ["cgroup"; 3], "{sandbox}");
    let workspace = sandbox["workspace"].as_str().unwrap();
    assert_eq!(&site.read(workspace, "note").await.bytes[..], b"kept\n");
    // Files of the sandbox are those of the workspace's owner: another runtime sees them as its own.
    assert_eq!(site.run(&id, "ls -ln note | { read m l u g r; echo $u $g; }").await["stdout"], "1000 1000\n");
    assert_eq!(engine.containers(&id).len(), 1);
    let (_, url) = site.terminal(&id).await;
    let mut socket = site.websocket(&url, None).await.unwrap();
    send(&mut socket, json!({"type": "resize", "cols": 100, "rows": 40})).await;
    type_in(&mut socket, "stty size; echo a$((1+1))b\n").await;
    read_until(&mut socket, "40 100\r\na2b").await;
    drop(socket);
    // A web server in a container without a network.
    let serve = "echo page > index.html; busybox httpd -p 127.0.0.1:8000 -h /workspace";
    assert_eq!(site.run(&id, serve).await["exitCode"], 0);
    assert_eq!(&site.at_port(Method::GET, &id, 8000, "/", &[]).await.bytes[..], b"page\n");
    let forked = site.call(Method::POST, &format!("/sandboxes/{id}/fork"), json!({"count": 1})).await.json();
    let copy = forked["sandboxes"][0]["id"].as_str().unwrap_or_else(|| panic!("{forked}")).to_owned();
    assert_eq!(forked["sandboxes"][0]["runtime"], "docker");
    assert_eq!(site.run(&copy, "cat note; echo changed > note; echo $COLOUR").await["stdout"], "kept\nblue\n");
    assert_eq!(site.run(&id, "cat note").await["stdout"], "kept\n");
    let logs = site.call(Method::GET, &format!("/sandboxes/{id}/logs"), Value::Null).await.json();
    assert!(logs["logs"].as_str().unwrap().contains("running"), "{logs}");
    for one in [&copy, &id] {
        let gone = site.call(Method::DELETE, &format!("/sandboxes/{one}?keep_workspace=true"), Value::Null).await;
        assert_eq!(gone.status, 200, "{:?}", gone.bytes);
        assert!(engine.containers(one).is_empty(), "the container is removed with the sandbox");
    }
    assert_eq!(&site.read(workspace, "note").await.bytes[..], b"kept\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_sandbox_in_a_checkout_forks_expires_and_starts_again_without_a_loss() {
    let Some(engine) = Engine::find() else { return };
    let choice = engine.choice();
    let mut site = Site::start_with(|options| {
        options.runtimes = vec![choice];
        by_checkout(options);
    })
    .await;
    assert_life_in_a_checkout(&site, &json!({"template": IMAGE})).await;
    let id = site.create(json!({"template": IMAGE})).await;
    site.said(&id, "echo text > file; ln -s /etc/passwd link").await;
    assert_eq!(
        site.said(&id, "ls -lnd . file link | { while read m l u g r; do echo $u $g; done; }").await,
        "1000 1000\n".repeat(3)
    );
    // The owner is that of the directory: a sandbox of the other kind sees it as its own.
    let copy = site.copy_of(&id).await;
    assert_eq!(
        site.said(&copy, "ls -ln file | { read m l u g r; echo $u; }; echo more >> file; cat file").await,
        "1000\ntext\nmore\n"
    );
    let workspace = site.workspace_of(&copy).await;
    site.end(&copy).await;
    let mut options = amalgam_gateway::SandboxOptions::new(site.server.home.path().join("sandboxes"), agent());
    options.runtimes = vec![RuntimeChoice::Local, engine.choice()];
    site.server = site.server.restart(Setup { sandboxes: Some(options), ..Setup::default() }).await;
    let mounted = site.create(json!({"template": IMAGE, "workspace": workspace})).await;
    assert_eq!(site.get(&mounted).await["provider"], "fuse");
    assert_eq!(
        site.said(&mounted, "cat file; echo end > file; ls -ln file | { read m l u g r; echo $u; }").await,
        "text\nmore\n1000\n"
    );
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_images_are_templates_and_others_are_refused_by_name() {
    let Some(engine) = Engine::find() else { return };
    let mut site = site(&engine).await;
    let listed = site.call(Method::GET, "/templates", Value::Null).await.json();
    let names: Vec<_> = listed["templates"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(["host", IMAGE, WRITABLE_IMAGE].iter().all(|name| names.contains(name)), "{names:?}");
    let create = async |body: Value| site.call(Method::POST, "/sandboxes", body).await;
    for missing in ["no-such-image:1", "../images", "x?y", "sandbox/../x"] {
        let refused = create(json!({"template": missing, "runtime": "docker"})).await;
        assert_eq!(
            (refused.status.as_u16(), refused.json()["error"]["code"].as_u64()),
            (404, Some(2_002)),
            "{missing}"
        );
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains(missing), "{:?}", refused.bytes);
    }
    let refused = create(json!({"template": "host", "runtime": "docker"})).await;
    assert_eq!(refused.status, 404, "{:?}", refused.bytes);
    let refused = create(json!({"template": "host", "runtime": "podman"})).await;
    assert!(
        refused.json()["error"]["message"].as_str().unwrap().contains("`local` and `docker`"),
        "{:?}",
        refused.bytes
    );
    for network in ["bridge", "host"] {
        let refused = create(json!({"template": IMAGE, "network": network})).await;
        assert_ne!(refused.status, 200, "{network}");
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains("network"), "{:?}", refused.bytes);
    }
    // Without a runtime it is the one that has the template.
    let made = create(json!({"template": IMAGE})).await.json();
    assert_eq!(made["runtime"], "docker", "{made}");
    let made = create(json!({"template": "host"})).await.json();
    assert_eq!(made["runtime"], "local", "{made}");
    let left = engine.docker(&["ps", "-aq", "--filter", "name=amalgam-", "--filter", "status=created"]);
    assert_eq!(left, "", "a refused creation leaves no container");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_sandbox_that_is_hostile_reaches_nothing_and_disturbs_nobody() {
    let Some(engine) = Engine::find() else { return };
    let mut site = site(&engine).await;
    let id = site.create(json!({"template": IMAGE, "resources": {"memory": "64m", "pids": 30}})).await;
    let other = site.create(json!({"template": IMAGE})).await;
    let status = site.run(&id, "cat /proc/self/status").await["stdout"].as_str().unwrap().to_owned();
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let refused = [
        "touch /file",
        "touch /bin/file",
        "touch /run/amalgam/link/file",
        "cat /run/amalgam/link/secret",
        "ls /var/run/docker.sock",
        "ls /run/docker.sock",
        "cat /proc/1/environ",
        "echo 1 > /proc/sys/kernel/panic",
        "busybox mount -t tmpfs none /data",
        "busybox unshare -U true",
        "busybox mknod /tmp/disk b 8 0",
        "busybox ping -c 1 -W 1 127.0.0.2 && false || busybox wget -T 1 http://192.0.2.1/",
    ];
    for command in refused {
        let done = site.run(&id, command).await;
        assert_ne!(done["exitCode"], 0, "{command}: {done}");
    }
    assert_eq!(site.run(&id, "ls -A /sys/class/net; busybox wc -l < /proc/net/route").await["stdout"], "lo\n1\n");
    // Programs in the volume of the image and in /tmp, which are in memory, and in the home can be run.
    let done = site
        .run(&id, "for d in /data /tmp $HOME; do busybox cp /bin/busybox $d/busybox && $d/busybox true || exit 1; done")
        .await;
    assert_eq!(done["exitCode"], 0, "{done}");
    let mounts = engine.docker(&["inspect", "--format", "{{json .Mounts}}", &engine.containers(&id)[0]]);
    assert!(!mounts.contains("\"volume\"") && !mounts.contains("docker.sock"), "{mounts}");
    let bomb = site.run(&id, "i=0; while test $i -lt 60; do i=$((i+1)); sleep 5 & done; wait").await;
    assert!(bomb["stderr"].as_str().unwrap().contains("fork"), "{bomb}");
    let hungry = site.run(&id, "dd if=/dev/zero of=/dev/null bs=200M count=1; echo $?").await;
    assert_ne!(hungry["stdout"], "0\n", "{hungry}");
    for one in [&id, &other] {
        assert_eq!(site.run(one, "echo here").await["stdout"], "here\n", "it goes on");
    }
    let id = site.create(json!({"template": WRITABLE_IMAGE})).await;
    let done = site.run(&id, "touch /tmp/a && id -u && ls -ld / ").await;
    assert_eq!(done["exitCode"], 0, "{done}");
    let writable =
        engine.docker(&["inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", &engine.containers(&id)[0]]);
    assert_eq!(writable, "false");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_container_that_is_killed_marks_its_sandbox_and_keeps_its_work() {
    let Some(engine) = Engine::find() else { return };
    let receiver = Receiver::start().await;
    let allow = vec!["127.0.0.0/8".parse().unwrap()];
    let setup = Setup { webhooks: WebhookOptions { allow, ..WebhookOptions::default() }, ..Setup::default() };
    let mut site = Site::start_in(setup, |options| options.runtimes = vec![engine.choice()]).await;
    let admin = site.server.key("admin", &[], false).await;
    let hook = json!({"url": receiver.url(), "kinds": ["sandbox.error"]}).to_string();
    let made = site.server.rest(Method::POST, "/api/v1/webhooks", &[("x-api-key", &admin)], hook).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let (killed, agent_killed) =
        (site.create(json!({"template": IMAGE})).await, site.create(json!({"template": IMAGE})).await);
    for id in [&killed, &agent_killed] {
        site.run(id, "echo kept > note").await;
    }
    engine.docker(&["kill", &engine.containers(&killed)[0]]);
    let pid = engine.docker(&["inspect", "--format", "{{.State.Pid}}", &engine.containers(&agent_killed)[0]]);
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    for id in [&killed, &agent_killed] {
        let lost = site.reach(id, "error").await;
        assert!(lost["reason"].as_str().unwrap().contains("killed"), "{lost}");
        let workspace = lost["workspace"].as_str().unwrap();
        assert_eq!(&site.read(workspace, "note").await.bytes[..], b"kept\n");
    }
    let told = receiver.wait_for(2).await;
    let mut ids: Vec<_> = told.iter().map(|one| one.json()["data"]["sandboxId"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    let mut expected = [killed.clone(), agent_killed.clone()];
    expected.sort();
    assert_eq!(ids, expected);
    for id in [&killed, &agent_killed] {
        for _ in 0..100 {
            if engine.containers(id).is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(engine.containers(id).is_empty(), "its container is removed");
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_containers_that_nobody_knows_are_removed_at_the_start_and_those_of_others_stay() {
    let Some(engine) = Engine::find() else { return };
    let mut site = site(&engine).await;
    let id = site.create(json!({"template": IMAGE})).await;
    let label = "{{index .Config.Labels \"dev.amalgam.server\"}}";
    let server = engine.docker(&["inspect", "--format", label, &engine.containers(&id)[0]]);
    let start = |server: &str, sandbox: &str| {
        let (server, sandbox) = (format!("dev.amalgam.server={server}"), format!("dev.amalgam.sandbox={sandbox}"));
        let words = ["run", "-d", "--network", "none", "--label", &server, "--label", &sandbox, IMAGE, "sleep", "600"];
        engine.docker(&words)
    };
    start(&server, "sbx-forgotten");
    let foreign = start("0123456789abcdef", "sbx-foreign");
    site.server.stop().await;
    let mut options = amalgam_gateway::SandboxOptions::new(site.server.home.path().join("sandboxes"), agent());
    options.runtimes = vec![engine.choice()];
    let mut restarted = site.server.restart(Setup { sandboxes: Some(options), ..Setup::default() }).await;
    for _ in 0..200 {
        if engine.containers("sbx-forgotten").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(engine.containers("sbx-forgotten").is_empty(), "nobody knows it");
    assert!(engine.containers(&id).is_empty(), "its server was stopped");
    assert_eq!(engine.containers("sbx-foreign"), std::slice::from_ref(&foreign), "it belongs to another server");
    engine.docker(&["rm", "-f", &foreign]);
    restarted.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_sandbox_shows_a_read_only_workspace_that_cannot_be_written() {
    let Some(engine) = Engine::find() else { return };
    let mut site = site(&engine).await;
    let first = site.create(json!({"template": IMAGE})).await;
    site.run(&first, "echo text > file").await;
    let workspace = site.get(&first).await["workspace"].as_str().unwrap().to_owned();
    let gone = site.call(Method::DELETE, &format!("/sandboxes/{first}?keep_workspace=true"), Value::Null).await;
    assert_eq!(gone.status, 200, "{:?}", gone.bytes);
    let id = site.create(json!({"template": IMAGE, "workspace": workspace, "readOnly": true})).await;
    assert_eq!(site.run(&id, "cat file").await["stdout"], "text\n");
    assert_ne!(site.run(&id, "echo more > file").await["exitCode"], 0);
    site.server.stop().await;
}

/// The sandbox whose record is written while [`Containers`] are listed.
const NEW: &str = "sbx-new";

/// The answers of an engine with two containers: one of a sandbox that is being created, one of a sandbox without a record.
#[derive(Default)]
struct Containers {
    /// Set when the containers can be listed.
    catalog: OnceLock<Catalog>,
    /// The paths of the containers that were removed.
    removed: Mutex<Vec<String>>,
}

impl Containers {
    /// Answers the calls to a socket.
    fn serve(self: &Arc<Self>, listener: UnixListener) -> JoinSet<()> {
        let mut task = JoinSet::new();
        let containers = Arc::clone(self);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let containers = Arc::clone(&containers);
                connections.spawn(async move {
                    let service = service_fn(|request| answer(Arc::clone(&containers), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        task
    }

    async fn list(&self) -> (StatusCode, Value) {
        let Some(catalog) = self.catalog.get() else {
            return (StatusCode::INTERNAL_SERVER_ERROR, json!({"message": "not yet"}));
        };
        let record = SandboxRecord {
            id: NEW.to_owned(),
            project: ProjectName::new("default").unwrap(),
            name: String::new(),
            state: SandboxState::Starting,
            reason: String::new(),
            template: IMAGE.to_owned(),
            runtime: "docker".to_owned(),
            handle: String::new(),
            workspace: "workspaces/main".to_owned(),
            key_id: String::new(),
            agent: "ann".to_owned(),
            credential: SecretHash::from_hex(""),
            config: json!({}),
            created: now(),
            expires: Time(now().0 + 3_600_000_000_000),
        };
        catalog.add_sandbox(&record).await.unwrap();
        let container = |id: &str, sandbox: &str| json!({"Id": id, "Labels": {"dev.amalgam.sandbox": sandbox}});
        (StatusCode::OK, json!([container("new", NEW), container("gone", "sbx-gone")]))
    }
}

async fn answer(containers: Arc<Containers>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (status, body) = match method {
        Method::DELETE => {
            containers.removed.lock().unwrap().push(path);
            (StatusCode::NO_CONTENT, Value::Null)
        }
        _ if path.ends_with("/version") => (StatusCode::OK, json!({"ApiVersion": "1.45"})),
        _ if path.ends_with("/containers/json") => containers.list().await,
        _ => (StatusCode::NOT_FOUND, json!({"message": "not found"})),
    };
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    Ok(response)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_container_of_a_sandbox_that_is_created_while_containers_are_listed_stays() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("docker.sock");
    let containers = Arc::new(Containers::default());
    let _task = containers.serve(UnixListener::bind(&socket).unwrap());
    let mut server = Running::with_sandboxes(|home| {
        let settings = DockerSettings { socket, network: None, pulls: false };
        SandboxOptions {
            runtimes: vec![RuntimeChoice::Docker(settings)],
            expiry_interval: Duration::from_millis(100),
            ..SandboxOptions::new(home.join("sandboxes"), scratch.path().join("agent"))
        }
    })
    .await;
    assert!(containers.catalog.set(server.catalog.clone()).is_ok());
    let removed = || containers.removed.lock().unwrap().clone();
    let began = Instant::now();
    while !removed().iter().any(|path| path.ends_with("/gone")) {
        assert!(began.elapsed() < WITHIN, "{:?}", removed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(removed().len(), 1, "{:?}", removed());
    server.stop().await;
}
