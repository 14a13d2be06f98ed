//! Events of sandboxes, and secrets of commands.

use std::time::Duration;

use amalgam_gateway::WebhookOptions;
use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use http::Method;
use serde_json::{Value, json};
use tonic::Request;

use crate::receiver::Receiver;
use crate::running::Setup;
use crate::site::Site;

fn setup() -> Setup {
    let allow = vec!["127.0.0.0/8".parse().unwrap()];
    Setup { webhooks: WebhookOptions { allow, ..WebhookOptions::default() }, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_told_of_the_life_of_a_sandbox_and_warned_of_its_end() {
    let receiver = Receiver::start().await;
    let mut site = Site::start_in(setup(), |options| options.expiry_interval = Duration::from_millis(200)).await;
    let admin = site.server.key("admin", &[], false).await;
    let hook = json!({"url": receiver.url(), "kinds": ["sandbox.*", "agent.*"]}).to_string();
    let made = site.server.rest(Method::POST, "/api/v1/webhooks", &[("x-api-key", &admin)], hook).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let deleted = site.create(json!({"template": "host", "name": "short"})).await;
    let gone = site.call(Method::DELETE, &format!("/sandboxes/{deleted}"), Value::Null).await;
    assert_eq!(gone.status, 200, "{:?}", gone.bytes);
    let expired = site.create(json!({"template": "host", "timeoutSeconds": 2})).await;
    site.reach(&expired, "stopped").await;
    let received = receiver.wait_for(11).await;
    let of = |id: &str| {
        let ours = received.iter().map(|one| one.json()).filter(|one| one["data"]["sandboxId"] == id);
        let mut kinds: Vec<_> = ours.map(|one| one["event"].as_str().unwrap().to_owned()).collect();
        // The agent's registration races with the answer of the call that waits for it.
        kinds.sort();
        kinds
    };
    let born = ["agent.connected", "sandbox.created", "sandbox.running", "sandbox.starting"];
    for (id, more) in [(&deleted, &["sandbox.deleted"][..]), (&expired, &["sandbox.expiring", "sandbox.expired"][..])] {
        let mut expected: Vec<_> = born.iter().chain(more).map(|kind| (*kind).to_owned()).collect();
        expected.sort();
        assert_eq!(of(id), expected, "{id}");
    }
    let created = received.iter().map(|one| one.json()).find(|one| one["event"] == "sandbox.created").unwrap();
    let data = &created["data"];
    assert_eq!(
        (&data["name"], &data["state"], &data["template"]),
        (&"short".into(), &"running".into(), &"host".into())
    );
    assert!(data["expiresAt"].as_str().unwrap().ends_with('Z'), "{created}");
    site.server.stop().await;
}

/// A request with a key.
fn authorized<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    request
}

/// The processes of this machine whose environment or command line contains a text.
fn processes_with(text: &str) -> Vec<String> {
    let contains = |path: &std::path::Path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let files = processes.flat_map(|process| [process.join("environ"), process.join("cmdline")]);
    files.filter(|file| contains(file)).map(|file| file.display().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_its_command_and_nothing_else() {
    const SECRET: &str = "s3cr3t-b8f1";
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    let request = v1::StreamCommandRequest {
        sandbox_id: id.clone(),
        command: "echo $TOKEN_FILE; ls -l $TOKEN_FILE | cut -c1-10; sha256sum < $TOKEN_FILE; exec sleep 600".to_owned(),
        secrets: [("TOKEN".to_owned(), SECRET.to_owned())].into(),
        ..v1::StreamCommandRequest::default()
    };
    let mut events = client.stream_command(authorized(&site.key, request)).await.unwrap().into_inner();
    let (mut said, mut command_id) = (String::new(), String::new());
    while said.lines().count() < 3 {
        let event = events.message().await.unwrap().unwrap();
        said.push_str(&event.data);
        command_id = event.command_id;
    }
    assert_eq!(processes_with(SECRET), Vec::<String>::new());
    let lines: Vec<_> = said.lines().collect();
    // `printf s3cr3t-b8f1 | sha256sum`
    let hash = data_encoding::HEXLOWER.encode(&<sha2::Sha256 as sha2::Digest>::digest(SECRET));
    assert_eq!((lines[1], lines[2]), ("-r--------", format!("{hash}  -").as_str()), "{said}");
    let seen = site.run(&id, &format!("cat {}", lines[0])).await;
    assert_eq!(seen["stdout"], SECRET, "it is there while its command runs: {seen}");
    let kill = format!("/sandboxes/{id}/process/{command_id}/kill");
    assert_eq!(site.call(Method::POST, &kill, json!({"signal": 9})).await.status, 200);
    while events.message().await.unwrap().is_some() {}
    let after = site.run(&id, "ls /run/amalgam/secrets | wc -l").await;
    assert_eq!(after["stdout"], "0\n", "the file is gone with its command: {after}");
    for name in ["", "A=B", "../x", "1A"] {
        let body = json!({"command": "true", "secrets": {name: "x"}});
        let refused = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body).await;
        assert_eq!(refused.status, 400, "{name}: {:?}", refused.bytes);
    }
    let listed = site.call(Method::GET, &format!("/sandboxes/{id}/process"), Value::Null).await.json();
    assert!(!listed.to_string().contains(SECRET), "{listed}");
    site.call(Method::DELETE, &format!("/sandboxes/{id}?keep_workspace=true"), Value::Null).await;
    site.server.stop().await;
    // Everything that the server has written: logs, the audit log, the catalog, the stores with their snapshots.
    let found =
        std::process::Command::new("grep").args(["-rlF", SECRET]).arg(site.server.home.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_input_of_a_slow_reader_arrives_whole() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let mut client = SandboxServiceClient::new(site.server.channel().await);
    let key = site.key.clone();
    let request = v1::StreamCommandRequest {
        sandbox_id: id.clone(),
        command: "sleep 1; wc -c; sha256sum < /dev/null".to_owned(),
        stdin_open: true,
        ..v1::StreamCommandRequest::default()
    };
    let mut events = client.stream_command(authorized(&key, request)).await.unwrap().into_inner();
    let command_id = events.message().await.unwrap().unwrap().command_id;
    let block = vec![7_u8; 256 << 10];
    for part in 0..=40 {
        let (data, end) = if part < 40 { (block.clone().into(), false) } else { (Vec::new().into(), true) };
        let (sandbox_id, command_id) = (id.clone(), command_id.clone());
        let request = v1::WriteCommandRequest { sandbox_id, command_id, data, end };
        client.write_command(authorized(&key, request)).await.unwrap();
    }
    let mut output = String::new();
    while let Some(event) = events.message().await.unwrap() {
        output.push_str(&event.data);
    }
    assert!(output.starts_with(&format!("{}\n", 40 * (256 << 10))), "{output}");
    site.server.stop().await;
}
