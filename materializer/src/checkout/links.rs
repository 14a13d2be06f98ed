//! Files with several names (hard links): one name is or becomes the file, the others are linked to it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use amalgam_engine::{Entry, LinkGroup, Name, TreePath, entry_at, linked_paths};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::deferred_writer::DeferredWriter;
use super::entry_writer::WantedEntry;
use super::install::Installed;
use super::open_directory::OpenDirectory;
use crate::error::{Error, Result};
use crate::host::c_name;
use crate::plan::{EntryPair, is_directory};
use crate::report::Why;
use crate::stamp::Stamp;

/// Differing members of a link group.
pub(super) type Members = BTreeMap<TreePath, EntryPair>;

/// A name that has the file already.
struct Donor {
    at: OpenDirectory,
    name: Name,
    path: TreePath,
    inode: u64,
}

/// Which changed names can become the donor.
#[derive(Clone, Copy)]
enum Candidate {
    /// A name that was in the group before. If the file has names that do not change with it, outside of the requested paths or
    /// of the tree, the file stays theirs.
    Member,
    /// A file that had no other name.
    SingleFile,
}

/// Makes the changed members of a link group names of one file, together with its other members.
pub(super) fn write_link_group(writer: &DeferredWriter<'_>, group: LinkGroup, changed: &Members) -> Result<()> {
    let members = linked_paths(writer.cx.store, &writer.cx.after, group)?;
    let Some(donor) = find_donor(writer, &members, changed)? else { return write_new_group(writer, changed) };
    for (path, pair) in changed.iter().filter(|(path, _)| **path != donor.path) {
        link_member(writer, &donor, path, pair)?;
    }
    touch_members(writer, &members);
    record_group(writer, &donor, changed)
}

/// Finds a member that has the right bytes already: preferably an unchanged one, else one that was in the group, else one
/// that was a file of its own.
fn find_donor(writer: &DeferredWriter<'_>, members: &[TreePath], changed: &Members) -> Result<Option<Donor>> {
    for path in members.iter().filter(|path| !changed.contains_key(path)) {
        if !matches_target(writer, path)? {
            continue;
        }
        let Some((at, name)) = writer.open_parent(path)? else { continue };
        if let Some(inode) = writer.entries.installer.guard.unchanged_inode(&at, &name, path)? {
            return Ok(Some(Donor { at, name, path: path.clone(), inode }));
        }
    }
    let stays =
        |pair: &EntryPair| pair.before.as_ref().and_then(Entry::link) == pair.after.as_ref().and_then(Entry::link);
    let changed_names = u32::try_from(changed.values().filter(|pair| stays(pair)).count()).unwrap_or(u32::MAX);
    for kind in [Candidate::Member, Candidate::SingleFile] {
        for (path, pair) in changed {
            if let Some(donor) = reuse_member(writer, path, pair, kind, changed_names)? {
                return Ok(Some(donor));
            }
        }
    }
    Ok(None)
}

fn reuse_member(
    writer: &DeferredWriter<'_>,
    path: &TreePath,
    pair: &EntryPair,
    kind: Candidate,
    changed_names: u32,
) -> Result<Option<Donor>> {
    let EntryPair { before: Some(before), after: Some(after) } = pair else { return Ok(None) };
    let names = writer.cx.index.stamp(path).map(|known| known.links);
    let fits = match kind {
        Candidate::Member => before.link() == after.link() && names == Some(changed_names),
        Candidate::SingleFile => before.link().is_none() && names == Some(1),
    };
    if !fits || !pair.same_node() {
        return Ok(None);
    }
    let Some((at, name)) = writer.open_parent(path)? else { return Ok(None) };
    let wanted = WantedEntry { path: path.clone(), name, before: Some(before.clone()), entry: after.clone() };
    let Some(stamp) = writer.entries.update_attributes(&at, &wanted)? else { return Ok(None) };
    Ok(Some(Donor { at, name: wanted.name, path: wanted.path, inode: stamp.inode }))
}

/// Returns whether an unchanged member has its entry of the target; it may lie outside of the checkout's scope.
fn matches_target(writer: &DeferredWriter<'_>, path: &TreePath) -> Result<bool> {
    let Some(before) = &writer.cx.before else { return Ok(false) };
    let (before, after) =
        (entry_at(writer.cx.store, before, path)?, entry_at(writer.cx.store, &writer.cx.after, path)?);
    Ok(match (before, after) {
        (Some(before), Some(after)) => {
            before == after || (!writer.cx.scope.is_exact() && before.equal_but_for_times(&after))
        }
        _ => false,
    })
}

/// Writes a group without a usable member: the first one that can be written becomes the file.
fn write_new_group(writer: &DeferredWriter<'_>, changed: &Members) -> Result<()> {
    let mut donor: Option<Donor> = None;
    for (path, pair) in changed {
        if let Some(donor) = &donor {
            link_member(writer, donor, path, pair)?;
            continue;
        }
        let Some((at, name)) = writer.open_parent(path)? else { continue };
        let entry = pair.after.clone().expect("a member is there in the target");
        let wanted = WantedEntry { path: path.clone(), name, before: pair.before.clone(), entry };
        if let Some(stamp) = writer.write(&at, &wanted)? {
            donor = Some(Donor { at, name: wanted.name, path: wanted.path, inode: stamp.inode });
        }
    }
    match donor {
        Some(donor) => record_group(writer, &donor, changed),
        None => Ok(()),
    }
}

fn link_member(writer: &DeferredWriter<'_>, donor: &Donor, path: &TreePath, pair: &EntryPair) -> Result<()> {
    let Some((at, name)) = writer.open_parent(path)? else { return Ok(()) };
    let present = at.stamp(&name);
    if present.is_ok_and(|present| present.inode == donor.inode) {
        return Ok(());
    }
    let linked = link(writer, donor, &at, &name, path, pair.before.as_ref());
    match writer.cx.tolerate(path, linked)? {
        Some(Installed::Done) => {
            writer.record_change(&at);
            writer.cx.recorder.linked();
            writer.cx.options.progress.count_file(0);
        }
        Some(Installed::Skipped(why)) => writer.cx.notice(path, why),
        None => {}
    }
    Ok(())
}

fn link(
    writer: &DeferredWriter<'_>,
    donor: &Donor,
    at: &OpenDirectory,
    name: &Name,
    path: &TreePath,
    before: Option<&Entry>,
) -> Result<Installed> {
    let failed = |errno: Errno| Error::host("link", path, errno);
    let link_as = |new: &Name| {
        rustix::fs::linkat(&donor.at.handle, c_name(&donor.name), &at.handle, c_name(new), AtFlags::empty())
    };
    let made_as = if before.is_none() { name.clone() } else { writer.cx.temporary_name() };
    match link_as(&made_as) {
        Ok(()) => {}
        Err(Errno::EXIST) if before.is_none() => return Ok(Installed::Skipped(Why::ChangedSince)),
        Err(errno) => return Err(failed(errno)),
    }
    let linked = at.stamp(&made_as).map_err(|source| Error::host("look at", path, source));
    if !linked.as_ref().is_ok_and(|stamp| stamp.inode == donor.inode) {
        // Another program replaced the donor.
        at.unlink(&made_as).ok();
        linked?;
        return Ok(Installed::Skipped(Why::ChangedSince));
    }
    record_stamp(writer, donor)?;
    let Some(before) = before else { return Ok(Installed::Done) };
    debug_assert!(is_directory(Some(before)) || before.link().is_none() || donor.inode != 0, "a donor is a file");
    let placed = writer.entries.installer.install(at, &made_as, name, path, Some(before));
    if !matches!(placed, Ok(Installed::Done)) {
        writer.entries.installer.discard(at, &made_as, donor.inode);
    }
    record_stamp(writer, donor)?;
    placed
}

/// Records the stamp of the file as this checkout's own change: a new link changes it under all its names.
fn record_stamp(writer: &DeferredWriter<'_>, donor: &Donor) -> Result<()> {
    let looked = |source: std::io::Error| Error::host("look at", &donor.path, source);
    let held = donor.at.hold(&donor.name).map_err(|errno| looked(errno.into()))?;
    let stamp = Stamp::of(held.as_fd()).map_err(looked)?;
    if stamp.inode == donor.inode
        && let Some(entry) = entry_at(writer.cx.store, &writer.cx.after, &donor.path)?
    {
        let entry = Entry { mtime: stamp.mtime, ..entry };
        writer.entries.installer.guard.record_own_change(stamp, entry);
    }
    Ok(())
}

fn record_group(writer: &DeferredWriter<'_>, donor: &Donor, changed: &Members) -> Result<()> {
    touch_members(writer, &changed.keys().cloned().collect::<Vec<_>>());
    let refreshed = record_stamp(writer, donor);
    writer.cx.tolerate(&donor.path, refreshed).map(|_| ())
}

fn touch_members(writer: &DeferredWriter<'_>, members: &[TreePath]) {
    for (parent, _) in members.iter().filter_map(TreePath::split_last) {
        writer.cx.touch(&parent);
    }
}
