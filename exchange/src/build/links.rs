//! Hard links of a tree under construction.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use amalgam_engine::object::{Entry, LinkMember, Node};
use amalgam_engine::{LinkGroup, Store, TreePath, list_directory};

use crate::error::{Error, Result};

/// The paths of files with several names are held in memory, up to this many bytes.
const PATHS_BYTES_MAX: usize = 512 << 20;
/// Memory of a path in addition to its bytes.
const PATH_OVERHEAD_BYTES: usize = 128;

pub(super) struct Links {
    /// The group of each name.
    of: BTreeMap<TreePath, usize>,
    groups: Vec<Group>,
    bytes: usize,
}

#[derive(Default)]
struct Group {
    /// The id that it has in the store; new groups get theirs at the end.
    id: Option<LinkGroup>,
    paths: BTreeSet<TreePath>,
    is_changed: bool,
}

impl Links {
    /// Reads the hard links of a stored tree.
    pub(super) fn of(store: &Store, root: &Entry) -> Result<Self> {
        let mut links = Self { of: BTreeMap::new(), groups: Vec::new(), bytes: 0 };
        let mut known = HashMap::new();
        for (path, entry) in linked_entries(store, root)? {
            let id = entry.link().expect("only linked entries are listed");
            let at = *known.entry(id).or_insert_with(|| {
                links.groups.push(Group { id: Some(id), ..Group::default() });
                links.groups.len() - 1
            });
            links.insert(at, path)?;
        }
        Ok(links)
    }

    fn insert(&mut self, at: usize, path: TreePath) -> Result<()> {
        self.bytes += path.as_bytes().len() + PATH_OVERHEAD_BYTES;
        if self.bytes > PATHS_BYTES_MAX {
            return Err(Error::TooLarge {
                what: "the memory for the names of hard-linked files".to_owned(),
                max: PATHS_BYTES_MAX as u64,
                hint: "import the archive in parts, or without its hard links",
            });
        }
        self.groups[at].paths.insert(path.clone());
        self.of.insert(path, at);
        Ok(())
    }

    /// Makes a path a further name of a file.
    pub(super) fn join(&mut self, existing: &TreePath, path: &TreePath) -> Result<()> {
        let at = match self.of.get(existing) {
            Some(at) => *at,
            None => {
                self.groups.push(Group::default());
                let at = self.groups.len() - 1;
                self.insert(at, existing.clone())?;
                at
            }
        };
        self.groups[at].is_changed = true;
        self.insert(at, path.clone())
    }

    /// Removes a path and all below it from their groups.
    pub(super) fn remove_below(&mut self, path: &TreePath) {
        let at_or_below = self.of.range(path.clone()..).take_while(|(member, _)| member.below(path).is_some());
        let gone: Vec<_> = at_or_below.map(|(member, at)| (member.clone(), *at)).collect();
        for (member, at) in gone {
            self.of.remove(&member);
            self.groups[at].paths.remove(&member);
            self.groups[at].is_changed = true;
            self.bytes = self.bytes.saturating_sub(member.as_bytes().len() + PATH_OVERHEAD_BYTES);
        }
    }

    /// Gives new groups their ids. Returns the group of each name of a changed group, which its entry has to record. New ids follow
    /// from the smallest names, so that the order of members does not matter.
    pub(super) fn assign_ids(&mut self) -> Result<Vec<(TreePath, Option<LinkGroup>)>> {
        let mut taken: BTreeSet<LinkGroup> = BTreeSet::new();
        taken.extend(self.groups.iter().filter(|group| group.paths.len() > 1).filter_map(|group| group.id));
        let mut order: Vec<usize> = (0..self.groups.len()).filter(|at| self.groups[*at].is_changed).collect();
        order.sort_by(|a, b| self.groups[*a].paths.first().cmp(&self.groups[*b].paths.first()));
        let mut settled = Vec::new();
        for at in order {
            let group = &mut self.groups[at];
            let Some(smallest) = group.paths.first() else { continue };
            let id = (group.paths.len() > 1).then(|| {
                group.id.unwrap_or_else(|| {
                    let attempts = (0..).map(|attempt| LinkGroup::first_seen_at(smallest.as_bytes(), attempt));
                    attempts.into_iter().find(|id| !taken.contains(id)).expect("attempts do not end")
                })
            });
            taken.extend(id);
            group.id = id;
            settled.extend(group.paths.iter().map(|path| (path.clone(), id)));
        }
        Ok(settled)
    }

    /// Returns all names of files that have several names.
    pub(super) fn members(&self) -> BTreeSet<LinkMember> {
        let several = self.groups.iter().filter(|group| group.paths.len() > 1);
        let members = several.flat_map(|group| {
            let id = group.id.expect("groups have ids at the end");
            group.paths.iter().map(move |path| LinkMember { group: id, path: path.clone() })
        });
        members.collect()
    }
}

/// Returns every path below a directory of a stored tree whose entry is a hard link.
fn linked_entries(store: &Store, root: &Entry) -> Result<Vec<(TreePath, Entry)>> {
    let mut found = Vec::new();
    let mut open = vec![(TreePath::root(), root.clone())];
    while let Some((path, entry)) = open.pop() {
        match entry.node {
            Node::Directory(Some(contents)) if contents.linked > 0 => {
                for item in list_directory(store, Some(contents))? {
                    let (name, entry) = item?;
                    if entry.linked() > 0 {
                        open.push((path.join(&name), entry));
                    }
                }
            }
            Node::Directory(_) => {}
            _ => found.push((path, entry)),
        }
    }
    Ok(found)
}
