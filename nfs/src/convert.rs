//! Conversions between the types of the view and those of the protocol.

use amalgam_engine::Time;
use amalgam_view::{Attributes, Error, Kind, SetAttributes, TimeSet};
use nfs3_types::nfs3::{
    fattr3, ftype3, nfs_fh3, nfsstat3, nfstime3, post_op_attr, post_op_fh3, pre_op_attr, specdata3, wcc_attr,
};
use nfs3_types::xdr_codec::Opaque;

use crate::xdr::{Malformed, Reader, Result};

const NANOSECONDS: i64 = 1_000_000_000;

/// Converts a time. NFSv3 covers 1970 to 2106; other times are clamped.
pub(crate) fn time(time: Time) -> nfstime3 {
    if time.0 < 0 {
        return nfstime3 { seconds: 0, nseconds: 0 };
    }
    match u32::try_from(time.0 / NANOSECONDS) {
        Ok(seconds) => nfstime3 { seconds, nseconds: (time.0 % NANOSECONDS) as u32 },
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: 0 },
    }
}

pub(crate) fn attributes(from: &Attributes, fsid: u64) -> fattr3 {
    fattr3 {
        type_: match from.kind {
            Kind::Directory => ftype3::NF3DIR,
            Kind::Symlink => ftype3::NF3LNK,
            Kind::Fifo => ftype3::NF3FIFO,
            Kind::Socket => ftype3::NF3SOCK,
            Kind::CharDevice => ftype3::NF3CHR,
            Kind::BlockDevice => ftype3::NF3BLK,
            Kind::File | Kind::Conflict => ftype3::NF3REG,
        },
        mode: from.mode & 0o7777,
        // Clients treat a root with link count 0 as stale.
        nlink: from.links.max(u32::from(from.kind == Kind::Directory)),
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        used: from.blocks.saturating_mul(512),
        rdev: from
            .device
            .map_or_else(specdata3::default, |device| specdata3 { specdata1: device.major, specdata2: device.minor }),
        fsid,
        fileid: from.ino,
        atime: time(from.atime),
        mtime: time(from.mtime),
        ctime: time(from.ctime),
    }
}

pub(crate) fn after(found: Option<&Attributes>, fsid: u64) -> post_op_attr {
    found.map_or(post_op_attr::None, |found| post_op_attr::Some(attributes(found, fsid)))
}

pub(crate) fn before(found: Option<&Attributes>) -> pre_op_attr {
    found.map_or(pre_op_attr::None, |found| {
        pre_op_attr::Some(wcc_attr { size: found.size, mtime: time(found.mtime), ctime: time(found.ctime) })
    })
}

pub(crate) fn handle(bytes: &[u8]) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(bytes.to_vec()) }
}

pub(crate) fn maybe_handle(bytes: Option<&[u8]>) -> post_op_fh3 {
    bytes.map_or(post_op_fh3::None, |bytes| post_op_fh3::Some(handle(bytes)))
}

/// Decodes a `sattr3`.
pub(crate) fn read_set(from: &mut Reader<'_>) -> Result<SetAttributes> {
    let mode = from.optional(Reader::u32)?;
    let uid = from.optional(Reader::u32)?;
    let gid = from.optional(Reader::u32)?;
    let size = from.optional(Reader::u64)?;
    Ok(SetAttributes {
        mode: mode.map(|mode| mode & 0o7777),
        uid,
        gid,
        size,
        atime: read_time_set(from)?,
        mtime: read_time_set(from)?,
    })
}

fn read_time_set(from: &mut Reader<'_>) -> Result<Option<TimeSet>> {
    match from.u32()? {
        0 => Ok(None),
        1 => Ok(Some(TimeSet::Now)),
        2 => read_time(from).map(|time| Some(TimeSet::At(time))),
        _ => Err(Malformed),
    }
}

pub(crate) fn read_time(from: &mut Reader<'_>) -> Result<Time> {
    let (seconds, nanoseconds) = (from.u32()?, from.u32()?);
    Ok(Time::from_seconds(seconds.into(), nanoseconds.min(NANOSECONDS as u32 - 1)))
}

/// Maps an error of the view to an NFS status.
pub(crate) fn status(error: &Error) -> nfsstat3 {
    use nfsstat3 as S;
    match error {
        Error::StaleCookie => return S::NFS3ERR_BAD_COOKIE,
        Error::Unsupported(_) => return S::NFS3ERR_NOTSUPP,
        _ => {}
    }
    // Linux error numbers.
    match error.errno() {
        1 => S::NFS3ERR_PERM,
        2 => S::NFS3ERR_NOENT,
        6 => S::NFS3ERR_NXIO,
        11 => S::NFS3ERR_JUKEBOX,
        // NFSv3 has no EBUSY.
        13 | 16 => S::NFS3ERR_ACCES,
        17 => S::NFS3ERR_EXIST,
        18 => S::NFS3ERR_XDEV,
        20 => S::NFS3ERR_NOTDIR,
        21 => S::NFS3ERR_ISDIR,
        22 => S::NFS3ERR_INVAL,
        27 => S::NFS3ERR_FBIG,
        28 => S::NFS3ERR_NOSPC,
        30 => S::NFS3ERR_ROFS,
        31 => S::NFS3ERR_MLINK,
        36 => S::NFS3ERR_NAMETOOLONG,
        39 => S::NFS3ERR_NOTEMPTY,
        95 => S::NFS3ERR_NOTSUPP,
        116 => S::NFS3ERR_STALE,
        122 => S::NFS3ERR_DQUOT,
        _ => S::NFS3ERR_IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_range_become_the_nearest_one() {
        let told = |nanoseconds: i64| {
            let told = time(Time(nanoseconds));
            (told.seconds, told.nseconds)
        };
        assert_eq!(told(1_500_000_000), (1, 500_000_000));
        assert_eq!(told(-1), (0, 0));
        assert_eq!(told(i64::MAX), (u32::MAX, 0));
    }

    #[test]
    fn refusals_have_their_own_status() {
        assert_eq!(status(&Error::Stale(7)), nfsstat3::NFS3ERR_STALE);
        assert_eq!(status(&Error::StaleCookie), nfsstat3::NFS3ERR_BAD_COOKIE);
        assert_eq!(status(&Error::ReadOnly), nfsstat3::NFS3ERR_ROFS);
        assert_eq!(status(&Error::Quota { max: 1 }), nfsstat3::NFS3ERR_DQUOT);
        assert_eq!(status(&Error::Journal(String::new())), nfsstat3::NFS3ERR_IO);
    }
}
