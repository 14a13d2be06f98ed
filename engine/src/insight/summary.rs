//! All changes of two trees in a few numbers.

use std::collections::BTreeMap;

use super::file::{Contents, FileInsight};
use super::similar::RenameSearch;
use crate::diff::What;
use crate::object::{EntryKind, Node};

/// How many changes there were of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// New.
    pub added: u64,
    /// Gone.
    pub removed: u64,
    /// With other contents.
    pub modified: u64,
    /// Under another name, with or without other contents.
    pub renamed: u64,
    /// Of another kind than before.
    pub kind_changed: u64,
    /// With other attributes and nothing else.
    pub metadata: u64,
}

impl Counts {
    /// All of them.
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

/// What changed in one language.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LanguageCounts {
    /// Files.
    pub files: u64,
    /// Lines that are new.
    pub lines_added: u64,
    /// Lines that are gone.
    pub lines_removed: u64,
}

/// Changes in numbers: of those seen so far while they are being read, of all at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Everything but directories. What changed between a directory and something else counts here.
    pub files: Counts,
    /// Directories. One that moved as a whole is one change, whatever lies below it.
    pub directories: Counts,
    /// Lines of text that are new.
    pub lines_added: u64,
    /// Lines of text that are gone.
    pub lines_removed: u64,
    /// Bytes of the files that changed, before.
    pub bytes_before: u64,
    /// Bytes of the files that changed, after.
    pub bytes_after: u64,
    /// Files that were compared as binary.
    pub binary: u64,
    /// Files above the limit, of which only the bytes are counted.
    pub too_large: u64,
    /// Symlinks that are new, gone or lead elsewhere.
    pub symlinks: u64,
    /// Conflicts in the tree after that are new or changed.
    pub conflicts: u64,
    /// Files whose permission bits changed.
    pub modes: u64,
    /// By language, for the files whose name tells it.
    pub languages: BTreeMap<&'static str, LanguageCounts>,
    /// How often each hint was given, by its [word](super::RiskHint::word).
    pub risks: BTreeMap<&'static str, u64>,
    /// The weights of all hints together.
    pub risk_weight: u64,
    /// Added bytes that were not searched for credentials, because a file had too many.
    pub unscanned_bytes: u64,
    /// Whether all renames were looked for.
    pub renames: RenameSearch,
}

impl Summary {
    /// How heavy the change is, as plain arithmetic: the larger, the more there is to review.
    ///
    /// `lines_added + lines_removed`
    /// `+ 10 x (files added + files removed + files of another kind + binary + too_large)`
    /// `+ 2 x (files renamed + files with other attributes only + directories changed)`
    /// `+ 100 x conflicts + risk_weight`
    ///
    /// A reward function may subtract a share of it; equal trees score 0.
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
