//! `amalgam sandbox port`: the URL of a port of a sandbox.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use crate::command::sandbox_calls::{SandboxCalls, duration, failure};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// Print a URL at which a port of a sandbox is reached
///
/// A program in the sandbox has to listen at the port, on the loopback address or on all addresses. The URL needs no key: all who have it
/// reach the port, until it expires. It takes HTTP and WebSockets.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam exec try -- sh -c 'python3 -m http.server 8000 &'
  curl $(amalgam sandbox port try 8000)")]
pub(super) struct Port {
    /// The sandbox
    sandbox: String,
    /// The port
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How long the URL works, such as 30m or 1h; at most 24h
    #[arg(long, value_name = "TIME", default_value = "1h")]
    timeout: String,
}

impl Port {
    pub(super) async fn run(self, session: &mut Session) -> Outcome {
        let timeout = duration("--timeout", &self.timeout)?;
        let timeout_seconds =
            i32::try_from(timeout.as_secs()).map_err(|_| CliError::usage("--timeout: at most 24h"))?;
        let mut calls = SandboxCalls::connect(session).await?;
        let id = calls.id(&self.sandbox).await?;
        let request = v1::OpenPortRequest { sandbox_id: id.clone(), port: self.port.into(), timeout_seconds };
        let opened = calls.client.open_port(request).await.map_err(failure)?.into_inner();
        let expires = text::timestamp(opened.expires_at.as_ref());
        let told = json!({
            "sandbox": id,
            "port": self.port,
            "url": opened.url,
            "host": opened.host,
            "expires": lines::time(opened.expires_at.as_ref()),
        });
        session.output.emit(&lines::line("sandbox_port", told))?;
        session.output.say(&opened.url)?;
        session.output.remark(format!("good until {}", text::wall_clock(expires)))?;
        Ok(Exit::OK)
    }
}
