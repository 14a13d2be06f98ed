//! Both halves of the serving process: it mounts, commits and goes elsewhere as lines of its input say, and answers each with a
//! line. It ends with its input, and takes its mounts along.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Instant, SystemTime};

use amalgam_benches::Result;
use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SnapshotId, Store, Time};
use amalgam_fuse::{Mount, MountOptions};
use amalgam_view::{View, ViewOptions};

/// The word that makes this program the serving one.
pub const WORD: &str = "serve";

#[expect(clippy::disallowed_methods, reason = "what is mounted shows the time that it is")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

struct Served {
    view: View,
    mount: Mount,
}

struct Server {
    home: PathBuf,
    workspaces: Workspaces,
    mounts: HashMap<String, Served>,
}

/// Serves the store in a directory.
pub fn serve(home: &str) -> Result<()> {
    let home = PathBuf::from(home);
    let store = Store::open(home.join("store"))?;
    let mut server = Server { workspaces: Workspaces::of(&store), home, mounts: HashMap::new() };
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line?;
        let begun = Instant::now();
        match server.obey(&line) {
            Ok(said) => println!("{} {said}", begun.elapsed().as_micros()),
            Err(error) => println!("failed {error}"),
        }
    }
    server.mounts.into_values().try_for_each(end)
}

fn end(served: Served) -> Result<()> {
    if !served.mount.has_ended() {
        served.mount.unmount()?;
    }
    Ok(served.view.close()?)
}

impl Server {
    fn obey(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["mount", name, directory] => self.mount(name, Path::new(directory)),
            ["unmount", name] => {
                let served = self.mounts.remove(name).ok_or("not mounted")?;
                end(served).map(|()| String::new())
            }
            ["fork", from, into] => {
                let into = WorkspaceName::new(into)?;
                self.workspaces.fork(&WorkspaceName::new(from)?, &[into], &OperationContext::new("bench", now()))?;
                Ok(String::new())
            }
            ["commit", name] => {
                let view = &self.mounts.get(name).ok_or("not mounted")?.view;
                let (name, change) = (WorkspaceName::new(name)?, Change::new("bench"));
                let act = OperationContext::new("bench", now()).buffered();
                Ok(view.commit(&self.workspaces, &name, &change, &act, "commit")?.snapshot.to_string())
            }
            ["go", name, snapshot] => {
                let view = &self.mounts.get(name).ok_or("not mounted")?.view;
                let to = SnapshotId::from_hex(snapshot).ok_or("not an id")?;
                Ok(view.restore(to, view.head())?.1.changed.to_string())
            }
            _ => Err(format!("unknown: {line}").into()),
        }
    }

    fn mount(&mut self, name: &str, directory: &Path) -> Result<String> {
        let workspace = WorkspaceName::new(name)?;
        let options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
        let tree = self.workspaces.open(&workspace)?;
        let (view, _) = View::open(tree, &self.home.join("views").join(name), options)?;
        let options = MountOptions { allow_other: true, ..MountOptions::default() };
        let mount = Mount::at(&view, directory, &options)?;
        self.mounts.insert(name.to_owned(), Served { view, mount });
        Ok(String::new())
    }
}

/// A serving process, from outside. Ended, with all its mounts, when it is dropped.
pub struct Serving {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    mounted: Vec<PathBuf>,
}

impl Serving {
    /// Starts one over the store in a directory.
    pub fn start(home: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORD)
            .arg(home)
            // As the command starts its background process.
            .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=8388608:glibc.malloc.trim_threshold=4194304")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("its output is a pipe")?).lines();
        let mut serving = Self { child, input, output, mounted: Vec::new() };
        match serving.line()?.as_str() {
            "ready" => Ok(serving),
            other => Err(format!("the serving process says {other}").into()),
        }
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.output.next().ok_or("the serving process ended")??)
    }

    /// Tells it something. How long it took, in seconds, and what it says.
    pub fn ask(&mut self, what: &str) -> Result<(f64, String)> {
        writeln!(self.input.as_mut().ok_or("it was ended")?, "{what}")?;
        let answer = self.line()?;
        let (took, said) = answer.split_once(' ').ok_or("an answer has two words")?;
        let took: f64 = took.parse().map_err(|_| format!("{what}: {answer}"))?;
        Ok((took / 1e6, said.to_owned()))
    }

    /// Mounts a workspace, and returns the seconds until its root could be listed.
    pub fn mount(&mut self, name: &str, directory: &Path) -> Result<f64> {
        std::fs::create_dir_all(directory)?;
        let begun = Instant::now();
        self.ask(&format!("mount {name} {}", directory.display()))?;
        self.mounted.push(directory.to_owned());
        let names = std::fs::read_dir(directory)?.count();
        let took = begun.elapsed().as_secs_f64();
        if names == 0 { Err(format!("{name} is empty").into()) } else { Ok(took) }
    }

    /// Unmounts a workspace.
    pub fn unmount(&mut self, name: &str) -> Result<()> {
        self.ask(&format!("unmount {name}")).map(drop)
    }

    /// The memory that it has now, in bytes.
    pub fn memory_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kilobytes.ok_or("the kernel does not tell VmRSS")? << 10)
    }

    /// Keeps all its threads on one core, or lets them go anywhere.
    pub fn pin(&self, cores: &str) -> Result<()> {
        let mut command = Command::new("taskset");
        command.args(["--all-tasks", "--cpu-list", "--pid", cores, &self.child.id().to_string()]);
        let done = command.stdout(Stdio::null()).status()?;
        if done.success() { Ok(()) } else { Err("taskset failed".into()) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.input = None;
        // It unmounts in order and ends; should it not be able to, nothing stays behind all the same.
        let ended = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            matches!(self.child.try_wait(), Ok(Some(_)))
        });
        if !ended {
            self.child.kill().ok();
            self.child.wait().ok();
        }
        for directory in &self.mounted {
            Command::new("umount").arg("--lazy").arg(directory).stderr(Stdio::null()).status().ok();
        }
    }
}
