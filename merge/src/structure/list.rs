//! Merges lists: by the keys of their elements if they have them, otherwise by a diff of the elements.

use std::collections::HashMap;

use amalgam_textdiff::{Hunk, Token, token_hunks};

use super::merger::{MergedContainer, MergedEntry, MergedValue, Merger, Slot, shape};
use super::node::{Container, Entry, Kind, Node, has_same_meaning};
use crate::job::Lists;
use crate::name_order::NumberedNames;
use crate::outcome::UnableReason;
use crate::region::{Region, RegionKind, regions};

const KEYS: [&str; 3] = ["id", "key", "name"];

impl<'a> Merger<'a> {
    pub(super) fn list(
        &mut self,
        base: Option<&'a Container<'a>>,
        ours: &'a Container<'a>,
        theirs: &'a Container<'a>,
    ) -> Result<Option<MergedValue<'a>>, UnableReason> {
        let shape = shape(base, ours, theirs);
        let entries = [base.map_or(&[][..], |base| &base.entries), &ours.entries, &theirs.entries];
        if let Some((key, numbered)) = self.keyed(entries) {
            let (slots, is_disputed) = self.named(entries, &numbered, Some(key))?;
            let made = MergedValue::Container(MergedContainer { is_map: false, shape, slots });
            // The order of a list has a meaning: the result cannot follow both sides.
            return Ok((!is_disputed).then_some(made));
        }
        let slots = self.unnamed(entries)?;
        Ok(Some(MergedValue::Container(MergedContainer { is_map: false, shape, slots })))
    }

    /// Returns the names of the elements, by the first field that all elements of all versions have.
    fn keyed(&self, sides: [&'a [Entry<'a>]; 3]) -> Option<(&'a str, NumberedNames<'a>)> {
        if sides.iter().all(|side| side.is_empty()) {
            return None;
        }
        let options = self.options;
        let keys: Vec<&'a str> = match options.keys.is_empty() {
            true => KEYS.to_vec(),
            false => options.keys.iter().map(String::as_str).collect(),
        };
        keys.into_iter().find_map(|key| {
            let name = |entry: &'a Entry<'a>| Some(entry.value.field(key)?.trim_matches('"'));
            let names = |side: &'a [Entry<'a>]| side.iter().map(name).collect::<Option<Vec<_>>>();
            let [base, ours, theirs] = sides;
            Some((key, NumberedNames::of([&names(base)?, &names(ours)?, &names(theirs)?])?))
        })
    }

    fn unnamed(&mut self, entries: [&'a [Entry<'a>]; 3]) -> Result<Vec<Slot<'a>>, UnableReason> {
        let mut numbers = NodeNumbers::default();
        let tokens = entries.map(|side| side.iter().map(|entry| numbers.of(&entry.value)).collect::<Vec<_>>());
        let regions = regions(tokens.each_ref().map(Vec::as_slice), numbers.count);
        let [_, ours, theirs] = entries;
        let mut slots = Vec::with_capacity(ours.len().max(theirs.len()));
        let (mut mine, mut other, mut was) = (0, 0, 0);
        for region in regions {
            let stretch = [was..region.base.start, mine..region.ours.start, other..region.theirs.start];
            self.stretch(entries, stretch, &mut slots)?;
            self.region(entries, &region, &mut slots)?;
            (was, mine, other) = (region.base.end, region.ours.end, region.theirs.end);
        }
        self.stretch(entries, [was..entries[0].len(), mine..ours.len(), other..theirs.len()], &mut slots)?;
        Ok(slots)
    }

    /// Merges elements that have the same meaning on both sides.
    fn stretch(
        &mut self,
        entries: [&'a [Entry<'a>]; 3],
        ranges: [std::ops::Range<usize>; 3],
        slots: &mut Vec<Slot<'a>>,
    ) -> Result<(), UnableReason> {
        let [base, ours, theirs] = ranges;
        debug_assert_eq!(ours.len(), theirs.len(), "what stayed is equally long on both sides");
        let has_base = base.len() == ours.len();
        for (at, (mine, other)) in ours.zip(theirs).enumerate() {
            let was = has_base.then(|| &entries[0][base.start + at]);
            let firsts = [mine == 0, other == 0];
            let slot = self.below(mine, |merger| merger.pair(was, &entries[1][mine], &entries[2][other], firsts))?;
            slots.push(slot);
        }
        Ok(())
    }

    fn region(
        &mut self,
        all: [&'a [Entry<'a>]; 3],
        region: &Region,
        slots: &mut Vec<Slot<'a>>,
    ) -> Result<(), UnableReason> {
        let versions = [&all[0][region.base.clone()], &all[1][region.ours.clone()], &all[2][region.theirs.clone()]];
        let [base, ours, theirs] = versions;
        let one = |entry: &'a Entry<'a>| {
            let was_first = all.iter().any(|side| side.first().is_some_and(|first| std::ptr::eq(first, entry)));
            Slot::Merged(MergedEntry::from(entry, was_first))
        };
        match region.kind {
            RegionKind::Ours => slots.extend(ours.iter().map(one)),
            RegionKind::Theirs => slots.extend(theirs.iter().map(one)),
            RegionKind::Conflict if base.len() == ours.len() && base.len() == theirs.len() => {
                for at in 0..base.len() {
                    let firsts = [region.ours.start + at == 0, region.theirs.start + at == 0];
                    let pair = |merger: &mut Self| merger.pair(Some(&base[at]), &ours[at], &theirs[at], firsts);
                    slots.push(self.below(region.ours.start + at, pair)?);
                }
            }
            RegionKind::Conflict if is_in_place(base, theirs) => self.in_place(versions, false, one, slots)?,
            RegionKind::Conflict if is_in_place(base, ours) => self.in_place(versions, true, one, slots)?,
            RegionKind::Conflict if base.is_empty() && self.options.lists == Lists::Both => {
                let texts = |side: &'a [Entry<'a>]| side.iter().map(|e| e.value.text).collect::<Vec<_>>();
                let (first, second) = if texts(ours) <= texts(theirs) { (ours, theirs) } else { (theirs, ours) };
                slots.extend(first.iter().map(one));
                let there = NodeNumbers::of_all(first);
                slots.extend(second.iter().filter(|entry| !there.has(&entry.value)).map(one));
            }
            RegionKind::Conflict => {
                self.note(Some(region.ours.start));
                slots.push(Slot::Clash(versions));
            }
        }
        Ok(())
    }
}

impl<'a> Merger<'a> {
    /// Merges lists in which one side only changed elements in place and the other inserted and removed elements.
    fn in_place(
        &mut self,
        versions: [&'a [Entry<'a>]; 3],
        is_ours: bool,
        one: impl Fn(&'a Entry<'a>) -> Slot<'a>,
        slots: &mut Vec<Slot<'a>>,
    ) -> Result<(), UnableReason> {
        let [base, ours, theirs] = versions;
        let (changed, moved) = if is_ours { (ours, theirs) } else { (theirs, ours) };
        let mut numbers = NodeNumbers::default();
        let [before, after] = [base, moved].map(|side| side.iter().map(|e| numbers.of(&e.value)).collect::<Vec<_>>());
        let hunks = token_hunks(&before, &after, numbers.count);
        let mut gone = hunks.iter().flat_map(|hunk| hunk.before.clone());
        if gone.any(|at| !has_same_meaning(&base[at].value, &changed[at].value)) {
            self.note(Some(0));
            slots.push(Slot::Clash(versions));
            return Ok(());
        }
        let (mut at, mut next) = (0, 0);
        for hunk in hunks.iter().chain([&Hunk { before: base.len()..base.len(), after: moved.len()..moved.len() }]) {
            while at < hunk.before.start {
                let (mine, other) = if is_ours { (&changed[at], &moved[next]) } else { (&moved[next], &changed[at]) };
                slots.push(self.below(next, |merger| merger.pair(Some(&base[at]), mine, other, [false; 2]))?);
                (at, next) = (at + 1, next + 1);
            }
            slots.extend(moved[hunk.after.clone()].iter().map(&one));
            (at, next) = (hunk.before.end, hunk.after.end);
        }
        Ok(())
    }
}

/// Returns whether a version only changed elements in place: the same number of elements, each equal or still recognisable.
fn is_in_place(base: &[Entry<'_>], now: &[Entry<'_>]) -> bool {
    let is_known = |(was, is): (&Entry<'_>, &Entry<'_>)| {
        has_same_meaning(&was.value, &is.value) || shares_a_field(&was.value, &is.value)
    };
    !base.is_empty() && base.len() == now.len() && base.iter().zip(now).all(is_known)
}

fn shares_a_field(one: &Node<'_>, other: &Node<'_>) -> bool {
    let (Kind::Map(one), Kind::Map(other)) = (&one.kind, &other.kind) else { return false };
    // Checks only the first fields, so that large maps cost no more than small ones.
    one.entries
        .iter()
        .take(32)
        .any(|e| other.entries.iter().take(32).any(|o| o.name == e.name && has_same_meaning(&o.value, &e.value)))
}

/// Numbers values in order of appearance. Values with the same meaning get the same number.
#[derive(Default)]
pub(crate) struct NodeNumbers<'a> {
    known: HashMap<u64, Vec<(&'a Node<'a>, Token)>>,
    pub(crate) count: u32,
}

impl<'a> NodeNumbers<'a> {
    pub(crate) fn of_all(entries: &'a [Entry<'a>]) -> Self {
        let mut numbers = Self::default();
        for entry in entries {
            numbers.of(&entry.value);
        }
        numbers
    }

    pub(crate) fn has(&self, node: &Node<'_>) -> bool {
        self.known.get(&node.hash).is_some_and(|alike| alike.iter().any(|(other, _)| has_same_meaning(node, other)))
    }

    pub(crate) fn of(&mut self, node: &'a Node<'a>) -> Token {
        let alike = self.known.entry(node.hash).or_default();
        if let Some((_, token)) = alike.iter().find(|(other, _)| has_same_meaning(node, other)) {
            return *token;
        }
        let token = Token(self.count);
        self.count += 1;
        alike.push((node, token));
        token
    }
}
