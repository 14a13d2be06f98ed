//! The arguments that make bubblewrap start an agent in namespaces of its own.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use crate::runtime::{HOME, Network, StartSpec};

/// The program name of bubblewrap.
pub(crate) const BWRAP: &str = "bwrap";
/// Directory in the sandbox with the socket and the secret of the agent.
pub(crate) const LINK: &str = "/run/amalgam/link";
/// Where the agent writes secrets of commands, in memory.
pub(crate) const SECRETS: &str = "/run/amalgam/secrets";
pub(crate) const SECRETS_BYTES_MAX: &str = "4194304";
/// Where the agent is.
pub(crate) const AGENT: &str = "/run/amalgam/agent";
/// Read-only in the sandbox, where the machine has them.
const SYSTEM: [&str; 13] = [
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
    "/etc/ssl/certs",
];
/// Files of a sandbox with a network.
const NETWORK: [&str; 3] = ["/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services"];
/// The id of the user and the group in the sandbox.
const USER: &str = "1000";
/// Size limit of a directory in memory.
pub(crate) const TMPFS_BYTES_MAX: &str = "1073741824";
/// Target of the symlink `/tmp`: a directory in the home, so that both are one mount. See [`crate::runtime::TEMPORARY_DIRECTORY`].
const TMP_TARGET: &str = "sandbox/.tmp";
/// Directories of programs of the system.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The directory of programs that were installed into the home. It comes first in `PATH`.
pub(crate) const HOME_PROGRAMS: &str = "/sandbox/.local/bin";
/// Where `npm install -g` installs: into the home, as `pip install --user` does. The home forks with the sandbox.
pub(crate) const NPM_PREFIX: (&str, &str) = ("NPM_CONFIG_PREFIX", "/sandbox/.local");

/// Directories that commands may write beside the workspace and the home.
const WRITABLE: [&str; 2] = ["/dev", SECRETS];

/// The operations that Landlock restricts in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// Nothing: the kernel has none.
    None,
    /// Signals and abstract sockets.
    Scope,
    /// Writes outside of the writable directories, too.
    Writes,
}

/// Returns the directories that the commands of a sandbox may write, separated by colons, for the agent.
fn writable(spec: &StartSpec) -> String {
    let workspace = (!spec.is_read_only).then_some("/workspace");
    let all: Vec<_> = workspace.into_iter().chain([HOME]).chain(WRITABLE).collect();
    all.join(":")
}

/// Files that name the user, made in the runtime's directory of a sandbox.
pub(crate) const ETC: [(&str, &str); 3] = [
    ("passwd", "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000::/sandbox:/bin/sh\n"),
    ("group", "root:x:0:\nsandbox:x:1000:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
];

/// An entry of a root directory that a sandbox is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RootEntry {
    Directory { from: PathBuf, to: PathBuf },
    Link { target: PathBuf, at: PathBuf },
}

/// Entries of a root directory that a sandbox has of its own.
const OWN: [&str; 7] = ["dev", "proc", "sys", "tmp", "run", "workspace", "sandbox"];

/// Lists the entries of a root directory that a sandbox is shown: all directories and symlinks except those that it has of its own.
pub(crate) fn root_entries(root: &Path) -> std::io::Result<Vec<RootEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        let at = Path::new("/").join(&name);
        if kind.is_dir() {
            entries.push(RootEntry::Directory { from: entry.path(), to: at });
        } else if kind.is_symlink() {
            entries.push(RootEntry::Link { target: std::fs::read_link(entry.path())?, at });
        }
    }
    Ok(entries)
}

/// Returns the arguments that isolate processes. The check whether the machine can isolate processes uses them, too.
pub(crate) fn isolation(network: Network) -> Vec<&'static str> {
    let mut words = vec!["--unshare-all", "--unshare-user", "--disable-userns", "--uid", USER, "--gid", USER];
    words.extend(["--cap-drop", "ALL", "--new-session", "--clearenv", "--hostname", "sandbox"]);
    if network == Network::Host {
        words.push("--share-net");
    }
    words
}

/// Returns all arguments of bubblewrap.
pub(crate) fn words(
    spec: &StartSpec,
    agent: &Path,
    filters: &[OwnedFd],
    root: &[RootEntry],
    confinement: Confinement,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = isolation(spec.network).into_iter().map(Into::into).collect();
    let mut add = |more: &[&OsStr]| words.extend(more.iter().map(|word| (*word).to_owned()));
    let plain = |text: &'static str| OsStr::new(text);
    for filter in filters {
        add(&[plain("--add-seccomp-fd"), &OsString::from(filter.as_raw_fd().to_string())]);
    }
    // The agent reaps orphans. Standard output receives the id of its process and is closed before the agent starts.
    add(&["--as-pid-1", "--info-fd", "1"].map(plain));
    // Files of /proc/sys belong to root, so a root without capabilities could write them.
    add(&["--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc"].map(plain));
    add(&["--size", TMPFS_BYTES_MAX, "--tmpfs", "/dev/shm"].map(plain));
    add(&["--symlink", TMP_TARGET, "/tmp"].map(plain));
    if spec.root.is_none() {
        for path in SYSTEM {
            add(&["--ro-bind-try", path, path].map(plain));
        }
        for (name, _) in ETC {
            let (from, to) = (spec.files.join(name), Path::new("/etc").join(name));
            add(&[plain("--ro-bind"), from.as_os_str(), to.as_os_str()]);
        }
    }
    for entry in root {
        match entry {
            RootEntry::Directory { from, to } => add(&[plain("--ro-bind"), from.as_os_str(), to.as_os_str()]),
            RootEntry::Link { target, at } => add(&[plain("--symlink"), target.as_os_str(), at.as_os_str()]),
        }
    }
    add(&["--perms", "0700", "--size", SECRETS_BYTES_MAX, "--tmpfs", SECRETS].map(plain));
    if spec.network == Network::Host && spec.root.is_none() {
        for path in NETWORK {
            add(&["--ro-bind-try", path, path].map(plain));
        }
    }
    add(&[plain("--ro-bind"), agent.as_os_str(), plain(AGENT)]);
    add(&[plain("--ro-bind"), spec.link.as_os_str(), plain(LINK)]);
    // Below a mount that comes later nothing may be written: it would not be in the workspace.
    let bind = plain(if spec.is_read_only || spec.is_mounted_later { "--ro-bind" } else { "--bind" });
    add(&[bind, spec.workspace.as_os_str(), plain("/workspace")]);
    let bind = plain(if spec.is_mounted_later { "--ro-bind" } else { "--bind" });
    add(&[bind, spec.home.as_os_str(), plain(HOME)]);
    add(&["--remount-ro", "/", "--chdir", "/workspace"].map(plain));
    let pids = OsString::from(spec.limits.pids.to_string());
    add(&[plain("--setenv"), plain("PATH"), &OsString::from(format!("{HOME_PROGRAMS}:{PATH}"))]);
    for (name, value) in [("HOME", HOME), ("LANG", "C.UTF-8"), ("USER", "sandbox"), ("SHELL", "/bin/sh"), NPM_PREFIX] {
        add(&["--setenv", name, value].map(plain));
    }
    add(&[plain("--setenv"), plain("SANDBOX_ID"), OsStr::new(&spec.id)]);
    add(&[plain("--setenv"), plain("AMALGAM_LINK"), plain(LINK)]);
    add(&[plain("--setenv"), plain("AMALGAM_PIDS_MAX"), &pids]);
    let writable = match confinement {
        Confinement::None => None,
        Confinement::Scope => Some("/".to_owned()),
        Confinement::Writes => Some(writable(spec)),
    };
    if let Some(writable) = writable {
        add(&[plain("--setenv"), plain("AMALGAM_WRITABLE"), &OsString::from(writable)]);
    }
    add(&[plain(AGENT)]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::secret::Secret;

    #[test]
    fn words_have_no_secret_and_share_the_network_only_when_asked() {
        let mut spec = StartSpec {
            id: "sbx-1".to_owned(),
            template: "host".to_owned(),
            link: "/l".into(),
            root: None,
            files: "/f".into(),
            workspace: "/w".into(),
            home: "/h".into(),
            is_read_only: true,
            is_mounted_later: false,
            secret: Secret::generate().expect("random"),
            network: Network::None,
            limits: Limits::default(),
            progress: crate::runtime::Progress(std::sync::Arc::new(|_| {})),
        };
        let all = |spec: &StartSpec| words(spec, Path::new("/agent"), &[], &[], Confinement::Writes);
        assert!(!all(&spec).iter().any(|word| word == spec.secret.reveal() || word == "--share-net"));
        assert!(all(&spec).windows(3).any(|three| three == ["--ro-bind", "/w", "/workspace"]));
        assert!(all(&spec).windows(3).any(|three| three == ["--bind", "/h", HOME]), "the home can be written");
        let writable = |spec: &StartSpec| {
            let all = all(spec);
            let at = all.iter().position(|word| word == "AMALGAM_WRITABLE").expect("directories for Landlock");
            all[at + 1].clone()
        };
        assert_eq!(writable(&spec), "/sandbox:/dev:/run/amalgam/secrets");
        assert_eq!(
            writable(&StartSpec { is_read_only: false, ..spec.clone() }),
            "/workspace:/sandbox:/dev:/run/amalgam/secrets"
        );
        spec.network = Network::Host;
        assert!(all(&spec).iter().any(|word| word == "--share-net"));
    }

    #[test]
    fn a_root_directory_is_shown_without_what_a_sandbox_has_of_its_own() {
        let root = tempfile::tempdir().expect("a directory");
        for name in ["usr", "etc", "proc", "tmp", "run"] {
            std::fs::create_dir(root.path().join(name)).expect("made");
        }
        std::os::unix::fs::symlink("usr/bin", root.path().join("bin")).expect("made");
        std::fs::write(root.path().join("file"), "").expect("written");
        let mut entries = root_entries(root.path()).expect("read");
        entries.sort_by_key(|entry| format!("{entry:?}"));
        let directory =
            |name: &str| RootEntry::Directory { from: root.path().join(name), to: Path::new("/").join(name) };
        let link = RootEntry::Link { target: "usr/bin".into(), at: "/bin".into() };
        assert_eq!(entries.len(), 3, "{entries:?}");
        for expected in [directory("etc"), directory("usr"), link] {
            assert!(entries.contains(&expected), "{expected:?}");
        }
    }
}
