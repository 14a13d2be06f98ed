//! Serving: the background process of the local store, and the server for other machines.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use amalgam_proto::v1;
use amalgam_server::{Home, Network, NfsListen};
use clap::Args;
use rustix::process::{Pid, test_kill_process};
use serde_json::json;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::network;
use crate::output::json as lines;
use crate::serve_settings::{ServerArgs, ServerSettings};
use crate::session::Session;
use crate::text;

const IDLE_SECONDS: u64 = 600;
const END_TIMEOUT: Duration = Duration::from_secs(50);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Serve workspaces to other machines and programs, over gRPC and REST
///
/// With --data the server has many projects, each a store of its own in DIR/projects. Without it the server has the local store as
/// project `default`, and local commands go on working.
///
/// With --cluster and --bucket the projects are in a PostgreSQL database and an S3 bucket, and any number of such servers serve them
/// at once: every node answers every call.
///
/// Every call needs an API key (`amalgam key create`), except /health and /ready. An address that other machines can reach needs TLS.
#[derive(Debug, Args)]
#[command(after_help = "\
With --nfs the process serves the exports of the local store (`amalgam export nfs`), for a service
manager, so that NFS clients find it again after a restart of the machine.

Settings come from flags, else the environment, else a file; `amalgam config server` shows them.

Examples:
  amalgam serve --listen 127.0.0.1:8080
  amalgam serve --data /srv/amalgam --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  amalgam serve --cluster postgres://db/amalgam --bucket s3://amalgam --listen 127.0.0.1:8080
  curl -H \"Authorization: Bearer $KEY\" http://127.0.0.1:8080/api/v1/workspaces
  amalgam serve --listen 127.0.0.1:8080 --e2b 127.0.0.1:8090
  amalgam serve --nfs 10.8.0.1 --nfs-allow 10.8.0.0/24")]
pub struct Serve {
    /// The Unix socket for local commands [default: in the runtime directory of the user]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    options: ServerArgs,
}

impl Serve {
    /// Serves until the process is asked to stop; the background process of a store also stops when it is idle.
    pub fn run(self, session: &Session) -> Result<Exit, CliError> {
        let settings = ServerSettings::load(&self.options, self.socket.is_some())?;
        let nfs = nfs(&settings)?;
        let Some(listen) = settings.listen()? else {
            settings.require("data", "listen")?;
            settings.require("cluster", "listen")?;
            settings.require("e2b", "listen")?;
            let idle = Duration::from_secs(session.config.number("idle-seconds").unwrap_or(IDLE_SECONDS));
            let code = crate::serve::run(&Home::new(session.home()), self.socket, idle, nfs, &session.connect.log);
            return Ok(Exit(u8::try_from(code).unwrap_or(1)));
        };
        network::serve(&settings, listen, nfs, session.home(), &session.connect.log)?;
        Ok(Exit::OK)
    }
}

/// Returns the address on which NFS is served and the allowed clients, or `None` if NFS is off.
fn nfs(settings: &ServerSettings) -> Result<Option<NfsListen>, CliError> {
    settings.require("nfs-allow", "nfs")?;
    let allow = settings.list("nfs-allow", |word| word.parse::<Network>().map_err(|error| error.to_string()))?;
    match (settings.nfs()?, settings.text("data").or(settings.text("cluster"))) {
        (Some(_), Some(_)) => Err(CliError::usage("NFS serves the local store, and data or cluster names projects")
            .hint("leave out one of them")),
        (address, _) => Ok(address.map(|address| NfsListen { address, allow })),
    }
}

/// Stop the background process
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam stop\n  amalgam stop --force")]
pub struct Stop {
    /// Stop even if directories are watched or calls are in progress
    #[arg(long)]
    force: bool,
}

impl Stop {
    /// Stops the background process, and waits until it has ended and released the store.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client_if_running().await;
        let mut watches = 0;
        if let Some(client) = &mut client {
            let process = client.store.get_store(v1::GetStoreRequest {}).await?.into_inner().process_id;
            watches = client.store.stop_server(v1::StopServerRequest { force: self.force }).await?.into_inner().watches;
            wait_for_end(process).await?;
        }
        session.output.emit(&lines::line("stopped", json!({"was_running": client.is_some(), "watches": watches})))?;
        session.output.done(if client.is_some() {
            "the background process ended"
        } else {
            "no background process is running"
        })?;
        if watches > 0 {
            let number = text::plural(u64::from(watches), "watched directory");
            session.output.remark(format!("{number}: the next `amalgam` command resumes watching"))?;
        }
        Ok(Exit::OK)
    }
}

async fn wait_for_end(process: u32) -> Result<(), CliError> {
    let Some(id) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return Ok(()) };
    let began = Instant::now();
    while test_kill_process(id).is_ok() {
        if began.elapsed() > END_TIMEOUT {
            let message = format!("process {process} was asked to end and has work to finish");
            return Err(CliError::new(Exit::BUSY, "BUSY", message).hint("wait, or try again with --force"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
