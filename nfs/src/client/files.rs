//! Calls of the client about files: one method for each of the usual procedures.

use std::io;

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

use super::{Client, Reply};

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server rejected the call at the RPC level.
    #[error("the call was rejected: {0}")]
    Rejected(String),
    /// The procedure failed with this status.
    #[error("{0}")]
    Status(nfsstat3),
}

impl CallError {
    /// Returns the status of the procedure, if the server executed it.
    pub fn status(&self) -> Option<nfsstat3> {
        match self {
            Self::Status(status) => Some(*status),
            Self::Io(_) | Self::Rejected(_) => None,
        }
    }
}

/// Result of a call.
pub type CallResult<T> = Result<T, CallError>;

impl Client {
    /// Calls a procedure and returns its result.
    pub fn result_of<T: Unpack, E: Unpack>(&mut self, procedure: NFS_PROGRAM, arguments: &impl Pack) -> CallResult<T> {
        let reply: Reply<Nfs3Result<T, E>> = self.nfs(procedure, arguments)?;
        match reply {
            Reply::Result(Nfs3Result::Ok(ok)) => Ok(ok),
            Reply::Result(Nfs3Result::Err((status, _))) => Err(CallError::Status(status)),
            Reply::Refused(how) => Err(CallError::Rejected(how)),
        }
    }

    /// Returns the attributes of a file.
    pub fn get_attributes(&mut self, file: &nfs_fh3) -> CallResult<fattr3> {
        let arguments = GETATTR3args { object: file.clone() };
        let found: GETATTR3resok =
            self.result_of::<_, nfs3_types::xdr_codec::Void>(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments)?;
        Ok(found.obj_attributes)
    }

    /// Returns the handle of a name in a directory.
    pub fn lookup(&mut self, directory: &nfs_fh3, name: &str) -> CallResult<nfs_fh3> {
        let arguments = LOOKUP3args { what: entry(directory, name) };
        let found = self.result_of::<LOOKUP3resok, LOOKUP3resfail>(NFS_PROGRAM::NFSPROC3_LOOKUP, &arguments)?;
        Ok(found.object)
    }

    /// Creates a file unless it exists. Returns its handle.
    pub fn create(&mut self, directory: &nfs_fh3, name: &str) -> CallResult<nfs_fh3> {
        let attributes = sattr3 { mode: set_mode3::Some(0o644), ..sattr3::default() };
        let arguments = CREATE3args { where_: entry(directory, name), how: createhow3::UNCHECKED(attributes) };
        let made = self.result_of::<CREATE3resok, CREATE3resfail>(NFS_PROGRAM::NFSPROC3_CREATE, &arguments)?;
        handle_of(made.obj)
    }

    /// Creates a directory. Returns its handle.
    pub fn create_directory(&mut self, directory: &nfs_fh3, name: &str) -> CallResult<nfs_fh3> {
        let attributes = sattr3 { mode: set_mode3::Some(0o755), ..sattr3::default() };
        let arguments = MKDIR3args { where_: entry(directory, name), attributes };
        let made = self.result_of::<MKDIR3resok, MKDIR3resfail>(NFS_PROGRAM::NFSPROC3_MKDIR, &arguments)?;
        handle_of(made.obj)
    }

    /// Writes bytes without a sync. Returns the write verifier: if it differs in the reply of [`commit_file`](Self::commit_file), the server was
    /// restarted, and the client has to write again.
    pub fn write(&mut self, file: &nfs_fh3, offset: u64, data: &[u8]) -> CallResult<writeverf3> {
        let (count, stable) = (data.len() as u32, stable_how::UNSTABLE);
        let arguments = WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::borrowed(data) };
        let done = self.result_of::<WRITE3resok, WRITE3resfail>(NFS_PROGRAM::NFSPROC3_WRITE, &arguments)?;
        match done.count == count {
            true => Ok(done.verf),
            false => Err(CallError::Rejected(format!("{} of {count} bytes were written", done.count))),
        }
    }

    /// Syncs the writes to a file. Returns the write verifier.
    pub fn commit_file(&mut self, file: &nfs_fh3) -> CallResult<writeverf3> {
        let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        let done = self.result_of::<COMMIT3resok, COMMIT3resfail>(NFS_PROGRAM::NFSPROC3_COMMIT, &arguments)?;
        Ok(done.verf)
    }

    /// Reads up to `count` bytes.
    pub fn read(&mut self, file: &nfs_fh3, offset: u64, count: u32) -> CallResult<Vec<u8>> {
        let arguments = READ3args { file: file.clone(), offset, count };
        let found = self.result_of::<READ3resok<'_>, READ3resfail>(NFS_PROGRAM::NFSPROC3_READ, &arguments)?;
        Ok(found.data.into_owned())
    }

    /// Removes a file.
    pub fn remove_file(&mut self, directory: &nfs_fh3, name: &str) -> CallResult<()> {
        let arguments = REMOVE3args { object: entry(directory, name) };
        self.result_of::<REMOVE3resok, REMOVE3resfail>(NFS_PROGRAM::NFSPROC3_REMOVE, &arguments).map(drop)
    }

    /// Renames a file or directory.
    pub fn rename_entry(&mut self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> CallResult<()> {
        let arguments = RENAME3args { from: entry(from.0, from.1), to: entry(to.0, to.1) };
        self.result_of::<RENAME3resok, RENAME3resfail>(NFS_PROGRAM::NFSPROC3_RENAME, &arguments).map(drop)
    }
}

fn entry<'a>(directory: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
}

fn handle_of(found: Nfs3Option<nfs_fh3>) -> CallResult<nfs_fh3> {
    match found {
        Nfs3Option::Some(handle) => Ok(handle),
        Nfs3Option::None => Err(CallError::Rejected("a reply without the handle of what was created".to_owned())),
    }
}
