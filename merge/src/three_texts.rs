//! Three versions of a text as numbered lines.

use amalgam_textdiff::{Interner, Token, split_lines};

/// Three texts split into lines, with a token for each line. Equal lines have equal tokens.
pub(crate) struct ThreeTexts<'a> {
    pub(crate) lines: [Vec<&'a [u8]>; 3],
    tokens: [Vec<Token>; 3],
    count: u32,
}

pub(crate) const BASE: usize = 0;
pub(crate) const OURS: usize = 1;
pub(crate) const THEIRS: usize = 2;

impl<'a> ThreeTexts<'a> {
    pub(crate) fn new(texts: [&'a [u8]; 3]) -> Self {
        let lines = texts.map(split_lines);
        let mut interner = Interner::new(lines[BASE].len() + lines[BASE].len() / 4);
        let tokens = [BASE, OURS, THEIRS].map(|at| lines[at].iter().map(|line| interner.intern(*line)).collect());
        Self { lines, tokens, count: interner.num_tokens() }
    }

    /// Returns the lines of a version as tokens below [`Self::count`].
    pub(crate) fn tokens(&self, version: usize) -> &[Token] {
        &self.tokens[version]
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}
