//! Hard links: which of the differing names share an inode, and the id of their link group.
//!
//! A write through one name changes the file under all of them, but shows neither in the directories of the others nor in
//! their kernel events. So if one name of a file with several differs, the others are scanned, too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use amalgam_engine::{Entry, LinkGroup, Name, TreePath};
use parking_lot::Mutex;

use super::read::{LeafRead, Reader};
use super::scan::{Edit, Scanner, Slot, State};
use super::worker_pool;
use crate::capture_options::CaptureOptions;
use crate::error::Result;
use crate::host::HostDir;
use crate::index::{self, Index, IndexEntry, Trust};
use crate::report::Notice;
use crate::stamp::Stamp;

/// Files with several names that differ from the index.
#[derive(Default)]
pub(crate) struct ChangedLinks {
    /// Names whose link group in the index is outdated.
    pub(crate) before: HashSet<TreePath>,
    /// For each inode, its names inside the tree.
    names: BTreeMap<u64, BTreeMap<TreePath, Stamp>>,
    /// Names that do not differ themselves.
    pub(crate) unchanged: BTreeMap<TreePath, Stamp>,
}

/// A file with several names.
#[derive(Clone)]
pub(crate) struct LinkedFile {
    pub(crate) entry: Entry,
    pub(crate) stamp: Stamp,
    pub(crate) trust: Trust,
}

/// Finds differing files with several names, and scans the directories of their other names.
pub(crate) fn find(scanner: &Scanner<'_>) -> Result<ChangedLinks> {
    loop {
        let changed_links = collect(scanner);
        if changed_links.names.is_empty() || scanner.is_complete() {
            return Ok(changed_links);
        }
        let seen: HashSet<TreePath> = scanner.with_slots(|slots| {
            let seen = slots.iter().filter(|slot| !matches!(slot.state, State::NotScanned));
            seen.map(|slot| slot.path.clone()).collect()
        });
        let parents = changed_links.unchanged.keys().filter_map(|path| path.split_last()).map(|(parent, _)| parent);
        let unseen: BTreeSet<_> = parents.filter(|parent| !seen.contains(parent)).collect();
        if unseen.is_empty() {
            return Ok(changed_links);
        }
        scanner.scan_directories(&unseen)?;
    }
}

fn collect(scanner: &Scanner<'_>) -> ChangedLinks {
    let index = scanner.index;
    let mut changed_links = ChangedLinks::default();
    scanner.with_slots(|slots| {
        let mut inodes = HashSet::new();
        each_before(index, slots, &mut |parent, name, leaf| {
            let path = parent.join(name);
            // A stamp may be newer than the tree, and then has another number of links than the group in the tree.
            if leaf.stamp.links > 1 || index.links().contains_key(&path) {
                inodes.insert(leaf.stamp.inode);
                changed_links.before.insert(path);
            }
        });
        for slot in slots {
            let (edits, stamp) = match &slot.state {
                State::Scanned(found) => (&found.edits[..], None),
                State::Leaf(stamp) => (&[][..], Some(*stamp)),
                _ => continue,
            };
            let now = edits.iter().filter_map(|edit| Some((slot.path.join(&edit.name), edit.now?)));
            for (path, stamp) in now.chain(stamp.map(|stamp| (slot.path.clone(), stamp))) {
                if stamp.links > 1 {
                    inodes.insert(stamp.inode);
                    changed_links.names.entry(stamp.inode).or_default().insert(path, stamp);
                }
            }
        }
        if inodes.is_empty() || !index.is_known() {
            return;
        }
        // The index entry of a differing name is not another name of the file, even with an equal inode.
        let mut differing = HashSet::new();
        each_before(index, slots, &mut |parent, name, leaf| {
            if inodes.contains(&leaf.stamp.inode) {
                differing.insert(parent.join(name));
            }
        });
        index.each_leaf(index::ROOT, &TreePath::root(), |parent, name, leaf| {
            if inodes.contains(&leaf.stamp.inode) && !differing.contains(&parent.join(name)) {
                changed_links.unchanged.insert(parent.join(name), leaf.stamp);
                changed_links.names.entry(leaf.stamp.inode).or_default().insert(parent.join(name), leaf.stamp);
            }
        });
    });
    changed_links
}

/// Calls `see` with the index entries of all names that differ, and of everything below them.
fn each_before(index: &Index, slots: &[Slot], see: &mut impl FnMut(&TreePath, &Name, &index::Leaf)) {
    let mut before = |parent: &TreePath, name: &Name, held: Option<&IndexEntry>| match held {
        Some(IndexEntry::Leaf(leaf)) => see(parent, name, leaf),
        Some(IndexEntry::Directory(at)) => index.each_leaf(*at as usize, &parent.join(name), &mut *see),
        None => {}
    };
    for slot in slots {
        let is_other = match &slot.state {
            State::Scanned(_) => slot.known.is_none(),
            State::Leaf(_) | State::Gone => true,
            State::NotScanned | State::Unreadable => false,
        };
        let parent = slot.parent.and_then(|parent| slots[parent].known);
        if let (true, Some(parent), Some((path, name))) = (is_other, parent, slot.path.split_last()) {
            before(&path, &name, index.directory(parent).get(&name));
        }
        if let (State::Scanned(found), Some(known)) = (&slot.state, slot.known) {
            for Edit { name, .. } in &found.edits {
                before(&slot.path, name, index.directory(known).get(name));
            }
        }
    }
}

impl ChangedLinks {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.before.is_empty()
    }

    /// Reads each file with several names inside the tree once, and assigns its link group. Returns the entry of each name.
    pub(crate) fn resolve(
        &self,
        reader: &Reader<'_>,
        host: &HostDir,
    ) -> Result<(HashMap<TreePath, LinkedFile>, Vec<Notice>)> {
        let mut groups: Vec<&BTreeMap<TreePath, Stamp>> = self.names.values().filter(|names| names.len() > 1).collect();
        groups.sort_by(|a, b| a.first_key_value().map(|first| first.0).cmp(&b.first_key_value().map(|first| first.0)));
        let names = name_groups(&groups, self, reader.index, reader.job);
        let shared = Mutex::new(HashMap::new());
        let notices = Mutex::new(Vec::new());
        let jobs = groups.into_iter().zip(names).collect();
        worker_pool::run_jobs(jobs, reader.job.progress, |(names, link), _| {
            let (found, why) = read(reader, host, names)?;
            notices.lock().extend(why);
            if let Some(found) = found {
                let link =
                    |entry: Entry| reader.entry(entry.node.clone(), &found.stamp, entry.xattrs().clone(), Some(link));
                let found = LinkedFile { entry: link(found.entry), ..found };
                shared.lock().extend(names.keys().map(|path| (path.clone(), found.clone())));
            }
            Ok(())
        })?;
        Ok((shared.into_inner(), notices.into_inner()))
    }
}

/// Chooses the link group ids: from a checkout or the index if known, else derived from the first name.
fn name_groups(
    groups: &[&BTreeMap<TreePath, Stamp>],
    changed_links: &ChangedLinks,
    index: &Index,
    job: &CaptureOptions<'_>,
) -> Vec<LinkGroup> {
    if groups.is_empty() {
        return Vec::new();
    }
    let is_untouched =
        |path: &TreePath| !changed_links.before.contains(path) && !changed_links.unchanged.contains_key(path);
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

/// Reads a file through the first of its names that still refers to it.
fn read(
    reader: &Reader<'_>,
    host: &HostDir,
    names: &BTreeMap<TreePath, Stamp>,
) -> Result<(Option<LinkedFile>, Option<Notice>)> {
    let mut notice = None;
    for (path, stamp) in names {
        let Ok(Some((parent, name))) = host.parent(path) else { continue };
        let (leaf, why) = reader.leaf(std::os::fd::AsFd::as_fd(&parent), &name, path, *stamp)?;
        match leaf {
            LeafRead::Entry(entry, now, trust) if now.inode == stamp.inode => {
                let notice = why.map(|why| Notice { path: path.clone(), why });
                return Ok((Some(LinkedFile { entry, stamp: now, trust }), notice));
            }
            LeafRead::Unreadable => notice = notice.or(why.map(|why| Notice { path: path.clone(), why })),
            _ => {}
        }
    }
    // Unreadable under all its names: keep the stored entry, if there is one.
    for (path, stamp) in names {
        if let Some(entry) = reader.stored(path)?
            && !matches!(entry.node, amalgam_engine::object::Node::Directory(_))
        {
            let mut stamp = *stamp;
            (stamp.mode, stamp.mtime) = (stamp.mode & !0o7777 | entry.mode, entry.mtime);
            return Ok((Some(LinkedFile { entry, stamp, trust: Trust::Racy }), notice));
        }
    }
    Ok((None, notice))
}
