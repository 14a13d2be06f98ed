//! Identity of edited content, and the state values of a tree with its edits.

use bytes::Bytes;

use super::node::Body;
use super::{LooseFile, WorkingTree};
use crate::error::Result;
use crate::merkle::Items;
use crate::object::{Content, Node, StateItem, States};

/// State values that are read at once.
const STATES_AT_ONCE: usize = 256;

impl LooseFile {
    /// Returns the content that the file would be stored as, or `None` if it is not a file. Reads the edited parts; stores nothing.
    pub fn content(&self) -> Result<Option<Content>> {
        let Body::File(data) = &self.leaf.body else { return Ok(None) };
        if let Some(Node::File { content, .. }) = self.leaf.memo.stored().map(|entry| entry.node) {
            return Ok(Some(content));
        }
        // The session is not committed: its objects are garbage.
        data.freeze(&self.store.session()).map(Some)
    }

    /// Estimates how many bytes [`content`](Self::content) has to read.
    pub fn unstored_bytes(&self) -> u64 {
        match &self.leaf.body {
            Body::File(_) if self.leaf.memo.stored().is_some() => 0,
            Body::File(data) => data.dirty_bytes(),
            Body::Other(_) => 0,
        }
    }
}

impl WorkingTree {
    /// Lists up to `limit` state values after the key `after` whose keys start with a prefix, sorted by key. Values are JSON text.
    pub fn states(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, String)>> {
        let first = after.filter(|after| *after >= prefix).unwrap_or(prefix).as_bytes();
        let top = self.state.base.root.as_ref().and_then(|root| root.state).map(|top| top.object());
        let mut stored = Items::<States>::from(&self.store, top, first)?.peekable();
        let first = Bytes::copy_from_slice(first);
        let mut edits = self.state.values.iter_from(&first).peekable();
        let mut found = Vec::new();
        while found.len() < limit {
            let is_edit = match (stored.peek(), edits.peek()) {
                (None, None) => break,
                (Some(Err(_)), _) => {
                    stored.next().transpose()?;
                    continue;
                }
                (Some(Ok(item)), Some((key, _))) => **key <= item.key,
                (None, Some(_)) => true,
                (Some(Ok(_)), None) => false,
            };
            let (key, value) = if is_edit {
                let Some((key, value)) = edits.next() else { break };
                stored.next_if(|item| item.as_ref().is_ok_and(|item| item.key == *key)).transpose()?;
                (key.clone(), value.clone())
            } else {
                let Some(StateItem { key, value }) = stored.next().transpose()? else { break };
                (key, Some(value))
            };
            if !key.starts_with(prefix.as_bytes()) {
                break;
            }
            let Some(value) = value.filter(|_| after.is_none_or(|after| key[..] > *after.as_bytes())) else { continue };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            found.push((text(&key), text(&value)));
        }
        Ok(found)
    }

    /// Sets the state values of another tree that this tree does not have.
    pub fn add_states_of(&mut self, other: &Self) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = other.states("", after.as_deref(), STATES_AT_ONCE)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            for (key, value) in &page {
                if self.state(key)?.is_none() {
                    self.set_state(key, value)?;
                }
            }
        }
    }

    /// Returns whether two trees of one store have equal state values.
    pub fn has_same_states(&self, other: &Self) -> Result<bool> {
        let stored = |tree: &Self| tree.state.base.root.as_ref().and_then(|root| root.state);
        if stored(self) == stored(other) && self.state.values.is_same(&other.state.values) {
            return Ok(true);
        }
        let mut after: Option<String> = None;
        loop {
            let page = self.states("", after.as_deref(), STATES_AT_ONCE)?;
            if page != other.states("", after.as_deref(), STATES_AT_ONCE)? {
                return Ok(false);
            }
            match page.last() {
                Some((last, _)) => after = Some(last.clone()),
                None => return Ok(true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{RefMove, Store};

    /// Stores a tree and opens it again.
    fn stored(tree: &WorkingTree) -> WorkingTree {
        let session = tree.store().session();
        let root = tree.freeze().write(&session).expect("written");
        session.commit(root, RefMove::default()).expect("committed");
        WorkingTree::open_root(tree.store(), root).expect("opened")
    }

    #[test]
    fn states_are_listed_with_edits_over_stored_ones() {
        let mut tree = WorkingTree::new(&Store::in_memory());
        for key in ["a", "b/1", "b/2", "b/3", "c"] {
            tree.set_state(key, "1").expect("set");
        }
        let mut tree = stored(&tree);
        let before = tree.fork();
        assert!(tree.has_same_states(&before).expect("compared"));
        tree.remove_state("b/2").expect("removed");
        tree.set_state("b/25", "2").expect("set");
        tree.set_state("b/3", "3").expect("set");
        let keys = |after: Option<&str>, limit| {
            let found = tree.states("b/", after, limit).expect("listed");
            found.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(keys(None, 10), ["b/1=1", "b/25=2", "b/3=3"]);
        assert_eq!(keys(Some("b/1"), 1), ["b/25=2"]);
        assert_eq!(keys(Some("b/2"), 10), ["b/25=2", "b/3=3"]);
        assert!(!tree.has_same_states(&before).expect("compared"));
        let mut other = WorkingTree::new(tree.store());
        other.set_state("a", "7").expect("set");
        other.add_states_of(&tree).expect("added");
        assert_eq!(
            (other.state("a").expect("read").as_deref(), other.states("", None, 9).expect("listed").len()),
            (Some("7"), 5)
        );
    }

    #[test]
    fn the_content_of_an_edited_file_is_that_of_its_commit() {
        let mut tree = WorkingTree::new(&Store::in_memory());
        for (path, bytes) in [("small", vec![7; 100]), ("large", (0..300_000_u32).map(|n| (n % 251) as u8).collect())] {
            tree.write(path, &bytes).expect("written");
        }
        tree.write("empty", b"").expect("written");
        let contents = |tree: &WorkingTree| {
            ["small", "large", "empty"].map(|path| tree.loose(path).expect("a file").content().expect("read"))
        };
        let before = contents(&tree);
        let tree = stored(&tree);
        assert_eq!(contents(&tree), before);
        assert_eq!(tree.loose("large").expect("a file").unstored_bytes(), 0);
        assert!(before.iter().all(Option::is_some));
    }
}
