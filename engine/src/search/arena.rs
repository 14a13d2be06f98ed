//! The tree of a search in memory: select, expand, back-propagate. The caller holds a lock; this module uses no threads.

use std::sync::Arc;

use super::{Choice, Problem, SearchOptions, Selection, Statistics, Widening};
use crate::error::{Error, Result};
use crate::split_mix::SplitMix64;

/// The number of a state in a search; 0 for the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// A state of a search with its statistics.
#[derive(Clone, Debug)]
pub struct NodeView<S, A> {
    /// The number.
    pub id: NodeId,
    /// The parent state.
    pub parent: Option<NodeId>,
    /// The action that leads from the parent to this state.
    pub action: Option<A>,
    /// The depth below the first state.
    pub depth: usize,
    /// The state.
    pub state: Arc<S>,
    /// The reward.
    pub reward: f64,
    /// Number of evaluated states in its sub-tree, itself included.
    pub visits: u64,
    /// Total reward of these states.
    pub total: f64,
    /// Whether it is terminal.
    pub is_terminal: bool,
    /// The child states.
    pub children: Vec<NodeId>,
}

impl<S, A> NodeView<S, A> {
    /// Returns the mean reward of its sub-tree.
    pub fn mean(&self) -> f64 {
        mean(self.total, self.visits)
    }
}

struct Node<S, A> {
    parent: Option<NodeId>,
    action: Option<A>,
    prior: f64,
    depth: usize,
    state: Arc<S>,
    reward: f64,
    visits: u64,
    total: f64,
    is_terminal: bool,
    children: Vec<NodeId>,
    /// The last one is tried next.
    untried: Vec<Choice<A>>,
    /// Number of actions that threads are applying.
    pending: usize,
    /// Number of threads that are working below this node.
    passing: u64,
    /// Whether there are untried actions in its sub-tree.
    is_open: bool,
    is_touched: bool,
}

/// An action for a thread to apply, and its node.
pub(super) struct Task<S, A> {
    pub(super) node: NodeId,
    pub(super) depth: usize,
    pub(super) state: Arc<S>,
    pub(super) choice: Choice<A>,
}

/// The evaluation of a state.
pub(super) struct Evaluation<S, A> {
    pub(super) state: S,
    pub(super) reward: f64,
    /// `None` for a terminal state.
    pub(super) actions: Option<Vec<Choice<A>>>,
}

pub(super) struct Arena<P: Problem> {
    nodes: Vec<Node<P::State, P::Action>>,
    selection: Selection,
    widening: Option<Widening>,
    random: SplitMix64,
    best: NodeId,
    touched: Vec<NodeId>,
    pub(super) statistics: Statistics,
}

impl<P: Problem> Arena<P> {
    pub(super) fn new(options: &SearchOptions, root: Evaluation<P::State, P::Action>) -> Self {
        let mut arena = Self {
            nodes: Vec::new(),
            selection: options.selection,
            widening: options.widening,
            random: SplitMix64::new(options.seed),
            best: NodeId(0),
            touched: Vec::new(),
            statistics: Statistics::default(),
        };
        arena.add(None, None, root);
        arena
    }

    pub(super) fn is_open(&self) -> bool {
        self.nodes[0].is_open
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn best(&self) -> NodeId {
        self.best
    }

    pub(super) fn view(&self, id: NodeId) -> NodeView<P::State, P::Action> {
        let node = &self.nodes[id.0];
        NodeView {
            id,
            parent: node.parent,
            action: node.action.clone(),
            depth: node.depth,
            state: Arc::clone(&node.state),
            reward: node.reward,
            visits: node.visits,
            total: node.total,
            is_terminal: node.is_terminal,
            children: node.children.clone(),
        }
    }

    /// Returns the nodes whose statistics changed since the last call.
    pub(super) fn take_touched(&mut self) -> Vec<NodeId> {
        let touched = std::mem::take(&mut self.touched);
        for id in &touched {
            self.nodes[id.0].is_touched = false;
        }
        touched
    }

    pub(super) fn touch(&mut self, id: NodeId) {
        if !std::mem::replace(&mut self.nodes[id.0].is_touched, true) {
            self.touched.push(id);
        }
    }

    /// Selects the next action to try and marks the path to it. Returns `None` if other threads have to finish first.
    pub(super) fn select(&mut self) -> Option<Task<P::State, P::Action>> {
        let mut here = NodeId(0);
        loop {
            let best = self.best_child(here);
            let node = &self.nodes[here.0];
            let may_widen =
                self.widening.is_none_or(|widening| node.children.len() + node.pending < widening.at(node.visits));
            let tries = match (node.untried.last(), best) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(choice), Some((_, best))) => {
                    may_widen
                        && match self.selection {
                            Selection::Uct { .. } => true,
                            Selection::Puct { constant } => {
                                let root = count(node.visits + node.passing).sqrt();
                                mean(node.total, node.visits) + constant * choice.prior * root >= best
                            }
                        }
                }
            };
            if tries {
                return self.claim(here);
            }
            here = best?.0;
        }
    }

    fn claim(&mut self, id: NodeId) -> Option<Task<P::State, P::Action>> {
        let node = &mut self.nodes[id.0];
        let choice = node.untried.pop()?;
        node.pending += 1;
        let task = Task { node: id, depth: node.depth, state: Arc::clone(&node.state), choice };
        self.on_the_way(id, |node| node.passing += 1);
        Some(task)
    }

    /// Returns the open child with the highest score.
    fn best_child(&self, id: NodeId) -> Option<(NodeId, f64)> {
        let node = &self.nodes[id.0];
        let visits = count(node.visits + node.passing);
        let (root, log) = (visits.sqrt(), visits.ln());
        let mut best: Option<(NodeId, f64)> = None;
        for child in &node.children {
            let Node { total, visits, passing, prior, is_open, .. } = &self.nodes[child.0];
            if !is_open {
                continue;
            }
            // Threads below the node count as visits without reward.
            let n = count(visits + passing);
            let score = match self.selection {
                Selection::Uct { constant } => total / n + constant * (log / n).sqrt(),
                Selection::Puct { constant } => total / n + constant * prior * root / (1.0 + n),
            };
            if best.is_none_or(|(_, best)| score > best) {
                best = Some((*child, score));
            }
        }
        best
    }

    /// Adds the result of a task and back-propagates its reward.
    pub(super) fn land(&mut self, node: NodeId, choice: Choice<P::Action>, found: Evaluation<P::State, P::Action>) {
        let reward = found.reward;
        let parent = &mut self.nodes[node.0];
        parent.pending -= 1;
        let id = self.add(Some(node), Some(choice), found);
        self.nodes[node.0].children.push(id);
        let mut above = Some(node);
        while let Some(here) = above {
            let ancestor = &mut self.nodes[here.0];
            ancestor.passing -= 1;
            ancestor.visits += 1;
            ancestor.total += reward;
            above = ancestor.parent;
            self.touch(here);
        }
        self.close(node);
        self.statistics.expansions += 1;
    }

    /// Returns an unfinished task to the tree.
    pub(super) fn abandon(&mut self, id: NodeId, choice: Choice<P::Action>) {
        let node = &mut self.nodes[id.0];
        node.pending -= 1;
        node.untried.push(choice);
        self.on_the_way(id, |node| node.passing -= 1);
    }

    fn add(
        &mut self,
        parent: Option<NodeId>,
        choice: Option<Choice<P::Action>>,
        found: Evaluation<P::State, P::Action>,
    ) -> NodeId {
        let id = NodeId(self.nodes.len());
        let Evaluation { state, reward, actions } = found;
        let depth = parent.map_or(0, |parent| self.nodes[parent.0].depth + 1);
        let is_terminal = actions.is_none();
        let mut untried = actions.unwrap_or_default();
        self.random.shuffle(&mut untried);
        if matches!(self.selection, Selection::Puct { .. }) {
            let sum: f64 = untried.iter().map(|choice| choice.prior).sum();
            untried.iter_mut().for_each(|choice| choice.prior /= if sum > 0.0 { sum } else { 1.0 });
            untried.sort_by(|one, other| one.prior.total_cmp(&other.prior));
        }
        let (action, prior) = choice.map_or((None, 1.0), |choice| (Some(choice.action), choice.prior));
        let is_open = !untried.is_empty();
        let statistics = &mut self.statistics;
        statistics.evaluations += 1;
        statistics.terminals += u64::from(is_terminal);
        statistics.depth_max = statistics.depth_max.max(depth);
        self.nodes.push(Node {
            parent,
            action,
            prior,
            depth,
            state: Arc::new(state),
            reward,
            visits: 1,
            total: reward,
            is_terminal,
            children: Vec::new(),
            untried,
            pending: 0,
            passing: 0,
            is_open,
            is_touched: false,
        });
        let best = &self.nodes[self.best.0];
        if reward > best.reward || (reward == best.reward && depth < best.depth) {
            self.best = id;
        }
        self.statistics.best_reward = self.nodes[self.best.0].reward;
        self.touch(id);
        id
    }

    /// Closes a node, and its ancestors, if its sub-tree has nothing left to try.
    fn close(&mut self, id: NodeId) {
        let mut here = Some(id);
        while let Some(id) = here {
            let node = &self.nodes[id.0];
            let is_open = !node.untried.is_empty()
                || node.pending > 0
                || node.children.iter().rev().any(|child| self.nodes[child.0].is_open);
            if is_open {
                return;
            }
            let node = &mut self.nodes[id.0];
            node.is_open = false;
            here = node.parent;
        }
    }

    fn on_the_way(&mut self, id: NodeId, change: impl Fn(&mut Node<P::State, P::Action>)) {
        let mut here = Some(id);
        while let Some(id) = here {
            let node = &mut self.nodes[id.0];
            change(node);
            here = node.parent;
        }
    }
}

impl Widening {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float becomes the nearest number")]
    fn at(self, visits: u64) -> usize {
        (self.factor * count(visits).powf(self.exponent)).ceil().max(1.0) as usize
    }
}

/// Validates the values that a [`Problem`] returns.
pub(super) fn check<A>(reward: f64, actions: &[Choice<A>]) -> Result<()> {
    if !(0.0..=1.0).contains(&reward) {
        return Err(Error::Invalid { what: "reward", why: format!("{reward} is not between 0 and 1") });
    }
    match actions.iter().find(|choice| !(choice.prior.is_finite() && choice.prior >= 0.0)) {
        Some(choice) => Err(Error::Invalid { what: "prior", why: format!("{} is not 0 or more", choice.prior) }),
        None => Ok(()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a score need not be exact to the last digit")]
fn count(visits: u64) -> f64 {
    visits as f64
}

fn mean(total: f64, visits: u64) -> f64 {
    total / count(visits.max(1))
}
