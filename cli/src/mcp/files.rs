//! `read`, `edit` and `search`: calls about the files of any workspace.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use amalgam_proto::v1::{self, edit_file_request, file_edit, write_edit};
use tonic::codegen::Bytes;

use super::arguments::Arguments;
use super::program::shortened;
use crate::connect::{Client, ConnectOptions, connect, connect_server};
use crate::error::CliError;
use crate::remote::Server;
use crate::session::workspace_name;

/// Most bytes of a file that are read.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// The default number of lines that are read.
const LINES: u64 = 2_000;
/// The default number of matches of a search.
const MATCHES: u64 = 100;
/// Most entries of a directory that are listed.
const ENTRIES: i32 = 500;

/// The file tools: `read`, `edit` and `search`.
pub struct StoreFiles<'a> {
    /// How to connect.
    pub connect: &'a ConnectOptions,
    /// The server to connect to instead of the store of this machine.
    pub server: Option<&'a Server>,
    /// The directory that calls work in.
    pub directory: &'a Path,
}

/// A workspace, and its directory on the host if it has one.
struct WorkspaceFiles {
    workspace: String,
    directory: Option<PathBuf>,
}

impl StoreFiles<'_> {
    async fn client(&self) -> Result<Client, String> {
        let connected = match self.server {
            Some(server) => connect_server(server, &self.connect.actor).await,
            None => connect(self.connect).await.map_err(CliError::from),
        };
        connected.map_err(|error| error.to_string())
    }

    async fn place(&self, client: &mut Client, name: Option<&str>) -> Result<WorkspaceFiles, String> {
        use std::os::unix::ffi::OsStrExt as _;
        let of_host = |path: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(path));
        let Some(name) = name else {
            let path = Bytes::copy_from_slice(self.directory.as_os_str().as_bytes());
            let found = client.directories.find_directory(v1::FindDirectoryRequest { path }).await.map_err(said)?;
            let found = found.into_inner();
            let directory = found.directory.map(|directory| of_host(&directory.path));
            return Ok(WorkspaceFiles { workspace: found.workspace.unwrap_or_default().name, directory });
        };
        let request = v1::GetWorkspaceRequest { name: workspace_name(name) };
        let found = client.workspaces.get_workspace(request).await.map_err(said)?.into_inner();
        let workspace = found.workspace.unwrap_or_default();
        let directory = workspace.directories.first().map(|directory| of_host(&directory.path));
        Ok(WorkspaceFiles { workspace: workspace.name, directory })
    }

    /// Reads lines of a file, or lists a directory.
    pub async fn read(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let mut client = self.client().await?;
        let place = self.place(&mut client, arguments.text("workspace")?).await?;
        let revision = arguments.text("revision")?.unwrap_or_default().to_owned();
        let path = escaped(arguments.text("path")?.unwrap_or_default())?;
        let stat =
            v1::StatFileRequest { workspace: place.workspace.clone(), revision: revision.clone(), path: path.clone() };
        let file = client.files.stat_file(stat).await.map_err(said)?.into_inner().file.unwrap_or_default();
        if file.kind() == v1::EntryKind::Directory {
            return list(&mut client, place.workspace, revision, path).await;
        }
        if file.size > FILE_BYTES_MAX {
            let size = file.size;
            return Err(format!("{path} has {size} bytes, too many to read; `search` finds lines in it"));
        }
        let request = v1::FileServiceReadFileRequest {
            workspace: place.workspace,
            revision,
            path: path.clone(),
            ..Default::default()
        };
        let mut stream = client.files.read_file(request).await.map_err(said)?.into_inner();
        let mut bytes = Vec::new();
        while let Some(message) = stream.message().await.map_err(said)? {
            bytes.extend_from_slice(&message.data);
        }
        if bytes.contains(&0) {
            return Err(format!("{path} is a binary file of {} bytes; only text can be read", bytes.len()));
        }
        let first = arguments.number("offset")?.unwrap_or(1).max(1);
        let limit = arguments.number("limit")?.unwrap_or(LINES);
        Ok(some_lines(&bytes, first, limit))
    }

    /// Replaces a text in a file, or writes the whole file.
    pub async fn edit(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let mut client = self.client().await?;
        let place = self.place(&mut client, arguments.text("workspace")?).await?;
        let path = arguments.text("path")?.unwrap_or_default();
        let edit = Edit {
            old: arguments.text("old")?,
            new: arguments.any_text("new")?.unwrap_or_default(),
            replaces_all: arguments.flag("replace_all")?,
        };
        let escaped = escaped(path)?;
        match place.directory {
            Some(directory) => edit.on_disk(&directory, path),
            None => edit.in_workspace(&mut client, place.workspace, escaped).await,
        }
    }

    /// Searches files by a regular expression or a plain text.
    pub async fn search(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let mut client = self.client().await?;
        let place = self.place(&mut client, arguments.text("workspace")?).await?;
        let limit = arguments.number("limit")?.unwrap_or(MATCHES);
        let request = v1::GrepFilesRequest {
            workspace: place.workspace,
            revision: arguments.text("revision")?.unwrap_or_default().to_owned(),
            pattern: arguments.text("pattern")?.unwrap_or_default().to_owned(),
            fixed: arguments.flag("fixed")?,
            ignore_case: arguments.flag("ignore_case")?,
            paths: arguments.texts("paths")?.into_iter().map(escaped).collect::<Result<_, _>>()?,
            globs: arguments.texts("globs")?.into_iter().map(str::to_owned).collect(),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            without_git: true,
        };
        let mut stream = client.files.grep_files(request).await.map_err(said)?.into_inner();
        let mut lines = Vec::new();
        while let Some(message) = stream.message().await.map_err(said)? {
            lines.extend(message.matches.iter().map(|found| match found.binary {
                true => format!("{}: binary file matches", found.path),
                false => format!("{}:{}:{}", found.path, found.line, found.text),
            }));
        }
        let count = lines.len() as u64;
        match count {
            0 => lines.push("no matches".to_owned()),
            _ if count == limit => lines.push(format!("... the first {limit}; pass a higher limit for more")),
            _ => {}
        }
        Ok(shortened(lines.join("\n").as_bytes()))
    }
}

async fn list(client: &mut Client, workspace: String, revision: String, path: String) -> Result<String, String> {
    let request = v1::ListFilesRequest { workspace, revision, path, page_size: ENTRIES, ..Default::default() };
    let page = client.files.list_files(request).await.map_err(said)?.into_inner();
    let name = |file: &v1::FileStat| match file.kind() {
        v1::EntryKind::Directory => format!("{}/", file.path),
        _ => format!("{}  {} bytes", file.path, file.size),
    };
    let mut lines: Vec<_> = page.files.iter().map(name).collect();
    if !page.next_page_token.is_empty() {
        lines.push(format!("... the first {ENTRIES}; `search` finds files by their content"));
    }
    Ok(if lines.is_empty() { "an empty directory".to_owned() } else { lines.join("\n") })
}

/// Returns some lines of a file, and a remark with the next offset if there are more.
fn some_lines(bytes: &[u8], first: u64, limit: u64) -> String {
    let text = String::from_utf8_lossy(bytes);
    let all = text.lines().count() as u64;
    let skip = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let take = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut lines = text.lines().skip(skip).take(take).collect::<Vec<_>>().join("\n");
    let next = first.saturating_add(limit);
    if next <= all {
        lines.push_str(&format!("\n... {all} lines in all; offset={next} goes on"));
    }
    shortened(lines.as_bytes())
}

/// An edit of one file.
struct Edit<'a> {
    old: Option<&'a str>,
    new: &'a str,
    replaces_all: bool,
}

impl Edit<'_> {
    async fn in_workspace(&self, client: &mut Client, workspace: String, path: String) -> Result<String, String> {
        let done = format!("edited {path} in {}", workspace.trim_start_matches("workspaces/"));
        let Some(old) = self.old else {
            let content = Some(write_edit::Content::Text(self.new.to_owned()));
            let write = v1::WriteEdit { path, content, create_parents: true, ..Default::default() };
            let edits = vec![v1::FileEdit { edit: Some(file_edit::Edit::Write(write)) }];
            client
                .files
                .apply_edits(v1::ApplyEditsRequest { workspace, edits, ..Default::default() })
                .await
                .map_err(said)?;
            return Ok(done);
        };
        let replace = v1::ReplaceEdit {
            path,
            old_text: old.to_owned(),
            new_text: self.new.to_owned(),
            replace_all: self.replaces_all,
            ..Default::default()
        };
        let request = v1::EditFileRequest {
            workspace,
            edit: Some(edit_file_request::Edit::Replace(replace)),
            ..Default::default()
        };
        let answer = client.files.edit_file(request).await.map_err(said)?.into_inner();
        Ok(format!("{done}: {} replaced", answer.replacements))
    }

    /// Edits a file in a directory of the host, outside of the store.
    fn on_disk(&self, root: &Path, path: &str) -> Result<String, String> {
        let target = inside(root, path)?;
        let failed = |error: std::io::Error| format!("{path}: {error}");
        let Some(old) = self.old else {
            write_whole(&target, self.new).map_err(failed)?;
            return Ok(format!("wrote {path}"));
        };
        let text = fs::read_to_string(&target).map_err(failed)?;
        let count = text.matches(old).count();
        if count == 0 {
            return Err(format!("{path} does not have the text `old`; `read` the file, and copy the text exactly"));
        }
        if count > 1 && !self.replaces_all {
            return Err(format!(
                "{path} has the text `old` {count} times; take more lines around it, or pass replace_all"
            ));
        }
        write_whole(&target, &text.replace(old, self.new)).map_err(failed)?;
        Ok(format!("edited {path}: {count} replaced"))
    }
}

/// Replaces a file atomically, so that no reader sees a part of it.
fn write_whole(target: &Path, text: &str) -> std::io::Result<()> {
    let parent = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)?;
    let mode = fs::metadata(target).map_or(0o644, |found| found.permissions().mode());
    let mut file = tempfile::NamedTempFile::new_in(parent)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.persist(target)?;
    Ok(())
}

/// Resolves a path below a directory. Refuses absolute paths, `..`, a leading `.`, and symlinks that lead out of the directory.
fn inside(root: &Path, path: &str) -> Result<PathBuf, String> {
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || path.is_empty() {
        return Err(format!("path `{path}`: it is relative to the root of the workspace, without . and .."));
    }
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let root = root.canonicalize().map_err(failed)?;
    let target = root.join(path);
    // The deepest existing ancestor decides where the path leads.
    let there = target.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(&root);
    let real = there.canonicalize().map_err(failed)?;
    if !real.starts_with(&root) {
        return Err(format!("path `{path}`: a symlink leads out of {}", root.display()));
    }
    // Joining an empty path would add a trailing slash.
    let rest = target.strip_prefix(there).ok().filter(|rest| !rest.as_os_str().is_empty());
    Ok(rest.map_or(real.clone(), |rest| real.join(rest)))
}

/// Converts a path to the form of the API: backslashes are escaped, and the root is empty.
fn escaped(path: &str) -> Result<String, String> {
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.starts_with('/') {
        return Err(format!("path `{path}`: it is relative to the root of the workspace"));
    }
    Ok(if path == "." { String::new() } else { path.replace('\\', "\\\\") })
}

fn said(status: tonic::Status) -> String {
    CliError::from(status).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_lead_out_of_the_directory() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("in")).expect("a directory");
        std::os::unix::fs::symlink("/tmp", root.path().join("out")).expect("a symlink");
        std::os::unix::fs::symlink("in", root.path().join("also-in")).expect("a symlink");
        let real = root.path().canonicalize().expect("a path");
        assert_eq!(inside(root.path(), "in/a/b"), Ok(real.join("in/a/b")));
        assert_eq!(inside(root.path(), "also-in/a"), Ok(real.join("in/a")));
        for bad in ["out/a", "../a", "/etc/passwd", "in/../../a", "", "./a"] {
            assert!(inside(root.path(), bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_edit_on_disk_replaces_one_place_and_keeps_the_mode() {
        let root = tempfile::tempdir().expect("a directory");
        let target = root.path().join("a.sh");
        let edit = |old, new, replaces_all| Edit { old, new, replaces_all }.on_disk(root.path(), "a.sh");
        assert!(edit(Some("x"), "y", false).is_err_and(|message| message.contains("No such file")));
        edit(None, "x x\n", false).expect("it is written");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).expect("a mode");
        assert!(edit(Some("x"), "y", false).is_err_and(|message| message.contains("2 times")));
        assert!(edit(Some("z"), "y", false).is_err_and(|message| message.contains("does not have")));
        assert_eq!(edit(Some("x"), "y", true).as_deref(), Ok("edited a.sh: 2 replaced"));
        assert_eq!(fs::read_to_string(&target).expect("a file"), "y y\n");
        assert_eq!(fs::metadata(&target).expect("a file").permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn lines_say_where_to_go_on() {
        assert_eq!(some_lines(b"1\n2\n3\n", 1, 2), "1\n2\n... 3 lines in all; offset=3 goes on");
        assert_eq!(some_lines(b"1\n2\n3\n", 3, 2), "3");
        assert_eq!(some_lines(b"", 1, 2), "");
    }
}
