//! Where chunks are held: every tree walked once, and then only along what leads to them.

use std::collections::{BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind, RootId};
use crate::name::{Name, TreePath};
use crate::object::{self, Child, Children};
use crate::store::Store;

/// The most nodes of one tree that are visited at every path where they lie. From then on each is visited at two paths: one of
/// them may be the path that is purged, the other one is not.
const PATHS_MAX: u64 = 1 << 16;

/// Looks for some chunks.
pub(super) struct Finder<'a> {
    store: &'a Store,
    wanted: BTreeSet<ChunkId>,
    /// Whether a node leads to a wanted chunk.
    leads: HashMap<ObjectId, bool>,
    /// The wanted chunks of contents that were met.
    contents: HashMap<ObjectId, Vec<ChunkId>>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { store, wanted: BTreeSet::new(), leads: HashMap::new(), contents: HashMap::new() }
    }

    pub(super) fn wanted(&self) -> &BTreeSet<ChunkId> {
        &self.wanted
    }

    /// Wants all chunks of a content. Comes before the first look at a tree.
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

    /// Calls back with every file of a tree that holds wanted chunks: its path, its content, and those chunks.
    ///
    /// Of a tree where more paths lead to them than [`PATHS_MAX`], the first ones are visited, and of each content that comes
    /// behind those at least two places, as far as there are two.
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

    /// Whether anything below an object, or the object, is wanted. Each is looked at once.
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
