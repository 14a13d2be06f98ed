//! Runs a command in its own directory and its own process group, which ends with this program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use crate::error::CliError;
use crate::exit::Exit;
use crate::namespace::TOKEN_VARIABLE;

/// Maximum bytes of standard output that are kept.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// How long the output is read after the command has ended. A process that left the process group may keep the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A command to run in its own process group.
#[derive(Clone, Debug)]
pub struct IsolatedCommand<'a> {
    /// Its words.
    pub words: &'a [OsString],
    /// Its working directory.
    pub directory: &'a Path,
    /// Environment variables to add.
    pub environment: &'a [(&'a str, String)],
}

impl IsolatedCommand<'_> {
    /// Runs the command and appends its output and errors to a log file. Returns its exit code.
    pub async fn with_log(&self, log: &Path) -> Result<u8, CliError> {
        let failed = |error: io::Error| CliError::machine(log.display(), &error);
        let file = File::options().create(true).append(true).open(log).map_err(failed)?;
        let same = file.try_clone().map_err(failed)?;
        self.run(Stdio::from(file), Stdio::from(same)).await
    }

    /// Runs the command with its output on standard error, because standard output is for the result. Returns its exit code.
    pub async fn onto_stderr(&self) -> Result<u8, CliError> {
        self.run(Stdio::from(io::stderr()), Stdio::inherit()).await
    }

    /// Runs the command. Returns its exit code and the end of its standard output, at most [`OUTPUT_BYTES_MAX`]; its standard error
    /// goes to a log file.
    pub async fn read(&self, log: &Path) -> Result<(u8, String), CliError> {
        let failed = |error: io::Error| CliError::machine(log.display(), &error);
        let file = File::options().create(true).append(true).open(log).map_err(failed)?;
        let mut group = self.spawn(Stdio::piped(), Stdio::from(file))?;
        let stdout = group.child.stdout.take().expect("it was asked for");
        let mut end = Vec::new();
        let code = {
            let reading = read_end(stdout, &mut end);
            tokio::pin!(reading);
            tokio::select! {
                code = group.wait(self.words) => {
                    // Processes that the command left behind would keep the pipe open.
                    group.kill();
                    if let Ok(read) = tokio::time::timeout(DRAIN_TIMEOUT, &mut reading).await {
                        read.map_err(failed)?;
                    }
                    code?
                }
                read = &mut reading => {
                    read.map_err(failed)?;
                    group.wait(self.words).await?
                }
            }
        };
        Ok((code, String::from_utf8_lossy(&end).into_owned()))
    }

    async fn run(&self, stdout: Stdio, stderr: Stdio) -> Result<u8, CliError> {
        let mut group = self.spawn(stdout, stderr)?;
        group.wait(self.words).await
    }

    fn spawn(&self, stdout: Stdio, stderr: Stdio) -> Result<Group, CliError> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).current_dir(self.directory).process_group(0);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.env_remove(TOKEN_VARIABLE).envs(self.environment.iter().map(|(key, value)| (*key, value)));
        let failed = |error| CliError::machine(self.words[0].to_string_lossy(), &error);
        let child = command.spawn().map_err(failed)?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Group { child, id })
    }
}

/// Reads to the end and keeps the last bytes in `end`.
async fn read_end(mut from: impl AsyncRead + Unpin, end: &mut Vec<u8>) -> io::Result<()> {
    let mut block = vec![0; OUTPUT_BYTES_MAX];
    loop {
        let read = from.read(&mut block).await?;
        if read == 0 {
            return Ok(());
        }
        end.extend_from_slice(&block[..read]);
        let surplus = end.len().saturating_sub(OUTPUT_BYTES_MAX);
        end.drain(..surplus);
    }
}

/// A child process and its process group.
struct Group {
    child: Child,
    id: Option<Pid>,
}

impl Group {
    async fn wait(&mut self, words: &[OsString]) -> Result<u8, CliError> {
        let status = self.child.wait().await;
        let status = status.map_err(|error| CliError::machine(words[0].to_string_lossy(), &error))?;
        Ok(Exit::of_status(status).0)
    }

    /// Kills all processes of the group.
    fn kill(&self) {
        if let Some(id) = self.id {
            // The call fails if no process of the group is left.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

/// Kills the process group, when this program is interrupted as well as after the command has ended.
impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates a folder among the store's forks with the first free number, for example `explore-1`.
pub fn new_folder(home: &Path, start: &str) -> Result<PathBuf, CliError> {
    let forks = home.join("forks");
    let failed = |error: io::Error| CliError::machine(forks.display(), &error);
    fs::create_dir_all(&forks).map_err(failed)?;
    for number in 1_u64.. {
        let folder = forks.join(format!("{start}-{number}"));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
            Ok(()) => return Ok(folder),
        }
    }
    unreachable!("there are more numbers than folders")
}

/// Returns the words that run a line of the shell: `sh -c LINE`.
pub fn shell_command(line: &str) -> [OsString; 3] {
    ["sh".into(), "-c".into(), line.into()]
}

/// Returns the last finite number in a text, or `None`.
pub fn last_number(text: &str) -> Option<f64> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.rev().filter_map(|word| word.parse::<f64>().ok()).find(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_last_number() {
        assert_eq!(last_number("12 tests\nscore 0.75\n"), Some(0.75));
        assert_eq!(last_number("passed 3, failed -2"), Some(-2.0));
        assert_eq!(last_number("1e3"), Some(1_000.0));
        assert_eq!(last_number("nan inf none"), None);
        assert_eq!(last_number(""), None);
    }
}
