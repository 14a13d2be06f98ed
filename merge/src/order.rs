//! The order of a merged list of names: what both have in the order of whoever changed it, and between that what one added.

use std::collections::{HashMap, HashSet};

/// An order, and whether both sides changed it in different ways.
pub(crate) struct Order<'a> {
    pub(crate) names: Vec<&'a str>,
    pub(crate) is_disputed: bool,
}

/// Puts the names of two sides, each unique, into one order; those that are not kept are left out. Which side is which plays
/// no part unless both changed the order of what was there.
pub(crate) fn merged<'a>(
    base: &[&'a str],
    ours: &[&'a str],
    theirs: &[&'a str],
    is_kept: impl Fn(&str) -> bool,
) -> Order<'a> {
    let [in_base, in_ours, in_theirs] = [base, ours, theirs].map(|side| side.iter().copied().collect::<HashSet<_>>());
    let everywhere = |side: &[&'a str]| -> Vec<&'a str> {
        let stays = |name: &&str| in_base.contains(name) && in_ours.contains(name) && in_theirs.contains(name);
        side.iter().copied().filter(stays).collect()
    };
    let (was, mine, other) = (everywhere(base), everywhere(ours), everywhere(theirs));
    let (skeleton, guest) = if mine == was { (theirs, ours) } else { (ours, theirs) };
    let is_common = |name: &str| in_ours.contains(name) && in_theirs.contains(name);
    let runs = |side: &[&'a str]| {
        let mut runs: HashMap<Option<&'a str>, Vec<&'a str>> = HashMap::new();
        let mut anchor = None;
        for name in side {
            match is_common(name) {
                true => anchor = Some(*name),
                false if is_kept(name) => runs.entry(anchor).or_default().push(*name),
                false => {}
            }
        }
        runs
    };
    let (mut first, mut second) = (runs(skeleton), runs(guest));
    let mut names = Vec::with_capacity(ours.len().max(theirs.len()));
    let anchors = std::iter::once(None).chain(skeleton.iter().filter(|name| is_common(name)).map(|name| Some(*name)));
    for anchor in anchors {
        names.extend(anchor.filter(|name| is_kept(name)));
        names.extend(combined(first.remove(&anchor).unwrap_or_default(), second.remove(&anchor).unwrap_or_default()));
    }
    Order { names, is_disputed: mine != was && other != was && mine != other }
}

/// Two runs for one place: sorted into each other if both are sorted, else the one with the smaller start first.
fn combined<'a>(first: Vec<&'a str>, second: Vec<&'a str>) -> Vec<&'a str> {
    let (mut both, more) = if first <= second { (first, second) } else { (second, first) };
    let is_sorted = both.is_sorted() && more.is_sorted();
    both.extend(more);
    if is_sorted {
        both.sort();
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(base: &str, ours: &str, theirs: &str, expected: &str) {
        let names = |text: &'static str| -> Vec<&'static str> { text.split_whitespace().collect() };
        let [base, ours, theirs] = [base, ours, theirs].map(|text| names(text.to_owned().leak()));
        let kept = |name: &str| {
            let gone = base.contains(&name) && !(ours.contains(&name) && theirs.contains(&name));
            !gone
        };
        for (ours, theirs) in [(&ours, &theirs), (&theirs, &ours)] {
            assert_eq!(merged(&base, ours, theirs, kept).names.join(" "), expected, "{ours:?} {theirs:?}");
        }
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
        assert!(merged(&["a", "b", "c"], &["b", "a", "c"], &["c", "a", "b"], |_| true).is_disputed);
        assert!(!merged(&["a", "b"], &["b", "a"], &["b", "a", "c"], |_| true).is_disputed);
    }
}
