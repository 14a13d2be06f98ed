//! Totals over all changes between two trees.

use std::collections::BTreeMap;

use super::file::{Contents, FileInsight};
use super::similar::RenameSearch;
use crate::diff::What;
use crate::object::{EntryKind, Node};

/// The number of changes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Added.
    pub added: u64,
    /// Removed.
    pub removed: u64,
    /// With different contents.
    pub modified: u64,
    /// Renamed, with or without different contents.
    pub renamed: u64,
    /// With a different kind of entry.
    pub kind_changed: u64,
    /// With only attributes that differ.
    pub metadata: u64,
}

impl Counts {
    /// Returns the total number of changes.
    pub fn total(self) -> u64 {
        self.added + self.removed + self.modified + self.renamed + self.kind_changed + self.metadata
    }

    fn count(&mut self, what: &What) {
        let field = match what {
            What::Added => &mut self.added,
            What::Removed => &mut self.removed,
            What::Modified => &mut self.modified,
            What::Renamed { .. } => &mut self.renamed,
            What::KindChanged => &mut self.kind_changed,
            What::Metadata => &mut self.metadata,
        };
        *field += 1;
    }
}

/// The changes in one language.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LanguageCounts {
    /// Number of files.
    pub files: u64,
    /// Number of added lines.
    pub lines_added: u64,
    /// Number of removed lines.
    pub lines_removed: u64,
}

/// Totals of changes: of those returned so far during the iteration, of all at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// All entries except directories. A change between a directory and another kind counts here.
    pub files: Counts,
    /// Directories. One that moved as a whole is one change, regardless of its contents.
    pub directories: Counts,
    /// Number of added lines of text.
    pub lines_added: u64,
    /// Number of removed lines of text.
    pub lines_removed: u64,
    /// Total size of the changed files before, in bytes.
    pub bytes_before: u64,
    /// Total size of the changed files after, in bytes.
    pub bytes_after: u64,
    /// Number of files that were compared as binary.
    pub binary: u64,
    /// Number of files above the limit, for which only the bytes are counted.
    pub too_large: u64,
    /// Number of symlinks that were added, removed or retargeted.
    pub symlinks: u64,
    /// Number of new or changed conflicts in the tree after.
    pub conflicts: u64,
    /// Number of files whose permission bits changed.
    pub modes: u64,
    /// Changes per language, for files whose name identifies it.
    pub languages: BTreeMap<&'static str, LanguageCounts>,
    /// Number of hints of each kind, by [name](super::RiskHint::word).
    pub risks: BTreeMap<&'static str, u64>,
    /// Total weight of all hints.
    pub risk_weight: u64,
    /// Number of added bytes that were not searched for credentials because of the limit per file.
    pub unscanned_bytes: u64,
    /// The completeness of the search for renames.
    pub renames: RenameSearch,
}

impl Summary {
    /// Returns the weight of the change as a simple sum: the larger, the more there is to review.
    ///
    /// ```text
    /// lines_added + lines_removed
    ///   + 10 x (files added + files removed + files of another kind + binary + too_large)
    ///   + 2 x (files renamed + files with other attributes only + directories changed)
    ///   + 100 x conflicts + risk_weight
    /// ```
    ///
    /// A reward function may subtract a share of it. Equal trees score 0.
    pub fn score(&self) -> u64 {
        let lines = self.lines_added + self.lines_removed;
        let whole = self.files.added + self.files.removed + self.files.kind_changed + self.binary + self.too_large;
        let light = self.files.renamed + self.files.metadata + self.directories.total();
        lines + 10 * whole + 2 * light + 100 * self.conflicts + self.risk_weight
    }

    pub(super) fn count(&mut self, file: &FileInsight) {
        let change = &file.change;
        let (before, after) = file.kinds();
        let only_directories = [before, after].into_iter().flatten().all(|kind| kind == EntryKind::Directory);
        let counts = if only_directories { &mut self.directories } else { &mut self.files };
        counts.count(&change.what);
        self.bytes_before += file.bytes_before;
        self.bytes_after += file.bytes_after;
        self.modes += u64::from(change.metadata.mode && !only_directories);
        self.unscanned_bytes += file.unscanned_bytes;
        let is_symlink = [before, after].contains(&Some(EntryKind::Symlink));
        self.symlinks += u64::from(is_symlink && file.contents != Contents::Same);
        let conflicted = matches!(change.after.as_ref().map(|entry| &entry.node), Some(Node::Conflict(_)));
        self.conflicts += u64::from(conflicted);
        let (mut added, mut removed) = (0, 0);
        match file.contents {
            Contents::Text { lines_added, lines_removed } => (added, removed) = (lines_added, lines_removed),
            Contents::Binary => self.binary += 1,
            Contents::TooLarge => self.too_large += 1,
            Contents::Same | Contents::None | Contents::Purged => {}
        }
        self.lines_added += added;
        self.lines_removed += removed;
        if let Some(language) = file.language {
            let counts = self.languages.entry(language).or_default();
            counts.files += 1;
            counts.lines_added += added;
            counts.lines_removed += removed;
        }
        for risk in &file.risks {
            *self.risks.entry(risk.hint.word()).or_default() += 1;
            self.risk_weight += risk.hint.weight();
        }
    }
}
