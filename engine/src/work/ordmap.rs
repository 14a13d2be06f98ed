//! A persistent sorted map with structural sharing: a clone copies a pointer, a change copies one path. It is a balanced tree
//! (AVL), so that no sequence of keys makes it deep.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

pub(crate) struct OrdMap<K, V> {
    root: Link<K, V>,
}

type Link<K, V> = Option<Arc<Node<K, V>>>;

#[derive(Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    height: u8,
    left: Link<K, V>,
    right: Link<K, V>,
}

impl<K, V> Clone for OrdMap<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone() }
    }
}

impl<K, V> Default for OrdMap<K, V> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<K: Ord + Clone, V: Clone> OrdMap<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns whether the two maps are the same tree in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        }
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut link = &self.root;
        while let Some(node) = link {
            match key.cmp(node.key.borrow()) {
                Ordering::Less => link = &node.left,
                Ordering::Greater => link = &node.right,
                Ordering::Equal => return Some(&node.value),
            }
        }
        None
    }

    /// Returns a mutable reference to a value. Copies the shared part of the path to it.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        // Without this lookup a missing key would copy the path for nothing.
        self.get(key)?;
        self.known_mut(key)
    }

    /// Returns a mutable reference to the value of a key that the caller knows to exist.
    pub(crate) fn known_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut link = &mut self.root;
        while let Some(node) = link {
            let node = Arc::make_mut(node);
            match key.cmp(node.key.borrow()) {
                Ordering::Less => link = &mut node.left,
                Ordering::Greater => link = &mut node.right,
                Ordering::Equal => return Some(&mut node.value),
            }
        }
        None
    }

    /// Returns the last pair whose key is at most this one.
    pub(crate) fn floor(&self, key: &K) -> Option<(&K, &V)> {
        let mut link = &self.root;
        let mut best = None;
        while let Some(node) = link {
            if node.key <= *key {
                best = Some((&node.key, &node.value));
                link = &node.right;
            } else {
                link = &node.left;
            }
        }
        best
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        insert(&mut self.root, key, value)
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.get(key)?;
        remove(&mut self.root, key).map(|(_, value)| value)
    }

    /// Consumes this map and calls `each` with the values that no other map shares.
    pub(crate) fn take_apart(self, mut each: impl FnMut(V)) {
        let mut open = Vec::from_iter(self.root);
        while let Some(node) = open.pop() {
            if let Some(node) = Arc::into_inner(node) {
                open.extend(node.left);
                open.extend(node.right);
                each(node.value);
            }
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { path: Vec::new() };
        iter.go_left(&self.root);
        iter
    }

    /// Iterates over the pairs whose key is at least this one.
    pub(crate) fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let mut iter = Iter { path: Vec::new() };
        let mut link = &self.root;
        while let Some(node) = link {
            if node.key.borrow() < key {
                link = &node.right;
            } else {
                iter.path.push(node);
                link = &node.left;
            }
        }
        iter
    }
}

pub(crate) struct Iter<'a, K, V> {
    path: Vec<&'a Node<K, V>>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn go_left(&mut self, mut link: &'a Link<K, V>) {
        while let Some(node) = link {
            self.path.push(node);
            link = &node.left;
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.path.pop()?;
        self.go_left(&node.right);
        Some((&node.key, &node.value))
    }
}

fn height<K, V>(link: &Link<K, V>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

fn insert<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>, key: K, value: V) -> Option<V> {
    let Some(arc) = link else {
        *link = Some(Arc::new(Node { key, value, height: 1, left: None, right: None }));
        return None;
    };
    let node = Arc::make_mut(arc);
    let replaced = match key.cmp(&node.key) {
        Ordering::Less => insert(&mut node.left, key, value),
        Ordering::Greater => insert(&mut node.right, key, value),
        Ordering::Equal => return Some(std::mem::replace(&mut node.value, value)),
    };
    balance(arc);
    replaced
}

fn remove<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized>(link: &mut Link<K, V>, key: &Q) -> Option<(K, V)> {
    let arc = link.as_mut()?;
    let node = Arc::make_mut(arc);
    let removed = match key.cmp(node.key.borrow()) {
        Ordering::Less => remove(&mut node.left, key),
        Ordering::Greater => remove(&mut node.right, key),
        Ordering::Equal => {
            let (left, right) = (node.left.take(), node.right.take());
            let removed = Some((node.key.clone(), node.value.clone()));
            *link = join(left, right);
            return removed;
        }
    };
    balance(arc);
    removed
}

fn join<K: Ord + Clone, V: Clone>(left: Link<K, V>, mut right: Link<K, V>) -> Link<K, V> {
    let Some((key, value)) = remove_first(&mut right) else {
        return left;
    };
    let mut arc = Arc::new(Node { key, value, height: 1, left, right });
    balance(&mut arc);
    Some(arc)
}

fn remove_first<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>) -> Option<(K, V)> {
    let arc = link.as_mut()?;
    let node = Arc::make_mut(arc);
    if node.left.is_none() {
        let first = (node.key.clone(), node.value.clone());
        *link = node.right.take();
        return Some(first);
    }
    let first = remove_first(&mut node.left);
    balance(arc);
    first
}

/// Restores the invariant that the heights of two siblings differ by at most one. It held before a single change below.
fn balance<K: Clone, V: Clone>(arc: &mut Arc<Node<K, V>>) {
    let node = Arc::make_mut(arc);
    let (left, right) = (height(&node.left), height(&node.right));
    if left > right + 1 {
        let child = node.left.as_mut().expect("the higher side is there");
        if height(&child.left) < height(&child.right) {
            rotate_left(child);
        }
        rotate_right(arc);
    } else if right > left + 1 {
        let child = node.right.as_mut().expect("the higher side is there");
        if height(&child.right) < height(&child.left) {
            rotate_right(child);
        }
        rotate_left(arc);
    } else {
        node.height = left.max(right) + 1;
    }
}

fn rotate_right<K: Clone, V: Clone>(arc: &mut Arc<Node<K, V>>) {
    let node = Arc::make_mut(arc);
    let mut pivot = node.left.take().expect("rotated towards a child");
    node.left = Arc::make_mut(&mut pivot).right.take();
    node.height = height(&node.left).max(height(&node.right)) + 1;
    std::mem::swap(arc, &mut pivot);
    let top = Arc::make_mut(arc);
    top.right = Some(pivot);
    top.height = height(&top.left).max(height(&top.right)) + 1;
}

fn rotate_left<K: Clone, V: Clone>(arc: &mut Arc<Node<K, V>>) {
    let node = Arc::make_mut(arc);
    let mut pivot = node.right.take().expect("rotated towards a child");
    node.right = Arc::make_mut(&mut pivot).left.take();
    node.height = height(&node.left).max(height(&node.right)) + 1;
    std::mem::swap(arc, &mut pivot);
    let top = Arc::make_mut(arc);
    top.left = Some(pivot);
    top.height = height(&top.left).max(height(&top.right)) + 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn check_balance<K, V>(link: &Link<K, V>) -> u8 {
        let Some(node) = link else { return 0 };
        let (left, right) = (check_balance(&node.left), check_balance(&node.right));
        assert!(left.abs_diff(right) <= 1, "siblings of height {left} and {right}");
        assert_eq!(node.height, left.max(right) + 1);
        node.height
    }

    proptest! {
        #[test]
        fn behaves_as_a_sorted_map_and_forks_stay_apart(
            steps in prop::collection::vec((any::<bool>(), 0_u8..60, any::<u8>(), any::<bool>()), 1..300)
        ) {
            let mut map = OrdMap::default();
            let mut model = BTreeMap::new();
            let mut forks = Vec::new();
            for (add, key, value, fork) in steps {
                if fork {
                    forks.push((map.clone(), model.clone()));
                }
                if add {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
                if let Some(place) = map.get_mut(&value) {
                    *place = place.wrapping_add(1);
                    let place = model.get_mut(&value).expect("the model has it too");
                    *place = place.wrapping_add(1);
                }
                check_balance(&map.root);
                prop_assert_eq!(map.floor(&key), model.range(..=key).next_back());
                prop_assert!(map.iter_from(&key).eq(model.range(key..)));
            }
            forks.push((map, model));
            for (map, model) in forks {
                prop_assert!(map.iter().eq(model.iter()));
            }
        }
    }
}
