//! Shared steps: the Linux tree, commands of git, stores that end with a durable workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, linux, machine, median};
use amalgam_engine::workspace::NewWorkspace;
use amalgam_engine::{OperationContext, Store, Time, WorkspaceName, Workspaces};
use amalgam_exchange::Imported;

/// Bytes in a megabyte.
pub const MB: f64 = 1e6;

/// A directory of files, with its size in words.
pub struct Input {
    pub path: PathBuf,
    pub words: String,
}

/// The Linux tree; a part of it in a quick run.
pub fn linux_tree(bench: &Bench) -> Result<Input> {
    let tree = linux::tree()?;
    let path = if bench.options.quick { tree.join("kernel") } else { tree };
    let files = machine::files_below(&path)?;
    let mut bytes = 0;
    for file in &files {
        bytes += file.symlink_metadata()?.len();
    }
    let words = format!("{} files, {:.0} MB", files.len(), bytes as f64 / MB);
    Ok(Input { path, words })
}

/// A command of git that reads no configuration of the machine.
pub fn git(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").args(arguments);
    for (key, value) in [("GIT_AUTHOR", "Ann"), ("GIT_COMMITTER", "Ann")] {
        command.env(format!("{key}_NAME"), value).env(format!("{key}_EMAIL"), "ann@example.org");
        command.env(format!("{key}_DATE"), "1700000000 +0000");
    }
    command
}

/// Runs a program and returns the seconds it took. Fails with the words of a program that fails.
pub fn seconds(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    let done = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?.wait_with_output()?;
    match done.status.success() {
        true => Ok(start.elapsed().as_secs_f64()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim()).into()),
    }
}

/// A bare repository with one commit of a directory, in one pack. The directory is only read.
pub fn repository_of(tree: &Path, target: &Path) -> Result<()> {
    seconds(git(&["init", "--quiet", "--bare", "--initial-branch=main"]).arg(target))?;
    let in_tree = |arguments: &[&str]| {
        // One repack is enough, and it is not measured.
        let mut command = git(&["-c", "maintenance.auto=false", "-c", "gc.auto=0", "--git-dir"]);
        command.arg(target).arg("--work-tree").arg(tree).args(arguments);
        seconds(&mut command)
    };
    in_tree(&["add", "--all", "--force"])?;
    in_tree(&["commit", "--quiet", "--message", "all"])?;
    in_tree(&["repack", "-a", "-d", "-q"])?;
    Ok(())
}

pub fn act() -> OperationContext {
    OperationContext::new("bench", Time(1))
}

/// Makes an import visible as a workspace, as the command does.
pub fn land(store: &Store, imported: &Imported) -> Result<()> {
    imported.mark_foreign(&act())?;
    let new = NewWorkspace { from: Some(imported.head), ..NewWorkspace::default() };
    Workspaces::of(store).create(&WorkspaceName::new("main")?, &new, &act())?;
    Ok(())
}

/// Seconds of both sides, measured in turns.
#[derive(Default)]
pub struct Beside {
    pub ours: Vec<f64>,
    pub theirs: Vec<f64>,
}

impl Beside {
    /// Adds the ratio of the medians as a figure.
    pub fn add(self, bench: &mut Bench, name: &str, bar: f64, input: &str, peer: &str) {
        let Self { ours, theirs } = self;
        let how = format!("{input}; seconds: {ours:.2?}, {peer}: {theirs:.2?}; ratio of medians");
        bench.add(name, (median(ours) / median(theirs), "x"), Bar::AtMost(bar), how);
    }
}

/// Removes a directory that may be missing.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
