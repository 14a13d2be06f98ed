//! The program that shows long output.

use std::process::{Child, ChildStdin, Command, Stdio};

use crate::namespace::TOKEN_VARIABLE;

/// A pager that runs.
pub struct Pager {
    child: Child,
}

impl Pager {
    /// Starts it, as a command line of the shell; nothing when it cannot be started, since output without a pager is better
    /// than none.
    pub fn start(command: &str) -> Option<(Self, ChildStdin)> {
        if command.trim().is_empty() || command.trim() == "cat" {
            return None;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env_remove(TOKEN_VARIABLE).stdin(Stdio::piped());
        let mut child = shell.spawn().ok()?;
        let stdin = child.stdin.take()?;
        Some((Self { child }, stdin))
    }

    /// Waits until the person has seen enough.
    pub fn wait(mut self) {
        // How the pager ends says nothing about the command.
        drop(self.child.wait());
    }
}
