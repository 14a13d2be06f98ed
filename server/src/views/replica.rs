//! The journal of a live tree that several nodes share: taken from the shared store before the view is opened, and stored there before
//! an edit is acknowledged.
//!
//! A node has a tree while its token is the newest. A node that lost a tree finds that out at its next use or its next edit; the edit
//! then fails and is stored nowhere.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_engine::backend::{FilePart, LiveTrees};
use amalgam_engine::{OperationContext, RefName};
use amalgam_proto::Reason;
use amalgam_view::{JOURNAL_BASE_FILE, View};
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// The end of the names of journal files.
const JOURNAL_SUFFIX: &str = ".journal";
/// More new bytes of a journal than this go through the store as a checkpoint.
const NEW_BYTES_MAX: u64 = 512 << 10;
/// A longer journal is replaced by a checkpoint, so that another node takes the tree quickly.
const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// The shared copy of a live tree's journal, which this node has.
pub(super) struct Replica {
    trees: Arc<dyn LiveTrees>,
    number: u64,
    token: u64,
    directory: PathBuf,
    stored: Mutex<Stored>,
    is_lost: AtomicBool,
}

/// The files as they are stored.
#[derive(Default)]
struct Stored {
    base: Vec<u8>,
    /// The length of each journal file.
    journal: BTreeMap<String, u64>,
}

impl Replica {
    /// Takes the live tree of a workspace, and writes its journal into a new directory below `place`.
    pub(super) fn take(trees: &Arc<dyn LiveTrees>, workspace: &str, place: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let taken = trees.take(workspace)?;
        // An abandoned view of the same tree may still have its files open.
        let name = format!("{}-{}-{}", taken.number, taken.token, NEXT.fetch_add(1, Ordering::Relaxed));
        let replica = Self {
            trees: Arc::clone(trees),
            number: taken.number,
            token: taken.token,
            directory: place.join(name),
            stored: Mutex::default(),
            is_lost: AtomicBool::new(false),
        };
        let failed = |source| Error::io("write the journal of a live tree")(source);
        std::fs::create_dir_all(&replica.directory).map_err(failed)?;
        let mut stored = Stored::default();
        for (name, bytes) in taken.files {
            std::fs::write(replica.directory.join(&name), &bytes).map_err(failed)?;
            match name == JOURNAL_BASE_FILE {
                true => stored.base = bytes,
                false => drop(stored.journal.insert(name, bytes.len() as u64)),
            }
        }
        *replica.stored.lock() = stored;
        Ok(replica)
    }

    /// Returns the directory of the view.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether this node has found out that another one has the tree.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    /// Returns whether this node still has the tree.
    pub(super) fn is_held(&self) -> Result<bool> {
        if self.is_lost.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let is_held = self.trees.is_held(self.number, self.token)?;
        if !is_held {
            self.is_lost.store(true, Ordering::SeqCst);
        }
        Ok(is_held)
    }

    /// Stores the journal as it is now. A journal with many new bytes is replaced by a checkpoint under `reference` before.
    ///
    /// # Errors
    /// Another node has taken the tree: [`Reason::Busy`].
    pub(super) fn store(&self, view: &View, reference: &RefName, act: &OperationContext) -> Result<()> {
        let mut stored = self.stored.lock();
        if self.is_lost.load(Ordering::SeqCst) {
            return Err(lost());
        }
        if view.has_failed() {
            return Ok(());
        }
        let files = view.journal_files();
        let new_bytes: u64 = files.iter().map(|(name, end)| end - stored.start_of(name, *end)).sum();
        if new_bytes > NEW_BYTES_MAX || view.journal_bytes() > JOURNAL_BYTES_MAX {
            view.checkpoint(reference, act)?;
        }
        // The base is read after the list of files: a base that moves meanwhile needs fewer files, not more.
        let files = view.journal_files();
        let base = self.read(JOURNAL_BASE_FILE, 0, None)?;
        self.write(&mut stored, &files, base)
    }

    /// Stores the journal that a closed view left, or gives the tree back if it left none.
    pub(super) fn close(&self) -> Result<()> {
        let mut stored = self.stored.lock();
        if self.is_lost.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if !View::has_work(&self.directory) {
            return Ok(self.trees.release(self.number, self.token)?);
        }
        let failed = |source| Error::io("read the journal of a live tree")(source);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Some(name) = entry.file_name().to_str().filter(|name| name.ends_with(JOURNAL_SUFFIX)) {
                files.push((name.to_owned(), entry.metadata().map_err(failed)?.len()));
            }
        }
        let base = self.read(JOURNAL_BASE_FILE, 0, None)?;
        self.write(&mut stored, &files, base)
    }

    fn write(&self, stored: &mut Stored, files: &[(String, u64)], base: Vec<u8>) -> Result<()> {
        let mut parts = Vec::new();
        for (name, end) in files {
            let start = stored.start_of(name, *end);
            if start < *end {
                parts.push(FilePart { name: name.clone(), start, bytes: self.read(name, start, Some(*end))? });
            }
        }
        if base != stored.base {
            parts.push(FilePart { name: JOURNAL_BASE_FILE.to_owned(), start: 0, bytes: base.clone() });
        }
        let is_shorter = stored.journal.keys().any(|name| !files.iter().any(|(kept, _)| kept == name));
        if parts.is_empty() && !is_shorter {
            return Ok(());
        }
        let mut names: Vec<_> = files.iter().map(|(name, _)| name.clone()).collect();
        names.push(JOURNAL_BASE_FILE.to_owned());
        if !self.trees.write(self.number, self.token, &names, &parts)? {
            self.is_lost.store(true, Ordering::SeqCst);
            return Err(lost());
        }
        *stored = Stored { base, journal: files.iter().cloned().collect() };
        Ok(())
    }

    fn read(&self, name: &str, start: u64, end: Option<u64>) -> Result<Vec<u8>> {
        let read = || -> std::io::Result<Vec<u8>> {
            let file = File::open(self.directory.join(name))?;
            let end = end.map_or_else(|| file.metadata().map(|metadata| metadata.len()), Ok)?;
            let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, start)?;
            Ok(bytes)
        };
        read().map_err(Error::io("read the journal of a live tree"))
    }
}

impl Drop for Replica {
    /// Removes the local copy. The shared one has everything that was acknowledged.
    fn drop(&mut self) {
        let _ = amalgam_materializer::remove_tree(&self.directory);
    }
}

impl Stored {
    /// Returns the offset from which on a file is not stored.
    fn start_of(&self, name: &str, end: u64) -> u64 {
        self.journal.get(name).copied().unwrap_or_default().min(end)
    }
}

fn lost() -> Error {
    let message = "another node has taken the live tree meanwhile, so the change was not made; try again";
    Error::new(Reason::Busy, message)
}
