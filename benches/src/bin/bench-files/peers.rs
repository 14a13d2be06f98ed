//! Running programs: ours, and those it is measured beside.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::Result;

/// The `amalgam` command with a store of its own. Its process is ended when this is dropped.
pub struct Amalgam {
    binary: PathBuf,
    /// Where the store lies.
    pub store: PathBuf,
}

impl Amalgam {
    /// The command that was built beside this program.
    pub fn new(store: PathBuf) -> Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("amalgam");
        if !binary.is_file() {
            return Err(format!(
                "{} is missing: build it with `cargo build --release -p amalgam-cli`",
                binary.display()
            )
            .into());
        }
        Ok(Self { binary, store })
    }

    /// The command, to be run in a directory.
    pub fn command(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("AMALGAM_STORE", &self.store).env("NO_COLOR", "1").current_dir(directory).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Runs it and returns the seconds it took.
    pub fn seconds(&self, directory: &Path, arguments: &[&str]) -> Result<f64> {
        seconds(&mut self.command(directory, arguments))
    }

    /// Ends the background process, so that the next command starts it anew.
    pub fn stop(&self) -> Result<()> {
        self.seconds(Path::new("/"), &["stop", "--force"]).map(drop)
    }

    /// The most memory that the background process has had at a time, in bytes.
    pub fn peak_memory(&self) -> Result<u64> {
        let output = self.command(Path::new("/"), &["doctor", "--json"]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let found = lines.filter_map(|line| line.get("process_id")?.as_u64()).next();
        let id = found.ok_or("doctor does not say which process holds the store")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kilobytes.ok_or("the kernel does not say how much memory it has had")? * 1024)
    }
}

impl Drop for Amalgam {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Runs a program to its end, quietly, and returns the seconds it took. What others wrote is on the disk before it starts.
pub fn seconds(command: &mut Command) -> Result<f64> {
    rustix::fs::sync();
    let start = Instant::now();
    let output = command.output()?;
    let seconds = start.elapsed().as_secs_f64();
    if output.status.success() {
        return Ok(seconds);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {}", output.status, said.trim()).into())
}

/// `git` in a directory.
pub fn git(directory: &Path, arguments: &[&str]) -> Result<f64> {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]);
    seconds(command.arg("-C").arg(directory).args(arguments))
}

/// `cp -a`.
pub fn copy(from: &Path, to: &Path) -> Result<f64> {
    seconds(Command::new("cp").arg("-a").arg(from).arg(to))
}

/// Whether a program is there.
pub fn have(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// `restic` with a repository.
pub fn restic(repository: &Path, arguments: &[&str]) -> Result<f64> {
    let mut command = Command::new("restic");
    command.env("RESTIC_PASSWORD", "bench").env("RESTIC_REPOSITORY", repository);
    seconds(command.args(["--quiet", "--no-cache"]).args(arguments))
}

/// `borg` with a repository.
pub fn borg(arguments: &[&str]) -> Result<f64> {
    let mut command = Command::new("borg");
    command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes").env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes");
    seconds(command.args(arguments))
}

/// All bytes below a directory as the disk has them.
pub fn disk_bytes(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let files = amalgam_benches::machine::files_below(directory)?;
    files.iter().map(|file| Ok(file.metadata()?.blocks() * 512)).sum()
}
