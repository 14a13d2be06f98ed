//! Sandboxes: the runtime that starts them, and the server's end of the channel to the agent in each.
//!
//! - [`Runtime`]: starts and ends sandboxes. [`LocalRuntime`] does so with bubblewrap, without root and without Docker;
//!   [`DockerRuntime`] with containers of a Docker engine.
//! - [`Link`]: the channel to one agent. Commands and terminals go through it.
//! - [`Command`], [`Terminal`]: the output of a command or a terminal, kept so that callers can attach and come back.
//! - [`SandboxState`]: the states of a sandbox and the changes between them.
//! - [`Limits`]: resources, and what enforces each.
//! - [`restrict_writes_to`]: Landlock, for the agent.
//!
//! Absent: stores and workspaces. A sandbox gets directories to show at `/workspace` and as its home; the caller provides them.

/// The messages between the server and an agent.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod agent_v1 {
    tonic::include_proto!("amalgam.agent.v1");
}

mod bwrap;
mod cgroup;
mod command;
mod confinement;
mod docker;
mod error;
mod limits;
mod link;
mod local;
mod output;
mod process;
mod propagation;
mod runtime;
mod seccomp;
mod secret;
mod spool;
mod state;
mod terminal;

pub use command::{Command, CommandEnd, CommandSpec, OutputReader, Secrets};
pub use confinement::{landlock_version, restrict_scope, restrict_writes_to};
pub use docker::{DockerOptions, DockerRuntime};
pub use error::{Result, SandboxError};
pub use limits::{Enforced, Limits, parse_bytes, parse_cpus};
pub use link::{Link, LinkOptions, LinkStream, OnOutgoing, PROXY_PORT, Usage};
pub use local::{HOST_TEMPLATE, LocalOptions, LocalRuntime};
pub use output::{Chunk, Part, Stream};
pub use runtime::{
    MountAccess, MountPlace, Network, Progress, Resource, Runtime, StartSpec, Started, TEMPORARY_DIRECTORY, Template,
};
pub use secret::{Secret, SecretHash};
pub use state::SandboxState;
pub use terminal::{Terminal, TerminalSize};
