//! A POSIX tree in the plainest form: a map of paths, a map of inodes, bytes as vectors.
//!
//! It answers every operation of a working tree as POSIX would, with nothing clever that could be wrong in the same way. It
//! is slow, copies everything, and knows no store. [`Op`] is an operation as a value, for both sides alike.

mod op;
mod see;

pub use op::{Fill, Op, Raw, STATE_KEYS, cases, edit_unlinked, op, ops, perform, try_perform};
pub use see::{Contents, Data, Seen, commit, contents, fixed_root, link_classes, write_root};

use std::collections::{BTreeMap, BTreeSet};

use amalgam_engine::object::{Owner, SYMLINK_TARGET_BYTES_MAX, StateItem, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use amalgam_engine::work::{RenameMode, Special};
use amalgam_engine::{Error, Result, Store, Time, TreePath, WorkingTree};

/// The kinds of refusal, without their details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are those of `Error`")]
pub enum Refusal {
    Name,
    NotFound,
    Exists,
    NotADirectory,
    IsADirectory,
    WrongKind,
    NotEmpty,
    IntoItself,
    TooLarge,
    Invalid,
}

impl Refusal {
    /// The kind of an error; nothing for one that no model foresees.
    pub fn of(error: &Error) -> Option<Self> {
        Some(match error {
            Error::Name { .. } => Self::Name,
            Error::NotFound { .. } => Self::NotFound,
            Error::Exists { .. } => Self::Exists,
            Error::NotADirectory { .. } => Self::NotADirectory,
            Error::IsADirectory { .. } => Self::IsADirectory,
            Error::WrongKind { .. } => Self::WrongKind,
            Error::NotEmpty { .. } => Self::NotEmpty,
            Error::IntoItself { .. } => Self::IntoItself,
            Error::TooLarge { .. } => Self::TooLarge,
            Error::Invalid { .. } => Self::Invalid,
            _ => return None,
        })
    }
}

/// What an operation on the model comes to. The number is an offset, or a truth as 0 or 1, where the call returns one.
pub type Answer = Result<u64, Refusal>;

/// The tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    names: BTreeMap<TreePath, u64>,
    inodes: BTreeMap<u64, Inode>,
    state: BTreeMap<String, String>,
    now: Time,
    next: u64,
}

/// All that names of one file share.
#[derive(Clone, Debug, PartialEq)]
struct Inode {
    body: Body,
    mode: u32,
    mtime: Time,
    owner: Option<Owner>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    Directory,
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Special(Special),
}

const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Far beyond what operations on a model make, far below what memory holds.
const MODEL_BYTES_MAX: u64 = 1 << 28;

impl Default for Model {
    fn default() -> Self {
        let root = Inode::new(Body::Directory, 0o755, Time::EPOCH);
        Self {
            names: [(TreePath::root(), 0)].into(),
            inodes: [(0, root)].into(),
            state: BTreeMap::new(),
            now: Time::EPOCH,
            next: 1,
        }
    }
}

impl Inode {
    fn new(body: Body, mode: u32, mtime: Time) -> Self {
        Self { body, mode, mtime, owner: None, xattrs: BTreeMap::new() }
    }
}

impl Model {
    /// Every path, the root included.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.names.keys()
    }

    /// The state values.
    pub fn state(&self) -> &BTreeMap<String, String> {
        &self.state
    }

    /// The names of each file that has several.
    pub fn link_classes(&self) -> BTreeSet<BTreeSet<TreePath>> {
        let mut classes: BTreeMap<u64, BTreeSet<TreePath>> = BTreeMap::new();
        for (path, number) in &self.names {
            classes.entry(*number).or_default().insert(path.clone());
        }
        classes.into_values().filter(|names| names.len() > 1).collect()
    }

    /// Gives every path a time that follows from the path alone.
    pub fn fix_times(&mut self) {
        for (path, number) in &self.names {
            self.inodes.get_mut(number).expect("a name has its inode").mtime = fixed_time(path);
        }
    }

    /// The same tree built anew in the order of paths, times included.
    pub fn build(&self, store: &Store) -> Result<WorkingTree> {
        let mut tree = WorkingTree::new(store);
        let mut first: BTreeMap<u64, &TreePath> = BTreeMap::new();
        for (path, number) in &self.names {
            if let Some(first) = first.get(number) {
                tree.link(first.as_bytes(), path.as_bytes())?;
                continue;
            }
            first.insert(*number, path);
            let inode = &self.inodes[number];
            match &inode.body {
                Body::Directory if path.is_root() => tree.set_mode("", inode.mode)?,
                Body::Directory => tree.create_directory(path.as_bytes(), inode.mode)?,
                Body::File(bytes) => {
                    tree.create(path.as_bytes(), inode.mode)?;
                    tree.write(path.as_bytes(), bytes)?;
                }
                Body::Symlink(target) => tree.symlink(path.as_bytes(), target)?,
                Body::Special(special) => tree.create_special(path.as_bytes(), *special, inode.mode)?,
            }
            tree.set_owner(path.as_bytes(), inode.owner)?;
            for (name, value) in &inode.xattrs {
                tree.set_xattr(path.as_bytes(), name, value)?;
            }
        }
        for (path, number) in &self.names {
            tree.set_mtime(path.as_bytes(), self.inodes[number].mtime)?;
        }
        for (key, value) in &self.state {
            tree.set_state(key, value)?;
        }
        Ok(tree)
    }

    /// Does an operation.
    pub fn perform(&mut self, op: &Op) -> Answer {
        match op {
            Op::Create { path, mode } => self.create(path, Body::File(Vec::new()), *mode),
            Op::Write { path, fill } => self.write(path, fill),
            Op::WriteAt { path, offset, fill } => self.write_at(path, *offset, &fill.bytes()),
            Op::Append { path, fill } => self.append(path, &fill.bytes()),
            Op::Truncate { path, size } => self.truncate(path, *size),
            Op::PunchHole { path, start, end } => self.punch_hole(path, *start, *end),
            Op::CreateDirectory { path, mode } => self.create(path, Body::Directory, *mode),
            Op::CreateDirectories { path } => self.create_directories(path),
            Op::Symlink { path, target } => self.symlink(path, target),
            Op::CreateSpecial { path, special, mode } => self.create(path, Body::Special(*special), *mode),
            Op::Link { existing, new } => self.link(existing, new),
            Op::Remove { path } => self.remove(path),
            Op::RemoveDirectory { path } => self.remove_directory(path),
            Op::RemoveAll { path } => self.remove_all(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::SetMode { path, mode } => self.set_mode(path, *mode),
            Op::SetMtime { path, mtime } => self.change(path, |inode| inode.mtime = *mtime),
            Op::SetOwner { path, owner } => self.change(path, |inode| inode.owner = *owner),
            Op::SetXattr { path, name, value } => self.set_xattr(path, name, &value.bytes()),
            Op::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Op::SetState { key, json } => self.set_state(key, json),
            Op::RemoveState { key } => Ok(u64::from(self.state.remove(key).is_some())),
            Op::SetNow { now } => {
                self.now = *now;
                Ok(0)
            }
        }
    }

    fn create(&mut self, path: &Raw, body: Body, mode: u32) -> Answer {
        check_mode(mode)?;
        let path = self.vacant(path)?;
        self.add(path, Inode::new(body, mode, self.now));
        Ok(0)
    }

    fn write(&mut self, path: &Raw, fill: &Fill) -> Answer {
        if self.find(&parse(path)?)?.is_none() {
            return self.create(path, Body::File(fill.bytes()), 0o644);
        }
        self.change_bytes(path, |bytes| {
            *bytes = fill.bytes();
            Ok(0)
        })
    }

    fn write_at(&mut self, path: &Raw, offset: u64, new: &[u8]) -> Answer {
        self.change_bytes(path, |bytes| {
            let end = offset.checked_add(new.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
            let end = end.ok_or(Refusal::TooLarge)?;
            if !new.is_empty() {
                let (start, end) = (index(offset), index(end));
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(new);
            }
            Ok(0)
        })
    }

    fn append(&mut self, path: &Raw, new: &[u8]) -> Answer {
        self.change_bytes(path, |bytes| {
            let offset = bytes.len() as u64;
            bytes.extend_from_slice(new);
            Ok(offset)
        })
    }

    fn truncate(&mut self, path: &Raw, size: u64) -> Answer {
        self.change_bytes(path, |bytes| {
            if size > FILE_BYTES_MAX {
                return Err(Refusal::TooLarge);
            }
            bytes.resize(index(size), 0);
            Ok(0)
        })
    }

    fn punch_hole(&mut self, path: &Raw, start: u64, end: u64) -> Answer {
        self.change_bytes(path, |bytes| {
            let size = bytes.len() as u64;
            let (start, end) = (index(start.min(size)), index(end.min(size)));
            if start < end {
                bytes[start..end].fill(0);
            }
            Ok(0)
        })
    }

    fn create_directories(&mut self, path: &Raw) -> Answer {
        let mut here = TreePath::root();
        for name in parse(path)?.names() {
            here = here.join(&name);
            match self.find(&here)? {
                None => self.add(here.clone(), Inode::new(Body::Directory, 0o755, self.now)),
                Some(number) if self.is_directory(number) => {}
                Some(_) => return Err(Refusal::NotADirectory),
            }
        }
        Ok(0)
    }

    fn symlink(&mut self, path: &Raw, target: &Raw) -> Answer {
        if target.0.is_empty() || target.0.contains(&0) {
            return Err(Refusal::Invalid);
        }
        if target.0.len() > SYMLINK_TARGET_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        self.create(path, Body::Symlink(target.0.clone()), 0o777)
    }

    fn link(&mut self, existing: &Raw, new: &Raw) -> Answer {
        let number = self.existing(&parse(existing)?)?;
        if self.is_directory(number) {
            return Err(Refusal::IsADirectory);
        }
        let path = self.vacant(new)?;
        self.names.insert(path.clone(), number);
        self.touch_parent(&path);
        Ok(0)
    }

    fn remove(&mut self, path: &Raw) -> Answer {
        let path = parse(path)?;
        if self.is_directory(self.existing(&path)?) {
            return Err(Refusal::IsADirectory);
        }
        self.unlink(&path)
    }

    fn remove_directory(&mut self, path: &Raw) -> Answer {
        let path = parse(path)?;
        if !self.is_directory(self.existing(&path)?) {
            return Err(Refusal::NotADirectory);
        }
        if !self.is_empty(&path) {
            return Err(Refusal::NotEmpty);
        }
        self.unlink(&path)
    }

    fn remove_all(&mut self, path: &Raw) -> Answer {
        let path = parse(path)?;
        self.existing(&path)?;
        self.unlink(&path)
    }

    fn rename(&mut self, from: &Raw, to: &Raw, mode: RenameMode) -> Answer {
        let (from, to) = (parse(from)?, parse(to)?);
        if from.is_root() || to.is_root() {
            return Err(Refusal::Invalid);
        }
        let moving = self.existing(&from)?;
        self.existing_directory(&parent(&to))?;
        let target = self.find(&to)?;
        match (mode, target) {
            (RenameMode::Exchange, None) => return Err(Refusal::NotFound),
            (RenameMode::NoReplace, Some(_)) => return Err(Refusal::Exists),
            _ => {}
        }
        if from == to {
            return Ok(0);
        }
        if to.below(&from).is_some() || (mode == RenameMode::Exchange && from.below(&to).is_some()) {
            return Err(Refusal::IntoItself);
        }
        if let (Some(target), false) = (target, mode == RenameMode::Exchange) {
            match (self.is_directory(moving), self.is_directory(target)) {
                (true, true) if !self.is_empty(&to) => return Err(Refusal::NotEmpty),
                (true, false) => return Err(Refusal::NotADirectory),
                (false, true) => return Err(Refusal::IsADirectory),
                _ => {}
            }
        }
        if target == Some(moving) {
            return Ok(0);
        }
        let moved = self.take_out(&from);
        let displaced = self.take_out(&to);
        self.put_back(moved, &from, &to);
        if mode == RenameMode::Exchange {
            self.put_back(displaced, &to, &from);
        }
        self.forget_nameless();
        self.touch_parent(&from);
        self.touch_parent(&to);
        Ok(0)
    }

    fn set_mode(&mut self, path: &Raw, mode: u32) -> Answer {
        check_mode(mode)?;
        let number = self.existing(&parse(path)?)?;
        if matches!(self.inodes[&number].body, Body::Symlink(_)) {
            return Err(Refusal::WrongKind);
        }
        self.inode_mut_at(number).mode = mode;
        Ok(0)
    }

    fn set_xattr(&mut self, path: &Raw, name: &Raw, value: &[u8]) -> Answer {
        let number = self.existing(&parse(path)?)?;
        let name_allowed = (1..=XATTR_NAME_BYTES_MAX).contains(&name.0.len()) && !name.0.contains(&0);
        if !name_allowed || value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Refusal::Invalid);
        }
        self.inode_mut_at(number).xattrs.insert(name.0.clone(), value.to_vec());
        Ok(0)
    }

    fn remove_xattr(&mut self, path: &Raw, name: &Raw) -> Answer {
        let number = self.existing(&parse(path)?)?;
        Ok(u64::from(self.inode_mut_at(number).xattrs.remove(&name.0).is_some()))
    }

    fn set_state(&mut self, key: &str, json: &str) -> Answer {
        StateItem::new(key, json).map_err(|_| Refusal::Invalid)?;
        self.state.insert(key.to_owned(), json.to_owned());
        Ok(0)
    }

    fn change(&mut self, path: &Raw, change: impl FnOnce(&mut Inode)) -> Answer {
        let number = self.existing(&parse(path)?)?;
        change(self.inode_mut_at(number));
        Ok(0)
    }

    fn change_bytes(&mut self, path: &Raw, change: impl FnOnce(&mut Vec<u8>) -> Answer) -> Answer {
        let number = self.existing(&parse(path)?)?;
        let now = self.now;
        let inode = self.inode_mut_at(number);
        let bytes = match &mut inode.body {
            Body::File(bytes) => bytes,
            Body::Directory => return Err(Refusal::IsADirectory),
            Body::Symlink(_) | Body::Special(_) => return Err(Refusal::WrongKind),
        };
        let answer = change(bytes)?;
        inode.mtime = now;
        Ok(answer)
    }

    /// The inode at a path. Going through something without names is an error, going through nothing is absence.
    fn find(&self, path: &TreePath) -> Result<Option<u64>, Refusal> {
        let mut here = TreePath::root();
        let mut number = 0;
        for name in path.names() {
            if !self.is_directory(number) {
                return Err(Refusal::NotADirectory);
            }
            here = here.join(&name);
            match self.names.get(&here) {
                Some(next) => number = *next,
                None => return Ok(None),
            }
        }
        Ok(Some(number))
    }

    fn existing(&self, path: &TreePath) -> Result<u64, Refusal> {
        self.find(path)?.ok_or(Refusal::NotFound)
    }

    fn existing_directory(&self, path: &TreePath) -> Result<(), Refusal> {
        if self.is_directory(self.existing(path)?) { Ok(()) } else { Err(Refusal::NotADirectory) }
    }

    fn vacant(&self, path: &Raw) -> Result<TreePath, Refusal> {
        let path = parse(path)?;
        if path.is_root() {
            return Err(Refusal::Exists);
        }
        self.existing_directory(&parent(&path))?;
        if self.find(&path)?.is_some() { Err(Refusal::Exists) } else { Ok(path) }
    }

    fn is_directory(&self, number: u64) -> bool {
        self.inodes[&number].body == Body::Directory
    }

    fn is_empty(&self, directory: &TreePath) -> bool {
        !self.names.keys().any(|path| path != directory && path.below(directory).is_some())
    }

    fn inode_mut_at(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("a name has its inode")
    }

    fn add(&mut self, path: TreePath, inode: Inode) {
        self.inodes.insert(self.next, inode);
        self.touch_parent(&path);
        self.names.insert(path, self.next);
        self.next += 1;
    }

    fn unlink(&mut self, path: &TreePath) -> Answer {
        if path.is_root() {
            return Err(Refusal::Invalid);
        }
        self.take_out(path);
        self.forget_nameless();
        self.touch_parent(path);
        Ok(0)
    }

    /// Takes a path and all below it out of the names.
    fn take_out(&mut self, path: &TreePath) -> Vec<(TreePath, u64)> {
        let taken: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| name.below(path).is_some())
            .map(|(name, number)| (name.clone(), *number))
            .collect();
        for (name, _) in &taken {
            self.names.remove(name);
        }
        taken
    }

    fn put_back(&mut self, taken: Vec<(TreePath, u64)>, from: &TreePath, to: &TreePath) {
        for (path, number) in taken {
            let new = match path.below(from).expect("it was taken from there") {
                [] => to.clone(),
                rest => TreePath::new([to.as_bytes(), b"/", rest].concat()).expect("paths here are short"),
            };
            self.names.insert(new, number);
        }
    }

    fn forget_nameless(&mut self) {
        let named: BTreeSet<_> = self.names.values().copied().collect();
        self.inodes.retain(|number, _| named.contains(number));
    }

    fn touch_parent(&mut self, path: &TreePath) {
        let (number, now) = (self.names[&parent(path)], self.now);
        self.inode_mut_at(number).mtime = now;
    }
}

/// A time that follows from a path alone.
pub(crate) fn fixed_time(path: &TreePath) -> Time {
    let sum = path.as_bytes().iter().fold(7_i64, |sum, byte| sum.wrapping_mul(31).wrapping_add(i64::from(*byte)));
    Time(sum)
}

fn parse(path: &Raw) -> Result<TreePath, Refusal> {
    TreePath::new(&path.0).map_err(|_| Refusal::Name)
}

fn parent(path: &TreePath) -> TreePath {
    path.split_last().expect("the root has no parent and is refused before").0
}

fn check_mode(mode: u32) -> Result<(), Refusal> {
    if mode <= 0o7777 { Ok(()) } else { Err(Refusal::Invalid) }
}

fn index(offset: u64) -> usize {
    assert!(offset <= MODEL_BYTES_MAX, "{offset} is too much for a model");
    usize::try_from(offset).expect("it is small")
}
