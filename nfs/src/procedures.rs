//! The NFS procedures, translated into calls of a view.

mod attributes;
mod contents;
mod listing;
mod names;

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

type Result<T> = std::result::Result<T, Refusal>;

/// Calls a procedure after its first handle was resolved.
pub(crate) fn answer(request: &Request<'_>, procedure: NFS_PROGRAM, from: Reader<'_>) -> Result<Answer> {
    use NFS_PROGRAM as P;
    match procedure {
        P::NFSPROC3_NULL => Ok(Answer::Now(rpc::accepted(request.xid, rpc::Accepted::Success))),
        P::NFSPROC3_GETATTR => attributes::get(request, &from),
        P::NFSPROC3_SETATTR => attributes::set(request, from),
        P::NFSPROC3_LOOKUP => names::lookup(request, from),
        P::NFSPROC3_ACCESS => attributes::access(request, from),
        P::NFSPROC3_READLINK => contents::read_link(request, &from),
        P::NFSPROC3_READ => contents::read(request, from),
        P::NFSPROC3_WRITE => contents::write(request, from),
        P::NFSPROC3_CREATE => names::create(request, from),
        P::NFSPROC3_MKDIR => names::make_directory(request, from),
        P::NFSPROC3_SYMLINK => names::make_symlink(request, from),
        P::NFSPROC3_MKNOD => names::make_node(request, from),
        P::NFSPROC3_REMOVE => names::remove(request, from),
        P::NFSPROC3_RMDIR => names::remove_directory(request, from),
        P::NFSPROC3_RENAME => names::rename(request, from),
        P::NFSPROC3_LINK => names::link(request, from),
        P::NFSPROC3_READDIR => listing::read(request, from),
        P::NFSPROC3_READDIRPLUS => listing::read_plus(request, from),
        P::NFSPROC3_FSSTAT => attributes::disk_space(request, &from),
        P::NFSPROC3_FSINFO => attributes::limits(request, &from),
        P::NFSPROC3_PATHCONF => attributes::path_limits(request, &from),
        P::NFSPROC3_COMMIT => contents::commit(request, from),
    }
}

/// Returns whether the reply cache covers a procedure.
pub(crate) fn is_remembered(procedure: NFS_PROGRAM) -> bool {
    use NFS_PROGRAM as P;
    matches!(
        procedure,
        P::NFSPROC3_SETATTR
            | P::NFSPROC3_WRITE
            | P::NFSPROC3_CREATE
            | P::NFSPROC3_MKDIR
            | P::NFSPROC3_SYMLINK
            | P::NFSPROC3_MKNOD
            | P::NFSPROC3_REMOVE
            | P::NFSPROC3_RMDIR
            | P::NFSPROC3_RENAME
            | P::NFSPROC3_LINK
    )
}

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

fn read_name<'a>(from: &mut Reader<'a>) -> Result<&'a [u8]> {
    Ok(from.opaque(NAME_BYTES_MAX)?)
}

impl Request<'_> {
    fn fsid(&self) -> u64 {
        self.export.key.export
    }

    fn now(&self, result: &impl Pack) -> Answer {
        Answer::Now(rpc::reply(self.xid, result))
    }

    /// Answers a change, after a sync if the export is durable.
    fn changed(&self, procedure: NFS_PROGRAM, result: &impl Pack) -> Answer {
        let done = rpc::reply(self.xid, result);
        if !self.export.spec.durable {
            return Answer::Now(done);
        }
        self.synced(procedure, done)
    }

    fn synced(&self, procedure: NFS_PROGRAM, done: Vec<u8>) -> Answer {
        let failed = failure(self.xid, procedure, nfsstat3::NFS3ERR_IO);
        Answer::Synced { done, failed, syncer: Arc::clone(&self.open.syncer) }
    }

    fn attributes(&self, ino: Ino) -> Option<Attributes> {
        self.open.view.attributes(ino).ok()
    }

    fn post(&self, ino: Ino) -> post_op_attr {
        convert::after(self.attributes(ino).as_ref(), self.fsid())
    }

    /// Issues handles for inodes that the caller holds once each.
    fn handles(&self, inodes: &[Ino]) -> Vec<Option<[u8; HANDLE_BYTES]>> {
        let issued = self.open.view.issue_handles(inodes);
        issued.into_iter().map(|handle| handle.map(|handle| self.export.key.encode(handle))).collect()
    }

    fn handle(&self, ino: Ino) -> Option<[u8; HANDLE_BYTES]> {
        self.handles(&[ino]).pop().flatten()
    }

    /// Resolves the second handle of a call, which must belong to the same export.
    fn second(&self, bytes: &[u8]) -> Result<Ino> {
        match export_of(bytes) {
            None => Err(nfsstat3::NFS3ERR_BADHANDLE.into()),
            Some(number) if number != self.export.key.export => Err(nfsstat3::NFS3ERR_XDEV.into()),
            Some(_) => resolve(self.export, self.open, bytes),
        }
    }

    fn demand_writable(&self) -> Result<()> {
        if self.export.spec.read_only { Err(nfsstat3::NFS3ERR_ROFS.into()) } else { Ok(()) }
    }

    /// Checks access to file contents. The owner always has access: NFSv3 has no open, so the client checks the mode when it opens a file, and
    /// the mode may have changed since.
    fn demand(&self, attributes: &Attributes, access: Access) -> Result<()> {
        if self.caller.uid == attributes.uid {
            return Ok(());
        }
        Ok(self.open.view.access(&self.caller, attributes.ino, access)?)
    }

    /// Makes a change and returns the weak cache consistency data of an inode.
    fn change<T>(&self, ino: Ino, change: impl FnOnce() -> Result<T>) -> (Result<T>, wcc_data) {
        let (done, [wcc, _]) = self.change_both([ino, ino], change);
        (done, wcc)
    }

    /// Makes a change and returns the weak cache consistency data of two inodes.
    fn change_both<T>(&self, inodes: [Ino; 2], change: impl FnOnce() -> Result<T>) -> (Result<T>, [wcc_data; 2]) {
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
