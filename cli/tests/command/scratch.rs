//! A place for one test: a project, a home for the store, a runtime directory; the background process ends with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A place for one test.
pub struct Scratch {
    around: TempDir,
}

impl Scratch {
    /// An empty project.
    pub fn new() -> Self {
        let around = tempfile::tempdir().expect("a temporary directory");
        let scratch = Self { around };
        for name in ["project", "runtime"] {
            std::fs::create_dir(scratch.path().join(name)).expect("made");
        }
        use std::os::unix::fs::PermissionsExt as _;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(scratch.path().join("runtime"), private).expect("private");
        scratch
    }

    /// Everything lies below this, without symlinks.
    pub fn path(&self) -> PathBuf {
        self.around.path().canonicalize().expect("it is there")
    }

    /// The project.
    pub fn project(&self) -> PathBuf {
        self.path().join("project")
    }

    /// A command of the shell in the project, with `amalgam` in its path.
    pub fn shell(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_amalgam"));
        let folder = program.parent().expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.project());
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "PAGER", "AMALGAM_PAGER", "AMALGAM_LOG", "XDG_DATA_HOME"]
            .into_iter()
            .chain(["AMALGAM_SERVER", "AMALGAM_API_KEY", "AMALGAM_CA", "AMALGAM_DATA", "API_KEY"])
        {
            command.env_remove(name);
        }
        command.env("PATH", format!("{}:{path}", folder.display()));
        command.env("AMALGAM_STORE", self.path().join("store")).env("AMALGAM_AUTHOR", "ann");
        command.env("XDG_CONFIG_HOME", self.path().join("config"));
        command.env("XDG_RUNTIME_DIR", self.path().join("runtime")).env("TZ", "UTC").env("LC_ALL", "C");
        command
    }

    /// Runs a command of the shell that must succeed; what it prints.
    pub fn run(&self, line: &str) -> String {
        let done = self.output(line);
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    }

    /// Runs a command of the shell.
    pub fn output(&self, line: &str) -> Output {
        self.shell(line).output().expect("a shell")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A store that was never made has no process.
        let _ = self.shell("amalgam stop --force").current_dir(self.path()).output();
    }
}

/// Whether the user that runs the tests can mount; says so if not.
pub fn can_mount() -> bool {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let helper = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join("fusermount3").is_file());
    let can = device.is_ok() && (rustix::process::geteuid().is_root() || helper);
    let why = "/dev/fuse cannot be opened, or fusermount3 is not installed (package fuse3)";
    amalgam_test_support::has_or_skip("fuse", can, why)
}
