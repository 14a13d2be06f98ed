//! Finds the locations of chunks: walks every tree once, then only the paths that lead to them.

use std::collections::{BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind, RootId};
use crate::name::{Name, TreePath};
use crate::object::{self, Child, Children};
use crate::store::Store;

/// Maximum number of nodes of one tree that are visited at each of their paths. Beyond it, each node is visited at two paths, of
/// which at most one can be the purged path.
const PATHS_MAX: u64 = 1 << 16;

/// Searches for a set of chunks.
pub(super) struct Finder<'a> {
    store: &'a Store,
    wanted: BTreeSet<ChunkId>,
    /// Whether a node leads to a wanted chunk.
    leads: HashMap<ObjectId, bool>,
    /// The wanted chunks of the contents found so far.
    contents: HashMap<ObjectId, Vec<ChunkId>>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { store, wanted: BTreeSet::new(), leads: HashMap::new(), contents: HashMap::new() }
    }

    pub(super) fn wanted(&self) -> &BTreeSet<ChunkId> {
        &self.wanted
    }

    /// Adds all chunks of a content to the search. Must be called before the first tree is searched.
    pub(super) fn want_content(&mut self, content: ObjectId) -> Result<()> {
        let mut open = vec![content];
        while let Some(id) = open.pop() {
            match id.kind {
                ObjectKind::Chunk => drop(self.wanted.insert(ChunkId::from_bytes(id.hash))),
                _ => open.extend(self.children(id)?.list.into_iter().map(|child| child.id)),
            }
        }
        Ok(())
    }

    /// Calls `visit` for every file of a tree that contains wanted chunks, with its path, its content, and those chunks.
    ///
    /// If more than [`PATHS_MAX`] paths of a tree lead to them, the first ones are visited, and after that at least two places of
    /// each content, if there are two.
    pub(super) fn places(
        &mut self,
        root: RootId,
        visit: &mut dyn FnMut(&TreePath, ObjectId, &[ChunkId]),
    ) -> Result<()> {
        if !self.leads(root.object())? {
            return Ok(());
        }
        let mut open = vec![(root.object(), TreePath::root())];
        let (mut visited, mut visits): (u64, HashMap<ObjectId, u8>) = (0, HashMap::new());
        while let Some((id, path)) = open.pop() {
            visited += 1;
            let times = visits.entry(id).or_default();
            *times = times.saturating_add(1);
            if visited > PATHS_MAX && *times > 2 {
                continue;
            }
            let Children { level, list } = self.children(id)?;
            for Child { key, id: child } in list {
                if !self.leads(child)? {
                    continue;
                }
                let is_item = id.kind == ObjectKind::Directory && level == 0;
                let path = if is_item { path.join(&Name::new(&key)?) } else { path.clone() };
                match child.kind {
                    ObjectKind::Chunk | ObjectKind::Rope => {
                        let chunks = self.chunks(child)?;
                        visit(&path, child, &chunks);
                    }
                    _ => open.push((child, path)),
                }
            }
        }
        Ok(())
    }

    fn chunks(&mut self, content: ObjectId) -> Result<Vec<ChunkId>> {
        if let Some(chunks) = self.contents.get(&content) {
            return Ok(chunks.clone());
        }
        let (mut chunks, mut open) = (BTreeSet::new(), vec![content]);
        while let Some(id) = open.pop() {
            match id.kind {
                ObjectKind::Chunk => drop(chunks.insert(ChunkId::from_bytes(id.hash))),
                _ => {
                    for child in self.children(id)?.list {
                        if self.leads(child.id)? {
                            open.push(child.id);
                        }
                    }
                }
            }
        }
        let chunks: Vec<_> = chunks.into_iter().collect();
        self.contents.insert(content, chunks.clone());
        Ok(chunks)
    }

    fn children(&self, id: ObjectId) -> Result<Children> {
        let bytes = self.store.canonical(id)?;
        object::children(id.kind, &bytes).map_err(|source| Error::Malformed { id, source })
    }

    /// Returns whether an object or anything below it is wanted. Visits each object once.
    fn leads(&mut self, id: ObjectId) -> Result<bool> {
        if let Some(known) = self.known(id) {
            return Ok(known);
        }
        let mut open = vec![(id, self.children(id)?.list, false)];
        while let Some((id, list, found)) = open.last_mut() {
            let Some(child) = list.pop() else {
                let (id, found) = (*id, *found);
                self.leads.insert(id, found);
                open.pop();
                if let Some((_, _, above)) = open.last_mut() {
                    *above |= found;
                }
                continue;
            };
            match self.known(child.id) {
                Some(known) => *found |= known,
                None => {
                    let list = self.children(child.id)?.list;
                    open.push((child.id, list, false));
                }
            }
        }
        Ok(self.leads[&id])
    }

    fn known(&self, id: ObjectId) -> Option<bool> {
        match id.kind {
            ObjectKind::Chunk => Some(self.wanted.contains(&ChunkId::from_bytes(id.hash))),
            ObjectKind::Xattrs | ObjectKind::Links | ObjectKind::State => Some(false),
            _ => self.leads.get(&id).copied(),
        }
    }
}
