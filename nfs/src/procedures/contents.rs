//! READLINK, READ, WRITE, COMMIT.

use amalgam_view::{Access, Attributes, Ino, Kind, ReadOutcome};
use bytes::Bytes;
use nfs3_types::nfs3::{
    COMMIT3res, COMMIT3resok, NFS_PROGRAM, Nfs3Result, READ3res, READ3resfail, READ3resok, READLINK3res,
    READLINK3resok, WRITE3res, WRITE3resfail, WRITE3resok, nfspath3, nfsstat3, stable_how, wcc_data, writeverf3,
};
use nfs3_types::xdr_codec::Opaque;

use super::request::{Answer, Refusal, Request, Result};
use crate::convert::{self, status};
use crate::rpc::{self, DATA_BYTES_MAX};
use crate::xdr::{Malformed, Reader};

const SET_ID: u32 = 0o6000;
const ROOT_USER: u32 = 0;
/// Limit of the bytes of a READ reply beside the data.
const READ_HEAD_BYTES: usize = 256;

pub(super) fn read_link(request: &Request<'_>, from: &Reader<'_>) -> Result<Answer> {
    from.end()?;
    let target = request.open.view.read_link(request.ino)?;
    let symlink_attributes = request.post(request.ino);
    let result: READLINK3res<'_> = Nfs3Result::Ok(READLINK3resok { symlink_attributes, data: nfspath3::from(target) });
    Ok(request.now(&result))
}

/// Refuses everything but regular files.
fn demand_file(found: &Attributes) -> Result<()> {
    match found.kind {
        Kind::File | Kind::Conflict => Ok(()),
        Kind::Directory => Err(nfsstat3::NFS3ERR_ISDIR.into()),
        _ => Err(nfsstat3::NFS3ERR_INVAL.into()),
    }
}

pub(super) fn read(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let (offset, count) = (from.u64()?, from.u32()?.min(DATA_BYTES_MAX));
    from.end()?;
    let view = &request.open.view;
    let found = view.attributes(request.ino)?;
    demand_file(&found)?;
    // Executing a file requires reading it.
    request
        .demand(&found, Access::READ)
        .or_else(|refused| request.demand(&found, Access::EXECUTE).map_err(|_| refused))?;
    let (xid, ino, fsid) = (request.xid, request.ino, request.fsid());
    match view.begin_read(ino, offset, count as usize)? {
        ReadOutcome::Ready(bytes) => {
            let attributes = request.attributes(ino).unwrap_or(found);
            Ok(Answer::Now(read_reply(xid, fsid, &attributes, offset, &bytes)))
        }
        ReadOutcome::Pending(rest) => {
            let view = view.clone();
            let data_bytes_max = u64::from(count).min(found.size.saturating_sub(offset)) as usize;
            let work = move || match rest.finish() {
                Ok(bytes) => {
                    let attributes = view.attributes(ino).unwrap_or(found);
                    read_reply(xid, fsid, &attributes, offset, &bytes)
                }
                Err(error) => {
                    let file_attributes = convert::after(Some(&found), fsid);
                    let result: READ3res<'_> = Nfs3Result::Err((status(&error), READ3resfail { file_attributes }));
                    rpc::reply(xid, &result)
                }
            };
            Ok(Answer::Later { reply_bytes_max: data_bytes_max + READ_HEAD_BYTES, work: Box::new(work) })
        }
    }
}

fn read_reply(xid: u32, fsid: u64, attributes: &Attributes, offset: u64, bytes: &Bytes) -> Vec<u8> {
    let result: READ3res<'_> = Nfs3Result::Ok(READ3resok {
        file_attributes: convert::after(Some(attributes), fsid),
        count: bytes.len() as u32,
        eof: offset.saturating_add(bytes.len() as u64) >= attributes.size,
        data: Opaque::borrowed(bytes),
    });
    rpc::reply(xid, &result)
}

pub(super) fn write(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let (offset, count) = (from.u64()?, from.u32()?);
    let stable = match from.u32()? {
        0 => stable_how::UNSTABLE,
        1 => stable_how::DATA_SYNC,
        2 => stable_how::FILE_SYNC,
        _ => return Err(Malformed.into()),
    };
    let data = from.opaque(DATA_BYTES_MAX as usize)?;
    from.end()?;
    let (done, file_wcc) = request.change(request.ino, || {
        // Refuse a WRITE whose count differs from its data.
        if data.len() != count as usize {
            return Err(nfsstat3::NFS3ERR_INVAL.into());
        }
        write_checked(request, request.ino, offset, data)
    });
    let (committed, verf) = (stable, writeverf3(request.verifier));
    match done {
        Ok(()) => {
            let done = rpc::reply(request.xid, &WRITE3res::Ok(WRITE3resok { file_wcc, count, committed, verf }));
            Ok(match stable {
                stable_how::UNSTABLE => Answer::Now(done),
                _ => request.synced(NFS_PROGRAM::NFSPROC3_WRITE, done),
            })
        }
        Err(Refusal::Status(status)) => Ok(request.now(&WRITE3res::Err((status, WRITE3resfail { file_wcc })))),
        Err(Refusal::Malformed) => Err(Refusal::Malformed),
    }
}

fn write_checked(request: &Request<'_>, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
    let view = &request.open.view;
    let found = view.attributes(ino)?;
    demand_file(&found)?;
    request.demand(&found, Access::WRITE)?;
    if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(nfsstat3::NFS3ERR_FBIG.into());
    }
    if !data.is_empty() {
        view.write(&request.caller, ino, offset, data)?;
    }
    if found.mode & SET_ID != 0 && request.caller.uid != ROOT_USER {
        view.drop_privilege(&request.caller, ino)?;
    }
    Ok(())
}

pub(super) fn commit(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let (_offset, _count) = (from.u64()?, from.u32()?);
    from.end()?;
    demand_file(&request.open.view.attributes(request.ino)?)?;
    let file_wcc = wcc_data { after: request.post(request.ino), ..wcc_data::default() };
    let result = COMMIT3res::Ok(COMMIT3resok { file_wcc, verf: writeverf3(request.verifier) });
    Ok(request.synced(NFS_PROGRAM::NFSPROC3_COMMIT, rpc::reply(request.xid, &result)))
}
