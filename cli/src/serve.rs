//! The background process: one for each store, started on demand, ended when it is idle.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use amalgam_proto::{Failure, Reason};
use amalgam_server::{Home, serve};
use tokio::signal::unix::{SignalKind, signal};

use crate::connect::{EXIT_BUSY, EXIT_FULL, open, runtime_directory};
use crate::logging::{LogOptions, LogOwner};

/// Opens the store and serves its socket until it is idle for long enough or asked to stop. Returns the exit code.
pub fn run(home: &Home, socket: &Path, idle: Duration, log: &LogOptions) -> i32 {
    // Its own session: the terminal's hang-up and Ctrl-C are not meant for it.
    let _ = rustix::process::setsid();
    // Without it free memory is given back only while others are at work. Where it cannot be had, that is how it is.
    let _ = tikv_jemalloc_ctl::background_thread::write(true);
    if let Err(error) = log.log_to_file(&home.log_path(), LogOwner::Background) {
        print_error(&format!("the log cannot be written: {error}"));
    }
    match serve_store(home, socket, idle) {
        Ok(()) => 0,
        Err(failure) => {
            print_error(&failure.message);
            match failure.reason {
                Reason::Busy => EXIT_BUSY,
                Reason::Full => EXIT_FULL,
                _ => 1,
            }
        }
    }
}

fn serve_store(home: &Home, socket: &Path, idle: Duration) -> Result<(), Failure> {
    let fault = |error: std::io::Error| Failure::new(Reason::Fault, error.to_string());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(fault)?;
    let service = open(home, &runtime_directory().map_err(fault)?)?;
    let served = runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let ended = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve::serve_unix(service, socket, idle, ended).await
    });
    // Abandoned work must not keep the store open.
    runtime.shutdown_timeout(Duration::from_secs(10));
    served.map_err(fault)
}

/// Prints an error to standard error, which is the log. The command that started the process reads it there.
fn print_error(message: &str) {
    // Nothing can be reported when standard error is closed.
    drop(writeln!(io::stderr(), "error: {message}"));
}
