//! Analysis of a change: lines, bytes, languages, renames and risks, and the change as a patch that Git can apply.
//!
//! [`insight`] analyses every change between two trees, in time proportional to the change. It reads only what differs and
//! compares files on all cores. Its cost is bounded: the result reports everything that was too large, too numerous or not
//! searched, and never skips silently. [`patch`] writes the change for `git apply` and lists everything that Git cannot express.
//!
//! ```
//! use amalgam_engine::{Commit, InsightOptions, PatchOptions, RefName, Store, WorkingTree, insight, patch};
//!
//! let store = Store::in_memory();
//! let main = RefName::new("head/main")?;
//! let mut tree = WorkingTree::new(&store);
//! tree.write("greet.py", b"print('hello')\nprint('bye')\n")?;
//! let first = tree.commit(Commit::new(&main, "first"))?;
//! tree.write("greet.py", b"print('hello')\nprint('good bye')\n")?;
//! let second = tree.commit(Commit::new(&main, "second"))?;
//! let root = |snapshot| Ok::<_, amalgam_engine::Error>(Some(store.snapshot(snapshot)?.root));
//! let (before, after) = (root(first.snapshot)?, root(second.snapshot)?);
//!
//! let mut files = insight(&store, before, after, &InsightOptions::default())?;
//! let file = files.next().expect("one file differs")?;
//! assert_eq!((file.change.path.to_string().as_str(), file.language), ("greet.py", Some("Python")));
//! let summary = files.finish()?;
//! assert_eq!((summary.lines_added, summary.lines_removed, summary.score()), (1, 1, 2));
//!
//! let mut text = Vec::new();
//! let report = patch(&store, before, after, &PatchOptions::default(), &mut text)?;
//! assert!(report.left_out.is_empty());
//! assert!(String::from_utf8(text)?.contains("-print('bye')\n+print('good bye')\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod body;
mod file;
mod language;
mod patch;
mod risk;
mod secret;
mod similar;
mod summary;

pub(crate) use body::load;
pub use file::{Contents, FileInsight};
pub use patch::{LeftOut, Omission, PatchOptions, PatchReport, patch};
pub use risk::{Risk, RiskHint};
pub use similar::{RenameOptions, RenameSearch};
pub use summary::{Counts, LanguageCounts, Summary};

use std::collections::VecDeque;

use rayon::prelude::*;

use crate::diff::{Change, Diff, DiffOptions, Kinds, What, diff_roots};
use crate::error::Result;
use crate::id::RootId;
use crate::name::TreePath;
use crate::object::Entry;
use crate::store::Store;
use similar::DetectedChange;

/// Options and limits of an analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsightOptions {
    /// Report entries that differ only in their time.
    pub times: bool,
    /// How to search for renames; `None` turns the search off. Without it changes are read on demand; with it the list of
    /// changes, but not their contents, is held in memory.
    pub renames: Option<RenameOptions>,
    /// For larger files only the bytes are counted.
    pub file_bytes_max: u64,
    /// Maximum number of added bytes per file that are searched for credentials.
    pub scan_bytes_max: usize,
    /// Omit every entry called `.git`, with everything below it.
    pub without_git: bool,
    /// The threshold from which growth of a file counts as a risk.
    pub growth: GrowthLimit,
}

impl Default for InsightOptions {
    fn default() -> Self {
        Self {
            times: false,
            renames: Some(RenameOptions::default()),
            file_bytes_max: 16 << 20,
            scan_bytes_max: 1 << 20,
            without_git: false,
            growth: GrowthLimit::default(),
        }
    }
}

/// The threshold for a large growth of a file. Both conditions must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthLimit {
    /// Minimum growth in bytes.
    pub bytes_min: u64,
    /// Minimum ratio of the new size to the old size.
    pub factor: u64,
}

impl Default for GrowthLimit {
    fn default() -> Self {
        Self { bytes_min: 1 << 20, factor: 10 }
    }
}

/// Analyses the changes between two trees; `None` stands for an empty tree. The changes are sorted by path.
pub fn insight(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    options: &InsightOptions,
) -> Result<Insight> {
    let diff = DiffOptions { times: options.times, without_git: options.without_git };
    let mut summary = Summary::default();
    let changes = match &options.renames {
        None => Changes::Read(Box::new(diff_roots(store, before, after, diff)?)),
        Some(renames) => {
            let (found, search) = similar::changes(store, before, after, diff, renames)?;
            summary.renames = search;
            Changes::Held(found.into_iter())
        }
    };
    Ok(Insight { store: store.clone(), options: *options, changes, ready: VecDeque::new(), summary })
}

/// Returns all changes between two trees with exact and similar renames, sorted by path. A name that was a directory and is now
/// another kind of entry, or the other way round, is two changes, either of which may be a rename.
pub(crate) fn changes_with_renames(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    options: &RenameOptions,
) -> Result<(Vec<Change>, RenameSearch)> {
    let (found, search) = similar::of_kinds(store, before, after, DiffOptions::default(), options, Kinds::Apart)?;
    Ok((found.into_iter().map(|found| found.change).collect(), search))
}

/// Returns the old path of a file that is new at a path, if it was renamed, alone or with a directory above it.
pub(crate) fn renamed_from(store: &Store, before: RootId, after: RootId, path: &TreePath) -> Result<Option<TreePath>> {
    let options = RenameOptions::default();
    let (found, _) = similar::changes(store, Some(before), Some(after), DiffOptions::default(), &options)?;
    for DetectedChange { change, .. } in found {
        if let (What::Renamed { from }, Some(rest)) = (&change.what, path.below(&change.path)) {
            let names = TreePath::new(rest)?;
            return Ok(Some(names.names().fold(from.clone(), |path, name| path.join(&name))));
        }
    }
    Ok(None)
}

/// Iterates over the analysed changes of two trees. Analyses them on demand, in batches.
pub struct Insight {
    store: Store,
    options: InsightOptions,
    changes: Changes,
    ready: VecDeque<FileInsight>,
    summary: Summary,
}

enum Changes {
    Read(Box<Diff>),
    Held(std::vec::IntoIter<DetectedChange>),
}

/// Maximum number of changes in one batch, and maximum number of their bytes.
const BATCH_FILES: usize = 512;
const BATCH_BYTES_MAX: u64 = 64 << 20;

impl Insight {
    /// Returns the totals of the changes returned so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Analyses the remaining changes and returns the totals of all.
    pub fn finish(mut self) -> Result<Summary> {
        for file in self.by_ref() {
            file?;
        }
        Ok(self.summary)
    }

    fn advance(&mut self) -> Result<Option<FileInsight>> {
        if self.ready.is_empty() {
            let together = self.changes.take_some(self.options.file_bytes_max)?;
            let (store, options) = (&self.store, &self.options);
            let look = |found| FileInsight::of(store, found, options);
            let ready: Result<Vec<_>> = together.into_par_iter().map(look).collect();
            self.ready = ready?.into();
        }
        let next = self.ready.pop_front();
        next.iter().for_each(|file| self.summary.count(file));
        Ok(next)
    }
}

impl Iterator for Insight {
    type Item = Result<FileInsight>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(file) => file.map(Ok),
            Err(error) => {
                self.changes = Changes::Held(Vec::new().into_iter());
                Some(Err(error))
            }
        }
    }
}

impl Changes {
    /// Returns the next batch of changes.
    fn take_some(&mut self, file_bytes_max: u64) -> Result<Vec<DetectedChange>> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while some.len() < BATCH_FILES && bytes < BATCH_BYTES_MAX {
            let next = match self {
                Self::Read(diff) => diff.next().transpose()?.map(|change| DetectedChange { change, similarity: None }),
                Self::Held(found) => found.next(),
            };
            let Some(found) = next else { break };
            let size = |entry: &Option<Entry>| entry.as_ref().map_or(0, body::size);
            let sizes = size(&found.change.before).max(size(&found.change.after));
            // Files above the limit are not read.
            bytes += if sizes > file_bytes_max { 0 } else { sizes };
            some.push(found);
        }
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory;
    use crate::name::{Name, TreePath};
    use crate::object::{Conflict, EntryKind, Node, Root, Settled};
    use crate::reference::{RefName, RefValue};
    use crate::store::RefMove;
    use crate::time::Time;

    fn root_with(store: &Store, entries: Vec<(Name, Option<Entry>)>) -> RootId {
        let session = store.session();
        let mut directory = Entry::empty_directory(0o755, Time::EPOCH);
        directory.node = Node::Directory(directory::apply(&session, None, entries).expect("a directory"));
        let root = session.put_root(&Root { directory, links: None, state: None }).expect("a root");
        let name = RefName::new("test/root").expect("a name");
        let expect = vec![(name.clone(), store.read_ref(&name).expect("a reference"))];
        let set = vec![(name, Some(RefValue::to(root)))];
        session.commit(root, RefMove { expect, set, ..RefMove::default() }).expect("a commit");
        root
    }

    #[test]
    fn conflicts_are_counted_and_left_out_of_patches() {
        let term = |mode| Some(Entry::new(Node::Fifo, mode, Time::EPOCH));
        let Ok(Settled::Conflicted(conflict)) = Conflict::settle(vec![term(1), term(2), term(3)]) else {
            panic!("they disagree");
        };
        let store = Store::in_memory();
        let entry = Entry::new(Node::Conflict(conflict.into()), 0, Time::EPOCH);
        let before = root_with(&store, Vec::new());
        let after = root_with(&store, vec![(Name::new(b"c").expect("a name"), Some(entry))]);
        let files = insight(&store, Some(before), Some(after), &InsightOptions::default()).expect("an insight");
        let summary = files.finish().expect("read");
        assert_eq!((summary.conflicts, summary.files.added, summary.score()), (1, 1, 110));
        let mut text = Vec::new();
        let report = patch(&store, Some(before), Some(after), &PatchOptions::default(), &mut text).expect("a patch");
        let path = TreePath::new("c").expect("a path");
        let left_out = LeftOut { path, why: Omission::Kind(EntryKind::Conflict) };
        assert_eq!((text.len(), report.left_out), (0, vec![left_out]));
    }
}
