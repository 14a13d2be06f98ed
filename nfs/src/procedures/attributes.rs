//! GETATTR, SETATTR, ACCESS, FSSTAT, FSINFO, PATHCONF.

use amalgam_view::{Access, Attributes, Caller, Kind, SetAttributes};
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, ACCESS3res,
    ACCESS3resok, FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3res, FSINFO3resok, FSSTAT3res,
    FSSTAT3resok, GETATTR3res, GETATTR3resok, NFS_PROGRAM, Nfs3Result, PATHCONF3res, PATHCONF3resok, SETATTR3res,
    SETATTR3resfail, SETATTR3resok, nfsstat3, nfstime3,
};

use super::request::{Answer, Refusal, Request, Result};
use crate::convert::{self, read_set, read_time};
use crate::rpc::DATA_BYTES_MAX;
use crate::xdr::Reader;

const BLOCK_BYTES: u64 = 4_096;
/// Preferred READDIR size (dtpref).
const LISTING_BYTES: u32 = 256 << 10;
/// Longest name.
const NAME_BYTES_MAX: u32 = 255;

pub(super) fn get(request: &Request<'_>, from: &Reader<'_>) -> Result<Answer> {
    from.end()?;
    let found = request.open.view.attributes(request.ino)?;
    let obj_attributes = convert::attributes(&found, request.fsid());
    Ok(request.now(&GETATTR3res::Ok(GETATTR3resok { obj_attributes })))
}

pub(super) fn set(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let set = read_set(&mut from)?;
    let guard = from.optional(read_time)?;
    from.end()?;
    let (done, obj_wcc) = request.change(request.ino, || {
        let before = request.open.view.attributes(request.ino)?;
        if guard.is_some_and(|guard| convert::time(guard) != convert::time(before.ctime)) {
            return Err(nfsstat3::NFS3ERR_NOT_SYNC.into());
        }
        apply(request, &before, set)
    });
    Ok(match done {
        Ok(()) => request.changed(NFS_PROGRAM::NFSPROC3_SETATTR, &SETATTR3res::Ok(SETATTR3resok { obj_wcc })),
        Err(Refusal::Status(status)) => request.now(&SETATTR3res::Err((status, SETATTR3resfail { obj_wcc }))),
        Err(Refusal::Malformed) => return Err(Refusal::Malformed),
    })
}

/// Sets attributes. The owner may truncate a file regardless of its mode, because the client checked the mode at open.
pub(super) fn apply(request: &Request<'_>, before: &Attributes, mut set: SetAttributes) -> Result<()> {
    let view = &request.open.view;
    if set.size.is_some() && before.kind != Kind::Directory && before.kind != Kind::File {
        return Err(nfsstat3::NFS3ERR_INVAL.into());
    }
    if let Some(size) = set.size.filter(|_| before.kind == Kind::File && request.caller.uid == before.uid) {
        if size > i64::MAX as u64 {
            return Err(nfsstat3::NFS3ERR_FBIG.into());
        }
        let unchecked = Caller { enforce: false, ..request.caller.clone() };
        view.set_attributes(&unchecked, before.ino, &SetAttributes { size: Some(size), ..SetAttributes::default() })?;
        set.size = None;
    }
    let is_left = set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.size.is_some()
        || set.atime.is_some()
        || set.mtime.is_some();
    if is_left {
        view.set_attributes(&request.caller, before.ino, &set)?;
    }
    Ok(())
}

pub(super) fn access(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let wanted = from.u32()?;
    from.end()?;
    let view = &request.open.view;
    let found = view.attributes(request.ino)?;
    let may = |access: Access| view.access(&request.caller, request.ino, access).is_ok();
    let may_write = !request.export.spec.read_only && may(Access::WRITE);
    let is_directory = found.kind == Kind::Directory;
    let allowed = [
        (ACCESS3_READ, may(Access::READ)),
        (ACCESS3_LOOKUP, is_directory && may(Access::EXECUTE)),
        (ACCESS3_MODIFY, may_write),
        (ACCESS3_EXTEND, may_write),
        (ACCESS3_DELETE, is_directory && may_write),
        (ACCESS3_EXECUTE, !is_directory && may(Access::EXECUTE)),
    ];
    let access = allowed.iter().filter(|(_, may)| *may).fold(0, |bits, (bit, _)| bits | bit) & wanted;
    let obj_attributes = convert::after(Some(&found), request.fsid());
    Ok(request.now(&ACCESS3res::Ok(ACCESS3resok { obj_attributes, access })))
}

pub(super) fn disk_space(request: &Request<'_>, from: &Reader<'_>) -> Result<Answer> {
    from.end()?;
    let space = request.open.view.file_space();
    let (files, free_files) = (space.total_bytes / BLOCK_BYTES, space.usable_bytes() / BLOCK_BYTES);
    Ok(request.now(&FSSTAT3res::Ok(FSSTAT3resok {
        obj_attributes: request.post(request.ino),
        tbytes: space.total_bytes,
        fbytes: space.free_bytes,
        abytes: space.usable_bytes(),
        // Inodes are limited only by space.
        tfiles: files,
        ffiles: free_files,
        afiles: free_files,
        invarsec: 0,
    })))
}

pub(super) fn limits(request: &Request<'_>, from: &Reader<'_>) -> Result<Answer> {
    from.end()?;
    Ok(request.now(&FSINFO3res::Ok(FSINFO3resok {
        obj_attributes: request.post(request.ino),
        rtmax: DATA_BYTES_MAX,
        rtpref: DATA_BYTES_MAX,
        rtmult: BLOCK_BYTES as u32,
        wtmax: DATA_BYTES_MAX,
        wtpref: DATA_BYTES_MAX,
        wtmult: BLOCK_BYTES as u32,
        dtpref: LISTING_BYTES,
        maxfilesize: i64::MAX as u64,
        time_delta: nfstime3 { seconds: 0, nseconds: 1 },
        properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
    })))
}

pub(super) fn path_limits(request: &Request<'_>, from: &Reader<'_>) -> Result<Answer> {
    from.end()?;
    let result: PATHCONF3res = Nfs3Result::Ok(PATHCONF3resok {
        obj_attributes: request.post(request.ino),
        linkmax: u32::MAX,
        name_max: NAME_BYTES_MAX,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    });
    Ok(request.now(&result))
}
