//! Both halves of a mount in a process of its own: the child that mounts a workspace and serves it, and the parent's handle on
//! it. A mount in the process that uses it would wait for itself when that process stops, and could not be killed.
//!
//! The child is told what to do by lines on its standard input and answers each with one line. What a mount leaves behind, its
//! parent's guard takes away: lazily, so that nothing can hang on it.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use amalgam_engine::object::Owner;
use amalgam_engine::reference::RefName;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SnapshotId, Store, Time};
use amalgam_fuse::{Mount, MountOptions};
use amalgam_gc::{CollectOptions, collect};
use amalgam_view::{View, ViewOptions};

/// How the words of a child are to be written.
pub const USAGE: &str =
    "mounter STORE WORKSPACE DIRECTORY [--read-only] [--writeback] [--beside] [--attended] [--threads N]";
/// How often what happens beside a mount happens.
const BESIDE_EVERY: Duration = Duration::from_millis(150);
/// Forks that are kept at a time.
const FORKS: u64 = 4;
/// One in so many turns collects.
const COLLECT_EVERY: u64 = 8;
const UNMOUNT_WITHIN: Duration = Duration::from_secs(20);

type Failure = Box<dyn std::error::Error>;

/// What a child is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The store's directory, made if need be.
    pub store: PathBuf,
    /// The workspace, made if need be.
    pub workspace: String,
    /// Where to mount.
    pub directory: PathBuf,
    /// Shows the workspace's head, and refuses changes.
    pub read_only: bool,
    /// The kernel may hold writes back.
    pub writeback: bool,
    /// Commits, forks and collects all the time.
    pub beside: bool,
    /// Takes commands, and ends with its input.
    pub attended: bool,
    /// How many threads do what may take long; as many as usual without a number.
    pub threads: Option<usize>,
}

impl Orders {
    /// The usual ones.
    pub fn new(store: &Path, workspace: &str, directory: &Path) -> Self {
        Self {
            store: store.to_owned(),
            workspace: workspace.to_owned(),
            directory: directory.to_owned(),
            ..Self::default()
        }
    }

    /// Reads them from words.
    pub fn parse(words: &[String]) -> Option<Self> {
        let [store, workspace, directory, rest @ ..] = words else { return None };
        let mut orders = Self::new(Path::new(store), workspace, Path::new(directory));
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "--read-only" => orders.read_only = true,
                "--writeback" => orders.writeback = true,
                "--beside" => orders.beside = true,
                "--attended" => orders.attended = true,
                "--threads" => orders.threads = Some(rest.next()?.parse().ok()?),
                _ => return None,
            }
        }
        Some(orders)
    }

    /// The same as words.
    pub fn words(&self) -> Vec<String> {
        let mut words =
            vec![self.store.display().to_string(), self.workspace.clone(), self.directory.display().to_string()];
        let flags = [
            (self.read_only, "--read-only"),
            (self.writeback, "--writeback"),
            (self.beside, "--beside"),
            (self.attended, "--attended"),
        ];
        words.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, word)| word.to_owned()));
        if let Some(threads) = self.threads {
            words.extend(["--threads".to_owned(), threads.to_string()]);
        }
        words
    }
}

#[expect(clippy::disallowed_methods, reason = "what is mounted shows the time that it is")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

fn act() -> OperationContext {
    OperationContext::new("mounter", now())
}

/// Whether this machine lets this process mount; reports a skipped test if not.
pub fn can_mount() -> bool {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let can = super::powercut::is_root() && device.is_ok();
    amalgam_test_support::has_or_skip("fuse", can, "mounting needs root and /dev/fuse here")
}

/// Mounts as ordered and serves until somebody unmounts it or the input ends. `tell` gets the lines that the parent reads.
pub fn serve(orders: &Orders, tell: &(dyn Fn(String) + Sync)) -> Result<(), Failure> {
    std::fs::create_dir_all(&orders.store)?;
    let store = Store::open(orders.store.join("store"))?;
    let served = Served::open(&store, orders)?;
    let options = MountOptions {
        allow_other: true,
        privileged: true,
        writeback: orders.writeback,
        threads: orders.threads.unwrap_or(MountOptions::default().threads),
        ..MountOptions::default()
    };
    let mount = Mount::at(&served.view, &orders.directory, &options)?;
    tell("mounted".to_owned());
    let ended = Arc::new(AtomicBool::new(false));
    if orders.attended {
        let (served, ended) = (served.clone(), Arc::clone(&ended));
        std::thread::spawn(move || served.attend(&ended));
    }
    let mut turn = 0;
    while !mount.has_ended() && !ended.load(Ordering::Relaxed) {
        std::thread::sleep(if orders.beside { BESIDE_EVERY } else { Duration::from_millis(50) });
        if orders.beside {
            served.beside(turn)?;
            turn += 1;
        }
        if served.view.is_checkpoint_due() {
            served.checkpoint()?;
        }
    }
    if !mount.has_ended() {
        mount.unmount()?;
    }
    served.view.close()?;
    tell("ended".to_owned());
    Ok(())
}

/// A workspace that is being served.
#[derive(Clone)]
struct Served {
    view: View,
    workspaces: Workspaces,
    name: WorkspaceName,
}

impl Served {
    fn open(store: &Store, orders: &Orders) -> Result<Self, Failure> {
        let workspaces = Workspaces::of(store);
        let name = WorkspaceName::new(&orders.workspace)?;
        if workspaces.find(&name)?.is_none() {
            workspaces.create(&name, &NewWorkspace::default(), &act())?;
        }
        let mut options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
        options.journaled_commit = workspaces.get(&name)?.journaled;
        let view = if orders.read_only {
            let head = workspaces.get(&name)?.head.ok_or("an empty workspace has no snapshot to show")?;
            View::of_snapshot(store, head, options)?
        } else {
            View::open(workspaces.open(&name)?, &orders.store.join("views").join(name.as_str()), options)?.0
        };
        Ok(Self { view, workspaces, name })
    }

    fn commit(&self) -> Result<SnapshotId, Failure> {
        let change = Change::new("while mounted");
        Ok(self.view.commit(&self.workspaces, &self.name, &change, &act(), "commit")?.snapshot)
    }

    fn checkpoint(&self) -> Result<(), Failure> {
        let reference = RefName::new(format!("view/{}", self.name.as_str()))?;
        Ok(self.view.checkpoint(&reference, &act())?)
    }

    /// What happens beside a mount in a turn: a commit, a fork that takes the place of an old one, now and then a collection.
    fn beside(&self, turn: u64) -> Result<(), Failure> {
        if turn % 3 == 2 {
            self.checkpoint()?;
        } else {
            self.commit()?;
        }
        let fork = WorkspaceName::new(format!("fork-{}", turn % FORKS))?;
        if self.workspaces.find(&fork)?.is_some() {
            self.workspaces.delete(&fork, &act())?;
        }
        self.workspaces.fork(&self.name, std::slice::from_ref(&fork), &act())?;
        if turn % COLLECT_EVERY == COLLECT_EVERY - 1 {
            collect(self.workspaces.store(), &CollectOptions::default(), &mut |_| ControlFlow::Continue(()))?;
        }
        Ok(())
    }

    /// Does what the lines of the input say. The end of the input is the end of the mount.
    fn attend(&self, ended: &AtomicBool) {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { break };
            let answer = self.obey(&line).unwrap_or_else(|error| format!("failed {error}"));
            let mut out = std::io::stdout().lock();
            if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
    }

    fn obey(&self, line: &str) -> Result<String, Failure> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let begun = Instant::now();
        let done = |what: String| format!("{what} {}", begun.elapsed().as_micros());
        Ok(match word {
            "commit" => done(self.commit()?.to_string()),
            "checkpoint" => done(self.checkpoint().map(|()| "done".to_owned())?),
            "go" => {
                let to = SnapshotId::from_hex(rest).ok_or("not an id of a snapshot")?;
                let (_, restored) = self.view.restore(to, self.view.head())?;
                done(restored.changed.to_string())
            }
            "inodes" => self.view.inodes().to_string(),
            _ => return Err(format!("unknown word {word}").into()),
        })
    }
}

/// A mount in a child process. Taken away when it goes, however that comes.
pub struct Mounted {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    directory: PathBuf,
    ended: bool,
}

impl Mounted {
    /// Starts `program` with the orders as its last words, and waits until it has mounted.
    pub fn start(mut program: Command, orders: &Orders) -> Self {
        let orders = Orders { attended: true, ..orders.clone() };
        std::fs::create_dir_all(&orders.directory).expect("the directory is the test's own");
        let mut child = program
            .args(orders.words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the mounter starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut mounted = Self { child, input, output, directory: orders.directory, ended: false };
        assert_eq!(mounted.line(), "mounted");
        mounted
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        match self.output.next() {
            Some(Ok(line)) => line,
            other => panic!("the mounter says nothing: {other:?}, {:?}", self.child.wait()),
        }
    }

    /// Tells it something; its answer. Panics when it failed.
    pub fn ask(&mut self, what: &str) -> String {
        writeln!(self.input.as_mut().expect("it is attended"), "{what}").expect("it listens");
        let answer = self.line();
        assert!(!answer.starts_with("failed"), "{what}: {answer}");
        answer
    }

    /// Commits; the snapshot.
    pub fn commit(&mut self) -> String {
        self.ask("commit").split(' ').next().expect("an answer has words").to_owned()
    }

    /// Kills it as `kill -9` does, and takes away the dead mount.
    pub fn kill(mut self) {
        self.child.kill().expect("it is our child and runs");
        self.child.wait().expect("it was killed");
        self.clear();
    }

    /// Ends it in an orderly way. Panics when it does not end, or not well.
    pub fn end(mut self) {
        self.input = None;
        let end = Instant::now() + UNMOUNT_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                assert!(status.success(), "the mounter ended with {status}");
                break;
            }
            assert!(Instant::now() < end, "the mounter does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.ended = true;
        // An orderly end has unmounted already; then this fails, and that is well.
        Command::new("umount").arg("--lazy").arg(&self.directory).stderr(Stdio::null()).status().ok();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.ended {
            self.child.kill().ok();
            self.child.wait().ok();
            self.clear();
        }
    }
}
