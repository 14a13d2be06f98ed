//! A call with its export and caller, the ways to answer it, and failures.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amalgam_view::{Access, Attributes, Caller, Error, Handle, Ino};
use nfs3_types::nfs3::{NFS_PROGRAM, nfsstat3, post_op_attr, wcc_data};
use nfs3_types::xdr_codec::Pack;

use crate::convert::{self, status};
use crate::export::{Export, OpenExport};
use crate::handle::{HANDLE_BYTES, export_of};
use crate::rpc;
use crate::sync::Syncer;
use crate::xdr::{Malformed, Reader};

/// Longest handle (NFS3_FHSIZE).
const HANDLE_BYTES_MAX: usize = 64;
/// Longest name that is decoded. The view refuses names over 255 bytes with a proper status.
const NAME_BYTES_MAX: usize = 1_024;

/// A call with its export, caller and first handle.
pub(crate) struct Request<'a> {
    pub(crate) xid: u32,
    pub(crate) export: &'a Export,
    pub(crate) open: &'a Arc<OpenExport>,
    pub(crate) caller: Caller,
    /// Write verifier. Changes with every start of the server, so that clients resend uncommitted writes.
    pub(crate) verifier: [u8; 8],
    /// Inode of the first handle.
    pub(crate) ino: Ino,
}

/// How to answer a call.
pub(crate) enum Answer {
    /// With this reply.
    Now(Vec<u8>),
    /// With `done` after a successful sync, or with `failed`.
    Synced { done: Vec<u8>, failed: Vec<u8>, syncer: Arc<Syncer> },
    /// With the result of a blocking closure, which is at most so long.
    Later { reply_bytes_max: usize, work: Box<dyn FnOnce() -> Vec<u8> + Send> },
}

/// A failure without procedure-specific data.
pub(crate) enum Refusal {
    Malformed,
    Status(nfsstat3),
}

impl From<Malformed> for Refusal {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Status(status(&error))
    }
}

impl From<nfsstat3> for Refusal {
    fn from(status: nfsstat3) -> Self {
        Self::Status(status)
    }
}

pub(super) type Result<T> = std::result::Result<T, Refusal>;

/// Encodes a failure without attributes.
pub(crate) fn failure(xid: u32, procedure: NFS_PROGRAM, status: nfsstat3) -> Vec<u8> {
    use NFS_PROGRAM as P;
    // Each absent attribute is one word.
    let left_out = match procedure {
        P::NFSPROC3_NULL | P::NFSPROC3_GETATTR => 0,
        P::NFSPROC3_LOOKUP
        | P::NFSPROC3_ACCESS
        | P::NFSPROC3_READLINK
        | P::NFSPROC3_READ
        | P::NFSPROC3_READDIR
        | P::NFSPROC3_READDIRPLUS
        | P::NFSPROC3_FSSTAT
        | P::NFSPROC3_FSINFO
        | P::NFSPROC3_PATHCONF => 1,
        P::NFSPROC3_LINK => 3,
        P::NFSPROC3_RENAME => 4,
        _ => 2,
    };
    let mut reply = rpc::success(xid);
    reply.extend_from_slice(&(status as u32).to_be_bytes());
    reply.resize(reply.len() + 4 * left_out, 0);
    rpc::finish(reply)
}

/// Decodes a handle.
pub(crate) fn read_handle<'a>(from: &mut Reader<'a>) -> std::result::Result<&'a [u8], Malformed> {
    from.opaque(HANDLE_BYTES_MAX)
}

/// Decodes a name.
pub(super) fn read_name<'a>(from: &mut Reader<'a>) -> Result<&'a [u8]> {
    Ok(from.opaque(NAME_BYTES_MAX)?)
}

impl Request<'_> {
    pub(super) fn fsid(&self) -> u64 {
        self.export.key.export
    }

    pub(super) fn now(&self, result: &impl Pack) -> Answer {
        Answer::Now(rpc::reply(self.xid, result))
    }

    /// Answers a change, after a sync if the export is durable.
    pub(super) fn changed(&self, procedure: NFS_PROGRAM, result: &impl Pack) -> Answer {
        let done = rpc::reply(self.xid, result);
        if !self.export.spec.durable {
            return Answer::Now(done);
        }
        self.synced(procedure, done)
    }

    pub(super) fn synced(&self, procedure: NFS_PROGRAM, done: Vec<u8>) -> Answer {
        let failed = failure(self.xid, procedure, nfsstat3::NFS3ERR_IO);
        Answer::Synced { done, failed, syncer: Arc::clone(&self.open.syncer) }
    }

    pub(super) fn attributes(&self, ino: Ino) -> Option<Attributes> {
        self.open.view.attributes(ino).ok()
    }

    pub(super) fn post(&self, ino: Ino) -> post_op_attr {
        convert::after(self.attributes(ino).as_ref(), self.fsid())
    }

    /// Issues handles for inodes that the caller holds once each.
    pub(super) fn handles(&self, inodes: &[Ino]) -> Vec<Option<[u8; HANDLE_BYTES]>> {
        let issued = self.open.view.issue_handles(inodes);
        issued.into_iter().map(|handle| handle.map(|handle| self.export.key.encode(handle))).collect()
    }

    pub(super) fn handle(&self, ino: Ino) -> Option<[u8; HANDLE_BYTES]> {
        self.handles(&[ino]).pop().flatten()
    }

    /// Resolves the second handle of a call, which must belong to the same export.
    pub(super) fn second(&self, bytes: &[u8]) -> Result<Ino> {
        match export_of(bytes) {
            None => Err(nfsstat3::NFS3ERR_BADHANDLE.into()),
            Some(number) if number != self.export.key.export => Err(nfsstat3::NFS3ERR_XDEV.into()),
            Some(_) => resolve(self.export, self.open, bytes),
        }
    }

    pub(super) fn demand_writable(&self) -> Result<()> {
        if self.export.spec.read_only { Err(nfsstat3::NFS3ERR_ROFS.into()) } else { Ok(()) }
    }

    /// Checks access to file contents. The owner always has access: NFSv3 has no open, so the client checks the mode when it opens a file, and
    /// the mode may have changed since.
    pub(super) fn demand(&self, attributes: &Attributes, access: Access) -> Result<()> {
        if self.caller.uid == attributes.uid {
            return Ok(());
        }
        Ok(self.open.view.access(&self.caller, attributes.ino, access)?)
    }

    /// Makes a change and returns the weak cache consistency data of an inode.
    pub(super) fn change<T>(&self, ino: Ino, change: impl FnOnce() -> Result<T>) -> (Result<T>, wcc_data) {
        let (done, [wcc, _]) = self.change_both([ino, ino], change);
        (done, wcc)
    }

    /// Makes a change and returns the weak cache consistency data of two inodes.
    pub(super) fn change_both<T>(
        &self,
        inodes: [Ino; 2],
        change: impl FnOnce() -> Result<T>,
    ) -> (Result<T>, [wcc_data; 2]) {
        let _one = self.open.changing.lock();
        let foreign = self.open.foreign_changes.load(Ordering::Acquire);
        let before = inodes.map(|ino| self.attributes(ino));
        let done = self.demand_writable().and_then(|()| change());
        let after = inodes.map(|ino| self.attributes(ino));
        // A client that knows the state in `before` keeps its cache, so `before` must not hide changes of others.
        let is_alone = self.open.foreign_changes.load(Ordering::Acquire) == foreign;
        let wcc = |at: usize| wcc_data {
            before: convert::before(before[at].as_ref().filter(|_| is_alone)),
            after: convert::after(after[at].as_ref(), self.fsid()),
        };
        (done, [wcc(0), wcc(1)])
    }
}

/// Verifies a handle and resolves its inode.
pub(crate) fn resolve(export: &Export, open: &OpenExport, bytes: &[u8]) -> Result<Ino> {
    let handle: Handle = export.key.decode(bytes).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
    Ok(open.view.resolve(handle)?)
}
