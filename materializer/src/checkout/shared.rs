//! Files of a read-only directory: linked from a pool in which each is kept once.

use std::fs::File;
use std::os::fd::AsFd;

use amalgam_engine::object::{Content, Node};
use amalgam_engine::{Entry, Name, TreePath};
use bytes::Bytes;
use rustix::io::Errno;

use super::Run;
use super::attributes::Handle;
use super::fill::{Made, MadeHandle};
use super::place::{hold, unlink};
use super::source::Came;
use super::walk::Open;
use crate::error::{Error, Result};
use crate::pool::{Kept, Pool};
use crate::stamp::Stamp;

/// The permission bits that no file of a read-only directory has.
const WRITE: u32 = 0o222;

impl Run<'_> {
    /// What something is in the directory: no user may write to files that are shared.
    pub(super) fn as_shown(&self, entry: &Entry) -> Entry {
        match (&entry.node, self.job.pool) {
            (Node::File { .. }, Some(_)) => Entry { mode: entry.mode & !WRITE, ..entry.clone() },
            _ => entry.clone(),
        }
    }

    /// Links a file from the pool, which gets it if it has it not. Nothing where it cannot be linked: it is to be written then.
    pub(super) fn link_shared(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        entry: &Entry,
        bytes: Option<&Bytes>,
    ) -> Result<Option<Made>> {
        let (Some(pool), Node::File { size, content }) = (self.job.pool, &entry.node) else { return Ok(None) };
        let size = *size;
        let is_plain = entry.extra.is_none() && entry.mode <= 0o777;
        if !is_plain || *content == Content::Empty {
            return Ok(None);
        }
        let mtime = self.time_of(entry);
        let kept = Kept::new(content, size, entry.mode, mtime);
        // The pool may be emptied meanwhile, and what is in it may have been changed.
        for _ in 0..3 {
            match pool.link(&kept, at.handle.as_fd(), name) {
                Ok(()) => {
                    let stamp =
                        Stamp::at(at.handle.as_fd(), name).map_err(|source| Error::host("look at", path, source))?;
                    let owner = (self.process.owner.uid, self.process.owner.gid);
                    let is_as_kept = (stamp.size, stamp.mtime, stamp.permissions()) == (size, mtime, entry.mode)
                        && (stamp.uid, stamp.gid) == owner;
                    if is_as_kept {
                        let handle = match at.is_fresh {
                            true => MadeHandle::Stamped(stamp),
                            false => {
                                MadeHandle::Place(hold(at, name).map_err(|errno| Error::host("look at", path, errno))?)
                            }
                        };
                        return Ok(Some(Made { handle, came: Came::Linked }));
                    }
                    unlink(at, name).map_err(|errno| Error::host("remove", path, errno))?;
                    pool.remove(&kept);
                }
                Err(Errno::NOENT) => self.put_into(pool, &kept, path, entry, (size, content), bytes)?,
                // Another file system, or one whose files have one name, or one that has too many.
                Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOTSUP | Errno::NOSYS) => return Ok(None),
                Err(errno) => return Err(Error::host("link", path, errno)),
            }
        }
        Ok(None)
    }

    fn put_into(
        &self,
        pool: &Pool,
        kept: &Kept,
        path: &TreePath,
        entry: &Entry,
        (size, content): (u64, &Content),
        bytes: Option<&Bytes>,
    ) -> Result<()> {
        let unfinished = kept.unfinished(self.staging.number());
        let file = pool.begin(kept, &unfinished).map_err(|errno| Error::host("make", path, errno))?;
        let file = File::from(file);
        let filled = (|| {
            if self.take_from_source(&file, path, size, content)? == Came::FromStore {
                self.fill(&file, path, size, content, bytes)?;
            }
            self.dress(Handle::Open(file.as_fd()), path, None, entry, Some(self.time_of(entry)))?;
            pool.finish(kept, &unfinished).map_err(|errno| Error::host("make", path, errno))
        })();
        if filled.is_err() {
            pool.give_up(&unfinished);
        }
        filled
    }
}
