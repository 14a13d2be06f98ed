//! The view's own calls.

use std::sync::Arc;

use amalgam_engine::WorkingTree;
use amalgam_policy::Guard;
use amalgam_tests::model::{Op, Raw};
use amalgam_view::{Attributes, Caller, Error, Ino, Kind, ROOT, SetAttributes, SizeChange, TimeSet, XattrSet};

use crate::door::Door;
use crate::host::Host;

pub(crate) struct ViewDoor {
    host: Host,
    caller: Caller,
}

type Done = Result<(), Error>;

impl ViewDoor {
    pub(crate) fn new() -> Self {
        Self { host: Host::new(), caller: Caller::owner(0, 0) }
    }

    /// The directory that a path's last name is in, and that name.
    fn parent<'a>(&self, path: &'a Raw) -> Result<(Ino, &'a [u8]), Error> {
        let mut names: Vec<&[u8]> = path.0.split(|byte| *byte == b'/').collect();
        let last = names.pop().unwrap_or_default();
        let mut here = ROOT;
        for name in names {
            here = self.host.view.lookup(&self.caller, here, name)?.ino;
        }
        Ok((here, last))
    }

    fn look(&self, path: &Raw) -> Result<Attributes, Error> {
        let (parent, name) = self.parent(path)?;
        self.host.view.lookup(&self.caller, parent, name)
    }

    /// A plain file.
    fn file(&self, path: &Raw) -> Result<Attributes, Error> {
        let found = self.look(path)?;
        if found.kind == Kind::File { Ok(found) } else { Err(Error::Invalid("not a file")) }
    }

    fn set(&self, ino: Ino, set: &SetAttributes) -> Done {
        self.host.view.set_attributes(&self.caller, ino, set).map(|_| ())
    }

    fn set_mode(&self, ino: Ino, mode: u32) -> Done {
        self.set(ino, &SetAttributes { mode: Some(mode), ..SetAttributes::default() })
    }

    fn truncate(&self, ino: Ino, size: u64) -> Done {
        self.set(ino, &SetAttributes { size: Some(size), ..SetAttributes::default() })
    }

    fn create_directories(&self, path: &Raw) -> Done {
        let mut here = ROOT;
        for name in path.0.split(|byte| *byte == b'/') {
            let found = match self.host.view.lookup(&self.caller, here, name) {
                Err(error) if error.errno() == 2 => {
                    let made = self.host.view.create_directory(&self.caller, here, name, 0o755)?;
                    // One in a directory with the set-group-ID bit takes that over, which a tree does not know.
                    self.set_mode(made.ino, 0o755)?;
                    made
                }
                found => found?,
            };
            if found.kind != Kind::Directory {
                return Err(Error::Invalid("not a directory"));
            }
            here = found.ino;
        }
        Ok(())
    }

    fn remove_all(&self, parent: Ino, name: &[u8]) -> Done {
        let view = &self.host.view;
        let found = view.lookup(&self.caller, parent, name)?;
        if found.kind != Kind::Directory {
            return view.unlink(&self.caller, parent, name);
        }
        let mut names = Vec::new();
        view.read_directory(&self.caller, found.ino, 2, |listed| {
            names.push(listed.name.to_vec());
            true
        })?;
        for name in names {
            self.remove_all(found.ino, &name)?;
        }
        view.remove_directory(&self.caller, parent, name)
    }

    fn done(&self, op: &Op) -> Done {
        let (view, caller) = (&self.host.view, &self.caller);
        match op {
            Op::Create { path, mode } => {
                let (parent, name) = self.parent(path)?;
                self.set_mode(view.create(caller, parent, name, *mode)?.ino, *mode)
            }
            Op::Write { path, fill } => {
                let (parent, name) = self.parent(path)?;
                let ino = match view.create(caller, parent, name, 0o644) {
                    Ok(made) => made.ino,
                    Err(error) if error.errno() == 17 => self.file(path)?.ino,
                    Err(error) => return Err(error),
                };
                self.truncate(ino, 0)?;
                view.write(caller, ino, 0, &fill.bytes())
            }
            Op::WriteAt { path, offset, fill } => view.write(caller, self.file(path)?.ino, *offset, &fill.bytes()),
            Op::Append { path, fill } => view.append(caller, self.file(path)?.ino, 0, &fill.bytes()).map(|_| ()),
            Op::Truncate { path, size } => self.truncate(self.file(path)?.ino, *size),
            Op::PunchHole { path, start, end } => {
                let found = self.file(path)?;
                let end = (*end).min(found.size);
                if *start >= end {
                    Ok(())
                } else {
                    view.punch(caller, found.ino, *start, end - start, SizeChange::Keep)
                }
            }
            Op::CreateDirectory { path, mode } => {
                let (parent, name) = self.parent(path)?;
                self.set_mode(view.create_directory(caller, parent, name, *mode)?.ino, *mode)
            }
            Op::CreateDirectories { path } => self.create_directories(path),
            Op::Symlink { path, target } => {
                let (parent, name) = self.parent(path)?;
                view.create_symlink(caller, parent, name, &target.0).map(|_| ())
            }
            Op::CreateSpecial { path, special, mode } => {
                let (parent, name) = self.parent(path)?;
                self.set_mode(view.create_special(caller, parent, name, *special, *mode)?.ino, *mode)
            }
            Op::Link { existing, new } => {
                let ino = self.look(existing)?.ino;
                let (parent, name) = self.parent(new)?;
                view.link(caller, ino, parent, name).map(|_| ())
            }
            Op::Remove { path } => {
                let (parent, name) = self.parent(path)?;
                view.unlink(caller, parent, name)
            }
            Op::RemoveDirectory { path } => {
                let (parent, name) = self.parent(path)?;
                view.remove_directory(caller, parent, name)
            }
            Op::RemoveAll { path } => {
                let (parent, name) = self.parent(path)?;
                self.remove_all(parent, name)
            }
            Op::Rename { from, to, mode } => view.rename(caller, self.parent(from)?, self.parent(to)?, *mode),
            Op::SetMode { path, mode } => self.set_mode(self.look(path)?.ino, *mode),
            Op::SetMtime { path, mtime } => self.set(
                self.look(path)?.ino,
                &SetAttributes { mtime: Some(TimeSet::At(*mtime)), ..SetAttributes::default() },
            ),
            Op::SetOwner { path, owner } => {
                let found = self.look(path)?;
                let (uid, gid) = owner.map_or((0, 0), |owner| (owner.uid, owner.gid));
                self.set(found.ino, &SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() })?;
                // A file that changes hands loses bits, which a tree does not know.
                if found.kind == Kind::Symlink { Ok(()) } else { self.set_mode(found.ino, found.mode) }
            }
            Op::SetXattr { path, name, value } => {
                view.set_xattr(caller, self.look(path)?.ino, &name.0, &value.bytes(), XattrSet::Either)
            }
            Op::RemoveXattr { path, name } => match view.remove_xattr(caller, self.look(path)?.ino, &name.0) {
                Err(Error::NoAttribute) => Ok(()),
                done => done,
            },
            Op::SetState { .. } | Op::RemoveState { .. } | Op::SetNow { .. } => unreachable!("not for all doors"),
        }
    }
}

impl Door for ViewDoor {
    fn name(&self) -> &'static str {
        "view"
    }

    fn perform(&mut self, op: &Op) -> Result<(), String> {
        self.done(op).map_err(|error| error.to_string())
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
}
