//! The program that shows long output.

use std::process::{Child, ChildStdin, Command, Stdio};

use crate::namespace::TOKEN_VARIABLE;

/// A running pager.
pub struct Pager {
    child: Child,
}

impl Pager {
    /// Starts a pager with a shell command line. Returns `None` if it is `cat` or cannot be started: then there is output without a
    /// pager.
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

    /// Waits until the user closes the pager.
    pub fn wait(mut self) {
        // The exit status of the pager is not that of the command.
        drop(self.child.wait());
    }
}
