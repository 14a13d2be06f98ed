//! Very many small files: does the cost stay a walk, does memory stay small, can it be stopped.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};

use crate::peers::Amalgam;

pub const FIGURES: &[&str] = &[FIRST, AGAIN, MEMORY, PROGRESS, STOP, LEFT];
const FIRST: &str = "capture, 500 k files / 50 k files, per file";
const AGAIN: &str = "capture again, 500 k files / 50 k files, per file";
const MEMORY: &str = "memory of the process, 500 k files";
const PROGRESS: &str = "first sign of progress";
const STOP: &str = "end after Ctrl-C";
const LEFT: &str = "names left in the directory by it";

const FILES_EACH: u64 = 250;

pub fn run(bench: &mut Bench) -> Result<()> {
    let (small, large) = bench.size((50_000, 500_000), (1_000, 10_000));
    let mut costs = Vec::new();
    for count in [small, large] {
        let directory = bench.directory(&format!("many-{count}"));
        make(&directory, count)?;
        let amalgam = Amalgam::new(bench.directory(&format!("many-store-{count}")))?;
        if count == large {
            stop(bench, &amalgam, &directory)?;
            amalgam.stop()?;
        }
        let first = match count == large {
            // It belongs to its workspace since it was stopped.
            true => amalgam.seconds(&directory, &["commit", "-q"])?,
            false => amalgam.seconds(&directory, &["init", "-q"])?,
        };
        let again = amalgam.seconds(&directory, &["commit", "-q"])?;
        costs.push((first, again, count));
        if count == large {
            let peak = amalgam.peak_memory()? as f64 / 1e6;
            let how =
                format!("peak of the background process after capture and capture again of {count} files of 40 bytes");
            bench.add(MEMORY, (peak, "MB"), Bar::AtMost(300.0), how);
        }
    }
    let [(first, again, few), (first_many, again_many, many)] = costs[..] else { unreachable!("two sizes") };
    let ratio = |small: f64, large: f64| (large / many as f64) / (small / few as f64);
    let how = format!("{few} files {first:.2} s, {many} files {first_many:.2} s");
    bench.add(FIRST, (ratio(first, first_many), "x"), Bar::AtMost(1.3), how);
    let how = format!("{few} files {again:.2} s, {many} files {again_many:.2} s; the start of the command included");
    bench.add(AGAIN, (ratio(again, again_many), "x"), Bar::AtMost(1.3), how);
    Ok(())
}

fn make(directory: &Path, files: u64) -> Result<()> {
    for group in 0..files.div_ceil(FILES_EACH) {
        let below = directory.join(format!("d{:03}/e{:03}", group / 50, group));
        fs::create_dir_all(&below)?;
        for file in 0..FILES_EACH {
            fs::write(
                below.join(format!("file-{file:03}.txt")),
                format!("{group:012} {file:012} some small contents\n"),
            )?;
        }
    }
    Ok(())
}

/// On a terminal of its own, so that there is a bar to be seen.
fn stop(bench: &mut Bench, amalgam: &Amalgam, directory: &Path) -> Result<()> {
    let plain = amalgam.command(directory, &["init"]);
    let line = format!("exec {} init", plain.get_program().display());
    let mut child = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"])
        .env("AMALGAM_STORE", &amalgam.store)
        .env("TERM", "xterm")
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let began = Instant::now();
    let mut output = child.stdout.take().expect("it is a pipe");
    let mut byte = [0];
    std::io::Read::read_exact(&mut output, &mut byte)?;
    let seen = began.elapsed().as_secs_f64();
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    std::thread::sleep(Duration::from_millis(700));
    let found = Command::new("pgrep").args(["--parent", &child.id().to_string()]).output()?;
    let id = String::from_utf8(found.stdout)?.trim().to_owned();
    let asked = Instant::now();
    Command::new("kill").args(["-INT", &id]).status()?;
    let status = child.wait()?;
    let took = asked.elapsed().as_secs_f64();
    let how = format!("`amalgam init` on a terminal, {:?}", status.code());
    bench.add(PROGRESS, (seen, "s"), Bar::AtMost(0.5), how.clone());
    bench.add(STOP, (took, "s"), Bar::AtMost(1.0), how);
    let left = fs::read_dir(directory)?
        .filter(|name| name.as_ref().is_ok_and(|name| !name.file_name().to_string_lossy().starts_with('d')));
    bench.add(LEFT, (left.count() as f64, ""), Bar::AtMost(0.0), "names that were not there before".to_owned());
    Ok(())
}
