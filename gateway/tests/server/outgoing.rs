//! Allow-lists of sandboxes: hosts that they reach by the proxy, and everything that they do not.

use amalgam_gateway::SandboxOptions;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::site::Site;

/// A host on loopback that answers each connection with what came first.
async fn host() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = vec![0; 4096];
                let count = stream.read(&mut bytes).await.unwrap_or(0);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {count}\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&bytes[..count]).await;
            });
        }
    });
    port
}

/// Lets sandboxes reach all hosts, and loopback addresses, too.
fn open(options: &mut SandboxOptions) {
    options.hosts = vec!["*".parse().unwrap()];
    options.networks = vec!["127.0.0.0/8".parse().unwrap()];
}

/// Sends a request to the proxy of a sandbox, from inside. The first bytes of the answer.
async fn by_proxy(site: &Site, id: &str, request: &str) -> String {
    let program = format!(
        "import socket
one = socket.create_connection(('127.0.0.1', 3128), 20)
one.sendall({request:?}.encode())
answer = b''
while len(answer) < 4096:
    more = one.recv(4096)
    if not more: break
    answer += more
    if {is_tunnel} and b'\\r\\n\\r\\n' in answer and answer.startswith(b'HTTP/1.1 200') and b'first' not in answer:
        one.sendall(b'first bytes')
print(answer.decode())",
        is_tunnel = if request.starts_with("CONNECT") { "True" } else { "False" },
    );
    // A backslash begins an escape in texts of the API.
    let stdin = program.replace('\\', "\\\\");
    let body = json!({"command": "python3 -", "stdin": stdin});
    let done = site.call(Method::POST, &format!("/sandboxes/{id}/process/run"), body).await.json();
    assert_eq!(done["exitCode"], 0, "{done}");
    done["stdout"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_of_the_allow_list_are_reached_and_others_are_refused_logged_and_counted() {
    let mut site = Site::start_with(open).await;
    let (port, other) = (host().await, host().await);
    let allowed = json!([format!("localhost:{port}"), format!("*.invalid:{port}")]);
    let id = site.create(json!({"template": "host", "allowedHosts": allowed, "envs": {"NO_PROXY": "own"}})).await;
    assert_eq!(site.get(&id).await["allowedHosts"], allowed);
    let variables = site.run(&id, "echo $HTTP_PROXY $https_proxy $NO_PROXY").await;
    assert_eq!(variables["stdout"], "http://127.0.0.1:3128 http://127.0.0.1:3128 own\n");
    // Plain HTTP: the request arrives without what is about the connection to the proxy.
    let head =
        "Host: forged\r\nProxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nConnection: close\r\n\r\n";
    let seen = by_proxy(&site, &id, &format!("GET http://user:word@localhost:{port}/path?q HTTP/1.1\r\n{head}")).await;
    assert!(
        seen.contains("GET /path?q HTTP/1.1\r\n") && seen.contains(&format!("host: localhost:{port}\r\n")),
        "{seen}"
    );
    for absent in ["forged", "proxy-", "Proxy-", "word"] {
        assert!(!seen.contains(absent), "{absent}: {seen}");
    }
    let tunnel = |host: &str, port: u16| format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    let seen = by_proxy(&site, &id, &tunnel("LOCALHOST", port)).await;
    assert!(seen.starts_with("HTTP/1.1 200 OK\r\n") && seen.ends_with("first bytes\n"), "{seen}");
    for (request, status) in [
        (tunnel("localhost", other), "403"),
        (tunnel("127.0.0.1", port), "403"),
        (tunnel("localhost.evil.test", port), "403"),
        (
            format!("GET http://localhost:{other}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"),
            "403",
        ),
        (tunnel("none.invalid", port), "502"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        (format!("GET https://localhost:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "400"),
        ("CONNECT localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), "400"),
    ] {
        let request = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let answer = by_proxy(&site, &id, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answer}");
    }
    // Around the proxy there is nothing.
    let around = format!("python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 5)\"");
    assert_ne!(site.run(&id, &around).await["exitCode"], 0);
    let logs = site.call(Method::GET, &format!("/sandboxes/{id}/logs"), Value::Null).await.json();
    let refused = format!("refused: localhost:{other} is not in the allow-list");
    assert!(logs["logs"].as_str().unwrap().contains(&refused), "{logs}");
    let audit = std::fs::read_to_string(site.server.home.path().join("audit.log")).unwrap();
    assert!(audit.contains("sandbox.connection_refused") && audit.contains("localhost.evil.test"), "{audit}");
    let metrics = site.server.rest(Method::GET, "/metrics", &[("x-api-key", &site.key)], "").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    assert!(metrics.contains("sandbox_connections_refused_total 4"), "{metrics}");
    // A fork has the same list.
    let forked = site.call(Method::POST, &format!("/sandboxes/{id}/fork"), json!({})).await.json();
    let copy = forked["sandboxes"][0]["id"].as_str().unwrap().to_owned();
    assert!(by_proxy(&site, &copy, &tunnel("localhost", port)).await.starts_with("HTTP/1.1 200"));
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_leads_to_a_private_address_is_refused_unless_the_operator_allows_it() {
    let mut site = Site::start_with(|options| options.hosts = vec!["*".parse().unwrap()]).await;
    let port = host().await;
    let id = site.create(json!({"template": "host", "allowedHosts": [format!("localhost:{port}")]})).await;
    let answer =
        by_proxy(&site, &id, &format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
            .await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("no public address"), "{answer}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allow_lists_need_the_operator_and_the_network_none() {
    let mut site = Site::start_with(|options| options.hosts = vec!["*.example.org".parse().unwrap()]).await;
    let refused = async |body: Value| {
        let answer = site.call(Method::POST, "/sandboxes", body).await;
        assert_eq!(answer.status, 400, "{:?}", answer.bytes);
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let message = refused(json!({"template": "host", "allowedHosts": ["pypi.org"]})).await;
    assert!(message.contains("sandbox-hosts"), "{message}");
    refused(json!({"template": "host", "allowedHosts": ["http://a.example.org"]})).await;
    refused(json!({"template": "host", "allowedHosts": ["a.example.org"], "network": "host"})).await;
    refused(json!({"template": "host", "allowedHosts": vec!["a.example.org"; 65]})).await;
    let id = site.create(json!({"template": "host"})).await;
    let proxy = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 3128), 5)\"";
    assert_ne!(site.run(&id, proxy).await["exitCode"], 0, "without an allow-list there is no proxy");
    site.server.stop().await;
}

/// Set in the process that runs in a network of its own.
const INSIDE: &str = "AMALGAM_TEST_IN_A_NETWORK";
/// Addresses for documentation: no packet to them leaves the namespace, whose only interface is its loopback.
const ALLOWED: &str = "198.51.100.7";
const FORBIDDEN: &str = "203.0.113.7";

/// Counts the connections to an address.
async fn counted(address: &str) -> (u16, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = std::sync::Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nfirst").await;
        }
    });
    (port, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_in_a_network_of_the_test_are_reached_by_the_allow_list_only() {
    if std::env::var_os(INSIDE).is_some() {
        return reach_hosts_of_the_network().await;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !amalgam_test_support::has_or_skip("root", is_root, "only root can make a network namespace with addresses") {
        return;
    }
    // This test again, in a namespace with two hosts, whose names are in a file of its own.
    let names = tempfile::NamedTempFile::new().unwrap();
    let lines =
        format!("127.0.0.1 localhost\n{ALLOWED} allowed.test\n{FORBIDDEN} forbidden.test\n{FORBIDDEN} moved.test\n");
    std::fs::write(names.path(), lines).unwrap();
    let script = format!(
        "ip link set lo up && ip address add {ALLOWED}/32 dev lo && ip address add {FORBIDDEN}/32 dev lo && \
         mount --bind {} /etc/hosts && exec \"$0\" --exact --nocapture \"$1\"",
        names.path().display()
    );
    let (own, name) = (
        std::env::current_exe().unwrap(),
        "outgoing::hosts_in_a_network_of_the_test_are_reached_by_the_allow_list_only",
    );
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--net", "--mount", "--", "/bin/sh", "-c", &script]).arg(own).arg(name).env(INSIDE, "1");
    let done = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

async fn reach_hosts_of_the_network() {
    use std::sync::atomic::Ordering;
    let ((port, reached), (other, avoided)) = (counted(ALLOWED).await, counted(FORBIDDEN).await);
    let mut site = Site::start_with(|options| {
        options.hosts = vec!["*".parse().unwrap()];
        options.networks = vec!["198.51.100.0/24".parse().unwrap()];
    })
    .await;
    let allowed = json!([format!("allowed.test:{port}"), format!("moved.test:{other}")]);
    let id = site.create(json!({"template": "host", "allowedHosts": allowed})).await;
    let get =
        |host: &str, port: u16| format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = by_proxy(&site, &id, &get("allowed.test", port)).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("first\n"), "{answer}");
    assert_eq!(reached.load(Ordering::SeqCst), 1);
    // Another name, another port, the bare address, and an allowed name that leads to a network that the operator does not allow.
    for (host, port) in
        [("forbidden.test", other), ("allowed.test", other), (FORBIDDEN, other), (ALLOWED, port), ("moved.test", other)]
    {
        let answer = by_proxy(&site, &id, &get(host, port)).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{host}:{port}: {answer}");
    }
    // Around the proxy: no address of that network is there.
    for (host, port) in [(ALLOWED, port), (FORBIDDEN, other)] {
        let around = format!("python3 -c \"import socket; socket.create_connection(('{host}', {port}), 5)\"");
        assert_ne!(site.run(&id, &around).await["exitCode"], 0);
        let datagram = format!(
            "python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{host}', {port}))\""
        );
        assert_ne!(site.run(&id, &datagram).await["exitCode"], 0);
    }
    assert_eq!((reached.load(Ordering::SeqCst), avoided.load(Ordering::SeqCst)), (1, 0));
    site.server.stop().await;
}
