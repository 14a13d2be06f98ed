//! The table of inodes: which numbers have been handed out, and where they are now.
//!
//! A number is a hash of where the inode was first seen, so that it is the same again after a remount: git, tar and others
//! remember numbers. One that is taken, or was given up by something else in this view's life, is replaced by one from a
//! counter. So no number is used for two things while the view lives.

use amalgam_engine::work::LooseFile;
use amalgam_engine::{Name, Time, TreePath};
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use crate::attributes::{Attributes, Kind};
use crate::error::{Error, Result};
use crate::handles::Handles;
use crate::paths::KnownPaths;

/// The number of an inode.
pub type Ino = u64;

/// The root's number.
pub const ROOT: Ino = 1;

/// Numbers from the counter have this bit; hashes have not.
const COUNTED: u64 = 1 << 62;
/// So many numbers that were given up are remembered; after them every new number is counted.
const SPENT_MAX: usize = 1 << 20;
/// Of so many inodes times are kept that differ from what the tree has.
const KEPT_MAX: usize = 1 << 21;

/// So many numbers are remembered for places that do not give them.
const RECALLED_MAX: usize = 1 << 20;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) parent: Ino,
    pub(crate) name: Name,
}

/// Where an inode is.
pub(crate) enum Whereabouts {
    /// In the tree, under one name or more. The root has none.
    Named(Vec<Place>),
    /// Without a name, but held.
    Loose(Box<LooseFile>),
    /// A directory that was removed while somebody was in it.
    Gone(Box<Attributes>),
}

pub(crate) struct Inode {
    pub(crate) kind: Kind,
    pub(crate) lookups: u64,
    /// Names in it that are in the table.
    pub(crate) children: u32,
    /// Directories in it, if they have been counted since it was made.
    subdirectories: Option<u32>,
    /// Whether its number cannot be found out from its place, or not from each of them.
    pub(crate) moved: bool,
    pub(crate) whereabouts: Whereabouts,
    /// Its attributes, as long as nothing of it changed.
    seen: Option<Box<Attributes>>,
}

/// Times that the tree does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) ctime: Option<Time>,
    pub(crate) atime: Option<Time>,
}

pub(crate) struct Inodes {
    by_number: HashMap<Ino, Inode>,
    by_place: HashMap<Place, Ino>,
    spent: HashSet<Ino>,
    counted: u64,
    kept: HashMap<Ino, Kept>,
    /// Numbers of inodes that nobody holds and whose places do not give them.
    recalled: HashMap<Place, Ino>,
    paths: KnownPaths,
    /// `None` until handles are enabled.
    pub(crate) handles: Option<Box<Handles>>,
}

impl Inodes {
    pub(crate) fn new() -> Self {
        let root = Inode {
            kind: Kind::Directory,
            lookups: 1,
            children: 0,
            subdirectories: None,
            moved: true,
            whereabouts: Whereabouts::Named(Vec::new()),
            seen: None,
        };
        Self {
            by_number: HashMap::from_iter([(ROOT, root)]),
            by_place: HashMap::new(),
            spent: HashSet::new(),
            counted: 0,
            kept: HashMap::new(),
            recalled: HashMap::new(),
            paths: KnownPaths::default(),
            handles: None,
        }
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<&Inode> {
        self.by_number.get(&ino).ok_or(Error::Stale(ino))
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.by_number.get_mut(&ino).ok_or(Error::Stale(ino))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(crate) fn at(&self, place: &Place) -> Option<Ino> {
        self.by_place.get(place).copied()
    }

    /// Where an inode is in the tree. Nothing when it has no name any more.
    pub(crate) fn path(&self, ino: Ino) -> Result<Option<TreePath>> {
        if ino == ROOT {
            return Ok(Some(TreePath::root()));
        }
        let inode = self.get(ino)?;
        let Whereabouts::Named(places) = &inode.whereabouts else { return Ok(None) };
        let place = places.first().expect("only the root has no place");
        if inode.kind != Kind::Directory {
            let above = self.path(place.parent)?;
            return Ok(above.map(|above| above.join(&place.name)));
        }
        if let Some(path) = self.paths.get(ino) {
            return Ok(Some(path));
        }
        let Some(names) = self.names(ino)? else { return Ok(None) };
        let path = names.iter().rev().fold(Vec::with_capacity(names.len() * 16), |mut bytes, name| {
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(name.as_bytes());
            bytes
        });
        let path = TreePath::new(path).map_err(amalgam_engine::Error::from)?;
        self.paths.set(ino, &path);
        Ok(Some(path))
    }

    /// The names from an inode up to the root. Nothing when it has no name any more.
    fn names(&self, mut ino: Ino) -> Result<Option<Vec<&Name>>> {
        let mut names = Vec::new();
        while ino != ROOT {
            match &self.get(ino)?.whereabouts {
                Whereabouts::Named(places) => {
                    let place = places.first().expect("only the root has no place");
                    names.push(&place.name);
                    ino = place.parent;
                }
                Whereabouts::Loose(_) | Whereabouts::Gone(_) => return Ok(None),
            }
        }
        Ok(Some(names))
    }

    /// The number that a place gives, whether or not it is in the table.
    fn number_of(&self, place: &Place) -> Option<Ino> {
        if self.spent.len() >= SPENT_MAX {
            return None;
        }
        let number = hash(place);
        let is_free = number > ROOT && !self.spent.contains(&number) && !self.by_number.contains_key(&number);
        (is_free && !self.is_issued_elsewhere(number, place)).then_some(number)
    }

    /// An inode for a place that has none in the table.
    pub(crate) fn insert(&mut self, place: Place, kind: Kind) -> Ino {
        let recalled = self.recalled.remove(&place).filter(|ino| !self.by_number.contains_key(ino));
        let hashed = if recalled.is_none() { self.number_of(&place) } else { None };
        let number = recalled.or(hashed).unwrap_or_else(|| {
            self.counted += 1;
            COUNTED | self.counted
        });
        self.insert_as(number, place, kind, hashed.is_none());
        number
    }

    /// A number that was handed out for a place in an earlier life of the view.
    pub(crate) fn recall(&mut self, ino: Ino, place: Place) {
        if ino & COUNTED != 0 {
            self.counted = self.counted.max(ino & !COUNTED);
        }
        if self.recalled.len() < RECALLED_MAX && ino != hash(&place) {
            self.recalled.insert(place, ino);
        }
    }

    /// What was at a place that nobody holds is there no more.
    pub(crate) fn give_up(&mut self, place: &Place) {
        let ino = self.recalled.remove(place).unwrap_or_else(|| hash(place));
        self.spend(ino);
        self.handle_given_up(ino);
    }

    /// Returns the remembered number of a place, if it differs from the hash.
    pub(crate) fn recalled_at(&self, place: &Place) -> Option<Ino> {
        self.recalled.get(place).copied()
    }

    fn insert_as(&mut self, ino: Ino, place: Place, kind: Kind, moved: bool) {
        if let Some(parent) = self.by_number.get_mut(&place.parent) {
            parent.children += 1;
        }
        self.by_place.insert(place.clone(), ino);
        let whereabouts = Whereabouts::Named(vec![place]);
        let inode = Inode { kind, lookups: 0, children: 0, subdirectories: None, moved, whereabouts, seen: None };
        self.by_number.insert(ino, inode);
    }

    /// One more name for an inode that has one.
    pub(crate) fn add_place(&mut self, ino: Ino, place: Place) {
        let Some(inode) = self.by_number.get_mut(&ino) else { return };
        let Whereabouts::Named(places) = &mut inode.whereabouts else { return };
        places.push(place.clone());
        // Of several names any may be looked up first the next time.
        inode.moved |= places.len() > 1;
        if let Some(parent) = self.by_number.get_mut(&place.parent) {
            parent.children += 1;
        }
        self.by_place.insert(place, ino);
        self.places_changed(ino);
    }

    /// Whether an inode is in the tree.
    pub(crate) fn is_named(&self, ino: Ino) -> bool {
        self.by_number.get(&ino).is_some_and(|inode| matches!(inode.whereabouts, Whereabouts::Named(_)))
    }

    /// Whether an inode is known under more than one name.
    pub(crate) fn has_several_places(&self, ino: Ino) -> bool {
        let found = self.by_number.get(&ino).map(|inode| &inode.whereabouts);
        matches!(found, Some(Whereabouts::Named(places)) if places.len() > 1)
    }

    /// Takes a name from an inode. True when it was the last one: then the caller says what becomes of it.
    pub(crate) fn remove_place(&mut self, place: &Place) -> Option<(Ino, bool)> {
        let ino = self.by_place.remove(place)?;
        if let Some(parent) = self.by_number.get_mut(&place.parent) {
            parent.children -= 1;
        }
        let inode = self.by_number.get_mut(&ino).expect("a place leads to an inode");
        if inode.kind == Kind::Directory {
            // The paths of all below it are others now.
            self.paths.forget();
        }
        let Whereabouts::Named(places) = &mut inode.whereabouts else { unreachable!("it had this name") };
        places.retain(|other| other != place);
        let is_last = places.is_empty();
        if !is_last {
            self.places_changed(ino);
        }
        Some((ino, is_last))
    }

    /// Another name for the one that something had.
    pub(crate) fn move_place(&mut self, from: &Place, to: Place) {
        let Some((ino, last)) = self.remove_place(from) else { return };
        self.add_place(ino, to);
        let inode = self.by_number.get_mut(&ino).expect("it was just there");
        inode.moved |= last;
    }

    /// Two names change their inodes.
    pub(crate) fn exchange(&mut self, one: &Place, other: &Place) {
        let first = self.remove_place(one).map(|(ino, _)| ino);
        let second = self.remove_place(other).map(|(ino, _)| ino);
        for (ino, place) in [(first, other), (second, one)] {
            if let Some(ino) = ino {
                self.add_place(ino, place.clone());
                self.by_number.get_mut(&ino).expect("it was just there").moved = true;
            }
        }
    }

    /// An inode that has lost its last name: kept as long as it is held, and its number never used again.
    pub(crate) fn detach(&mut self, ino: Ino, whereabouts: Whereabouts) {
        self.spend(ino);
        self.handle_detached(ino, &whereabouts);
        let Some(inode) = self.by_number.get_mut(&ino) else { return };
        inode.whereabouts = whereabouts;
        inode.seen = None;
        self.drop_if_unheld(ino);
    }

    fn spend(&mut self, ino: Ino) {
        if ino & COUNTED == 0 && self.spent.len() < SPENT_MAX {
            self.spent.insert(ino);
        }
    }

    pub(crate) fn hold(&mut self, ino: Ino) {
        if let Some(inode) = self.by_number.get_mut(&ino) {
            inode.lookups += 1;
        }
    }

    /// Releases one hold without dropping the inode; the caller drops it if it is unheld.
    pub(crate) fn release(&mut self, ino: Ino) {
        if let Some(inode) = self.by_number.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(1);
        }
    }

    /// Gives back so many holds.
    pub(crate) fn forget(&mut self, ino: Ino, lookups: u64) {
        let Some(inode) = self.by_number.get_mut(&ino) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        self.drop_if_unheld(ino);
    }

    fn drop_if_unheld(&mut self, mut ino: Ino) {
        // A directory stays while names in it are in the table; the last of them takes it along.
        while let Some(inode) = self.by_number.get(&ino) {
            if ino == ROOT || inode.lookups > 0 || inode.children > 0 {
                return;
            }
            let inode = self.by_number.remove(&ino).expect("it was just there");
            let Whereabouts::Named(places) = inode.whereabouts else {
                self.kept.remove(&ino);
                return;
            };
            let mut above = ROOT;
            for place in places {
                self.by_place.remove(&place);
                if inode.moved {
                    self.recall(ino, place.clone());
                }
                if let Some(parent) = self.by_number.get_mut(&place.parent) {
                    parent.children -= 1;
                    above = place.parent;
                }
            }
            ino = above;
        }
    }

    /// All names in the table by their directories. Looks through the whole table.
    pub(crate) fn by_directory(&self) -> HashMap<Ino, Vec<(Name, Ino)>> {
        let mut all: HashMap<Ino, Vec<(Name, Ino)>> = HashMap::new();
        for (place, ino) in &self.by_place {
            all.entry(place.parent).or_default().push((place.name.clone(), *ino));
        }
        all
    }

    /// The attributes of an inode, if they were asked for before and nothing changed since.
    pub(crate) fn seen(&self, ino: Ino) -> Option<Attributes> {
        self.by_number.get(&ino)?.seen.as_deref().copied()
    }

    /// Remembers them, for an inode that somebody holds.
    pub(crate) fn see(&mut self, attributes: &Attributes) {
        if let Some(inode) = self.by_number.get_mut(&attributes.ino).filter(|inode| inode.lookups > 0) {
            match &mut inode.seen {
                Some(seen) => **seen = *attributes,
                seen => *seen = Some(Box::new(*attributes)),
            }
        }
    }

    /// What is remembered of an inode, to bring it up to date with a change.
    pub(crate) fn seen_mut(&mut self, ino: Ino) -> Option<&mut Attributes> {
        self.by_number.get_mut(&ino)?.seen.as_deref_mut()
    }

    /// Something of an inode changed.
    pub(crate) fn changed(&mut self, ino: Ino) {
        if let Some(inode) = self.by_number.get_mut(&ino) {
            inode.seen = None;
        }
    }

    /// Anything may have changed.
    pub(crate) fn all_changed(&mut self) {
        for inode in self.by_number.values_mut() {
            inode.seen = None;
            inode.subdirectories = None;
        }
    }

    /// A directory that was just made: what comes into it is counted from now on.
    pub(crate) fn begin_counting(&mut self, directory: Ino) {
        if let Some(inode) = self.by_number.get_mut(&directory) {
            inode.subdirectories = Some(0);
        }
    }

    /// A directory came into another one, or went.
    pub(crate) fn count(&mut self, directory: Ino, came: bool) {
        if let Some(Inode { subdirectories: Some(count), .. }) = self.by_number.get_mut(&directory) {
            *count = if came { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
    }

    /// The links of a directory: itself, its `.`, and the `..` of each directory in it, where these have been counted. One
    /// where they have not, which is how other file systems say so, too.
    pub(crate) fn directory_links(&self, directory: Ino) -> u32 {
        let counted = self.by_number.get(&directory).and_then(|inode| inode.subdirectories);
        counted.map_or(1, |count| count.saturating_add(2))
    }

    /// Times of an inode that the tree does not have.
    pub(crate) fn kept(&self, ino: Ino) -> Kept {
        self.kept.get(&ino).copied().unwrap_or_default()
    }

    pub(crate) fn keep(&mut self, ino: Ino, kept: Kept) {
        if kept == Kept::default() {
            self.kept.remove(&ino);
        } else if self.kept.len() < KEPT_MAX || self.kept.contains_key(&ino) {
            self.kept.insert(ino, kept);
        }
    }

    /// What is to be written down for the next one.
    pub(crate) fn remembered(&self) -> Remembered {
        let kept = self.kept.iter().map(|(ino, kept)| (*ino, *kept)).collect();
        let mut moved: Vec<_> = self.recalled.iter().map(|(place, ino)| (*ino, place.clone())).collect();
        for (ino, inode) in self.by_number.iter().filter(|(_, inode)| inode.moved) {
            let Whereabouts::Named(places) = &inode.whereabouts else { continue };
            let places = places.iter().filter(|place| hash(place) != *ino);
            moved.extend(places.map(|place| (*ino, place.clone())));
        }
        Remembered { kept, moved }
    }
}

/// What a remount needs to show the same.
pub(crate) struct Remembered {
    /// All times that are kept.
    pub(crate) kept: Vec<(Ino, Kept)>,
    /// All numbers that their places do not give.
    pub(crate) moved: Vec<(Ino, Place)>,
}

/// FNV-1a with a final mix: the same on every machine and in every version.
pub(crate) fn hash(place: &Place) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for byte in place.parent.to_le_bytes().iter().chain(place.name.as_bytes()) {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    state ^= state >> 32;
    state = state.wrapping_mul(0xd6e8_feb8_6659_fd93);
    state ^= state >> 32;
    state & (COUNTED - 1)
}
