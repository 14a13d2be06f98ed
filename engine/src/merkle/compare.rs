//! Comparing two sorted sequences in time proportional to their difference: equal sub-trees are never opened.

use std::cmp::Ordering;

use super::search::Keyed;
use super::{load_child, load_top};
use crate::error::Result;
use crate::id::ObjectId;
use crate::object::SequenceNode;
use crate::store::Store;

/// An item as it is on both sides; at least one is there, and they differ.
pub(crate) type Differing<T> = (Option<T>, Option<T>);

/// The differing items of two sequences, in order.
pub(crate) struct Comparison<S: Keyed> {
    store: Store,
    before: Vec<Ahead<S>>,
    after: Vec<Ahead<S>>,
    same_link: fn(&S::Link, &S::Link) -> bool,
    same_item: fn(&S::Item, &S::Item) -> bool,
}

/// What lies ahead on one side; the next is the last of its stack.
enum Ahead<S: Keyed> {
    Item(S::Item),
    Child { parent_level: u32, link: S::Link },
}

/// Compares two sequences by the caller's idea of equality.
pub(crate) fn compare<S: Keyed>(
    store: &Store,
    before: Option<ObjectId>,
    after: Option<ObjectId>,
    same_link: fn(&S::Link, &S::Link) -> bool,
    same_item: fn(&S::Item, &S::Item) -> bool,
) -> Result<Comparison<S>> {
    let side = |top: Option<ObjectId>| -> Result<Vec<Ahead<S>>> {
        let mut stack = Vec::new();
        if let Some(top) = top {
            push_elements(&mut stack, &*load_top::<S>(store, top)?);
        }
        Ok(stack)
    };
    let (before, after) = if before == after { (Vec::new(), Vec::new()) } else { (side(before)?, side(after)?) };
    Ok(Comparison { store: store.clone(), before, after, same_link, same_item })
}

fn push_elements<S: Keyed>(stack: &mut Vec<Ahead<S>>, node: &SequenceNode<S>) {
    match node {
        SequenceNode::Leaf(items) => stack.extend(items.iter().rev().cloned().map(Ahead::Item)),
        SequenceNode::Inner { level, links } => {
            stack.extend(links.iter().rev().cloned().map(|link| Ahead::Child { parent_level: *level, link }));
        }
    }
}

fn open<S: Keyed>(store: &Store, stack: &mut Vec<Ahead<S>>) -> Result<()> {
    if let Some(Ahead::Child { parent_level, link }) = stack.pop() {
        push_elements(stack, &*load_child::<S>(store, parent_level, &link)?);
    }
    Ok(())
}

fn take_item<S: Keyed>(stack: &mut Vec<Ahead<S>>) -> Option<S::Item> {
    match stack.pop() {
        Some(Ahead::Item(item)) => Some(item),
        _ => None,
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
        match (self.before.last(), self.after.last()) {
            (None, None) => Step::End,
            (Some(Ahead::Item(_)), None) => Step::TakeBefore,
            (None, Some(Ahead::Item(_))) => Step::TakeAfter,
            (Some(Ahead::Child { .. }), None) => Step::OpenBefore,
            (None, Some(Ahead::Child { .. })) => Step::OpenAfter,
            (Some(Ahead::Item(before)), Some(Ahead::Item(after))) => {
                match S::item_key(before).cmp(S::item_key(after)) {
                    Ordering::Less => Step::TakeBefore,
                    Ordering::Greater => Step::TakeAfter,
                    Ordering::Equal if (self.same_item)(before, after) => Step::SkipBoth,
                    Ordering::Equal => Step::TakeBoth,
                }
            }
            // An item before all that a child holds has no partner there: the child stays closed.
            (Some(Ahead::Item(before)), Some(Ahead::Child { link, .. })) => {
                if S::item_key(before) < S::link_key(link) {
                    Step::TakeBefore
                } else {
                    Step::OpenAfter
                }
            }
            (Some(Ahead::Child { link, .. }), Some(Ahead::Item(after))) => {
                if S::item_key(after) < S::link_key(link) {
                    Step::TakeAfter
                } else {
                    Step::OpenBefore
                }
            }
            (
                Some(Ahead::Child { parent_level: before_level, link: before }),
                Some(Ahead::Child { parent_level: after_level, link: after }),
            ) => {
                if before_level == after_level && (self.same_link)(before, after) {
                    return Step::SkipBoth;
                }
                let keys = S::link_key(before).cmp(S::link_key(after));
                match before_level.cmp(after_level).then(keys.reverse()) {
                    Ordering::Greater => Step::OpenBefore,
                    Ordering::Less => Step::OpenAfter,
                    Ordering::Equal => Step::OpenBoth,
                }
            }
        }
    }

    fn advance(&mut self) -> Result<Option<Differing<S::Item>>> {
        loop {
            match self.step() {
                Step::End => return Ok(None),
                Step::SkipBoth => {
                    self.before.pop();
                    self.after.pop();
                }
                Step::OpenBefore => open(&self.store, &mut self.before)?,
                Step::OpenAfter => open(&self.store, &mut self.after)?,
                Step::OpenBoth => {
                    open(&self.store, &mut self.before)?;
                    open(&self.store, &mut self.after)?;
                }
                Step::TakeBefore => return Ok(Some((take_item(&mut self.before), None))),
                Step::TakeAfter => return Ok(Some((None, take_item(&mut self.after)))),
                Step::TakeBoth => return Ok(Some((take_item(&mut self.before), take_item(&mut self.after)))),
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
                self.before.clear();
                self.after.clear();
                Some(Err(error))
            }
        }
    }
}
