//! Comparing two sorted sequences in time proportional to their difference: equal sub-trees are never opened.

use std::cmp::Ordering;
use std::sync::Arc;

use super::search::Keyed;
use super::{elements, load_child, load_top};
use crate::error::Result;
use crate::id::ObjectId;
use crate::object::SequenceNode;
use crate::store::Store;

/// An item as it is on both sides; at least one is there, and they differ.
pub(crate) type Differing<T> = (Option<T>, Option<T>);

/// The differing items of two sequences, in order.
pub(crate) struct Comparison<S: Keyed> {
    store: Store,
    before: Side<S>,
    after: Side<S>,
    same_link: fn(&S::Link, &S::Link) -> bool,
    same_item: fn(&S::Item, &S::Item) -> bool,
}

/// What lies ahead on one side: open nodes with the place of the next element in each, the innermost last. No node stays
/// open behind its last element.
struct Side<S: Keyed> {
    open: Vec<(Arc<SequenceNode<S>>, usize)>,
}

/// The next element of a side.
enum Ahead<'a, S: Keyed> {
    Item(&'a S::Item),
    Child { parent_level: u32, link: &'a S::Link },
}

/// Compares two sequences by the caller's idea of equality.
pub(crate) fn compare<S: Keyed>(
    store: &Store,
    before: Option<ObjectId>,
    after: Option<ObjectId>,
    same_link: fn(&S::Link, &S::Link) -> bool,
    same_item: fn(&S::Item, &S::Item) -> bool,
) -> Result<Comparison<S>> {
    let (mut sides, tops) = ([Side::default(), Side::default()], [before, after]);
    if before != after {
        for (side, top) in sides.iter_mut().zip(tops) {
            if let Some(top) = top {
                side.open.push((load_top::<S>(store, top)?, 0));
            }
        }
    }
    let [before, after] = sides;
    Ok(Comparison { store: store.clone(), before, after, same_link, same_item })
}

impl<S: Keyed> Default for Side<S> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<S: Keyed> Side<S> {
    fn next(&self) -> Option<Ahead<'_, S>> {
        let (node, at) = self.open.last()?;
        Some(match &**node {
            SequenceNode::Leaf(items) => Ahead::Item(&items[*at]),
            SequenceNode::Inner { level, links } => Ahead::Child { parent_level: *level, link: &links[*at] },
        })
    }

    fn skip(&mut self) {
        if let Some((node, at)) = self.open.last_mut() {
            *at += 1;
            if *at == elements(node) {
                self.open.pop();
            }
        }
    }

    /// Goes into the next element, which is a child.
    fn enter(&mut self, store: &Store) -> Result<()> {
        if let Some(Ahead::Child { parent_level, link }) = self.next() {
            let child = load_child::<S>(store, parent_level, link)?;
            self.skip();
            self.open.push((child, 0));
        }
        Ok(())
    }

    /// Takes the next element, which is an item.
    fn take(&mut self) -> Option<S::Item> {
        let item = match self.next()? {
            Ahead::Item(item) => item.clone(),
            Ahead::Child { .. } => return None,
        };
        self.skip();
        Some(item)
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
        match (self.before.next(), self.after.next()) {
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
                match before_level.cmp(&after_level).then(keys.reverse()) {
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
                    self.before.skip();
                    self.after.skip();
                }
                Step::OpenBefore => self.before.enter(&self.store)?,
                Step::OpenAfter => self.after.enter(&self.store)?,
                Step::OpenBoth => {
                    self.before.enter(&self.store)?;
                    self.after.enter(&self.store)?;
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
                self.before.open.clear();
                self.after.open.clear();
                Some(Err(error))
            }
        }
    }
}
