//! `amalgam mount --backend nfs`: exports a tree to this machine, and mounts it with the NFS client of the kernel.

use std::path::Path;
use std::process::Command;

use amalgam_proto::v1;

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
    let at = directory.display();
    session.output.remark(format!("`umount {at}`, then `amalgam unexport {}` take it away", export.path))?;
    Ok(Exit::OK)
}

/// Returns the export of a tree to this machine, which other mounts may use already.
async fn find_or_create(client: &mut Client, tree: &ExportedTree) -> Result<v1::Export, CliError> {
    if tree.mode != v1::MountMode::Snapshot {
        let all = exports(client).await?.exports;
        let mut found =
            all.into_iter().filter(|export| export.mode() == tree.mode && export.workspace == tree.workspace);
        if let Some(export) = found.next() {
            return Ok(export);
        }
    }
    // All users of this machine can connect from its loopback address, so the path gets a secret component.
    create(client, v1::CreateExportRequest { secret: true, ..tree.request() }).await
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
