//! A server with sandboxes, and the calls that are measured.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amalgam_benches::Result;
use amalgam_benches::served::{Served, WithKey};
use amalgam_gateway::{DockerSettings, RuntimeChoice, SandboxOptions};
use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Sandboxes at a time, more than any figure starts.
const SANDBOXES_MAX: usize = 400;
/// How long a command may take.
const COMMAND_TIMEOUT_MS: i64 = 600_000;

pub type Client = SandboxServiceClient<InterceptedService<Channel, WithKey>>;

/// What starts sandboxes, and from what.
#[derive(Clone, Debug)]
pub struct Kind {
    pub runtime: RuntimeChoice,
    pub template: String,
}

impl Kind {
    /// Namespaces of this machine.
    pub fn local() -> Self {
        Self { runtime: RuntimeChoice::Local, template: "host".to_owned() }
    }

    /// Containers of the engine that `scripts/with-docker` has started, or why there is none.
    pub fn docker() -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let found = variable("AMALGAM_TEST_DOCKER").zip(variable("AMALGAM_TEST_IMAGE"));
        let (socket, template) = found.ok_or_else(|| {
            variable("AMALGAM_NO_DOCKER")
                .unwrap_or_else(|| "AMALGAM_TEST_DOCKER is not set; use scripts/with-docker".to_owned())
        })?;
        let settings = DockerSettings { socket: socket.into(), network: None, pulls: false };
        Ok(Self { runtime: RuntimeChoice::Docker(settings), template })
    }
}

/// The agent beside this program.
pub fn agent() -> Result<PathBuf> {
    let agent = std::env::current_exe()?.with_file_name("amalgam-agent");
    if agent.is_file() {
        return Ok(agent);
    }
    Err(format!("{} is not there; `make bench-sandbox` builds it", agent.display()).into())
}

/// A server with one kind of sandboxes.
pub struct Site {
    pub served: Served,
    pub client: Client,
    template: String,
}

impl Site {
    pub async fn start(directory: &Path, kind: &Kind) -> Result<Self> {
        let mut options = SandboxOptions::new(directory.join("sandboxes"), agent()?);
        options.runtimes = vec![kind.runtime.clone()];
        (options.per_key_max, options.total_max) = (SANDBOXES_MAX, SANDBOXES_MAX);
        let served = Served::start_with(directory, Some(options)).await?;
        let client = SandboxServiceClient::with_interceptor(served.connect().await?, served.with_key()?);
        Ok(Self { served, client, template: kind.template.clone() })
    }

    /// A request for a sandbox.
    pub fn request(&self) -> v1::CreateSandboxRequest {
        v1::CreateSandboxRequest { template: self.template.clone(), ..Default::default() }
    }

    /// Starts a sandbox. Returns its id and how long that took.
    pub async fn create(&self) -> Result<(String, Duration)> {
        let (mut client, begin) = (self.client.clone(), Instant::now());
        let made = client.create_sandbox(self.request()).await?.into_inner();
        Ok((made.sandbox.unwrap_or_default().id, begin.elapsed()))
    }

    /// Runs a command to its end. Returns its output.
    pub async fn run(&self, id: &str, command: &str) -> Result<String> {
        let done = self.client.clone().run_command(run_request(id, command)).await?.into_inner();
        match done.exit_code {
            0 => Ok(done.stdout),
            code => Err(format!("`{command}` ended with {code}: {}", done.stderr).into()),
        }
    }

    pub async fn delete(&self, id: &str) -> Result<()> {
        let request = v1::DeleteSandboxRequest { id: id.to_owned(), ..Default::default() };
        self.client.clone().delete_sandbox(request).await?;
        Ok(())
    }

    /// Stops the server, which ends its sandboxes.
    pub async fn stop(self) -> Result<()> {
        drop(self.client);
        self.served.stop().await
    }
}

pub fn run_request(id: &str, command: &str) -> v1::RunCommandRequest {
    let (sandbox_id, command) = (id.to_owned(), command.to_owned());
    v1::RunCommandRequest { sandbox_id, command, timeout: Some(COMMAND_TIMEOUT_MS), ..Default::default() }
}

/// Milliseconds of a duration.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
