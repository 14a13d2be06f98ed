//! Checks which mounts work on this machine, and how to enable the others.

use std::fs;

use rustix::io::Errno;

use super::finding::Finding;
use crate::command::backend::{
    check_device, check_private_mounts, check_shared_mounts, check_user_namespaces, find_mount_helper,
};
use crate::command::mount_nfs::check_nfs_client;
use crate::command::work_folders::unescape_mountinfo;

/// Returns the findings of all checks about mounts.
pub fn findings() -> Vec<Finding> {
    let mut findings = vec![of_device(), of_helper(), of_namespaces(), of_others(), of_ways(), of_nfs()];
    findings.extend(of_dead());
    findings
}

fn of_device() -> Finding {
    match check_device() {
        Ok(()) => Finding::fine("fuse_device", "/dev/fuse can be opened"),
        Err(why) => Finding::warning("fuse_device", why, "sudo modprobe fuse && sudo chmod 666 /dev/fuse"),
    }
}

fn of_helper() -> Finding {
    match find_mount_helper() {
        Ok(path) => Finding::fine("fuse_helper", format!("{} mounts for everybody", path.display())),
        Err(why) if rustix::process::geteuid().is_root() => {
            Finding::note("fuse_helper", format!("{why}; root needs it not"))
        }
        Err(why) => Finding::warning("fuse_helper", why, "sudo apt-get install fuse3"),
    }
}

fn of_namespaces() -> Finding {
    match check_user_namespaces() {
        Ok(()) => Finding::fine("user_namespaces", "available"),
        Err(why) => {
            let advice = match fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") {
                Ok(word) if word.trim() == "1" => "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
                _ => "sudo sysctl user.max_user_namespaces=15000",
            };
            Finding::warning("user_namespaces", why, advice)
        }
    }
}

fn of_others() -> Finding {
    let text = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let is_set = text.lines().any(|line| line.trim() == "user_allow_other");
    let root = rustix::process::geteuid().is_root();
    match is_set || root {
        true => Finding::fine("fuse_allow_other", "a mount can be opened for other users"),
        false => Finding::note(
            "fuse_allow_other",
            "mounts are for their user alone; `user_allow_other` in /etc/fuse.conf would let others in",
        ),
    }
}

/// Checks whether `amalgam mount` and `amalgam run --in` can mount.
fn of_ways() -> Finding {
    match (check_shared_mounts(), check_private_mounts()) {
        (Ok(()), Ok(())) => Finding::fine("mounts", "`amalgam mount` and `amalgam run --in` work"),
        (Err(why), Ok(())) => Finding::warning(
            "mounts",
            format!("`amalgam run --in` works; `amalgam mount` does not: {why}"),
            "`amalgam fork --mount` and `explore` write full copies of the files instead",
        ),
        (Ok(()), Err(why)) => Finding::warning(
            "mounts",
            format!("`amalgam mount` works; `amalgam run --in` does not: {why}"),
            "`amalgam run --in` writes a full copy of the files instead",
        ),
        (Err(why), Err(_)) => {
            Finding::warning("mounts", format!("not possible: {why}"), "full copies of the files are written instead")
        }
    }
}

/// Checks whether the kernel's NFS client can mount here. Exports work without it.
fn of_nfs() -> Finding {
    match check_nfs_client() {
        Ok(()) => Finding::fine("nfs_client", "`amalgam mount --backend nfs` works"),
        Err(why) => Finding::note(
            "nfs_client",
            format!("`amalgam mount --backend nfs` does not work here: {why}; exports to other machines work"),
        ),
    }
}

/// Warns about mounts whose process has died.
fn of_dead() -> Vec<Finding> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = [" - fuse.amalgam amalgam ", " - fuse amalgam "];
    let ours = table.lines().filter(|line| ours.iter().any(|kind| line.contains(kind)));
    let paths = ours.filter_map(|line| line.split(' ').nth(4)).map(|path| unescape_mountinfo(path.as_bytes()));
    let dead = paths.filter(|path| matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED)));
    dead.map(|path| {
        let message = format!("{} is a dead mount: no process serves it", path.display());
        Finding::warning("dead_mount", message, format!("fusermount3 -u -z {}", path.display()))
    })
    .collect()
}
