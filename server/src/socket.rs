//! The socket of a store: making its path free, and telling other processes where it is.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::home::{Home, replace_file};

/// Makes a path free to listen at: removes a socket of this user that nothing listens at. Anything else stays, and is an error.
fn make_free(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let refused = |kind, why: &str| {
        let message = format!("{} {why}; it is left alone, name another path for the socket", path.display());
        Err(io::Error::new(kind, message))
    };
    if !found.file_type().is_socket() {
        return refused(io::ErrorKind::AlreadyExists, "is no socket");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return refused(io::ErrorKind::PermissionDenied, "is a socket of another user");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => refused(io::ErrorKind::AddrInUse, "is a socket that a process listens at"),
    }
}

/// The file of a socket that this process listens at; removed on drop, unless another process listens there by then.
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode_of(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the socket, beside that for calls, at which clients hand over the devices of their private mounts.
pub fn handover_socket(socket: &Path) -> PathBuf {
    socket.with_extension("door")
}

/// Listens at a path, for this user alone.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    make_free(path)?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile { path: path.to_owned(), inode: inode_of(path)? };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok((listener, file))
}

fn inode_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// The record of where a store's process listens, in the store's home; removed on drop.
pub(crate) struct Listening {
    file: PathBuf,
    socket: PathBuf,
}

impl Listening {
    /// Writes the record. The caller holds the store's lock.
    pub(crate) fn record(home: &Home, socket: &Path) -> io::Result<Self> {
        let socket = std::path::absolute(socket)?;
        let file = home.listening_path();
        replace_file(&file, socket.as_os_str().as_bytes())?;
        Ok(Self { file, socket })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if fs::read(&self.file).is_ok_and(|bytes| bytes == self.socket.as_os_str().as_bytes()) {
            // A process that finds a record of a socket that is gone starts another process.
            let _ = fs::remove_file(&self.file);
        }
    }
}

impl Home {
    /// Returns the path of the record of where the store's process listens.
    fn listening_path(&self) -> PathBuf {
        self.path().join("socket")
    }

    /// Returns the recorded socket of the process that holds the store; `None` if there is no record, or no such socket.
    pub fn listening_at(&self) -> Option<PathBuf> {
        let path = PathBuf::from(OsStr::from_bytes(&fs::read(self.listening_path()).ok()?));
        let is_socket = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
        (path.is_absolute() && is_socket).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_dead_socket_is_removed() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("s");
        make_free(&path).expect("nothing is there");
        fs::write(&path, "precious").expect("written");
        assert_eq!(make_free(&path).expect_err("a file").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("it stays"), b"precious");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(around.path().join("elsewhere"), &path).expect("linked");
        assert!(make_free(&path).is_err(), "a symlink");
        fs::remove_file(&path).expect("removed");
        let listener = UnixListener::bind(&path).expect("bound");
        assert_eq!(make_free(&path).expect_err("it is in use").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        make_free(&path).expect("it is dead");
        assert!(!path.exists());
    }
}
