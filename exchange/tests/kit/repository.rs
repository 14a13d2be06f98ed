//! Commands of git for tests.

#![allow(dead_code, reason = "each suite uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::listing::run;

/// `git` in a repository, with fixed identities and without configuration of the machine.
pub fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for (key, value) in [
        ("GIT_AUTHOR_NAME", "Ann Author"),
        ("GIT_AUTHOR_EMAIL", "ann@example.org"),
        ("GIT_AUTHOR_DATE", "1600000000 +0200"),
        ("GIT_COMMITTER_NAME", "Carl Committer"),
        ("GIT_COMMITTER_EMAIL", "carl@example.org"),
        ("GIT_COMMITTER_DATE", "1600000100 -0330"),
    ] {
        command.env(key, value);
    }
    command
}

/// Output as trimmed text.
pub fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).trim().to_owned()
}

/// The commit of a name.
pub fn rev(repository: &Path, name: &str) -> String {
    text(run(git(repository).args(["rev-parse", name])))
}

/// Feeds a stream to `git fast-import`.
pub fn feed(repository: &Path, stream: &[u8]) {
    use std::io::Write;
    let mut command = git(repository);
    command.args(["fast-import", "--quiet", "--force", "--date-format=raw-permissive"]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("git runs");
    child.stdin.take().expect("a pipe").write_all(stream).expect("written");
    assert!(child.wait().expect("ended").success());
}

/// A bare repository.
pub fn new_repository(home: &Path, name: &str) -> PathBuf {
    let path = home.join(name);
    run(git(home).args(["init", "-q", "--bare", "-b", "main"]).arg(&path));
    path
}
