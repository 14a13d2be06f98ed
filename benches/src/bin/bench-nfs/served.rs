//! A store with one exported workspace, served by the command in a process of its own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use amalgam_benches::Result;
use amalgam_benches::machine::command_program;
use amalgam_nfs::client::Client;
use amalgam_nfs::client::types::nfs_fh3;

/// The path that clients mount.
const PATH: &str = "/default/served";
/// Timeout for the process to take commands.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The serving process. It ends with the value.
pub struct Served {
    process: Child,
    program: PathBuf,
    around: PathBuf,
    pub address: SocketAddr,
}

impl Served {
    /// Serves a new workspace in a directory.
    pub fn start(around: &Path) -> Result<Self> {
        let program = command_program()?;
        let runtime = around.join("runtime");
        fs::create_dir_all(&runtime)?;
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
        let mut command = command(&program, around);
        command.args(["serve", "--nfs", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let address = line.trim().rsplit(' ').next().unwrap_or_default().parse();
        let address = address.map_err(|_| format!("the server printed {line:?}"))?;
        let served = Self { process, program, around: around.to_owned(), address };
        let begun = Instant::now();
        while !served.output(&["mounts"])?.status.success() {
            if begun.elapsed() > START_TIMEOUT {
                return Err("the server takes no commands".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        served.run(&["export", "nfs", "--create", "served"])?;
        Ok(served)
    }

    /// A client, and the handle of the root.
    pub fn mount(&self) -> Result<(Client, nfs_fh3)> {
        let mut client = Client::connect(self.address)?;
        let root = client.root(PATH)?.map_err(|status| status.to_string())?;
        Ok((client, root))
    }

    /// The resident memory of the serving process.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1_024)
    }

    /// Runs a command of the store.
    pub fn run(&self, arguments: &[&str]) -> Result<()> {
        let done = self.output(arguments)?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("amalgam {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr)).into()),
        }
    }

    fn output(&self, arguments: &[&str]) -> Result<Output> {
        Ok(command(&self.program, &self.around).args(arguments).output()?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The command waits for the process, which stays in the table until this process has waited for it.
        let stopping = command(&self.program, &self.around).args(["stop", "--force"]).stdout(Stdio::null()).spawn();
        self.process.wait().ok();
        stopping.and_then(|mut stopping| stopping.wait()).ok();
    }
}

fn command(program: &Path, around: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("AMALGAM_STORE", around.join("store")).env("XDG_RUNTIME_DIR", around.join("runtime"));
    command.env_remove("AMALGAM_LOG").current_dir(around);
    command
}
