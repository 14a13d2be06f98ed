//! Backups of a whole server: its catalog and every project, while it runs or not; and their restore.
//!
//! A backup is a directory with the file `SERVER`, the catalog, the server's settings, and one backup of a store for each project
//! in `projects`. A running server backs its projects up itself, asked through its operator socket; without one, this process
//! holds the lock of the data directory and opens the stores.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use amalgam_gateway::{Catalog, Project};
use amalgam_proto::v1;
use amalgam_server::Home;
use serde_json::json;
use tonic::codegen::Bytes;

use super::{receive, send};
use crate::connect::{Client, connect_project, in_process_client};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::network::{CATALOG, catalog_error, lock, make_private, open_catalog, operator_socket};
use crate::output::json as lines;
use crate::output::progress::drive;
use crate::session::Session;
use crate::text;

/// The file that marks a backup of a server. It is written last.
const MARK: &str = "SERVER";
const MARK_TEXT: &str = "amalgam server backup 1\n";
/// The file of settings, in a data directory and in a backup.
const SETTINGS: &str = "config.toml";
const PROJECTS: &str = "projects";
/// Projects in one answer of the catalog.
const PAGE: u32 = 500;

/// Backs up the server of a data directory.
pub async fn back_up(session: &mut Session, data: &Path, target: &Path, verify: bool) -> Outcome {
    if !data.join(CATALOG).is_file() {
        let message = format!("{} is not the data directory of a server", data.display());
        return Err(CliError::refused(message).hint("name the directory of `amalgam serve --data`"));
    }
    if target.join("BACKUP").exists() {
        let message = format!("{} holds the backup of one store", target.display());
        return Err(CliError::refused(message).hint("name another directory"));
    }
    let failed = |error: io::Error| CliError::machine(target.display(), &error);
    make_private(&target.join(PROJECTS)).map_err(failed)?;
    // The lock is held to the end, so that no server starts meanwhile. If a server runs, it has the lock.
    let held = lock(data).ok();
    let catalog = open_catalog(data).await?;
    let projects = copy_catalog(&catalog, target).await?;
    catalog.close().await;
    if data.join(SETTINGS).is_file() {
        copy_private(&data.join(SETTINGS), &target.join(SETTINGS)).map_err(failed)?;
    }
    let (mut count, mut sum) = (0_u64, v1::SendResult::default());
    for project in &projects {
        let home = data.join(PROJECTS).join(&project.directory);
        if !Home::new(&home).exists() {
            continue;
        }
        let is_served = held.is_none() && project.deleted.is_none();
        let client = client(session, data, project, is_served).await?;
        let sent = back_up_project(session, client, project, target, verify).await?;
        count += 1;
        sum.objects += sent.objects;
        sum.bytes += sent.bytes;
    }
    write_private(&target.join(MARK), MARK_TEXT.as_bytes()).map_err(failed)?;
    let fields = json!({"projects": count, "objects": sum.objects, "bytes": sum.bytes, "verified": verify});
    session.output.emit(&lines::line("server_backup", fields))?;
    let objects = text::plural(sum.objects, "object");
    let projects = text::plural(count, "project");
    session.output.done(format!("the catalog and {projects}: {objects} ({})", text::bytes(sum.bytes)))?;
    Ok(Exit::OK)
}

/// Returns a client of the process that has a project open: the running server if `is_served`, else this process.
async fn client(session: &Session, data: &Path, project: &Project, is_served: bool) -> Result<Client, CliError> {
    let actor = &session.connect.actor;
    if !is_served {
        return in_process_client(&data.join(PROJECTS).join(&project.directory), data, actor).await;
    }
    let socket = operator_socket(data)?;
    connect_project(&socket, project.name.as_str(), actor).await.ok_or_else(|| {
        let message = format!("the server of {} does not answer at {}", data.display(), socket.display());
        CliError::new(Exit::BUSY, "BUSY", message).hint("run the backup as the user of the server, on its machine")
    })
}

async fn back_up_project(
    session: &mut Session,
    mut client: Client,
    project: &Project,
    target: &Path,
    verify: bool,
) -> Result<v1::SendResult, CliError> {
    let path = target.join(PROJECTS).join(project.name.as_str());
    let request = v1::BackUpStoreRequest {
        directory: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
        verify,
        ..Default::default()
    };
    let done = drive(&session.output, client.transfer.back_up_store(request)).await?;
    let sent = done.sent.unwrap_or_default();
    let mut line = send::json_line(&sent);
    line["type"] = json!("backup");
    line["part"] = json!(done.part);
    line["difference"] = json!(done.difference);
    line["operation"] = json!(done.operation);
    line["verified"] = json!(verify);
    line["project"] = json!(project.name.as_str());
    session.output.emit(&line)?;
    session.output.done(format!("{}: part {}: {}", project.name, done.part, send::words(&sent)))?;
    Ok(sent)
}

/// Copies a consistent snapshot of the catalog. Returns its projects, including deleted ones.
async fn copy_catalog(catalog: &Catalog, target: &Path) -> Result<Vec<Project>, CliError> {
    let failed = |error: io::Error| CliError::machine(target.display(), &error);
    // In a private directory: the database's own mode would let others read it.
    let apart = target.join(format!("catalog.{}.new", std::process::id()));
    DirBuilder::new().mode(0o700).create(&apart).map_err(failed)?;
    let copy = apart.join(CATALOG);
    let copied = catalog.copy_to(&copy).await.map_err(catalog_error);
    let moved = copied.and_then(|()| {
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        File::open(&copy).and_then(|file| file.sync_all()).map_err(failed)?;
        fs::rename(&copy, target.join(CATALOG)).map_err(failed)
    });
    fs::remove_dir_all(&apart).map_err(failed)?;
    moved?;
    list_projects(catalog).await
}

async fn list_projects(catalog: &Catalog) -> Result<Vec<Project>, CliError> {
    let mut projects: Vec<Project> = Vec::new();
    loop {
        let after = projects.last().map(|project| &project.name);
        let page = catalog.list_projects(after, PAGE, true).await.map_err(catalog_error)?;
        if page.is_empty() {
            return Ok(projects);
        }
        projects.extend(page);
    }
}

/// Restores the backup of a server into a new data directory.
pub async fn restore(session: &mut Session, source: &Path, data: &Path) -> Outcome {
    if !source.join(MARK).is_file() {
        let message = format!("{} is not the backup of a server, or is not complete", source.display());
        return Err(CliError::refused(message).hint("name the directory that `amalgam backup DIR --data DATA` wrote"));
    }
    let failed = |error: io::Error| CliError::machine(data.display(), &error);
    make_private(&data.join(PROJECTS)).map_err(failed)?;
    let _held = lock(data)?;
    let is_empty = fs::read_dir(data.join(PROJECTS)).map_err(failed)?.next().is_none();
    if data.join(CATALOG).exists() || !is_empty {
        let message = format!("{} holds a server already; nothing was changed", data.display());
        return Err(CliError::refused(message).hint("name a new directory"));
    }
    // The catalog gets its name at the end: without it the directory is no server.
    let apart = data.join("catalog.db.new");
    copy_private(&source.join(CATALOG), &apart).map_err(failed)?;
    let catalog = Catalog::open(&apart).await.map_err(catalog_error)?;
    let projects = list_projects(&catalog).await?;
    catalog.close().await;
    let mut exit = Exit::OK;
    for project in &projects {
        let backup = source.join(PROJECTS).join(project.name.as_str());
        if !backup.is_dir() {
            continue;
        }
        session.output.say(format!("{}:", project.name))?;
        let home = data.join(PROJECTS).join(&project.directory);
        let mut client = in_process_client(&home, data, &session.connect.actor).await?;
        let directory = Bytes::copy_from_slice(backup.as_os_str().as_bytes());
        let request = v1::RestoreBackupRequest { directory, ..Default::default() };
        let received = drive(&session.output, client.transfer.restore_backup(request)).await?;
        receive::report(&mut session.output, &received)?;
        exit = exit.or(if received.left_out.is_empty() { Exit::OK } else { Exit::PARTLY });
    }
    if source.join(SETTINGS).is_file() {
        copy_private(&source.join(SETTINGS), &data.join(SETTINGS)).map_err(failed)?;
    }
    fs::rename(&apart, data.join(CATALOG)).map_err(failed)?;
    let projects = text::plural(projects.len() as u64, "project");
    session.output.done(format!("{projects}; `amalgam serve --data {}` serves them", data.display()))?;
    Ok(exit)
}

/// Writes a file that only this user can read, in one step.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let apart = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&apart)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&apart, path)
}

/// Copies a small file into one that only this user can read.
fn copy_private(from: &Path, to: &Path) -> io::Result<()> {
    write_private(to, &fs::read(from)?)
}
