//! Directory listings in pieces, while the directory changes.
//!
//! Names are listed in sorted order, and a listing continues behind the last name that the caller took. So a name that exists all the time
//! is listed once, even if others change. A cookie is the hash of a name. The view remembers the names that it listed last, and finds
//! others by a scan of the directory. A listing whose name was removed and is no longer remembered fails, so that it never looks complete.

use std::collections::VecDeque;

use amalgam_engine::work::Stat;
use amalgam_engine::{Name, TreePath};
use foldhash::HashMap;

use crate::access::{Access, Caller};
use crate::attributes::{Attributes, Ino, Kind, ROOT};
use crate::dentry::Dentry;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;

/// Limit of remembered names.
const NAMES_MAX: usize = 1 << 15;
/// Limit of remembered last names of pieces. A listing most probably continues behind them, so they are remembered longer.
const LAST_NAMES_MAX: usize = 1 << 16;
/// Cookies of `.` and `..`.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// One entry of a listing.
#[derive(Clone, Debug)]
pub struct ListedEntry<'a> {
    /// The name. `.` and `..` come first.
    pub name: &'a [u8],
    /// Attributes of the inode. For `.` and `..` only number and type are meaningful.
    pub attributes: Attributes,
    /// The cookie with which the listing continues behind this entry.
    pub cookie: u64,
}

/// Whether a listing counts the inodes of the entries that the caller takes as looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListingMode {
    /// Names and attributes alone: READDIR.
    Names,
    /// Adds one reference to each inode, like a lookup: READDIRPLUS.
    Lookups,
}

/// The part of a directory that a call has listed, for prefetching.
pub(crate) struct ListedPart {
    /// Whether the listing began at the first name.
    pub(crate) is_first: bool,
    /// Files with data, in order.
    pub(crate) files: Vec<Ino>,
}

/// The names of recent cookies: pieces of listings, newest last.
#[derive(Default)]
pub(crate) struct CookieCache {
    pieces: VecDeque<(Ino, Vec<Name>)>,
    names: usize,
    /// Last names of dropped pieces by directory and cookie.
    last_names: HashMap<(Ino, u64), Name>,
    /// Keys of `last_names`, oldest first.
    order: VecDeque<(Ino, u64)>,
}

impl CookieCache {
    fn add(&mut self, ino: Ino, names: Vec<Name>) {
        if names.is_empty() {
            return;
        }
        self.names += names.len();
        self.pieces.push_back((ino, names));
        while self.names > NAMES_MAX
            && let Some((ino, mut oldest)) = self.pieces.pop_front()
        {
            self.names -= oldest.len();
            let Some(last) = oldest.pop() else { continue };
            let key = (ino, cookie_of(&last));
            if self.last_names.insert(key, last).is_none() {
                self.order.push_back(key);
            }
            if self.order.len() > LAST_NAMES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.last_names.remove(&oldest);
            }
        }
    }

    /// Searches from the newest name, which is the most probable one.
    fn find(&self, ino: Ino, cookie: u64) -> Option<&Name> {
        let pieces = self.pieces.iter().rev().filter(|(other, _)| *other == ino);
        let found = pieces.flat_map(|(_, names)| names.iter().rev()).find(|name| cookie_of(name) == cookie);
        found.or_else(|| self.last_names.get(&(ino, cookie)))
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

/// Lists a directory from a cookie on, until `take` returns false. The entry that it refuses is listed again by the next call.
pub(crate) fn read_directory(
    fs: &mut FileSystem,
    cookies: &parking_lot::Mutex<CookieCache>,
    (caller, ino, cookie): (&Caller, Ino, u64),
    mode: ListingMode,
    mut take: impl FnMut(&ListedEntry<'_>) -> bool,
) -> Result<Option<ListedPart>> {
    let own = fs.attributes(ino)?;
    if own.kind != Kind::Directory {
        return Err(amalgam_engine::Error::NotADirectory { path: TreePath::root() }.into());
    }
    fs.ensure_read_permitted(ino)?;
    fs.check_access(caller, &own, Access::READ)?;
    let Some(path) = fs.inodes.path(ino)? else {
        // A removed directory has no entries, not even `.` and `..`.
        return Ok(None);
    };
    if !take_dots(fs, &own, cookie, &mut take) {
        return Ok(None);
    }
    let after = match cookie {
        0..=DOT_DOT => None,
        cookie => Some(name_of_cookie(fs, cookies, ino, &path, cookie)?.ok_or(Error::StaleCookie)?),
    };
    if fs.local.covers(&path) {
        return Ok(None);
    }
    let (names, files) = list_names(fs, ino, &path, after.as_ref(), mode, take)?;
    cookies.lock().add(ino, names);
    Ok(Some(ListedPart { is_first: after.is_none(), files }))
}

/// Lists `.` and `..` if the cookie is before them. Returns whether the caller takes more.
fn take_dots(fs: &FileSystem, own: &Attributes, cookie: u64, take: &mut impl FnMut(&ListedEntry<'_>) -> bool) -> bool {
    if cookie < DOT && !take(&ListedEntry { name: b".", attributes: *own, cookie: DOT }) {
        return false;
    }
    if cookie < DOT_DOT {
        let parent = fs.inodes.parent(own.ino).unwrap_or(ROOT);
        let attributes = Attributes { ino: parent, ..*own };
        return take(&ListedEntry { name: b"..", attributes, cookie: DOT_DOT });
    }
    true
}

/// Lists the names behind `after`. Returns the names that the caller took, and the files with data among them.
fn list_names(
    fs: &mut FileSystem,
    ino: Ino,
    path: &TreePath,
    after: Option<&Name>,
    mode: ListingMode,
    mut take: impl FnMut(&ListedEntry<'_>) -> bool,
) -> Result<(Vec<Name>, Vec<Ino>)> {
    let tree = fs.tree.fork();
    let listing = match after {
        Some(name) => tree.list_from(path, name)?,
        None => tree.list(path)?,
    };
    let listing = listing.map(|item| item.map(|(name, stat)| (name, Some(stat))));
    let local = fs.local.names_in(path).into_iter().filter(|name| after.is_none_or(|after| name > after));
    let (mut names, mut files) = (Vec::new(), Vec::new());
    for item in merge_local(listing, local.collect()) {
        let (name, stat) = item?;
        if after == Some(&name) {
            continue;
        }
        if let Some(stat) = stat.as_ref().filter(|_| !fs.guard.is_open())
            && !fs.permissions().is_visible(&path.join(&name), stat.kind, stat.links)?
        {
            continue;
        }
        let attributes = entry_attributes(fs, ino, path, &name, stat.as_ref())?;
        let is_taken = take(&ListedEntry { name: name.as_bytes(), attributes, cookie: cookie_of(&name) });
        if is_taken && mode == ListingMode::Lookups {
            fs.inodes.hold(attributes.ino);
            fs.inodes.cache_attributes(&attributes);
        } else {
            fs.inodes.evict_if_unheld(attributes.ino);
        }
        if !is_taken {
            break;
        }
        names.push(name);
        if attributes.kind == Kind::File && attributes.size > 0 {
            files.push(attributes.ino);
        }
    }
    Ok((names, files))
}

/// Returns the attributes of an entry, with its inode in the table. Without `stat` it is a local entry.
fn entry_attributes(
    fs: &mut FileSystem,
    parent: Ino,
    directory: &TreePath,
    name: &Name,
    stat: Option<&Stat>,
) -> Result<Attributes> {
    let dentry = Dentry { parent, name: name.clone() };
    match stat {
        Some(stat) => {
            let ino = fs.inode_for(dentry, directory, stat)?;
            fs.attributes_from_stat(ino, || directory.join(name), stat)
        }
        None => {
            let path = directory.join(name);
            let ino = fs.local_inode(dentry, &path).expect("a local entry is there");
            Ok(fs.local.attributes(&path, ino, fs.options.owner).expect("a local entry is there"))
        }
    }
}

/// Returns the name of a cookie, or `None` if it was removed.
fn name_of_cookie(
    fs: &FileSystem,
    cookies: &parking_lot::Mutex<CookieCache>,
    ino: Ino,
    path: &TreePath,
    cookie: u64,
) -> Result<Option<Name>> {
    if let Some(name) = cookies.lock().find(ino, cookie) {
        return Ok(Some(name.clone()));
    }
    let local = fs.local.names_in(path).into_iter().map(Ok);
    for name in fs.tree.list(path)?.map(|item| item.map(|(name, _)| name)).chain(local) {
        let name = name?;
        if cookie_of(&name) == cookie {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Merges the listing of the tree with the sorted names of local entries. A local entry has no `stat`, and replaces an entry of the tree.
fn merge_local<S>(
    listing: impl Iterator<Item = amalgam_engine::Result<(Name, Option<S>)>>,
    local: VecDeque<Name>,
) -> impl Iterator<Item = amalgam_engine::Result<(Name, Option<S>)>> {
    let (mut listing, mut local) = (listing.peekable(), local);
    std::iter::from_fn(move || {
        let Some(first) = local.front() else { return listing.next() };
        match listing.peek() {
            Some(Ok((name, _))) if name < first => listing.next(),
            Some(Err(_)) => listing.next(),
            Some(Ok((name, _))) if name == first => {
                listing.next();
                local.pop_front().map(|name| Ok((name, None)))
            }
            _ => local.pop_front().map(|name| Ok((name, None))),
        }
    })
}
