//! The sandbox of a rule's command: `bwrap` with the system's programs, the tree, and nothing else of the machine.
//!
//! The command sees `/usr`, `/bin`, `/sbin`, `/lib*`, what the dynamic linker and `update-alternatives` have in `/etc`, the toolchain
//! directories of the settings, all read-only; the tree at `/tree`, which it may write; a new `/tmp`, `/dev` and `/proc`. It sees no
//! home, no `/run`, no `/var`, and so no Unix socket of the machine; its network, process ids, IPC and host name are its own.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that makes the sandbox.
pub(super) const BWRAP: &str = "bwrap";
/// The hint where the sandbox is not available.
pub(super) const BWRAP_HINT: &str = "commands of rules run in it only: install bubblewrap";
/// Where the tree is in the sandbox.
const TREE: &str = "/tree";
/// The home directory in the sandbox.
const HOME: &str = "/tmp/home";
/// The most that `/tmp` in the sandbox holds.
const TMP_BYTES_MAX: &str = "1073741824";
/// The paths of the machine that are visible in the sandbox, read-only, if they exist.
const SYSTEM: [&str; 12] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The shell script that sets limits for itself and everything it starts, then executes the command: CPU seconds of a process,
/// address space in KiB, size of a file in blocks of 512 or 1,024 bytes, open files, core dumps, and processes of the sandbox. A
/// limit that is lower already stays.
///
/// Set here and not before: the kernel counts the processes of a user namespace only against limits that were set in it.
const LIMITED: &str = "\
    for limit in '-t 600' '-v 16777216' '-f 4194304' '-n 4096' '-c 0'; do ulimit $limit 2>/dev/null; done; \
    ulimit -u 1024 2>/dev/null || ulimit -p 1024 2>/dev/null; \
    exec sh -c \"$1\"";

/// Returns the command line that runs a shell command in a sandbox around a directory.
pub(super) fn words(tree: &Path, command: &str, toolchain: &[PathBuf]) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |more: &[&OsStr]| words.extend(more.iter().map(|word| (*word).to_owned()));
    let plain = |text: &'static str| OsStr::new(text);
    add(&["--die-with-parent", "--new-session", "--unshare-all", "--cap-drop", "ALL", "--clearenv"].map(plain));
    // Files of /proc/sys belong to root, so a root without capabilities could write them.
    add(&["--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc"].map(plain));
    if knows_sizes() {
        add(&["--size", TMP_BYTES_MAX].map(plain));
    }
    add(&["--tmpfs", "/tmp", "--dir", HOME].map(plain));
    for path in SYSTEM {
        add(&["--ro-bind-try", path, path].map(plain));
    }
    for path in toolchain {
        add(&[plain("--ro-bind-try"), path.as_os_str(), path.as_os_str()]);
    }
    add(&[plain("--bind"), tree.as_os_str(), plain(TREE)]);
    add(&["--remount-ro", "/", "--chdir", TREE].map(plain));
    add(&[plain("--setenv"), plain("PATH"), &search_path(toolchain)]);
    for (name, value) in [("HOME", HOME), ("LANG", "C.UTF-8"), ("TMPDIR", "/tmp"), ("SHELL", "/bin/sh")] {
        add(&["--setenv", name, value].map(plain));
    }
    add(&["sh", "-c", LIMITED, "sh"].map(plain));
    add(&[OsStr::new(command)]);
    words.insert(0, BWRAP.into());
    words
}

/// Returns the `PATH` of the sandbox: the toolchain directories first, or their `bin` if they have one.
fn search_path(toolchain: &[PathBuf]) -> OsString {
    let mut path = OsString::new();
    for directory in toolchain {
        let programs = directory.join("bin");
        path.push(if programs.is_dir() { &programs } else { directory });
        path.push(":");
    }
    path.push(PATH);
    path
}

/// Returns whether this `bwrap` can limit the size of a new `/tmp` (from version 0.7 on).
fn knows_sizes() -> bool {
    let told = Command::new(BWRAP).arg("--help").stdin(Stdio::null()).output();
    told.is_ok_and(|told| {
        [told.stdout, told.stderr].iter().any(|text| String::from_utf8_lossy(text).contains("--size"))
    })
}
