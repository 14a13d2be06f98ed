//! Finds the snapshots and paths that damage affects: walks from each damaged object up to the references.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::facts::{ReferenceKind, claim_entry};
use super::graph::Graph;
use super::index::ObjectIndex;
use super::report::{AffectedPlace, Problem};
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};
use crate::name::{Name, TreePath};
use crate::object::{self, Directories, SequenceNode};
use crate::reference::RefName;
use crate::store::Store;

/// The objects above damaged ones.
pub(super) struct DamagedAncestors<'a> {
    store: &'a Store,
    graph: &'a Graph,
    /// The parents of objects that are damaged or above damage, each with the number of references.
    parents: HashMap<ObjectIndex, BTreeMap<ObjectIndex, u64>>,
    /// The references that hold an object; empty for a snapshot of the history.
    tops: BTreeMap<ObjectIndex, Vec<RefName>>,
    /// Cached contents of directories.
    names: HashMap<ObjectIndex, Names>,
    path_count: HashMap<ObjectIndex, u64>,
    listed_max: usize,
}

/// The names in a leaf of a directory, each with the objects it refers to.
type Names = Arc<Vec<(Name, Vec<ObjectId>)>>;

/// A path of names on the way down, the last one innermost.
#[derive(Clone)]
struct NamePath(Option<Arc<(Name, NamePath)>>);

impl<'a> DamagedAncestors<'a> {
    pub(super) fn new(
        store: &'a Store,
        graph: &'a Graph,
        held: &BTreeMap<ObjectIndex, Vec<RefName>>,
        listed_max: usize,
    ) -> Self {
        let mut tops = held.clone();
        for object_index in &graph.history {
            tops.entry(*object_index).or_default();
        }
        let mut above = Self {
            store,
            graph,
            parents: HashMap::new(),
            tops,
            names: HashMap::new(),
            path_count: HashMap::new(),
            listed_max,
        };
        above.find_parents();
        above
    }

    /// Returns whether an object is damaged or above damage.
    pub(super) fn is_above(&self, object_index: ObjectIndex) -> bool {
        let strong = self.graph.edges_of(object_index).iter().filter(|edge| edge.how != ReferenceKind::Parent);
        self.graph.damage.contains_key(&object_index)
            || strong
                .into_iter()
                .any(|edge| self.parents.get(&edge.to).is_some_and(|above| above.contains_key(&object_index)))
    }

    /// Marks the objects above damage, from the leaves up, then records the parents among them.
    fn find_parents(&mut self) {
        let graph = self.graph;
        let mut tainted = vec![false; graph.reached.len()];
        let mut seen = vec![false; graph.reached.len()];
        graph.damage.keys().for_each(|object_index| tainted[*object_index as usize] = true);
        let strong = |object_index: ObjectIndex| {
            graph.edges_of(object_index).iter().filter(|edge| edge.how != ReferenceKind::Parent)
        };
        for top in self.tops.keys() {
            let mut open = vec![(*top, false)];
            while let Some((object_index, below_seen)) = open.pop() {
                if below_seen {
                    tainted[object_index as usize] |= strong(object_index).any(|edge| tainted[edge.to as usize]);
                } else if !std::mem::replace(&mut seen[object_index as usize], true) {
                    open.push((object_index, true));
                    open.extend(
                        strong(object_index).filter(|edge| !seen[edge.to as usize]).map(|edge| (edge.to, false)),
                    );
                }
            }
        }
        for member in graph.members().iter().filter(|member| seen[member.object_index as usize]) {
            for edge in strong(member.object_index).filter(|edge| tainted[edge.to as usize]) {
                *self.parents.entry(edge.to).or_default().entry(member.object_index).or_default() += 1;
            }
        }
    }

    pub(super) fn fill(&mut self, object_index: ObjectIndex, problem: &mut Problem) -> Result<()> {
        let parents = self.parents.get(&object_index);
        problem.parents_more = parents.map_or(0, |parents| parents.len().saturating_sub(self.listed_max) as u64);
        let parents = parents.into_iter().flat_map(BTreeMap::keys).take(self.listed_max);
        problem.parents = parents.map(|object_index| self.graph.id(*object_index)).collect();
        let (places, listed) = self.places(object_index)?;
        problem.places = places.into_iter().collect();
        problem.places_more = self.path_count(object_index).saturating_sub(listed);
        Ok(())
    }

    /// Returns the number of paths to an object. Two names in one directory count twice, two chunks of one rope node once.
    fn path_count(&mut self, object_index: ObjectIndex) -> u64 {
        let mut open = vec![(object_index, false)];
        while let Some((object_index, above_done)) = open.pop() {
            if self.path_count.contains_key(&object_index) {
                continue;
            }
            let parents = self.parents.get(&object_index).into_iter().flatten();
            if above_done {
                let own = u64::from(self.tops.contains_key(&object_index));
                let path_count = parents.fold(own, |sum, (parent, times)| {
                    let times = if self.has_names(*parent) { *times } else { 1 };
                    sum.saturating_add(self.path_count.get(parent).copied().unwrap_or(0).saturating_mul(times))
                });
                self.path_count.insert(object_index, path_count);
            } else {
                open.push((object_index, true));
                open.extend(parents.map(|(parent, _)| (*parent, false)));
            }
        }
        self.path_count.get(&object_index).copied().unwrap_or(0)
    }

    fn has_names(&self, object_index: ObjectIndex) -> bool {
        let member = self.graph.member(object_index);
        self.graph.id(object_index).kind == ObjectKind::Directory
            && member.is_some_and(|member| member.facts.level == 0)
    }

    /// Returns the first places, and the number of paths that lead to them.
    fn places(&mut self, object_index: ObjectIndex) -> Result<(BTreeSet<AffectedPlace>, u64)> {
        let (mut places, mut listed) = (BTreeSet::new(), 0);
        let mut open = vec![(object_index, NamePath(None))];
        while let Some((object_index, below)) = open.pop() {
            if places.len() >= self.listed_max {
                break;
            }
            if let Some(refs) = self.tops.get(&object_index) {
                let refs = refs.iter().take(self.listed_max).cloned().collect();
                places.insert(AffectedPlace { top: self.graph.id(object_index), refs, path: below.path() });
                listed += 1;
            }
            let parents: Vec<_> =
                self.parents.get(&object_index).into_iter().flat_map(BTreeMap::keys).copied().collect();
            for parent in parents.into_iter().rev() {
                if !self.has_names(parent) {
                    open.push((parent, below.clone()));
                    continue;
                }
                let id = self.graph.id(object_index);
                for (name, holds) in self.names(parent)?.iter().rev() {
                    let times = holds.iter().filter(|held| **held == id).count();
                    open.extend(std::iter::repeat_n((parent, below.under(name)), times));
                }
            }
        }
        Ok((places, listed))
    }

    fn names(&mut self, object_index: ObjectIndex) -> Result<Names> {
        if let Some(names) = self.names.get(&object_index) {
            return Ok(Arc::clone(names));
        }
        let bytes = self.store.stored(self.graph.id(object_index))?;
        let mut names = Vec::new();
        if let Ok(SequenceNode::Leaf(items)) = object::decode_node::<Directories>(&bytes) {
            for item in items {
                let mut claims = Vec::new();
                claim_entry(&item.entry, &mut claims);
                names.push((item.name, claims.into_iter().map(|claim| claim.id).collect()));
            }
        }
        let names = Arc::new(names);
        self.names.insert(object_index, Arc::clone(&names));
        Ok(names)
    }
}

impl NamePath {
    fn under(&self, name: &Name) -> Self {
        Self(Some(Arc::new((name.clone(), self.clone()))))
    }

    fn path(&self) -> TreePath {
        let (mut path, mut rest) = (TreePath::root(), &self.0);
        while let Some(here) = rest {
            path = path.join(&here.0);
            rest = &here.1.0;
        }
        path
    }
}
