//! Searches and lists sequences that are sorted by a key.

use std::sync::Arc;

use super::{load_child, load_top};
use crate::error::Result;
use crate::id::ObjectId;
use crate::name::Name;
use crate::object::{
    Directories, DirectoryItem, DirectoryLink, LinkLink, LinkMember, Links, SequenceNode, StateItem, StateLink, States,
};
use crate::store::{CachedSequence, Store};

/// A sequence that is sorted by a key and cut by keys alone.
pub(crate) trait Keyed: CachedSequence {
    type Key: Ord + ?Sized;
    fn item_key(item: &Self::Item) -> &Self::Key;
    fn link_key(link: &Self::Link) -> &Self::Key;
}

impl Keyed for Directories {
    type Key = Name;

    fn item_key(item: &DirectoryItem) -> &Name {
        &item.name
    }

    fn link_key(link: &DirectoryLink) -> &Name {
        &link.first
    }
}

impl Keyed for Links {
    type Key = LinkMember;

    fn item_key(item: &LinkMember) -> &LinkMember {
        item
    }

    fn link_key(link: &LinkLink) -> &LinkMember {
        &link.first
    }
}

impl Keyed for States {
    type Key = [u8];

    fn item_key(item: &StateItem) -> &[u8] {
        &item.key
    }

    fn link_key(link: &StateLink) -> &[u8] {
        &link.first
    }
}

/// The position of a key: the number of items before it, and its item if the key exists.
pub(crate) struct SearchPosition<T> {
    pub(crate) index: u64,
    pub(crate) item: Option<T>,
}

/// Searches for a key.
pub(crate) fn find<S: Keyed>(store: &Store, top: ObjectId, key: &S::Key) -> Result<SearchPosition<S::Item>> {
    look::<S, _>(store, top, key, |item| item.cloned()).map(|(index, item)| SearchPosition { index, item })
}

/// Searches for a key. Returns the number of items before it and the result of `say` for its item, if the key exists.
pub(crate) fn look<S: Keyed, T>(
    store: &Store,
    top: ObjectId,
    key: &S::Key,
    say: impl FnOnce(Option<&S::Item>) -> T,
) -> Result<(u64, T)> {
    let mut node = load_top::<S>(store, top)?;
    let mut index = 0;
    loop {
        let below = match &*node {
            SequenceNode::Leaf(items) => {
                let at = items.partition_point(|item| S::item_key(item) < key);
                return Ok((index + at as u64, say(items.get(at).filter(|item| S::item_key(item) == key))));
            }
            SequenceNode::Inner { level, links } => {
                let at = links.partition_point(|link| S::link_key(link) <= key).saturating_sub(1);
                index += links[..at].iter().map(S::link_count).sum::<u64>();
                load_child::<S>(store, *level, &links[at])?
            }
        };
        node = below;
    }
}

/// Iterates over the items of a sequence in order and loads nodes on demand.
pub(crate) struct Items<S: CachedSequence> {
    store: Store,
    path: Vec<(Arc<SequenceNode<S>>, usize)>,
}

impl<S: CachedSequence> Items<S> {
    /// Iterates over all items.
    pub(crate) fn all(store: &Store, top: Option<ObjectId>) -> Result<Self> {
        let mut items = Self { store: store.clone(), path: Vec::new() };
        if let Some(top) = top {
            let node = load_top::<S>(store, top)?;
            items.go_down(node)?;
        }
        Ok(items)
    }

    fn go_down(&mut self, mut node: Arc<SequenceNode<S>>) -> Result<()> {
        loop {
            let first = match &*node {
                SequenceNode::Leaf(_) => None,
                SequenceNode::Inner { level, links } => Some(load_child::<S>(&self.store, *level, &links[0])?),
            };
            self.path.push((node, 0));
            match first {
                Some(below) => node = below,
                None => return Ok(()),
            }
        }
    }

    fn advance(&mut self) -> Result<Option<S::Item>> {
        while let Some((node, at)) = self.path.last_mut() {
            match &**node {
                SequenceNode::Leaf(items) => {
                    if let Some(item) = items.get(*at) {
                        *at += 1;
                        return Ok(Some(item.clone()));
                    }
                }
                SequenceNode::Inner { level, links } => {
                    *at += 1;
                    if let Some(link) = links.get(*at) {
                        let below = load_child::<S>(&self.store, *level, link)?;
                        self.go_down(below)?;
                        continue;
                    }
                }
            }
            self.path.pop();
        }
        Ok(None)
    }
}

impl<S: Keyed> Items<S> {
    /// Iterates over the items from this key on.
    pub(crate) fn from(store: &Store, top: Option<ObjectId>, key: &S::Key) -> Result<Self> {
        let mut items = Self { store: store.clone(), path: Vec::new() };
        let Some(top) = top else { return Ok(items) };
        let mut node = load_top::<S>(store, top)?;
        loop {
            let (at, below) = match &*node {
                SequenceNode::Leaf(list) => (list.partition_point(|item| S::item_key(item) < key), None),
                SequenceNode::Inner { level, links } => {
                    let at = links.partition_point(|link| S::link_key(link) <= key).saturating_sub(1);
                    (at, Some(load_child::<S>(store, *level, &links[at])?))
                }
            };
            items.path.push((node, at));
            match below {
                Some(below) => node = below,
                None => return Ok(items),
            }
        }
    }
}

impl<S: CachedSequence> Iterator for Items<S> {
    type Item = Result<S::Item>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(item) => item.map(Ok),
            Err(error) => {
                self.path.clear();
                Some(Err(error))
            }
        }
    }
}
