//! The objects of a store as a graph: reachability, and the truth of the claims of objects about each other.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use super::facts::{CUT, HOLE_FIRST, HOLE_LAST, ReferenceKind, SEVERAL, TOP};
use super::index::{Index, ObjectIndex};
use super::report::Damage;
use super::scan::{Edge, Member, MissingObjects, Scan};
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::name::{DEPTH_MAX, InvalidName};

const NONE: u32 = u32::MAX;

pub(super) struct Graph {
    pub(super) index: Index,
    pub(super) missing_objects: Vec<ObjectId>,
    members: Vec<Member>,
    edges: Vec<Edge>,
    /// The index of an object among the members.
    places: Vec<u32>,
    pub(super) damage: HashMap<ObjectIndex, Damage>,
    chunk_bytes: Vec<u32>,
    /// Whether an object is reachable from a reference or the history.
    pub(super) reached: Vec<bool>,
    pub(super) thinned: u64,
    pub(super) absent: u64,
    /// Snapshots that are reachable only through the history.
    pub(super) history: Vec<ObjectIndex>,
}

impl Graph {
    pub(super) fn new(index: Index, missing_objects: MissingObjects, scan: Scan) -> Self {
        let mut places = vec![NONE; index.rows.len() + missing_objects.ids.len()];
        (0..).zip(&scan.members).for_each(|(at, member)| places[member.object_index as usize] = at);
        let reached = vec![false; places.len()];
        Self {
            index,
            missing_objects: missing_objects.ids,
            members: scan.members,
            edges: scan.edges,
            places,
            damage: scan.damage,
            chunk_bytes: scan.chunk_bytes,
            reached,
            thinned: 0,
            absent: 0,
            history: Vec::new(),
        }
    }

    pub(super) fn id(&self, object_index: ObjectIndex) -> ObjectId {
        match (object_index as usize).checked_sub(self.index.rows.len()) {
            Some(missing_object) => self.missing_objects[missing_object],
            None => self.index.id(object_index),
        }
    }

    pub(super) fn is_missing(&self, object_index: ObjectIndex) -> bool {
        object_index as usize >= self.index.rows.len()
    }

    pub(super) fn member(&self, object_index: ObjectIndex) -> Option<&Member> {
        self.members.get(self.places[object_index as usize] as usize)
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(super) fn edges(&self, member: &Member) -> &[Edge] {
        let (start, count) = member.edges;
        &self.edges[start..start + count as usize]
    }

    pub(super) fn edges_of(&self, object_index: ObjectIndex) -> &[Edge] {
        self.member(object_index).map_or(&[], |member| self.edges(member))
    }

    /// Follows everything reachable from `tops`, and then the history. `is_lost` distinguishes a tree that a repair removed from
    /// one that may be absent.
    pub(super) fn walk(&mut self, tops: impl IntoIterator<Item = ObjectIndex>, is_lost: &dyn Fn(ObjectId) -> bool) {
        let (mut parents, mut absent) = (Vec::new(), HashSet::new());
        for top in tops {
            self.reach(top, &mut parents);
        }
        while let Some(parent) = parents.pop() {
            if self.reached[parent as usize] {
                continue;
            }
            if self.is_missing(parent) {
                if is_lost(self.id(parent)) {
                    self.reached[parent as usize] = true;
                } else {
                    absent.insert(parent);
                }
                continue;
            }
            let tree = self.edges_of(parent).iter().find(|edge| edge.how == ReferenceKind::Root).map(|edge| edge.to);
            self.history.push(parent);
            match tree {
                Some(tree) if self.is_missing(tree) && !is_lost(self.id(tree)) => {
                    self.thinned += 1;
                    self.reached[parent as usize] = true;
                    let more = self.edges_of(parent).iter().filter(|edge| edge.how == ReferenceKind::Parent);
                    parents.extend(more.map(|edge| edge.to));
                }
                _ => self.reach(parent, &mut parents),
            }
        }
        self.absent = absent.into_iter().filter(|parent| !self.reached[*parent as usize]).count() as u64;
    }

    fn reach(&mut self, top: ObjectIndex, parents: &mut Vec<ObjectIndex>) {
        let mut open = vec![top];
        while let Some(object_index) = open.pop() {
            if std::mem::replace(&mut self.reached[object_index as usize], true) {
                continue;
            }
            for edge in self.edges_of(object_index) {
                match edge.how {
                    ReferenceKind::Parent => parents.push(edge.to),
                    _ if self.reached[edge.to as usize] => {}
                    _ => open.push(edge.to),
                }
            }
        }
    }

    /// Marks reachable objects that do not exist as damaged.
    pub(super) fn mark_missing(&mut self, held: &HashSet<ObjectIndex>, is_purged: &mut dyn FnMut(ObjectId) -> bool) {
        for object_index in 0..self.reached.len() as ObjectIndex {
            if self.reached[object_index as usize] && self.is_missing(object_index) && !is_purged(self.id(object_index))
            {
                let wrong_kind =
                    self.index.find(&self.id(object_index).hash).map(|other| self.index.rows[other as usize].kind);
                let damage = match wrong_kind {
                    Some(found) => Damage::WrongKind { found },
                    None => Damage::Missing,
                };
                self.damage.insert(object_index, damage);
            }
        }
        for object_index in held {
            if let Some(damage @ Damage::Missing) = self.damage.get_mut(object_index) {
                *damage = Damage::Dangling;
            }
        }
    }

    /// Compares the claims of objects with the facts. The object that makes a false claim is the damaged one.
    pub(super) fn compare(&mut self) {
        let wrong: Vec<_> = self
            .members
            .par_iter()
            .filter_map(|member| Some((member.object_index, self.broken_rule(member)?)))
            .chain(
                self.too_deep()
                    .into_par_iter()
                    .map(|object_index| (object_index, Malformed::Name(InvalidName::TooDeep))),
            )
            .collect();
        for (object_index, source) in wrong {
            self.damage.entry(object_index).or_insert(Damage::Malformed { source });
        }
    }

    fn broken_rule(&self, member: &Member) -> Option<Malformed> {
        let edges = self.edges(member);
        edges.iter().find_map(|edge| self.broken_claim(member, edge)).or_else(|| self.broken_seam(member, edges))
    }

    fn broken_claim(&self, member: &Member, edge: &Edge) -> Option<Malformed> {
        if edge.how == ReferenceKind::Chunk {
            let bytes = *self.chunk_bytes.get(edge.to as usize)?;
            return (bytes != 0 && u64::from(bytes) != edge.says).then_some(Malformed::Link);
        }
        let other = &self.member(edge.to)?.facts;
        let holds = match edge.how {
            ReferenceKind::Child => other.as_child == edge.says,
            ReferenceKind::Directory | ReferenceKind::File | ReferenceKind::Links => other.as_top == edge.says,
            ReferenceKind::Parent => other.as_top < edge.says,
            ReferenceKind::State | ReferenceKind::Attributes | ReferenceKind::Root | ReferenceKind::Chunk => true,
        };
        let needed = match edge.how {
            ReferenceKind::File => TOP | SEVERAL,
            ReferenceKind::Directory | ReferenceKind::Links | ReferenceKind::State => TOP,
            _ => 0,
        };
        debug_assert!(member.object_index != edge.to, "no object holds its own hash");
        match holds {
            false => Some(Malformed::Link),
            true if other.marks & needed != needed => Some(Malformed::TooFew),
            true => None,
        }
    }

    /// Checks the boundaries between the children of a node: all but the last end at a cut, down to the leaf, and items are in
    /// order.
    fn broken_seam(&self, member: &Member, edges: &[Edge]) -> Option<Malformed> {
        if member.facts.level == 0 {
            return None;
        }
        for pair in edges.windows(2) {
            let (before, after) = (self.spine(pair[0].to, true)?, self.spine(pair[1].to, false)?);
            if before.iter().any(|node| node.facts.marks & CUT == 0) {
                return Some(Malformed::Boundary);
            }
            let (before, after) = (&before.last()?.facts, &after.last()?.facts);
            if self.id(member.object_index).kind == ObjectKind::Rope {
                if before.marks & HOLE_LAST != 0 && after.marks & HOLE_FIRST != 0 {
                    return Some(Malformed::Rule("two holes side by side"));
                }
            } else if before.ends[1] >= after.ends[0] {
                return Some(Malformed::Order);
            }
        }
        None
    }

    /// Returns the nodes from one down to its last or first leaf, or `None` if one of them is missing.
    fn spine(&self, top: ObjectIndex, last: bool) -> Option<Vec<&Member>> {
        let mut nodes = vec![self.member(top)?];
        while let Some(node) = nodes.last().filter(|node| node.facts.level > 0) {
            let edges = self.edges(node);
            let below = if last { edges.last() } else { edges.first() };
            let below = self.member(below?.to)?;
            if below.facts.level >= node.facts.level {
                return None;
            }
            nodes.push(below);
        }
        Some(nodes)
    }

    /// Returns the roots below which a path has too many names.
    fn too_deep(&self) -> Vec<ObjectIndex> {
        let mut depths: Vec<u32> = vec![NONE; self.members.len()];
        let below = |object_index: ObjectIndex| match self.places[object_index as usize] as usize {
            at if at < self.members.len() => Some(at),
            _ => None,
        };
        let leads = |edge: &&Edge| matches!(edge.how, ReferenceKind::Child | ReferenceKind::Directory);
        let is_tree =
            |member: &Member| matches!(self.id(member.object_index).kind, ObjectKind::Directory | ObjectKind::Root);
        let mut deep = Vec::new();
        for start in 0..self.members.len() {
            if self.id(self.members[start].object_index).kind != ObjectKind::Root {
                continue;
            }
            let mut open = vec![(start, false)];
            while let Some((at, seen)) = open.pop() {
                if depths[at] != NONE {
                    continue;
                }
                let member = &self.members[at];
                let children = self.edges(member).iter().filter(leads).filter_map(|edge| below(edge.to));
                if seen {
                    let leaf = self.id(member.object_index).kind == ObjectKind::Directory && member.facts.level == 0;
                    let deepest = children.map(|child| depths[child]).filter(|depth| *depth != NONE).max();
                    depths[at] = deepest.unwrap_or(0).saturating_add(u32::from(leaf)).min(NONE - 1);
                } else {
                    open.push((at, true));
                    open.extend(children.filter(|child| is_tree(&self.members[*child])).map(|child| (child, false)));
                }
            }
            if depths[start] as usize > DEPTH_MAX {
                deep.push(self.members[start].object_index);
            }
        }
        deep
    }
}
