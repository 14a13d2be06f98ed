//! Listing a directory in pieces, while it changes.
//!
//! Names come in their order, and a listing goes on behind the last name that was given: so a name that is there all the time
//! is given once, whatever happens to the others. A place in a listing is a number, the hash of a name; the names that were
//! given last are remembered for it, and others are found again by looking. A listing whose place was removed and is remembered
//! no more ends with an error, and never as if it were whole.

use std::collections::VecDeque;

use amalgam_engine::{Name, TreePath};
use foldhash::HashMap;

use crate::access::Access;
use crate::attributes::{Attributes, Caller, Kind};
use crate::error::{Error, Result};
use crate::inodes::{Ino, Place, ROOT, Whereabouts};
use crate::view::{Live, View};

/// Places that are remembered.
const COOKIES_MAX: usize = 1 << 15;
/// Places at which a listing stopped, and most probably goes on: these are remembered for longer.
const ENDS_MAX: usize = 1 << 16;
/// Where the first name is, and the second.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// One name of a listing.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    /// The name; `.` and `..` come first.
    pub name: &'a [u8],
    /// What it stands for; for `.` and `..` only the number and the kind are meant.
    pub attributes: Attributes,
    /// Where the listing goes on behind it.
    pub cookie: u64,
}

/// Which names belong to places that were given out: the pieces of listings, the newest last.
#[derive(Default)]
pub(crate) struct Cookies {
    pieces: VecDeque<(Ino, Vec<Name>)>,
    names: usize,
    /// The last names of pieces that are forgotten, by their directories and places; and in which order they were.
    ends: HashMap<(Ino, u64), Name>,
    order: VecDeque<(Ino, u64)>,
}

impl Cookies {
    fn add(&mut self, ino: Ino, names: Vec<Name>) {
        if names.is_empty() {
            return;
        }
        self.names += names.len();
        self.pieces.push_back((ino, names));
        while self.names > COOKIES_MAX
            && let Some((ino, mut oldest)) = self.pieces.pop_front()
        {
            self.names -= oldest.len();
            let Some(last) = oldest.pop() else { continue };
            let key = (ino, cookie_of(&last));
            if self.ends.insert(key, last).is_none() {
                self.order.push_back(key);
            }
            if self.order.len() > ENDS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.ends.remove(&oldest);
            }
        }
    }

    /// Most often the last name of the last piece is asked for.
    fn find(&self, ino: Ino, cookie: u64) -> Option<&Name> {
        let pieces = self.pieces.iter().rev().filter(|(other, _)| *other == ino);
        let found = pieces.flat_map(|(_, names)| names.iter().rev()).find(|name| cookie_of(name) == cookie);
        found.or_else(|| self.ends.get(&(ino, cookie)))
    }
}

fn cookie_of(name: &Name) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name.as_bytes() {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    state ^= state >> 29;
    (state.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 2) | 4
}

impl View {
    /// Gives the names of a directory from a place on, until `take` says that it has enough. The one that it refuses comes
    /// again. With `hold`, each name that is taken is held as if it had been looked up.
    pub fn read_directory(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        hold: bool,
        mut take: impl FnMut(&Listed<'_>) -> bool,
    ) -> Result<()> {
        let live = &mut *self.shared.live.write();
        let own = live.attributes(self, ino)?;
        if own.kind != Kind::Directory {
            return Err(amalgam_engine::Error::NotADirectory { path: TreePath::root() }.into());
        }
        live.demand(caller, &own, Access::READ)?;
        let Some(path) = live.path(ino)? else {
            // A directory that was removed has no names, not even its own.
            return Ok(());
        };
        if cookie < DOT && !take(&Listed { name: b".", attributes: own, cookie: DOT }) {
            return Ok(());
        }
        if cookie < DOT_DOT {
            let parent = match &live.inodes.get(ino)?.whereabouts {
                Whereabouts::Named(places) => places.first().map_or(ROOT, |place| place.parent),
                _ => ROOT,
            };
            let attributes = Attributes { ino: parent, ..own };
            if !take(&Listed { name: b"..", attributes, cookie: DOT_DOT }) {
                return Ok(());
            }
        }
        let after = match cookie {
            0..=DOT_DOT => None,
            cookie => Some(self.name_at(live, ino, &path, cookie)?.ok_or(Error::LostPlace)?),
        };
        if live.is_hidden(&path) {
            return Ok(());
        }
        let tree = live.tree.fork();
        let listing = match &after {
            Some(name) => tree.list_from(&path, name)?,
            None => tree.list(&path)?,
        };
        let listing = listing.map(|item| item.map(|(name, stat)| (name, Some(stat))));
        let placed = live.placed_in(&path).into_iter().filter(|name| after.as_ref().is_none_or(|after| name > after));
        let mut names = Vec::new();
        let mut files = Vec::new();
        for item in merged(listing, placed.collect()) {
            let (name, stat) = item?;
            if after.as_ref() == Some(&name) {
                continue;
            }
            let place = Place { parent: ino, name: name.clone() };
            let (number, attributes) = match stat {
                Some(stat) => {
                    let number = live.inode_at(place, &path, &stat)?;
                    (number, live.attributes_of(self, number, || path.join(&name), &stat)?)
                }
                None => {
                    let below = path.join(&name);
                    let number = live.placed_inode(place, &below).expect("it is placed there");
                    (number, live.placed_attributes(self, number, &below).expect("it is placed there"))
                }
            };
            let cookie = cookie_of(&name);
            let taken = take(&Listed { name: name.as_bytes(), attributes, cookie });
            if taken && hold {
                live.inodes.hold(number);
                live.inodes.see(&attributes);
            } else {
                live.inodes.forget(number, 0);
            }
            if !taken {
                break;
            }
            names.push(name);
            if attributes.kind == Kind::File && attributes.size > 0 {
                files.push(number);
            }
        }
        self.shared.cookies.lock().add(ino, names);
        self.shared.neighbours.listed(ino, after.is_none(), files);
        Ok(())
    }

    /// The name that a place in a listing belongs to.
    fn name_at(&self, live: &Live, ino: Ino, path: &TreePath, cookie: u64) -> Result<Option<Name>> {
        if let Some(name) = self.shared.cookies.lock().find(ino, cookie) {
            return Ok(Some(name.clone()));
        }
        let placed = live.placed_in(path).into_iter().map(Ok);
        for name in live.tree.list(path)?.map(|item| item.map(|(name, _)| name)).chain(placed) {
            let name = name?;
            if cookie_of(&name) == cookie {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

/// Names with what the tree has for them, in their order; those that are placed have nothing, and stand for what the tree has there.
fn merged<S>(
    listing: impl Iterator<Item = amalgam_engine::Result<(Name, Option<S>)>>,
    placed: VecDeque<Name>,
) -> impl Iterator<Item = amalgam_engine::Result<(Name, Option<S>)>> {
    let (mut listing, mut placed) = (listing.peekable(), placed);
    std::iter::from_fn(move || {
        let Some(first) = placed.front() else { return listing.next() };
        match listing.peek() {
            Some(Ok((name, _))) if name < first => listing.next(),
            Some(Err(_)) => listing.next(),
            Some(Ok((name, _))) if name == first => {
                listing.next();
                placed.pop_front().map(|name| Ok((name, None)))
            }
            _ => placed.pop_front().map(|name| Ok((name, None))),
        }
    })
}
