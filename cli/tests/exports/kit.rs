//! Exports of a scratch store, and clients of them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use amalgam_nfs::client::Client;
use amalgam_nfs::client::types::nfs_fh3;
use serde_json::Value;

use crate::scratch::Scratch;

/// An export as the command prints it.
pub struct Exported {
    pub path: String,
    pub mount_path: String,
    pub address: SocketAddr,
    pub line: Value,
}

impl Exported {
    fn of_line(line: Value) -> Self {
        let text = |key: &str| line[key].as_str().unwrap_or_else(|| panic!("{key} in {line}")).to_owned();
        let port = line["port"].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port");
        let address = SocketAddr::new(text("host").parse().expect("an address"), port);
        Self { path: text("path"), mount_path: text("mount_path"), address, line }
    }

    /// All exports, by path. Starts the background process if none runs.
    pub fn listed(scratch: &Scratch) -> Vec<Self> {
        let lines = json(&scratch.run("amalgam exports --json"));
        lines.into_iter().filter(|line| line["type"] == "nfs_export").map(Self::of_line).collect()
    }

    /// A client that has mounted it, and the handle of its root.
    pub fn mounted(&self) -> (Client, nfs_fh3) {
        let mut client = connect(self.address);
        let root = mount_root(&mut client, self);
        (client, root)
    }
}

/// Exports something. `what` are the arguments.
pub fn export(scratch: &Scratch, what: &str) -> Exported {
    Exported::of_line(json(&scratch.run(&format!("amalgam export nfs --json {what}"))).remove(0))
}

/// A port that no process listens at. The usual one goes to the server of another test as soon as this one is killed.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

pub fn connect(address: SocketAddr) -> Client {
    Client::connect(address).expect("connected")
}

pub fn mount_root(client: &mut Client, exported: &Exported) -> nfs_fh3 {
    client.root(&exported.mount_path).expect("answered").expect("mounted")
}

pub fn text_of(client: &mut Client, file: &nfs_fh3) -> String {
    String::from_utf8(client.read(file, 0, 1 << 20).expect("read")).expect("text")
}

pub fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The process that holds the store.
pub fn process(scratch: &Scratch) -> i32 {
    let told = json(&scratch.run("amalgam doctor --json"));
    let id = told.iter().find_map(|line| line.get("process_id")?.as_i64()).expect("a process");
    i32::try_from(id).expect("a number")
}

#[track_caller]
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "in 20 seconds: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
