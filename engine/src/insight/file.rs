//! The analysis of one change.

use amalgam_textdiff::{byte_ranges, count_lines, rough_line_hunks};

use super::InsightOptions;
use super::body;
use super::language::language;
use super::risk::{Risk, RiskHint, outer_risks};
use super::secret;
use super::similar::DetectedChange;
use crate::diff::{Change, What};
use crate::error::{Error, Result};
use crate::object::{Entry, EntryKind, Node};
use crate::store::Store;

/// Maximum number of credentials that are reported per file.
const CREDENTIALS_MAX: usize = 16;

/// One change with its analysis.
#[derive(Clone, Debug, PartialEq)]
pub struct FileInsight {
    /// The path, the kind of change and both entries. A renamed file may have different contents too.
    pub change: Change,
    /// For a rename, the similarity of the two files in percent; 100 for equal contents.
    pub similarity: Option<u8>,
    /// The difference of the contents.
    pub contents: Contents,
    /// The size before, in bytes: of a file, or of a symlink's target.
    pub bytes_before: u64,
    /// The size after, in bytes.
    pub bytes_after: u64,
    /// The language of the file, if its name identifies it.
    pub language: Option<&'static str>,
    /// The risks that a reviewer should check.
    pub risks: Vec<Risk>,
    /// The number of added bytes that were not searched for credentials.
    pub unscanned_bytes: u64,
}

/// The difference between the contents of two sides. A symlink's target is a text of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Compared line by line.
    Text {
        /// Lines that only the side after has.
        lines_added: u64,
        /// Lines that only the side before has.
        lines_removed: u64,
    },
    /// Compared as bytes: one side has a NUL among its first 8,000 bytes.
    Binary,
    /// Only the sizes are known: one side is above the limit and was not read.
    TooLarge,
    /// Unknown: the bytes of one side were purged.
    Purged,
    /// Equal contents, not read.
    Same,
    /// Neither side has contents: directories, FIFOs, devices, conflicts.
    None,
}

impl FileInsight {
    /// Returns the entry kinds before and after.
    pub fn kinds(&self) -> (Option<EntryKind>, Option<EntryKind>) {
        let kind = |entry: &Option<Entry>| entry.as_ref().map(Entry::kind);
        (kind(&self.change.before), kind(&self.change.after))
    }

    /// Analyses a change.
    pub(super) fn of(store: &Store, found: DetectedChange, options: &InsightOptions) -> Result<Self> {
        let DetectedChange { change, similarity } = found;
        let size = |entry: &Option<Entry>| entry.as_ref().map_or(0, body::size);
        let (bytes_before, bytes_after) = (size(&change.before), size(&change.after));
        let mut risks = outer_risks(&change, options.growth);
        let mut unscanned_bytes = 0;
        let contents = match sides(&change) {
            Sides::None => Contents::None,
            Sides::Same => Contents::Same,
            Sides::Differ if bytes_before.max(bytes_after) > options.file_bytes_max => Contents::TooLarge,
            Sides::Differ => {
                let load = |entry: &Option<Entry>| entry.as_ref().map(|entry| body::load(store, entry)).transpose();
                let loaded = load(&change.before).and_then(|before| Ok((before, load(&change.after)?)));
                let (is_purged, (before, after)) = match loaded {
                    Err(Error::Purged { .. }) => (true, (None, None)),
                    other => (false, other?),
                };
                let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
                if is_purged {
                    Contents::Purged
                } else if body::is_binary(&before) || body::is_binary(&after) {
                    Contents::Binary
                } else {
                    let text = compare(&before, &after, options.scan_bytes_max);
                    unscanned_bytes = text.unscanned_bytes;
                    risks.extend(text.credentials.into_iter().map(|hint| Risk { path: change.path.clone(), hint }));
                    text.contents
                }
            }
        };
        let new = change.before.is_none() || change.what == What::KindChanged;
        if contents == Contents::Binary && new && bytes_after > 0 {
            risks.push(Risk { path: change.path.clone(), hint: RiskHint::BinaryAdded { bytes: bytes_after } });
        }
        let is_file =
            [&change.before, &change.after].into_iter().flatten().any(|entry| matches!(entry.node, Node::File { .. }));
        let language = if is_file { language(&change.path) } else { None };
        Ok(Self { change, similarity, contents, bytes_before, bytes_after, language, risks, unscanned_bytes })
    }
}

enum Sides {
    None,
    Same,
    Differ,
}

fn sides(change: &Change) -> Sides {
    let has_bytes = |entry: &&Entry| matches!(entry.node, Node::File { .. } | Node::Symlink(_));
    let before = change.before.as_ref().filter(has_bytes);
    let after = change.after.as_ref().filter(has_bytes);
    match (before, after) {
        (None, None) => Sides::None,
        (Some(before), Some(after)) if before.node == after.node => Sides::Same,
        _ => Sides::Differ,
    }
}

struct Text {
    contents: Contents,
    credentials: Vec<RiskHint>,
    unscanned_bytes: u64,
}

fn compare(before: &[u8], after: &[u8], scan_bytes_max: usize) -> Text {
    let hunks = match (before, after) {
        // Nothing to compare: all lines of the other side count.
        ([], _) | (_, []) => Vec::new(),
        _ => rough_line_hunks(before, after),
    };
    let (lines_added, lines_removed, added) = match (before, after) {
        ([], _) => (count_lines(after), 0, vec![(0, 0..after.len())]),
        (_, []) => (0, count_lines(before), Vec::new()),
        _ => {
            let added: usize = hunks.iter().map(|hunk| hunk.after.len()).sum();
            let removed: usize = hunks.iter().map(|hunk| hunk.before.len()).sum();
            let ranges = byte_ranges(after, hunks.iter().map(|hunk| hunk.after.clone()));
            let starts = hunks.iter().filter(|hunk| !hunk.after.is_empty()).map(|hunk| hunk.after.start);
            (added as u64, removed as u64, starts.zip(ranges).collect())
        }
    };
    let (mut credentials, mut left, mut unscanned_bytes) = (Vec::new(), scan_bytes_max, 0);
    for (line, range) in added {
        let text = &after[range];
        let scanned = text.len().min(left);
        left -= scanned;
        unscanned_bytes += (text.len() - scanned) as u64;
        for finding in secret::find(&text[..scanned], CREDENTIALS_MAX - credentials.len()) {
            let line = (line + finding.line + 1) as u64;
            credentials.push(RiskHint::Credential { shape: finding.shape, line });
        }
    }
    Text { contents: Contents::Text { lines_added, lines_removed }, credentials, unscanned_bytes }
}
