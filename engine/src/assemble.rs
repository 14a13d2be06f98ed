//! Assembles a tree from parts that are put one by one. Used to capture real files.
//!
//! All parts are put in one write session, so that a concurrent collection deletes none of them: first the contents, then
//! directories from the bottom up, then the root. The result is a working tree whose parts are all stored, ready to be committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::directory;
use crate::error::Result;
use crate::id::{LinksId, RootId};
use crate::merkle::{self, Items, Splice, find};
use crate::name::Name;
use crate::object::{DirectoryRef, Entry, LinkMember, Links, Root};
use crate::store::{Pin, Store, WriteSession};
use crate::work::WorkingTree;

/// A tree under construction.
pub struct Assembly {
    session: WriteSession,
    base: Option<Arc<Root>>,
    _kept: Option<Pin>,
}

impl Assembly {
    /// Starts an assembly that may reuse parts of a stored tree.
    pub fn new(store: &Store, base: Option<RootId>) -> Result<Self> {
        let kept = base.map(|root| store.hold(root)).transpose()?;
        let base = base.map(|root| store.root(root)).transpose()?;
        Ok(Self { session: store.session(), base, _kept: kept })
    }

    /// Returns the session for contents and attributes.
    pub fn session(&self) -> &WriteSession {
        &self.session
    }

    /// Returns the tree whose parts may be reused.
    pub fn base(&self) -> Option<&Root> {
        self.base.as_deref()
    }

    /// Returns the counter of bytes written to the store, in stored form. It is final after `finish`.
    pub fn stored_bytes(&self) -> Arc<AtomicU64> {
        self.session.stored()
    }

    /// Applies edits to a directory: sets these names or, with `None`, removes them. The names ascend. The objects that the
    /// entries refer to must have been put in this session or belong to the base.
    pub fn directory(
        &self,
        before: Option<DirectoryRef>,
        edits: Vec<(Name, Option<Entry>)>,
    ) -> Result<Option<DirectoryRef>> {
        directory::apply(&self.session, before, edits)
    }

    /// Completes the tree with the root's entry and all names of files that have several. Keeps the base's state values.
    pub fn finish(self, directory: Entry, links: &BTreeSet<LinkMember>) -> Result<WorkingTree> {
        let before = self.base.as_ref().and_then(|root| root.links);
        let links = self.links(before, links)?;
        let state = self.base.as_ref().and_then(|root| root.state);
        let root = self.session.put_root(&Root { directory, links, state })?;
        self.session.write_all_ahead()?;
        // Opening the tree pins it before the session closes, so that it is protected at every moment.
        WorkingTree::open_root(self.session.store(), root)
    }

    fn links(&self, before: Option<LinksId>, now: &BTreeSet<LinkMember>) -> Result<Option<LinksId>> {
        let store = self.session.store();
        let top = before.map(|links| links.object());
        let mut edits: BTreeMap<LinkMember, bool> = now.iter().map(|member| (member.clone(), true)).collect();
        for member in Items::<Links>::all(store, top)? {
            let member = member?;
            if now.contains(&member) {
                edits.remove(&member);
            } else {
                edits.insert(member, false);
            }
        }
        let mut splices = Vec::new();
        for (member, is_there) in edits {
            let index = match top {
                Some(top) => find::<Links>(store, top, &member)?.index,
                None => 0,
            };
            splices.push(match is_there {
                true => Splice { range: index..index, items: vec![member] },
                false => Splice { range: index..index + 1, items: Vec::new() },
            });
        }
        Ok(merkle::splice::<Links>(&self.session, top, splices)?.map(|link| link.id))
    }
}
