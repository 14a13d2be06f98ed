//! Merges two changed versions of a sequence: applies the removals and the insertions of both.

use std::hash::Hash;
use std::ops::Range;

use amalgam_textdiff::{Hunk, Interner, Token, token_hunks};

use crate::structure::{Entry, NodeNumbers};

/// A part of the result.
pub(super) enum Stretch {
    /// An element of the base that both sides kept.
    Base(usize),
    /// Insertions of both sides at one position. If `base` is not empty, all three ranges have the same length, and both sides
    /// replaced every element.
    Changed { base: Range<usize>, one: Range<usize>, other: Range<usize> },
}

/// Merges elements of lists. Elements are equal if they have the same meaning.
pub(super) fn entries<'a>(base: &'a [Entry<'a>], one: &'a [Entry<'a>], other: &'a [Entry<'a>]) -> Vec<Stretch> {
    let mut numbers = NodeNumbers::default();
    let tokens = [base, one, other].map(|side| side.iter().map(|entry| numbers.of(&entry.value)).collect::<Vec<_>>());
    weave(&tokens, numbers.count)
}

/// Merges texts by words, and by characters within a word that both sides changed. Insertions of both sides at one position are
/// both kept, unless they are equal.
pub(super) fn text(base: &str, one: &str, other: &str) -> String {
    let [base, one, other] = [base, one, other].map(words);
    let mut merged = String::new();
    for stretch in by_token(&base, &one, &other) {
        match stretch {
            Stretch::Base(at) => merged.push_str(base[at]),
            Stretch::Changed { base: was, one: mine, other: theirs } if !was.is_empty() => {
                let versions = was.zip(mine).zip(theirs);
                versions.for_each(|((at, mine), theirs)| characters(base[at], one[mine], other[theirs], &mut merged));
            }
            Stretch::Changed { one: mine, other: theirs, .. } => {
                let (mine, theirs) = (&one[mine], &other[theirs]);
                merged.extend(mine.iter().copied());
                if mine != theirs {
                    merged.extend(theirs.iter().copied());
                }
            }
        }
    }
    merged
}

fn characters(base: &str, one: &str, other: &str, merged: &mut String) {
    let [base, one, other] = [base, one, other].map(|text| text.chars().collect::<Vec<_>>());
    for stretch in by_token(&base, &one, &other) {
        match stretch {
            Stretch::Base(at) => merged.push(base[at]),
            Stretch::Changed { one: mine, other: theirs, .. } => {
                let (mine, theirs) = (&one[mine], &other[theirs]);
                merged.extend(mine);
                if mine != theirs {
                    merged.extend(theirs);
                }
            }
        }
    }
}

/// Splits a text into words and the single characters between them.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::with_capacity(text.len() / 3);
    let mut start = 0;
    for (at, c) in text.char_indices() {
        if !c.is_alphanumeric() {
            words.extend([&text[start..at], &text[at..at + c.len_utf8()]]);
            start = at + c.len_utf8();
        }
    }
    words.push(&text[start..]);
    words.retain(|word| !word.is_empty());
    words
}

fn by_token<T: Hash + Eq + Copy>(base: &[T], one: &[T], other: &[T]) -> Vec<Stretch> {
    let mut interner = Interner::new(base.len());
    let tokens = [base, one, other].map(|side| side.iter().map(|token| interner.intern(*token)).collect::<Vec<_>>());
    weave(&tokens, interner.num_tokens())
}

fn weave(tokens: &[Vec<Token>; 3], count: u32) -> Vec<Stretch> {
    let [base, one, other] = tokens;
    let (left, right) = (token_hunks(base, one, count), token_hunks(base, other, count));
    let mut stretches = Vec::with_capacity(base.len());
    let (mut mine, mut theirs) = (HunkCursor::new(&left), HunkCursor::new(&right));
    let mut at = 0;
    while at <= base.len() {
        let (one, other) = (mine.inserted(at), theirs.inserted(at));
        let replaced = mine.hunk_at(at).zip(theirs.hunk_at(at)).filter(|(one, other)| {
            let lengths = [one.before.len(), one.after.len(), other.after.len()];
            one.before == other.before && lengths.iter().all(|length| *length == lengths[0] && *length > 0)
        });
        if let Some((hunk, _)) = replaced {
            let base = hunk.before.clone();
            at = base.end;
            stretches.push(Stretch::Changed { base, one, other });
            mine.pass(at);
            theirs.pass(at);
            continue;
        }
        if !one.is_empty() || !other.is_empty() {
            stretches.push(Stretch::Changed { base: 0..0, one, other });
        }
        if at < base.len() && !mine.removes(at) && !theirs.removes(at) {
            stretches.push(Stretch::Base(at));
        }
        at += 1;
        mine.pass(at);
        theirs.pass(at);
    }
    stretches
}

/// The hunks of one side that have not been passed yet.
struct HunkCursor<'a> {
    hunks: &'a [Hunk],
}

impl<'a> HunkCursor<'a> {
    fn new(hunks: &'a [Hunk]) -> Self {
        Self { hunks }
    }

    fn hunk_at(&self, at: usize) -> Option<&'a Hunk> {
        self.hunks.first().filter(|hunk| hunk.before.start == at)
    }

    /// Returns the elements inserted before an element of the base.
    fn inserted(&self, at: usize) -> Range<usize> {
        self.hunk_at(at).map_or(0..0, |hunk| hunk.after.clone())
    }

    fn removes(&self, at: usize) -> bool {
        self.hunks.first().is_some_and(|hunk| hunk.before.contains(&at))
    }

    /// Drops hunks that end at or before this position, except for one that starts here.
    fn pass(&mut self, at: usize) {
        while self.hunks.first().is_some_and(|hunk| hunk.before.end <= at && hunk.before.start < at) {
            self.hunks = &self.hunks[1..];
        }
    }
}
