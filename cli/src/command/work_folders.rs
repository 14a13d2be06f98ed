//! The folders in the store's `forks` in which `explore` and `bisect` work: lists the workspaces made for them, and removes them.
//!
//! A folder has a note that lists the workspaces that were made for it. The command holds a lock on its note while it runs, so a
//! note without a lock belongs to a command that was killed or whose machine went down, and `amalgam ws rm --ended` removes its
//! leftovers.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use amalgam_proto::{Reason, v1};
use amalgam_server::remove_tree;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::capture::{SnapshotInfo, capture};
use super::delete_directory::{Keep, delete_directory};
use super::isolated_command::new_folder;
use super::mounts::mounts;
use super::sandbox_calls::{SandboxCalls, failure};
use super::umount::unmount;
use super::workspaces::workspaces;
use crate::connect::Client;
use crate::error::CliError;
use crate::output::progress::drive;
use crate::session::Session;
use crate::text;

/// The command that removes leftovers.
pub const REMOVE_ENDED: &str = "amalgam ws rm --ended";
/// Environment variable with the path of the folder, set for the processes that are started for it.
pub const FOLDER_VARIABLE: &str = "AMALGAM_WORK_FOLDER";
/// The file that lists the workspaces that were made for a folder.
const NOTE_FILE: &str = "note.json";
/// Most rounds of killing the processes of a folder: a round can miss a process that is just being started.
const KILL_ATTEMPTS_MAX: usize = 10;

/// The folder of a running command.
pub struct WorkFolder {
    path: PathBuf,
    /// Whether sandboxes are started for it.
    has_sandboxes: bool,
    /// The open note, which holds the lock.
    note: File,
}

/// A folder of a command that ended without cleaning up.
pub struct AbandonedFolder {
    /// The folder.
    pub path: PathBuf,
    made: Vec<CreatedWorkspace>,
    /// The open note, which holds the lock, so that two processes do not remove the same folder.
    _note: File,
}

/// A workspace that was made for a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CreatedWorkspace {
    name: String,
    /// The creation time; `None` before the workspace is created.
    created: Option<String>,
}

/// Whether changes in forks that are in no snapshot are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncommittedChanges {
    /// They are captured, so that `ws undelete` brings them back.
    Capture,
    /// They are discarded.
    Discard,
}

/// Whether the folder with the logs of commands is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderLogs {
    /// The folder stays, with the output of the commands.
    Keep,
    /// The folder is removed.
    Remove,
}

impl WorkFolder {
    /// Creates a folder with the first free number: `explore-1`, `explore-2`.
    pub fn create(home: &Path, start: &str) -> Result<Self, CliError> {
        let path = new_folder(home, start)?;
        let failed = |error: io::Error| CliError::machine(path.display(), &error);
        // The note is locked before it gets its name, so it never appears unlocked.
        let apart = path.join("note.new");
        let note = File::options().read(true).write(true).create_new(true).open(&apart).map_err(failed)?;
        flock(&note, FlockOperation::NonBlockingLockExclusive).map_err(|error| failed(error.into()))?;
        fs::rename(&apart, path.join(NOTE_FILE)).map_err(failed)?;
        let mut folder = Self { path, has_sandboxes: false, note };
        folder.write(&[])?;
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that sandboxes are about to be started for this folder. Returns the name to give them. The list of workspaces stays.
    pub fn note_sandboxes(&mut self) -> Result<String, CliError> {
        self.has_sandboxes = true;
        let (made, _) = read_note(&mut self.note);
        self.write(&made)?;
        Ok(sandbox_name(&self.path))
    }

    /// Notes that workspaces are about to be created. Replaces the list of the note.
    pub fn expect(&mut self, names: &[String]) -> Result<(), CliError> {
        let made: Vec<_> = names.iter().map(|name| CreatedWorkspace { name: name.clone(), created: None }).collect();
        self.write(&made)
    }

    /// Notes the created workspaces with their creation times. Replaces the list of the note.
    pub fn note_made(&mut self, workspaces: &[v1::Workspace]) -> Result<(), CliError> {
        let made = |workspace: &v1::Workspace| CreatedWorkspace {
            name: text::id(&workspace.name).to_owned(),
            created: Some(created(workspace)),
        };
        self.write(&workspaces.iter().map(made).collect::<Vec<_>>())
    }

    /// Keeps the folder: `ws rm --ended` does not remove it.
    pub fn keep(&self) -> Result<(), CliError> {
        fs::remove_file(self.path.join(NOTE_FILE)).map_err(|error| CliError::machine(self.path.display(), &error))
    }

    fn write(&mut self, made: &[CreatedWorkspace]) -> Result<(), CliError> {
        let written = write_note(&mut self.note, made, self.has_sandboxes);
        written.map_err(|error| CliError::machine(self.path.display(), &error))
    }
}

/// Returns the name that all sandboxes of a folder have.
fn sandbox_name(folder: &Path) -> String {
    format!("forks/{}", folder.file_name().unwrap_or_default().to_string_lossy())
}

fn write_note(note: &mut File, made: &[CreatedWorkspace], has_sandboxes: bool) -> io::Result<()> {
    let workspaces: Vec<_> = made.iter().map(|made| json!({"name": made.name, "created": made.created})).collect();
    let text = format!("{}\n", json!({ "workspaces": workspaces, "sandboxes": has_sandboxes }));
    note.rewind()?;
    note.write_all(text.as_bytes())?;
    note.set_len(text.len() as u64)
}

/// Reads the workspaces of a note, and whether it has sandboxes; none if it cannot be read.
fn read_note(note: &mut File) -> (Vec<CreatedWorkspace>, bool) {
    let mut text = String::new();
    if note.rewind().and_then(|()| note.read_to_string(&mut text)).is_err() {
        return (Vec::new(), false);
    }
    let note: Value = serde_json::from_str(&text).unwrap_or_default();
    let made = |made: &Value| {
        let created = made["created"].as_str().map(str::to_owned);
        Some(CreatedWorkspace { name: made["name"].as_str()?.to_owned(), created })
    };
    let made = note["workspaces"].as_array().into_iter().flatten().filter_map(made).collect();
    (made, note["sandboxes"] == true)
}

/// Formats the creation time of a workspace as the note stores it.
fn created(workspace: &v1::Workspace) -> String {
    let time = workspace.create_time.unwrap_or_default();
    format!("{}.{:09}", time.seconds, time.nanos)
}

/// Returns the folders of commands that ended without cleaning up.
pub fn abandoned(home: &Path) -> Vec<AbandonedFolder> {
    let Ok(folders) = fs::read_dir(home.join("forks")) else { return Vec::new() };
    let mut found: Vec<_> = folders.flatten().filter_map(|folder| locked(&folder.path())).collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Returns a folder if its note is not locked, and locks it.
fn locked(path: &Path) -> Option<AbandonedFolder> {
    let mut note = File::options().read(true).write(true).open(path.join(NOTE_FILE)).ok()?;
    flock(&note, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(AbandonedFolder { path: path.to_owned(), made: read_note(&mut note).0, _note: note })
}

/// Describes the leftovers of killed commands; `None` if there are none.
pub fn abandoned_words(home: &Path) -> Option<String> {
    let left: Vec<_> = abandoned(home).into_iter().filter(|folder| !folder.made.is_empty()).collect();
    let names: Vec<_> = left.iter().filter_map(|folder| folder.path.file_name()).map(OsStr::to_string_lossy).collect();
    let number = left.iter().map(|folder| folder.made.len() as u64).sum();
    let were = if names.len() == 1 { "was" } else { "were" };
    (!left.is_empty())
        .then(|| format!("{} {were} cut off and left {}", names.join(", "), text::plural(number, "workspace")))
}

/// Prints the leftovers of killed commands, and the command that removes them.
pub fn remark_abandoned(session: &mut Session) -> Result<(), CliError> {
    match abandoned_words(session.home()) {
        Some(words) => session.output.remark(format!("{words}; `{REMOVE_ENDED}` removes them")),
        None => Ok(()),
    }
}

/// Kills the processes of a folder, ends its sandboxes, and removes its workspaces with their directories and mounts, then the
/// folder unless `logs` keeps it. Returns the names of the removed workspaces.
pub async fn clean_up(
    session: &mut Session,
    folder: &Path,
    unsaved: UncommittedChanges,
    logs: FolderLogs,
) -> Result<Vec<String>, CliError> {
    let failed = |error: io::Error| CliError::machine(folder.display(), &error);
    end_processes(folder);
    let mut note = match File::options().read(true).write(true).open(folder.join(NOTE_FILE)) {
        // Without a note, the folder was cleaned up or kept before.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        note => note.map_err(failed)?,
    };
    let (made, has_sandboxes) = read_note(&mut note);
    if has_sandboxes {
        end_sandboxes(session, &sandbox_name(folder)).await?;
    }
    let mut client = session.client().await?;
    let mut removed = Vec::new();
    for workspace in workspaces(&mut client, "").await? {
        if is_made_for(&workspace, folder, &made) {
            remove(session, &mut client, &workspace, folder, unsaved).await?;
            removed.push(text::id(&workspace.name).to_owned());
        }
    }
    if logs == FolderLogs::Keep {
        write_note(&mut note, &[], false).map_err(failed)?;
        return Ok(removed);
    }
    if let Some(mount) = mount_below(folder) {
        let message = format!("{} stays: something is mounted at {}", folder.display(), mount.display());
        return Err(CliError::refused(message).hint(format!("unmount it, then `{REMOVE_ENDED}`")));
    }
    remove_tree(folder).map_err(failed)?;
    Ok(removed)
}

/// Deletes the sandboxes with a name. Their workspaces stay, because the sandboxes did not create them.
async fn end_sandboxes(session: &mut Session, name: &str) -> Result<(), CliError> {
    let mut calls = SandboxCalls::connect(session).await?;
    let ids = calls.with_name(name, "").await?;
    for id in ids {
        let request = v1::DeleteSandboxRequest { id, keep_workspace: false };
        calls.client.delete_sandbox(request).await.map_err(failure)?;
    }
    Ok(())
}

/// Returns whether a workspace was created for a folder. Another command may have created one with the same name since.
fn is_made_for(workspace: &v1::Workspace, folder: &Path, made: &[CreatedWorkspace]) -> bool {
    let directories = workspace.directories.iter().map(|directory| &directory.path);
    let mut places = directories.chain(&workspace.mounts).map(|path| Path::new(OsStr::from_bytes(path)));
    if places.clone().any(|place| place.starts_with(folder)) {
        return places.all(|place| place.starts_with(folder));
    }
    let is_elsewhere = places.next().is_some();
    let noted = made.iter().find(|made| made.name == text::id(&workspace.name));
    match noted.map(|made| &made.created) {
        Some(Some(time)) => *time == created(workspace) && !is_elsewhere,
        // The note has no creation time: a workspace with changes may belong to another command.
        Some(None) => !is_elsewhere && workspace.live.is_empty() && workspace.head == workspace.base,
        None => false,
    }
}

async fn remove(
    session: &mut Session,
    client: &mut Client,
    workspace: &v1::Workspace,
    folder: &Path,
    unsaved: UncommittedChanges,
) -> Result<(), CliError> {
    if !workspace.live.is_empty() {
        settle(session, client, &workspace.live, unsaved).await?;
    }
    for mount in mounts(client).await?.0.iter().filter(|mount| mount.workspace == workspace.name) {
        let path = Path::new(OsStr::from_bytes(&mount.path));
        if path.starts_with(folder) {
            unmount(client, path).await?;
        }
    }
    for directory in &workspace.directories {
        if unsaved == UncommittedChanges::Capture {
            settle(session, client, &directory.name, unsaved).await?;
        }
        delete_directory(&mut session.output, client, &directory.name, Keep::Nothing).await?;
    }
    let request = v1::DeleteWorkspaceRequest { name: workspace.name.clone(), ..Default::default() };
    client.workspaces.delete_workspace(request).await?;
    Ok(())
}

/// Captures or discards changes that are in no snapshot.
async fn settle(
    session: &Session,
    client: &mut Client,
    name: &str,
    unsaved: UncommittedChanges,
) -> Result<(), CliError> {
    let done = match unsaved {
        UncommittedChanges::Capture => {
            let about = SnapshotInfo::message("cut off");
            capture(&session.output, client, name, about).await.map(drop)
        }
        UncommittedChanges::Discard => {
            let request = v1::RestoreDirectoryRequest { name: name.to_owned(), ..Default::default() };
            drive(&session.output, client.directories.restore_directory(request)).await.map(drop)
        }
    };
    match done {
        // An incomplete checkout has no changes to keep, and neither has a directory that is gone.
        Err(error) if error.is(Reason::StaleHead) || error.is(Reason::DirectoryGone) => Ok(()),
        done => done,
    }
}

/// Kills the processes that were started for a folder and still work in it.
fn end_processes(folder: &Path) {
    let mut variable = format!("{FOLDER_VARIABLE}=").into_bytes();
    variable.extend_from_slice(folder.as_os_str().as_bytes());
    for _ in 0..KILL_ATTEMPTS_MAX {
        let Ok(processes) = fs::read_dir("/proc") else { return };
        let ids = processes.flatten().filter_map(|process| process.file_name().to_str()?.parse().ok());
        let ours: Vec<i32> = ids.filter(|id| belongs_to(*id, folder, &variable)).collect();
        if ours.is_empty() {
            return;
        }
        for id in ours.into_iter().filter_map(Pid::from_raw) {
            // The process may have just ended.
            let _ = kill_process(id, Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn belongs_to(id: i32, folder: &Path, variable: &[u8]) -> bool {
    let process = PathBuf::from(format!("/proc/{id}"));
    let at = process.join("cwd");
    let is_inside = fs::read_link(&at).is_ok_and(|at| at.starts_with(folder));
    // The kernel does not know the path of a working directory in a dead mount.
    let is_nowhere = || matches!(rustix::fs::statfs(&at), Err(Errno::NOTCONN | Errno::CONNABORTED));
    let environment =
        if is_inside || is_nowhere() { fs::read(process.join("environ")).unwrap_or_default() } else { Vec::new() };
    environment.split(|byte| *byte == 0).any(|word| word == variable)
}

/// Returns a mount point below a folder. Deleting the folder would delete the files of the mounted file system.
fn mount_below(folder: &Path) -> Option<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let paths = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    // Folders in `forks` have plain names; only the path above them can need escapes.
    let escaped = escape_mountinfo(folder.as_os_str().as_bytes());
    let below = paths.filter(|path| path.strip_prefix(&escaped[..]).is_some_and(|rest| rest.starts_with(b"/")));
    below.map(|path| PathBuf::from(OsStr::from_bytes(path))).next()
}

/// Returns the path that the table of mounts writes with [`escape_mountinfo`].
pub fn unescape_mountinfo(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|digits| digits.iter().all(|byte| matches!(byte, b'0'..=b'7')));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Escapes a path as the kernel does in `/proc/self/mountinfo`.
fn escape_mountinfo(path: &[u8]) -> Vec<u8> {
    let escape = |byte: u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![byte],
    };
    path.iter().copied().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(name: &str, seconds: i64) -> v1::Workspace {
        let create_time = Some(prost_types::Timestamp { seconds, nanos: 7 });
        v1::Workspace { name: format!("workspaces/{name}"), create_time, ..Default::default() }
    }

    fn at(mut workspace: v1::Workspace, path: &str) -> v1::Workspace {
        let path = path.to_owned().into();
        workspace.directories.push(v1::WorkspaceDirectory { name: "directories/1".to_owned(), path });
        workspace
    }

    #[test]
    fn a_workspace_of_somebody_else_is_left_alone() {
        let folder = Path::new("/store/forks/explore-1");
        let noted = |created: Option<&str>| {
            vec![CreatedWorkspace { name: "a".to_owned(), created: created.map(str::to_owned) }]
        };
        let made = noted(Some("5.000000007"));
        assert!(is_made_for(&workspace("a", 5), folder, &made));
        assert!(is_made_for(&at(workspace("a", 5), "/store/forks/explore-1/1"), folder, &[]), "its place tells");
        assert!(!is_made_for(&workspace("a", 6), folder, &made), "another one with the same name");
        assert!(!is_made_for(&workspace("b", 5), folder, &made));
        assert!(!is_made_for(&at(workspace("a", 5), "/users/ann/a"), folder, &made), "it was given a directory");
        assert!(is_made_for(&workspace("a", 9), folder, &noted(None)), "nothing was done in it");
        let worked_in = v1::Workspace { head: "snapshots/2".to_owned(), ..workspace("a", 9) };
        assert!(!is_made_for(&worked_in, folder, &noted(None)));
    }

    #[test]
    fn a_folder_is_abandoned_when_nobody_holds_its_note() {
        let home = tempfile::tempdir().expect("a directory");
        let mut folder = WorkFolder::create(home.path(), "explore").expect("made");
        folder.note_made(&[workspace("a", 5)]).expect("noted");
        assert_eq!(folder.note_sandboxes().expect("noted"), "forks/explore-1");
        assert!(abandoned(home.path()).is_empty(), "it is in use");
        assert_eq!(abandoned_words(home.path()), None);
        drop(folder);
        let found = abandoned(home.path());
        assert_eq!(found[0].made, [CreatedWorkspace { name: "a".to_owned(), created: Some("5.000000007".to_owned()) }]);
        drop(found);
        let words = abandoned_words(home.path());
        assert_eq!(words.as_deref(), Some("explore-1 was cut off and left 1 workspace"));
        let kept = WorkFolder::create(home.path(), "explore").expect("made");
        kept.keep().expect("kept");
        drop(kept);
        assert_eq!(abandoned(home.path()).len(), 1);
    }

    #[test]
    fn the_table_of_mounts_writes_spaces_with_digits() {
        assert_eq!(escape_mountinfo(b"/a b\\c"), b"/a\\040b\\134c");
        for path in ["/a b\\c", "/tab\there", "/\\", "/\\04", "/plain", ""] {
            assert_eq!(unescape_mountinfo(&escape_mountinfo(path.as_bytes())), Path::new(path));
        }
        for path in ["/a\\04", "/a\\+12", "/a\\089", "/a\\777"] {
            assert_eq!(unescape_mountinfo(path.as_bytes()), Path::new(path), "no escape");
        }
        assert_eq!(mount_below(Path::new("/nowhere")), None);
    }
}
