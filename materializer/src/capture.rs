//! Captures real files into a stored tree.
//!
//! A [`scan`] first compares the requested directories with the index, by `stat` alone. Files that differ are then read and
//! stored, and directories are assembled bottom-up ([`build`]). Equal sub-trees are never opened in the store. The index is
//! updated only after success, so an interrupted capture leaves it unchanged.
//!
//! An unreadable file or directory does not count as deleted: it stays as the stored tree has it, with a notice.
//!
//! Not captured: attributes of FIFOs, sockets and devices, which would have to be opened; writes through a memory map that is
//! still open; and writes through names outside of the directory while only a part is scanned.

mod build;
mod links;
mod read;
mod scan;
mod worker_pool;
mod xattrs;

pub(crate) use build::{batches, take_edits};
pub(crate) use read::{FileBytes, FileRead, read_file, read_special};
pub(crate) use scan::{Edit, ScannedDirectory, Scanner, Slot, State, list_names};
pub(crate) use worker_pool::run_jobs;

use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::object::Owner;
use amalgam_engine::{Assembly, RootId, Store, TreePath, WorkingTree};

use crate::capture_options::{CaptureOptions, Counts};
use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::index::Index;
use crate::report::Notice;
use crate::stamp::Stamp;
use read::Reader;

/// A directory captured into the store.
pub struct Captured {
    /// The tree, pinned in the store while this value lives. It has no parent snapshot.
    pub tree: WorkingTree,
    /// Its root.
    pub root: RootId,
    /// Contents of the tree, and the cost of the capture.
    pub counts: Counts,
    /// Paths that were not captured as they are, sorted by path.
    pub notices: Vec<Notice>,
}

/// Captures a directory. Reads the index to skip unchanged files, and updates it.
pub fn capture(store: &Store, directory: &HostDir, index: &mut Index, job: &CaptureOptions<'_>) -> Result<Captured> {
    let top = check_index(store, directory, index)?;
    let scanner = Scanner::new(directory, index, job, &top);
    scanner.run()?;
    let changed_links = links::find(&scanner)?;
    let mut scan = scanner.finish();
    let ignored = scan.ignored;
    if let (Some(root), true) = (index.root(), scan.is_equal() && changed_links.is_empty()) {
        let notices = std::mem::take(&mut scan.notices);
        let tree = WorkingTree::open_root(store, root)?;
        return Ok(Captured { tree, root, counts: counts(index, ignored, (0, 0)), notices });
    }
    let assembly = Assembly::new(store, index.root())?;
    let stored = assembly.stored_bytes();
    let (built, read) = {
        let reader = Reader {
            store,
            session: assembly.session(),
            base: assembly.base(),
            index,
            job,
            owner: Owner { uid: top.uid, gid: top.gid },
            files_read: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
        };
        let built = build::build(directory, &assembly, &reader, &mut scan, &changed_links)?;
        (built, (reader.files_read.load(Ordering::Relaxed), reader.bytes_read.load(Ordering::Relaxed)))
    };
    job.progress.check()?;
    let (tree, root) = build::finish(assembly, built.top.clone(), &built.members(index, &changed_links))?;
    let notices = built.notices.clone();
    built.update_index(index, &scan.slots, &changed_links, root, job.rules.fingerprint());
    let bytes_stored = stored.load(Ordering::Relaxed);
    Ok(Captured { tree, root, counts: Counts { bytes_stored, ..counts(index, ignored, read) }, notices })
}

/// Checks that the index belongs to this directory, and clears it if its tree is not in the store any more. Returns the
/// stamp of the directory.
pub(crate) fn check_index(store: &Store, directory: &HostDir, index: &mut Index) -> Result<Stamp> {
    if index.identity() != directory.identity() {
        let why = "this is not the directory that was captured before; run `amalgam ws attach` in it".to_owned();
        return Err(Error::WrongDirectory { path: directory.path().display().to_string(), why });
    }
    if index.root().is_some_and(|root| store.hold(root).is_err()) {
        *index = Index::new(directory.identity());
    }
    Stamp::of(directory.handle()).map_err(|error| Error::host("look at", &TreePath::root(), error))
}

pub(crate) fn counts(index: &Index, ignored: u64, (files_read, bytes_read): (u64, u64)) -> Counts {
    let crate::index::Totals { files, directories, symlinks, others, bytes } = index.totals();
    Counts { files, directories, symlinks, others, bytes, files_read, bytes_read, ignored, bytes_stored: 0 }
}
