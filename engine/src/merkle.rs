//! Builds, edits, searches and compares Merkle sequences of any kind. Knows items and links only by the
//! [`Sequence`](crate::object::Sequence) trait: the modules of [`object`](crate::object) define the kinds and their cut rule.
//!
//! An edit is a splice: it replaces items of the old sequence with others. It reads and writes only the nodes around the change,
//! level by level, until the cuts of the new nodes coincide with those of the old ones again. The result is the same as building
//! the sequence from scratch.

mod compare;
mod replace;
mod search;

pub(crate) use compare::{Comparison, compare};
pub(crate) use replace::replace;
pub(crate) use search::{Items, Keyed, find, look};

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::malformed::Malformed;
use crate::object::{SequenceNode, ends_node};
use crate::store::{CachedSequence, Store, WriteSession};

/// An edit: the range of items of the old sequence, by index, and their replacement. The ranges of a list of splices ascend and
/// do not overlap.
pub(crate) struct Splice<T> {
    pub(crate) range: Range<u64>,
    pub(crate) items: Vec<T>,
}

/// Loads the top node of a sequence.
pub(crate) fn load_top<S: CachedSequence>(store: &Store, id: ObjectId) -> Result<Arc<SequenceNode<S>>> {
    let node = store.node::<S>(id)?;
    match &*node {
        SequenceNode::Inner { links, .. } if links.len() < 2 => Err(Error::Malformed { id, source: Malformed::TooFew }),
        _ => Ok(node),
    }
}

/// Loads the child that a link in a node of this level describes, and checks it against the link.
pub(crate) fn load_child<S: CachedSequence>(
    store: &Store,
    parent_level: u32,
    link: &S::Link,
) -> Result<Arc<SequenceNode<S>>> {
    described(parent_level, link, store.node::<S>(S::link_id(link))?)
}

/// Loads a child that this session may have just put, and checks it against the link.
pub(crate) fn load_new_child<S: CachedSequence>(
    session: &WriteSession,
    parent_level: u32,
    link: &S::Link,
) -> Result<Arc<SequenceNode<S>>> {
    described(parent_level, link, session.node::<S>(S::link_id(link))?)
}

fn described<S: CachedSequence>(
    parent_level: u32,
    link: &S::Link,
    node: Arc<SequenceNode<S>>,
) -> Result<Arc<SequenceNode<S>>> {
    if node.level() + 1 != parent_level || !S::describes(link, &node) {
        return Err(Error::Malformed { id: S::link_id(link), source: Malformed::Link });
    }
    Ok(node)
}

/// Builds a sequence from scratch. Returns `None` if there are no items.
pub(crate) fn build<S: CachedSequence>(
    session: &WriteSession,
    items: impl IntoIterator<Item = S::Item>,
) -> Result<Option<S::Link>> {
    let mut builder = Builder::<S>::new(session, 0);
    for item in items {
        builder.push(Element::Item(item))?;
    }
    build_upwards(session, 0, builder.finish()?)
}

/// Applies splices to a sequence. Returns `None` if no items are left.
pub(crate) fn splice<S: CachedSequence>(
    session: &WriteSession,
    top: Option<ObjectId>,
    splices: Vec<Splice<S::Item>>,
) -> Result<Option<S::Link>> {
    let Some(top) = top else {
        return build::<S>(session, splices.into_iter().flat_map(|splice| splice.items));
    };
    let store = session.store();
    let top_node = load_top::<S>(store, top)?;
    if splices.is_empty() {
        let link = S::describe(&top_node, top).map_err(|source| Error::Malformed { id: top, source })?;
        return Ok(Some(link));
    }
    let mut level_splices: Vec<_> = splices
        .into_iter()
        .map(|splice| LevelSplice {
            range: splice.range,
            elements: splice.items.into_iter().map(Element::Item).collect(),
        })
        .collect();
    for level in 0..=top_node.level() {
        let runs = splice_level(session, &top_node, level, level_splices)?;
        if level == top_node.level() {
            let nodes = top_nodes(session, &top_node, top, runs)?;
            return build_upwards(session, level, nodes);
        }
        level_splices = runs
            .into_iter()
            .map(|run| {
                let links = run.nodes.put_all(session)?;
                Ok(LevelSplice { range: run.range, elements: links.into_iter().map(Element::Link).collect() })
            })
            .collect::<Result<_>>()?;
    }
    unreachable!("the loop ends at the top level")
}

/// Returns all nodes of the top level after a splice. The old top node is one of them if all new nodes end before it.
fn top_nodes<S: CachedSequence>(
    session: &WriteSession,
    top_node: &SequenceNode<S>,
    top: ObjectId,
    runs: Vec<Run<S>>,
) -> Result<Nodes<S>> {
    let mut nodes = Nodes { links: Vec::new(), last: None };
    let mut covered = false;
    for run in runs {
        covered |= !run.range.is_empty();
        let mut links = nodes.put_all(session)?;
        links.extend(run.nodes.links);
        nodes = Nodes { links, last: run.nodes.last };
    }
    if !covered {
        let old = S::describe(top_node, top).map_err(|source| Error::Malformed { id: top, source })?;
        let mut links = nodes.put_all(session)?;
        links.push(old);
        nodes = Nodes { links, last: None };
    }
    Ok(nodes)
}

/// Adds levels until one node is left, then removes inner nodes with a single link from the top.
fn build_upwards<S: CachedSequence>(
    session: &WriteSession,
    mut level: u32,
    mut nodes: Nodes<S>,
) -> Result<Option<S::Link>> {
    loop {
        if nodes.links.is_empty() {
            return match nodes.last {
                None => Ok(None),
                Some(SequenceNode::Inner { level, links }) if links.len() == 1 => {
                    drop_single_links::<S>(session, level, links.into_iter().next().expect("one link")).map(Some)
                }
                Some(node) => session.put_node(node).map(Some),
            };
        }
        level += 1;
        let mut builder = Builder::new(session, level);
        for link in nodes.put_all(session)? {
            builder.push(Element::Link(link))?;
        }
        nodes = builder.finish()?;
    }
}

fn drop_single_links<S: CachedSequence>(session: &WriteSession, mut level: u32, mut link: S::Link) -> Result<S::Link> {
    loop {
        match &*load_new_child::<S>(session, level, &link)? {
            SequenceNode::Inner { level: below, links } if links.len() == 1 => {
                level = *below;
                link = links[0].clone();
            }
            _ => return Ok(link),
        }
    }
}

enum Element<S: CachedSequence> {
    Item(S::Item),
    Link(S::Link),
}

struct LevelSplice<S: CachedSequence> {
    range: Range<u64>,
    elements: Vec<Element<S>>,
}

/// A range of old nodes of a level, by the indices of the items below them, and the new nodes that replace them.
struct Run<S: CachedSequence> {
    range: Range<u64>,
    nodes: Nodes<S>,
}

fn splice_level<S: CachedSequence>(
    session: &WriteSession,
    top: &Arc<SequenceNode<S>>,
    level: u32,
    splices: Vec<LevelSplice<S>>,
) -> Result<Vec<Run<S>>> {
    let mut runs = Vec::new();
    let total = top.count();
    let mut splices = splices.into_iter().peekable();
    while let Some(splice) = splices.next() {
        // At the end of the sequence the last node continues.
        let mut cursor = Cursor::seek(session.store(), top, level, splice.range.start.min(total - 1))?;
        cursor.rewind_to_node_start();
        let start = cursor.position;
        let mut builder = Builder::new(session, level);
        while cursor.position < splice.range.start {
            builder.push(cursor.take()?)?;
        }
        debug_assert_eq!(cursor.position, splice.range.start, "splices lie on the borders of elements");
        let mut next = Some(splice);
        loop {
            if let Some(splice) = next.take() {
                for element in splice.elements {
                    builder.push(element)?;
                }
                cursor.advance_to(splice.range.end)?;
                next = splices.next_if(|splice| splice.range.start == cursor.position);
                continue;
            }
            if cursor.is_at_end() || (builder.is_at_cut() && cursor.is_at_node_start()) {
                break;
            }
            builder.push(cursor.take()?)?;
            next = splices.next_if(|splice| splice.range.start == cursor.position);
        }
        runs.push(Run { range: start..cursor.position, nodes: builder.finish()? });
    }
    Ok(runs)
}

/// Finished nodes of a level. The last one is not written yet: if it turns out to be a lone top node, it may never be needed.
struct Nodes<S: CachedSequence> {
    links: Vec<S::Link>,
    last: Option<SequenceNode<S>>,
}

impl<S: CachedSequence> Nodes<S> {
    fn put_all(self, session: &WriteSession) -> Result<Vec<S::Link>> {
        let mut links = self.links;
        if let Some(node) = self.last {
            links.push(session.put_node(node)?);
        }
        Ok(links)
    }
}

/// Collects the elements of a level into nodes and cuts them by the cut rule.
struct Builder<'a, S: CachedSequence> {
    session: &'a WriteSession,
    level: u32,
    items: Vec<S::Item>,
    open_links: Vec<S::Link>,
    done: Nodes<S>,
}

impl<'a, S: CachedSequence> Builder<'a, S> {
    fn new(session: &'a WriteSession, level: u32) -> Self {
        let done = Nodes { links: Vec::new(), last: None };
        Self { session, level, items: Vec::new(), open_links: Vec::new(), done }
    }

    fn push(&mut self, element: Element<S>) -> Result<()> {
        let (count, hash) = match element {
            Element::Item(item) => {
                let hash = S::item_hash(&item);
                self.items.push(item);
                (self.items.len(), hash)
            }
            Element::Link(link) => {
                let hash = S::link_hash(&link, self.level);
                self.open_links.push(link);
                (self.open_links.len(), hash)
            }
        };
        if ends_node(count, hash) { self.cut() } else { Ok(()) }
    }

    fn is_at_cut(&self) -> bool {
        self.items.is_empty() && self.open_links.is_empty()
    }

    fn cut(&mut self) -> Result<()> {
        // Nodes stay in the cache, which counts the length of a vector and not its capacity.
        self.items.shrink_to_fit();
        self.open_links.shrink_to_fit();
        let node = match self.level {
            0 => SequenceNode::Leaf(std::mem::take(&mut self.items)),
            level => SequenceNode::Inner { level, links: std::mem::take(&mut self.open_links) },
        };
        if let Some(before) = self.done.last.replace(node) {
            self.done.links.push(self.session.put_node(before)?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Nodes<S>> {
        if !self.is_at_cut() {
            self.cut()?;
        }
        Ok(self.done)
    }
}

/// A position among the elements of one level.
struct Cursor<'a, S: CachedSequence> {
    store: &'a Store,
    top: &'a Arc<SequenceNode<S>>,
    level: u32,
    /// The nodes from the top to the cursor's level, with the position in each.
    path: Vec<(Arc<SequenceNode<S>>, usize)>,
    /// The number of items before the cursor.
    position: u64,
    total: u64,
}

impl<'a, S: CachedSequence> Cursor<'a, S> {
    fn seek(store: &'a Store, top: &'a Arc<SequenceNode<S>>, level: u32, index: u64) -> Result<Self> {
        let mut cursor = Self { store, top, level, path: Vec::new(), position: 0, total: top.count() };
        cursor.descend(index)?;
        Ok(cursor)
    }

    /// Moves to the element that holds the item at this index.
    fn descend(&mut self, index: u64) -> Result<()> {
        self.path.clear();
        self.position = 0;
        let mut node = Arc::clone(self.top);
        loop {
            let mut at = 0;
            while at + 1 < elements(&node) && self.position + element_count(&node, at) <= index {
                self.position += element_count(&node, at);
                at += 1;
            }
            if node.level() == self.level {
                self.path.push((node, at));
                return Ok(());
            }
            let child = child(self.store, &node, at)?;
            self.path.push((node, at));
            node = child;
        }
    }

    fn is_at_end(&self) -> bool {
        self.position >= self.total
    }

    fn is_at_node_start(&self) -> bool {
        self.path.last().is_some_and(|(_, at)| *at == 0)
    }

    fn rewind_to_node_start(&mut self) {
        let (node, at) = self.path.last_mut().expect("a cursor has a place");
        while *at > 0 {
            *at -= 1;
            self.position -= element_count(node, *at);
        }
    }

    fn advance_to(&mut self, index: u64) -> Result<()> {
        if index >= self.total {
            self.position = self.total;
            return Ok(());
        }
        while self.position < index {
            let (node, at) = self.path.last().expect("a cursor has a place");
            if *at + 1 == elements(node) && self.path.len() > 1 {
                // A long jump descends from the top instead of stepping from node to node.
                return self.descend(index);
            }
            self.step()?;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Element<S>> {
        let (node, at) = self.path.last().expect("a cursor has a place");
        let element = match &**node {
            SequenceNode::Leaf(items) => Element::Item(items[*at].clone()),
            SequenceNode::Inner { links, .. } => Element::Link(links[*at].clone()),
        };
        self.step()?;
        Ok(element)
    }

    fn step(&mut self) -> Result<()> {
        let (node, at) = self.path.last_mut().expect("a cursor has a place");
        self.position += element_count(node, *at);
        *at += 1;
        if *at < elements(node) || self.is_at_end() {
            return Ok(());
        }
        while let Some((node, at)) = self.path.last() {
            if at + 1 < elements(node) && node.level() > self.level {
                break;
            }
            self.path.pop();
        }
        let Some((node, at)) = self.path.last_mut() else {
            return Err(Error::Malformed { id: unknown::<S>(), source: Malformed::Link });
        };
        *at += 1;
        let mut below = child(self.store, node, *at)?;
        while below.level() > self.level {
            let next = child(self.store, &below, 0)?;
            self.path.push((below, 0));
            below = next;
        }
        self.path.push((below, 0));
        Ok(())
    }
}

fn unknown<S: CachedSequence>() -> ObjectId {
    ObjectId { kind: S::KIND, hash: [0; 32] }
}

fn elements<S: CachedSequence>(node: &SequenceNode<S>) -> usize {
    match node {
        SequenceNode::Leaf(items) => items.len(),
        SequenceNode::Inner { links, .. } => links.len(),
    }
}

fn element_count<S: CachedSequence>(node: &SequenceNode<S>, at: usize) -> u64 {
    match node {
        SequenceNode::Leaf(_) => 1,
        SequenceNode::Inner { links, .. } => S::link_count(&links[at]),
    }
}

fn child<S: CachedSequence>(store: &Store, node: &SequenceNode<S>, at: usize) -> Result<Arc<SequenceNode<S>>> {
    match node {
        SequenceNode::Inner { level, links } => load_child(store, *level, &links[at]),
        SequenceNode::Leaf(_) => unreachable!("a leaf has no children"),
    }
}
