//! What becomes of inodes when the tree becomes another one: directories and files whose bytes are the same stay, all others live
//! on apart from the tree for whoever holds them.
//!
//! All that can fail is looked up before anything is changed.

use std::collections::BTreeSet;

use amalgam_engine::object::{Entry, EntryKind, Node};
use amalgam_engine::work::Stat;
use amalgam_engine::{Change, DiffOptions, Name, TreePath, WorkingTree, diff_entries};
use foldhash::HashMap;

use crate::attributes::{Attributes, Kind};
use crate::error::Result;
use crate::inodes::{Ino, Place, Whereabouts};
use crate::notice::Notice;
use crate::view::{Live, View};

/// A path at which two trees of one store may differ.
pub(crate) struct Differing {
    path: TreePath,
    /// What both have there, where that is known to be what is stored.
    stored: Option<[Option<Entry>; 2]>,
}

impl Differing {
    /// All of them, sorted: what either tree was edited at, and what their bases differ in.
    pub(crate) fn between(before: &WorkingTree, after: &WorkingTree) -> Result<Vec<Self>> {
        let mut edited: BTreeSet<TreePath> = before.edited().into_iter().chain(after.edited()).collect();
        let (old, new) = (before.base_directory().cloned(), after.base_directory().cloned());
        let changes = diff_entries(
            before.store(),
            TreePath::root(),
            old,
            new,
            DiffOptions { times: true, ..DiffOptions::default() },
        )?;
        if edited.is_empty() {
            let stored = |change: Change| Self { path: change.path, stored: Some([change.before, change.after]) };
            return Ok(changes.map(|change| change.map(stored)).collect::<Result<_, _>>()?);
        }
        // Below a directory that was moved by an edit the bases say nothing of what is there.
        for change in changes {
            edited.insert(change?.path);
        }
        Ok(edited.into_iter().map(|path| Self { path, stored: None }).collect())
    }

    /// What each tree has there.
    fn sides(&self, before: &WorkingTree, after: &WorkingTree) -> Result<[Option<Side>; 2]> {
        match &self.stored {
            Some(sides) if !sides.iter().flatten().any(|entry| entry.link().is_some()) => {
                Ok(sides.clone().map(|side| side.map(Side::stored)))
            }
            _ => Ok([before.stat(&self.path)?.map(Side::from), after.stat(&self.path)?.map(Side::from)]),
        }
    }
}

/// What a tree has at a path, as far as inodes are concerned.
struct Side {
    kind: EntryKind,
    links: u64,
    /// What is stored of it, when it has no changes of its own.
    entry: Option<Entry>,
}

impl Side {
    fn stored(entry: Entry) -> Self {
        Self { kind: entry.kind(), links: 1, entry: Some(entry) }
    }

    /// Whether an inode is the same one on both sides.
    fn is_same(&self, other: &Self) -> bool {
        if self.kind != other.kind {
            return false;
        }
        // Files that become one, or were one, are told apart by their names.
        self.kind == EntryKind::Directory
            || self.links >= other.links
                && self
                    .entry
                    .as_ref()
                    .zip(other.entry.as_ref())
                    .is_some_and(|(one, other)| same_bytes(&one.node, &other.node))
    }
}

impl From<Stat> for Side {
    fn from(stat: Stat) -> Self {
        Self { kind: stat.kind, links: stat.links, entry: stat.entry }
    }
}

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
    pub(crate) fn new(view: &View, live: &Live, after: &WorkingTree, differing: Vec<Differing>) -> Result<Self> {
        let mut exchange = Self { differences: Vec::with_capacity(differing.len()), parting: Parting::default() };
        for differing in differing {
            if let Some(fate) = exchange.fate(view, live, after, &differing)? {
                exchange.differences.push(Difference { path: differing.path, fate });
            }
        }
        Ok(exchange)
    }

    /// Nothing where nobody can have seen anything, and where nobody holds what stays.
    fn fate(&mut self, view: &View, live: &Live, after: &WorkingTree, differing: &Differing) -> Result<Option<Fate>> {
        let path = &differing.path;
        let Some((above, name)) = path.split_last() else { return Ok(Some(Fate::Stays { linked: Vec::new() })) };
        if live.is_hidden(path) {
            return Ok(None);
        }
        let Some(parent) = live.known(&above) else { return Ok(None) };
        let ino = live.inodes.at(&Place { parent, name });
        let [old, new] = differing.sides(&live.tree, after)?;
        if old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.is_same(new)) {
            let Some(ino) = ino else { return Ok(None) };
            let linked = if live.inodes.has_several_places(ino) { after.names_of(path)? } else { Vec::new() };
            return Ok(Some(Fate::Stays { linked }));
        }
        if let Some(ino) = ino {
            self.parting.prepare(view, live, ino, old.as_ref().and_then(|old| old.entry.as_ref()))?;
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
    /// Looks up what becomes of an inode and of all below it. `stored` is what the tree has of it, if it is known.
    pub(crate) fn prepare(&mut self, view: &View, live: &Live, ino: Ino, stored: Option<&Entry>) -> Result<()> {
        let mut stored = stored.filter(|entry| matches!(entry.node, Node::File { .. }));
        let mut open = vec![ino];
        while let Some(ino) = open.pop() {
            let stored = stored.take();
            let inode = live.inodes.get(ino)?;
            if self.apart.contains_key(&ino) || !matches!(inode.whereabouts, Whereabouts::Named(_)) {
                continue;
            }
            let whereabouts = match inode.kind {
                Kind::Directory => {
                    let attributes = live.attributes(view, ino)?;
                    Whereabouts::Gone(Box::new(Attributes { links: 0, ..attributes }))
                }
                _ => Whereabouts::Loose(Box::new(match stored {
                    Some(entry) => live.tree.loose_entry(Some(entry)),
                    None => live.file(ino)?,
                })),
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
