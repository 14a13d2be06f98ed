//! A conflict: versions that could not be merged, stored as a value in the tree. The record of the merge, not the conflict,
//! stores author, time and cause.

use super::codec::{Reader, Writer};
use super::entry::{Entry, Node};
use crate::id::Bare;
use crate::malformed::Malformed;

/// Maximum number of terms in a conflict.
const TERMS_MAX: usize = 255;

/// An odd number of terms, alternately added and removed: `[ours, base, theirs]` in the simplest case.
///
/// Each term is an entry, or `None` for an absent one. No removed term equals an added term: such pairs cancel out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conflict {
    terms: Vec<Option<Entry>>,
}

/// The result of cancelling the terms of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// All terms but one cancelled out. That term is an entry, or `None` for an absent one.
    Resolved(Option<Entry>),
    /// More than one term is left.
    Conflicted(Conflict),
}

impl Conflict {
    /// Cancels equal pairs of added and removed terms and returns the remaining term or conflict. For example `[a, b, b]` settles
    /// to `a`: only one side changed `b`.
    pub fn settle(mut terms: Vec<Option<Entry>>) -> Result<Settled, Malformed> {
        check(&terms)?;
        while let Some((added, removed)) = equal_pair(&terms) {
            // The added neighbour of the removed term moves into the cancelled term's position; the other terms keep their order.
            let beside = if removed > added { removed - 1 } else { removed + 1 };
            terms.swap(added, beside);
            let first = removed.min(beside);
            terms.drain(first..first + 2);
        }
        if terms.len() == 1 {
            return Ok(Settled::Resolved(terms.pop().flatten()));
        }
        Ok(Settled::Conflicted(Self { terms }))
    }

    /// Returns the terms, alternately added and removed. The first and the last are added terms.
    pub fn terms(&self) -> &[Option<Entry>] {
        &self.terms
    }

    /// Returns the added terms: the competing versions.
    pub fn added(&self) -> impl Iterator<Item = Option<&Entry>> {
        self.terms.iter().step_by(2).map(Option::as_ref)
    }

    /// Returns the removed terms: the bases of the competing versions.
    pub fn removed(&self) -> impl Iterator<Item = Option<&Entry>> {
        self.terms.iter().skip(1).step_by(2).map(Option::as_ref)
    }

    /// Returns the hash that identifies this conflict when it occurs again: it covers the terms without their times and does not
    /// depend on which side each term is on.
    pub fn bare(&self) -> Bare {
        let encode = |term: &Option<Entry>| {
            let mut out = Writer::record();
            if let Some(entry) = term {
                out.message(1, |out| entry.write(out, true));
            }
            out.finish()
        };
        let sorted = |skip: usize| {
            let mut terms: Vec<_> = self.terms.iter().skip(skip).step_by(2).map(encode).collect();
            terms.sort();
            terms
        };
        let mut out = Writer::record();
        for (number, terms) in [(1, sorted(0)), (2, sorted(1))] {
            // Each term is a message of its own, so that an absent term counts too.
            terms.iter().for_each(|term| out.message(number, |out| out.bytes(1, term)));
        }
        Bare::of(&out.finish())
    }

    pub(super) fn from_canonical(terms: Vec<Option<Entry>>) -> Result<Self, Malformed> {
        check(&terms)?;
        if terms.len() < 3 || equal_pair(&terms).is_some() {
            return Err(Malformed::NotCanonical);
        }
        Ok(Self { terms })
    }

    pub(super) fn equal_but_for_times(&self, other: &Self) -> bool {
        self.terms.len() == other.terms.len()
            && self.terms.iter().zip(&other.terms).all(|pair| match pair {
                (Some(ours), Some(theirs)) => ours.equal_but_for_times(theirs),
                (ours, theirs) => ours.is_none() && theirs.is_none(),
            })
    }
}

fn check(terms: &[Option<Entry>]) -> Result<(), Malformed> {
    if terms.len().is_multiple_of(2) {
        return Err(Malformed::Rule("a conflict with an even number of terms"));
    }
    if terms.len() > TERMS_MAX {
        return Err(Malformed::TooMuch { what: "a conflict's terms" });
    }
    for term in terms.iter().flatten() {
        if matches!(term.node, Node::Conflict(_)) || term.link().is_some() {
            return Err(Malformed::Rule("a conflict or a hard link inside a conflict"));
        }
    }
    Ok(())
}

fn equal_pair(terms: &[Option<Entry>]) -> Option<(usize, usize)> {
    let removed = (1..terms.len()).step_by(2);
    removed.flat_map(|r| (0..terms.len()).step_by(2).map(move |a| (a, r))).find(|(a, r)| terms[*a] == terms[*r])
}

pub(super) fn write(conflict: &Conflict, out: &mut Writer, timeless: bool) {
    for term in &conflict.terms {
        out.message(12, |out| {
            if let Some(entry) = term {
                out.message(1, |out| entry.write(out, timeless));
            }
        });
    }
}

/// Reads one more term. Fails as soon as there are too many.
pub(super) fn push_term(terms: &mut Vec<Option<Entry>>, from: Reader) -> Result<(), Malformed> {
    if terms.len() == TERMS_MAX {
        return Err(Malformed::TooMuch { what: "a conflict's terms" });
    }
    terms.push(read_term(from)?);
    Ok(())
}

fn read_term(mut from: Reader) -> Result<Option<Entry>, Malformed> {
    let mut term = None;
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => {
                let (name, entry) = Entry::read(value.message(1)?, true)?;
                if !name.is_empty() {
                    return Err(Malformed::Field { number: 1 });
                }
                term = Some(entry);
            }
            number => return Err(Malformed::Field { number }),
        }
    }
    Ok(term)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    fn term(mode: u32) -> Option<Entry> {
        (mode != 0).then(|| Entry::new(Node::Fifo, mode, Time::EPOCH))
    }

    fn settle(modes: &[u32]) -> Result<Vec<u32>, Malformed> {
        let mode = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.mode);
        Ok(match Conflict::settle(modes.iter().map(|mode| term(*mode)).collect())? {
            Settled::Resolved(entry) => vec![mode(&entry)],
            Settled::Conflicted(conflict) => conflict.terms().iter().map(mode).collect(),
        })
    }

    #[test]
    fn a_conflict_is_known_again_whichever_side_is_whose() {
        let conflict = |terms: Vec<Option<Entry>>| match Conflict::settle(terms).expect("terms") {
            Settled::Conflicted(conflict) => conflict.bare(),
            Settled::Resolved(_) => panic!("they differ"),
        };
        let later = |mode: u32| term(mode).map(|entry| Entry { mtime: Time(7), ..entry });
        let one = conflict(vec![term(1), term(2), term(3)]);
        assert_eq!(one, conflict(vec![term(3), term(2), term(1)]));
        assert_eq!(one, conflict(vec![later(1), term(2), later(3)]));
        assert_ne!(one, conflict(vec![term(2), term(1), term(3)]));
        assert_ne!(conflict(vec![term(1), None, term(3)]), conflict(vec![term(1), term(3), None]));
        assert_ne!(conflict(vec![term(1), None, term(2), None, term(3)]), conflict(vec![term(1), None, term(3)]));
    }

    #[test]
    fn equal_terms_cancel() {
        assert_eq!(settle(&[1, 2, 3]), Ok(vec![1, 2, 3]));
        assert_eq!(settle(&[1, 1, 3]), Ok(vec![3]));
        assert_eq!(settle(&[1, 3, 3]), Ok(vec![1]));
        assert_eq!(settle(&[1, 2, 3, 1, 4]), Ok(vec![3, 2, 4]));
        assert_eq!(settle(&[1, 2, 3, 4, 2]), Ok(vec![1, 4, 3]));
        assert_eq!(settle(&[1, 0, 0]), Ok(vec![1]));
        assert!(settle(&[1, 2]).is_err());
    }
}
