//! The inode table: the inode numbers that callers hold, their dentries, cached attributes and file handles.
//!
//! An inode number is a hash of the dentry at which the inode was first looked up, so it is equal after a remount: git, tar and others
//! remember inode numbers. If that number is in use, or was used for another inode in the life of this view, a number from a counter
//! replaces it. So no number identifies two inodes while the view lives.

use std::path::Path;

use amalgam_engine::work::LooseFile;
use amalgam_engine::{Name, Time, TreePath};
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use crate::attributes::{Attributes, Ino, Kind, ROOT};
use crate::dentry::{COUNTER_BIT, Dentry};
use crate::error::{Error, Result};
use crate::handles::{Handle, HandleState, HandleTable};
use crate::path_cache::PathCache;

/// Limit of retired numbers that are remembered. Beyond it every new number comes from the counter.
const RETIRED_MAX: usize = 1 << 20;
/// Limit of inodes whose times differ from the times in the tree.
const TIMES_MAX: usize = 1 << 21;
/// Limit of numbers that are remembered for dentries whose hash differs.
const RESERVED_MAX: usize = 1 << 20;

/// Where an inode is.
pub(crate) enum Location {
    /// In the tree, under one name or more. The root has none.
    Linked(Vec<Dentry>),
    /// A file without a name that a caller holds.
    Unlinked(Box<LooseFile>),
    /// A removed directory that a caller holds, with its last attributes.
    RemovedDirectory(Box<Attributes>),
}

pub(crate) struct Inode {
    pub(crate) kind: Kind,
    /// References that callers hold.
    lookups: u64,
    /// Names in this directory that are in the table.
    pub(crate) children: u32,
    /// Subdirectories, if the directory was created by this view.
    subdirectories: Option<u32>,
    /// Whether the hash of one of its dentries differs from its number.
    is_moved: bool,
    pub(crate) location: Location,
    /// Attribute cache, dropped when an attribute changes.
    attributes: Option<Box<Attributes>>,
}

/// Times of an inode that the tree does not store. `None` means equal to the modification time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtraTimes {
    pub(crate) ctime: Option<Time>,
    pub(crate) atime: Option<Time>,
}

/// Part of the inode table that is stored when a view is closed, so that a remount shows equal numbers and times.
pub(crate) struct SavedInodes {
    pub(crate) times: Vec<(Ino, ExtraTimes)>,
    /// Numbers that differ from the hash of their dentry.
    pub(crate) numbers: Vec<(Ino, Dentry)>,
}

pub(crate) struct InodeTable {
    by_number: HashMap<Ino, Inode>,
    by_dentry: HashMap<Dentry, Ino>,
    /// Hashed numbers of inodes that no longer exist.
    retired: HashSet<Ino>,
    counter: u64,
    times: HashMap<Ino, ExtraTimes>,
    /// Numbers of inodes that no caller holds, where they differ from the hash of the dentry.
    reserved: HashMap<Dentry, Ino>,
    paths: PathCache,
    /// `None` until handles are enabled.
    handles: Option<Box<HandleTable>>,
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        let root = Inode {
            kind: Kind::Directory,
            lookups: 1,
            children: 0,
            subdirectories: None,
            is_moved: true,
            location: Location::Linked(Vec::new()),
            attributes: None,
        };
        Self {
            by_number: HashMap::from_iter([(ROOT, root)]),
            by_dentry: HashMap::new(),
            retired: HashSet::new(),
            counter: 0,
            times: HashMap::new(),
            reserved: HashMap::new(),
            paths: PathCache::default(),
            handles: None,
        }
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<&Inode> {
        self.by_number.get(&ino).ok_or(Error::Stale(ino))
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.by_number.get_mut(&ino).ok_or(Error::Stale(ino))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns the inode of a dentry that is in the table.
    pub(crate) fn ino_at(&self, dentry: &Dentry) -> Option<Ino> {
        self.by_dentry.get(dentry).copied()
    }

    /// Returns the inode of a path, if all its components are in the table.
    pub(crate) fn ino_of(&self, path: &TreePath) -> Option<Ino> {
        path.names().try_fold(ROOT, |parent, name| self.ino_at(&Dentry { parent, name }))
    }

    /// Returns the directory that an inode has a name in, the first one of several.
    pub(crate) fn parent(&self, ino: Ino) -> Option<Ino> {
        match &self.get(ino).ok()?.location {
            Location::Linked(dentries) => dentries.first().map(|dentry| dentry.parent),
            _ => None,
        }
    }

    /// Returns the path of an inode in the tree, or `None` if it has no name.
    pub(crate) fn path(&self, ino: Ino) -> Result<Option<TreePath>> {
        if ino == ROOT {
            return Ok(Some(TreePath::root()));
        }
        let inode = self.get(ino)?;
        let Location::Linked(dentries) = &inode.location else { return Ok(None) };
        let dentry = dentries.first().expect("only the root has no dentry");
        if inode.kind != Kind::Directory {
            let above = self.path(dentry.parent)?;
            return Ok(above.map(|above| above.join(&dentry.name)));
        }
        if let Some(path) = self.paths.get(ino) {
            return Ok(Some(path));
        }
        let Some(names) = self.names_to_root(ino)? else { return Ok(None) };
        let path = names.iter().rev().fold(Vec::with_capacity(names.len() * 16), |mut bytes, name| {
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(name.as_bytes());
            bytes
        });
        let path = TreePath::new(path).map_err(amalgam_engine::Error::from)?;
        self.paths.set(ino, &path);
        Ok(Some(path))
    }

    /// Returns the names from an inode up to the root, or `None` if it has no name.
    fn names_to_root(&self, mut ino: Ino) -> Result<Option<Vec<&Name>>> {
        let mut names = Vec::new();
        while ino != ROOT {
            match &self.get(ino)?.location {
                Location::Linked(dentries) => {
                    let dentry = dentries.first().expect("only the root has no dentry");
                    names.push(&dentry.name);
                    ino = dentry.parent;
                }
                Location::Unlinked(_) | Location::RemovedDirectory(_) => return Ok(None),
            }
        }
        Ok(Some(names))
    }

    /// Returns the hash of a dentry, if it can be used as the number of a new inode.
    fn usable_hash(&self, dentry: &Dentry) -> Option<Ino> {
        if self.retired.len() >= RETIRED_MAX {
            return None;
        }
        let number = dentry.hashed_ino();
        let is_free = number > ROOT && !self.retired.contains(&number) && !self.by_number.contains_key(&number);
        (is_free && !self.is_issued_elsewhere(number, dentry)).then_some(number)
    }

    /// Adds an inode for a dentry that is not in the table.
    pub(crate) fn insert(&mut self, dentry: Dentry, kind: Kind) -> Ino {
        let reserved = self.reserved.remove(&dentry).filter(|ino| !self.by_number.contains_key(ino));
        let hashed = if reserved.is_none() { self.usable_hash(&dentry) } else { None };
        let number = reserved.or(hashed).unwrap_or_else(|| {
            self.counter += 1;
            COUNTER_BIT | self.counter
        });
        if let Some(parent) = self.by_number.get_mut(&dentry.parent) {
            parent.children += 1;
        }
        self.by_dentry.insert(dentry.clone(), number);
        let inode = Inode {
            kind,
            lookups: 0,
            children: 0,
            subdirectories: None,
            is_moved: hashed.is_none(),
            location: Location::Linked(vec![dentry]),
            attributes: None,
        };
        self.by_number.insert(number, inode);
        number
    }

    /// Reserves the number that an inode had, for the next lookup of its dentry.
    pub(crate) fn reserve_number(&mut self, ino: Ino, dentry: Dentry) {
        if ino & COUNTER_BIT != 0 {
            self.counter = self.counter.max(ino & !COUNTER_BIT);
        }
        if self.reserved.len() < RESERVED_MAX && ino != dentry.hashed_ino() {
            self.reserved.insert(dentry, ino);
        }
    }

    /// Retires the number of a dentry that was removed while no caller held its inode.
    pub(crate) fn retire(&mut self, dentry: &Dentry) {
        let ino = self.reserved.remove(dentry).unwrap_or_else(|| dentry.hashed_ino());
        self.retire_number(ino);
        // An inode that was renamed keeps the number of its old name, and its handle.
        if let Some(handles) = &mut self.handles
            && handles.issued_dentry(ino) == Some(dentry)
        {
            handles.withdraw(ino);
        }
    }

    /// Retires an old handle of a dentry before an entry is created there, so that it does not resolve to the new inode.
    pub(crate) fn retire_handle_at(&mut self, dentry: &Dentry) {
        let Some(handles) = &self.handles else { return };
        let ino = self.reserved.get(dentry).copied().unwrap_or_else(|| dentry.hashed_ino());
        if handles.issued_dentry(ino) == Some(dentry) {
            self.retire(dentry);
        }
    }

    /// Removes a name of a file that keeps others, also if the table does not have it. `remaining` is one of the others, if the table has
    /// none of them.
    pub(crate) fn remove_link(&mut self, dentry: &Dentry, remaining: Option<Dentry>) {
        let number = self.reserved.remove(dentry).unwrap_or_else(|| dentry.hashed_ino());
        // A new file of this name gets another number.
        self.retire_number(dentry.hashed_ino());
        match (self.remove_dentry(dentry), remaining) {
            (Some((ino, true)), Some(remaining)) => {
                self.add_dentry(ino, remaining);
                self.by_number.get_mut(&ino).expect("it was just there").is_moved = true;
            }
            (None, Some(remaining)) => {
                if let Some(handles) = &mut self.handles
                    && handles.issued_dentry(number) == Some(dentry)
                {
                    handles.update_dentries(number, std::slice::from_ref(&remaining));
                    self.reserve_number(number, remaining);
                }
            }
            _ => {}
        }
    }

    /// Adds one more name to an inode that has one.
    pub(crate) fn add_dentry(&mut self, ino: Ino, dentry: Dentry) {
        let Some(inode) = self.by_number.get_mut(&ino) else { return };
        let Location::Linked(dentries) = &mut inode.location else { return };
        dentries.push(dentry.clone());
        // After a remount any of several names may be looked up first.
        inode.is_moved |= dentries.len() > 1;
        if let Some(parent) = self.by_number.get_mut(&dentry.parent) {
            parent.children += 1;
        }
        self.by_dentry.insert(dentry, ino);
        self.update_handle(ino);
    }

    /// Returns whether an inode is in the tree.
    pub(crate) fn is_linked(&self, ino: Ino) -> bool {
        self.by_number.get(&ino).is_some_and(|inode| matches!(inode.location, Location::Linked(_)))
    }

    /// Returns whether more than one name of an inode is in the table.
    pub(crate) fn has_several_dentries(&self, ino: Ino) -> bool {
        let found = self.by_number.get(&ino).map(|inode| &inode.location);
        matches!(found, Some(Location::Linked(dentries)) if dentries.len() > 1)
    }

    /// Removes a name from its inode. Returns the inode, and whether this was its last name: then the caller detaches it.
    pub(crate) fn remove_dentry(&mut self, dentry: &Dentry) -> Option<(Ino, bool)> {
        let ino = self.by_dentry.remove(dentry)?;
        if let Some(parent) = self.by_number.get_mut(&dentry.parent) {
            parent.children -= 1;
        }
        let inode = self.by_number.get_mut(&ino).expect("a dentry leads to an inode");
        if inode.kind == Kind::Directory {
            // The paths of all entries below it change.
            self.paths.clear();
        }
        let Location::Linked(dentries) = &mut inode.location else { unreachable!("it had this name") };
        dentries.retain(|other| other != dentry);
        let is_last = dentries.is_empty();
        if !is_last {
            self.update_handle(ino);
        }
        Some((ino, is_last))
    }

    pub(crate) fn move_dentry(&mut self, from: &Dentry, to: Dentry) {
        let Some((ino, is_last)) = self.remove_dentry(from) else { return };
        self.add_dentry(ino, to);
        let inode = self.by_number.get_mut(&ino).expect("it was just there");
        inode.is_moved |= is_last;
    }

    pub(crate) fn exchange_dentries(&mut self, one: &Dentry, other: &Dentry) {
        let first = self.remove_dentry(one).map(|(ino, _)| ino);
        let second = self.remove_dentry(other).map(|(ino, _)| ino);
        for (ino, dentry) in [(first, other), (second, one)] {
            if let Some(ino) = ino {
                self.add_dentry(ino, dentry.clone());
                self.by_number.get_mut(&ino).expect("it was just there").is_moved = true;
            }
        }
    }

    /// Moves an inode without a name out of the tree. The table keeps it while a caller holds it, and never reuses its number.
    pub(crate) fn detach(&mut self, ino: Ino, location: Location, now: Time) {
        self.retire_number(ino);
        self.detach_handle(ino, &location, now);
        let Some(inode) = self.by_number.get_mut(&ino) else { return };
        inode.location = location;
        inode.attributes = None;
        self.evict_if_unheld(ino);
    }

    fn retire_number(&mut self, ino: Ino) {
        if ino & COUNTER_BIT == 0 && self.retired.len() < RETIRED_MAX {
            self.retired.insert(ino);
        }
    }

    /// Retires the number of an evicted inode if no name of the inode has this hash. The number stays reserved for the inode: a new
    /// inode with its old name gets another number.
    fn retire_if_away(&mut self, ino: Ino, dentries: &[Dentry]) {
        if dentries.iter().any(|dentry| dentry.hashed_ino() == ino) {
            // The next lookup computes this number again, also if the inode had another name for a time.
            self.retired.remove(&ino);
        } else {
            self.retire_number(ino);
        }
    }

    /// Adds one reference to an inode.
    pub(crate) fn hold(&mut self, ino: Ino) {
        if let Some(inode) = self.by_number.get_mut(&ino) {
            inode.lookups += 1;
        }
    }

    /// Drops references to an inode, and evicts it if none is left.
    pub(crate) fn forget(&mut self, ino: Ino, lookups: u64) {
        let Some(inode) = self.by_number.get_mut(&ino) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        self.evict_if_unheld(ino);
    }

    /// Evicts an inode that no caller holds.
    pub(crate) fn evict_if_unheld(&mut self, mut ino: Ino) {
        // A directory stays while names in it are in the table; the last of them evicts it, too.
        while let Some(inode) = self.by_number.get(&ino) {
            if ino == ROOT || inode.lookups > 0 || inode.children > 0 {
                return;
            }
            let inode = self.by_number.remove(&ino).expect("it was just there");
            if inode.kind == Kind::Directory {
                self.paths.remove(ino);
            }
            let Location::Linked(dentries) = inode.location else {
                self.times.remove(&ino);
                return;
            };
            if inode.is_moved {
                self.retire_if_away(ino, &dentries);
            }
            let mut above = ROOT;
            for dentry in dentries {
                self.by_dentry.remove(&dentry);
                if inode.is_moved {
                    self.reserve_number(ino, dentry.clone());
                }
                if let Some(parent) = self.by_number.get_mut(&dentry.parent) {
                    parent.children -= 1;
                    above = dentry.parent;
                }
            }
            ino = above;
        }
    }

    /// Returns all directories in the table. Scans the whole table.
    pub(crate) fn directories(&self) -> Vec<Ino> {
        let all = self.by_number.iter().filter(|(_, inode)| inode.kind == Kind::Directory);
        all.map(|(ino, _)| *ino).collect()
    }

    /// Groups all names in the table by directory. Scans the whole table.
    pub(crate) fn by_directory(&self) -> HashMap<Ino, Vec<(Name, Ino)>> {
        let mut all: HashMap<Ino, Vec<(Name, Ino)>> = HashMap::new();
        for (dentry, ino) in &self.by_dentry {
            all.entry(dentry.parent).or_default().push((dentry.name.clone(), *ino));
        }
        all
    }

    /// Returns the cached attributes of an inode.
    pub(crate) fn cached_attributes(&self, ino: Ino) -> Option<Attributes> {
        self.by_number.get(&ino)?.attributes.as_deref().copied()
    }

    /// Caches the attributes of an inode, if a caller holds it.
    pub(crate) fn cache_attributes(&mut self, attributes: &Attributes) {
        if let Some(inode) = self.by_number.get_mut(&attributes.ino).filter(|inode| inode.lookups > 0) {
            match &mut inode.attributes {
                Some(cached) => **cached = *attributes,
                cached => *cached = Some(Box::new(*attributes)),
            }
        }
    }

    /// Returns the cached attributes of an inode, to update them.
    pub(crate) fn cached_attributes_mut(&mut self, ino: Ino) -> Option<&mut Attributes> {
        self.by_number.get_mut(&ino)?.attributes.as_deref_mut()
    }

    /// Drops the cached attributes of an inode.
    pub(crate) fn invalidate(&mut self, ino: Ino) {
        if let Some(inode) = self.by_number.get_mut(&ino) {
            inode.attributes = None;
        }
    }

    /// Drops the cached attributes, the times and the link count of a directory whose names changed.
    pub(crate) fn invalidate_directory(&mut self, ino: Ino) {
        self.times.remove(&ino);
        if let Some(inode) = self.by_number.get_mut(&ino) {
            inode.attributes = None;
            inode.subdirectories = None;
        }
    }

    /// Drops the cached attributes and the link counts of all inodes.
    pub(crate) fn invalidate_all(&mut self) {
        for inode in self.by_number.values_mut() {
            inode.attributes = None;
            inode.subdirectories = None;
        }
    }

    /// Starts to count the subdirectories of a directory that was just created.
    pub(crate) fn start_subdirectory_count(&mut self, directory: Ino) {
        if let Some(inode) = self.by_number.get_mut(&directory) {
            inode.subdirectories = Some(0);
        }
    }

    pub(crate) fn subdirectory_added(&mut self, directory: Ino) {
        if let Some(Inode { subdirectories: Some(count), .. }) = self.by_number.get_mut(&directory) {
            *count = count.saturating_add(1);
        }
    }

    pub(crate) fn subdirectory_removed(&mut self, directory: Ino) {
        if let Some(Inode { subdirectories: Some(count), .. }) = self.by_number.get_mut(&directory) {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns the link count of a directory: its name, its `.`, and the `..` of each counted subdirectory. 1 where these have not been
    /// counted, as other file systems do.
    pub(crate) fn directory_links(&self, directory: Ino) -> u32 {
        let counted = self.by_number.get(&directory).and_then(|inode| inode.subdirectories);
        counted.map_or(1, |count| count.saturating_add(2))
    }

    pub(crate) fn times(&self, ino: Ino) -> ExtraTimes {
        self.times.get(&ino).copied().unwrap_or_default()
    }

    pub(crate) fn set_times(&mut self, ino: Ino, times: ExtraTimes) {
        if times == ExtraTimes::default() {
            self.times.remove(&ino);
        } else if self.times.len() < TIMES_MAX || self.times.contains_key(&ino) {
            self.times.insert(ino, times);
        }
    }

    /// Returns the part of the table that is stored when the view is closed.
    pub(crate) fn to_saved(&self) -> SavedInodes {
        let times = self.times.iter().map(|(ino, times)| (*ino, *times)).collect();
        let mut numbers: Vec<_> = self.reserved.iter().map(|(dentry, ino)| (*ino, dentry.clone())).collect();
        for (ino, inode) in self.by_number.iter().filter(|(_, inode)| inode.is_moved) {
            let Location::Linked(dentries) = &inode.location else { continue };
            let moved = dentries.iter().filter(|dentry| dentry.hashed_ino() != *ino);
            numbers.extend(moved.map(|dentry| (*ino, dentry.clone())));
        }
        SavedInodes { times, numbers }
    }
}

/// The handle table, and the holds that it has on inodes.
impl InodeTable {
    /// Opens the handle table in a file, unless handles are enabled.
    pub(crate) fn enable_handles(&mut self, path: &Path) -> Result<()> {
        if self.handles.is_some() {
            return Ok(());
        }
        let (handles, numbers) = HandleTable::open(path)?;
        for (ino, dentry) in numbers {
            self.reserve_number(ino, dentry);
        }
        self.handles = Some(Box::new(handles));
        Ok(())
    }

    pub(crate) fn handles(&self) -> Option<&HandleTable> {
        self.handles.as_deref()
    }

    pub(crate) fn handles_mut(&mut self) -> Option<&mut HandleTable> {
        self.handles.as_deref_mut()
    }

    /// Returns the state of a handle, and marks it as used. `None` for an unknown or old handle.
    pub(crate) fn handle_state(&self, handle: Handle, now: impl FnOnce() -> Time) -> Option<HandleState> {
        if handle == Handle::ROOT {
            return Some(HandleState::Held);
        }
        self.handles.as_ref()?.state(handle, now)
    }

    /// Issues a handle for an inode, and for the directories above it.
    pub(crate) fn issue_handle(&mut self, ino: Ino, now: Time) -> Result<Handle> {
        if ino == ROOT {
            return Ok(Handle::ROOT);
        }
        if let Some(generation) = self.handles.as_ref().and_then(|handles| handles.generation(ino)) {
            return Ok(Handle { ino, generation });
        }
        let inode = self.get(ino)?;
        let is_directory = inode.kind == Kind::Directory;
        let dentries = match &inode.location {
            Location::Linked(dentries) => dentries.clone(),
            Location::Unlinked(file) => {
                let bytes = file.stat().size;
                let handles = self.handles.as_mut().ok_or(Error::Stale(ino))?;
                let (generation, evicted) = handles.issue_unlinked(ino, bytes, now).ok_or(Error::Stale(ino))?;
                self.hold(ino);
                evicted.into_iter().for_each(|ino| self.forget(ino, 1));
                return Ok(Handle { ino, generation });
            }
            Location::RemovedDirectory(_) => return Err(Error::Stale(ino)),
        };
        let parent = dentries.first().expect("only the root has no dentry").parent;
        self.issue_handle(parent, now)?;
        let handles = self.handles.as_mut().ok_or(Error::Stale(ino))?;
        let generation = handles.issue(ino, is_directory, dentries);
        Ok(Handle { ino, generation })
    }

    /// Passes one hold of the caller to the handle table.
    pub(crate) fn pass_hold_to_handles(&mut self, ino: Ino) {
        let Some(handles) = &mut self.handles else { return self.forget(ino, 1) };
        let effect = handles.take_hold(ino);
        if !effect.is_kept {
            self.forget(ino, 1);
        }
        for ino in effect.evicted {
            self.forget(ino, 1);
        }
    }

    /// Drops unlinked files whose handles were last used before a time.
    pub(crate) fn expire_handles(&mut self, unused_since: Time) {
        let Some(handles) = &mut self.handles else { return };
        for ino in handles.expire_unlinked(unused_since) {
            self.forget(ino, 1);
        }
    }

    /// Returns whether a handle with this number was issued for another dentry.
    fn is_issued_elsewhere(&self, ino: Ino, dentry: &Dentry) -> bool {
        let issued = self.handles.as_ref().and_then(|handles| handles.issued_dentry(ino));
        issued.is_some_and(|issued| issued != dentry)
    }

    /// Stores the current dentries of an inode in its handle.
    pub(crate) fn update_handle(&mut self, ino: Ino) {
        let Some(handles) = &mut self.handles else { return };
        if handles.issued_dentry(ino).is_none() {
            return;
        }
        if let Some(Location::Linked(dentries)) = self.by_number.get(&ino).map(|inode| &inode.location) {
            handles.update_dentries(ino, dentries);
        }
    }

    /// Ends or keeps the handle of an inode that lost its last name.
    fn detach_handle(&mut self, ino: Ino, location: &Location, now: Time) {
        let Some(handles) = &mut self.handles else { return };
        let file_bytes = match location {
            Location::Unlinked(file) => Some(file.stat().size),
            _ => None,
        };
        let Some(effect) = handles.detach(ino, file_bytes, now) else { return };
        match (effect.is_kept, effect.was_held) {
            (true, false) => self.hold(ino),
            (false, true) => {
                // Not evicted here: the caller does that after it has moved the inode.
                if let Some(inode) = self.by_number.get_mut(&ino) {
                    inode.lookups = inode.lookups.saturating_sub(1);
                }
            }
            _ => {}
        }
        for ino in effect.evicted {
            self.forget(ino, 1);
        }
    }
}
