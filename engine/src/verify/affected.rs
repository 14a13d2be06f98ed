//! Finds the snapshots and paths that damage affects: walks from each damaged object up to the references.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::facts::{How, claim_entry};
use super::graph::Graph;
use super::index::Seat;
use super::report::{Place, Problem};
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};
use crate::name::{Name, TreePath};
use crate::object::{self, Directories, SequenceNode};
use crate::reference::RefName;
use crate::store::Store;

/// The objects above damaged ones.
pub(super) struct Above<'a> {
    store: &'a Store,
    graph: &'a Graph,
    /// The parents of objects that are damaged or above damage, each with the number of references.
    parents: HashMap<Seat, BTreeMap<Seat, u64>>,
    /// The references that hold an object; empty for a snapshot of the history.
    tops: BTreeMap<Seat, Vec<RefName>>,
    /// Cached contents of directories.
    names: HashMap<Seat, Names>,
    ways: HashMap<Seat, u64>,
    listed_max: usize,
}

/// The names in a leaf of a directory, each with the objects it refers to.
type Names = Arc<Vec<(Name, Vec<ObjectId>)>>;

/// A path of names on the way down, the last one innermost.
#[derive(Clone)]
struct Below(Option<Arc<(Name, Below)>>);

impl<'a> Above<'a> {
    pub(super) fn new(
        store: &'a Store,
        graph: &'a Graph,
        held: &BTreeMap<Seat, Vec<RefName>>,
        listed_max: usize,
    ) -> Self {
        let mut tops = held.clone();
        for seat in &graph.history {
            tops.entry(*seat).or_default();
        }
        let mut above = Self {
            store,
            graph,
            parents: HashMap::new(),
            tops,
            names: HashMap::new(),
            ways: HashMap::new(),
            listed_max,
        };
        above.find_parents();
        above
    }

    /// Returns whether an object is damaged or above damage.
    pub(super) fn is_above(&self, seat: Seat) -> bool {
        let strong = self.graph.edges_of(seat).iter().filter(|edge| edge.how != How::Parent);
        self.graph.damage.contains_key(&seat)
            || strong.into_iter().any(|edge| self.parents.get(&edge.to).is_some_and(|above| above.contains_key(&seat)))
    }

    /// Marks the objects above damage, from the leaves up, then records the parents among them.
    fn find_parents(&mut self) {
        let graph = self.graph;
        let mut tainted = vec![false; graph.reached.len()];
        let mut seen = vec![false; graph.reached.len()];
        graph.damage.keys().for_each(|seat| tainted[*seat as usize] = true);
        let strong = |seat: Seat| graph.edges_of(seat).iter().filter(|edge| edge.how != How::Parent);
        for top in self.tops.keys() {
            let mut open = vec![(*top, false)];
            while let Some((seat, below_seen)) = open.pop() {
                if below_seen {
                    tainted[seat as usize] |= strong(seat).any(|edge| tainted[edge.to as usize]);
                } else if !std::mem::replace(&mut seen[seat as usize], true) {
                    open.push((seat, true));
                    open.extend(strong(seat).filter(|edge| !seen[edge.to as usize]).map(|edge| (edge.to, false)));
                }
            }
        }
        for member in graph.members().iter().filter(|member| seen[member.seat as usize]) {
            for edge in strong(member.seat).filter(|edge| tainted[edge.to as usize]) {
                *self.parents.entry(edge.to).or_default().entry(member.seat).or_default() += 1;
            }
        }
    }

    pub(super) fn fill(&mut self, seat: Seat, problem: &mut Problem) -> Result<()> {
        let parents = self.parents.get(&seat);
        problem.parents_more = parents.map_or(0, |parents| parents.len().saturating_sub(self.listed_max) as u64);
        let parents = parents.into_iter().flat_map(BTreeMap::keys).take(self.listed_max);
        problem.parents = parents.map(|seat| self.graph.id(*seat)).collect();
        let (places, listed) = self.places(seat)?;
        problem.places = places.into_iter().collect();
        problem.places_more = self.ways(seat).saturating_sub(listed);
        Ok(())
    }

    /// Returns the number of paths to an object. Two names in one directory count twice, two chunks of one rope node once.
    fn ways(&mut self, seat: Seat) -> u64 {
        let mut open = vec![(seat, false)];
        while let Some((seat, above_done)) = open.pop() {
            if self.ways.contains_key(&seat) {
                continue;
            }
            let parents = self.parents.get(&seat).into_iter().flatten();
            if above_done {
                let own = u64::from(self.tops.contains_key(&seat));
                let ways = parents.fold(own, |sum, (parent, times)| {
                    let times = if self.has_names(*parent) { *times } else { 1 };
                    sum.saturating_add(self.ways.get(parent).copied().unwrap_or(0).saturating_mul(times))
                });
                self.ways.insert(seat, ways);
            } else {
                open.push((seat, true));
                open.extend(parents.map(|(parent, _)| (*parent, false)));
            }
        }
        self.ways.get(&seat).copied().unwrap_or(0)
    }

    fn has_names(&self, seat: Seat) -> bool {
        let member = self.graph.member(seat);
        self.graph.id(seat).kind == ObjectKind::Directory && member.is_some_and(|member| member.facts.level == 0)
    }

    /// Returns the first places, and the number of paths that lead to them.
    fn places(&mut self, seat: Seat) -> Result<(BTreeSet<Place>, u64)> {
        let (mut places, mut listed) = (BTreeSet::new(), 0);
        let mut open = vec![(seat, Below(None))];
        while let Some((seat, below)) = open.pop() {
            if places.len() >= self.listed_max {
                break;
            }
            if let Some(refs) = self.tops.get(&seat) {
                let refs = refs.iter().take(self.listed_max).cloned().collect();
                places.insert(Place { top: self.graph.id(seat), refs, path: below.path() });
                listed += 1;
            }
            let parents: Vec<_> = self.parents.get(&seat).into_iter().flat_map(BTreeMap::keys).copied().collect();
            for parent in parents.into_iter().rev() {
                if !self.has_names(parent) {
                    open.push((parent, below.clone()));
                    continue;
                }
                let id = self.graph.id(seat);
                for (name, holds) in self.names(parent)?.iter().rev() {
                    let times = holds.iter().filter(|held| **held == id).count();
                    open.extend(std::iter::repeat_n((parent, below.under(name)), times));
                }
            }
        }
        Ok((places, listed))
    }

    fn names(&mut self, seat: Seat) -> Result<Names> {
        if let Some(names) = self.names.get(&seat) {
            return Ok(Arc::clone(names));
        }
        let bytes = self.store.stored(self.graph.id(seat))?;
        let mut names = Vec::new();
        if let Ok(SequenceNode::Leaf(items)) = object::decode_node::<Directories>(&bytes) {
            for item in items {
                let mut claims = Vec::new();
                claim_entry(&item.entry, &mut claims);
                names.push((item.name, claims.into_iter().map(|claim| claim.id).collect()));
            }
        }
        let names = Arc::new(names);
        self.names.insert(seat, Arc::clone(&names));
        Ok(names)
    }
}

impl Below {
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
