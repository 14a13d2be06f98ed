//! Two trees that came of one, made one again.
//!
//! [`merge_trees`] takes three roots and gives a working tree over ours. What could not be merged is in it as data: an entry
//! that holds the versions as terms ([`Conflict`](crate::object::Conflict)), which is carried on by whoever works with it and
//! goes away when one side resolves it. The cost is that of what the two sides changed: equal sub-trees are never opened.
//!
//! Things are followed through renames: everything of the base is one thing that each side may have changed, moved or removed.
//! What a thing is and where it lies are merged apart; where two things meet in one place, they are merged as additions.
//!
//! What is absent: any idea of what bytes mean. Files that both sides changed are shown to a [`MergeContents`]; the one in this
//! house, [`NoContents`], leaves them as conflicts.

mod apply;
mod base;
mod chart;
mod contents;
mod entry;
mod links;
mod names;
mod octopus;
mod place;
mod record;
mod remedy;
mod side;
mod state;
mod thing;
mod undecided;
mod workspaces;

pub use base::{MergeBase, merge_base, merge_snapshots};
pub use contents::{Contest, FileVersion, MergeContents, NoContents, Verdict};
pub use names::side_names;
pub use octopus::{Clash, Left, OctopusPlan, plan_octopus};
pub use record::{MERGE_RECORD_KEY, MergeRecord, RecordedPath};
pub use remedy::{Regenerate, Regenerated};
pub(crate) use remedy::{Unlanded, count_conflicts, have_conflicts};
pub use undecided::{DECIDED_KEY, Decision, Matter, OpenMatter, Undecided, undecided_before};
pub use workspaces::{MergeDone, MergeHeads, MergeHow, MergeRequest};

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::id::{Bare, RootId};
use crate::insight::{RenameOptions, RenameSearch};
use crate::name::TreePath;
use crate::object::Owner;
use crate::store::{Pin, Store};
use crate::time::Time;
use crate::work::WorkingTree;
use chart::Chart;
use side::{Side, two_sides};

/// The most groups of paths that merge as units.
const UNITS_MAX: usize = 1_000;

/// How to merge.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// The time of the merge: what files get whose bytes change.
    pub time: Time,
    /// How renames are looked for. Similar ones cost reading files, exact ones nothing.
    pub renames: RenameOptions,
    /// Groups of paths, each with all below them, that merge as units: when both sides changed something in one, all of it
    /// conflicts. Nothing is followed through renames in them.
    pub units: Vec<Vec<TreePath>>,
}

/// What a merge came to.
pub struct Outcome {
    /// The merged tree: ours, with what came of theirs as edits. To be committed, or thrown away.
    pub tree: WorkingTree,
    /// What could not be merged, sorted by path.
    pub conflicts: Vec<PathConflict>,
    /// What else there is to say.
    pub report: MergeReport,
}

/// Something that could not be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConflict {
    /// Where it is in the merged tree; for a state value, the root.
    pub path: TreePath,
    /// What is wrong.
    pub kind: ConflictKind,
    /// Other paths that have to do with it: where it was, where else it is, what else is in the unit.
    pub others: Vec<TreePath>,
    /// Whether a conflict entry is at the path. Where there is none, the tree holds all that there is, and a person should look.
    pub is_entry: bool,
    /// Of a thing that lies where a side did not want it: where ours wants it, and where theirs does.
    pub places: [Option<TreePath>; 2],
}

/// The kinds of conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Both changed the contents, and they could not be merged.
    Contents,
    /// Both added something else under one name.
    BothAdded,
    /// One changed what the other removed.
    Removed,
    /// One has a directory where the other has something else, or both made it another kind.
    Kinds,
    /// Both moved it, to different places. It is in both.
    MovedTwice,
    /// One moved what the other removed. It is where it was moved to.
    MovedRemoved,
    /// Two things were moved, or moved and added, to one name.
    MovedOnto,
    /// It was a conflict before, and still is.
    Carried,
    /// A group of paths that both changed; the number is its place among the units.
    Unit(usize),
    /// Both set a state value. Ours stays.
    State {
        /// Its key.
        key: String,
        /// Their value as JSON text; nothing when they removed it.
        theirs: Option<String>,
    },
    /// Both set an attribute. Ours stays.
    Attribute(Attribute),
}

/// An attribute as the other side has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The owner; nothing when they took it away.
    Owner(Option<Owner>),
    /// An extended attribute.
    Extended {
        /// Its name.
        name: Vec<u8>,
        /// Their value; nothing when they removed it.
        value: Option<Vec<u8>>,
    },
}

/// The most bytes of a value that are told.
const TOLD_BYTES_MAX: usize = 1_024;

impl ConflictKind {
    /// A word for it, for records and messages.
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

    /// What theirs is where ours stays; empty for what lies in the tree.
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

/// What a merge did beside its conflicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// The files whose bytes both sides changed, with the way in which each was decided, sorted by path.
    pub files: Vec<FileMerged>,
    /// How many paths are other than ours.
    pub changed: u64,
    /// Whether all renames of ours and of theirs were looked for.
    pub searches: [RenameSearch; 2],
}

/// A file whose bytes both sides changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMerged {
    /// Where it is.
    pub path: TreePath,
    /// How it was decided, in the words of whoever did.
    pub way: String,
    /// What came of it.
    pub result: FileResult,
    /// The remembered resolution that decided it, if one did.
    pub remembered: Option<Bare>,
}

/// What came of a file that both sides changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are those of `Verdict`")]
pub enum FileResult {
    Merged,
    Ours,
    Theirs,
    Conflict,
}

impl FileResult {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Conflict => "conflict",
        }
    }
}

/// The three trees of a merge, kept in the store while it lasts.
struct Trees {
    store: Store,
    base: Option<Chart>,
    ours: Chart,
    theirs: Chart,
    _pins: Vec<Pin>,
}

impl Trees {
    fn hold(store: &Store, base: Option<RootId>, ours: RootId, theirs: RootId) -> Result<Self> {
        let pins = base.into_iter().chain([ours, theirs]).map(|root| store.hold(root)).collect::<Result<_>>()?;
        let base = base.map(|base| Chart::new(store, base)).transpose()?;
        let (ours, theirs) = (Chart::new(store, ours)?, Chart::new(store, theirs)?);
        Ok(Self { store: store.clone(), base, ours, theirs, _pins: pins })
    }
}

/// A merge under way.
struct Merge<'a> {
    trees: Trees,
    ours: Side,
    theirs: Side,
    /// Directories of the base that they moved, and that move as they are in our tree.
    carried: BTreeSet<TreePath>,
    contents: &'a dyn MergeContents,
    options: &'a MergeOptions,
    conflicts: Vec<PathConflict>,
    report: MergeReport,
}

/// Merges theirs into ours; the base is what both came of, nothing for trees that have nothing in common.
///
/// An error leaves the store as it was.
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
    let is_fixed = |path: &TreePath| {
        let near = |unit: &TreePath| path.below(unit).is_some() || unit.below(path).is_some();
        options.units.iter().flatten().any(near)
    };
    let ([our_side, their_side], searches) = two_sides(store, base, [ours, theirs], &options.renames, &is_fixed)?;
    let mut merge = Merge {
        trees,
        ours: our_side,
        theirs: their_side,
        carried: BTreeSet::new(),
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
        let mut things = self.things(&moves)?;
        self.decide(&mut things)?;
        let layout = self.lay_out(&mut things, &moves)?;
        self.apply(tree, &things, &layout, &moves)?;
        self.merge_links(tree, &things)?;
        self.merge_state(tree)
    }
}
