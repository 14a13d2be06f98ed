//! Replaces single entries of a stored tree and changes nothing else: no times and no other entries.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::assemble::Assembly;
use crate::directory::{entry_at, list_directory};
use crate::error::{Error, Result};
use crate::id::{LinkGroup, RootId};
use crate::merkle::Items;
use crate::name::{Name, TreePath};
use crate::object::{DirectoryRef, Entry, LinkMember, Links, Node};
use crate::store::{Pin, Store, WriteSession};
use crate::work::WorkingTree;

/// The replacements in one directory.
type Edits = Vec<(Name, Option<Entry>)>;

/// A set of replacements on a stored tree.
pub struct Exchange {
    store: Store,
    assembly: Assembly,
    others: Vec<RootId>,
    _pins: Vec<Pin>,
    edits: BTreeMap<TreePath, Option<Entry>>,
}

impl Exchange {
    /// Starts with a tree. Replacements may also come from the `others`, which are pinned meanwhile.
    pub fn new(store: &Store, base: RootId, others: &[RootId]) -> Result<Self> {
        let pins = others.iter().map(|root| store.hold(*root)).collect::<Result<_>>()?;
        let assembly = Assembly::new(store, Some(base))?;
        Ok(Self { store: store.clone(), assembly, others: others.to_vec(), _pins: pins, edits: BTreeMap::new() })
    }

    /// Returns the session for putting the contents of new entries.
    pub fn session(&self) -> &WriteSession {
        self.assembly.session()
    }

    /// Replaces the entry at a path, with everything below it, or removes it with `None`. The parent directory stays, with its
    /// attributes, even if it becomes empty. The new entry has a single name: other hard links of its files, and of files below
    /// it, are dropped.
    pub fn set(&mut self, path: &TreePath, entry: Option<&Entry>) -> Result<()> {
        if path.is_root() {
            return Err(Error::Invalid { what: "exchange", why: "the root of a tree has no place".to_owned() });
        }
        let entry = entry.map(|entry| self.alone(entry)).transpose()?;
        self.edits.insert(path.clone(), entry);
        Ok(())
    }

    /// Returns an entry without hard links, at it and below it.
    pub fn alone(&self, entry: &Entry) -> Result<Entry> {
        alone(&self.assembly, entry)
    }

    /// Builds the resulting tree.
    pub fn finish(mut self) -> Result<(WorkingTree, RootId)> {
        let base = self.assembly.base().expect("it was begun with one").clone();
        let members = self.members(&base)?;
        let mut by_directory: BTreeMap<(usize, TreePath), Edits> = BTreeMap::new();
        for (path, entry) in std::mem::take(&mut self.edits) {
            let (parent, name) = path.split_last().expect("the root was refused");
            by_directory.entry((parent.names().count(), parent)).or_default().push((name, entry));
        }
        let mut top = base.directory.clone();
        // Deepest first: the result of a directory is an edit of its parent.
        while let Some(((_, path), mut edits)) = by_directory.pop_last() {
            edits.sort_by(|a, b| a.0.cmp(&b.0));
            let found = entry_at(&self.store, &base, &path)?;
            let Some(Entry { node: Node::Directory(contents), .. }) = found else {
                return Err(Error::NotFound { path });
            };
            let node = Node::Directory(self.assembly.directory(contents, edits)?);
            let entry = Entry { node, ..found.expect("it was found") };
            match path.split_last() {
                None => top = entry,
                Some((parent, name)) => {
                    let key = (parent.names().count(), parent);
                    by_directory.entry(key).or_default().push((name, Some(entry)));
                }
            }
        }
        let mut tree = self.assembly.finish(top, &members)?;
        for other in self.others {
            tree.keep(other)?;
        }
        let root = tree.freeze().write(&self.store.session())?;
        Ok((tree, root))
    }

    /// Returns the names of files that still have several. A file that is left with a single name loses its group.
    fn members(&mut self, base: &crate::object::Root) -> Result<BTreeSet<LinkMember>> {
        let all = Items::<Links>::all(&self.store, base.links.map(|links| links.object()))?;
        let mut groups: BTreeMap<LinkGroup, Vec<TreePath>> = BTreeMap::new();
        for member in all {
            let LinkMember { group, path } = member?;
            let names = groups.entry(group).or_default();
            if !self.is_exchanged(&path) {
                names.push(path);
            }
        }
        let mut members = BTreeSet::new();
        for (group, names) in groups {
            if let [name] = &names[..] {
                let entry = entry_at(&self.store, base, name)?;
                self.edits.insert(name.clone(), entry.map(|entry| entry.with_extra(|extra| extra.link = None)));
                continue;
            }
            members.extend(names.into_iter().map(|path| LinkMember { group, path }));
        }
        Ok(members)
    }

    fn is_exchanged(&self, path: &TreePath) -> bool {
        let mut here = Some(path.clone());
        while let Some(path) = here {
            if self.edits.contains_key(&path) {
                return true;
            }
            here = path.split_last().map(|(parent, _)| parent);
        }
        false
    }
}

/// Returns an entry without hard links, at it and below it.
pub(super) fn alone(assembly: &Assembly, entry: &Entry) -> Result<Entry> {
    let mut done: HashMap<DirectoryRef, DirectoryRef> = HashMap::new();
    let Node::Directory(Some(top)) = entry.node else {
        return Ok(entry.clone().with_extra(|extra| extra.link = None));
    };
    let mut open = vec![top];
    // Each directory waits until its sub-directories are done.
    while let Some(here) = open.last().copied() {
        if here.linked == 0 || done.contains_key(&here) {
            open.pop();
            continue;
        }
        let (mut edits, mut waits) = (Vec::new(), false);
        for item in list_directory(assembly.session().store(), Some(here))? {
            let (name, entry) = item?;
            match entry.node {
                Node::Directory(Some(below)) if below.linked > 0 => match done.get(&below) {
                    Some(alone) => {
                        edits.push((name, Some(Entry { node: Node::Directory(Some(*alone)), ..entry })));
                    }
                    None => {
                        open.push(below);
                        waits = true;
                    }
                },
                _ if entry.link().is_some() => {
                    edits.push((name, Some(entry.with_extra(|extra| extra.link = None))));
                }
                _ => {}
            }
        }
        if !waits {
            let alone = assembly.directory(Some(here), edits)?;
            done.insert(here, alone.expect("a directory with links holds something"));
            open.pop();
        }
    }
    let top = done.get(&top).copied().unwrap_or(top);
    Ok(Entry { node: Node::Directory(Some(top)), ..entry.clone() })
}
