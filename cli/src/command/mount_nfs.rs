//! `amalgam mount --backend nfs`: exports a tree to this machine, and mounts it with the NFS client of the kernel.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use amalgam_proto::v1;
use amalgam_server::Network;

use super::export_nfs::{ExportedTree, create};
use super::exports::{commands, exports, json_line, words};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::namespace::is_capable;
use crate::session::Session;
use crate::text;

/// Exports a tree and mounts it. Where this user or this machine cannot mount NFS, fails with the reason and the line to run
/// elsewhere; the export stays.
pub async fn mount_nfs(session: &mut Session, client: &mut Client, tree: &ExportedTree, directory: &Path) -> Outcome {
    let export = find_or_create(client, tree).await?;
    let commands = commands(&export);
    let line = ["mount", "-t", "nfs", "-o", &commands.options, &commands.device];
    if let Err(why) = check_nfs_client() {
        let line = format!("{} {}", line.join(" "), directory.display());
        let message = format!("NFS cannot be mounted here: {why}");
        return Err(CliError::refused(message).hint(format!(
            "the export is ready, and root can mount it with `{line}`; `amalgam unexport {}` ends it",
            export.path
        )));
    }
    std::fs::create_dir_all(directory).map_err(|error| CliError::machine(directory.display(), &error))?;
    let done = Command::new(line[0]).args(&line[1..]).arg(directory).output();
    let done = done.map_err(|error| CliError::not_started(line[0].as_ref(), &error))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        let message = format!("{} could not be mounted: {}", directory.display(), text::printable(why.trim()));
        return Err(CliError::refused(message).hint(format!("`amalgam unexport {}` ends the export", export.path)));
    }
    session.output.emit(&json_line("nfs_export", &export))?;
    session.output.done(format!("{}: {}, by NFS", directory.display(), words(&export)))?;
    if !has_secret(&export) {
        session.output.remark("the export has no secret: all users of this machine can mount it, too")?;
    }
    let at = directory.display();
    session.output.remark(format!("`umount {at}`, then `amalgam unexport {}` take it away", export.path))?;
    Ok(Exit::OK)
}

/// Returns the export of a tree to this machine, which other mounts may use already. A tree has one export: if this mount
/// cannot use it, the mount is refused.
async fn find_or_create(client: &mut Client, tree: &ExportedTree) -> Result<v1::Export, CliError> {
    if tree.mode != v1::MountMode::Snapshot {
        let all = exports(client).await?.exports;
        let of_tree = |export: &v1::Export| export.mode() == tree.mode && export.workspace == tree.workspace;
        let mut found: Vec<_> = all.into_iter().filter(of_tree).map(|export| (obstacle(&export), export)).collect();
        // Exports without an obstacle come first; with a secret before those without.
        found.sort_by_key(|(obstacle, export)| (obstacle.is_some(), !has_secret(export)));
        match found.into_iter().next() {
            Some((None, export)) => return Ok(export),
            Some((Some(why), export)) => {
                let message = format!("{} is exported already, but {why}", export.path);
                let hint = format!("`amalgam unexport {}` ends that export; then mount again", export.path);
                return Err(CliError::refused(message).hint(hint));
            }
            None => {}
        }
    }
    // All users of this machine can connect from its loopback address, so the path gets a secret component.
    create(client, v1::CreateExportRequest { secret: true, ..tree.request() }).await
}

/// Returns why this machine cannot mount an export, or not as the mount of its tree; `None` if it can.
fn obstacle(export: &v1::Export) -> Option<String> {
    // Exports of heads are read-only in any case.
    if export.read_only && export.mode() == v1::MountMode::ReadWrite {
        return Some("read-only".to_owned());
    }
    // This machine connects from the address that it connects to.
    let host: IpAddr = export.host.parse().ok()?;
    let allows = |network: &String| network.parse().is_ok_and(|network: Network| network.contains(host));
    match export.allow.iter().any(allows) {
        true => None,
        false => Some(format!("for {}, and this machine would connect from {host}", export.allow.join(" "))),
    }
}

/// Returns whether the path that clients mount has a secret component.
fn has_secret(export: &v1::Export) -> bool {
    export.path != export.mount_path
}

/// Checks whether this user can mount NFS on this machine.
pub fn check_nfs_client() -> Result<(), String> {
    check_kernel()?;
    let folders = ["/sbin", "/usr/sbin", "/usr/local/sbin"].map(Path::new);
    if !folders.iter().any(|folder| folder.join("mount.nfs").is_file()) {
        return Err("mount.nfs is not installed (package nfs-common or nfs-utils)".to_owned());
    }
    match rustix::process::geteuid().is_root() && is_capable() {
        true => Ok(()),
        false => Err("only root can mount NFS".to_owned()),
    }
}

/// Checks whether the kernel has an NFS client, or a module for it.
pub fn check_kernel() -> Result<(), String> {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.trim_start_matches("nodev").trim() == "nfs") {
        return Ok(());
    }
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let listed = std::fs::read_to_string(format!("/lib/modules/{release}/modules.dep")).unwrap_or_default();
    let has_module = listed.lines().any(|line| {
        line.split(':').next().is_some_and(|module| module.contains("/nfs/nfsv3.ko") || module.contains("/nfs/nfs.ko"))
    });
    match has_module {
        true => Ok(()),
        false => Err("the kernel has no NFS client".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_this_machine_cannot_use_has_an_obstacle() {
        let export = |mode: v1::MountMode, host: &str, allow: &[&str]| v1::Export {
            mode: mode.into(),
            host: host.to_owned(),
            allow: allow.iter().map(|network| (*network).to_owned()).collect(),
            ..Default::default()
        };
        let read_only = |export: v1::Export| v1::Export { read_only: true, ..export };
        let (live, follow) = (v1::MountMode::ReadWrite, v1::MountMode::Follow);
        let here = ["127.0.0.0/8", "::1/128"];
        assert_eq!(obstacle(&export(live, "127.0.0.1", &here)), None);
        assert_eq!(obstacle(&export(live, "10.8.0.1", &["10.8.0.0/24"])), None);
        assert_eq!(obstacle(&read_only(export(follow, "127.0.0.1", &here))), None);
        assert_eq!(obstacle(&read_only(export(live, "127.0.0.1", &here))).as_deref(), Some("read-only"));
        let outside = obstacle(&export(live, "192.168.1.5", &["10.8.0.0/24"]));
        assert_eq!(outside.as_deref(), Some("for 10.8.0.0/24, and this machine would connect from 192.168.1.5"));
    }
}
