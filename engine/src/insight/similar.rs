//! Rename detection by similarity: pairs of a removed and an added file with mostly equal lines.
//!
//! It follows Git: exact renames first, then files whose file name is unique on both sides, then the best of all pairs.
//! Similarity is estimated: a file is a multiset of spans (lines, cut every 64 bytes), and the number of bytes in common spans
//! approximates the amount of copied text. The cost is bounded by pairs and by bytes, and the result reports when a bound was
//! reached.

use std::collections::{BTreeMap, HashMap};

use rayon::prelude::*;

use super::body;
use crate::diff::{Change, DiffOptions, Kinds, MetadataChange, What, find_renames};
use crate::error::{Error, Result};
use crate::id::RootId;
use crate::name::{Name, TreePath};
use crate::object::{Entry, Node};
use crate::store::Store;

/// Options and limits of the search for renames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameOptions {
    /// Minimum similarity, in percent, for a removed and an added file to count as a rename. With 100 or more, only exact renames
    /// are found.
    pub percent_min: u8,
    /// Maximum number of pairs of removed and added files to compare. Above it, only unique file names are matched.
    pub pairs_max: u64,
    /// Maximum number of bytes read for the comparison.
    pub bytes_max: u64,
    /// Larger files are only matched exactly.
    pub file_bytes_max: u64,
}

impl Default for RenameOptions {
    fn default() -> Self {
        Self { percent_min: 50, pairs_max: 1_000_000, bytes_max: 256 << 20, file_bytes_max: 16 << 20 }
    }
}

/// The completeness of the search for renames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameSearch {
    /// The search was turned off.
    #[default]
    Off,
    /// All candidates within the options were compared.
    Complete,
    /// There were too many candidates: similar renames among them are listed as removed and added.
    Limited {
        /// Number of removed files without a partner when the bound was reached.
        removed: u64,
        /// Number of added files without a partner when the bound was reached.
        added: u64,
    },
}

/// A change and, for a rename, the similarity of the two sides in percent.
#[derive(Clone, Debug)]
pub(super) struct DetectedChange {
    pub(super) change: Change,
    pub(super) similarity: Option<u8>,
}

/// Returns all changes between two trees with renames, sorted by path.
pub(super) fn changes(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    diff: DiffOptions,
    options: &RenameOptions,
) -> Result<(Vec<DetectedChange>, RenameSearch)> {
    of_kinds(store, before, after, diff, options, Kinds::OneChange)
}

/// Returns all changes between two trees with renames, sorted by path. `kinds` selects how changes between directories and other
/// kinds are reported.
pub(super) fn of_kinds(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    diff: DiffOptions,
    options: &RenameOptions,
    kinds: Kinds,
) -> Result<(Vec<DetectedChange>, RenameSearch)> {
    let exact = find_renames(store, before, after, diff, kinds)?.into_iter().map(|change| {
        let similarity = matches!(change.what, What::Renamed { .. }).then_some(100);
        DetectedChange { change, similarity }
    });
    let mut found: Vec<DetectedChange> = exact.collect();
    if options.percent_min >= 100 {
        return Ok((found, RenameSearch::Complete));
    }
    let mut search = Search::new(store, &found, options);
    search.unique_names()?;
    let outcome = search.best_pairs()?;
    let matched = search.matched;
    join(&mut found, &matched, diff);
    Ok((found, outcome))
}

/// The scale of scores, as in Git. Percentages are derived from it.
const SCORE_MAX: u64 = 60_000;
/// Number of best sources that are kept for each target.
const CANDIDATES_EACH: usize = 4;

/// A removed or an added file without a partner.
struct Candidate {
    /// The index of its change.
    change: usize,
    name: Name,
    entry: Entry,
    size: u64,
    spans: Option<Spans>,
    taken: bool,
}

struct Search<'a> {
    store: &'a Store,
    score_min: u64,
    pairs_max: u64,
    bytes_left: u64,
    removed: Vec<Candidate>,
    added: Vec<Candidate>,
    matched: Vec<Matched>,
    /// Whether the limit on bytes prevented a comparison.
    short: bool,
}

/// The indices of the two changes, and their score.
struct Matched {
    removed: usize,
    added: usize,
    score: u64,
}

impl<'a> Search<'a> {
    fn new(store: &'a Store, found: &[DetectedChange], options: &RenameOptions) -> Self {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let size_max = options.file_bytes_max.min(u64::from(u32::MAX));
        for (index, DetectedChange { change, .. }) in found.iter().enumerate() {
            let (entry, side) = match (&change.what, &change.before, &change.after) {
                (What::Removed, Some(entry), _) => (entry, &mut removed),
                (What::Added, _, Some(entry)) => (entry, &mut added),
                _ => continue,
            };
            let Some((_, name)) = change.path.split_last() else { continue };
            match entry.node {
                Node::File { size: size @ 1.., .. } if size <= size_max => {
                    side.push(Candidate { change: index, name, entry: entry.clone(), size, spans: None, taken: false })
                }
                _ => {}
            }
        }
        let score_min = SCORE_MAX * u64::from(options.percent_min) / 100;
        let (pairs_max, bytes_left) = (options.pairs_max, options.bytes_max);
        Self { store, score_min, pairs_max, bytes_left, removed, added, matched: Vec::new(), short: false }
    }

    /// Matches files whose file name occurs exactly once on each side. Requires a higher score than other matches, because only
    /// the name selected the pair.
    fn unique_names(&mut self) -> Result<()> {
        let score_min = self.score_min + (SCORE_MAX - self.score_min) / 2;
        let by_name = unique(&self.removed);
        let mut pairs = Vec::new();
        for (name, added) in unique(&self.added) {
            let Some(removed) = by_name.get(name) else { continue };
            let (ours, theirs) = (&self.removed[*removed], &self.added[added]);
            if !sizes_allow(ours.size, theirs.size, score_min) {
                continue;
            }
            match self.bytes_left.checked_sub(ours.size + theirs.size) {
                Some(left) => self.bytes_left = left,
                None => {
                    self.short = true;
                    break;
                }
            }
            pairs.push((*removed, added));
        }
        let (removed, added): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        read_spans(self.store, &mut self.removed, &removed)?;
        read_spans(self.store, &mut self.added, &added)?;
        for (removed, added) in pairs {
            let score = score(&self.removed[removed], &self.added[added]);
            if score >= score_min {
                self.take(removed, added, score);
            }
        }
        Ok(())
    }

    /// Compares all remaining removed files with all remaining added files and takes the best pairs first.
    fn best_pairs(&mut self) -> Result<RenameSearch> {
        let (removed, added) = self.left();
        let outcome = if self.short { self.limited() } else { RenameSearch::Complete };
        if removed.is_empty() || added.is_empty() {
            return Ok(outcome);
        }
        let unread = |side: &[Candidate], left: &[usize]| -> u64 {
            left.iter().map(|index| &side[*index]).filter(|one| one.spans.is_none()).map(|one| one.size).sum()
        };
        let bytes = unread(&self.removed, &removed).saturating_add(unread(&self.added, &added));
        if removed.len() as u64 * added.len() as u64 > self.pairs_max || bytes > self.bytes_left {
            return Ok(self.limited());
        }
        read_spans(self.store, &mut self.removed, &removed)?;
        read_spans(self.store, &mut self.added, &added)?;
        let mut pairs = self.score_all(&removed, &added);
        // The sort is stable: of pairs with an equal score the first by path wins.
        pairs.sort_by_key(|pair| std::cmp::Reverse((pair.score, pair.same_name)));
        for pair in pairs {
            if !self.removed[pair.removed].taken && !self.added[pair.added].taken {
                self.take(pair.removed, pair.added, pair.score);
            }
        }
        Ok(outcome)
    }

    /// Returns the files without a partner for which the sizes allow one.
    fn left(&self) -> (Vec<usize>, Vec<usize>) {
        let free = |side: &[Candidate]| -> Vec<usize> { (0..side.len()).filter(|index| !side[*index].taken).collect() };
        let (removed, added) = (free(&self.removed), free(&self.added));
        let sizes = |side: &[Candidate], left: &[usize]| -> Vec<u64> {
            let mut sizes: Vec<_> = left.iter().map(|index| side[*index].size).collect();
            sizes.sort_unstable();
            sizes
        };
        let (removed_sizes, added_sizes) = (sizes(&self.removed, &removed), sizes(&self.added, &added));
        let could = |size: u64, others: &[u64]| {
            let nearest = others.partition_point(|other| *other < size);
            let around = others[nearest.saturating_sub(1)..].iter().take(2);
            around.into_iter().any(|other| sizes_allow(size, *other, self.score_min))
        };
        let keep = |side: &[Candidate], left: Vec<usize>, others: &[u64]| -> Vec<usize> {
            left.into_iter().filter(|index| could(side[*index].size, others)).collect()
        };
        (keep(&self.removed, removed, &added_sizes), keep(&self.added, added, &removed_sizes))
    }

    fn limited(&self) -> RenameSearch {
        let (removed, added) = self.left();
        RenameSearch::Limited { removed: removed.len() as u64, added: added.len() as u64 }
    }

    /// Returns the best partners of each added file. Files without a common span are never paired.
    fn score_all(&self, removed: &[usize], added: &[usize]) -> Vec<Pair> {
        let mut index: Vec<(u32, u32, u32)> = Vec::new();
        for (at, removed) in (0..).zip(removed) {
            let spans = self.removed[*removed].spans.iter().flat_map(|spans| &spans.0);
            index.extend(spans.map(|(hash, bytes)| (*hash, at, *bytes)));
        }
        index.par_sort_unstable();
        let best_of = |added: &usize| {
            let target = &self.added[*added];
            let mut shared = vec![0_u64; removed.len()];
            let mut rest = &index[..];
            for (hash, bytes) in target.spans.iter().flat_map(|spans| &spans.0) {
                rest = &rest[rest.partition_point(|(other, ..)| other < hash)..];
                for (_, at, other) in rest.iter().take_while(|(other, ..)| other == hash) {
                    shared[*at as usize] += u64::from(*bytes.min(other));
                }
            }
            let mut best = Vec::new();
            for (at, shared) in shared.into_iter().enumerate().filter(|(_, shared)| *shared > 0) {
                let source = &self.removed[removed[at]];
                let score = shared * SCORE_MAX / source.size.max(target.size);
                if score >= self.score_min {
                    let same_name = source.name == target.name;
                    best.push(Pair { removed: removed[at], added: *added, score, same_name });
                }
            }
            best.sort_by_key(|pair| std::cmp::Reverse((pair.score, pair.same_name)));
            best.truncate(CANDIDATES_EACH);
            best
        };
        added.par_iter().map(best_of).collect::<Vec<_>>().into_iter().flatten().collect()
    }

    fn take(&mut self, removed: usize, added: usize, score: u64) {
        self.removed[removed].taken = true;
        self.added[added].taken = true;
        self.matched.push(Matched { removed: self.removed[removed].change, added: self.added[added].change, score });
    }
}

struct Pair {
    removed: usize,
    added: usize,
    score: u64,
    same_name: bool,
}

/// Returns the candidates whose file name is unique on their side, by name.
fn unique(side: &[Candidate]) -> BTreeMap<&Name, usize> {
    let mut names: BTreeMap<&Name, Option<usize>> = BTreeMap::new();
    for (index, candidate) in side.iter().enumerate() {
        names.entry(&candidate.name).and_modify(|there| *there = None).or_insert(Some(index));
    }
    names.into_iter().filter_map(|(name, index)| Some((name, index?))).collect()
}

/// Returns whether two files of these sizes can reach this score.
fn sizes_allow(ours: u64, theirs: u64, score_min: u64) -> bool {
    ours.min(theirs) * SCORE_MAX >= ours.max(theirs) * score_min
}

fn read_spans(store: &Store, side: &mut [Candidate], wanted: &[usize]) -> Result<()> {
    let read: Vec<(usize, Spans)> = wanted
        .par_iter()
        .filter(|index| side[**index].spans.is_none())
        .map(|index| match body::load(store, &side[*index].entry) {
            // A purged file has no spans, so it matches no other file.
            Err(Error::Purged { .. }) => Ok((*index, Spans::of(&[]))),
            bytes => Ok((*index, Spans::of(&bytes?))),
        })
        .collect::<Result<_>>()?;
    for (index, spans) in read {
        side[index].spans = Some(spans);
    }
    Ok(())
}

fn score(ours: &Candidate, theirs: &Candidate) -> u64 {
    let (Some(our_spans), Some(their_spans)) = (&ours.spans, &theirs.spans) else { return 0 };
    our_spans.shared_bytes(their_spans) * SCORE_MAX / ours.size.max(theirs.size)
}

/// Merges each matched pair into one change and drops the removed side.
fn join(found: &mut Vec<DetectedChange>, matched: &[Matched], diff: DiffOptions) {
    let mut sources: HashMap<usize, (TreePath, Entry)> = HashMap::new();
    let mut gone = vec![false; found.len()];
    for one in matched {
        let change = &found[one.removed].change;
        if let Some(entry) = &change.before {
            sources.insert(one.added, (change.path.clone(), entry.clone()));
            gone[one.removed] = true;
        }
    }
    for one in matched {
        let Some((from, before)) = sources.remove(&one.added) else { continue };
        let there = &mut found[one.added];
        if let Some(after) = &there.change.after {
            there.change.metadata = MetadataChange::between(&before, after, diff.times);
        }
        there.change.what = What::Renamed { from };
        there.change.before = Some(before);
        // The score is an estimate and does not prove equal contents: 100 is reserved for exact renames.
        there.similarity = Some((one.score * 100 / SCORE_MAX).min(99) as u8);
    }
    let mut gone = gone.into_iter();
    found.retain(|_| !gone.next().unwrap_or(false));
}

/// A file as a multiset of spans: the hash of each span with its number of bytes, sorted.
struct Spans(Vec<(u32, u32)>);

const SPAN_BYTES_MAX: usize = 64;

impl Spans {
    /// Computes the spans: lines without terminators, cut every 64 bytes, so that other line endings do not change them.
    fn of(bytes: &[u8]) -> Self {
        let mut spans: Vec<(u32, u32)> = Vec::with_capacity(bytes.len() / 24);
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes).chain(std::iter::once(bytes.len())) {
            let line = &bytes[start..end];
            let ended = u32::from(end < bytes.len());
            let line = if ended == 1 { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
            start = end + 1;
            let mut rest = line;
            while rest.len() > SPAN_BYTES_MAX {
                let (span, behind) = rest.split_at(SPAN_BYTES_MAX);
                spans.push((hash(span), SPAN_BYTES_MAX as u32));
                rest = behind;
            }
            if !rest.is_empty() || ended == 1 {
                spans.push((hash(rest), rest.len() as u32 + ended));
            }
        }
        spans.sort_unstable_by_key(|(hash, _)| *hash);
        spans.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        Self(spans)
    }

    fn shared_bytes(&self, other: &Self) -> u64 {
        let mut theirs = other.0.iter().peekable();
        let mut shared = 0;
        for (hash, bytes) in &self.0 {
            while theirs.next_if(|(other, _)| other < hash).is_some() {}
            if let Some((_, other)) = theirs.next_if(|(other, _)| other == hash) {
                shared += u64::from(*bytes.min(other));
            }
        }
        shared
    }
}

/// Returns a short, fast, platform-independent hash. A collision only makes two files look slightly more similar.
fn hash(span: &[u8]) -> u32 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = span.as_chunks::<8>();
    let mut mixed = span.len() as u64;
    for word in words {
        mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(last)).wrapping_mul(PRIME);
    ((mixed ^ (mixed >> 29)).wrapping_mul(PRIME) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(ours: &[u8], theirs: &[u8]) -> u64 {
        Spans::of(ours).shared_bytes(&Spans::of(theirs)) * 100 / ours.len().max(theirs.len()) as u64
    }

    #[test]
    fn what_is_shared_counts_in_bytes() {
        assert_eq!(percent(b"one\ntwo\nsix\nten\n", b"one\ntwo\nsix\nten\n"), 100);
        assert_eq!(percent(b"one\ntwo\nsix\nten\n", b"ten\nsix\none\nxxx\n"), 75);
        assert_eq!(percent(b"one\ntwo\n", b"1\n2\n"), 0);
        assert_eq!(percent(b"a\na\na\na\n", b"a\n"), 25);
        assert_eq!(percent(&[b'x'; 640], &[b'x'; 320]), 50);
    }

    #[test]
    fn other_line_ends_do_not_make_another_file() {
        assert!(percent(b"one line\nand more\n", b"one line\r\nand more\r\n") > 85);
    }

    #[test]
    fn sizes_rule_pairs_out() {
        let half = SCORE_MAX / 2;
        assert!(sizes_allow(50, 100, half) && sizes_allow(100, 50, half));
        assert!(!sizes_allow(49, 100, half));
    }
}
