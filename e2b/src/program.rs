//! Operations on files: commands of the sandbox that run the agent's program for them.

use std::collections::HashMap;

use amalgam_proto::v1;
use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tonic::{Code, Streaming};

use crate::refusal::{Refusal, code_of};
use crate::target::Target;

/// Path of the program in every sandbox.
const PROGRAM: &str = "/run/amalgam/agent";
/// The home of the user to e2b clients, where paths that are not absolute begin: it is part of snapshots and forks.
pub(crate) const HOME: &str = "/workspace";
const PATH_BYTES_MAX: usize = 4_096;
/// Limit on the bytes of standard error that are kept, which hold the failure.
const STDERR_BYTES_MAX: usize = 16 << 10;
/// Size limit of a result.
const RESULT_BYTES_MAX: usize = 32 << 20;
/// Time limit of an operation in milliseconds. Operations that run until they are killed, or take more standard input, have none.
const TIMEOUT_MS: i64 = 60_000;
const SIGKILL: i32 = 9;

/// Options of an operation.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) stdin: Bytes,
    /// More standard input follows.
    pub(crate) is_stdin_open: bool,
    /// The operation runs until it is killed.
    pub(crate) is_endless: bool,
}

/// An operation that runs. It is killed when this is dropped before its end.
pub(crate) struct Operation {
    target: Target,
    id: String,
    events: Streaming<v1::StreamCommandResponse>,
    stderr: BytesMut,
    has_ended: bool,
}

impl Operation {
    /// Starts an operation.
    pub(crate) async fn start(target: &Target, words: &[&str], options: Options) -> Result<Self, Refusal> {
        let mut command = format!("exec {PROGRAM} files");
        for word in words {
            if word.len() > PATH_BYTES_MAX || word.contains('\0') {
                return Err(Refusal::invalid("a path has at most 4096 bytes, and no zero byte"));
            }
            command.push(' ');
            command.push_str(&quoted(word));
        }
        let is_timed = !options.is_endless && !options.is_stdin_open;
        let request = v1::StreamCommandRequest {
            sandbox_id: target.id.clone(),
            command,
            cwd: "/".to_owned(),
            envs: HashMap::from([("HOME".to_owned(), HOME.to_owned())]),
            timeout: is_timed.then_some(TIMEOUT_MS),
            stdin: options.stdin,
            stdin_open: options.is_stdin_open,
            binary: true,
            ..v1::StreamCommandRequest::default()
        };
        let mut events = target.caller.sandboxes().stream_command(request).await?.into_inner();
        let started = events.message().await?.filter(|event| event.r#type == "started").unwrap_or_default();
        let (target, stderr) = (target.clone(), BytesMut::new());
        Ok(Self { target, id: started.command_id, events, stderr, has_ended: false })
    }

    /// Waits for the next bytes of the output. Returns `None` after a successful end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let Some(event) = self.events.message().await? else {
                return Err(Refusal::new(Code::Unavailable, "an operation on files was cut"));
            };
            if event.truncated && event.r#type != "exit" {
                return Err(Refusal::new(Code::DataLoss, "output of an operation on files was lost"));
            }
            match event.r#type.as_str() {
                "stdout" => return Ok(Some(event.output)),
                "stderr" => {
                    let left = STDERR_BYTES_MAX.saturating_sub(self.stderr.len()).min(event.output.len());
                    self.stderr.extend_from_slice(&event.output[..left]);
                }
                "exit" if event.exit_code == 0 => {
                    self.has_ended = true;
                    return Ok(None);
                }
                kind => {
                    self.has_ended = true;
                    let told = if kind == "exit" { self.failure(&event.message) } else { unknown(&event.message) };
                    return Err(told);
                }
            }
        }
    }

    /// Sends standard input. An operation that has failed does not read it, and reports its failure at its end.
    pub(crate) async fn write(&self, data: Bytes, is_end: bool) -> Result<(), Refusal> {
        let (sandbox_id, command_id) = (self.target.id.clone(), self.id.clone());
        let request = v1::WriteCommandRequest { sandbox_id, command_id, data, end: is_end };
        self.target.caller.sandboxes().write_command(request).await?;
        Ok(())
    }

    /// Waits for the end of the operation and returns its whole output.
    pub(crate) async fn output(mut self) -> Result<Bytes, Refusal> {
        let mut all = BytesMut::new();
        while let Some(bytes) = self.next().await? {
            if all.len() + bytes.len() > RESULT_BYTES_MAX {
                return Err(Refusal::new(Code::ResourceExhausted, "the result has more than 32 MiB"));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all.freeze())
    }

    /// Converts the failure that the program wrote to standard error. Without one, `message` says that the time limit was reached.
    fn failure(&self, message: &str) -> Refusal {
        let said =
            self.stderr[..].split(|byte| *byte == b'\n').find_map(|line| serde_json::from_slice::<Value>(line).ok());
        let field = |name: &str| said.as_ref().and_then(|said| said[name].as_str());
        match (field("code"), field("message")) {
            (Some(code), Some(message)) => Refusal::new(code_of(code), message),
            _ if !message.is_empty() => Refusal::new(Code::DeadlineExceeded, message),
            _ => unknown(&String::from_utf8_lossy(&self.stderr)),
        }
    }
}

fn unknown(why: &str) -> Refusal {
    Refusal::new(Code::Internal, format!("the operation on files failed: {}", why.trim()))
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.has_ended || self.id.is_empty() {
            return;
        }
        let (target, id) = (self.target.clone(), std::mem::take(&mut self.id));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let request = v1::KillCommandRequest { sandbox_id: target.id, command_id: id, signal: SIGKILL };
            // It may have ended, or its sandbox.
            let _ = target.caller.sandboxes().kill_command(request).await;
        });
    }
}

/// Runs an operation to its end, and returns its output.
pub(crate) async fn run(target: &Target, words: &[&str]) -> Result<Bytes, Refusal> {
    Operation::start(target, words, Options::default()).await?.output().await
}

/// Quotes a word for `/bin/sh`.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_a_program_as_they_are() {
        for word in ["", "a b", "it's", "$(reboot)", "`id`", "\"", "\n", "\\", "-rf", "a'b'c", "*"] {
            let mut shell = std::process::Command::new("/bin/sh");
            let shown = shell.arg("-c").arg(format!("printf %s {}", quoted(word))).output();
            assert_eq!(shown.expect("a shell").stdout, word.as_bytes(), "{word:?}");
        }
    }
}
