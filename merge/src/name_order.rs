//! Computes the order of a merged list of names: common names in the order of the side that changed it, with the names added by
//! either side in between.

use std::collections::HashMap;

/// The names of base, ours and theirs as numbers. Equal names have equal numbers.
pub(crate) struct NumberedNames<'a> {
    pub(crate) names: Vec<&'a str>,
    /// The numbers of each version, in order.
    pub(crate) sides: [Vec<usize>; 3],
    /// For each number, a bit mask of the versions that have it.
    there: Vec<u8>,
}

const IN_ALL_VERSIONS: u8 = 0b111;
const IN_BOTH_SIDES: u8 = 0b110;

/// Up to this many names, a linear search is used.
const LINEAR_SEARCH_MAX: usize = 8;

impl<'a> NumberedNames<'a> {
    /// Numbers the names of three versions. Returns `None` if a version has a duplicate name.
    pub(crate) fn of(sides: [&[&'a str]; 3]) -> Option<Self> {
        let most = sides.iter().map(|side| side.len()).max().unwrap_or_default();
        let mut numbered = Self {
            names: Vec::with_capacity(most),
            sides: sides.map(|side| Vec::with_capacity(side.len())),
            there: Vec::with_capacity(most),
        };
        let mut known = HashMap::new();
        for (side, names) in sides.into_iter().enumerate() {
            // Versions are mostly equal: a name is usually followed by the same name as before.
            let mut next = 0;
            for name in names {
                let number = match numbered.names.get(next) == Some(name) {
                    true => next,
                    false => numbered.number(&mut known, name),
                };
                if numbered.there[number] & (1 << side) != 0 {
                    return None;
                }
                numbered.there[number] |= 1 << side;
                numbered.sides[side].push(number);
                next = number + 1;
            }
        }
        Some(numbered)
    }

    fn number(&mut self, known: &mut HashMap<&'a str, usize>, name: &'a str) -> usize {
        let new = self.names.len();
        let number = match known.is_empty() {
            true => self.names.iter().position(|other| *other == name).unwrap_or(new),
            false => *known.entry(name).or_insert(new),
        };
        if number == new {
            self.names.push(name);
            self.there.push(0);
            if self.names.len() == LINEAR_SEARCH_MAX {
                known.extend(self.names.iter().enumerate().map(|(number, name)| (*name, number)));
            }
        }
        number
    }

    /// Returns the position of each number in each version.
    pub(crate) fn positions(&self) -> [Vec<Option<usize>>; 3] {
        self.sides.each_ref().map(|side| {
            let mut positions = vec![None; self.names.len()];
            side.iter().enumerate().for_each(|(at, number)| positions[*number] = Some(at));
            positions
        })
    }

    /// Returns the numbers of ours and theirs, ours first, each once.
    pub(crate) fn of_the_sides(&self) -> impl Iterator<Item = usize> {
        let [_, ours, theirs] = &self.sides;
        let is_new = |number: &&usize| self.there[**number] & 0b010 == 0;
        ours.iter().chain(theirs.iter().filter(is_new)).copied()
    }
}

/// An order, and whether both sides changed it in different ways.
pub(crate) struct NameOrder {
    pub(crate) numbers: Vec<usize>,
    pub(crate) is_disputed: bool,
}

/// Merges the order of two sides, without names that are not kept. The result does not depend on which side is ours, unless both
/// changed the order of existing names.
pub(crate) fn merged_order(numbered: &NumberedNames<'_>, is_kept: impl Fn(usize) -> bool) -> NameOrder {
    let [base, ours, theirs] = &numbered.sides;
    let everywhere = |side: &[usize]| -> Vec<usize> {
        side.iter().copied().filter(|number| numbered.there[*number] == IN_ALL_VERSIONS).collect()
    };
    let (was, mine, other) = (everywhere(base), everywhere(ours), everywhere(theirs));
    let (skeleton, guest) = if mine == was { (theirs, ours) } else { (ours, theirs) };
    let is_common = |number: usize| numbered.there[number] & IN_BOTH_SIDES == IN_BOTH_SIDES;
    let runs = |side: &[usize]| {
        let mut runs: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
        let mut anchor = None;
        for number in side.iter().copied() {
            match is_common(number) {
                true => anchor = Some(number),
                false if is_kept(number) => runs.entry(anchor).or_default().push(number),
                false => {}
            }
        }
        runs
    };
    let (mut first, mut second) = (runs(skeleton), runs(guest));
    let mut numbers = Vec::with_capacity(ours.len().max(theirs.len()));
    let anchors = skeleton.iter().copied().filter(|number| is_common(*number)).map(Some);
    for anchor in std::iter::once(None).chain(anchors) {
        numbers.extend(anchor.filter(|number| is_kept(*number)));
        let of_both = [&mut first, &mut second].map(|runs| runs.remove(&anchor).unwrap_or_default());
        numbers.extend(combined(&numbered.names, of_both));
    }
    NameOrder { numbers, is_disputed: mine != was && other != was && mine != other }
}

/// Combines two runs at one position: merged if both are sorted, otherwise the one with the smaller first name comes first.
fn combined(names: &[&str], [first, second]: [Vec<usize>; 2]) -> Vec<usize> {
    if first.is_empty() || second.is_empty() {
        return if first.is_empty() { second } else { first };
    }
    let name = |number: &usize| names[*number];
    let is_first_smaller = first.iter().map(name).le(second.iter().map(name));
    let (mut both, more) = if is_first_smaller { (first, second) } else { (second, first) };
    let is_sorted = both.is_sorted_by_key(name) && more.is_sorted_by_key(name);
    both.extend(more);
    if is_sorted {
        both.sort_by_key(name);
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    fn check(base: &str, ours: &str, theirs: &str, expected: &str) {
        let [base, ours, theirs] = [base, ours, theirs].map(names);
        for (ours, theirs) in [(&ours, &theirs), (&theirs, &ours)] {
            let numbered = NumberedNames::of([&base, ours, theirs]).expect("no name stands twice");
            let kept = |number: usize| {
                let name = &numbered.names[number];
                let gone = base.contains(name) && !(ours.contains(name) && theirs.contains(name));
                !gone
            };
            let merged: Vec<_> =
                merged_order(&numbered, kept).numbers.iter().map(|number| numbered.names[*number]).collect();
            assert_eq!(merged.join(" "), expected, "{ours:?} {theirs:?}");
        }
    }

    fn is_disputed(base: &str, ours: &str, theirs: &str) -> bool {
        let [base, ours, theirs] = [base, ours, theirs].map(names);
        merged_order(&NumberedNames::of([&base, &ours, &theirs]).expect("no name stands twice"), |_| true).is_disputed
    }

    #[test]
    fn what_both_add_in_one_place_is_sorted_if_it_was() {
        check("a m z", "a b m z", "a c m z", "a b c m z");
        check("a m z", "a m z", "a c m z x", "a c m z x");
        check("a", "a c b", "a d", "a c b d");
        check("", "n m", "x", "n m x");
    }

    #[test]
    fn a_changed_order_is_followed() {
        check("a b c", "c b a", "a b c d", "c d b a");
        check("a b c", "a c", "a b c d", "a c d");
        assert!(is_disputed("a b c", "b a c", "c a b"));
        assert!(!is_disputed("a b", "b a", "b a c"));
    }

    #[test]
    fn equal_names_have_one_number_however_many_there_are() {
        let many: Vec<_> = (0..50).map(|at| format!("name {at}")).collect();
        let base: Vec<_> = many.iter().map(String::as_str).collect();
        let ours: Vec<_> = base.iter().rev().copied().collect();
        let theirs: Vec<_> = base.iter().copied().step_by(3).chain(["another"]).collect();
        let numbered = NumberedNames::of([&base, &ours, &theirs]).expect("no name stands twice");
        for (side, names) in numbered.sides.iter().zip([&base, &ours, &theirs]) {
            assert_eq!(side.iter().map(|number| numbered.names[*number]).collect::<Vec<_>>(), *names);
        }
        assert_eq!(numbered.names.len(), 51);
        let twice: Vec<_> = base.iter().copied().chain(["name 7"]).collect();
        assert!(NumberedNames::of([&base, &ours, &twice]).is_none());
        assert!(NumberedNames::of([&["a", "a"], &[], &[]]).is_none());
    }
}
