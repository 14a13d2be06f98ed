//! What becomes of inodes when the tree becomes another one: directories and files whose bytes are the same stay, all others live
//! on apart from the tree for whoever holds them.
//!
//! All that can fail is looked up before anything is changed.

use std::collections::BTreeSet;

use amalgam_engine::object::Node;
use amalgam_engine::work::Stat;
use amalgam_engine::{Name, TreePath, WorkingTree};
use foldhash::HashMap;

use crate::attributes::{Attributes, Kind};
use crate::error::Result;
use crate::inodes::{Ino, Place, Whereabouts};
use crate::notice::Notice;
use crate::view::{Live, View};

/// What another tree makes of the inodes in the table.
pub(crate) struct Exchange {
    differences: Vec<Difference>,
    parting: Parting,
}

/// A path that may be something else.
struct Difference {
    path: TreePath,
    fate: Fate,
}

/// What becomes of an inode at a path.
enum Fate {
    /// It is the same one.
    Stays {
        /// The names of the file, if it has several.
        linked: Vec<TreePath>,
    },
    /// Nothing is there any more.
    Goes,
    /// Something else is there.
    Changes,
}

impl Exchange {
    /// Looks up what becomes of the inodes at these paths, sorted, when the tree is another one.
    pub(crate) fn new(view: &View, live: &Live, after: &WorkingTree, paths: Vec<TreePath>) -> Result<Self> {
        let mut exchange = Self { differences: Vec::with_capacity(paths.len()), parting: Parting::default() };
        for path in paths {
            if let Some(fate) = exchange.fate(view, live, after, &path)? {
                exchange.differences.push(Difference { path, fate });
            }
        }
        Ok(exchange)
    }

    /// Nothing where nobody can have seen anything, and where nobody holds what stays.
    fn fate(&mut self, view: &View, live: &Live, after: &WorkingTree, path: &TreePath) -> Result<Option<Fate>> {
        let Some((above, name)) = path.split_last() else { return Ok(Some(Fate::Stays { linked: Vec::new() })) };
        if live.is_hidden(path) {
            return Ok(None);
        }
        let Some(parent) = live.known(&above) else { return Ok(None) };
        let ino = live.inodes.at(&Place { parent, name });
        let (old, new) = (live.tree.stat(path)?, after.stat(path)?);
        if old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| is_same(old, new)) {
            let Some(ino) = ino else { return Ok(None) };
            let linked = if live.inodes.has_several_places(ino) { after.names_of(path)? } else { Vec::new() };
            return Ok(Some(Fate::Stays { linked }));
        }
        if let Some(ino) = ino {
            self.parting.prepare(view, live, ino)?;
        }
        Ok(Some(if new.is_some() { Fate::Changes } else { Fate::Goes }))
    }

    /// Does it, and tells all doors.
    pub(crate) fn apply(mut self, view: &View, live: &mut Live) {
        let tell = |notice: Notice| view.shared.watchers.tell(None, || notice.clone());
        // Listings in which something changed, each told of once.
        let mut listings = BTreeSet::new();
        for Difference { path, fate } in self.differences {
            let Some((above, name)) = path.split_last() else {
                listings.insert(crate::ROOT);
                continue;
            };
            // What went with its directory is told of with it.
            let Some(parent) = live.known(&above) else { continue };
            let place = Place { parent, name };
            match (live.inodes.at(&place), &fate) {
                (Some(ino), Fate::Stays { linked }) => {
                    keep_linked(live, ino, &path, linked);
                    live.inodes.keep(ino, Default::default());
                    // Its name is not told of: whoever is in a directory would be in one without a name.
                    let is_directory = live.inodes.get(ino).is_ok_and(|inode| inode.kind == Kind::Directory);
                    match is_directory {
                        true => drop(listings.insert(ino)),
                        false => tell(Notice::Attributes(ino)),
                    }
                    continue;
                }
                (Some(ino), Fate::Goes) if live.inodes.has_several_places(ino) => {
                    // It goes on under its other names.
                    live.inodes.remove_place(&place);
                    tell(Notice::Attributes(ino));
                    tell(Notice::Entry { parent, name: place.name });
                }
                // Tells of all its names.
                (Some(ino), _) => self.parting.cut_off(view, live, ino),
                (None, _) => {
                    live.inodes.give_up(&place);
                    tell(Notice::Entry { parent, name: place.name });
                }
            }
            listings.insert(parent);
        }
        listings.into_iter().for_each(|ino| tell(Notice::Contents(ino)));
    }
}

/// Whether an inode is the same one in both trees.
fn is_same(old: &Stat, new: &Stat) -> bool {
    if old.kind != new.kind {
        return false;
    }
    // Files that become one, or were one, are told apart by their names.
    old.kind == Kind::Directory
        || old.links >= new.links
            && old.entry.as_ref().zip(new.entry.as_ref()).is_some_and(|(old, new)| same_bytes(&old.node, &new.node))
}

fn same_bytes(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::File { content: one, .. }, Node::File { content: other, .. }) => one == other,
        (one, other) => one == other,
    }
}

/// An inode that stays at a path keeps those of its other names that are still names of the same file.
fn keep_linked(live: &mut Live, ino: Ino, path: &TreePath, linked: &[TreePath]) {
    let Ok(Whereabouts::Named(places)) = live.inodes.get(ino).map(|inode| &inode.whereabouts) else { return };
    if places.len() < 2 {
        return;
    }
    for place in places.clone() {
        let above = live.path(place.parent).ok().flatten();
        let other = above.map(|above| above.join(&place.name));
        if !other.is_some_and(|other| other == *path || linked.contains(&other)) {
            live.inodes.remove_place(&place);
        }
    }
}

/// Inodes that go out of the tree, and what they become.
#[derive(Default)]
pub(crate) struct Parting {
    apart: HashMap<Ino, Whereabouts>,
    /// The names in the table by their directories, as soon as somebody asks.
    below: Option<HashMap<Ino, Vec<(Name, Ino)>>>,
}

impl Parting {
    /// Looks up what becomes of an inode and of all below it.
    pub(crate) fn prepare(&mut self, view: &View, live: &Live, ino: Ino) -> Result<()> {
        let mut open = vec![ino];
        while let Some(ino) = open.pop() {
            let inode = live.inodes.get(ino)?;
            if self.apart.contains_key(&ino) || !matches!(inode.whereabouts, Whereabouts::Named(_)) {
                continue;
            }
            let whereabouts = match inode.kind {
                Kind::Directory => {
                    let attributes = live.attributes(view, ino)?;
                    Whereabouts::Gone(Box::new(Attributes { links: 0, ..attributes }))
                }
                _ => Whereabouts::Loose(Box::new(live.file(ino)?)),
            };
            self.apart.insert(ino, whereabouts);
            if inode.children > 0 {
                let below = self.below.get_or_insert_with(|| live.inodes.by_directory());
                open.extend(below.get(&ino).into_iter().flatten().map(|(_, ino)| *ino));
            }
        }
        Ok(())
    }

    /// Takes an inode out of the tree, with all below it, as it was prepared. A file that has a name elsewhere stays there.
    pub(crate) fn cut_off(&mut self, view: &View, live: &mut Live, ino: Ino) {
        let tell = |notice: Notice| view.shared.watchers.tell(None, || notice.clone());
        let (mut going, mut at) = (vec![ino], 0);
        while let Some(parent) = going.get(at).copied() {
            at += 1;
            let below = self.below.as_mut().and_then(|below| below.remove(&parent)).unwrap_or_default();
            for (name, ino) in below {
                let place = Place { parent, name };
                if live.inodes.at(&place) != Some(ino) {
                    continue;
                }
                if !live.inodes.has_several_places(ino) {
                    going.push(ino);
                    continue;
                }
                live.inodes.remove_place(&place);
                tell(Notice::Entry { parent, name: place.name });
                tell(Notice::Attributes(ino));
            }
        }
        // What is below a directory goes before it.
        for ino in going.into_iter().rev() {
            let Some(whereabouts) = self.apart.remove(&ino) else { continue };
            let Ok(Whereabouts::Named(places)) = live.inodes.get(ino).map(|inode| &inode.whereabouts) else { continue };
            for place in places.clone() {
                live.inodes.remove_place(&place);
                tell(Notice::Entry { parent: place.parent, name: place.name });
            }
            live.inodes.detach(ino, whereabouts);
            tell(Notice::Attributes(ino));
        }
    }
}
