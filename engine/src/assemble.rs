//! Assembling a tree from parts that were put one by one: what a capture of real files does.
//!
//! Everything happens in one write session, so that a collection that runs beside it takes nothing away: contents first, then
//! directories from the bottom up, then the root. What comes out is a working tree whose parts are all stored, to be committed.

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

/// A tree on its way into the store.
pub struct Assembly {
    session: WriteSession,
    base: Option<Arc<Root>>,
    _kept: Option<Pin>,
}

impl Assembly {
    /// Begins one that may use parts of a tree that is stored.
    pub fn new(store: &Store, base: Option<RootId>) -> Result<Self> {
        let kept = base.map(|root| store.hold(root)).transpose()?;
        let base = base.map(|root| store.root(root)).transpose()?;
        Ok(Self { session: store.session(), base, _kept: kept })
    }

    /// Where contents and attributes are put.
    pub fn session(&self) -> &WriteSession {
        &self.session
    }

    /// The tree whose parts may be used as they are.
    pub fn base(&self) -> Option<&Root> {
        self.base.as_deref()
    }

    /// How many bytes the store took in for it, as they are stored. Complete once it is finished.
    pub fn stored_bytes(&self) -> Arc<AtomicU64> {
        self.session.stored()
    }

    /// A directory with these names set or, with `None`, removed. The names ascend; what the entries refer to was put in this
    /// session or belongs to the base.
    pub fn directory(
        &self,
        before: Option<DirectoryRef>,
        edits: Vec<(Name, Option<Entry>)>,
    ) -> Result<Option<DirectoryRef>> {
        directory::apply(&self.session, before, edits)
    }

    /// Ends it with the root's entry and all the names of files that have several. The base's state values stay.
    pub fn finish(self, directory: Entry, links: &BTreeSet<LinkMember>) -> Result<WorkingTree> {
        let before = self.base.as_ref().and_then(|root| root.links);
        let links = self.links(before, links)?;
        let state = self.base.as_ref().and_then(|root| root.state);
        let root = self.session.put_root(&Root { directory, links, state })?;
        self.session.write_all_ahead()?;
        // The tree pins it before the session closes, so that there is no moment without protection.
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
