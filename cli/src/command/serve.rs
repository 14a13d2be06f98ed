//! The process that holds the store: running it, and ending it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use amalgam_proto::v1;
use amalgam_server::Home;
use clap::Args;
use rustix::process::{Pid, test_kill_process};
use serde_json::json;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

const IDLE_SECONDS: u64 = 600;
const END_TIMEOUT: Duration = Duration::from_secs(50);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Serve the store in the background; other commands start this automatically
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam serve --socket /run/user/1000/amalgam/store.sock")]
pub struct Serve {
    /// Where to listen
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

impl Serve {
    /// Serves the store until the process is idle or asked to stop.
    pub fn run(self, session: &Session) -> Exit {
        let idle = Duration::from_secs(session.config.number("idle-seconds").unwrap_or(IDLE_SECONDS));
        let code = crate::serve::run(&Home::new(session.home()), &self.socket, idle, &session.connect.log);
        Exit(u8::try_from(code).unwrap_or(1))
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
    /// Does it, and waits until the store is free.
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
