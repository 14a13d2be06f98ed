//! Files of a read-only directory: hard links into a pool that has each file once.

use std::fs::File;
use std::os::fd::AsFd;

use amalgam_engine::object::{Content, Node};
use amalgam_engine::{Entry, Name, TreePath};
use bytes::Bytes;
use rustix::io::Errno;

use super::attributes::{Handle, apply_attributes};
use super::content_writer::ContentWriter;
use super::context::Context;
use super::new_entry::{NewEntry, NewHandle};
use super::open_directory::OpenDirectory;
use super::recorder::Origin;
use crate::error::{Error, Result};
use crate::file_pool::{FilePool, PoolKey};

/// The write permission bits.
const WRITE: u32 = 0o222;
/// Attempts to link a file: the pool may be emptied meanwhile, and a file in it may have been changed.
const LINK_ATTEMPTS_MAX: u32 = 3;

/// Returns the entry as a directory shows it: files from a pool have no write permission.
pub(super) fn without_write_permission(cx: &Context<'_>, entry: &Entry) -> Entry {
    match (&entry.node, cx.options.pool) {
        (Node::File { .. }, Some(_)) => Entry { mode: entry.mode & !WRITE, ..entry.clone() },
        _ => entry.clone(),
    }
}

/// Links a file from the pool, after adding it if necessary. Returns `None` if it cannot be linked and has to be written.
pub(super) fn link_from_pool(
    cx: &Context<'_>,
    contents: &ContentWriter<'_>,
    at: &OpenDirectory,
    name: &Name,
    path: &TreePath,
    entry: &Entry,
    bytes: Option<&Bytes>,
) -> Result<Option<NewEntry>> {
    let (Some(pool), Node::File { size, content }) = (cx.options.pool, &entry.node) else { return Ok(None) };
    let size = *size;
    let is_plain = entry.extra.is_none() && entry.mode <= 0o777;
    if !is_plain || *content == Content::Empty {
        return Ok(None);
    }
    let mtime = cx.time_of(entry);
    let key = PoolKey::new(content, size, entry.mode, mtime);
    let failed = |source: std::io::Error| Error::host("look at", path, source);
    for _ in 0..LINK_ATTEMPTS_MAX {
        match pool.link(&key, at.handle.as_fd(), name) {
            Ok(()) => {
                let stamp = at.stamp(name).map_err(failed)?;
                let owner = (cx.process.owner.uid, cx.process.owner.gid);
                let is_intact = (stamp.size, stamp.mtime, stamp.permissions()) == (size, mtime, entry.mode)
                    && (stamp.uid, stamp.gid) == owner;
                if is_intact {
                    let handle = match at.is_fresh {
                        true => NewHandle::Installed(stamp),
                        false => NewHandle::PathOnly(at.hold(name).map_err(|errno| failed(errno.into()))?),
                    };
                    return Ok(Some(NewEntry { handle, origin: Origin::Linked }));
                }
                at.unlink(name).map_err(|errno| Error::host("remove", path, errno))?;
                pool.remove(&key);
            }
            Err(Errno::NOENT) => add_to_pool(cx, contents, pool, &key, path, entry, bytes)?,
            // Another file system, one without hard links, or too many links.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOTSUP | Errno::NOSYS) => return Ok(None),
            Err(errno) => return Err(Error::host("link", path, errno)),
        }
    }
    Ok(None)
}

fn add_to_pool(
    cx: &Context<'_>,
    contents: &ContentWriter<'_>,
    pool: &FilePool,
    key: &PoolKey,
    path: &TreePath,
    entry: &Entry,
    bytes: Option<&Bytes>,
) -> Result<()> {
    let Node::File { size, content } = &entry.node else { return Ok(()) };
    let unfinished = key.unfinished(cx.staging.next_number());
    let file = pool.begin(key, &unfinished).map_err(|errno| Error::host("make", path, errno))?;
    let file = File::from(file);
    let filled = (|| {
        contents.write(&file, path, *size, content, bytes)?;
        apply_attributes(cx, Handle::Open(file.as_fd()), path, None, entry, Some(cx.time_of(entry)))?;
        pool.finish(key, &unfinished).map_err(|errno| Error::host("make", path, errno))
    })();
    if filled.is_err() {
        pool.abandon(&unfinished);
    }
    filled
}
