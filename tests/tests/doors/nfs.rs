//! Calls of NFS to a server in this process. What the protocol has no words for goes to the view itself: extended attributes, holes, and
//! names that are exchanged.

use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::WorkingTree;
use amalgam_engine::work::{RenameMode, Special};
use amalgam_nfs::client::{Client, Reply};
use amalgam_nfs::{Credentials, ExportSpec, Exports, Server, ServerOptions};
use amalgam_policy::Guard;
use amalgam_tests::model::{Op, Raw};
use amalgam_view::{Caller, Handle, Ino, ROOT, SizeChange, XattrSet};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};

use crate::door::Door;
use crate::host::{Host, now};

const PATH: &str = "/p/w";
const PIECE_BYTES: usize = 1 << 20;

pub(crate) struct NfsDoor {
    host: Host,
    server: Option<Server>,
    client: Client,
    root: nfs_fh3,
}

type Result<T> = std::result::Result<T, nfsstat3>;

impl NfsDoor {
    pub(crate) fn new() -> Self {
        let host = Host::new();
        host.view.keep_handles().expect("handles");
        let exports = Exports::new([1; 32]);
        let credentials = Credentials::Trusted { squash_root: false };
        let spec = ExportSpec { credentials, durable: false, ..ExportSpec::new(PATH, (0, 0)) };
        exports.add(spec, Arc::new(host.view.clone())).expect("exported");
        let listener = amalgam_nfs::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let server = Server::start(listener, Arc::new(exports), &ServerOptions::new(now)).expect("a server");
        let mut client = Client::connect(server.address()).expect("connected");
        client.act_as(0, 0, &[]);
        let root = client.root(PATH).expect("answered").expect("mounted");
        Self { host, server: Some(server), client, root }
    }

    fn call<T: Unpack, E: Unpack>(&mut self, procedure: NFS_PROGRAM, arguments: &impl Pack) -> Result<T> {
        let reply: Reply<Nfs3Result<T, E>> = self.client.nfs(procedure, arguments).expect("answered");
        match reply.result() {
            Nfs3Result::Ok(ok) => Ok(ok),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    fn look_in(&mut self, directory: &nfs_fh3, name: &[u8]) -> Result<(nfs_fh3, fattr3)> {
        let found: LOOKUP3resok =
            self.call::<_, LOOKUP3resfail>(NFS_PROGRAM::NFSPROC3_LOOKUP, &LOOKUP3args { what: at(directory, name) })?;
        Ok((found.object, found.obj_attributes.unwrap()))
    }

    /// The directory of a path's last name, and that name.
    fn parent<'a>(&mut self, path: &'a Raw) -> Result<(nfs_fh3, &'a [u8])> {
        let mut names: Vec<&[u8]> = path.0.split(|byte| *byte == b'/').collect();
        let last = names.pop().unwrap_or_default();
        let mut here = self.root.clone();
        for name in names {
            here = self.look_in(&here, name)?.0;
        }
        Ok((here, last))
    }

    fn look(&mut self, path: &Raw) -> Result<(nfs_fh3, fattr3)> {
        let (parent, name) = self.parent(path)?;
        self.look_in(&parent, name)
    }

    /// A plain file.
    fn file(&mut self, path: &Raw) -> Result<(nfs_fh3, u64)> {
        let (handle, found) = self.look(path)?;
        if found.type_ == ftype3::NF3REG { Ok((handle, found.size)) } else { Err(nfsstat3::NFS3ERR_INVAL) }
    }

    fn set(&mut self, object: nfs_fh3, new_attributes: sattr3) -> Result<()> {
        let arguments = SETATTR3args { object, new_attributes, guard: sattrguard3::None };
        self.call::<SETATTR3resok, SETATTR3resfail>(NFS_PROGRAM::NFSPROC3_SETATTR, &arguments).map(drop)
    }

    fn set_mode(&mut self, object: nfs_fh3, mode: u32) -> Result<()> {
        self.set(object, of_mode(mode))
    }

    fn truncate(&mut self, object: nfs_fh3, size: u64) -> Result<()> {
        self.set(object, sattr3 { size: set_size3::Some(size), ..sattr3::default() })
    }

    fn create(&mut self, path: &Raw, how: createhow3) -> Result<nfs_fh3> {
        let (parent, name) = self.parent(path)?;
        let arguments = CREATE3args { where_: at(&parent, name), how };
        let made: CREATE3resok = self.call::<_, CREATE3resfail>(NFS_PROGRAM::NFSPROC3_CREATE, &arguments)?;
        Ok(made.obj.unwrap())
    }

    fn make_directory(&mut self, parent: &nfs_fh3, name: &[u8], mode: u32) -> Result<nfs_fh3> {
        let arguments = MKDIR3args { where_: at(parent, name), attributes: of_mode(mode) };
        let made: MKDIR3resok = self.call::<_, MKDIR3resfail>(NFS_PROGRAM::NFSPROC3_MKDIR, &arguments)?;
        Ok(made.obj.unwrap())
    }

    fn write(&mut self, file: &nfs_fh3, offset: u64, bytes: &[u8]) -> Result<()> {
        for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let arguments = WRITE3args {
                file: file.clone(),
                offset: offset + (number * PIECE_BYTES) as u64,
                count: piece.len() as u32,
                stable: stable_how::UNSTABLE,
                data: Opaque::borrowed(piece),
            };
            self.call::<WRITE3resok, WRITE3resfail>(NFS_PROGRAM::NFSPROC3_WRITE, &arguments)?;
        }
        Ok(())
    }

    fn create_directories(&mut self, path: &Raw) -> Result<()> {
        let mut here = self.root.clone();
        for name in path.0.split(|byte| *byte == b'/') {
            here = match self.look_in(&here, name) {
                Ok((found, attributes)) if attributes.type_ == ftype3::NF3DIR => found,
                Ok(_) => return Err(nfsstat3::NFS3ERR_NOTDIR),
                Err(nfsstat3::NFS3ERR_NOENT) => self.make_directory(&here, name, 0o755)?,
                Err(status) => return Err(status),
            };
        }
        Ok(())
    }

    fn names(&mut self, directory: &nfs_fh3) -> Result<Vec<Vec<u8>>> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let cookieverf = cookieverf3::default();
            let arguments = READDIR3args { dir: directory.clone(), cookie, cookieverf, count: 4_096 };
            let found: READDIR3resok<'_> =
                self.call::<_, READDIR3resfail>(NFS_PROGRAM::NFSPROC3_READDIR, &arguments)?;
            for entry in found.reply.entries.0 {
                cookie = entry.cookie;
                names.push(entry.name.as_ref().to_vec());
            }
            if found.reply.eof {
                names.retain(|name| !matches!(&name[..], b"." | b".."));
                return Ok(names);
            }
        }
    }

    fn remove(&mut self, parent: &nfs_fh3, name: &[u8]) -> Result<()> {
        let arguments = REMOVE3args { object: at(parent, name) };
        self.call::<REMOVE3resok, REMOVE3resfail>(NFS_PROGRAM::NFSPROC3_REMOVE, &arguments).map(drop)
    }

    fn remove_directory(&mut self, parent: &nfs_fh3, name: &[u8]) -> Result<()> {
        let arguments = RMDIR3args { object: at(parent, name) };
        self.call::<RMDIR3resok, RMDIR3resfail>(NFS_PROGRAM::NFSPROC3_RMDIR, &arguments).map(drop)
    }

    fn remove_all(&mut self, parent: &nfs_fh3, name: &[u8]) -> Result<()> {
        let (handle, found) = self.look_in(parent, name)?;
        if found.type_ != ftype3::NF3DIR {
            return self.remove(parent, name);
        }
        for below in self.names(&handle)? {
            self.remove_all(&handle, &below)?;
        }
        self.remove_directory(parent, name)
    }

    fn special(&mut self, path: &Raw, special: Special, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let dev = |device: amalgam_view::Device| devicedata3 {
            dev_attributes: of_mode(mode),
            spec: specdata3 { specdata1: device.major, specdata2: device.minor },
        };
        let what = match special {
            Special::Fifo => mknoddata3::NF3FIFO(of_mode(mode)),
            Special::Socket => mknoddata3::NF3SOCK(of_mode(mode)),
            Special::CharDevice(device) => mknoddata3::NF3CHR(dev(device)),
            Special::BlockDevice(device) => mknoddata3::NF3BLK(dev(device)),
        };
        let arguments = MKNOD3args { where_: at(&parent, name), what };
        self.call::<MKNOD3resok, MKNOD3resfail>(NFS_PROGRAM::NFSPROC3_MKNOD, &arguments).map(drop)
    }

    fn rename(&mut self, from: &Raw, to: &Raw, mode: RenameMode) -> Result<()> {
        let (source, name) = self.parent(from)?;
        let (target, new_name) = self.parent(to)?;
        if mode == RenameMode::NoReplace && self.look_in(&target, new_name).is_ok() {
            return Err(nfsstat3::NFS3ERR_EXIST);
        }
        if mode == RenameMode::Exchange {
            let (source, target) = (self.ino(&source), self.ino(&target));
            let (view, root) = (&self.host.view, Caller::owner(0, 0));
            return view.rename(&root, (source, name), (target, new_name), mode).map_err(|_| nfsstat3::NFS3ERR_IO);
        }
        let arguments = RENAME3args { from: at(&source, name), to: at(&target, new_name) };
        self.call::<RENAME3resok, RENAME3resfail>(NFS_PROGRAM::NFSPROC3_RENAME, &arguments).map(drop)
    }

    /// The inode of a handle: the number that attributes tell is the view's.
    fn ino(&mut self, handle: &nfs_fh3) -> Ino {
        let arguments = GETATTR3args { object: handle.clone() };
        let found: GETATTR3resok =
            self.call::<_, Void>(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments).expect("it was just looked up");
        found.obj_attributes.fileid
    }

    fn done(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create { path, mode } => {
                let made = self.create(path, createhow3::GUARDED(of_mode(*mode)))?;
                self.set_mode(made, *mode)
            }
            Op::Write { path, fill } => {
                let size = set_size3::Some(0);
                let file = self.create(path, createhow3::UNCHECKED(sattr3 { size, ..of_mode(0o644) }))?;
                self.write(&file, 0, &fill.bytes())
            }
            Op::WriteAt { path, offset, fill } => {
                let (file, _) = self.file(path)?;
                self.write(&file, *offset, &fill.bytes())
            }
            Op::Append { path, fill } => {
                let (file, size) = self.file(path)?;
                self.write(&file, size, &fill.bytes())
            }
            Op::Truncate { path, size } => {
                let (file, _) = self.file(path)?;
                self.truncate(file, *size)
            }
            Op::PunchHole { path, start, end } => {
                let (file, size) = self.file(path)?;
                let (ino, end) = (self.ino(&file), (*end).min(size));
                if *start >= end {
                    return Ok(());
                }
                let punched = self.host.view.punch(&Caller::owner(0, 0), ino, *start, end - start, SizeChange::Keep);
                punched.map_err(|_| nfsstat3::NFS3ERR_IO)
            }
            Op::CreateDirectory { path, mode } => {
                let (parent, name) = self.parent(path)?;
                let made = self.make_directory(&parent, name, *mode)?;
                self.set_mode(made, *mode)
            }
            Op::CreateDirectories { path } => self.create_directories(path),
            Op::Symlink { path, target } => {
                let (parent, name) = self.parent(path)?;
                let symlink_data = nfspath3(Opaque::borrowed(&target.0));
                let symlink = symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data };
                let arguments = SYMLINK3args { where_: at(&parent, name), symlink };
                self.call::<SYMLINK3resok, SYMLINK3resfail>(NFS_PROGRAM::NFSPROC3_SYMLINK, &arguments).map(drop)
            }
            Op::CreateSpecial { path, special, mode } => self.special(path, *special, *mode),
            Op::Link { existing, new } => {
                let (file, _) = self.look(existing)?;
                let (parent, name) = self.parent(new)?;
                let arguments = LINK3args { file, link: at(&parent, name) };
                self.call::<LINK3resok, LINK3resfail>(NFS_PROGRAM::NFSPROC3_LINK, &arguments).map(drop)
            }
            Op::Remove { path } => {
                let (parent, name) = self.parent(path)?;
                self.remove(&parent, name)
            }
            Op::RemoveDirectory { path } => {
                let (parent, name) = self.parent(path)?;
                self.remove_directory(&parent, name)
            }
            Op::RemoveAll { path } => {
                let (parent, name) = self.parent(path)?;
                self.remove_all(&parent, name)
            }
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::SetMode { path, mode } => {
                let (found, _) = self.look(path)?;
                self.set_mode(found, *mode)
            }
            // The protocol's times are others; trees are compared without them.
            Op::SetMtime { path, .. } => {
                let (found, _) = self.look(path)?;
                let time = nfstime3 { seconds: 1_000_000_000, nseconds: 1 };
                self.set(found, sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(time), ..sattr3::default() })
            }
            Op::SetOwner { path, owner } => {
                let (found, before) = self.look(path)?;
                let (uid, gid) = owner.map_or((0, 0), |owner| (owner.uid, owner.gid));
                let set = sattr3 { uid: set_uid3::Some(uid), gid: set_gid3::Some(gid), ..sattr3::default() };
                self.set(found.clone(), set)?;
                // A file that changes hands loses bits, which a tree does not know.
                if before.type_ == ftype3::NF3LNK { Ok(()) } else { self.set_mode(found, before.mode) }
            }
            Op::SetXattr { path, name, value } => {
                let (found, _) = self.look(path)?;
                let ino = self.ino(&found);
                let set =
                    self.host.view.set_xattr(&Caller::owner(0, 0), ino, &name.0, &value.bytes(), XattrSet::Either);
                set.map_err(|_| nfsstat3::NFS3ERR_IO)
            }
            Op::RemoveXattr { path, name } => {
                let (found, _) = self.look(path)?;
                let ino = self.ino(&found);
                match self.host.view.remove_xattr(&Caller::owner(0, 0), ino, &name.0) {
                    Ok(()) | Err(amalgam_view::Error::NoAttribute) => Ok(()),
                    Err(_) => Err(nfsstat3::NFS3ERR_IO),
                }
            }
            Op::SetState { .. } | Op::RemoveState { .. } | Op::SetNow { .. } => unreachable!("not for all doors"),
        }
    }
}

fn at<'a>(directory: &nfs_fh3, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(name)) }
}

fn of_mode(mode: u32) -> sattr3 {
    sattr3 { mode: set_mode3::Some(mode), ..sattr3::default() }
}

impl Door for NfsDoor {
    fn name(&self) -> &'static str {
        "nfs"
    }

    fn perform(&mut self, op: &Op) -> std::result::Result<(), String> {
        self.done(op).map_err(|status| status.to_string())
    }

    fn commit(&mut self) {
        self.host.commit();
    }

    fn tree(&mut self) -> WorkingTree {
        self.host.view.fork()
    }

    fn set_guard(&mut self, guard: Arc<Guard>) {
        self.host.view.set_guard(guard).expect("guarded");
    }

    fn end(&mut self) {
        // The root's handle is known whatever happened.
        assert_eq!(self.host.view.resolve(Handle::ROOT).ok(), Some(ROOT));
        if let Some(server) = self.server.take() {
            server.stop(Duration::from_secs(5));
        }
    }
}
