//! Builds a stored tree from a scan: reads contents, and assembles each directory as soon as everything in it is complete.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use amalgam_engine::object::{DirectoryRef, LinkMember, Node, Xattrs};
use amalgam_engine::{Assembly, Entry, Name, RootId, TreePath, WorkingTree, WriteSession};
use parking_lot::Mutex;
use rustix::fs::FileType;

use super::links::{ChangedLinks, LinkedFile};
use super::read::{self, Reader};
use super::scan::{Edit, Scan, ScannedDirectory, Slot, State};
use super::worker_pool;
use crate::error::Result;
use crate::host::{HostDir, is_absent};
use crate::index::{self, Index, IndexEntry, Leaf, NamedEntry, Trust};
use crate::report::{Notice, Why};
use crate::stamp::Stamp;

/// Names of a directory that one thread reads at once.
const BATCH_NAMES: usize = 64;

/// A tree that was assembled, and the changes that make the index describe it.
pub(crate) struct BuiltTree {
    pub(crate) top: Entry,
    pub(crate) notices: Vec<Notice>,
    made: Vec<Option<BuiltDirectory>>,
    links: HashMap<TreePath, LinkedFile>,
}

/// A directory that was assembled.
struct BuiltDirectory {
    contents: Option<DirectoryRef>,
    stamp: Stamp,
    trust: Trust,
    has_attributes: bool,
    changes: Vec<(Name, Option<IndexEntry>)>,
}

/// Result of reading a name.
struct NameResult {
    name: Name,
    /// Set to an entry or removed; `None` if the stored entry stays.
    entry: Option<Option<Entry>>,
    held: Option<Leaf>,
}

/// Names of one directory to read.
struct Job {
    slot: usize,
    edits: Vec<Edit>,
}

/// A directory that waits for its contents.
#[derive(Default)]
struct PendingDirectory {
    waiting: usize,
    done: Vec<NameResult>,
}

struct Builder<'a> {
    host: &'a HostDir,
    assembly: &'a Assembly,
    reader: &'a Reader<'a>,
    slots: &'a [Slot],
    links: &'a HashMap<TreePath, LinkedFile>,
    parts: Mutex<Vec<PendingDirectory>>,
    made: Mutex<Vec<Option<BuiltDirectory>>>,
    top: Mutex<Option<Entry>>,
    notices: Mutex<Vec<Notice>>,
}

/// Reads and assembles everything that a scan found.
pub(crate) fn build(
    host: &HostDir,
    assembly: &Assembly,
    reader: &Reader<'_>,
    scan: &mut Scan,
    changed_links: &ChangedLinks,
) -> Result<BuiltTree> {
    let (links, mut notices) = changed_links.resolve(reader, host)?;
    notices.append(&mut scan.notices);
    let mut edits = take_edits(&mut scan.slots, reader.index);
    if !changed_links.unchanged.is_empty() {
        let split = changed_links.unchanged.keys().map(|path| path.split_last().expect("a file has a name"));
        let (parents, names): (Vec<_>, Vec<_>) = split.unzip();
        let slots = scan.slots_of(parents.iter(), reader.index);
        edits.resize_with(scan.slots.len(), Vec::new);
        for ((slot, name), stamp) in slots.into_iter().zip(names).zip(changed_links.unchanged.values()) {
            edits[slot].push(Edit { name, now: Some(*stamp) });
        }
    }
    let is_needed = directories_to_rebuild(&scan.slots, &edits);
    let mut parts: Vec<PendingDirectory> = Vec::new();
    parts.resize_with(scan.slots.len(), PendingDirectory::default);
    let mut jobs = Vec::new();
    for (slot, edits) in edits.into_iter().enumerate().filter(|(slot, _)| is_needed[*slot]) {
        if let Some(parent) = scan.slots[slot].parent {
            parts[parent].waiting += 1;
        }
        let files = edits.iter().filter_map(|edit| edit.now).filter(|now| now.kind() == FileType::RegularFile);
        let (count, bytes) = files.fold((0, 0), |(count, bytes), now| (count + 1, bytes + now.size));
        reader.job.progress.files_total.fetch_add(count, Ordering::Relaxed);
        reader.job.progress.bytes_total.fetch_add(bytes, Ordering::Relaxed);
        for edits in batches(edits) {
            parts[slot].waiting += 1;
            jobs.push(Job { slot, edits });
        }
    }
    // The store gets contents in the order of paths, whichever thread reads them.
    jobs.sort_by(|a, b| scan.slots[a.slot].path.cmp(&scan.slots[b.slot].path));
    let jobs = (0..).zip(jobs).collect();
    let mut made = Vec::new();
    made.resize_with(scan.slots.len(), || None);
    let builder = Builder {
        host,
        assembly,
        reader,
        slots: &scan.slots,
        links: &links,
        parts: Mutex::new(parts),
        made: Mutex::new(made),
        top: Mutex::new(None),
        notices: Mutex::new(notices),
    };
    worker_pool::run_jobs(jobs, reader.job.progress, |(place, job), _| {
        WriteSession::at_write_position(place, || builder.work(job))
    })?;
    let Builder { made, top, notices, .. } = builder;
    let mut notices = notices.into_inner();
    notices.sort_by(|a, b| a.path.cmp(&b.path));
    notices.dedup();
    let (top, made) = (top.into_inner().expect("the root is put together last"), made.into_inner());
    Ok(BuiltTree { top, notices, made, links })
}

/// Takes the edits out of all slots. A slot that is no directory any more becomes an edit of its parent.
pub(crate) fn take_edits(slots: &mut [Slot], index: &Index) -> Vec<Vec<Edit>> {
    let mut edits: Vec<Vec<Edit>> = Vec::with_capacity(slots.len());
    // The number of edits that the scan found in each slot. These are sorted; those of slots below follow in any order.
    let mut scanned = Vec::with_capacity(slots.len());
    let mut added = HashSet::new();
    for at in 0..slots.len() {
        let found = match &mut slots[at].state {
            State::Scanned(found) => std::mem::take(&mut found.edits),
            _ => Vec::new(),
        };
        scanned.push(found.len());
        edits.push(found);
        let now = match &slots[at].state {
            State::Leaf(stamp) => Some(*stamp),
            State::Gone if slots[at].known.is_some() => None,
            _ => continue,
        };
        let (Some(parent), Some((_, name))) = (slots[at].parent, slots[at].path.split_last()) else { continue };
        let known = slots[parent].known.map(|known| index.directory(known));
        let is_same = edits[parent][..scanned[parent]].binary_search_by(|edit| edit.name.cmp(&name)).is_ok();
        if !is_same
            && (now.is_some() || known.is_some_and(|known| known.get(&name).is_some()))
            && added.insert((parent, name.clone()))
        {
            edits[parent].push(Edit { name, now });
        }
    }
    edits
}

/// Splits edits into batches for one thread each; one empty batch if there are none.
pub(crate) fn batches(edits: Vec<Edit>) -> impl Iterator<Item = Vec<Edit>> {
    let count = edits.len().div_ceil(BATCH_NAMES).max(1);
    let mut edits = edits.into_iter();
    (0..count).map(move |_| edits.by_ref().take(BATCH_NAMES).collect())
}

/// Returns for each slot whether its directory has to be assembled again.
fn directories_to_rebuild(slots: &[Slot], edits: &[Vec<Edit>]) -> Vec<bool> {
    let mut is_there = vec![false; slots.len()];
    for (at, slot) in slots.iter().enumerate() {
        let is_directory = match slot.state {
            State::Scanned(_) => true,
            State::NotScanned | State::Unreadable => slot.known.is_some(),
            State::Leaf(_) | State::Gone => false,
        };
        is_there[at] = is_directory && slot.parent.is_none_or(|parent| is_there[parent]);
    }
    let mut is_needed = vec![false; slots.len()];
    for (at, slot) in slots.iter().enumerate().rev().filter(|(at, _)| is_there[*at]) {
        let differs = matches!(&slot.state, State::Scanned(found) if found.is_new);
        is_needed[at] |= differs || slot.known.is_none() || !edits[at].is_empty();
        if let (true, Some(parent)) = (is_needed[at], slot.parent) {
            is_needed[parent] = true;
        }
    }
    // The root is always assembled.
    is_needed[0] = true;
    is_needed
}

impl Builder<'_> {
    fn work(&self, job: Job) -> Result<()> {
        let mut done = Vec::with_capacity(job.edits.len());
        let slot = &self.slots[job.slot];
        let is_read = job.edits.iter().any(|edit| edit.now.is_some());
        let open = is_read.then(|| self.host.directory(&slot.path));
        let mut seen = self.reader.index.is_known().then(BTreeSet::new);
        for Edit { name, now } in job.edits {
            // A directory that exists again wins over an earlier result for its name.
            if seen.as_mut().is_some_and(|seen| !seen.insert(name.clone())) {
                continue;
            }
            let Some(stamp) = now else {
                done.push(NameResult { name, entry: Some(None), held: None });
                continue;
            };
            let path = slot.path.join(&name);
            let (leaf, why) = match (self.links.get(&path), open.as_ref().expect("something is read")) {
                (Some(shared), _) if shared.stamp.inode == stamp.inode => {
                    let trust = if shared.stamp == stamp { shared.trust } else { Trust::Racy };
                    (read::LeafRead::Entry(shared.entry.clone(), stamp, trust), None)
                }
                (_, Ok(open)) => self.reader.leaf(open.as_fd(), &name, &path, stamp)?,
                (_, Err(error)) if is_absent(error) => (read::LeafRead::Gone, None),
                (_, Err(error)) => {
                    let why = Why::Failed { action: "open the directory of", error: error.to_string() };
                    (read::LeafRead::Unreadable, Some(why))
                }
            };
            self.notices.lock().extend(why.map(|why| Notice { path: path.clone(), why }));
            done.push(match leaf {
                read::LeafRead::Entry(entry, stamp, trust) => {
                    NameResult { name, entry: Some(Some(entry)), held: Some(Leaf { stamp, trust }) }
                }
                read::LeafRead::Gone => NameResult { name, entry: Some(None), held: None },
                read::LeafRead::Unreadable => self.kept(name, &path)?,
            });
        }
        self.complete(job.slot, done)
    }

    /// Keeps the stored entry of an unreadable file, outside of its link group.
    fn kept(&self, name: Name, path: &TreePath) -> Result<NameResult> {
        if !self.reader.index.links().contains_key(path) {
            return Ok(NameResult { name, entry: None, held: None });
        }
        let alone = |mut entry: Entry| {
            let xattrs = entry.xattrs().clone();
            let owner = entry.owner();
            entry.extra = None;
            let extra = amalgam_engine::object::Extra { owner, xattrs, link: None };
            entry.extra = (extra != Default::default()).then(|| Box::new(extra));
            entry
        };
        let entry = self.reader.stored(path)?.map(alone);
        let held = self.reader.index.stamp(path).map(|stamp| Leaf { stamp, trust: Trust::Racy });
        Ok(NameResult { name, entry: Some(entry), held })
    }

    /// Adds results to a directory; when all are there, assembles it, and so on upwards.
    fn complete(&self, mut at: usize, mut done: Vec<NameResult>) -> Result<()> {
        loop {
            {
                let mut parts = self.parts.lock();
                let part = &mut parts[at];
                if part.done.is_empty() {
                    part.done = done;
                } else {
                    part.done.append(&mut done);
                }
                part.waiting -= 1;
                if part.waiting > 0 {
                    return Ok(());
                }
                done = std::mem::take(&mut part.done);
            }
            let slot = &self.slots[at];
            let entry = self.make(at, slot, done)?;
            let (Some(parent), Some((_, name))) = (slot.parent, slot.path.split_last()) else {
                *self.top.lock() = Some(entry);
                return Ok(());
            };
            done = vec![NameResult { name, entry: Some(Some(entry)), held: None }];
            at = parent;
        }
    }

    fn make(&self, at: usize, slot: &Slot, mut done: Vec<NameResult>) -> Result<Entry> {
        // An assembled directory wins over an earlier result for its name.
        done.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| is_directory(b).cmp(&is_directory(a))));
        done.dedup_by(|second, first| second.name == first.name);
        let known = slot.known.map(|known| self.reader.index.directory(known));
        let mut edits = Vec::with_capacity(done.len());
        let mut changes = Vec::with_capacity(done.len());
        for NameResult { name, entry, held } in done {
            let Some(entry) = entry else { continue };
            if !matches!(&entry, Some(entry) if matches!(entry.node, Node::Directory(_))) {
                changes.push((name.clone(), held.map(IndexEntry::Leaf)));
            }
            edits.push((name, entry));
        }
        let before = known.and_then(|known| known.contents);
        let contents = if edits.is_empty() { before } else { self.assembly.directory(before, edits)? };
        let (stamp, trust, xattrs) = match (&slot.state, known) {
            (State::Scanned(ScannedDirectory { stamp, xattrs, .. }), _) => {
                let (xattrs, why) = self.reader.put_xattrs(xattrs.clone());
                self.notices.lock().extend(why.map(|why| Notice { path: slot.path.clone(), why }));
                (*stamp, Trust::of(stamp, self.reader.job.now), xattrs)
            }
            (_, Some(known)) => {
                let stored = if known.has_attributes { self.reader.stored(&slot.path)? } else { None };
                let xattrs = stored.map_or(Xattrs::None, |entry| entry.xattrs().clone());
                (known.stamp, known.trust, xattrs)
            }
            (_, None) => unreachable!("only what was found or is known is put together"),
        };
        let has_attributes = xattrs != Xattrs::None;
        let entry = self.reader.entry(Node::Directory(contents), &stamp, xattrs, None);
        self.made.lock()[at] = Some(BuiltDirectory { contents, stamp, trust, has_attributes, changes });
        Ok(entry)
    }
}

fn is_directory(done: &NameResult) -> bool {
    matches!(&done.entry, Some(Some(entry)) if matches!(entry.node, Node::Directory(_)))
}

impl BuiltTree {
    /// Returns the members of all link groups of the tree.
    pub(crate) fn members(&self, index: &Index, changed_links: &ChangedLinks) -> BTreeSet<LinkMember> {
        let is_stale =
            |path: &TreePath| changed_links.before.contains(path) || changed_links.unchanged.contains_key(path);
        let old = index.links().iter().filter(|(path, _)| !is_stale(path));
        let old = old.map(|(path, group)| LinkMember { group: *group, path: path.clone() });
        let new = self.links.iter().map(|(path, shared)| {
            let group = shared.entry.link().expect("it has several names");
            LinkMember { group, path: path.clone() }
        });
        old.chain(new).collect()
    }

    /// Makes the index describe the tree.
    pub(crate) fn update_index(
        self,
        index: &mut Index,
        slots: &[Slot],
        changed_links: &ChangedLinks,
        root: RootId,
        rules: [u8; 32],
    ) {
        let mut places: Vec<Option<usize>> = Vec::with_capacity(slots.len());
        let mut changes: Vec<Vec<(Name, Option<IndexEntry>)>> = Vec::with_capacity(slots.len());
        for (slot, made) in slots.iter().zip(self.made) {
            changes.push(Vec::new());
            let Some(made) = made else {
                places.push(slot.known);
                continue;
            };
            let BuiltDirectory { contents, stamp, trust, has_attributes, changes: names } = made;
            let place = match slot.known {
                Some(known) => {
                    let directory = index.directory_mut(known);
                    (directory.contents, directory.stamp) = (contents, stamp);
                    (directory.trust, directory.has_attributes) = (trust, has_attributes);
                    *changes.last_mut().expect("it was pushed") = names;
                    known
                }
                None => {
                    let there = names.into_iter().filter_map(|(name, held)| Some(NamedEntry { name, held: held? }));
                    let names = there.collect();
                    index.add(index::Directory { stamp, trust, has_attributes, contents, names })
                }
            };
            if let (None, Some(parent), Some((_, name))) = (slot.known, slot.parent, slot.path.split_last()) {
                let below = IndexEntry::Directory(u32::try_from(place).expect("not that many directories"));
                changes[parent].push((name, Some(below)));
            }
            places.push(Some(place));
        }
        for (place, mut changes) in places.into_iter().zip(changes) {
            if let (Some(place), false) = (place, changes.is_empty()) {
                changes.sort_by(|a, b| a.0.cmp(&b.0));
                index.change(place, changes);
            }
        }
        let links = index.links_mut();
        changed_links.before.iter().chain(changed_links.unchanged.keys()).for_each(|path| {
            links.remove(path);
        });
        links.extend(self.links.into_iter().filter_map(|(path, shared)| Some((path, shared.entry.link()?))));
        index.set_root(root, rules);
    }
}

/// Finishes an assembly. Returns the tree and its root.
pub(crate) fn finish(assembly: Assembly, top: Entry, members: &BTreeSet<LinkMember>) -> Result<(WorkingTree, RootId)> {
    let tree = assembly.finish(top, members)?;
    let root = tree.freeze().write(&tree.store().session())?;
    Ok((tree, root))
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;

    use super::*;
    use crate::host::Identity;

    fn name(number: usize) -> Name {
        Name::new(format!("d{number:06}").as_bytes()).expect("a name")
    }

    #[test]
    fn a_directory_that_is_gone_is_one_edit_of_its_parent_also_among_many() {
        const COUNT: usize = 50_000;
        let (mode, time) = (0o040_755, Time(1));
        let stamp = Stamp { mode, links: 1, uid: 0, gid: 0, inode: 1, size: 0, mtime: time, ctime: time };
        let held = IndexEntry::Leaf(Leaf { stamp, trust: Trust::Clean });
        let names = (0..=COUNT).map(|number| NamedEntry { name: name(number), held }).collect();
        let mut index = Index::new(Identity { device: 1, inode: 1, birth: 0 });
        let directory = index::Directory { stamp, trust: Trust::Clean, has_attributes: false, contents: None, names };
        let known = Some(index.add(directory));
        // The scan of the parent found all but the last one.
        let edits = (0..COUNT).map(|number| Edit { name: name(number), now: None }).collect();
        let found = ScannedDirectory { stamp, is_new: true, xattrs: Vec::new(), edits };
        let mut slots = vec![Slot { path: TreePath::root(), parent: None, known, state: State::Scanned(found) }];
        let gone =
            |number| Slot { path: TreePath::root().join(&name(number)), parent: Some(0), known, state: State::Gone };
        slots.extend((0..=COUNT).chain([COUNT]).map(gone));
        // Searched one by one, these would take minutes.
        let edits = take_edits(&mut slots, &index);
        assert_eq!(edits[0].len(), COUNT + 1);
        assert!(edits[0].iter().enumerate().all(|(number, edit)| edit.name == name(number)));
        assert!(edits[1..].iter().all(Vec::is_empty));
    }
}
