//! A push of one changed file of a large tree, by the command, to a server that has the rest.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::machine::command_program;
use amalgam_benches::served::{Served, runtime};
use amalgam_benches::{Bar, Result, Samples, linux, microseconds};

pub const FIGURES: &[&str] = &["push of one changed file of the Linux tree, p50"];

/// A store of the command's own, and a server that it knows. The background process ends with the value.
struct Laptop {
    program: PathBuf,
    around: PathBuf,
    server: String,
    key: String,
}

impl Laptop {
    fn new(around: &Path, served: &Served) -> Result<Self> {
        let program = command_program()?;
        let runtime = around.join("runtime");
        fs::create_dir_all(&runtime)?;
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
        let server = format!("http://{}", served.address);
        Ok(Self { program, around: around.to_owned(), server, key: served.key.clone() })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env("AMALGAM_STORE", self.around.join("store")).env("XDG_RUNTIME_DIR", self.around.join("runtime"));
        command.env("XDG_CONFIG_HOME", self.around.join("config")).env_remove("AMALGAM_LOG");
        command.env("AMALGAM_API_KEY", &self.key).current_dir(&self.around).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        let done = self.command(arguments).output()?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("amalgam {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr)).into()),
        }
    }
}

impl Drop for Laptop {
    fn drop(&mut self) {
        self.command(&["stop", "--force"]).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
    }
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let (directory, times) = (bench.directory("push"), bench.size(15, 3));
    let tree = bench.size(linux::tree()?, linux::tree()?.join("init"));
    let copy = directory.join("laptop/tree");
    fs::create_dir_all(directory.join("laptop"))?;
    let copied = Command::new("cp").arg("-a").arg(&tree).arg(&copy).status()?;
    if !copied.success() {
        return Err("the Linux tree could not be copied".into());
    }
    let runtime = runtime()?;
    let served = runtime.block_on(Served::start(&directory.join("server")))?;
    let figures = pushes(&Laptop::new(&directory.join("laptop"), &served)?, &copy, times);
    runtime.block_on(served.stop())?;
    let (first, taken) = figures?;
    let how = format!("the command, with its start: {}; the first push took {first:.1} s", taken.describe("ms"));
    bench.add(FIGURES[0], (taken.p50(), "ms"), Bar::AtMost(100.0), how);
    Ok(())
}

/// The seconds of the first push, and the milliseconds of later ones.
fn pushes(laptop: &Laptop, copy: &Path, times: usize) -> Result<(f64, Samples)> {
    let path = copy.to_str().ok_or("a path that is not text")?;
    laptop.run(&["-C", path, "init"])?;
    let push = ["-C", path, "--server", &laptop.server, "push", "--allow-secrets"];
    let start = Instant::now();
    laptop.run(&push)?;
    let first = start.elapsed().as_secs_f64();
    let (changed, mut taken) = (copy.join("changed.c"), Vec::new());
    for number in 0..times {
        fs::write(&changed, format!("int changed = {number};\n").repeat(100))?;
        laptop.run(&["-C", path, "commit", "-m", "one file"])?;
        let start = Instant::now();
        laptop.run(&push)?;
        taken.push(microseconds(start.elapsed()) / 1e3);
    }
    Ok((first, Samples::new(taken)))
}
