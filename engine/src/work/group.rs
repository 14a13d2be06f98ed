//! Hard links in a working tree: files with several names, and their paths.

use std::sync::Arc;

use super::WorkingTree;
use super::lookup::{Listing, Lookup};
use super::node::{Child, Group, GroupKey, Leaf};
use super::ordmap::OrdMap;
use crate::directory;
use crate::error::Result;
use crate::id::LinkGroup;
use crate::name::TreePath;
use crate::object::{DirectoryRef, Entry, Node};

impl WorkingTree {
    /// Returns the paths of a stored group in the base.
    pub(super) fn stored_members(&self, group: LinkGroup) -> Result<Vec<TreePath>> {
        let base = self.state.base.root.as_deref();
        base.map_or_else(|| Ok(Vec::new()), |root| directory::linked_paths(&self.store, root, group))
    }

    /// Loads a stored group into the table.
    pub(super) fn load_group(&mut self, group: LinkGroup, entry: &Entry) -> Result<GroupKey> {
        let key = GroupKey::Known(group);
        if self.state.groups.get(&key).is_none() {
            let mut members = OrdMap::default();
            for path in self.stored_members(group)? {
                members.insert(path, ());
            }
            let leaf = Arc::new(Leaf::stored(entry));
            self.state.groups.insert(key, Arc::new(Group { leaf, members }));
        }
        Ok(key)
    }

    pub(super) fn group_mut(&mut self, key: GroupKey) -> &mut Group {
        Arc::make_mut(self.state.groups.get_mut(&key).expect("a linked name has its group in the table"))
    }

    /// Removes one name of a file. A stored group without names stays in the table, so that the next freeze removes it from the
    /// hard-link map.
    pub(super) fn remove_member(&mut self, key: GroupKey, path: &TreePath) {
        let group = self.group_mut(key);
        group.members.remove(path);
        if group.members.is_empty() && matches!(key, GroupKey::New(_)) {
            self.state.groups.remove(&key);
        }
    }

    /// Returns the paths of all hard-linked files that were edited since the base, under each of their names. An edit through one
    /// name leaves the directories of the other names unmodified. May include files whose edits were reverted.
    pub fn edited_links(&self) -> impl Iterator<Item = &TreePath> {
        self.state.groups.iter().flat_map(|(_, group)| group.members.iter().map(|(member, ())| member))
    }

    fn has_links(&self) -> bool {
        let stored = self.state.base.root.as_ref().is_some_and(|root| root.links.is_some());
        stored || !self.state.groups.is_empty()
    }

    /// Returns the hard links at or below a path and loads their groups into the table. Directories without hard links are not
    /// read.
    pub(super) fn links_below(&mut self, path: &TreePath) -> Result<Vec<(TreePath, GroupKey)>> {
        if !self.has_links() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mut unloaded = Vec::new();
        let mut open = vec![(path.clone(), self.existing(path)?)];
        while let Some((path, here)) = open.pop() {
            match here {
                Lookup::Clean(Entry { node: Node::Directory(contents), .. }) => {
                    self.stored_links(&path, contents, &mut unloaded)?;
                }
                Lookup::Clean(entry) => {
                    if let Some(link) = entry.link() {
                        unloaded.push((path, link, entry));
                    }
                }
                Lookup::Dir(dir) => {
                    for child in Listing::of(self, dir.base, Some(dir))?.lookups() {
                        let (name, child) = child?;
                        open.push((path.join(&name), child));
                    }
                }
                Lookup::Leaf(_, Some((key, _))) => found.push((path, key)),
                Lookup::Leaf(_, None) => {}
            }
        }
        for (path, link, entry) in unloaded {
            found.push((path, self.load_group(link, &entry)?));
        }
        Ok(found)
    }

    /// Collects the links in an unmodified directory, whose files may have been edited through other names.
    fn stored_links(
        &self,
        path: &TreePath,
        contents: Option<DirectoryRef>,
        found: &mut Vec<(TreePath, LinkGroup, Entry)>,
    ) -> Result<()> {
        let mut open = vec![(path.clone(), contents)];
        while let Some((path, contents)) = open.pop() {
            if contents.is_none_or(|contents| contents.linked == 0) {
                continue;
            }
            for item in directory::list(&self.store, contents)? {
                let item = item?;
                match (&item.entry.node, item.entry.link()) {
                    (Node::Directory(below), _) => open.push((path.join(&item.name), *below)),
                    (_, Some(link)) => found.push((path.join(&item.name), link, item.entry)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the group of the file at a path, and creates it if the file has a single name.
    pub(super) fn group_of(&mut self, path: &TreePath) -> Result<GroupKey> {
        if let Some((_, key)) = self.links_below(path)?.pop() {
            return Ok(key);
        }
        let leaf = match self.existing(path)? {
            Lookup::Clean(entry) => Arc::new(Leaf::stored(&entry)),
            Lookup::Leaf(leaf, _) => Arc::clone(leaf),
            Lookup::Dir(_) => unreachable!("the caller refuses directories"),
        };
        let key = GroupKey::New(self.state.next_group);
        let (parent, name) = path.split_last().expect("the root is a directory");
        self.directory_mut(&parent)?.set(name, Child::Linked(key));
        self.state.next_group += 1;
        let mut members = OrdMap::default();
        members.insert(path.clone(), ());
        self.state.groups.insert(key, Arc::new(Group { leaf, members }));
        Ok(key)
    }
}
