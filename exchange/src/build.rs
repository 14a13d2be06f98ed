//! Builds a tree from members in any order, in bounded memory.
//!
//! Members wait in a batch, so that the contents of small files are hashed and compressed on all cores; then they are applied in
//! their order to directories in memory. When those hold many names they are written to the store and forgotten. Everything is
//! put in one write session: a collection takes nothing of it, and nothing of it is visible.

mod arena;
mod links;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use amalgam_engine::content::{ByteSource, write_content};
use amalgam_engine::object::{Content, Entry, EntryKind, Node, Owner};
use amalgam_engine::{Assembly, Name, RootId, Store, Time, TreePath, WorkingTree, WriteSession};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::member::{Attributes, Body, Edit};
use crate::report::Report;
use arena::{Arena, DIRECTORY_MODE, FoundEntry};
use links::Links;

/// A batch is applied when it holds this many bytes of files,
const BATCH_BYTES_MAX: usize = 8 << 20;
/// or this many members.
const BATCH_MEMBERS_MAX: usize = 4_096;
/// Directories in memory are written when they hold this many names.
const NAMES_MAX: usize = 100_000;
/// Symlinks that one path may lead through.
const SYMLINKS_MAX: usize = 40;
/// Files up to this size are read into memory and stored in batches.
pub(crate) const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

const NOTE_REPLACED: &str = "members replaced an earlier member of the same name";

/// Options of a tree builder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BuildOptions {
    /// The members are a layer: whiteouts remove what lower layers have, and symlinks above a member are followed inside the root.
    pub(crate) layer: bool,
    /// Counts and checks everything, but stores no contents.
    pub(crate) dry_run: bool,
}

/// Builds a tree.
pub(crate) struct TreeBuilder {
    arena: Arena,
    links: Links,
    batch: Vec<(TreePath, Edit)>,
    batch_bytes: usize,
    options: BuildOptions,
    /// Hashes of the paths that this layer has added so far, with those above them.
    added: HashSet<u64>,
    pub(crate) report: Report,
}

impl TreeBuilder {
    /// Starts from an empty tree, or from a stored one that is changed.
    pub(crate) fn new(store: &Store, base: Option<RootId>, options: BuildOptions) -> Result<Self> {
        let assembly = Assembly::new(store, base)?;
        let root = match assembly.base() {
            Some(base) => base.directory.clone(),
            None => Entry::empty_directory(DIRECTORY_MODE, Time::EPOCH),
        };
        let links = Links::of(store, &root)?;
        Ok(Self {
            arena: Arena::new(assembly, root),
            links,
            batch: Vec::new(),
            batch_bytes: 0,
            options,
            added: HashSet::new(),
            report: Report::default(),
        })
    }

    fn session(&self) -> &WriteSession {
        self.arena.assembly.session()
    }

    /// Stores the bytes of a file that is too large for a batch.
    pub(crate) fn store<B: ByteSource>(&self, source: &B) -> amalgam_engine::Result<Body> {
        let size = source.length();
        if self.options.dry_run {
            let mut buffer = vec![0; 256 << 10];
            let mut offset = 0;
            while offset < size {
                let zeros = source.known_zeros(offset)?;
                if zeros == 0 {
                    let length = (size - offset).min(buffer.len() as u64);
                    source.read_at(offset, &mut buffer[..length as usize])?;
                    offset += length;
                } else {
                    offset += zeros.min(size - offset);
                }
            }
            return Ok(Body::Stored { size, content: Content::Empty });
        }
        Ok(Body::Stored { size, content: write_content(self.session(), source)? })
    }

    /// Adds a member. It takes effect after all members before it.
    pub(crate) fn add(&mut self, path: TreePath, edit: Edit) -> Result<()> {
        if let Edit::File { body: Body::Bytes(bytes), .. } = &edit {
            self.batch_bytes += bytes.len();
        }
        self.batch.push((path, edit));
        if self.batch_bytes >= BATCH_BYTES_MAX || self.batch.len() >= BATCH_MEMBERS_MAX { self.flush() } else { Ok(()) }
    }

    /// Sets the attributes of the root directory.
    pub(crate) fn set_root(&mut self, attributes: Attributes) -> Result<()> {
        self.flush()?;
        self.arena.set_root(attributes)
    }

    fn flush(&mut self) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        let (session, dry_run) = (self.arena.assembly.session(), self.options.dry_run);
        let store = |place: usize, edit: &mut Edit| -> amalgam_engine::Result<()> {
            let Edit::File { body, .. } = edit else { return Ok(()) };
            let Body::Bytes(bytes) = body else { return Ok(()) };
            let size = bytes.len() as u64;
            let content = match dry_run {
                true => Content::Empty,
                false => WriteSession::at_write_position(place as u64, || write_content(session, &&bytes[..]))?,
            };
            *body = Body::Stored { size, content };
            Ok(())
        };
        batch.par_iter_mut().enumerate().try_for_each(|(place, (_, edit))| store(place, edit))?;
        self.batch_bytes = 0;
        for (path, edit) in batch {
            self.apply(path, edit)?;
            if self.arena.names() >= NAMES_MAX {
                self.arena.spill()?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, path: TreePath, edit: Edit) -> Result<()> {
        let path = if self.options.layer { self.follow_symlinks(&path)? } else { path };
        let path = &path;
        match edit {
            Edit::File { attributes, body } => {
                let Body::Stored { size, content } = body else { unreachable!("a flush stores all bodies") };
                self.report.files += 1;
                self.report.bytes += size;
                let size = if self.options.dry_run { 0 } else { size };
                self.put_leaf(path, Node::File { size, content }, attributes)
            }
            Edit::Other { attributes, node } => {
                match &node {
                    Node::Symlink(_) => self.report.symlinks += 1,
                    _ => self.report.specials += 1,
                }
                self.put_leaf(path, node, attributes)
            }
            Edit::Directory { attributes } => {
                self.report.directories += 1;
                self.put_directory(path, attributes)
            }
            Edit::Link { existing } => {
                self.report.hard_links += 1;
                let existing = if self.options.layer { self.follow_symlinks(&existing)? } else { existing };
                self.link(path, &existing)
            }
            Edit::Whiteout => self.whiteout(path),
            Edit::Opaque => self.remove_lower(path),
        }
    }

    fn put_leaf(&mut self, path: &TreePath, node: Node, attributes: Attributes) -> Result<()> {
        if path.is_root() {
            return Err(Error::refused(b"/", "the root of an archive is a directory"));
        }
        self.remove_existing(path)?;
        let mtime = attributes.mtime;
        let entry = self.arena.entry(node, attributes)?;
        self.place(path, entry, mtime)
    }

    fn put_directory(&mut self, path: &TreePath, attributes: Attributes) -> Result<()> {
        if path.is_root() {
            return self.arena.set_root(attributes);
        }
        if self.arena.find(path)?.is_some_and(|found| found.kind() == EntryKind::Directory) {
            self.mark_added(path);
            return self.arena.set_attributes(path, attributes);
        }
        self.remove_existing(path)?;
        let mtime = attributes.mtime;
        let entry = self.arena.entry(Node::Directory(None), attributes)?;
        self.place(path, entry, mtime)
    }

    fn link(&mut self, path: &TreePath, existing: &TreePath) -> Result<()> {
        let found = self.arena.find(existing)?;
        let Some(FoundEntry::Entry(entry)) = found.filter(|found| found.kind() != EntryKind::Directory) else {
            let why = format!(
                "it is a hard link to {existing}, and no file of that name is in the archive before it; \
                 an archive of a part of a tree must hold the linked file too"
            );
            return Err(Error::refused(path.as_bytes(), why));
        };
        if path == existing {
            return Ok(());
        }
        if path.is_root() {
            return Err(Error::refused(b"/", "the root of an archive is a directory"));
        }
        self.remove_existing(path)?;
        // The removal may have removed the linked file.
        if self.arena.find(existing)?.is_none() {
            return Err(Error::refused(path.as_bytes(), "it is a hard link to a file below itself"));
        }
        let mtime = entry.mtime;
        self.links.join(existing, path)?;
        self.place(path, entry.with_extra(|extra| extra.link = None), mtime)
    }

    fn place(&mut self, path: &TreePath, entry: Entry, mtime: Time) -> Result<()> {
        self.mark_added(path);
        self.arena.place(path, entry, mtime)
    }

    /// Removes the entry at a path, for a member that replaces it.
    fn remove_existing(&mut self, path: &TreePath) -> Result<()> {
        if self.arena.find(path)?.is_none() {
            return Ok(());
        }
        if !self.options.layer || self.is_added(path) {
            self.report.note(NOTE_REPLACED, path.as_bytes());
        }
        self.links.remove_below(path);
        self.arena.remove(path)
    }

    fn whiteout(&mut self, path: &TreePath) -> Result<()> {
        if self.is_added(path) {
            return self.remove_lower(path);
        }
        if path.is_root() || self.arena.find(path)?.is_none() {
            return Ok(());
        }
        self.report.removed += 1;
        self.links.remove_below(path);
        self.arena.remove(path)
    }

    /// Removes the entries of lower layers below a directory.
    fn remove_lower(&mut self, path: &TreePath) -> Result<()> {
        let mut open = vec![path.clone()];
        while let Some(here) = open.pop() {
            for (name, kind) in self.arena.list(&here)? {
                let child = here.join(&name);
                if !self.is_added(&child) {
                    self.report.removed += 1;
                    self.links.remove_below(&child);
                    self.arena.remove(&child)?;
                } else if kind == EntryKind::Directory {
                    open.push(child);
                }
            }
        }
        Ok(())
    }

    fn mark_added(&mut self, path: &TreePath) {
        if !self.options.layer {
            return;
        }
        let mut here = path.clone();
        // The ancestors of an added path were added with it.
        while self.added.insert(hash(&here))
            && let Some((above, _)) = here.split_last()
        {
            here = above;
        }
    }

    fn is_added(&self, path: &TreePath) -> bool {
        self.added.contains(&hash(path))
    }

    /// Follows the symlinks above the last name of a path, as a program that has the tree as its root directory would.
    fn follow_symlinks(&self, path: &TreePath) -> Result<TreePath> {
        let mut ahead: Vec<Name> = path.names().rev().collect();
        let mut here = TreePath::root();
        let mut symlinks = 0;
        while let Some(name) = ahead.pop() {
            let next = here.join(&name);
            if ahead.is_empty() {
                return Ok(next);
            }
            let Some(FoundEntry::Entry(Entry { node: Node::Symlink(target), .. })) = self.arena.find(&next)? else {
                here = next;
                continue;
            };
            symlinks += 1;
            if symlinks > SYMLINKS_MAX {
                return Err(Error::refused(path.as_bytes(), "too many symlinks lead to it"));
            }
            if target.first() == Some(&b'/') {
                here = TreePath::root();
            }
            let mut below = here.clone();
            let mut names = Vec::new();
            for part in target.split(|byte| *byte == b'/') {
                match part {
                    b"" | b"." => {}
                    b".." if names.pop().is_none() => below = below.split_last().map_or_else(TreePath::root, |it| it.0),
                    b".." => {}
                    part => names.push(Name::new(part).map_err(|why| Error::refused(part, why.to_string()))?),
                }
            }
            here = below;
            ahead.extend(names.into_iter().rev());
        }
        Ok(here)
    }

    /// Completes the tree.
    pub(crate) fn finish(mut self) -> Result<(WorkingTree, Report)> {
        self.flush()?;
        for (path, link) in self.links.assign_ids()? {
            let Some(FoundEntry::Entry(entry)) = self.arena.find(&path)? else {
                unreachable!("a name of a file leaves its group when it is removed")
            };
            if entry.link() != link {
                let mtime = entry.mtime;
                self.arena.place(&path, entry.with_extra(|extra| extra.link = link), mtime)?;
                if self.arena.names() >= NAMES_MAX {
                    self.arena.spill()?;
                }
            }
        }
        let members = self.links.members();
        Ok((self.arena.finish(&members)?, self.report))
    }
}

fn hash(path: &TreePath) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.as_bytes().hash(&mut hasher);
    hasher.finish()
}

/// Which owners are recorded. Files of the workspace's own owner record none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// The owner of the archive's first member; others are recorded. The way a capture of a directory has it.
    #[default]
    LikeFirst,
    /// This owner; others are recorded.
    Except(Owner),
    /// Every owner: none is recorded.
    Drop,
}

impl Owners {
    /// Returns the owner to record for a member; `None` if none is recorded.
    pub(crate) fn record(&mut self, owner: Owner) -> Option<Owner> {
        match *self {
            Self::Drop => None,
            Self::Except(own) => (owner != own).then_some(owner),
            Self::LikeFirst => {
                *self = Self::Except(owner);
                None
            }
        }
    }
}
