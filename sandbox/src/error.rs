//! Why a sandbox could not be started or used.

use std::io;

/// Result of a function of this crate.
pub type Result<T, E = SandboxError> = std::result::Result<T, E>;

/// Why a sandbox could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The machine cannot isolate processes, so none is started.
    #[error("this machine cannot isolate a sandbox: {why}")]
    NotIsolated {
        /// The reason, and what to do about it.
        why: String,
    },
    /// A limit was asked for that nothing enforces here.
    #[error(
        "nothing on this machine enforces the limit `{limit}`: {why}; give best_effort to start the sandbox without it"
    )]
    NotEnforced {
        /// The name of the limit.
        limit: &'static str,
        /// Why nothing enforces the limit.
        why: String,
    },
    /// The runtime has no such template.
    #[error("there is no template `{0}`")]
    NoTemplate(String),
    /// The engine has no such image, and did not pull it.
    #[error("the Docker engine has no image `{image}`: {why}")]
    NoImage {
        /// The name of the image.
        image: String,
        /// Why it was not pulled.
        why: String,
    },
    /// The agent did not register in time, or its process ended.
    #[error("the sandbox did not start: {0}")]
    NotStarted(String),
    /// The agent is not connected.
    #[error("the agent of the sandbox is not connected at the moment")]
    NotConnected,
    /// There is no such command.
    #[error("there is no command {0} in this sandbox")]
    NoCommand(String),
    /// There is no such terminal.
    #[error("there is no terminal {0} in this sandbox")]
    NoTerminal(String),
    /// The sandbox has as many terminals as it may have.
    #[error("the sandbox has {0} terminals, and may have no more")]
    TooManyTerminals(usize),
    /// The sandbox has as many running commands as it may have.
    #[error("{0} commands run in the sandbox, and no more may")]
    TooManyCommands(usize),
    /// Nothing listens at a port of the sandbox.
    #[error("nothing in the sandbox listens at port {0}: the port is not open")]
    PortClosed(u16),
    /// The sandbox has as many connections to its ports as it may have.
    #[error("the sandbox has {0} connections to its ports, and may have no more; try again when some have ended")]
    TooManyConnections(usize),
    /// The agent is of a version that does not carry connections to ports.
    #[error("the agent of the sandbox is too old to reach its ports; start the sandbox again")]
    NoPorts,
    /// The command or the terminal could not be started.
    #[error("not started: {0}")]
    CommandFailed(String),
    /// The machine failed.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl SandboxError {
    /// Returns a function that wraps an error of the operating system. `what` names the action.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }
}
