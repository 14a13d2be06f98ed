//! After a commit, makes the committed tree the base of the working tree. Only edits made since the freeze stay dirty.

use std::sync::Arc;

use super::freeze::{Frozen, WrittenTree};
use super::node::{Body, Child, Dir, Leaf, Memo, XattrsNow};
use super::ordmap::OrdMap;
use super::{Base, State, WorkingTree};
use crate::directory;
use crate::error::Result;
use crate::id::SnapshotId;
use crate::object::{Entry, Node, Xattrs};
use crate::store::{SessionPin, Store};

/// Directories nested deeper than this stay dirty if they were edited during the commit; the next commit handles them.
const SETTLE_DEPTH_MAX: usize = 128;

impl WorkingTree {
    /// Moves the base of this tree to the result of writing a freeze of it.
    pub(crate) fn settle_on(
        &mut self,
        frozen: &Frozen,
        written: WrittenTree,
        snapshot: SnapshotId,
        pin: SessionPin,
    ) -> Result<()> {
        let before = &frozen.tree.state;
        let live = &mut self.state;
        if live.base.snapshot != before.base.snapshot || live.base.root != before.base.root {
            // The base has changed since, by a restore or by another freeze that was committed first.
            return Ok(());
        }
        let values_same = live.values.is_same(&before.values);
        if Arc::ptr_eq(&live.root, &before.root) && live.groups.is_same(&before.groups) && values_same {
            *live = State::clean(written.root, Some(snapshot), pin);
            return Ok(());
        }
        if !live.groups.is_empty() || !before.groups.is_empty() {
            // The names of a file can be in any directory: the tree stays relative to its old base and keeps the assigned ids.
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
                root.memo.set(entry, &pin);
                live.root = Arc::new(root);
            }
            Child::Leaf(_) | Child::Linked(_) => unreachable!("a directory stays one"),
        }
        let mut older = Vec::new();
        if settling.needs_old_base {
            older.append(&mut live.base.older);
            older.extend(live.base.pin.take());
        }
        let mut values = OrdMap::default();
        for (key, value) in live.values.iter() {
            if before.values.get(key) != Some(value) {
                values.insert(key.clone(), value.clone());
            }
        }
        live.values = values;
        live.clean.forget();
        live.base = Base { root: Some(written.root), snapshot: Some(snapshot), pin: Some(pin), older };
        Ok(())
    }
}

struct Settling<'a> {
    store: &'a Store,
    needs_old_base: bool,
}

impl Settling<'_> {
    /// Returns the live directory relative to the stored result of the frozen one.
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
                // The edit was reverted since: the name shows the old base again.
                let old = directory::get(self.store, live.base, name)?;
                self.needs_old_base |= old.is_some();
                edits.insert(name.clone(), old.map(Child::Clean));
            }
        }
        Ok(Child::Dir(Arc::new(Dir { meta: live.meta.clone(), base: contents, edits, memo: Memo::default() })))
    }

    /// Returns a file that was edited further, relative to the stored content of its frozen state.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Error;
    use crate::object::Snapshot;
    use crate::store::RefMove;
    use crate::time::Time;
    use crate::work::RenameMode;

    #[derive(Clone, Debug)]
    enum Edit {
        Write(&'static str, u8),
        Directory(&'static str),
        Remove(&'static str),
        Rename(&'static str, &'static str, RenameMode),
        Link(&'static str, &'static str),
        Mode(&'static str, u32),
        State(&'static str, Option<u8>),
    }

    fn edits(links: bool) -> impl Strategy<Value = Vec<Edit>> {
        let path = || prop::sample::select(vec!["a", "b", "a/a", "a/b", "b/a", "a/b/a", "a/b/b", "b/a/a"]);
        let mode = prop::sample::select(vec![RenameMode::Replace, RenameMode::Exchange]);
        let edit = prop_oneof![
            4 => (path(), 0_u8..3).prop_map(|(path, byte)| Edit::Write(path, byte)),
            4 => path().prop_map(Edit::Directory),
            2 => path().prop_map(Edit::Remove),
            3 => (path(), path(), mode).prop_map(|(from, to, mode)| Edit::Rename(from, to, mode)),
            u32::from(links) * 2 => (path(), path()).prop_map(|(from, to)| Edit::Link(from, to)),
            1 => (path(), 0_u32..0o777).prop_map(|(path, mode)| Edit::Mode(path, mode)),
            1 => (path(), prop::option::of(0_u8..3)).prop_map(|(key, value)| Edit::State(key, value)),
        ];
        prop::collection::vec(edit, 0..25)
    }

    /// Applies the edits. An edit that fails, fails in every tree alike and changes nothing.
    fn perform(tree: &mut WorkingTree, edits: &[Edit]) -> Vec<bool> {
        let done = |edit: &Edit| -> Result<(), Error> {
            match *edit {
                Edit::Write(path, byte) => tree.write(path, &vec![byte; 70_000]),
                Edit::Directory(path) => tree.create_directory(path, 0o755),
                Edit::Remove(path) => tree.remove_all(path),
                Edit::Rename(from, to, mode) => tree.rename(from, to, mode),
                Edit::Link(from, to) => tree.link(from, to),
                Edit::Mode(path, mode) => tree.set_mode(path, mode),
                Edit::State(key, Some(value)) => tree.set_state(key, &value.to_string()),
                Edit::State(key, None) => tree.remove_state(key).map(drop),
            }
        };
        edits.iter().map(done).map(|result| result.is_ok()).collect()
    }

    /// Simulates a commit, with edits between the freeze and its end.
    fn commit_around(tree: &mut WorkingTree, during: &[Edit]) -> Vec<bool> {
        let session = tree.store.session();
        let pin = session.pin().clone();
        let frozen = tree.freeze();
        let done = perform(tree, during);
        let written = frozen.write_root(&session).expect("write");
        let root = written.id;
        let snapshot = Snapshot {
            root,
            parents: Vec::new(),
            author: String::new(),
            time: Time::EPOCH,
            message: String::new(),
            metadata: Default::default(),
            generation: 0,
        };
        let snapshot = session.put_snapshot(snapshot).expect("put");
        session.commit(root, RefMove::default()).expect("commit");
        tree.settle_on(&frozen, written, snapshot, pin).expect("settle");
        assert_eq!(tree.base(), Some(snapshot));
        done
    }

    fn root(tree: &WorkingTree) -> crate::id::RootId {
        let session = tree.store.session();
        let root = tree.freeze().write(&session).expect("write");
        session.commit(root, RefMove::default()).expect("commit");
        root
    }

    fn check(rounds: &[(Vec<Edit>, Vec<Edit>)]) {
        let store = Store::in_memory();
        let (mut settled, mut plain) = (WorkingTree::new(&store), WorkingTree::new(&store));
        for (before, during) in rounds {
            assert_eq!(perform(&mut settled, before), perform(&mut plain, before));
            assert_eq!(commit_around(&mut settled, during), perform(&mut plain, during));
            assert_eq!(root(&settled), root(&plain));
        }
    }

    proptest! {
        #[test]
        fn edits_during_a_commit_are_neither_lost_nor_doubled(
            rounds in prop::collection::vec((edits(false), edits(false)), 1..5)
        ) {
            check(&rounds);
        }

        /// Compares visible state: the tree that never commits assigns the id of a group later, so the ids differ.
        #[test]
        fn edits_of_links_during_a_commit_are_neither_lost_nor_doubled(
            rounds in prop::collection::vec((edits(true), edits(true)), 1..4)
        ) {
            let store = Store::in_memory();
            let (mut settled, mut plain) = (WorkingTree::new(&store), WorkingTree::new(&store));
            for (before, during) in &rounds {
                assert_eq!(perform(&mut settled, before), perform(&mut plain, before));
                assert_eq!(commit_around(&mut settled, during), perform(&mut plain, during));
                for path in ["a", "b", "a/a", "a/b", "b/a", "a/b/a", "a/b/b", "b/a/a"] {
                    let seen = |tree: &WorkingTree| {
                        let stat = tree.stat(path).expect("stat");
                        stat.map(|stat| (stat.kind, stat.mode, stat.links, tree.read(path).ok()))
                    };
                    let stored = WorkingTree::open_root(&store, root(&settled)).expect("open");
                    assert_eq!(seen(&settled), seen(&plain), "{path}");
                    assert_eq!(seen(&stored), seen(&plain), "{path}, stored");
                }
            }
        }
    }
}
