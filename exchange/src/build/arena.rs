//! Directories under construction, in one vector, each after its parent, so that a deep tree cannot exhaust the stack.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_engine::object::{DirectoryRef, Entry, EntryKind, LinkMember, Node, Root};
use amalgam_engine::{Assembly, Name, Time, TreePath, WorkingTree, entry_at, list_directory};

use crate::error::{Error, Result};
use crate::member::Attributes;

/// Mode of directories that no member describes.
pub(super) const DIRECTORY_MODE: u32 = 0o755;

pub(super) struct Arena {
    pub(super) assembly: Assembly,
    directories: Vec<Directory>,
    /// Number of names in the directories.
    names: usize,
    /// The directory that was changed last.
    last: Option<(TreePath, usize)>,
}

struct Directory {
    above: Option<(usize, Name)>,
    /// Its attributes; `stored` and `edits` are its contents.
    entry: Entry,
    stored: Option<DirectoryRef>,
    edits: BTreeMap<Name, Option<Child>>,
}

enum Child {
    Entry(Entry),
    Directory(usize),
}

/// The entry at a path.
pub(super) enum FoundEntry {
    Entry(Entry),
    /// A directory with changes.
    Directory,
}

impl FoundEntry {
    pub(super) fn kind(&self) -> EntryKind {
        match self {
            Self::Entry(entry) => entry.kind(),
            Self::Directory => EntryKind::Directory,
        }
    }
}

impl Directory {
    fn new(above: Option<(usize, Name)>, entry: Entry) -> Self {
        let Node::Directory(stored) = entry.node else { unreachable!("only directories are opened") };
        Self { above, entry, stored, edits: BTreeMap::new() }
    }
}

impl Arena {
    pub(super) fn new(assembly: Assembly, root: Entry) -> Self {
        Self { assembly, directories: vec![Directory::new(None, root)], names: 0, last: None }
    }

    pub(super) fn names(&self) -> usize {
        self.names
    }

    /// Finds the entry at a path. Returns `None` if there is none, or if an ancestor is no directory.
    pub(super) fn find(&self, path: &TreePath) -> Result<Option<FoundEntry>> {
        let mut here = 0;
        let mut names = path.names();
        while let Some(name) = names.next() {
            let directory = &self.directories[here];
            match directory.edits.get(&name) {
                Some(None) => return Ok(None),
                Some(Some(Child::Directory(below))) => here = *below,
                Some(Some(Child::Entry(entry))) => return self.below(entry.clone(), names),
                None => {
                    let Some(entry) = self.stored(directory.stored, &name)? else { return Ok(None) };
                    return self.below(entry, names);
                }
            }
        }
        Ok(Some(FoundEntry::Directory))
    }

    /// Finds an entry below a stored one.
    fn below(&self, entry: Entry, names: impl Iterator<Item = Name>) -> Result<Option<FoundEntry>> {
        let mut here = entry;
        for name in names {
            let Node::Directory(contents) = here.node else { return Ok(None) };
            match self.stored(contents, &name)? {
                Some(entry) => here = entry,
                None => return Ok(None),
            }
        }
        Ok(Some(FoundEntry::Entry(here)))
    }

    fn stored(&self, contents: Option<DirectoryRef>, name: &Name) -> Result<Option<Entry>> {
        if contents.is_none() {
            return Ok(None);
        }
        let directory = Entry::new(Node::Directory(contents), 0o755, Time::EPOCH);
        let root = Root { directory, links: None, state: None };
        Ok(entry_at(self.assembly.session().store(), &root, &TreePath::root().join(name))?)
    }

    /// Lists the names in a directory with their kinds. The list is empty if the path is not a directory.
    pub(super) fn list(&self, path: &TreePath) -> Result<Vec<(Name, EntryKind)>> {
        let (stored, edits) = match self.opened(path) {
            Some(at) => (self.directories[at].stored, Some(&self.directories[at].edits)),
            None => match self.find(path)? {
                Some(FoundEntry::Entry(Entry { node: Node::Directory(contents), .. })) => (contents, None),
                _ => return Ok(Vec::new()),
            },
        };
        let mut names = BTreeMap::new();
        for item in list_directory(self.assembly.session().store(), stored)? {
            let (name, entry) = item?;
            names.insert(name, entry.kind());
        }
        for (name, child) in edits.into_iter().flatten() {
            match child {
                None => drop(names.remove(name)),
                Some(Child::Entry(entry)) => drop(names.insert(name.clone(), entry.kind())),
                Some(Child::Directory(_)) => drop(names.insert(name.clone(), EntryKind::Directory)),
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Returns the index of an open directory; `None` if the directory is not open.
    fn opened(&self, path: &TreePath) -> Option<usize> {
        let mut here = 0;
        for name in path.names() {
            match self.directories[here].edits.get(&name) {
                Some(Some(Child::Directory(below))) => here = *below,
                _ => return None,
            }
        }
        Some(here)
    }

    /// Opens a directory; those that are missing are made with this time.
    fn open(&mut self, path: &TreePath, mtime: Time) -> Result<usize> {
        if let Some((last, at)) = &self.last
            && last == path
        {
            return Ok(*at);
        }
        let mut here = 0;
        for name in path.names() {
            let directory = &self.directories[here];
            let entry = match directory.edits.get(&name) {
                Some(Some(Child::Directory(below))) => {
                    here = *below;
                    continue;
                }
                Some(Some(Child::Entry(entry))) => Some(entry.clone()),
                Some(None) => None,
                None => self.stored(directory.stored, &name)?,
            };
            let entry = entry.unwrap_or_else(|| Entry::empty_directory(DIRECTORY_MODE, mtime));
            if entry.kind() != EntryKind::Directory {
                let why = format!("it lies below {name}, which is {} and not a directory", entry.kind().word());
                return Err(Error::refused(path.as_bytes(), why));
            }
            let next = self.directories.len();
            self.directories.push(Directory::new(Some((here, name.clone())), entry));
            self.set(here, name, Some(Child::Directory(next)));
            here = next;
        }
        self.last = Some((path.clone(), here));
        Ok(here)
    }

    fn set(&mut self, at: usize, name: Name, child: Option<Child>) {
        if self.directories[at].edits.insert(name, child).is_none() {
            self.names += 1;
        }
    }

    /// Puts an entry at a path that is free or holds no directory.
    pub(super) fn place(&mut self, path: &TreePath, entry: Entry, mtime: Time) -> Result<()> {
        let (above, name) = path.split_last().expect("not the root");
        let at = self.open(&above, mtime)?;
        self.set(at, name, Some(Child::Entry(entry)));
        Ok(())
    }

    /// Removes the entry at a path, if there is one.
    pub(super) fn remove(&mut self, path: &TreePath) -> Result<()> {
        let (above, name) = path.split_last().expect("not the root");
        let at = self.open(&above, Time::EPOCH)?;
        self.set(at, name, None);
        self.last = None;
        Ok(())
    }

    /// Builds an entry and stores its extended attributes.
    pub(super) fn entry(&self, node: Node, attributes: Attributes) -> Result<Entry> {
        let Attributes { mode, mtime, owner, xattrs } = attributes;
        let mode = if matches!(node, Node::Symlink(_)) { 0o777 } else { mode & 0o7777 };
        let xattrs = self.assembly.session().put_xattrs(xattrs)?;
        Ok(Entry::new(node, mode, mtime).with_extra(|extra| {
            extra.owner = owner;
            extra.xattrs = xattrs;
        }))
    }

    pub(super) fn set_root(&mut self, attributes: Attributes) -> Result<()> {
        self.directories[0].entry = self.entry(Node::Directory(None), attributes)?;
        Ok(())
    }

    /// Sets the attributes of a directory that is there.
    pub(super) fn set_attributes(&mut self, path: &TreePath, attributes: Attributes) -> Result<()> {
        let at = self.open(path, attributes.mtime)?;
        self.directories[at].entry = self.entry(Node::Directory(None), attributes)?;
        Ok(())
    }

    /// Writes all directories to the store and forgets them, all but the root.
    pub(super) fn spill(&mut self) -> Result<()> {
        self.last = None;
        while self.directories.len() > 1 {
            let directory = self.directories.pop().expect("there are several");
            let at = self.directories.len();
            let Some((above, name)) = directory.above.clone() else { unreachable!("only the root has none above") };
            // A directory that was removed since is still in the list.
            let is_there =
                matches!(self.directories[above].edits.get(&name), Some(Some(Child::Directory(it))) if *it == at);
            if is_there {
                let entry = self.write(directory)?;
                self.directories[above].edits.insert(name, Some(Child::Entry(entry)));
            }
        }
        let root = self.directories.pop().expect("the root is always there");
        let entry = self.write(root)?;
        self.directories.push(Directory::new(None, entry));
        self.names = 0;
        // The directories are read from the store from here on.
        self.assembly.session().write_all_ahead()?;
        Ok(())
    }

    fn write(&self, directory: Directory) -> Result<Entry> {
        let Directory { entry, stored, edits, .. } = directory;
        let edits = edits.into_iter().map(|(name, child)| match child {
            None => (name, None),
            Some(Child::Entry(entry)) => (name, Some(entry)),
            Some(Child::Directory(_)) => unreachable!("those below are written first"),
        });
        let contents = self.assembly.directory(stored, edits.collect())?;
        Ok(Entry { node: Node::Directory(contents), ..entry })
    }

    pub(super) fn finish(mut self, links: &BTreeSet<LinkMember>) -> Result<WorkingTree> {
        self.spill()?;
        let root = self.directories.pop().expect("the root is always there");
        let entry = Entry { node: Node::Directory(root.stored), ..root.entry };
        Ok(self.assembly.finish(entry, links)?)
    }
}
