//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use amalgam_engine::Time;
use amalgam_engine::work::Special;
use amalgam_view::{Access, Attributes, Device, Ino, Kind, ROOT, RenameMode, SetAttributes, TimeSet};
use nfs3_types::nfs3::{
    CREATE3res, CREATE3resfail, CREATE3resok, LINK3res, LINK3resfail, LINK3resok, LOOKUP3res, LOOKUP3resfail,
    LOOKUP3resok, NFS_PROGRAM, Nfs3Result, REMOVE3res, REMOVE3resfail, REMOVE3resok, RENAME3res, RENAME3resfail,
    RENAME3resok, nfsstat3,
};

use super::attributes::apply;
use super::request::{Answer, Refusal, Request, Result, read_handle, read_name};
use crate::convert::{self, read_set};
use crate::xdr::{Malformed, Reader};

/// Default modes.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// Longest symlink target that is decoded. The view refuses targets that are too long with a proper status.
const TARGET_BYTES_MAX: usize = 8_192;
const ROOT_USER: u32 = 0;

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

pub(super) fn lookup(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    from.end()?;
    let result: LOOKUP3res = match find(request, name) {
        Ok(found) => {
            let Some(handle) = request.handle(found.ino) else { return Err(nfsstat3::NFS3ERR_STALE.into()) };
            Nfs3Result::Ok(LOOKUP3resok {
                object: convert::handle(&handle),
                obj_attributes: convert::after(Some(&found), request.fsid()),
                dir_attributes: request.post(request.ino),
            })
        }
        Err(Refusal::Status(status)) => {
            Nfs3Result::Err((status, LOOKUP3resfail { dir_attributes: request.post(request.ino) }))
        }
        Err(Refusal::Malformed) => return Err(Refusal::Malformed),
    };
    Ok(request.now(&result))
}

/// Looks a name up and holds its inode. `..` of the root is the root.
fn find(request: &Request<'_>, name: &[u8]) -> Result<Attributes> {
    let view = &request.open.view;
    if !is_dots(name) {
        return Ok(view.lookup(&request.caller, request.ino, name)?);
    }
    let here = view.attributes(request.ino)?;
    if here.kind != Kind::Directory {
        return Err(nfsstat3::NFS3ERR_NOTDIR.into());
    }
    request.demand(&here, Access::EXECUTE)?;
    let ino = if name == b"." { request.ino } else { view.directory_of(request.ino).unwrap_or(ROOT) };
    view.hold(ino);
    Ok(view.attributes(ino).inspect_err(|_| view.forget([(ino, 1)]))?)
}

/// Answers procedures that create something; their results have the same layout.
fn made(
    request: &Request<'_>,
    procedure: NFS_PROGRAM,
    name: &[u8],
    make: impl FnOnce() -> Result<Attributes>,
) -> Result<Answer> {
    let (done, dir_wcc) = request.change(request.ino, || {
        if is_dots(name) {
            return Err(nfsstat3::NFS3ERR_EXIST.into());
        }
        make()
    });
    match done {
        Ok(made) => {
            let handle = request.handle(made.ino);
            let result: CREATE3res = Nfs3Result::Ok(CREATE3resok {
                obj: convert::maybe_handle(handle.as_ref().map(|handle| &handle[..])),
                obj_attributes: convert::after(Some(&made), request.fsid()),
                dir_wcc,
            });
            Ok(request.changed(procedure, &result))
        }
        Err(Refusal::Status(status)) => {
            let result: CREATE3res = Nfs3Result::Err((status, CREATE3resfail { dir_wcc }));
            Ok(request.now(&result))
        }
        Err(Refusal::Malformed) => Err(Refusal::Malformed),
    }
}

/// Sets the attributes of a new inode, except the mode, which it already has. Removes the inode on failure.
fn set_initial_attributes(
    request: &Request<'_>,
    name: &[u8],
    made: Attributes,
    set: SetAttributes,
) -> Result<Attributes> {
    let view = &request.open.view;
    let differs = |wanted: Option<u32>, given: u32| wanted.filter(|wanted| *wanted != given);
    let size = set.size.filter(|size| *size != made.size);
    let set =
        SetAttributes { mode: None, uid: differs(set.uid, made.uid), gid: differs(set.gid, made.gid), size, ..set };
    if let Err(refused) = apply(request, &made, set) {
        view.forget([(made.ino, 1)]);
        match made.kind {
            Kind::Directory => view.remove_directory(&request.caller, request.ino, name).ok(),
            _ => view.unlink(&request.caller, request.ino, name).ok(),
        };
        return Err(refused);
    }
    Ok(view.attributes(made.ino)?)
}

/// Creation mode of CREATE.
enum CreateMode {
    Unchecked(SetAttributes),
    Guarded(SetAttributes),
    Exclusive(Time),
}

pub(super) fn create(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    let create_mode = match from.u32()? {
        0 => CreateMode::Unchecked(read_set(&mut from)?),
        1 => CreateMode::Guarded(read_set(&mut from)?),
        2 => CreateMode::Exclusive(Time(i64::from_be_bytes(from.verifier()?))),
        _ => return Err(Malformed.into()),
    };
    from.end()?;
    let view = &request.open.view;
    let mode = |set: &SetAttributes| set.mode.unwrap_or(FILE_MODE);
    made(request, NFS_PROGRAM::NFSPROC3_CREATE, name, || match create_mode {
        CreateMode::Guarded(set) => {
            let made = view.create(&request.caller, request.ino, name, mode(&set))?;
            set_initial_attributes(request, name, made, set)
        }
        CreateMode::Unchecked(set) => match view.create(&request.caller, request.ino, name, mode(&set)) {
            Ok(made) => set_initial_attributes(request, name, made, set),
            Err(error) if convert::status(&error) == nfsstat3::NFS3ERR_EXIST => take_existing(request, name, set),
            Err(error) => Err(error.into()),
        },
        CreateMode::Exclusive(verifier) => create_exclusively(request, name, verifier),
    })
}

/// Handles UNCHECKED creation of an existing file: sets only the size.
fn take_existing(request: &Request<'_>, name: &[u8], set: SetAttributes) -> Result<Attributes> {
    let view = &request.open.view;
    let found = view.lookup(&request.caller, request.ino, name)?;
    let cut = || -> Result<Attributes> {
        if found.kind != Kind::File {
            return Err(nfsstat3::NFS3ERR_EXIST.into());
        }
        if set.size.is_some() {
            request.demand(&found, Access::WRITE)?;
            apply(request, &found, SetAttributes { size: set.size, ..SetAttributes::default() })?;
        }
        Ok(view.attributes(found.ino)?)
    };
    cut().inspect_err(|_| view.forget([(found.ino, 1)]))
}

/// Handles EXCLUSIVE creation. Stores the verifier in mtime until the client sets mtime, so that a retransmission is recognised
/// even after a crash of the server.
fn create_exclusively(request: &Request<'_>, name: &[u8], verifier: Time) -> Result<Attributes> {
    let view = &request.open.view;
    match view.create(&request.caller, request.ino, name, 0) {
        Ok(made) => {
            let set =
                SetAttributes { mode: Some(FILE_MODE), mtime: Some(TimeSet::At(verifier)), ..SetAttributes::default() };
            let unchecked = amalgam_view::Caller { enforce: false, ..request.caller.clone() };
            let marked = view.set_attributes(&unchecked, made.ino, &set);
            Ok(marked.inspect_err(|_| view.forget([(made.ino, 1)]))?)
        }
        Err(error) if convert::status(&error) == nfsstat3::NFS3ERR_EXIST => {
            let found = view.lookup(&request.caller, request.ino, name)?;
            if found.kind == Kind::File && found.size == 0 && found.mtime == verifier {
                return Ok(found);
            }
            view.forget([(found.ino, 1)]);
            Err(nfsstat3::NFS3ERR_EXIST.into())
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) fn make_directory(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    let set = read_set(&mut from)?;
    from.end()?;
    made(request, NFS_PROGRAM::NFSPROC3_MKDIR, name, || {
        let mode = set.mode.unwrap_or(DIRECTORY_MODE);
        let made = request.open.view.create_directory(&request.caller, request.ino, name, mode)?;
        set_initial_attributes(request, name, made, SetAttributes { size: None, ..set })
    })
}

pub(super) fn make_symlink(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    let set = read_set(&mut from)?;
    let target = from.opaque(TARGET_BYTES_MAX)?;
    from.end()?;
    made(request, NFS_PROGRAM::NFSPROC3_SYMLINK, name, || {
        if target.is_empty() || target.contains(&0) {
            return Err(nfsstat3::NFS3ERR_INVAL.into());
        }
        let made = request.open.view.create_symlink(&request.caller, request.ino, name, target)?;
        set_initial_attributes(request, name, made, SetAttributes { size: None, ..set })
    })
}

pub(super) fn make_node(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    let kind = from.u32()?;
    let node = match kind {
        3 | 4 => {
            let set = read_set(&mut from)?;
            let device = Device { major: from.u32()?, minor: from.u32()? };
            let special = if kind == 3 { Special::BlockDevice(device) } else { Special::CharDevice(device) };
            Some((special, set))
        }
        6 => Some((Special::Socket, read_set(&mut from)?)),
        7 => Some((Special::Fifo, read_set(&mut from)?)),
        _ => None,
    };
    if node.is_some() {
        from.end()?;
    }
    made(request, NFS_PROGRAM::NFSPROC3_MKNOD, name, || {
        let (special, set) = node.ok_or(nfsstat3::NFS3ERR_BADTYPE)?;
        let is_device = matches!(special, Special::CharDevice(_) | Special::BlockDevice(_));
        if is_device && request.caller.uid != ROOT_USER {
            return Err(nfsstat3::NFS3ERR_PERM.into());
        }
        let mode = set.mode.unwrap_or(FILE_MODE);
        let made = request.open.view.create_special(&request.caller, request.ino, name, special, mode)?;
        set_initial_attributes(request, name, made, SetAttributes { size: None, ..set })
    })
}

pub(super) fn remove(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    from.end()?;
    removed(request, NFS_PROGRAM::NFSPROC3_REMOVE, || {
        Ok(request.open.view.unlink(&request.caller, request.ino, name)?)
    })
}

pub(super) fn remove_directory(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    from.end()?;
    removed(request, NFS_PROGRAM::NFSPROC3_RMDIR, || {
        if name == b".." {
            return Err(nfsstat3::NFS3ERR_NOTEMPTY.into());
        }
        Ok(request.open.view.remove_directory(&request.caller, request.ino, name)?)
    })
}

fn removed(request: &Request<'_>, procedure: NFS_PROGRAM, remove: impl FnOnce() -> Result<()>) -> Result<Answer> {
    let (done, dir_wcc) = request.change(request.ino, remove);
    match done {
        Ok(()) => Ok(request.changed(procedure, &REMOVE3res::Ok(REMOVE3resok { dir_wcc }))),
        Err(Refusal::Status(status)) => Ok(request.now(&REMOVE3res::Err((status, REMOVE3resfail { dir_wcc })))),
        Err(Refusal::Malformed) => Err(Refusal::Malformed),
    }
}

pub(super) fn rename(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let name = read_name(&mut from)?;
    let target = read_handle(&mut from)?;
    let new_name = read_name(&mut from)?;
    from.end()?;
    let target: Ino = request.second(target)?;
    let (done, [fromdir_wcc, todir_wcc]) = request.change_both([request.ino, target], || {
        let (source, target) = ((request.ino, name), (target, new_name));
        Ok(request.open.view.rename(&request.caller, source, target, RenameMode::Replace)?)
    });
    match done {
        Ok(()) => {
            let result = RENAME3res::Ok(RENAME3resok { fromdir_wcc, todir_wcc });
            Ok(request.changed(NFS_PROGRAM::NFSPROC3_RENAME, &result))
        }
        Err(Refusal::Status(status)) => {
            Ok(request.now(&RENAME3res::Err((status, RENAME3resfail { fromdir_wcc, todir_wcc }))))
        }
        Err(Refusal::Malformed) => Err(Refusal::Malformed),
    }
}

pub(super) fn link(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let directory = read_handle(&mut from)?;
    let name = read_name(&mut from)?;
    from.end()?;
    let directory = request.second(directory)?;
    let view = &request.open.view;
    let (done, linkdir_wcc) = request.change(directory, || {
        if is_dots(name) {
            return Err(nfsstat3::NFS3ERR_EXIST.into());
        }
        let linked = view.link(&request.caller, request.ino, directory, name)?;
        view.forget([(linked.ino, 1)]);
        Ok(())
    });
    let file_attributes = request.post(request.ino);
    match done {
        Ok(()) => {
            let result = LINK3res::Ok(LINK3resok { file_attributes, linkdir_wcc });
            Ok(request.changed(NFS_PROGRAM::NFSPROC3_LINK, &result))
        }
        Err(Refusal::Status(status)) => {
            Ok(request.now(&LINK3res::Err((status, LINK3resfail { file_attributes, linkdir_wcc }))))
        }
        Err(Refusal::Malformed) => Err(Refusal::Malformed),
    }
}
