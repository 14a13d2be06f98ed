//! Paths of the host in requests: from the wire, made canonical, and as empty directories.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use amalgam_proto::Reason;
use rustix::fs::OFlags;

use crate::call_log::hides_host_paths;
use crate::error::{Error, Result};

/// Parses an absolute path from a request.
pub(crate) fn host_path(bytes: &[u8]) -> Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(bytes));
    if !path.is_absolute() || bytes.contains(&0) {
        return Err(Error::new(Reason::Invalid, format!("`{}` is not an absolute path", path.display())));
    }
    Ok(path.to_owned())
}

/// Returns whether a text has an absolute path: a slash that does not continue a word, unlike that of `workspaces/main`.
pub(crate) fn has_absolute_path(text: &str) -> bool {
    let continues_word = |before: char| before.is_alphanumeric() || "/._-".contains(before);
    text.match_indices('/').any(|(at, _)| !text[..at].chars().next_back().is_some_and(continues_word))
}

/// Returns a path for a message to the caller of the running call: only its last name on the network, whose callers get no path of
/// the host.
pub(crate) fn shown_path(path: &Path) -> String {
    match hides_host_paths() {
        true => path.file_name().unwrap_or_default().display().to_string(),
        false => path.display().to_string(),
    }
}

/// Returns the recorded reason of a failure for the caller of the running call. A caller on the network gets no path of the host.
pub(crate) fn reason_for_caller(reason: String) -> String {
    match hides_host_paths() && has_absolute_path(&reason) {
        true => "the server could not do this; its log says more".to_owned(),
        false => reason,
    }
}

/// Resolves the symlinks of a path. Components that do not exist yet are appended to the nearest parent that does.
pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok(canonical(parent)?.join(name)),
            _ => Err(Error::io("find the directory")(source)),
        },
        Err(source) => Err(Error::io("find the directory")(source)),
    }
}

/// Opens a file for reading. Refuses a pipe or a device, which would block the thread or never end.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    let failed = || Error::io(format!("read {}", path.display()));
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed())?;
    if !file.metadata().map_err(failed())?.is_file() {
        return Err(Error::new(Reason::Invalid, format!("{} is no regular file", shown_path(path))));
    }
    Ok(file)
}

/// Creates a directory, or checks that it is empty. Returns whether it was created.
pub(crate) fn make_empty(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut names) => match names.next() {
            None => Ok(false),
            Some(_) => {
                let message = format!("{} is not empty; name a new directory", shown_path(path));
                Err(Error::new(Reason::AlreadyExists, message))
            }
        },
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            let failed = |source| Error::io(format!("make {}", path.display()))(source);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(failed)?;
            }
            // Closed to others until it has the mode of the tree that is written into it.
            std::fs::DirBuilder::new().mode(0o700).create(path).map_err(failed)?;
            Ok(true)
        }
        Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => {
            let message = format!("{} is a file; name a new directory", shown_path(path));
            Err(Error::new(Reason::AlreadyExists, message))
        }
        Err(source) => Err(Error::io(format!("read {}", path.display()))(source)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_new_directory_is_closed_to_others_until_it_is_written() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("above/new");
        assert!(make_empty(&path).expect("made"));
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o700);
        assert!(!make_empty(&path).expect("it is empty"));
    }

    #[test]
    fn absolute_paths_are_told_from_names_with_slashes() {
        for text in
            ["/srv/a is gone", "mounted at /srv", "`/srv`: not there", "directory:/srv", "(/srv)", "umount '/a b'"]
        {
            assert!(has_absolute_path(text), "{text}");
        }
        for text in ["", "workspace agents/ann is mounted", "src/a, src//b", "`workspaces/main`", "a-/b", "1/2"] {
            assert!(!has_absolute_path(text), "{text}");
        }
    }
}
