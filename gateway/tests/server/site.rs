//! A server with sandboxes, a key for them, and the calls that tests make.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use amalgam_gateway::SandboxOptions;
use http::Method;
use serde_json::{Value, json};

use crate::running::{Answer, Running, Setup};

/// How long a test waits for a state.
pub const WITHIN: Duration = Duration::from_secs(60);

/// Builds the agent once: cargo builds no program of another package for a test.
pub fn agent() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let mut directory = std::env::current_exe().unwrap();
        while !directory.ends_with("deps") {
            assert!(directory.pop(), "the test is not in the directory of a build");
        }
        directory.pop();
        if std::env::var_os("AMALGAM_AGENT_BUILT").is_some() {
            return directory.join("amalgam-agent");
        }
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--package", "amalgam-agent", "--target-dir"])
            .arg(directory.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.unwrap().success());
        directory.join("amalgam-agent")
    });
    built.clone()
}

/// A server with sandboxes, and a key for them.
pub struct Site {
    pub server: Running,
    pub key: String,
}

impl Site {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut SandboxOptions)) -> Self {
        let server = Running::with_sandboxes(|home| {
            let mut options = SandboxOptions::new(home.join("sandboxes"), agent());
            change(&mut options);
            options
        })
        .await;
        let key = server.key("write run", &[], false).await;
        Self { server, key }
    }

    /// A server with these settings beside its sandboxes.
    pub async fn start_in(setup: Setup, change: impl FnOnce(&mut SandboxOptions)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut options = SandboxOptions::new(home.path().join("sandboxes"), agent());
        change(&mut options);
        let server = Running::in_home(home, Setup { sandboxes: Some(options), ..setup }).await;
        let key = server.key("write run", &[], false).await;
        Self { server, key }
    }

    pub async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let path = format!("/api/v1{path}");
        self.server.rest(method, &path, &[("x-api-key", self.key.as_str())], body).await
    }

    /// Creates a sandbox. Returns its id.
    pub async fn create(&self, body: Value) -> String {
        let is_docker = body["template"] != "host" && body["runtime"] != "local";
        let runtime = if is_docker { "docker" } else { "local" };
        let made = self.call(Method::POST, "/sandboxes", body).await;
        assert_eq!(made.status, 200, "{:?}", made.bytes);
        let sandbox = made.json();
        assert_eq!((&sandbox["state"], &sandbox["runtime"]), (&"running".into(), &runtime.into()), "{sandbox}");
        sandbox["id"].as_str().unwrap().to_owned()
    }

    pub async fn run(&self, id: &str, command: &str) -> Value {
        let done = self.call(Method::POST, &format!("/sandboxes/{id}/process/run"), json!({"command": command})).await;
        assert_eq!(done.status, 200, "{command}: {:?}", done.bytes);
        done.json()
    }

    /// The content of a file in the workspace of a sandbox.
    pub async fn read(&self, workspace: &str, path: &str) -> Answer {
        let workspace = workspace.strip_prefix("workspaces/").unwrap().replace('/', "%2F");
        self.call(Method::GET, &format!("/workspaces/{workspace}/files/{path}"), Value::Null).await
    }

    pub async fn get(&self, id: &str) -> Value {
        self.call(Method::GET, &format!("/sandboxes/{id}"), Value::Null).await.json()
    }

    /// Waits until a sandbox is in a state.
    pub async fn reach(&self, id: &str, state: &str) -> Value {
        let began = Instant::now();
        loop {
            let found = self.get(id).await;
            if found["state"] == state {
                return found;
            }
            assert!(began.elapsed() < WITHIN, "{found}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
