//! Compares texts of any number of sides and bases line by line, and renders markers where the sides disagree.
//!
//! All versions are compared with one of them, the anchor. A region is a range that any version changed. Within a region the
//! versions add up like the terms of a conflict: an added version and an equal removed version cancel. If one version is left, or
//! several that are equal, the region is clean. Otherwise each remaining text is rendered once, with the labels of all sides that
//! have it.

use std::borrow::Cow;
use std::ops::Range;

use amalgam_textdiff::{Hunk, Interner, Token, split_lines, token_hunks};

use crate::markers::{self, MarkerStyle, Part, Rendered, Section};

/// A version with its label.
pub(crate) struct LabelledText<'a> {
    pub(crate) label: &'a str,
    pub(crate) bytes: &'a [u8],
}

/// The versions of a text. There is one more added version than removed ones; a removed version may be absent.
pub(crate) struct ManySides<'a> {
    pub(crate) added: Vec<LabelledText<'a>>,
    pub(crate) removed: Vec<Option<&'a [u8]>>,
    /// The labels of the sides that removed the file.
    pub(crate) gone: Vec<&'a str>,
}

/// A version split into lines, with a token for each line. Equal lines have equal tokens.
struct Text<'a> {
    lines: Vec<&'a [u8]>,
    tokens: Vec<Token>,
}

/// A range in which versions differ: the lines of each version, in the order of [`TokenisedSides::texts`].
struct Region {
    ranges: Vec<Range<usize>>,
}

/// The tokenised versions: the added ones, then the removed ones that exist.
struct TokenisedSides<'a> {
    texts: Vec<Text<'a>>,
    added: usize,
    anchor: usize,
    count: u32,
}

/// Renders versions as one text with markers. If no lines conflict, the whole differing range becomes one region.
pub(crate) fn render(many: &ManySides<'_>, marks: &MarkerStyle) -> Rendered {
    let laid = TokenisedSides::new(many);
    let regions = laid.regions();
    let shown: Vec<_> = regions.iter().map(|region| laid.shown(region)).collect();
    if shown.iter().all(|shown| matches!(shown, Shown::Clean(_))) {
        let whole = laid.whole();
        let sides = (0..laid.added).collect();
        return laid.render(many, &[whole], &[Shown::Disputed(sides)], marks);
    }
    laid.render(many, &regions, &shown, marks)
}

/// The rendering of a region: the lines of one version, or those of several added versions.
enum Shown {
    Clean(usize),
    Disputed(Vec<usize>),
}

impl<'a> TokenisedSides<'a> {
    fn new(many: &ManySides<'a>) -> Self {
        let all = many.added.iter().map(|side| side.bytes).chain(many.removed.iter().copied().flatten());
        let mut interner = Interner::new(1024);
        let texts: Vec<_> = all
            .map(|bytes| {
                let lines = split_lines(bytes);
                let tokens = lines.iter().map(|line| interner.intern(*line)).collect();
                Text { lines, tokens }
            })
            .collect();
        let added = many.added.len();
        // Prefers a base as the anchor: unchanged lines are those of the base.
        let anchor = if texts.len() > added { added } else { 0 };
        Self { texts, added, anchor, count: interner.num_tokens() }
    }

    fn tokens(&self, text: usize, region: &Region) -> &[Token] {
        &self.texts[text].tokens[region.ranges[text].clone()]
    }

    /// Returns the ranges that any version changed, in ascending order. Adjacent changes are joined.
    fn regions(&self) -> Vec<Region> {
        let anchor = &self.texts[self.anchor];
        let changes: Vec<Vec<Hunk>> =
            self.texts.iter().map(|text| token_hunks(&anchor.tokens, &text.tokens, self.count)).collect();
        let mut spans: Vec<Range<usize>> = changes.iter().flatten().map(|hunk| hunk.before.clone()).collect();
        spans.sort_by_key(|span| (span.start, span.end));
        let mut joined: Vec<Range<usize>> = Vec::new();
        for span in spans {
            match joined.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => joined.push(span),
            }
        }
        let mut places = vec![(0, 0_isize); self.texts.len()];
        let region = |span: Range<usize>| {
            let ranges = changes.iter().zip(&mut places).map(|(hunks, (next, ahead))| {
                let start = span.start.saturating_add_signed(*ahead);
                while let Some(hunk) = hunks.get(*next).filter(|hunk| hunk.before.start <= span.end) {
                    *ahead = hunk.after.end as isize - hunk.before.end as isize;
                    *next += 1;
                }
                start..span.end.saturating_add_signed(*ahead)
            });
            Region { ranges: ranges.collect() }
        };
        joined.into_iter().map(region).collect()
    }

    /// Adds up the versions of a region.
    fn shown(&self, region: &Region) -> Shown {
        let mut added: Vec<usize> = (0..self.added).collect();
        for removed in self.added..self.texts.len() {
            let equal = |side: &usize| self.tokens(*side, region) == self.tokens(removed, region);
            if let Some(at) = added.iter().position(equal).filter(|_| added.len() > 1) {
                added.remove(at);
            }
        }
        let first = added[0];
        match added.iter().all(|side| self.tokens(*side, region) == self.tokens(first, region)) {
            true => Shown::Clean(first),
            false => Shown::Disputed(added),
        }
    }

    /// Returns the range between the first and the last line in which any two versions differ.
    fn whole(&self) -> Region {
        let shortest = self.texts.iter().map(|text| text.tokens.len()).min().unwrap_or(0);
        let alike = |line: &dyn Fn(&Text<'a>) -> Token| {
            let first = line(&self.texts[0]);
            self.texts.iter().all(|text| line(text) == first)
        };
        let start = (0..shortest).take_while(|at| alike(&|text| text.tokens[*at])).count();
        let end =
            (0..shortest - start).take_while(|at| alike(&|text| text.tokens[text.tokens.len() - 1 - *at])).count();
        Region { ranges: self.texts.iter().map(|text| start..text.tokens.len() - end).collect() }
    }

    fn render(&self, many: &ManySides<'_>, regions: &[Region], shown: &[Shown], marks: &MarkerStyle) -> Rendered {
        let cr = self.texts.iter().all(|text| text.lines.first().is_none_or(|line| line.ends_with(b"\r\n")));
        let lines = |text: usize, region: &Region| &self.texts[text].lines[region.ranges[text].clone()];
        let mut parts = Vec::with_capacity(regions.len() * 2 + 1);
        let mut at = 0;
        for (region, shown) in regions.iter().zip(shown) {
            let anchor = &region.ranges[self.anchor];
            parts.push(Part::Clean(&self.texts[self.anchor].lines[at..anchor.start]));
            parts.push(match shown {
                Shown::Clean(text) => Part::Clean(lines(*text, region)),
                Shown::Disputed(sides) => Part::Conflict { sections: self.sections(many, region, sides), cr },
            });
            at = anchor.end;
        }
        parts.push(Part::Clean(&self.texts[self.anchor].lines[at..]));
        markers::render(&parts, marks)
    }

    /// Returns the sections of a region: the first side, the bases, the other sides.
    fn sections<'s>(&'s self, many: &ManySides<'_>, region: &Region, sides: &[usize]) -> Vec<Section<'s>> {
        let lines = |text: usize| &self.texts[text].lines[region.ranges[text].clone()];
        let mut groups: Vec<(String, usize)> = Vec::new();
        for side in sides {
            let label = many.added[*side].label;
            match groups.iter_mut().find(|(_, other)| self.tokens(*other, region) == self.tokens(*side, region)) {
                Some((labels, _)) => *labels = format!("{labels}, {label}"),
                None => groups.push((label.to_owned(), *side)),
            }
        }
        let mut bases: Vec<usize> = Vec::new();
        for base in self.added..self.texts.len() {
            if !bases.iter().any(|other| self.tokens(*other, region) == self.tokens(base, region)) {
                bases.push(base);
            }
        }
        let versions = groups.len() + many.gone.len();
        let is_plain = versions == 2 && many.gone.is_empty();
        let mut groups = groups.into_iter().map(|(label, text)| (markers::sanitise_label(&label), text));
        let mut sections = Vec::new();
        let (label, first) = groups.next().expect("a region that is disputed has sides");
        sections.push(Section::new(b'<', label, lines(first)));
        if bases.is_empty() {
            sections.push(Section::new(b'|', "base", &[]));
        }
        for (base, number) in bases.into_iter().zip(1..) {
            let label = if number == 1 { Cow::from("base") } else { Cow::from(format!("base-{number}")) };
            sections.push(Section::new(b'|', label, lines(base)));
        }
        if is_plain {
            let (label, second) = groups.next().expect("there are two");
            sections.push(Section::bare(b'=', lines(second)));
            sections.push(Section::new(b'>', label, &[]));
            return sections;
        }
        sections.extend(groups.map(|(label, text)| Section::new(b'=', label, lines(text))));
        let gone =
            many.gone.iter().map(|label| format!("{}{}", markers::sanitise_label(label), markers::REMOVED_SUFFIX));
        sections.extend(gone.map(|label| Section::new(b'=', label, &[])));
        sections.push(Section::new(b'>', format!("{}{versions} versions", markers::END_PREFIX), &[]));
        sections
    }
}
