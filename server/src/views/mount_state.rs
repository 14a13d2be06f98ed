//! Mounts in other namespaces: those that clients have announced, and the place of each one that was made.

use std::path::PathBuf;

use amalgam_engine::Time;
use amalgam_fuse::MountOptions;

use super::kernel;

/// The most processes that a message names.
const NAMED_MAX: usize = 5;

/// A mount that a client has announced.
pub(super) struct Expected {
    pub(super) view: u64,
    pub(super) path: PathBuf,
    pub(super) options: MountOptions,
    pub(super) since: Time,
}

/// Where a private mount is.
#[derive(Clone, Debug)]
pub(super) struct PrivateMount {
    /// The token that announced it.
    pub(super) token: Vec<u8>,
    /// Its mount namespace, if that could be found out.
    pub(super) namespace: Option<PathBuf>,
}

impl PrivateMount {
    /// Returns the ids of the processes in the namespace.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.namespace.as_deref().map(kernel::processes_in).unwrap_or_default()
    }

    /// Describes the processes in the namespace, for a message.
    pub(super) fn words(&self) -> String {
        let processes = self.processes();
        let named: Vec<_> = processes.iter().take(NAMED_MAX).map(u32::to_string).collect();
        match processes.len() {
            0 => "a command runs".to_owned(),
            1 => format!("process {} runs", named.join("")),
            more => {
                format!("{more} processes ({}{}) run", named.join(", "), if more > NAMED_MAX { ", ..." } else { "" })
            }
        }
    }
}
