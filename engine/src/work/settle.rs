//! After a commit: what was committed becomes the base, and only what was edited since stays dirty.

use std::sync::Arc;

use super::freeze::{Frozen, Written};
use super::node::{Body, Child, Dir, Leaf, Memo, XattrsNow};
use super::ordmap::OrdMap;
use super::{Base, State, WorkingTree};
use crate::directory;
use crate::error::Result;
use crate::id::SnapshotId;
use crate::object::{Entry, Node, Xattrs};
use crate::store::{SessionMark, Store};

/// Directories nested deeper than this stay dirty when they were edited during the commit; the next commit looks again.
const SETTLE_DEPTH_MAX: usize = 128;

impl WorkingTree {
    /// Moves the base of this tree to what was just written from a freeze of it.
    pub(crate) fn settle_on(
        &mut self,
        frozen: &Frozen,
        written: Written,
        snapshot: SnapshotId,
        mark: SessionMark,
    ) -> Result<()> {
        let before = &frozen.tree.state;
        let live = &mut self.state;
        if live.base.snapshot != before.base.snapshot || live.base.root != before.base.root {
            // The tree went elsewhere since, by a restore or by another freeze that landed first.
            return Ok(());
        }
        let values_same = live.values.is_same(&before.values);
        if Arc::ptr_eq(&live.root, &before.root) && live.groups.is_same(&before.groups) && values_same {
            *live = State::clean(written.root, Some(snapshot), mark);
            return Ok(());
        }
        if !live.groups.is_empty() || !before.groups.is_empty() {
            // Names of one file can lie anywhere: the tree stays relative to its old base, the ids given are kept.
            live.assigned = written.assigned;
            live.base.snapshot = Some(snapshot);
            return Ok(());
        }
        let mut settling = Settling { store: &self.store, needs_old_base: false };
        match settling.directory(&live.root, &before.root, SETTLE_DEPTH_MAX)? {
            Child::Dir(root) => live.root = root,
            Child::Clean(entry) => {
                let Node::Directory(contents) = entry.node else { unreachable!("a directory stays one") };
                let root = Dir::stored(&entry, contents);
                root.memo.set(entry, &mark);
                live.root = Arc::new(root);
            }
            Child::Leaf(_) | Child::Linked(_) => unreachable!("a directory stays one"),
        }
        let mut older = Vec::new();
        if settling.needs_old_base {
            older.append(&mut live.base.older);
            older.extend(live.base.mark.take());
        }
        let mut values = OrdMap::default();
        for (key, value) in live.values.iter() {
            if before.values.get(key) != Some(value) {
                values.insert(key.clone(), value.clone());
            }
        }
        live.values = values;
        live.base = Base { root: Some(written.root), snapshot: Some(snapshot), mark: Some(mark), older };
        Ok(())
    }
}

struct Settling<'a> {
    store: &'a Store,
    needs_old_base: bool,
}

impl Settling<'_> {
    /// The live directory relative to what the frozen one became.
    fn directory(&mut self, live: &Arc<Dir>, frozen: &Arc<Dir>, depth_left: usize) -> Result<Child> {
        let stored = frozen.memo.stored();
        let Some(entry) = stored.filter(|_| live.base == frozen.base && depth_left > 0) else {
            self.needs_old_base = true;
            return Ok(Child::Dir(Arc::clone(live)));
        };
        if Arc::ptr_eq(live, frozen) {
            return Ok(Child::Clean(entry));
        }
        let Node::Directory(contents) = entry.node else { unreachable!("a directory stays one") };
        let mut edits = OrdMap::default();
        for (name, child) in live.edits.iter() {
            match (child, frozen.edits.get(name)) {
                (None, Some(None)) => {}
                (Some(ours), Some(Some(theirs))) if ours.is_same(theirs) => {}
                (Some(Child::Dir(ours)), Some(Some(Child::Dir(theirs)))) => {
                    match self.directory(ours, theirs, depth_left - 1)? {
                        Child::Clean(_) => {}
                        settled => drop(edits.insert(name.clone(), Some(settled))),
                    }
                }
                (Some(Child::Leaf(ours)), Some(Some(Child::Leaf(theirs)))) => {
                    edits.insert(name.clone(), Some(Child::Leaf(self.leaf(ours, theirs))));
                }
                _ => {
                    self.needs_old_base |= child.is_some();
                    edits.insert(name.clone(), child.clone());
                }
            }
        }
        for (name, _) in frozen.edits.iter() {
            if live.edits.get(name).is_none() {
                // The edit was taken back since: what shows there is the old base again.
                let old = directory::get(self.store, live.base, name)?;
                self.needs_old_base |= old.is_some();
                edits.insert(name.clone(), old.map(Child::Clean));
            }
        }
        Ok(Child::Dir(Arc::new(Dir { meta: live.meta.clone(), base: contents, edits, memo: Memo::default() })))
    }

    /// A file that was edited on, over the content that its frozen state became.
    fn leaf(&mut self, live: &Arc<Leaf>, frozen: &Arc<Leaf>) -> Arc<Leaf> {
        self.needs_old_base |= matches!(live.meta.xattrs, XattrsNow::Stored(Xattrs::Apart(_)));
        let Body::File(data) = &live.body else { return Arc::clone(live) };
        if let Body::File(before) = &frozen.body
            && let Some(Entry { node: Node::File { content, .. }, .. }) = frozen.memo.stored()
            && let Some(data) = data.over(before, content)
        {
            return Arc::new(Leaf::new(Body::File(data), live.meta.clone()));
        }
        self.needs_old_base |= data.needs_base();
        Arc::clone(live)
    }
}
