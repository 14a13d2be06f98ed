//! Converts git trees to directories. A subtree that a parent has at the same path is taken over from the parent's snapshot, with its
//! times; so a commit costs only its changes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use amalgam_engine::object::{DirectoryRef, Entry, Node, Root, SYMLINK_TARGET_BYTES_MAX, Xattr};
use amalgam_engine::{Assembly, DEPTH_MAX, Name, Time, TreePath, entry_at};
use bytes::Bytes;

use super::blobs::Blobs;
use super::commit::Commit;
use super::keys::{GITLINK_XATTR, GITMODE_XATTR};
use super::objects::{MODE_GITLINK, MODE_SYMLINK, MODE_TREE, Oid, Reader, TreeEntries, TreeEntry, damaged};
use crate::error::{Error, Result};
use crate::report::Report;

const DIRECTORY_MODE: u32 = 0o755;
pub(super) const NOTE_SUBMODULE: &str = "submodules became empty directories that record their commits";
pub(super) const NOTE_SYMLINK: &str = "symlinks with impossible targets became files";

/// A tree of a parent commit, and the directory that it became.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ParentTree {
    pub(super) tree: Oid,
    pub(super) directory: Option<DirectoryRef>,
}

/// Collects the blobs of a tree that none of the parents has at the same path.
pub(super) fn collect_blobs(reader: &Reader, tree: Oid, parents: &[Oid], into: &mut Vec<Oid>) -> Result<()> {
    let mut seen = HashSet::new();
    let mut open = vec![(tree, parents.to_vec(), 0)];
    while let Some((tree, parents, depth)) = open.pop() {
        if parents.contains(&tree) || !seen.insert((tree, parents.clone())) {
            continue;
        }
        if depth > DEPTH_MAX {
            return Err(damaged(format!("tree {tree}"), format!("it lies deeper than {DEPTH_MAX} directories")));
        }
        let before: Vec<_> = parents.iter().map(|oid| reader.tree(*oid)).collect::<Result<_>>()?;
        for (name, entry) in &*reader.tree(tree)? {
            let at_name = || before.iter().filter_map(|entries| entries.get(name));
            if at_name().any(|other| other == entry) {
                continue;
            }
            match entry.mode {
                MODE_TREE => {
                    let below = at_name().filter(|other| other.mode == MODE_TREE).map(|other| other.oid);
                    open.push((entry.oid, below.collect(), depth + 1));
                }
                MODE_GITLINK => {
                    if let Some(tree) = submodule_tree(reader, entry.oid)? {
                        open.push((tree, Vec::new(), depth + 1));
                    }
                }
                _ => into.push(entry.oid),
            }
        }
    }
    Ok(())
}

/// Returns the tree of a submodule's commit, if submodules are imported and its repository is at hand.
fn submodule_tree(reader: &Reader, commit: Oid) -> Result<Option<Oid>> {
    match reader.has_submodule(commit) {
        true => Ok(Some(Commit::parse(commit, &reader.commit(commit)?)?.tree)),
        false => Ok(None),
    }
}

/// Builds the directories of one commit.
pub(super) struct TreeMaker<'a> {
    pub(super) reader: &'a Reader,
    pub(super) assembly: &'a Assembly,
    pub(super) blobs: &'a Blobs,
    /// The commit's time.
    pub(super) time: Time,
    pub(super) report: &'a mut Report,
    /// Trees that were built before, each in the light of the same parents. A tree that lies at very many paths is built once.
    pub(super) made: HashMap<(Oid, Vec<ParentTree>), Option<DirectoryRef>>,
}

impl TreeMaker<'_> {
    /// Builds the directory of a tree that none of the parents has at the same path.
    pub(super) fn directory(&mut self, tree: Oid, before: &[ParentTree], depth: usize) -> Result<Option<DirectoryRef>> {
        if depth > DEPTH_MAX {
            return Err(damaged(format!("tree {tree}"), format!("it lies deeper than {DEPTH_MAX} directories")));
        }
        let key = (tree, before.to_vec());
        if let Some(made) = self.made.get(&key) {
            return Ok(*made);
        }
        self.report.directories += 1;
        let now = self.reader.tree(tree)?;
        let parents: Vec<_> = before.iter().map(|before| self.reader.tree(before.tree)).collect::<Result<_>>()?;
        // The first parent's directory is changed where it differs; where there is none, everything is new.
        let names: BTreeSet<&Name> =
            now.keys().chain(parents.first().into_iter().flat_map(|first| first.keys())).collect();
        let mut edits = Vec::new();
        for name in names {
            let Some(entry) = now.get(name) else {
                edits.push((name.clone(), None));
                continue;
            };
            if parents.first().and_then(|first| first.get(name)) == Some(entry) {
                continue;
            }
            let same = parents.iter().position(|parent| parent.get(name) == Some(entry));
            let made = match same {
                Some(parent) => self.entry_of(&before[parent], name)?,
                None => self.entry(name, entry, before, &parents, depth)?,
            };
            edits.push((name.clone(), Some(made)));
        }
        let first = before.first().and_then(|before| before.directory);
        let made = apply(self.assembly, first, edits)?;
        self.made.insert(key, made);
        Ok(made)
    }

    /// Returns the entry of a name in a parent's snapshot.
    fn entry_of(&self, before: &ParentTree, name: &Name) -> Result<Entry> {
        let found = look_up(self.assembly, before.directory, name)?;
        found.ok_or_else(|| Error::Invalid {
            what: "known snapshot",
            why: format!("it does not hold {name} of tree {}; import without known snapshots", before.tree),
        })
    }

    /// Builds an entry that no parent has.
    fn entry(
        &mut self,
        name: &Name,
        entry: &TreeEntry,
        before: &[ParentTree],
        parents: &[Rc<TreeEntries>],
        depth: usize,
    ) -> Result<Entry> {
        match entry.mode {
            MODE_TREE => {
                let mut below = Vec::new();
                for (before, parent) in before.iter().zip(parents) {
                    if let Some(other) = parent.get(name).filter(|other| other.mode == MODE_TREE) {
                        let Node::Directory(directory) = self.entry_of(before, name)?.node else {
                            return Err(damaged(format!("tree {}", other.oid), "its snapshot has no directory for it"));
                        };
                        below.push(ParentTree { tree: other.oid, directory });
                    }
                }
                let contents = self.directory(entry.oid, &below, depth + 1)?;
                Ok(Entry::new(Node::Directory(contents), DIRECTORY_MODE, self.time))
            }
            MODE_GITLINK => {
                let directory = match submodule_tree(self.reader, entry.oid)? {
                    // Built again whenever it moves: a parent's snapshot may lack its files.
                    Some(tree) => {
                        let contents = self.directory(tree, &[], depth + 1)?;
                        Entry::new(Node::Directory(contents), DIRECTORY_MODE, self.time)
                    }
                    None => {
                        self.report.note(NOTE_SUBMODULE, name.as_bytes());
                        Entry::empty_directory(DIRECTORY_MODE, self.time)
                    }
                };
                self.with_xattr(directory, GITLINK_XATTR, entry.oid.to_string())
            }
            MODE_SYMLINK => {
                let target = self.reader.blob(entry.oid)?;
                if target.is_empty() || target.contains(&0) || target.len() > SYMLINK_TARGET_BYTES_MAX {
                    self.report.note(NOTE_SYMLINK, name.as_bytes());
                    let file = self.file(entry, 0o644)?;
                    return self.with_xattr(file, GITMODE_XATTR, format!("{MODE_SYMLINK:o}"));
                }
                self.report.symlinks += 1;
                Ok(Entry::new(Node::Symlink(Bytes::from(target)), 0o777, self.time))
            }
            mode if mode & 0o170_000 == 0o100_000 => self.file(entry, mode & 0o777),
            mode => Err(damaged(format!("entry {name}"), format!("it has mode {mode:o}, which is none of git's"))),
        }
    }

    fn file(&mut self, entry: &TreeEntry, mode: u32) -> Result<Entry> {
        self.report.files += 1;
        let (size, content) = self.blobs.get(entry.oid).expect("the blobs of a batch are stored before its trees");
        Ok(Entry::new(Node::File { size, content }, mode, self.time))
    }

    fn with_xattr(&self, entry: Entry, name: &'static str, value: String) -> Result<Entry> {
        let xattr = Xattr { name: Bytes::from(name), value: Bytes::from(value) };
        let xattrs = self.assembly.session().put_xattrs(vec![xattr])?;
        Ok(entry.with_extra(|extra| extra.xattrs = xattrs))
    }
}

/// Looks up a name in a directory that is stored, or not yet written to the store.
fn look_up(assembly: &Assembly, directory: Option<DirectoryRef>, name: &Name) -> Result<Option<Entry>> {
    let directory = Entry::new(Node::Directory(directory), DIRECTORY_MODE, Time::EPOCH);
    let root = Root { directory, links: None, state: None };
    let (store, path) = (assembly.session().store(), TreePath::root().join(name));
    match entry_at(store, &root, &path) {
        Err(amalgam_engine::Error::Missing { .. }) => {
            assembly.session().write_all_ahead()?;
            Ok(entry_at(store, &root, &path)?)
        }
        found => Ok(found?),
    }
}

/// Changes a directory that is stored, or not yet written to the store.
fn apply(
    assembly: &Assembly,
    before: Option<DirectoryRef>,
    edits: Vec<(Name, Option<Entry>)>,
) -> Result<Option<DirectoryRef>> {
    if before.is_none() {
        return Ok(assembly.directory(None, edits)?);
    }
    match assembly.directory(before, edits.clone()) {
        Err(amalgam_engine::Error::Missing { .. }) => {
            assembly.session().write_all_ahead()?;
            Ok(assembly.directory(before, edits)?)
        }
        made => Ok(made?),
    }
}
