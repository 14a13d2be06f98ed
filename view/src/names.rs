//! Names: looking them up, making them, moving them, taking them away.

use amalgam_engine::object::Owner;
use amalgam_engine::work::{LooseFile, RenameMode, Special};
use amalgam_engine::{Error as EngineError, Name, Time, TreePath};

use crate::access::{Access, demand_removable};
use crate::acl::{self, Acl};
use crate::attributes::{Attributes, Caller, Kind};
use crate::error::{Error, Result};
use crate::inodes::{Ino, Place, ROOT, Whereabouts};
use crate::journal::Edit;
use crate::notice::Notice;
use crate::view::{Live, View};

/// Set-group-ID, and what a new directory takes over of it.
const SET_GROUP: u32 = 0o2000;

/// A directory in which names change.
struct Parent {
    ino: Ino,
    path: TreePath,
    attributes: Attributes,
}

impl Parent {
    /// The path of a name that is made here, or moved or removed. Where a path is made its depth is checked.
    fn child(&self, name: &Name) -> Result<TreePath> {
        Ok(self.path.child(name).map_err(EngineError::from)?)
    }
}

impl View {
    /// What a name stands for, held until it is forgotten as often.
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let name = checked(name)?;
        let mut live = self.shared.live.write();
        let directory = self.parent(&mut live, parent)?;
        live.demand(caller, &directory.attributes, Access::EXECUTE)?;
        let place = Place { parent, name };
        match live.look(self, &directory.path, place.clone())? {
            Some(found) => {
                live.inodes.hold(found.ino);
                live.inodes.see(&found);
                Ok(found)
            }
            None => Err(EngineError::NotFound { path: directory.path.join(&place.name) }.into()),
        }
    }

    /// Holds an inode once more.
    pub fn hold(&self, ino: Ino) {
        self.shared.live.write().inodes.hold(ino);
    }

    /// Gives back so many holds of each.
    pub fn forget(&self, inodes: impl IntoIterator<Item = (Ino, u64)>) {
        let mut live = self.shared.live.write();
        for (ino, lookups) in inodes {
            live.inodes.forget(ino, lookups);
        }
    }

    /// Makes an empty file, held.
    pub fn create(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attributes> {
        let edit = |path, mode, owner| Edit::Create { path, mode, owner };
        self.make(caller, parent, name, (Kind::File, mode), edit)
    }

    /// Makes a directory, held.
    pub fn create_directory(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attributes> {
        let edit = |path, mode, owner| Edit::CreateDirectory { path, mode, owner };
        self.make(caller, parent, name, (Kind::Directory, mode), edit)
    }

    /// Makes a symlink, held.
    pub fn create_symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attributes> {
        let edit = |path, _, owner| Edit::Symlink { path, target: target.to_vec(), owner };
        self.make(caller, parent, name, (Kind::Symlink, 0o777), edit)
    }

    /// Makes a FIFO, a socket or a device, held.
    pub fn create_special(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        special: Special,
        mode: u32,
    ) -> Result<Attributes> {
        let kind = match special {
            Special::Fifo => Kind::Fifo,
            Special::Socket => Kind::Socket,
            Special::CharDevice(_) => Kind::CharDevice,
            Special::BlockDevice(_) => Kind::BlockDevice,
        };
        let edit = |path, mode, owner| Edit::Special { path, special, mode, owner };
        self.make(caller, parent, name, (kind, mode), edit)
    }

    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        (kind, mode): (Kind, u32),
        edit: impl FnOnce(TreePath, u32, Option<Owner>) -> Edit,
    ) -> Result<Attributes> {
        let name = checked(name)?;
        let live = &mut *self.shared.live.write();
        let directory = self.changeable(live, caller, parent)?;
        let path = directory.child(&name)?;
        if live.is_placed(&path) || live.tree.exists(&path)? {
            return Err(EngineError::Exists { path }.into());
        }
        self.demand_quota(live, 0)?;
        let inherits = directory.attributes.mode & SET_GROUP != 0;
        let gid = if inherits { directory.attributes.gid } else { caller.gid };
        let inherited = if inherits && kind == Kind::Directory { SET_GROUP } else { 0 };
        let now = self.now();
        let lists = live.inherited_lists(&directory.path, kind, mode)?;
        let mode = match &lists {
            Some(lists) => mode & 0o7000 | lists.mode,
            None => mode & 0o7777 & !caller.umask,
        };
        let owner = self.stored_owner(caller.uid, gid);
        match lists {
            None => live.edit(&edit(path, mode | inherited, owner), now, &[])?,
            Some(lists) => {
                let set = lists.set.into_iter().map(|(name, value)| Edit::SetXattr {
                    path: path.clone(),
                    name: name.to_vec(),
                    value,
                });
                let set: Vec<_> = set.collect();
                live.edit_all([edit(path, mode | inherited, owner)].iter().chain(&set), now)?;
            }
        }
        let place = Place { parent, name };
        debug_assert!(live.inodes.at(&place).is_none(), "nothing was there");
        live.inodes.renew(&place);
        let ino = live.inodes.insert(place.clone(), kind);
        live.inodes.hold(ino);
        live.inodes.keep(ino, Default::default());
        if kind == Kind::Directory {
            live.inodes.begin_counting(ino);
            live.inodes.count(parent, true);
        }
        live.touch_names(parent, now, directory.attributes.atime);
        self.tell_changed(caller, &place);
        let made = live.attributes(self, ino)?;
        live.inodes.see(&made);
        Ok(made)
    }

    /// Gives a file one more name; held once more.
    pub fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let name = checked(name)?;
        let live = &mut *self.shared.live.write();
        let directory = self.changeable(live, caller, parent)?;
        let before = live.attributes(self, ino)?;
        if before.kind == Kind::Directory {
            return Err(Error::NotOwner);
        }
        let Some(existing) = live.path(ino)? else {
            return Err(EngineError::NotFound { path: TreePath::root() }.into());
        };
        let new = directory.child(&name)?;
        if live.is_placed(&new) || live.tree.exists(&new)? {
            return Err(EngineError::Exists { path: new }.into());
        }
        let now = self.now();
        live.edit(&Edit::Link { existing, new }, now, &[])?;
        let place = Place { parent, name };
        live.inodes.add_place(ino, place.clone());
        live.inodes.hold(ino);
        live.touch(ino, now, before.mtime);
        live.touch_names(parent, now, directory.attributes.atime);
        self.tell_changed(caller, &place);
        self.tell(caller, || Notice::Attributes(ino));
        live.attributes(self, ino)
    }

    /// Takes a name away from anything but a directory. Whoever holds the file goes on with it.
    pub fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let name = checked(name)?;
        let live = &mut *self.shared.live.write();
        let directory = self.changeable(live, caller, parent)?;
        let place = Place { parent, name };
        let path = directory.child(&place.name)?;
        let found = self.removable(live, caller, &directory, place.clone())?;
        live.demand_free(&path)?;
        if found.kind == Kind::Directory {
            return Err(EngineError::IsADirectory { path }.into());
        }
        let now = self.now();
        let fate = self.fate(live, found.ino, &path)?;
        live.edit(&Edit::Remove { path }, now, &[]).inspect_err(|_| live.let_go(Some(&fate)))?;
        self.displaced(live, &place, now, found.mtime, fate);
        live.touch_names(parent, now, directory.attributes.atime);
        self.tell_changed(caller, &place);
        self.tell(caller, || Notice::Attributes(found.ino));
        Ok(())
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let name = checked(name)?;
        let live = &mut *self.shared.live.write();
        let directory = self.changeable(live, caller, parent)?;
        let place = Place { parent, name };
        let path = directory.child(&place.name)?;
        let found = self.removable(live, caller, &directory, place.clone())?;
        live.demand_free(&path)?;
        if found.kind != Kind::Directory {
            return Err(EngineError::NotADirectory { path }.into());
        }
        demand_empty(live, &path)?;
        let now = self.now();
        live.edit(&Edit::RemoveDirectory { path }, now, &[])?;
        live.inodes.remove_place(&place);
        live.inodes.detach(found.ino, gone(found, now));
        live.inodes.count(parent, false);
        live.touch_names(parent, now, directory.attributes.atime);
        self.tell_changed(caller, &place);
        Ok(())
    }

    /// Moves a name, with all of POSIX's cases.
    pub fn rename(&self, caller: &Caller, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Result<()> {
        let source = Place { parent: from.0, name: checked(from.1)? };
        let target = Place { parent: to.0, name: checked(to.1)? };
        let live = &mut *self.shared.live.write();
        let source_directory = self.changeable(live, caller, source.parent)?;
        let target_directory = self.changeable(live, caller, target.parent)?;
        let (from, to) = (source_directory.child(&source.name)?, target_directory.child(&target.name)?);
        let moving = self.removable(live, caller, &source_directory, source.clone())?;
        live.demand_free(&from)?;
        live.demand_free(&to)?;
        let replaced = live.look(self, &target_directory.path, target.clone())?;
        if let Some(replaced) = &replaced {
            if mode == RenameMode::NoReplace {
                return Err(EngineError::Exists { path: to }.into());
            }
            demand_removable(caller, &target_directory.attributes, replaced)?;
            if replaced.ino == moving.ino {
                return Ok(());
            }
        }
        // A directory that moves elsewhere gets another `..`, so it must be writable itself.
        if moving.kind == Kind::Directory && source.parent != target.parent {
            live.demand(caller, &moving, Access::WRITE)?;
        }
        let now = self.now();
        let fate = match &replaced {
            Some(replaced) if mode != RenameMode::Exchange => match (moving.kind, replaced.kind) {
                (Kind::Directory, Kind::Directory) => demand_empty(live, &to).map(|()| None)?,
                (Kind::Directory, _) => return Err(EngineError::NotADirectory { path: to }.into()),
                (_, Kind::Directory) => return Err(EngineError::IsADirectory { path: to }.into()),
                _ => Some(self.fate(live, replaced.ino, &to)?),
            },
            _ => None,
        };
        live.edit(&Edit::Rename { from, to, mode }, now, &[]).inspect_err(|_| live.let_go(fate.as_ref()))?;
        count_moved(live, mode, (&source, &moving), (&target, replaced.as_ref()));
        match (mode, replaced) {
            (RenameMode::Exchange, Some(other)) => {
                live.inodes.exchange(&source, &target);
                live.touch(other.ino, now, other.mtime);
            }
            (_, replaced) => {
                match (replaced, fate) {
                    (Some(replaced), Some(fate)) => {
                        self.displaced(live, &target, now, replaced.mtime, fate);
                        self.tell(caller, || Notice::Attributes(replaced.ino));
                    }
                    (Some(replaced), None) => {
                        live.inodes.remove_place(&target);
                        live.inodes.detach(replaced.ino, gone(replaced, now));
                    }
                    (None, _) => {}
                }
                live.inodes.move_place(&source, target.clone());
            }
        }
        live.touch(moving.ino, now, moving.mtime);
        for directory in [&source_directory, &target_directory] {
            live.touch_names(directory.ino, now, directory.attributes.atime);
        }
        for place in [&source, &target] {
            self.tell_changed(caller, place);
        }
        Ok(())
    }

    fn tell_changed(&self, caller: &Caller, place: &Place) {
        self.tell(caller, || Notice::Entry { parent: place.parent, name: place.name.clone() });
        self.tell(caller, || Notice::Contents(place.parent));
    }

    /// A directory, to look into.
    fn parent(&self, live: &mut Live, ino: Ino) -> Result<Parent> {
        let attributes = live.attributes(self, ino)?;
        live.inodes.see(&attributes);
        let path = live.directory_path(ino)?;
        if attributes.kind != Kind::Directory {
            return Err(EngineError::NotADirectory { path }.into());
        }
        Ok(Parent { ino, path, attributes })
    }

    /// A directory, to change its names.
    fn changeable(&self, live: &mut Live, caller: &Caller, ino: Ino) -> Result<Parent> {
        live.demand_writable()?;
        let directory = self.parent(live, ino)?;
        if live.is_hidden(&directory.path) {
            return Err(Error::Local { path: directory.path });
        }
        live.demand(caller, &directory.attributes, Access::WRITE.and(Access::EXECUTE))?;
        Ok(directory)
    }

    /// Something whose name may be taken away.
    fn removable(&self, live: &mut Live, caller: &Caller, directory: &Parent, place: Place) -> Result<Attributes> {
        debug_assert_eq!(directory.ino, place.parent);
        let path = directory.path.join(&place.name);
        let found = live.look(self, &directory.path, place)?.ok_or(EngineError::NotFound { path })?;
        demand_removable(caller, &directory.attributes, &found)?;
        Ok(found)
    }

    /// What becomes of the file behind a name that is about to go. All that can fail is looked up here, before it goes.
    fn fate(&self, live: &mut Live, ino: Ino, path: &TreePath) -> Result<Fate> {
        if live.inodes.has_several_places(ino) {
            return Ok(Fate::Known);
        }
        let other = live.tree.names_of(path)?.into_iter().find(|other| other != path);
        Ok(match other {
            Some(other) => Fate::Elsewhere(live.place_of(&other)?),
            None => Fate::Loose(Box::new(live.file(ino)?)),
        })
    }

    /// A name was taken from a file that is not a directory.
    fn displaced(&self, live: &mut Live, place: &Place, now: Time, mtime: Time, fate: Fate) {
        let Some((ino, _)) = live.inodes.remove_place(place) else { return };
        match fate {
            Fate::Loose(file) => return live.inodes.detach(ino, Whereabouts::Loose(file)),
            Fate::Elsewhere(other) => live.inodes.add_place(ino, other),
            Fate::Known => {}
        }
        live.touch(ino, now, mtime);
    }
}

/// What something new takes over of the default access control list of its directory.
struct InheritedLists {
    /// Its permission bits.
    mode: u32,
    /// The lists that it gets, by name.
    set: Vec<(&'static [u8], Vec<u8>)>,
}

/// What becomes of a file that loses a name.
enum Fate {
    /// It was the last one: whoever holds the file goes on with it.
    Loose(Box<LooseFile>),
    /// It has others, of which none is in the table: this is one.
    Elsewhere(Place),
    /// It has others in the table.
    Known,
}

impl Live {
    /// The access control lists of something new in a directory; nothing where the directory has none for it.
    fn inherited_lists(&self, directory: &TreePath, kind: Kind, mode: u32) -> Result<Option<InheritedLists>> {
        if kind == Kind::Symlink {
            return Ok(None);
        }
        let Some(default) = self.tree.xattr(directory, acl::DEFAULT)?.and_then(|list| Acl::parse(&list)) else {
            return Ok(None);
        };
        let access = default.inherited(mode);
        let mut set = Vec::new();
        if !access.is_plain() {
            set.push((acl::ACCESS, access.encode()));
        }
        if kind == Kind::Directory {
            set.push((acl::DEFAULT, default.encode()));
        }
        Ok(Some(InheritedLists { mode: access.mode(), set }))
    }

    /// A name that was to go did not: the directories that were looked up for another one need not be in the table.
    fn let_go(&mut self, fate: Option<&Fate>) {
        if let Some(Fate::Elsewhere(place)) = fate {
            self.inodes.forget(place.parent, 0);
        }
    }

    /// The place of a path, with the directories above it in the table.
    fn place_of(&mut self, path: &TreePath) -> Result<Place> {
        let (above, name) = path.split_last().ok_or(Error::Invalid("the root has no name"))?;
        let mut parent = ROOT;
        let mut here = TreePath::root();
        for name in above.names() {
            let below = here.join(&name);
            let stat = self.tree.stat(&below).map_err(Error::from);
            let stat = stat.and_then(|stat| Ok(stat.ok_or_else(|| EngineError::NotFound { path: below.clone() })?));
            let found = stat.and_then(|stat| self.inode_at(Place { parent, name }, &here, &stat));
            // Nobody holds the ones above it.
            parent = found.inspect_err(|_| self.inodes.forget(parent, 0))?;
            here = below;
        }
        Ok(Place { parent, name })
    }
}

fn gone(found: Attributes, now: Time) -> Whereabouts {
    Whereabouts::Gone(Box::new(Attributes { links: 0, ctime: now, ..found }))
}

/// A rename moves directories from one to another, and may remove one.
fn count_moved(live: &mut Live, mode: RenameMode, from: (&Place, &Attributes), to: (&Place, Option<&Attributes>)) {
    let (source, target) = (from.0.parent, to.0.parent);
    if from.1.kind == Kind::Directory {
        live.inodes.count(source, false);
        live.inodes.count(target, true);
    }
    if to.1.is_some_and(|replaced| replaced.kind == Kind::Directory) {
        live.inodes.count(target, false);
        if mode == RenameMode::Exchange {
            live.inodes.count(source, true);
        }
    }
}

fn demand_empty(live: &Live, path: &TreePath) -> Result<()> {
    match live.tree.list(path)?.next().transpose()? {
        Some(_) => Err(EngineError::NotEmpty { path: path.clone() }.into()),
        None => Ok(()),
    }
}

fn checked(name: &[u8]) -> Result<Name> {
    Ok(Name::new(name).map_err(EngineError::from)?)
}
