//! Names of one file: which of those that differ share an inode, and what their group is called.
//!
//! A change through one name changes the file under all of them, but neither shows in the directories of the others nor is
//! told by the kernel there. So where a name of a file with several differs, the others are looked at too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use amalgam_engine::{Entry, LinkGroup, TreePath};
use parking_lot::Mutex;

use super::read::{Leaf, Reader};
use super::scan::{Edit, Scanner, State};
use super::{Capture, work};
use crate::error::Result;
use crate::host::HostDir;
use crate::index::{self, Held, Index, Trust};
use crate::report::Notice;
use crate::stamp::Stamp;

/// The files with several names that are not as the index has them.
#[derive(Default)]
pub(crate) struct Touched {
    /// Names whose group in the index is not to be believed.
    pub(crate) before: HashSet<TreePath>,
    /// For each inode, its names inside the tree.
    names: BTreeMap<u64, BTreeMap<TreePath, Stamp>>,
    /// Names that do not differ themselves.
    pub(crate) unchanged: BTreeMap<TreePath, Stamp>,
}

/// A file with several names.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) entry: Entry,
    pub(crate) stamp: Stamp,
    pub(crate) trust: Trust,
}

/// Finds them, and looks where their other names are.
pub(crate) fn find(scanner: &Scanner<'_>) -> Result<Touched> {
    loop {
        let touched = collect(scanner);
        if touched.names.is_empty() || scanner.is_whole() {
            return Ok(touched);
        }
        let seen: HashSet<TreePath> = scanner.see(|slots| {
            let seen = slots.iter().filter(|slot| !matches!(slot.state, State::Through));
            seen.map(|slot| slot.path.clone()).collect()
        });
        let parents = touched.unchanged.keys().filter_map(|path| path.split_last()).map(|(parent, _)| parent);
        let unseen: BTreeSet<_> = parents.filter(|parent| !seen.contains(parent)).collect();
        if unseen.is_empty() {
            return Ok(touched);
        }
        scanner.look_in(&unseen)?;
    }
}

fn collect(scanner: &Scanner<'_>) -> Touched {
    let index = scanner.index;
    let mut touched = Touched::default();
    let mut inodes = HashSet::new();
    // What the index says of these is past, and the kernel gives the inode of a file that went to the next that is made.
    let mut differing = HashSet::new();
    scanner.see(|slots| {
        for slot in slots {
            let mut before = |path: TreePath, held: Option<&Held>| {
                let mut see = |path: TreePath, leaf: &index::Leaf| {
                    if leaf.stamp.links > 1 {
                        inodes.insert(leaf.stamp.inode);
                        touched.before.insert(path.clone());
                    }
                    differing.insert(path);
                };
                match held {
                    Some(Held::Leaf(leaf)) => see(path, leaf),
                    Some(Held::Directory(at)) => {
                        index.each_leaf(*at as usize, &path, |parent, name, leaf| see(parent.join(name), leaf));
                    }
                    None => {}
                }
            };
            let itself = slot.parent.and_then(|parent| slots[parent].known).zip(slot.path.split_last());
            let itself = itself.and_then(|(parent, (_, name))| index.directory(parent).get(&name));
            let (edits, stamp) = match &slot.state {
                State::Found(found) => (&found.edits[..], None),
                State::Leaf(stamp) => (&[][..], Some(*stamp)),
                State::Gone => (&[][..], None),
                State::Through | State::Kept => continue,
            };
            // Something else is there now than what the index has.
            if !matches!(slot.state, State::Found(_)) || slot.known.is_none() {
                before(slot.path.clone(), itself);
            }
            let known = slot.known.map(|known| index.directory(known));
            for Edit { name, .. } in edits {
                before(slot.path.join(name), known.and_then(|known| known.get(name)));
            }
            let now = edits.iter().filter_map(|edit| Some((slot.path.join(&edit.name), edit.now?)));
            for (path, stamp) in now.chain(stamp.map(|stamp| (slot.path.clone(), stamp))) {
                if stamp.links > 1 {
                    touched.names.entry(stamp.inode).or_default().insert(path, stamp);
                }
            }
        }
    });
    inodes.extend(touched.names.keys());
    if !inodes.is_empty() && index.is_known() {
        let edited: HashSet<TreePath> = touched.names.values().flat_map(|names| names.keys().cloned()).collect();
        index.each_leaf(index::TOP, &TreePath::root(), |parent, name, leaf| {
            if !inodes.contains(&leaf.stamp.inode) {
                return;
            }
            let path = parent.join(name);
            if !differing.contains(&path) && !edited.contains(&path) {
                touched.unchanged.insert(path.clone(), leaf.stamp);
                touched.names.entry(leaf.stamp.inode).or_default().insert(path, leaf.stamp);
            }
        });
    }
    touched
}

impl Touched {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.before.is_empty()
    }

    /// Reads each file that has several names inside the tree once, and names its group. The entry of each such name.
    pub(crate) fn resolve(
        &self,
        reader: &Reader<'_>,
        host: &HostDir,
    ) -> Result<(HashMap<TreePath, Shared>, Vec<Notice>)> {
        let mut groups: Vec<&BTreeMap<TreePath, Stamp>> = self.names.values().filter(|names| names.len() > 1).collect();
        groups.sort_by(|a, b| a.first_key_value().map(|first| first.0).cmp(&b.first_key_value().map(|first| first.0)));
        let names = name_groups(&groups, self, reader.index, reader.job);
        let shared = Mutex::new(HashMap::new());
        let notices = Mutex::new(Vec::new());
        let jobs = groups.into_iter().zip(names).collect();
        work::run(jobs, reader.job.progress, |(names, link), _| {
            let (found, why) = read(reader, host, names)?;
            notices.lock().extend(why);
            if let Some(found) = found {
                let link =
                    |entry: Entry| reader.entry(entry.node.clone(), &found.stamp, entry.xattrs().clone(), Some(link));
                let found = Shared { entry: link(found.entry), ..found };
                shared.lock().extend(names.keys().map(|path| (path.clone(), found.clone())));
            }
            Ok(())
        })?;
        Ok((shared.into_inner(), notices.into_inner()))
    }
}

/// What the groups are called: as a checkout or the index has it, else after their first name.
fn name_groups(
    groups: &[&BTreeMap<TreePath, Stamp>],
    touched: &Touched,
    index: &Index,
    job: &Capture<'_>,
) -> Vec<LinkGroup> {
    if groups.is_empty() {
        return Vec::new();
    }
    let is_untouched = |path: &TreePath| !touched.before.contains(path) && !touched.unchanged.contains_key(path);
    let untouched = index.links().iter().filter(|(path, _)| is_untouched(path));
    let mut taken: HashSet<LinkGroup> = untouched.map(|(_, link)| *link).collect();
    let mut name = |names: &&BTreeMap<TreePath, Stamp>| {
        let (smallest, _) = names.first_key_value().expect("a group has names");
        let written = names.values().filter_map(|stamp| job.known.get(stamp)?.link());
        let known = names.keys().filter_map(|path| index.links().get(path).copied());
        let new = (0..).map(|attempt| LinkGroup::first_seen_at(smallest.as_bytes(), attempt));
        let link = written.chain(known).chain(new).find(|link| !taken.contains(link));
        let link = link.expect("attempts do not end");
        taken.insert(link);
        link
    };
    groups.iter().map(&mut name).collect()
}

/// Reads a file through the first of its names that still leads to it.
fn read(
    reader: &Reader<'_>,
    host: &HostDir,
    names: &BTreeMap<TreePath, Stamp>,
) -> Result<(Option<Shared>, Option<Notice>)> {
    let mut notice = None;
    for (path, stamp) in names {
        let Ok(Some((parent, name))) = host.parent(path) else { continue };
        let (leaf, why) = reader.leaf(std::os::fd::AsFd::as_fd(&parent), &name, path, *stamp)?;
        match leaf {
            Leaf::Entry(entry, now, trust) if now.inode == stamp.inode => {
                let notice = why.map(|why| Notice { path: path.clone(), why });
                return Ok((Some(Shared { entry, stamp: now, trust }), notice));
            }
            Leaf::Kept => notice = notice.or(why.map(|why| Notice { path: path.clone(), why })),
            _ => {}
        }
    }
    // Unreadable under all its names: as it was, if it was.
    for (path, stamp) in names {
        if let Some(entry) = reader.stored(path)?
            && !matches!(entry.node, amalgam_engine::object::Node::Directory(_))
        {
            let mut stamp = *stamp;
            (stamp.mode, stamp.mtime) = (stamp.mode & !0o7777 | entry.mode, entry.mtime);
            return Ok((Some(Shared { entry, stamp, trust: Trust::Racy }), notice));
        }
    }
    Ok((None, notice))
}
