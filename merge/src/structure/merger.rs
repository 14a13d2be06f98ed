//! Decides, value by value, the contents of the merged document.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use super::node::{Container, Entry, EntryStart, Kind, Node, Separator, has_same_meaning};
use crate::job::Options;
use crate::markers::Labels;
use crate::name_order::{self, NumberedNames};
use crate::outcome::{Outcome, UnableReason};
use crate::sides::Sides;
use crate::text;

/// A merged value.
#[derive(Debug)]
pub(super) enum MergedValue<'a> {
    /// The text of one version, unchanged.
    Take(&'a Node<'a>),
    /// A text of several lines, merged by lines.
    Lines(String),
    Container(MergedContainer<'a>),
}

/// A map or a list assembled from parts.
#[derive(Debug)]
pub(super) struct MergedContainer<'a> {
    pub(super) is_map: bool,
    /// The version whose brackets and whitespace it uses.
    pub(super) shape: &'a Container<'a>,
    pub(super) slots: Vec<Slot<'a>>,
}

#[derive(Debug)]
pub(super) enum Slot<'a> {
    Merged(MergedEntry<'a>),
    /// The entries of each version at this place.
    Clash([&'a [Entry<'a>]; 3]),
}

impl Slot<'_> {
    /// Returns the name of its field; empty for an element.
    fn name(&self) -> &str {
        match self {
            Self::Merged(one) => one.name,
            Self::Clash(versions) => {
                versions.iter().find_map(|version| version.first()).map_or("", |entry| &entry.name)
            }
        }
    }
}

/// An entry of the result.
#[derive(Debug)]
pub(super) struct MergedEntry<'a> {
    pub(super) name: &'a str,
    pub(super) lead: &'a str,
    pub(super) indent: usize,
    pub(super) key: &'a str,
    pub(super) value: MergedValue<'a>,
    pub(super) tail: &'a str,
    pub(super) after: &'a str,
    /// Whether it was the first entry in the version that its lead comes from.
    pub(super) was_first: bool,
    /// Whether only one side has it.
    pub(super) is_added: bool,
}

/// Whether an entry is the first one of ours and of theirs.
pub(super) type Firsts = [bool; 2];

pub(super) struct Merger<'a> {
    pub(super) options: &'a Options,
    /// The paths where the sides disagree.
    pub(super) clashes: Vec<String>,
    /// Paths that count as clashes even if only one side changed them.
    forced: &'a BTreeSet<String>,
    path: Vec<PathStep<'a>>,
}

/// A step down into a document.
#[derive(Clone, Copy)]
enum PathStep<'a> {
    Name(&'a str),
    /// An element, by its key field.
    Keyed(&'a str, &'a str),
    Index(usize),
}

impl fmt::Display for PathStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "/{}", escaped(name)),
            Self::Keyed(key, name) => write!(f, "/{key}={}", escaped(name)),
            Self::Index(index) => write!(f, "/{index}"),
        }
    }
}

impl<'a> Merger<'a> {
    pub(super) fn new(options: &'a Options, forced: &'a BTreeSet<String>) -> Self {
        Self { options, clashes: Vec::new(), forced, path: Vec::new() }
    }

    fn here(&self) -> String {
        self.path.iter().map(|step| step.to_string()).collect()
    }

    /// Returns whether a path below this place counts as a clash, so that no version can be taken as a whole.
    fn is_forced_below(&self) -> bool {
        if self.forced.is_empty() {
            return false;
        }
        let above = format!("{}/", self.here());
        self.forced.range(above.clone()..).next().is_some_and(|path| path.starts_with(&above))
    }

    /// Merges a value. Returns `None` if the sides disagree about it as a whole.
    pub(super) fn value(
        &mut self,
        base: Option<&'a Node<'a>>,
        ours: &'a Node<'a>,
        theirs: &'a Node<'a>,
    ) -> Result<Option<MergedValue<'a>>, UnableReason> {
        let base_text = base.map(|base| base.text);
        let goes_down = self.is_forced_below();
        if !goes_down && (ours.text == theirs.text || base_text == Some(theirs.text)) {
            return Ok(Some(MergedValue::Take(ours)));
        }
        if !goes_down && base_text == Some(ours.text) {
            return Ok(Some(MergedValue::Take(theirs)));
        }
        match (&ours.kind, &theirs.kind) {
            (Kind::Map(mine), Kind::Map(other)) if mine.separator == other.separator => {
                let was = base.and_then(|base| match &base.kind {
                    Kind::Map(was) => Some(&**was),
                    _ => None,
                });
                self.map(was, mine, other)
            }
            (Kind::List(mine), Kind::List(other)) if mine.separator == other.separator => {
                let was = base.and_then(|base| match &base.kind {
                    Kind::List(was) => Some(&**was),
                    _ => None,
                });
                self.list(was, mine, other)
            }
            _ if has_same_meaning(ours, theirs) => Ok(Some(MergedValue::Take(ours))),
            _ if base.is_some_and(|base| has_same_meaning(base, ours)) => Ok(Some(MergedValue::Take(theirs))),
            _ if base.is_some_and(|base| has_same_meaning(base, theirs)) => Ok(Some(MergedValue::Take(ours))),
            (Kind::Scalar(_), Kind::Scalar(_)) => Ok(base.and_then(|base| by_lines(base, ours, theirs))),
            _ => Ok(None),
        }
    }

    fn map(
        &mut self,
        base: Option<&'a Container<'a>>,
        ours: &'a Container<'a>,
        theirs: &'a Container<'a>,
    ) -> Result<Option<MergedValue<'a>>, UnableReason> {
        let sides = [base.map_or(&[][..], |base| &base.entries), &ours.entries, &theirs.entries];
        let names = sides.map(|side| side.iter().map(|entry| entry.name.as_ref()).collect::<Vec<_>>());
        let twice = UnableReason::Doubt { what: "a name stands twice" };
        let numbered = NumberedNames::of(names.each_ref().map(Vec::as_slice)).ok_or(twice)?;
        let (mut slots, _) = self.named(sides, &numbered, None)?;
        let shape = shape(base, ours, theirs);
        if shape.start == EntryStart::KeysFirst {
            slots.sort_by_key(|slot| slot.name().starts_with('['));
        }
        Ok(Some(MergedValue::Container(MergedContainer { is_map: true, shape, slots })))
    }

    /// Merges entries by name. Also returns whether the sides ordered them differently.
    pub(super) fn named(
        &mut self,
        sides: [&'a [Entry<'a>]; 3],
        numbered: &NumberedNames<'a>,
        key: Option<&'a str>,
    ) -> Result<(Vec<Slot<'a>>, bool), UnableReason> {
        let positions = numbered.positions();
        let mut slots: Vec<Option<Slot<'a>>> = Vec::new();
        slots.resize_with(numbered.names.len(), || None);
        for number in numbered.of_the_sides() {
            let [base, ours, theirs] = positions.each_ref().map(|positions| positions[number]);
            let versions = [base.map(|at| &sides[0][at]), ours.map(|at| &sides[1][at]), theirs.map(|at| &sides[2][at])];
            let name = numbered.names[number];
            self.path.push(key.map_or(PathStep::Name(name), |key| PathStep::Keyed(key, name)));
            slots[number] = self.slot(versions, [ours == Some(0), theirs == Some(0)])?;
            self.path.pop();
        }
        let order = name_order::merged_order(numbered, |number| slots[number].is_some());
        let in_order = order.numbers.iter().filter_map(|number| slots[*number].take()).collect();
        Ok((in_order, order.is_disputed))
    }

    /// Merges one name.
    fn slot(&mut self, versions: [Option<&'a Entry<'a>>; 3], firsts: Firsts) -> Result<Option<Slot<'a>>, UnableReason> {
        if !self.forced.is_empty() && self.forced.contains(&self.here()) {
            return Ok(Some(self.clash(versions)));
        }
        Ok(match versions {
            [base, Some(ours), Some(theirs)] => Some(self.pair(base, ours, theirs, firsts)?),
            [Some(base), Some(stays), None] | [Some(base), None, Some(stays)] if is_untouched(base, stays) => None,
            [Some(_), None, None] | [None, None, None] => None,
            [None, Some(added), None] => Some(Slot::Merged(MergedEntry::from(added, firsts[0]))),
            [None, None, Some(added)] => Some(Slot::Merged(MergedEntry::from(added, firsts[1]))),
            [Some(_), _, _] => Some(self.clash(versions)),
        })
    }

    /// Merges an entry that both sides have.
    pub(super) fn pair(
        &mut self,
        base: Option<&'a Entry<'a>>,
        ours: &'a Entry<'a>,
        theirs: &'a Entry<'a>,
        firsts: Firsts,
    ) -> Result<Slot<'a>, UnableReason> {
        let Some(value) = self.value(base.map(|base| &base.value), &ours.value, &theirs.value)? else {
            return Ok(self.clash([base, Some(ours), Some(theirs)]));
        };
        // The text around a value comes from the version of the value, unless the other side changed it too.
        let is_theirs = matches!(&value, MergedValue::Take(node) if std::ptr::eq(*node, &theirs.value));
        let from = if is_theirs { theirs } else { ours };
        let is_one_kind = std::mem::discriminant(&ours.value.kind) == std::mem::discriminant(&theirs.value.kind);
        let choose = |part: fn(&'a Entry<'a>) -> &'a str| match pick(base.map(part), part(ours), part(theirs)) {
            Some(text) => Ok(text),
            None if is_blank(part(ours)) && is_blank(part(theirs)) => Ok(part(from)),
            None => Err(UnableReason::Doubt { what: "both sides changed a comment" }),
        };
        let lead = choose(|entry| entry.lead)?;
        let was_first = if std::ptr::eq(lead, theirs.lead) { firsts[1] } else { firsts[0] };
        let (key, tail) = match is_one_kind {
            true => {
                (pick(base.map(|base| base.key), ours.key, theirs.key).unwrap_or(from.key), choose(|entry| entry.tail)?)
            }
            false => (from.key, from.tail),
        };
        let after = choose(|entry| entry.after)?;
        let indent = if base.is_some_and(|base| base.indent == ours.indent) { theirs.indent } else { ours.indent };
        Ok(Slot::Merged(MergedEntry {
            name: &ours.name,
            lead,
            indent,
            key,
            value,
            tail,
            after,
            was_first,
            is_added: false,
        }))
    }

    /// Records a clash at the current path.
    fn clash(&mut self, versions: [Option<&'a Entry<'a>>; 3]) -> Slot<'a> {
        self.note(None);
        Slot::Clash(versions.map(|version| version.map_or(&[][..], std::slice::from_ref)))
    }

    /// Records the path of a clash, with a final index if given.
    pub(super) fn note(&mut self, last: Option<usize>) {
        let steps = self.path.iter().copied().chain(last.map(PathStep::Index));
        self.clashes.push(steps.map(|step| step.to_string()).collect());
    }

    /// Runs a function one step further down.
    pub(super) fn below<T>(&mut self, index: usize, run: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(PathStep::Index(index));
        let done = run(self);
        self.path.pop();
        done
    }
}

impl<'a> MergedEntry<'a> {
    /// Copies an entry of one version.
    pub(super) fn from(entry: &'a Entry<'a>, was_first: bool) -> Self {
        let Entry { name, lead, indent, key, value, tail, after } = entry;
        Self {
            name,
            lead,
            indent: *indent,
            key,
            value: MergedValue::Take(value),
            tail,
            after,
            was_first,
            is_added: true,
        }
    }
}

/// Returns the version whose brackets and whitespace the result uses: theirs if ours left them unchanged, otherwise ours; never
/// that of an empty container if the other is not empty.
pub(super) fn shape<'a>(
    base: Option<&'a Container<'a>>,
    ours: &'a Container<'a>,
    theirs: &'a Container<'a>,
) -> &'a Container<'a> {
    let layout = |container: &'a Container<'a>| {
        let lead = |at: usize| {
            container.entries.get(at).filter(|_| container.separator == Separator::Commas).map(|entry| entry.lead)
        };
        (lead(0), lead(1), container.tail)
    };
    let is_as_it_was = base.is_some_and(|base| layout(base) == layout(ours));
    match (ours.entries.is_empty(), theirs.entries.is_empty()) {
        (true, false) => theirs,
        (false, true) => ours,
        _ if is_as_it_was => theirs,
        _ => ours,
    }
}

/// Picks one text of three, or `None` if both sides changed it in different ways.
pub(super) fn pick<'a>(base: Option<&'a str>, ours: &'a str, theirs: &'a str) -> Option<&'a str> {
    match base {
        _ if ours == theirs => Some(ours),
        Some(base) if base == ours => Some(theirs),
        Some(base) if base == theirs => Some(ours),
        _ => None,
    }
}

/// Merges a text of several lines that both sides changed by lines. Returns `None` if the changes overlap.
fn by_lines<'a>(base: &Node<'_>, ours: &Node<'_>, theirs: &Node<'_>) -> Option<MergedValue<'a>> {
    let versions = [base.text, ours.text, theirs.text];
    if !versions.iter().all(|text| text.trim_end().contains('\n')) {
        return None;
    }
    let [base, ours, theirs] = versions.map(str::as_bytes);
    match text::merge(&Sides { base: Some(base), ours, theirs }, &Labels::default()) {
        Outcome::Merged(bytes) => String::from_utf8(bytes).ok().map(MergedValue::Lines),
        Outcome::Conflicted(_) | Outcome::Unable(_) => None,
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Returns whether an entry is unchanged, so that the other side may remove it. A changed comment is a change.
fn is_untouched(base: &Entry<'_>, now: &Entry<'_>) -> bool {
    let around = |part: fn(&Entry<'_>) -> String| part(base) == part(now);
    let has_comments = base.value.container().is_some_and(|container| container.separator == Separator::Lines);
    has_same_meaning(&base.value, &now.value)
        && around(|entry| entry.lead.trim().to_owned())
        && around(|entry| entry.tail.trim().to_owned())
        && around(|entry| entry.after.trim().to_owned())
        && (!has_comments || base.value.text.trim() == now.value.text.trim())
}

/// Escapes a name as part of a path.
fn escaped(name: &str) -> Cow<'_, str> {
    match name.contains(['/', '~']) {
        true => Cow::Owned(name.replace('~', "~0").replace('/', "~1")),
        false => Cow::Borrowed(name),
    }
}
