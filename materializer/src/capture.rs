//! Real files into a stored tree.
//!
//! First everything asked for is looked at beside the index, without reading ([`scan`]); what differs is then read and put, and
//! directories are put together from the bottom up ([`build`]). Equal sub-trees are never touched in the store. The index
//! is brought up to date only when all went well, so an interrupted capture leaves it as it was.
//!
//! What cannot be seen is no deletion: an unreadable file or directory stays as the stored tree has it, and is reported.
//!
//! What is absent: attributes of FIFOs, sockets and devices, which would have to be opened for them; writes through a memory map
//! that is still open, and writes through names outside of the directory while only a part is looked at.

mod attributes;
mod build;
mod links;
mod read;
mod scan;
mod work;

pub(crate) use build::{pieces, take_edits};
pub(crate) use read::{Opened, Source, other, with_file};
pub(crate) use scan::{Edit, Found, Scanner, Slot, State, names};
pub(crate) use work::run;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::object::Owner;
use amalgam_engine::{Assembly, RootId, Store, Time, TreePath, WorkingTree};

use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::index::Index;
use crate::known::Known;
use crate::progress::Progress;
use crate::report::Notice;
use crate::rules::Rules;
use crate::stamp::Stamp;
use read::Reader;

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everywhere.
    All,
    /// At the names in these directories. New directories found there are looked at with all below them; one that is gone
    /// is missed in the nearest directory above it that is there. Everything else is taken as the index has it.
    Directories(&'a BTreeSet<TreePath>),
}

/// How to capture.
#[derive(Clone, Copy, Debug)]
pub struct Capture<'a> {
    /// What is left out.
    pub rules: &'a Rules,
    /// Where to look.
    pub scope: Scope<'a>,
    /// What is known without reading.
    pub known: &'a Known,
    /// The time now, by the clock that files get their times from.
    pub now: Time,
    /// How far it is, and whether to stop.
    pub progress: &'a Progress,
}

/// A directory's tree in the store.
pub struct Captured {
    /// The tree, stored and kept there while this lives; without a snapshot that it follows.
    pub tree: WorkingTree,
    /// Its root.
    pub root: RootId,
    /// What it holds and what it took.
    pub counts: Counts,
    /// What was not captured as it is, sorted by path.
    pub notices: Vec<Notice>,
}

/// What a tree holds, the root not counted, and what looking at it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files in the whole tree.
    pub files: u64,
    /// Directories in the whole tree.
    pub directories: u64,
    /// Symlinks in the whole tree.
    pub symlinks: u64,
    /// FIFOs, sockets and devices in the whole tree.
    pub others: u64,
    /// Bytes of all files in the whole tree.
    pub bytes: u64,
    /// Files that were read.
    pub files_read: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Names that a rule left out where it was looked; a directory counts once.
    pub ignored: u64,
    /// Bytes that the store took in, as they are stored.
    pub bytes_stored: u64,
}

/// Captures what a directory holds. The index says what is known of it, and afterwards what was found.
pub fn capture(store: &Store, directory: &HostDir, index: &mut Index, job: &Capture<'_>) -> Result<Captured> {
    let top = begin(store, directory, index)?;
    let scanner = Scanner::new(directory, index, job, &top);
    scanner.run()?;
    let touched = links::find(&scanner)?;
    let mut scan = scanner.finish();
    let ignored = scan.ignored;
    if let (Some(root), true) = (index.root(), scan.is_equal() && touched.is_empty()) {
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
        let built = build::build(directory, &assembly, &reader, &mut scan, &touched)?;
        (built, (reader.files_read.load(Ordering::Relaxed), reader.bytes_read.load(Ordering::Relaxed)))
    };
    job.progress.check()?;
    let (tree, root) = build::finish(assembly, built.top.clone(), &built.members(index, &touched))?;
    let notices = built.notices.clone();
    built.learn(index, &scan.slots, &touched, root, job.rules.fingerprint());
    let bytes_stored = stored.load(Ordering::Relaxed);
    Ok(Captured { tree, root, counts: Counts { bytes_stored, ..counts(index, ignored, read) }, notices })
}

/// Checks that the index is of this directory, and forgets what it says of a tree that is not in the store any more. What the host
/// says of the directory itself.
pub(crate) fn begin(store: &Store, directory: &HostDir, index: &mut Index) -> Result<Stamp> {
    if index.identity() != directory.identity() {
        let why = "this is not the directory that was captured before; run `amalgam ws attach` in it".to_owned();
        return Err(Error::NotThis { path: directory.path().display().to_string(), why });
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
