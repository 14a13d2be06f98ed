//! The command as a user without any privilege runs it, with a store and directories of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Whom the tests are when they are run by root: nobody.
const NOBODY: u32 = 65_534;

/// A place for one test. The process it started ends with it.
pub struct Kit {
    place: TempDir,
}

/// What a command came to.
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Fails the test unless the command ended so.
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "\n--- out\n{}\n--- err\n{}", self.out, self.err);
        self
    }

    /// The lines of JSON it printed.
    pub fn json(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The command where everybody may run it: the build directory may be one that only root can enter.
fn binary() -> &'static Path {
    static COPY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        let place = open_directory();
        let path = place.path().join("amalgam");
        fs::copy(env!("CARGO_BIN_EXE_amalgam"), &path).expect("the command is copied");
        (place, path)
    });
    path
}

fn open_directory() -> TempDir {
    let place = TempDir::new().expect("a directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    place
}

impl Kit {
    pub fn new() -> Self {
        let place = open_directory();
        let kit = Self { place };
        for name in ["run", "work"] {
            fs::create_dir(kit.path(name)).expect("a directory");
        }
        fs::set_permissions(kit.path("run"), fs::Permissions::from_mode(0o700)).expect("it is ours");
        kit.own(Path::new(""));
        kit
    }

    /// A path in this place.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.path().join(name)
    }

    /// The directory that is worked in.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// Gives a path of this place, and all below it, to the user that runs the command.
    pub fn own(&self, path: &Path) {
        fn give(path: &Path) {
            let _ = std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY));
            if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                for below in fs::read_dir(path).expect("it can be listed") {
                    give(&below.expect("a name").path());
                }
            }
        }
        if is_root() {
            chown(self.place.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
            give(&self.path(path));
        }
    }

    /// Writes a file of the work directory.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        self.write_unowned(path, text);
        self.own(Path::new("work"));
    }

    /// Writes one of many files; they are given to the user that runs the command afterwards.
    pub fn write_unowned(&self, path: &str, text: impl AsRef<[u8]>) {
        let file = self.work().join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
        fs::write(&file, text).expect("a file");
    }

    /// Any program as that user.
    pub fn program(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        let mut command = match is_root() {
            true => {
                let id = NOBODY.to_string();
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--bounding-set=-all"]);
                command.arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.place.path())
            .env("USER", "tester")
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("AMALGAM_STORE", self.path("store"))
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// The command, in the work directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(binary());
        command.args(arguments);
        command
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &[&str]) -> Done {
        done(&self.command(arguments).output().expect("the command runs"))
    }

    /// Runs it in another directory.
    pub fn run_in(&self, directory: &Path, arguments: &[&str]) -> Done {
        done(&self.command(arguments).current_dir(directory).output().expect("the command runs"))
    }

    /// The number of the process that holds the store.
    pub fn process(&self) -> Option<i32> {
        let told = self.run(&["doctor", "--json"]);
        let id = told.json().iter().find_map(|line| line.get("process_id")?.as_i64())?;
        i32::try_from(id).ok()
    }

    /// Every path of a directory with its contents: what a test compares.
    pub fn tree(&self, directory: &Path) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let mut open = vec![directory.to_owned()];
        while let Some(here) = open.pop() {
            for name in fs::read_dir(&here).expect("it can be listed") {
                let path = name.expect("a name").path();
                let text = path.strip_prefix(directory).expect("below it").display().to_string();
                let kind = path.symlink_metadata().expect("it is there").file_type();
                if kind.is_dir() {
                    open.push(path);
                    found.push((text, b"a directory".to_vec()));
                } else if kind.is_symlink() {
                    let target = fs::read_link(&path).expect("a symlink");
                    found.push((text, format!("-> {}", target.display()).into_bytes()));
                } else {
                    found.push((text, fs::read(&path).expect("it can be read")));
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        self.run(&["stop", "--force"]);
        // Somebody without privilege cannot remove what it made unreadable.
        let mut open = vec![self.place.path().to_owned()];
        while let Some(here) = open.pop() {
            let _ = fs::set_permissions(&here, fs::Permissions::from_mode(0o755));
            let names = fs::read_dir(&here).into_iter().flatten().flatten();
            open.extend(
                names.map(|name| name.path()).filter(|path| path.symlink_metadata().is_ok_and(|it| it.is_dir())),
            );
        }
    }
}

fn done(output: &Output) -> Done {
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Ends a process at once, and waits until it is gone.
pub fn kill(id: i32) {
    let id = rustix::process::Pid::from_raw(id).expect("a process has a number");
    let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
    let began = Instant::now();
    while Path::new(&format!("/proc/{}/fd", id.as_raw_nonzero())).read_dir().is_ok_and(|mut open| open.next().is_some())
    {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not go");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for a child, and no longer than this.
pub fn wait(child: &mut Child, at_most: Duration) -> Option<i32> {
    let began = Instant::now();
    while began.elapsed() < at_most {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            return Some(status.code().unwrap_or(-1));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
