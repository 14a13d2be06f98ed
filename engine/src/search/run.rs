//! Runs a search: threads take tasks from the tree, call the [`Problem`], and add the results.

use parking_lot::{Condvar, Mutex};

use super::arena::{Arena, Evaluation, NodeId, NodeView, Task, check};
use super::{Choice, Problem, SearchOptions, Statistics};
use crate::error::Error;

/// A search over the states of a problem. It can run several times; each run continues where the last one ended.
pub struct Search<P: Problem> {
    problem: P,
    options: SearchOptions,
    shared: Mutex<Shared<P>>,
    landed: Condvar,
}

struct Shared<P: Problem> {
    arena: Arena<P>,
    /// Number of tasks that this run may still start.
    left: u64,
    ended: Option<Ended>,
    error: Option<P::Error>,
}

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It created the allowed number of states.
    Limit,
    /// The caller's function returned true.
    Stopped,
    /// Every reachable state has been seen.
    Exhausted,
}

type View<P> = NodeView<<P as Problem>::State, <P as Problem>::Action>;

impl<P: Problem> Search<P> {
    /// Creates a search that starts at a state, which is evaluated immediately.
    pub fn new(problem: P, first: P::State, options: SearchOptions) -> Result<Self, P::Error> {
        if options.threads == 0 {
            return Err(Error::Invalid { what: "threads", why: "a search needs one at least".to_owned() }.into());
        }
        let found = look(&problem, first, 0, &options)?;
        let arena = Arena::new(&options, found);
        let shared = Mutex::new(Shared { arena, left: 0, ended: None, error: None });
        Ok(Self { problem, options, shared, landed: Condvar::new() })
    }

    /// Creates up to `expansions` further states. `stop` is called after each one, by the thread that created it.
    ///
    /// If the problem returns an error, other threads finish their current tasks and the first error is returned. The next run
    /// tries the failed action again.
    pub fn run(&mut self, expansions: u64, stop: impl Fn(&Statistics) -> bool + Sync) -> Result<Ended, P::Error> {
        let shared = self.shared.get_mut();
        (shared.left, shared.ended, shared.error) = (expansions, None, None);
        if self.options.threads == 1 {
            self.work(&stop);
        } else {
            std::thread::scope(|scope| {
                for _ in 0..self.options.threads {
                    scope.spawn(|| self.work(&stop));
                }
            });
        }
        let shared = self.shared.get_mut();
        match shared.error.take() {
            Some(error) => Err(error),
            None => Ok(shared.ended.unwrap_or(Ended::Stopped)),
        }
    }

    /// Returns the problem.
    pub fn problem(&self) -> &P {
        &self.problem
    }

    /// Returns the progress of the search.
    pub fn statistics(&self) -> Statistics {
        self.shared.lock().arena.statistics
    }

    /// Returns the state with the highest reward; among equal ones, the one nearest to the first state, then the earliest.
    pub fn best(&self) -> View<P> {
        let shared = self.shared.lock();
        shared.arena.view(shared.arena.best())
    }

    /// Returns the state with this number, if it exists. States are numbered in the order of discovery.
    pub fn node(&self, id: NodeId) -> Option<View<P>> {
        let shared = self.shared.lock();
        (id.0 < shared.arena.len()).then(|| shared.arena.view(id))
    }

    /// Returns the states from the first one to this one, inclusive.
    pub fn path_to(&self, id: NodeId) -> Vec<View<P>> {
        let mut path: Vec<_> = self.node(id).into_iter().collect();
        while let Some(parent) = path.last().and_then(|node| node.parent) {
            path.extend(self.node(parent));
        }
        path.reverse();
        path
    }

    /// Returns the path from the first state that always follows the most visited child; among equal ones, the one with the
    /// higher mean.
    pub fn most_visited(&self) -> Vec<View<P>> {
        let shared = self.shared.lock();
        let mut path = vec![shared.arena.view(NodeId(0))];
        while let Some(node) = path.last() {
            let children = node.children.iter().map(|child| shared.arena.view(*child));
            let best = children
                .max_by(|one, other| one.visits.cmp(&other.visits).then_with(|| one.mean().total_cmp(&other.mean())));
            match best {
                Some(best) => path.push(best),
                None => break,
            }
        }
        path
    }

    /// Returns the nodes whose statistics changed since the last call.
    pub(super) fn take_touched(&self) -> Vec<NodeId> {
        self.shared.lock().arena.take_touched()
    }

    pub(super) fn touch(&self, ids: &[NodeId]) {
        let mut shared = self.shared.lock();
        ids.iter().for_each(|id| shared.arena.touch(*id));
    }

    /// Runs the main loop of one thread.
    fn work(&self, stop: &(impl Fn(&Statistics) -> bool + Sync)) {
        while let Some(mut claim) = self.claim() {
            let Task { depth, state, choice, .. } = claim.task.as_ref().expect("a claim holds its task until it ends");
            let depth = depth + 1;
            let found = self.problem.apply(state, &choice.action);
            match found.and_then(|state| look(&self.problem, state, depth, &self.options)) {
                Ok(found) => {
                    let statistics = claim.land(found);
                    if stop(&statistics) {
                        self.shared.lock().ended.get_or_insert(Ended::Stopped);
                        self.landed.notify_all();
                    }
                }
                Err(error) => {
                    drop(claim);
                    self.shared.lock().error.get_or_insert(error);
                }
            }
        }
    }

    /// Waits for the next task. Returns `None` when the run has ended.
    fn claim(&self) -> Option<Claim<'_, P>> {
        let mut shared = self.shared.lock();
        loop {
            if shared.ended.is_some() {
                return None;
            }
            if !shared.arena.is_open() {
                shared.ended = Some(Ended::Exhausted);
                return None;
            }
            if shared.left == 0 {
                shared.ended = Some(Ended::Limit);
                return None;
            }
            if let Some(task) = shared.arena.select() {
                shared.left -= 1;
                return Some(Claim { search: self, task: Some(task) });
            }
            // Other threads are trying all selectable actions and will wake this one when they finish.
            self.landed.wait(&mut shared);
        }
    }
}

/// A task that a thread has taken. It ends when its result is added. If it is dropped before that, even by a panic, it returns
/// the task to the tree and ends the run.
struct Claim<'a, P: Problem> {
    search: &'a Search<P>,
    task: Option<Task<P::State, P::Action>>,
}

impl<P: Problem> Claim<'_, P> {
    fn land(&mut self, found: Evaluation<P::State, P::Action>) -> Statistics {
        let Task { node, choice, .. } = self.task.take().expect("it has not landed yet");
        let mut shared = self.search.shared.lock();
        shared.arena.land(node, choice, found);
        self.search.landed.notify_all();
        shared.arena.statistics
    }
}

impl<P: Problem> Drop for Claim<'_, P> {
    fn drop(&mut self) {
        let Some(Task { node, choice, .. }) = self.task.take() else { return };
        let mut shared = self.search.shared.lock();
        shared.arena.abandon(node, choice);
        shared.ended.get_or_insert(Ended::Stopped);
        self.search.landed.notify_all();
    }
}

/// Evaluates a new state.
fn look<P: Problem>(
    problem: &P,
    state: P::State,
    depth: usize,
    options: &SearchOptions,
) -> Result<Evaluation<P::State, P::Action>, P::Error> {
    let reward = problem.evaluate(&state)?;
    let no_actions: &[Choice<P::Action>] = &[];
    check(reward, no_actions)?;
    let is_end = depth >= options.depth_max || problem.is_terminal(&state, reward)?;
    let actions = if is_end { Vec::new() } else { problem.actions(&state, depth)? };
    check(reward, &actions)?;
    Ok(Evaluation { state, reward, actions: (!actions.is_empty()).then_some(actions) })
}
