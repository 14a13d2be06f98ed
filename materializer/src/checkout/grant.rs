//! Grants the rights that an earlier checkout withheld, in a directory that otherwise matches the tree.

use std::os::fd::AsFd as _;

use amalgam_engine::{DiffOptions, EntryKind, RootId, Store, TreePath, diff_roots};
use rustix::fs::OFlags;

use super::attributes::Handle;
use crate::checkout_options::CheckoutReport;
use crate::error::{Error, Result};
use crate::host::{HostDir, is_absent, open_beneath};
use crate::index::Index;
use crate::progress::Progress;
use crate::report::{Notice, Why};
use crate::rights::{CAPABILITY, lacks_set_id};
use crate::stamp::Stamp;

/// Sets withheld set-ID bits and capabilities of files, either of all or of those at and below `paths`. The index describes
/// the directory; a file that changed since is skipped. Adds to the report of a checkout.
pub fn grant_withheld(
    store: &Store,
    host: &HostDir,
    index: &Index,
    root: RootId,
    paths: Option<&[TreePath]>,
    progress: &Progress,
    done: &mut CheckoutReport,
) -> Result<()> {
    let is_meant = |path: &TreePath| paths.is_none_or(|paths| paths.iter().any(|one| path.below(one).is_some()));
    for change in diff_roots(store, None, Some(root), DiffOptions::default())? {
        progress.check()?;
        let change = change?;
        let Some(entry) = change.after.filter(|entry| entry.kind() == EntryKind::File) else { continue };
        if !is_meant(&change.path) {
            continue;
        }
        let path = &change.path;
        let capability = store.xattrs(entry.xattrs())?.into_iter().find(|xattr| &xattr.name[..] == CAPABILITY);
        let Some(left) = index.stamp(path).filter(|left| lacks_set_id(left, &entry) || capability.is_some()) else {
            continue;
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match open_beneath(host.handle(), path.as_bytes(), flags) {
            Err(error) if is_absent(&error) => continue,
            file => file.map_err(|source| Error::host("open", path, source))?,
        };
        let stamp = Stamp::of(file.as_fd()).map_err(|source| Error::host("look at", path, source))?;
        // The checkout before wrote this file with its rights.
        if stamp != left {
            continue;
        }
        let handle = Handle::Open(file.as_fd());
        let mut granted = handle.set_mode(entry.mode);
        if let (Ok(()), Some(capability)) = (granted, &capability) {
            granted = handle.set_xattr(capability);
        }
        if let Err(errno) = granted {
            let why = Why::Failed { action: "set the rights of", error: errno.to_string() };
            done.notices.push(Notice { path: path.clone(), why });
            continue;
        }
        let stamp = handle.stamp().map_err(|source| Error::host("look at", path, source))?;
        done.known.insert(stamp, entry);
        done.written += 1;
        done.touched.insert(path.split_last().expect("a file has a name").0);
    }
    Ok(())
}
