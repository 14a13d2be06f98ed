//! The current directory of a command, the attached directory around it, and paths of the command line as paths of its tree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use amalgam_proto::v1;
use rustix::io::Errno;
use tonic::codegen::Bytes;

use crate::error::CliError;
use crate::text;

/// A directory that belongs to a workspace, and that workspace.
#[derive(Clone, Debug)]
pub struct AttachedDirectory {
    /// The directory.
    pub directory: v1::Directory,
    /// The workspace.
    pub workspace: v1::Workspace,
}

impl AttachedDirectory {
    /// Returns the name of the workspace, without `workspaces/`.
    pub fn workspace_id(&self) -> &str {
        text::id(&self.workspace.name)
    }

    /// Returns the root of the directory on the host.
    pub fn root(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.directory.path))
    }

    /// Returns the path in the tree of `given`, a path on the command line, seen from `cwd`.
    pub fn tree_path(&self, cwd: &Path, given: &OsStr) -> Result<Bytes, CliError> {
        tree_path(self.root(), cwd, Path::new(given))
    }
}

/// The current directory of a command when it begins.
#[derive(Clone, Debug)]
pub struct StartDirectory {
    /// The current directory.
    pub cwd: PathBuf,
    /// Whether it lies in a mount whose process has died: no file in it can be opened until another process serves the mount.
    pub is_dead: bool,
    /// The directory that was asked for, if it does not exist. Then this process is still in the directory of its caller.
    pub missing: Option<PathBuf>,
}

impl StartDirectory {
    /// Changes to the directory `asked`, if there is one. `shell_path` is the current directory as the shell knows it (`$PWD`): in
    /// a dead mount or a removed directory the kernel cannot name it.
    pub fn enter(asked: Option<&Path>, shell_path: Option<PathBuf>) -> Result<Self, CliError> {
        let Some(asked) = asked else { return Self::here(shell_path) };
        match std::env::set_current_dir(asked) {
            Ok(()) => Self::here(None),
            Err(error) if is_disconnected(&error) || error.kind() == std::io::ErrorKind::NotFound => {
                let around = if asked.is_absolute() { PathBuf::new() } else { Self::here(shell_path)?.cwd };
                let cwd = around.join(asked);
                let is_dead = is_disconnected(&error);
                let missing = (!is_dead).then(|| asked.to_owned());
                Ok(Self { cwd: plain(&cwd).unwrap_or(cwd), is_dead, missing })
            }
            Err(error) => Err(CliError::machine(asked.display(), &error)),
        }
    }

    fn here(shell_path: Option<PathBuf>) -> Result<Self, CliError> {
        let is_dead = rustix::fs::statfs(".").is_err_and(|error| is_disconnected(&error.into()));
        match (std::env::current_dir(), shell_path) {
            (Ok(cwd), _) => Ok(Self { cwd, is_dead, missing: None }),
            (Err(_), Some(cwd)) if is_dead && cwd.is_absolute() => Ok(Self { cwd, is_dead, missing: None }),
            // The shell still knows the path of a current directory that was removed.
            (Err(error), Some(cwd))
                if error.kind() == std::io::ErrorKind::NotFound && cwd.is_absolute() && !cwd.exists() =>
            {
                Ok(Self { cwd, is_dead, missing: None })
            }
            (Err(error), _) => Err(CliError::machine("the current directory", &error)),
        }
    }
}

/// Returns whether an error means that the process that served a mounted file system has died.
fn is_disconnected(error: &std::io::Error) -> bool {
    let number = error.raw_os_error();
    [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|dead| number == Some(dead.raw_os_error()))
}

/// Returns the path of `given`, seen from `cwd`, in the tree of the directory `root`. Refuses a path outside of it. The path need
/// not exist: the user can name a deleted file.
pub fn tree_path(root: &Path, cwd: &Path, given: &Path) -> Result<Bytes, CliError> {
    let outside =
        || CliError::usage(format!("{} is not in {}", given.display(), root.display())).hint("name a path inside it");
    let absolute = cwd.join(given);
    let plain = plain(&absolute).ok_or_else(outside)?;
    let inside = match plain.strip_prefix(root) {
        Ok(inside) => inside.to_owned(),
        Err(_) => {
            real_parent(&plain).and_then(|real| Some(real.strip_prefix(root).ok()?.to_owned())).ok_or_else(outside)?
        }
    };
    Ok(Bytes::copy_from_slice(inside.as_os_str().as_bytes()))
}

/// Returns the path in the tree that is written behind `REV:`. It starts at the root of the tree or, in an attached directory, at
/// `cwd` if it begins with `./` or `../`.
pub fn path_behind_revision(place: Option<&AttachedDirectory>, cwd: &Path, given: &OsStr) -> Result<Bytes, CliError> {
    let bytes = given.as_bytes();
    let is_relative =
        [b"./".as_slice(), b"../"].iter().any(|start| bytes.starts_with(start)) || bytes == b"." || bytes == b"..";
    match place {
        Some(place) if is_relative => place.tree_path(cwd, given),
        _ => Ok(Bytes::copy_from_slice(bytes.strip_suffix(b"/").unwrap_or(bytes))),
    }
}

/// Removes `.` and `..` without reading the disk. Returns `None` if the path leads above `/`.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            other => plain.push(other),
        }
    }
    Some(plain)
}

/// Returns a path without symlinks, `.` and `..`. Names that do not exist are kept.
pub fn resolve_path(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    let plain = plain(path).unwrap_or_else(|| path.to_owned());
    real_parent(&plain).unwrap_or(plain)
}

/// Resolves the symlinks in the deepest parent that exists. Keeps the last name, which may be a symlink of the tree. Returns `None`
/// if no parent can be resolved.
fn real_parent(path: &Path) -> Option<PathBuf> {
    let mut rest = Vec::new();
    let mut above = path;
    while let (Some(parent), Some(name)) = (above.parent(), above.file_name()) {
        rest.push(name);
        if let Ok(mut found) = parent.canonicalize() {
            found.extend(rest.iter().rev());
            return Some(found);
        }
        above = parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cwd: &str, given: &str) -> Option<String> {
        let found = tree_path(Path::new("/nowhere/project"), Path::new(cwd), Path::new(given)).ok()?;
        Some(String::from_utf8(found.to_vec()).expect("text"))
    }

    #[test]
    fn paths_are_seen_from_where_the_person_stands() {
        assert_eq!(check("/nowhere/project", "src/a.rs").as_deref(), Some("src/a.rs"));
        assert_eq!(check("/nowhere/project/src", "a.rs").as_deref(), Some("src/a.rs"));
        assert_eq!(check("/nowhere/project/src", "../b/./c").as_deref(), Some("b/c"));
        assert_eq!(check("/nowhere/project/src", "..").as_deref(), Some(""));
        assert_eq!(check("/elsewhere", "/nowhere/project/x").as_deref(), Some("x"));
    }

    #[test]
    fn paths_outside_are_refused() {
        assert_eq!(check("/nowhere/project", "../other"), None);
        assert_eq!(check("/nowhere/project", "/nowhere/projects"), None);
        assert_eq!(check("/nowhere/project", "../../../.."), None);
    }

    #[test]
    fn symlinks_above_the_directory_are_followed() {
        let around = std::env::temp_dir().canonicalize().expect("a place for temporary files");
        let around = around.join(format!("amalgam-place-{}", std::process::id()));
        std::fs::create_dir_all(around.join("real")).expect("made");
        std::os::unix::fs::symlink("real", around.join("link")).expect("made");
        let found = tree_path(&around.join("real"), Path::new("/"), &around.join("link/deleted"));
        std::fs::remove_dir_all(&around).expect("removed");
        assert_eq!(found.expect("inside").as_ref(), b"deleted");
    }
}
