//! The process that `amalgam run --in` starts: makes a private mount, then executes the command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use crate::exit::Exit;
use crate::namespace::{PrivateMount, PrivateMountError, TOKEN_VARIABLE, become_command};

/// Mount a workspace in a namespace of its own and become a command; `amalgam run --in` starts this
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam run --in try-2 -- make test")]
pub struct Enter {
    /// Where to mount
    #[arg(long, value_name = "PATH")]
    at: PathBuf,
    /// Where the device is handed over
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Let other users enter
    #[arg(long)]
    allow_other: bool,
    /// Mount a directory of the host at a path in the mount
    #[arg(long, num_args = 2, value_names = ["SOURCE", "PATH"])]
    bind: Vec<PathBuf>,
    /// Which mount it is, in hex
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true, hide = true)]
    token: String,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Enter {
    /// Mounts the workspace and replaces this process by the command. Returns only if that fails.
    pub fn run(self) -> CliError {
        let Some(token) = bytes_of(&self.token) else { return CliError::usage("the token has no hex digits") };
        let bindings: Vec<_> = self.bind.chunks_exact(2).map(|pair| (pair[0].as_path(), pair[1].as_path())).collect();
        let refused = become_command(&PrivateMount {
            at: &self.at,
            socket: &self.socket,
            token: &token,
            allow_other: self.allow_other,
            bindings: &bindings,
            words: &self.command,
        });
        match refused {
            PrivateMountError::Mount(what, error) => {
                let message = format!("could not {what}: {error}");
                CliError::new(Exit(125), "MOUNT_REFUSED", message)
                    .hint("`amalgam doctor` says what is missing; --backend checkout works without")
            }
            PrivateMountError::Start(error) => CliError::not_started(&self.command[0], &error),
        }
    }
}

/// Formats bytes in hex.
pub fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs =
        digits.chunks(2).map(|pair| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_as_it_is_written() {
        assert_eq!(bytes_of(&hex_of(&[0, 7, 255])), Some(vec![0, 7, 255]));
        for wrong in ["", "a", "zz", "0g"] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }
}
