//! The NFS procedures, translated into calls of a view.

mod attributes;
mod contents;
mod listing;
mod names;
mod request;

pub(crate) use request::{Answer, Refusal, Request, failure, read_handle, resolve};

use nfs3_types::nfs3::NFS_PROGRAM;

use crate::rpc;
use crate::xdr::Reader;
use request::Result;

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
