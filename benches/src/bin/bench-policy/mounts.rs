//! Policies in mounts: warm walks by real programs, and a policy that changes under many mounts.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::machine::command_program;
use amalgam_benches::{Bar, Result, Samples, microseconds};

use crate::decisions::policy_text;

const FIND: &str = "warm `find` in a mount, 100 rules beside none";
const GREP: &str = "warm `grep -r` in a mount, 100 rules beside none";
const CHANGE: &str = "policy changed under 100 mounts: last stale answer";
const CUT: &str = "reads of permitted open files that failed meanwhile";

pub(crate) const FIGURES: &[&str] = &[FIND, GREP, CHANGE, CUT];

const RULES: usize = 100;
const AGENT: &str = "bot-7";
/// A file that the new policy hides, and one that it does not.
const HIDDEN: &str = "secret.txt";
const OPEN: &str = "open.txt";
/// How long answers are watched after the policy was changed.
const WATCH: Duration = Duration::from_secs(3);

/// A project directory whose store is served by the command. The process ends with the value.
struct Project {
    program: PathBuf,
    around: PathBuf,
}

impl Project {
    fn new(around: &Path, files: usize) -> Result<Self> {
        let program = command_program()?;
        let (runtime, source) = (around.join("runtime"), around.join("source"));
        fs::create_dir_all(&runtime)?;
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
        fs::create_dir_all(&source)?;
        for number in 0..files {
            let directory = source.join(format!("area{}/part{}", number % 37, number % 101));
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(format!("file{number}.rs")), format!("fn number_{number}() {{}}\n").repeat(40))?;
        }
        for name in [HIDDEN, OPEN] {
            fs::write(source.join(name), name)?;
        }
        let project = Self { program, around: around.to_owned() };
        project.run(&["init"])?;
        Ok(project)
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        let done = self.command().args(arguments).output()?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("amalgam {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr)).into()),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("AMALGAM_STORE", self.around.join("store")).env("XDG_RUNTIME_DIR", self.around.join("runtime"));
        command.env_remove("AMALGAM_LOG").current_dir(self.around.join("source"));
        command
    }

    /// Mounts this many forks.
    fn mount(&self, count: usize) -> Result<Vec<PathBuf>> {
        let template = self.around.join("mounts/{n}");
        let count_text = count.to_string();
        let mut arguments = vec!["fork", "-n", &count_text, "--agent", AGENT, "--backend", "fuse"];
        let template = template.to_str().ok_or("a path that is not text")?;
        arguments.extend(["--mount", template]);
        self.run(&arguments)?;
        let mut mounts =
            fs::read_dir(self.around.join("mounts"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        mounts.sort();
        match mounts.len() == count {
            true => Ok(mounts),
            false => Err(format!("{} mounts of {count}", mounts.len()).into()),
        }
    }

    fn set_policy(&self, text: Option<&str>) -> Result<()> {
        let Some(text) = text else { return self.run(&["policy", "set", "--none"]) };
        let file = self.around.join("policy.toml");
        fs::write(&file, text)?;
        self.run(&["policy", "set", file.to_str().ok_or("a path that is not text")?])
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        self.command().args(["stop", "--force"]).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
    }
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    walks(bench)?;
    change(bench)
}

fn timed(directory: &Path, words: &[&str]) -> Result<f64> {
    let begun = Instant::now();
    let status = Command::new(words[0]).args(&words[1..]).current_dir(directory).stdout(Stdio::null()).status()?;
    // `grep` exits with 1 if nothing matches.
    match status.code() {
        Some(0 | 1) => Ok(microseconds(begun.elapsed())),
        _ => Err(format!("{words:?} ended with {status}").into()),
    }
}

fn walks(bench: &mut Bench) -> Result<()> {
    eprintln!("walks of a mount");
    let (files, rounds, times) = bench.size((20_000, 4, 5), (500, 1, 2));
    let project = Project::new(&bench.directory("policy-walk"), files)?;
    let mount = project.mount(1)?.remove(0);
    let rules = policy_text(RULES)?;
    let programs: [(&str, &[&str]); 2] =
        [(FIND, &["find", ".", "-type", "f", "-size", "+1"]), (GREP, &["grep", "-r", "nothing has this", "."])];
    let mut taken: [[Vec<f64>; 2]; 2] = Default::default();
    // In turns: the machine's pace changes.
    for _ in 0..rounds {
        for (side, policy) in [None, Some(rules.as_str())].into_iter().enumerate() {
            project.set_policy(policy)?;
            for (program, (_, words)) in programs.iter().enumerate() {
                timed(&mount, words)?;
                for _ in 0..times {
                    taken[program][side].push(timed(&mount, words)?);
                }
            }
        }
    }
    for ((name, _), sides) in programs.iter().zip(taken) {
        let [without, with] = sides.map(Samples::new);
        let how = format!("{files} files; without: {}; with: {}", without.describe("us"), with.describe("us"));
        bench.add(name, (with.p50() / without.p50(), "x"), Bar::AtMost(1.1), how);
    }
    Ok(())
}

fn change(bench: &mut Bench) -> Result<()> {
    eprintln!("a policy that changes under mounts");
    let count = bench.size(100, 5);
    let project = Project::new(&bench.directory("policy-change"), 1_000)?;
    let mounts = project.mount(count)?;
    project.set_policy(Some(&format!("default = \"RW\"\n{}", policy_text(RULES)?.replace("default = \"R\"\n", ""))))?;
    let (over, failed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let begun = Instant::now();
    let (watched, set) = std::thread::scope(|scope| {
        let watchers: Vec<_> = mounts.iter().map(|mount| scope.spawn(|| watch(mount, &over, &failed, begun))).collect();
        std::thread::sleep(Duration::from_millis(500));
        let started = begun.elapsed();
        let set = project
            .set_policy(Some(&format!("default = \"RW\"\n[[rule]]\npaths = [\"{HIDDEN}\"]\nlevel = \"none\"\n")))
            .map(|()| (started, begun.elapsed()));
        std::thread::sleep(WATCH);
        over.store(true, Ordering::Relaxed);
        let watched: Result<Vec<_>> =
            watchers.into_iter().map(|watcher| watcher.join().map_err(|_| "a watcher failed")?).collect();
        (watched, set)
    });
    let ((started, returned), watched) = (set?, watched?);
    let last = watched.iter().max().copied().ok_or("no mount")?;
    if watched.iter().any(|seen| *seen < started) {
        return Err("a mount did not show the file before it was hidden".into());
    }
    if last >= returned + WATCH - Duration::from_millis(100) {
        return Err("a mount still shows the hidden file".into());
    }
    let how = format!(
        "{count} mounts; from the start of the command, which took {:.0} ms",
        microseconds(returned - started) / 1e3
    );
    bench.add(CHANGE, (microseconds(last.saturating_sub(started)) / 1e3, "ms"), Bar::AtMost(1_000.0), how);
    let how = format!("{count} open files, read all the time");
    bench.add(CUT, (failed.load(Ordering::Relaxed) as f64, ""), Bar::AtMost(0.0), how);
    Ok(())
}

/// Looks at the hidden file and reads the open one until all is over. Returns when the hidden one was last seen.
fn watch(mount: &Path, over: &AtomicBool, failed: &AtomicUsize, begun: Instant) -> Result<Duration> {
    let open = File::open(mount.join(OPEN))?;
    let hidden = mount.join(HIDDEN);
    let mut last = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        if fs::symlink_metadata(&hidden).is_ok() {
            last = begun.elapsed();
        }
        let mut bytes = [0; 16];
        if open.read_at(&mut bytes, 0).map_or(true, |count| &bytes[..count] != OPEN.as_bytes()) {
            failed.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(last)
}
