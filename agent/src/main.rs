//! `amalgam-agent`: the process with id 1 in a sandbox. It dials the server, runs commands and terminals for it, and reaps orphans.
//!
//! With the word `files` it is a command of the sandbox instead, which the server starts for operations on files.
//!
//! It has one thread, beside two that start processes and two for each terminal, and keeps nothing on the disk.

mod channel;
mod command;
mod files;
mod outbox;
mod ports;
mod process_tree;
mod proxy;
mod reaper;
mod secrets;
mod spawner;
mod terminal;
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use channel::Channel;
use outbox::Outbox;
use reaper::Reaper;
use spawner::Spawner;

/// Environment variables of the agent, which commands do not get.
pub(crate) const OWN_VARIABLES: [&str; 3] = ["AMALGAM_LINK", "AMALGAM_PIDS_MAX", spawner::WRITABLE_VARIABLE];
/// Open files of each process.
const DESCRIPTORS_MAX: u64 = 4_096;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && first == "files"
    {
        return files::main(words);
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&format!("amalgam-agent: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    // Commands run as the same user: they may not read its memory, which holds the secret of the next registration.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let link = PathBuf::from(std::env::var_os("AMALGAM_LINK").ok_or("AMALGAM_LINK is not set")?);
    let sandbox_id = std::env::var("SANDBOX_ID").map_err(|_| "SANDBOX_ID is not set")?;
    let secret = std::fs::read_to_string(link.join("secret"))?;
    lower(Resource::Core, 0)?;
    lower(Resource::Nofile, DESCRIPTORS_MAX)?;
    if let Some(pids) = std::env::var("AMALGAM_PIDS_MAX").ok().and_then(|text| text.parse().ok()) {
        lower(Resource::Nproc, pids)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let reaper = Arc::new(Reaper::new(Spawner::from_environment()));
        let reaping = tokio::spawn(reaper::keep_reaping(Arc::clone(&reaper))?);
        let outbox = Arc::new(Outbox::default());
        let channel = Channel::new(link.join("agent.sock"), sandbox_id, secret, reaper, outbox);
        let ended = channel.run().await;
        reaping.abort();
        ended
    })
}

/// Lowers a limit of this process and of all that it starts.
fn lower(resource: Resource, limit: u64) -> std::io::Result<()> {
    let present = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limit = Some(limit.min(present));
    Ok(setrlimit(resource, Rlimit { current: limit, maximum: limit })?)
}

/// Writes a line to the log of the sandbox.
pub(crate) fn log(line: &str) {
    use std::io::Write as _;
    // A log that cannot be written cannot be reported.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "a program reads the clock for itself")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
