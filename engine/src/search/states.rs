//! A search over trees of files: every state is a snapshot and a step of an episode.

use super::arena::{NodeId, NodeView};
use super::{Choice, Ended, Problem, Search, SearchOptions, Statistics};
use crate::episode::{CommittedStep, EpisodeName, Episodes, Metadata, StepDraft, StepId, StepUpdate};
use crate::error::Error;
use crate::id::SnapshotId;
use crate::operation::OperationContext;
use crate::store::Store;
use crate::work::WorkingTree;

/// Number of steps whose statistics one transaction writes.
const UPDATES_PAGE: usize = 10_000;
/// Number of new states after which statistics are written.
const SAVE_EVERY: u64 = 1_000;

/// A search problem over trees of files. Methods are called concurrently if the search has several threads.
pub trait Edits: Sync {
    /// The type of edits.
    type Action: Clone + Send;
    /// The error type.
    type Error: From<Error> + Send;

    /// Returns the edits to try on a tree at this depth below the first one.
    fn actions(&self, tree: &WorkingTree, depth: usize) -> Result<Vec<Choice<Self::Action>>, Self::Error>;

    /// Applies an edit to a fork of the tree.
    fn edit(&self, tree: &mut WorkingTree, action: &Self::Action) -> Result<(), Self::Error>;

    /// Returns the reward of a tree, from 0 to 1.
    fn evaluate(&self, tree: &WorkingTree, snapshot: SnapshotId) -> Result<f64, Self::Error>;

    /// Returns whether a tree is terminal.
    fn is_terminal(&self, _tree: &WorkingTree, reward: f64) -> Result<bool, Self::Error> {
        Ok(reward >= 1.0)
    }

    /// Describes an edit. The text becomes the message of its snapshot and the `action` in the metadata of its step.
    fn describe(&self, action: &Self::Action) -> String;
}

/// A committed and recorded tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeState {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Its step in the episode.
    pub step: StepId,
}

/// A search over trees of files, recorded as an episode.
///
/// A state is committed and its step recorded in one transaction. Rewards, visits and totals are written in batches, every
/// thousand states and at the end of a run; a search that is killed leaves steps without them.
pub struct TreeSearch<E: Edits> {
    search: Search<Recorded<E>>,
}

struct Recorded<E> {
    edits: E,
    episodes: Episodes,
    episode: EpisodeName,
    context: OperationContext,
}

impl<E: Edits> Recorded<E> {
    fn open(&self, state: &TreeState) -> Result<WorkingTree, E::Error> {
        let mut tree = WorkingTree::open(self.episodes.store(), state.snapshot)?;
        tree.set_now(self.context.time);
        Ok(tree)
    }
}

impl<E: Edits> Problem for Recorded<E> {
    type State = TreeState;
    type Action = E::Action;
    type Error = E::Error;

    fn actions(&self, state: &TreeState, depth: usize) -> Result<Vec<Choice<E::Action>>, E::Error> {
        self.edits.actions(&self.open(state)?, depth)
    }

    fn apply(&self, state: &TreeState, action: &E::Action) -> Result<TreeState, E::Error> {
        let mut fork = self.open(state)?;
        self.edits.edit(&mut fork, action)?;
        let message = self.edits.describe(action);
        let draft = StepDraft::after(state.step).say("action", message.as_str());
        let (CommittedStep { step, snapshot, .. }, _) =
            self.episodes.land_step(&self.episode, &fork, &message, &draft, &self.context)?;
        Ok(TreeState { snapshot, step })
    }

    fn evaluate(&self, state: &TreeState) -> Result<f64, E::Error> {
        self.edits.evaluate(&self.open(state)?, state.snapshot)
    }

    fn is_terminal(&self, state: &TreeState, reward: f64) -> Result<bool, E::Error> {
        self.edits.is_terminal(&self.open(state)?, reward)
    }
}

impl<E: Edits> TreeSearch<E> {
    /// Creates an episode with a snapshot as its root and a search that starts there. `context` is the author, time and durability of
    /// all commits; a buffered context makes a search fast. It must not have a request id, because a search consists of many
    /// operations.
    pub fn begin(
        store: &Store,
        episode: &EpisodeName,
        first: SnapshotId,
        edits: E,
        options: SearchOptions,
        context: &OperationContext,
    ) -> Result<Self, E::Error> {
        if context.request.is_some() {
            let why = "a search is many operations, and one request is one".to_owned();
            return Err(Error::Invalid { what: "request id", why }.into());
        }
        let episodes = Episodes::of(store);
        episodes.begin(episode, &Metadata::new(), context)?;
        let step = episodes.record(episode, first, &StepDraft::default(), context)?;
        let problem = Recorded { edits, episodes, episode: episode.clone(), context: context.clone() };
        let search = Search::new(problem, TreeState { snapshot: first, step }, options)?;
        Ok(Self { search })
    }

    /// Creates up to `expansions` further states, like [`Search::run`], and records their rewards.
    pub fn run(&mut self, expansions: u64, stop: impl Fn(&Statistics) -> bool + Sync) -> Result<Ended, E::Error> {
        let mut left = expansions;
        loop {
            let part = left.min(SAVE_EVERY);
            left -= part;
            let ended = self.search.run(part, &stop);
            self.save()?;
            match ended? {
                Ended::Limit if left > 0 => {}
                ended => return Ok(ended),
            }
        }
    }

    /// Writes the statistics of the steps that changed since the last call.
    fn save(&self) -> Result<(), Error> {
        let Recorded { episodes, episode, context, .. } = self.search.problem();
        let touched = self.search.take_touched();
        for (written, page) in touched.chunks(UPDATES_PAGE).enumerate() {
            let nodes = page.iter().filter_map(|id| self.search.node(*id));
            let update = |node: NodeView<TreeState, E::Action>| StepUpdate {
                step: node.state.step,
                reward: Some(node.reward),
                visits: node.visits,
                total: node.total,
            };
            if let Err(error) = episodes.update(episode, &nodes.map(update).collect::<Vec<_>>(), context) {
                self.search.touch(&touched[written * UPDATES_PAGE..]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the problem.
    pub fn edits(&self) -> &E {
        &self.search.problem().edits
    }

    /// Returns the episode that the search is recorded in.
    pub fn episode(&self) -> &EpisodeName {
        &self.search.problem().episode
    }

    /// Returns the progress of the search.
    pub fn statistics(&self) -> Statistics {
        self.search.statistics()
    }

    /// Returns the state with the highest reward; among equal ones, the one with the fewest edits, then the earliest.
    pub fn best(&self) -> NodeView<TreeState, E::Action> {
        self.search.best()
    }

    /// Returns the state with this number, if it exists.
    pub fn node(&self, id: NodeId) -> Option<NodeView<TreeState, E::Action>> {
        self.search.node(id)
    }

    /// Returns the states from the first one to this one, inclusive.
    pub fn path_to(&self, id: NodeId) -> Vec<NodeView<TreeState, E::Action>> {
        self.search.path_to(id)
    }

    /// Returns the path from the first state that always follows the most visited child.
    pub fn most_visited(&self) -> Vec<NodeView<TreeState, E::Action>> {
        self.search.most_visited()
    }
}
