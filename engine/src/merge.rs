//! Three-way merge of trees.
//!
//! [`merge_trees`] takes three roots and returns a working tree on top of ours. A conflict is data in that tree: an entry that
//! holds the competing versions as terms ([`Conflict`](crate::object::Conflict)). Later merges carry it along, and it disappears
//! when one side resolves it. The cost is proportional to the changes of the two sides: equal sub-trees are never read.
//!
//! Entries are tracked through renames: each entry of the base is one item that either side may have changed, moved or removed.
//! The value of an item and its path are merged separately. If two items end up at one path, they are merged as additions.
//!
//! Not in this module: the meaning of bytes. Files that both sides changed are passed to a [`MergeContents`]; the built-in
//! implementation, [`NoContents`], leaves them as conflicts.

mod apply;
mod auto_resolve;
mod base;
mod cached_tree;
mod candidate;
mod contents;
mod entry;
mod layout;
mod links;
mod moves;
mod names;
mod octopus;
mod open_decisions;
mod record;
mod side;
mod state;
mod undecided;
mod units;
mod workspaces;

pub use auto_resolve::{Regenerate, Regenerated};
pub(crate) use auto_resolve::{UncommittedMerge, count_conflicts, have_conflicts};
pub use base::{MergeBase, merge_base, merge_snapshots};
pub use contents::{ContestedFile, FileVersion, MergeContents, NoContents, Verdict, WholeSide};
pub use moves::AdmitMove;
pub use names::side_names;
pub use octopus::{Clash, OctopusPlan, UnmergedSource, plan_octopus};
pub use open_decisions::{DECIDED_KEY, OpenDecision, undecided_after, undecided_before};
pub use record::{MERGE_RECORD_KEY, MergeRecord, RecordedPath};
pub use undecided::{ConflictSubject, Decision, Undecided};
pub use workspaces::{AdmitSource, MergeDone, MergeHeads, MergeHow, MergeRequest};

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::id::{Bare, RootId};
use crate::insight::{RenameOptions, RenameSearch};
use crate::name::TreePath;
use crate::object::Owner;
use crate::store::{Pin, Store};
use crate::time::Time;
use crate::work::WorkingTree;
use cached_tree::CachedTree;
use side::{Side, two_sides};
use units::Units;

/// Maximum number of path groups that merge as units.
const UNITS_MAX: usize = 1_000;

/// Options of a merge.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// The time of the merge, which becomes the mtime of files whose bytes change.
    pub time: Time,
    /// How to search for renames. Similar renames require reading files, exact ones do not.
    pub renames: RenameOptions,
    /// Groups of paths, each including everything below them, that merge as units: if both sides changed any path of a group, the
    /// whole group conflicts. Renames are not tracked inside a group.
    pub units: Vec<Vec<TreePath>>,
    /// Which entries follow a directory that the other side renamed, and which changes a renamed entry; all of them if there is none.
    pub moves: Option<Arc<dyn AdmitMove>>,
}

/// The result of a merge.
pub struct Outcome {
    /// The merged tree: ours, with the changes of theirs as edits. The caller commits or discards it.
    pub tree: WorkingTree,
    /// The conflicts, sorted by path.
    pub conflicts: Vec<PathConflict>,
    /// Further information about the merge.
    pub report: MergeReport,
}

/// A conflict of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConflict {
    /// The path in the merged tree; the root for a state value.
    pub path: TreePath,
    /// The kind of conflict.
    pub kind: ConflictKind,
    /// Related paths: the old path, further paths of the item, the other paths of the unit.
    pub others: Vec<TreePath>,
    /// Whether there is a conflict entry at the path. If not, the tree holds ours or all versions of the item, depending on the
    /// kind, and a user should check it.
    pub is_entry: bool,
    /// For an item whose path the sides disagree on: its path in ours and its path in theirs.
    pub places: [Option<TreePath>; 2],
}

impl PathConflict {
    /// Returns the paths that may have conflict entries: the path of the conflict, and all paths of a unit.
    pub(crate) fn entry_paths(&self) -> impl Iterator<Item = &TreePath> {
        let is_unit = matches!(self.kind, ConflictKind::Unit(_));
        let others = if is_unit { &self.others[..] } else { &[] };
        Some(&self.path).filter(|_| self.is_entry || is_unit).into_iter().chain(others)
    }

    /// Returns the conflict at another of its paths, which has a conflict entry.
    pub(crate) fn at_entry(mut self, path: TreePath) -> Self {
        if path != self.path {
            self.others.retain(|other| *other != path);
            self.others.insert(0, std::mem::replace(&mut self.path, path));
        }
        Self { is_entry: true, ..self }
    }
}

/// The kind of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Both sides changed the contents, and the contents could not be merged.
    Contents,
    /// Both sides added different entries under one name.
    BothAdded,
    /// One side changed an entry that the other removed.
    Removed,
    /// One side has a directory where the other has another kind of entry, or both sides changed the kind.
    Kinds,
    /// Both sides moved the entry, to different paths. It is at both paths.
    MovedTwice,
    /// One side moved an entry that the other removed. It is at the path that it was moved to.
    MovedRemoved,
    /// Two entries were moved, or one moved and one added, to the same path.
    MovedOnto,
    /// It was a conflict before the merge and still is.
    Carried,
    /// A group of paths that both sides changed, by its index in [`MergeOptions::units`].
    Unit(usize),
    /// Both sides set a state value. The tree keeps ours.
    State {
        /// The key.
        key: String,
        /// Their value as JSON text; `None` if they removed it.
        theirs: Option<String>,
    },
    /// Both sides set an attribute. The tree keeps ours.
    Attribute(Attribute),
}

/// An attribute with the value of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The owner; `None` if they reset it.
    Owner(Option<Owner>),
    /// An extended attribute.
    Extended {
        /// The name.
        name: Vec<u8>,
        /// Their value; `None` if they removed it.
        value: Option<Vec<u8>>,
    },
}

/// Maximum number of bytes of a value in a message.
const TOLD_BYTES_MAX: usize = 1_024;

impl ConflictKind {
    /// Returns the name of the kind, for records and messages.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Contents => "contents",
            Self::BothAdded => "both added",
            Self::Removed => "changed and removed",
            Self::Kinds => "different kinds",
            Self::MovedTwice => "moved twice",
            Self::MovedRemoved => "moved and removed",
            Self::MovedOnto => "moved onto",
            Self::Carried => "carried on",
            Self::Unit(_) => "unit",
            Self::State { .. } => "state value",
            Self::Attribute(_) => "attribute",
        }
    }

    /// Describes the value of theirs where the tree keeps ours; empty for conflicts that are entries in the tree.
    pub fn detail(&self) -> String {
        let told = |what: &str, theirs: Option<String>| match theirs {
            Some(mut theirs) => {
                if theirs.len() > TOLD_BYTES_MAX {
                    theirs.truncate(theirs.floor_char_boundary(TOLD_BYTES_MAX));
                    theirs.push('…');
                }
                format!("{what}, theirs {theirs}")
            }
            None => format!("{what}, removed by theirs"),
        };
        match self {
            Self::State { key, theirs } => told(key, theirs.clone()),
            Self::Attribute(Attribute::Owner(owner)) => {
                told("owner", owner.map(|Owner { uid, gid }| format!("{uid}:{gid}")))
            }
            Self::Attribute(Attribute::Extended { name, value }) => {
                let value = value.as_ref().map(|value| value.escape_ascii().to_string());
                told(&name.escape_ascii().to_string(), value)
            }
            _ => String::new(),
        }
    }
}

/// Information about a merge besides its conflicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// The files whose bytes both sides changed, with the strategy that decided each, sorted by path.
    pub files: Vec<FileMerged>,
    /// Number of paths that differ from ours.
    pub changed: u64,
    /// Whether the search for renames was complete, for ours and for theirs.
    pub searches: [RenameSearch; 2],
}

/// A file whose bytes both sides changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMerged {
    /// The path.
    pub path: TreePath,
    /// The name of the strategy that decided it, as reported by the [`MergeContents`].
    pub strategy: String,
    /// The result.
    pub result: FileResult,
    /// The remembered resolution that decided it, if one did.
    pub remembered: Option<Bare>,
}

/// The result for a file that both sides changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are those of `Verdict`")]
pub enum FileResult {
    Merged,
    Ours,
    Theirs,
    Conflict,
}

impl FileResult {
    /// Returns the name of the result.
    pub fn word(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Conflict => "conflict",
        }
    }
}

/// The three trees of a merge, pinned in the store for its duration.
struct Trees {
    store: Store,
    base: Option<CachedTree>,
    ours: CachedTree,
    theirs: CachedTree,
    _pins: Vec<Pin>,
}

impl Trees {
    fn hold(store: &Store, base: Option<RootId>, ours: RootId, theirs: RootId) -> Result<Self> {
        let pins = base.into_iter().chain([ours, theirs]).map(|root| store.hold(root)).collect::<Result<_>>()?;
        let base = base.map(|base| CachedTree::new(store, base)).transpose()?;
        let (ours, theirs) = (CachedTree::new(store, ours)?, CachedTree::new(store, theirs)?);
        Ok(Self { store: store.clone(), base, ours, theirs, _pins: pins })
    }
}

/// A merge in progress.
struct Merge<'a> {
    trees: Trees,
    ours: Side,
    theirs: Side,
    /// Directories of the base that theirs moved, and that are moved as a whole in our tree.
    carried: BTreeSet<TreePath>,
    units: Units<'a>,
    contents: &'a dyn MergeContents,
    options: &'a MergeOptions,
    conflicts: Vec<PathConflict>,
    report: MergeReport,
}

/// Merges theirs into ours. `base` is the common ancestor; `None` for trees without one.
///
/// On an error the store is unchanged.
pub fn merge_trees(
    store: &Store,
    base: Option<RootId>,
    ours: RootId,
    theirs: RootId,
    contents: &dyn MergeContents,
    options: &MergeOptions,
) -> Result<Outcome> {
    if options.units.len() > UNITS_MAX {
        let (value, max) = (options.units.len() as u64, UNITS_MAX as u64);
        return Err(Error::TooLarge { what: "groups of paths", value, max });
    }
    let trees = Trees::hold(store, base, ours, theirs)?;
    let mut tree = WorkingTree::open_root(store, ours)?;
    tree.set_now(options.time);
    for root in base.into_iter().chain([theirs]) {
        tree.keep(root)?;
    }
    let (ours_bare, theirs_bare) = (trees.ours.bare(), trees.theirs.bare());
    if ours_bare == theirs_bare || trees.base.as_ref().is_some_and(|base| base.bare() == theirs_bare) {
        return Ok(Outcome { tree, conflicts: Vec::new(), report: MergeReport::default() });
    }
    let units = Units::new(&options.units);
    let is_fixed = |path: &TreePath| units.is_near(path);
    let moves = options.moves.as_deref();
    let ([our_side, their_side], searches) =
        two_sides(store, base, [ours, theirs], &options.renames, &is_fixed, moves)?;
    let mut merge = Merge {
        trees,
        ours: our_side,
        theirs: their_side,
        carried: BTreeSet::new(),
        units,
        contents,
        options,
        conflicts: Vec::new(),
        report: MergeReport { searches, ..MergeReport::default() },
    };
    merge.run(&mut tree)?;
    let Merge { mut conflicts, mut report, .. } = merge;
    conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    report.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Outcome { tree, conflicts, report })
}

impl Merge<'_> {
    fn run(&mut self, tree: &mut WorkingTree) -> Result<()> {
        let moves = self.whole_moves()?;
        let mut candidates = self.candidates(&moves)?;
        self.decide(&mut candidates)?;
        let layout = self.lay_out(&mut candidates, &moves)?;
        self.apply(tree, &candidates, &layout, &moves)?;
        self.merge_links(tree, &candidates)?;
        self.merge_state(tree)
    }
}
