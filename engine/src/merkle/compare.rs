//! Compares two sorted sequences in time proportional to their difference: equal sub-trees are never loaded.

use std::cmp::Ordering;
use std::sync::Arc;

use super::search::Keyed;
use super::{load_child, load_top};
use crate::error::Result;
use crate::id::ObjectId;
use crate::object::SequenceNode;
use crate::store::Store;

/// One differing item before and after. At least one side is present, and the two differ.
pub(crate) type Differing<T> = (Option<T>, Option<T>);

/// Iterates over the differing items of two sequences, in order.
pub(crate) struct Comparison<S: Keyed> {
    store: Store,
    before: Side<S>,
    after: Side<S>,
    same_link: fn(&S::Link, &S::Link) -> bool,
    same_item: fn(&S::Item, &S::Item) -> bool,
}

/// Compares two sequences with the caller's definitions of equality.
pub(crate) fn compare<S: Keyed>(
    store: &Store,
    before: Option<ObjectId>,
    after: Option<ObjectId>,
    same_link: fn(&S::Link, &S::Link) -> bool,
    same_item: fn(&S::Item, &S::Item) -> bool,
) -> Result<Comparison<S>> {
    let (before, after) = if before == after { (None, None) } else { (before, after) };
    let (before, after) = (Side::of(store, before)?, Side::of(store, after)?);
    Ok(Comparison { store: store.clone(), before, after, same_link, same_item })
}

/// A position in one of the two sequences: the open nodes from the top down, with the index of the next element in each.
struct Side<S: Keyed> {
    path: Vec<(Arc<SequenceNode<S>>, usize)>,
}

/// The next element of one side.
enum NextElement<'a, S: Keyed> {
    Item(&'a S::Item),
    Child { parent_level: u32, link: &'a S::Link },
}

impl<S: Keyed> Side<S> {
    fn of(store: &Store, top: Option<ObjectId>) -> Result<Self> {
        let path = top.map(|top| Ok((load_top::<S>(store, top)?, 0))).into_iter().collect::<Result<_>>()?;
        Ok(Self { path })
    }

    fn ahead(&self) -> Option<NextElement<'_, S>> {
        let (node, at) = self.path.last()?;
        Some(match &**node {
            SequenceNode::Leaf(items) => NextElement::Item(&items[*at]),
            SequenceNode::Inner { level, links } => NextElement::Child { parent_level: *level, link: &links[*at] },
        })
    }

    /// Advances to the next element and closes the nodes that end here.
    fn step(&mut self) {
        while let Some((node, at)) = self.path.last_mut() {
            *at += 1;
            let length = match &**node {
                SequenceNode::Leaf(items) => items.len(),
                SequenceNode::Inner { links, .. } => links.len(),
            };
            if *at < length {
                return;
            }
            self.path.pop();
        }
    }

    fn open(&mut self, store: &Store) -> Result<()> {
        if let Some(NextElement::Child { parent_level, link }) = self.ahead() {
            let node = load_child::<S>(store, parent_level, link)?;
            self.path.push((node, 0));
        }
        Ok(())
    }

    fn take(&mut self) -> Option<S::Item> {
        let item = match self.ahead() {
            Some(NextElement::Item(item)) => Some(item.clone()),
            _ => None,
        };
        self.step();
        item
    }
}

enum Step {
    SkipBoth,
    OpenBefore,
    OpenAfter,
    OpenBoth,
    TakeBefore,
    TakeAfter,
    TakeBoth,
    End,
}

impl<S: Keyed> Comparison<S> {
    fn step(&self) -> Step {
        match (self.before.ahead(), self.after.ahead()) {
            (None, None) => Step::End,
            (Some(NextElement::Item(_)), None) => Step::TakeBefore,
            (None, Some(NextElement::Item(_))) => Step::TakeAfter,
            (Some(NextElement::Child { .. }), None) => Step::OpenBefore,
            (None, Some(NextElement::Child { .. })) => Step::OpenAfter,
            (Some(NextElement::Item(before)), Some(NextElement::Item(after))) => {
                match S::item_key(before).cmp(S::item_key(after)) {
                    Ordering::Less => Step::TakeBefore,
                    Ordering::Greater => Step::TakeAfter,
                    Ordering::Equal if (self.same_item)(before, after) => Step::SkipBoth,
                    Ordering::Equal => Step::TakeBoth,
                }
            }
            // An item before the first key of a child has no counterpart in it: the child stays closed.
            (Some(NextElement::Item(before)), Some(NextElement::Child { link, .. })) => {
                if S::item_key(before) < S::link_key(link) { Step::TakeBefore } else { Step::OpenAfter }
            }
            (Some(NextElement::Child { link, .. }), Some(NextElement::Item(after))) => {
                if S::item_key(after) < S::link_key(link) { Step::TakeAfter } else { Step::OpenBefore }
            }
            (
                Some(NextElement::Child { parent_level: before_level, link: before }),
                Some(NextElement::Child { parent_level: after_level, link: after }),
            ) => {
                if before_level == after_level && (self.same_link)(before, after) {
                    return Step::SkipBoth;
                }
                let keys = S::link_key(before).cmp(S::link_key(after));
                match before_level.cmp(&after_level).then(keys.reverse()) {
                    Ordering::Greater => Step::OpenBefore,
                    Ordering::Less => Step::OpenAfter,
                    Ordering::Equal => Step::OpenBoth,
                }
            }
        }
    }

    /// Skips all equal elements of the two open nodes at once.
    fn skip_equal(&mut self) {
        let (Some((before, from)), Some((after, to))) = (self.before.path.last_mut(), self.after.path.last_mut())
        else {
            return;
        };
        let equal = match (&**before, &**after) {
            (SequenceNode::Leaf(before), SequenceNode::Leaf(after)) => {
                let pairs = before[*from..].iter().zip(&after[*to..]);
                pairs.take_while(|(a, b)| S::item_key(a) == S::item_key(b) && (self.same_item)(a, b)).count()
            }
            (SequenceNode::Inner { level, links: before }, SequenceNode::Inner { level: other, links: after })
                if level == other =>
            {
                let pairs = before[*from..].iter().zip(&after[*to..]);
                pairs.take_while(|(a, b)| (self.same_link)(a, b)).count()
            }
            _ => 0,
        };
        // The last equal pair is left to an ordinary step, which closes the nodes that end with it.
        let skipped = equal.saturating_sub(1);
        *from += skipped;
        *to += skipped;
    }

    fn advance(&mut self) -> Result<Option<Differing<S::Item>>> {
        loop {
            self.skip_equal();
            match self.step() {
                Step::End => return Ok(None),
                Step::SkipBoth => {
                    self.before.step();
                    self.after.step();
                }
                Step::OpenBefore => self.before.open(&self.store)?,
                Step::OpenAfter => self.after.open(&self.store)?,
                Step::OpenBoth => {
                    self.before.open(&self.store)?;
                    self.after.open(&self.store)?;
                }
                Step::TakeBefore => return Ok(Some((self.before.take(), None))),
                Step::TakeAfter => return Ok(Some((None, self.after.take()))),
                Step::TakeBoth => return Ok(Some((self.before.take(), self.after.take()))),
            }
        }
    }
}

impl<S: Keyed> Iterator for Comparison<S> {
    type Item = Result<Differing<S::Item>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(differing) => differing.map(Ok),
            Err(error) => {
                self.before.path.clear();
                self.after.path.clear();
                Some(Err(error))
            }
        }
    }
}
