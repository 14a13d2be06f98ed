//! Files with several names: one of them is or becomes the file, the others are linked to it.

use std::os::fd::AsFd;

use amalgam_engine::{Entry, LinkGroup, Name, TreePath, entry_at, linked_paths};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::fill::Wanted;
use super::place::{hold, unlink};
use super::walk::Open;
use super::{Members, Placed, Run};
use crate::error::{Error, Result};
use crate::host::c_name;
use crate::plan::{Pair, is_directory};
use crate::report::Why;
use crate::stamp::Stamp;

/// The name that is the file already.
struct Donor {
    at: Open,
    name: Name,
    path: TreePath,
    inode: u64,
}

impl Run<'_> {
    /// Makes the changed members of a group one file with all its other members.
    pub(super) fn settle_group(&self, group: LinkGroup, changed: &Members) -> Result<()> {
        let members = linked_paths(self.store, &self.after, group)?;
        let Some(donor) = self.find_donor(&members, changed)? else { return self.write_group(changed) };
        for (path, pair) in changed.iter().filter(|(path, _)| **path != donor.path) {
            self.link_member(&donor, path, pair)?;
        }
        self.touch_members(&members);
        self.remember(&donor, changed)
    }

    /// A member that has the right bytes already: best one that does not change at all, else one of the group, else one that
    /// was a file of its own.
    fn find_donor(&self, members: &[TreePath], changed: &Members) -> Result<Option<Donor>> {
        for path in members.iter().filter(|path| !changed.contains_key(path)) {
            if !self.is_as_in_target(path)? {
                continue;
            }
            let Some((at, name)) = self.open_again(path)? else { continue };
            let ours = self.ours.lock();
            let Ok(present) = Stamp::at(at.handle.as_fd(), &name) else { continue };
            if self.is_unchanged(&at, &name, path, &present, Some(&ours))? {
                return Ok(Some(Donor { at, name, path: path.clone(), inode: present.inode }));
            }
        }
        for was_member in [true, false] {
            for (path, pair) in changed {
                if let Some(donor) = self.donor_in_place(path, pair, was_member)? {
                    return Ok(Some(donor));
                }
            }
        }
        Ok(None)
    }

    fn donor_in_place(&self, path: &TreePath, pair: &Pair, was_member: bool) -> Result<Option<Donor>> {
        let Pair { before: Some(before), after: Some(after) } = pair else { return Ok(None) };
        let is_alone = self.index.stamp(path).is_some_and(|known| known.links == 1);
        let fits = if was_member { before.link() == after.link() } else { before.link().is_none() && is_alone };
        if !fits || !pair.same_node() {
            return Ok(None);
        }
        let Some((at, name)) = self.open_again(path)? else { return Ok(None) };
        let wanted = Wanted { path: path.clone(), name, before: Some(before.clone()), entry: after.clone() };
        let Some(stamp) = self.dress_in_place(&at, &wanted)? else { return Ok(None) };
        Ok(Some(Donor { at, name: wanted.name, path: wanted.path, inode: stamp.inode }))
    }

    /// Whether a member that does not differ is in the directory as the target has it; it may lie outside of what the job is
    /// about.
    fn is_as_in_target(&self, path: &TreePath) -> Result<bool> {
        let Some(before) = &self.before else { return Ok(false) };
        let (before, after) = (entry_at(self.store, before, path)?, entry_at(self.store, &self.after, path)?);
        Ok(match (before, after) {
            (Some(before), Some(after)) => {
                before == after || (!self.aim.is_exact() && before.equal_but_for_times(&after))
            }
            _ => false,
        })
    }

    /// A group none of whose members is there: the first that can be written is the file.
    fn write_group(&self, changed: &Members) -> Result<()> {
        let mut donor: Option<Donor> = None;
        for (path, pair) in changed {
            if let Some(donor) = &donor {
                self.link_member(donor, path, pair)?;
                continue;
            }
            let Some((at, name)) = self.open_again(path)? else { continue };
            let entry = pair.after.clone().expect("a member is there in the target");
            let wanted = Wanted { path: path.clone(), name, before: pair.before.clone(), entry };
            if let Some(stamp) = self.put_late(&at, &wanted)? {
                donor = Some(Donor { at, name: wanted.name, path: wanted.path, inode: stamp.inode });
            }
        }
        match donor {
            Some(donor) => self.remember(&donor, changed),
            None => Ok(()),
        }
    }

    fn link_member(&self, donor: &Donor, path: &TreePath, pair: &Pair) -> Result<()> {
        let Some((at, name)) = self.open_again(path)? else { return Ok(()) };
        let present = Stamp::at(at.handle.as_fd(), &name);
        if present.is_ok_and(|present| present.inode == donor.inode) {
            return Ok(());
        }
        let linked = self.link(donor, &at, &name, path, pair.before.as_ref());
        match self.settle(path, linked)? {
            Some(Placed::There) => {
                self.changed_late(&at);
                self.done.lock().written += 1;
                self.job.progress.did(0);
            }
            Some(Placed::Left(why)) => self.notice(path, why),
            None => {}
        }
        Ok(())
    }

    fn link(&self, donor: &Donor, at: &Open, name: &Name, path: &TreePath, before: Option<&Entry>) -> Result<Placed> {
        let failed = |errno: Errno| Error::host("link", path, errno);
        let link_as = |new: &Name| {
            rustix::fs::linkat(&donor.at.handle, c_name(&donor.name), &at.handle, c_name(new), AtFlags::empty())
        };
        let made_as = if before.is_none() { name.clone() } else { self.temporary() };
        match link_as(&made_as) {
            Ok(()) => {}
            Err(Errno::EXIST) if before.is_none() => return Ok(Placed::Left(Why::ChangedSince)),
            Err(errno) => return Err(failed(errno)),
        }
        let linked = Stamp::at(at.handle.as_fd(), &made_as).map_err(|source| Error::host("look at", path, source));
        if !linked.as_ref().is_ok_and(|stamp| stamp.inode == donor.inode) {
            // Another program put something else under the donor's name.
            unlink(at, &made_as).ok();
            linked?;
            return Ok(Placed::Left(Why::ChangedSince));
        }
        self.refresh(donor)?;
        let Some(before) = before else { return Ok(Placed::There) };
        debug_assert!(is_directory(Some(before)) || before.link().is_none() || donor.inode != 0, "a donor is a file");
        let placed = self.place(at, &made_as, name, path, Some(before));
        if !matches!(placed, Ok(Placed::There)) {
            self.discard(at, &made_as, donor.inode);
        }
        self.refresh(donor)?;
        placed
    }

    /// A link changes the stamp of the file under all its names: this checkout did that.
    fn refresh(&self, donor: &Donor) -> Result<()> {
        let looked = |source: std::io::Error| Error::host("look at", &donor.path, source);
        let held = hold(&donor.at, &donor.name).map_err(|errno| looked(errno.into()))?;
        let stamp = Stamp::of(held.as_fd()).map_err(looked)?;
        if stamp.inode == donor.inode
            && let Some(entry) = entry_at(self.store, &self.after, &donor.path)?
        {
            let entry = Entry { mtime: stamp.mtime, ..entry };
            self.ours.lock().insert(stamp.inode, (stamp, entry));
        }
        Ok(())
    }

    fn remember(&self, donor: &Donor, changed: &Members) -> Result<()> {
        self.touch_members(&changed.keys().cloned().collect::<Vec<_>>());
        let refreshed = self.refresh(donor);
        self.settle(&donor.path, refreshed).map(|_| ())
    }

    fn touch_members(&self, members: &[TreePath]) {
        for (parent, _) in members.iter().filter_map(TreePath::split_last) {
            self.touch(&parent);
        }
    }
}
