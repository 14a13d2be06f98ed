//! The machine: what it is, and what only it can tell or do. Linux alone.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Advice;
use rustix::thread::{CpuSet, Pid};

use crate::Result;

/// The machine in a line: processor, cores, memory, kernel, and the disk below a directory.
pub fn describe(directory: &Path) -> String {
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory_gib = kibibytes("/proc/meminfo", "MemTotal").unwrap_or(0) as f64 / f64::from(1 << 20);
    let disk = mount_of(directory).unwrap_or_else(|| "unknown disk".to_owned());
    format!("{processor}, {} cores, {memory_gib:.0} GiB, Linux {}, {disk}", cores(), kernel.trim())
}

/// How many threads can run at a time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn kibibytes(file: &str, name: &str) -> Option<u64> {
    field(file, name)?.split_whitespace().next()?.parse().ok()
}

/// The file system that a directory lies in: the longest mount point above it.
fn mount_of(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (source, point, kind) = (words.next()?, words.next()?, words.next()?);
        directory.starts_with(point).then(|| (point.len(), format!("{kind} on {source}")))
    });
    // Later mounts cover earlier ones at the same place.
    mounts.max_by_key(|(length, _)| *length).map(|(_, mount)| mount)
}

/// The most memory that this process has had at a time.
pub fn peak_memory_bytes() -> Result<u64> {
    Ok(kibibytes("/proc/self/status", "VmHWM").ok_or("the kernel does not tell VmHWM")? << 10)
}

/// Runs something with all threads of this process on one core, those that are there and those it starts.
pub fn on_one_core<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).ok_or("no core is allowed")?;
    let mut one = CpuSet::new();
    one.set(last);
    move_all_threads(&one)?;
    let done = run();
    move_all_threads(&allowed)?;
    done
}

fn move_all_threads(cores: &CpuSet) -> Result<()> {
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match rustix::thread::sched_setaffinity(Some(task.ok_or("the kernel names no thread")?), cores) {
            // A thread may end at any time.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The processor time that this process has used, in seconds; exact to a hundredth.
pub fn cpu_seconds() -> f64 {
    cpu_ticks().unwrap_or(0) as f64 / 100.0
}

/// Waits until the work that this process does in the background has come to an end; a minute at most.
pub fn settle() {
    const LOOK: Duration = Duration::from_millis(250);
    let used = || cpu_ticks().unwrap_or(0);
    for _ in 0..240 {
        let before = used();
        std::thread::sleep(LOOK);
        if used() - before <= 1 {
            break;
        }
    }
}

/// In hundredths of a second, which the kernel has promised to everybody.
fn cpu_ticks() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Empties the kernel's cache of the files below a directory, and says by which means.
pub fn drop_caches(directory: &Path) -> Result<&'static str> {
    for file in files_below(directory)? {
        let file = File::open(file)?;
        // Dirty pages would stay.
        file.sync_data()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() { Ok("drop_caches") } else { Ok("fadvise DONTNEED") }
}

/// How much more the disk below a directory can take.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(found.f_bavail * found.f_frsize)
}

/// Every regular file below a directory, sorted by path.
pub fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the path of the `amalgam` program, which is built into the same directory as the benchmarks.
pub fn command_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("amalgam");
    match program.is_file() {
        true => Ok(program),
        false => {
            let program = program.display();
            Err(format!("{program} is not there; `cargo build --release -p amalgam-cli` first").into())
        }
    }
}
