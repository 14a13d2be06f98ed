//! `amalgam login`: stores the URL and the key of a server under a name.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::{Value, json};

use crate::connect::connect_server;
use crate::contexts::{Contexts, KEY_VARIABLE, LOCAL};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::raw_mode::RawMode;
use crate::remote::{ClientCertificate, Server, ServerKey, ServerUrl};
use crate::session::Session;

/// Log in to a server, so that commands can work on it
#[derive(Debug, Args)]
#[command(after_help = "\
The command takes the key from --key or AMALGAM_API_KEY. Otherwise it asks for the key at a terminal, or
reads it from standard input. It checks the key, and stores it in the user's configuration directory,
where only the user can read it. Commands work on the server with `--server NAME`, or after
`amalgam context use NAME`.

Examples:
  amalgam login https://state.example.com/demo
  amalgam login https://state.example.com --name prod < key.txt
  amalgam login https://10.8.0.1:8443 --ca ca.pem --use")]
pub struct Login {
    /// The server and, behind the host, the project: https://HOST[:PORT][/PROJECT]
    url: String,
    /// The name of the context [default: the host and its port]
    #[arg(long)]
    name: Option<String>,
    /// The key; other users of this machine can see arguments, so standard input is better
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Check the server's certificate with these authorities, as PEM [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate of this client with its chain, as PEM, for a server that asks for one
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// Work on this server from now on
    #[arg(long = "use")]
    is_used: bool,
}

impl Login {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let url = ServerUrl::parse(&self.url)?;
        let name = self.name.unwrap_or_else(|| url.authority().to_owned());
        check_name(&name)?;
        let key = match self.key {
            Some(key) => ServerKey::new(&key),
            None => match std::env::var(KEY_VARIABLE).ok().as_deref().and_then(ServerKey::new) {
                Some(key) => Some(key),
                None => read_key(session, &url).await?,
            },
        };
        let host_path = |path: PathBuf| session.host_path(path.as_os_str());
        let authorities = self.ca.map(host_path);
        let client = self
            .client_cert
            .zip(self.client_key)
            .map(|(certificate, key)| ClientCertificate { certificate: host_path(certificate), key: host_path(key) });
        let server = Server { url, key, authorities, client };
        let agent = check(&server, &session.connect.actor).await?;
        let mut contexts = Contexts::load()?;
        contexts.put(&name, &server);
        if self.is_used {
            contexts.set_current(Some(&name));
        }
        contexts.save()?;
        let is_current = contexts.current() == Some(name.as_str());
        session.output.emit(&json_line(&name, Some(&server), is_current))?;
        let agent = agent.map_or_else(|| "without a key".to_owned(), |agent| format!("as {agent}"));
        session.output.done(format!("logged in to {} {agent}", paint(style::TITLE, &server.url)))?;
        session.output.remark(match is_current {
            true => {
                format!("commands work on it; `amalgam context use {LOCAL}` goes back to the store of this machine")
            }
            false => {
                format!("`amalgam --server {name} ws` asks it; `amalgam context use {name}` makes all commands do so")
            }
        })?;
        Ok(Exit::OK)
    }
}

/// Returns the JSON line of a context, without its key.
pub fn json_line(name: &str, server: Option<&Server>, is_current: bool) -> Value {
    lines::line(
        "context",
        json!({
            "name": name,
            "url": server.map(|server| server.url.origin()),
            "project": server.and_then(|server| server.url.project.as_deref()),
            "current": is_current,
        }),
    )
}

/// Refuses a name that would be taken for a URL or for this machine.
fn check_name(name: &str) -> Result<(), CliError> {
    let is_plain = !name.is_empty() && name.len() <= 128 && name.chars().all(|c| c.is_ascii_graphic() && c != '/');
    match name {
        LOCAL => Err(CliError::usage(format!("`{LOCAL}` is the store of this machine")).hint("pass another --name")),
        _ if !is_plain => Err(CliError::usage("--name: 1 to 128 visible ASCII characters without a slash")),
        _ => Ok(()),
    }
}

/// Asks the server which agent the key belongs to. Returns `None` on a server without keys.
pub async fn check(server: &Server, actor: &str) -> Result<Option<String>, CliError> {
    let mut client = connect_server(server, actor).await?;
    let told = client.keys.get_caller(v1::GetCallerRequest {}).await.map_err(CliError::from);
    let told = told.map_err(|error| match error.is(Reason::Unauthenticated) {
        true => error.hint("`amalgam key create NAME --scope write` on the server's machine makes a key"),
        false => error,
    })?;
    Ok(told.into_inner().key.map(|key| key.agent))
}

/// Reads the key: without echo from a terminal, or the first line of standard input.
async fn read_key(session: &mut Session, url: &ServerUrl) -> Result<Option<ServerKey>, CliError> {
    let is_terminal = io::stdin().is_terminal();
    if is_terminal && session.no_input {
        return Err(CliError::usage("a key is needed, but prompts are disabled (--no-input)")
            .hint(format!("set {KEY_VARIABLE}, or pipe the key into the command")));
    }
    session.output.flush()?;
    let prompt = format!("key for {url}: ");
    let failed = |error: io::Error| CliError::machine("standard input", &error);
    // Restores the terminal also when Ctrl-C ends this call: the thread that reads cannot.
    let hidden = match is_terminal {
        true => {
            write!(io::stderr(), "{prompt}").map_err(failed)?;
            Some(RawMode::without_echo(io::stdin()).map_err(failed)?)
        }
        false => None,
    };
    let line = tokio::task::spawn_blocking(read_line).await.expect("reading a line does not panic");
    if hidden.is_some() {
        drop(hidden);
        writeln!(io::stderr()).map_err(failed)?;
    }
    let line = line.map_err(failed)?;
    Ok(ServerKey::new(&line))
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}
