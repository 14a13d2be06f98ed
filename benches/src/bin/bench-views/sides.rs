//! The three sides of a comparison: the disk's own file system, fuse-overlayfs over it, and a mounted workspace; and how
//! programs are timed on them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::Result;

/// fuse-overlayfs over a directory. Unmounted when it goes.
pub struct Overlay {
    place: PathBuf,
    base: PathBuf,
    lower: PathBuf,
}

impl Overlay {
    /// Mounts it over `lower`, with what it needs in `base`.
    pub fn mount(lower: &Path, base: &Path) -> Result<Self> {
        let overlay = Self { place: base.join("overlay"), base: base.to_owned(), lower: lower.to_owned() };
        for name in ["overlay", "upper", "work"] {
            fs::create_dir_all(base.join(name))?;
        }
        overlay.begin()?;
        Ok(overlay)
    }

    fn begin(&self) -> Result<()> {
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            self.lower.display(),
            self.base.join("upper").display(),
            self.base.join("work").display()
        );
        run(Command::new("fuse-overlayfs").arg("-o").arg(options).arg(&self.place))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.place
    }

    /// A fresh mount of the same.
    pub fn again(&self) -> Result<()> {
        run(Command::new("umount").arg(&self.place))?;
        self.begin()
    }

    /// Keeps its process on one core, or lets it go anywhere.
    pub fn pin(&self, cores: &str) -> Result<()> {
        let found =
            Command::new("pgrep").args(["--full", &format!("fuse-overlayfs.*{}", self.place.display())]).output()?;
        for id in String::from_utf8_lossy(&found.stdout).split_whitespace() {
            run(Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", cores, id]))?;
        }
        Ok(())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(&self.place).stderr(Stdio::null()).status().ok();
    }
}

/// Runs a program to its end, quietly.
pub fn run(command: &mut Command) -> Result<()> {
    seconds(command, &[0]).map(drop)
}

/// The same; the seconds it took. `fine` are the codes that are no failure. What others wrote is on the disk before it starts.
pub fn seconds(command: &mut Command, fine: &[i32]) -> Result<f64> {
    rustix::fs::sync();
    let begun = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let took = begun.elapsed().as_secs_f64();
    match output.status.code() {
        Some(code) if fine.contains(&code) => Ok(took),
        _ => {
            // What went wrong first says why; a full disk fills pages.
            let said = String::from_utf8_lossy(&output.stderr);
            let first: Vec<_> = said.lines().take(5).collect();
            Err(format!("{command:?}: {}: {}", output.status, first.join("\n")).into())
        }
    }
}

/// A program of the shell, in a directory; on one core if that is wanted.
pub fn shell(directory: &Path, line: &str, pinned: bool) -> Command {
    let mut command = if pinned { Command::new("taskset") } else { Command::new("bash") };
    if pinned {
        command.args(["--cpu-list", "0", "bash"]);
    }
    command.args(["-euo", "pipefail", "-c", line]).current_dir(directory);
    command
        .env_remove("CARGO_TARGET_DIR")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_OPTIONAL_LOCKS", "1")
        // After a commit git tidies up in the background, for minutes, on whatever is measured next.
        .env("GIT_CONFIG_COUNT", "2")
        .env("GIT_CONFIG_KEY_0", "maintenance.auto")
        .env("GIT_CONFIG_VALUE_0", "false")
        .env("GIT_CONFIG_KEY_1", "gc.auto")
        .env("GIT_CONFIG_VALUE_1", "0")
        .env("GIT_AUTHOR_NAME", "bench")
        .env("GIT_AUTHOR_EMAIL", "bench@localhost")
        .env("GIT_COMMITTER_NAME", "bench")
        .env("GIT_COMMITTER_EMAIL", "bench@localhost");
    command
}

/// Empties the kernel's caches.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| format!("caches cannot be dropped: {error}; run it as root").into())
}

/// All of a list, which the middle of is taken.
pub fn several(times: usize, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let taken = (0..times).map(|_| run()).collect::<Result<Vec<_>>>()?;
    Ok(amalgam_benches::median(taken))
}
