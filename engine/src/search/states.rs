//! A search through trees of files: every state is a snapshot and a step of an episode.

use super::arena::{NodeId, NodeView};
use super::{Choice, Ended, Problem, Search, SearchOptions, Statistics};
use crate::episode::{CommittedStep, EpisodeName, Episodes, Metadata, StepDraft, StepId, StepUpdate};
use crate::error::Error;
use crate::id::SnapshotId;
use crate::operation::Act;
use crate::store::Store;
use crate::work::WorkingTree;

/// Steps whose numbers one transaction writes.
const UPDATES_PAGE: usize = 10_000;
/// The states between two times that their numbers are written.
const SAVE_EVERY: u64 = 1_000;

/// The user's part of a search through trees. Called by several threads at once when there are several.
pub trait Edits: Sync {
    /// An edit.
    type Action: Clone + Send;
    /// What can go wrong.
    type Error: From<Error> + Send;

    /// The edits to be tried on a tree that is so many edits from the first one.
    fn actions(&self, tree: &WorkingTree, depth: usize) -> Result<Vec<Choice<Self::Action>>, Self::Error>;

    /// Does an edit in a fork of its own.
    fn edit(&self, tree: &mut WorkingTree, action: &Self::Action) -> Result<(), Self::Error>;

    /// What a tree is worth, from 0 to 1.
    fn evaluate(&self, tree: &WorkingTree, snapshot: SnapshotId) -> Result<f64, Self::Error>;

    /// Whether a tree is to be left as it is.
    fn is_terminal(&self, _tree: &WorkingTree, reward: f64) -> Result<bool, Self::Error> {
        Ok(reward >= 1.0)
    }

    /// An edit in words: the message of its snapshot, and `action` in its step's metadata.
    fn describe(&self, action: &Self::Action) -> String;
}

/// A tree that was committed and recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeState {
    /// The tree.
    pub snapshot: SnapshotId,
    /// Its step in the episode.
    pub step: StepId,
}

/// A search through trees, recorded as an episode.
///
/// A state is committed and its step recorded in one transaction. Rewards, visits and totals follow in larger ones, every
/// thousand states and at the end of a run; a search that is killed leaves steps without them.
pub struct TreeSearch<E: Edits> {
    search: Search<Recorded<E>>,
}

struct Recorded<E> {
    edits: E,
    episodes: Episodes,
    episode: EpisodeName,
    act: Act,
}

impl<E: Edits> Recorded<E> {
    fn open(&self, state: &TreeState) -> Result<WorkingTree, E::Error> {
        let mut tree = WorkingTree::open(self.episodes.store(), state.snapshot)?;
        tree.set_now(self.act.time);
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
            self.episodes.land_step(&self.episode, &fork, &message, &draft, &self.act)?;
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
    /// Begins an episode with a snapshot as its root, and a search there. `act` is who commits, when and how surely; a
    /// buffered one is what makes a search fast. It must not be a request, because it stands for many operations.
    pub fn begin(
        store: &Store,
        episode: &EpisodeName,
        first: SnapshotId,
        edits: E,
        options: SearchOptions,
        act: &Act,
    ) -> Result<Self, E::Error> {
        if act.request.is_some() {
            let why = "a search is many operations, and one request is one".to_owned();
            return Err(Error::Invalid { what: "request id", why }.into());
        }
        let episodes = Episodes::of(store);
        episodes.begin(episode, &Metadata::new(), act)?;
        let step = episodes.record(episode, first, &StepDraft::default(), act)?;
        let problem = Recorded { edits, episodes, episode: episode.clone(), act: act.clone() };
        let search = Search::new(problem, TreeState { snapshot: first, step }, options)?;
        Ok(Self { search })
    }

    /// Makes up to `expansions` further states, as [`Search::run`] does, and records what they are worth.
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

    /// Writes the numbers of the steps that changed since this was last done.
    fn save(&self) -> Result<(), Error> {
        let Recorded { episodes, episode, act, .. } = self.search.problem();
        let touched = self.search.take_touched();
        for (written, page) in touched.chunks(UPDATES_PAGE).enumerate() {
            let nodes = page.iter().filter_map(|id| self.search.node(*id));
            let update = |node: NodeView<TreeState, E::Action>| StepUpdate {
                step: node.state.step,
                reward: Some(node.reward),
                visits: node.visits,
                total: node.total,
            };
            if let Err(error) = episodes.update(episode, &nodes.map(update).collect::<Vec<_>>(), act) {
                self.search.touch(&touched[written * UPDATES_PAGE..]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The user's part.
    pub fn edits(&self) -> &E {
        &self.search.problem().edits
    }

    /// The episode that it is recorded in.
    pub fn episode(&self) -> &EpisodeName {
        &self.search.problem().episode
    }

    /// How it stands.
    pub fn statistics(&self) -> Statistics {
        self.search.statistics()
    }

    /// The state with the highest reward; of equal ones that with the fewest edits, then the earliest.
    pub fn best(&self) -> NodeView<TreeState, E::Action> {
        self.search.best()
    }

    /// A state, if there is one of this number.
    pub fn node(&self, id: NodeId) -> Option<NodeView<TreeState, E::Action>> {
        self.search.node(id)
    }

    /// The states from the first one to this one, both included.
    pub fn path_to(&self, id: NodeId) -> Vec<NodeView<TreeState, E::Action>> {
        self.search.path_to(id)
    }

    /// The states from the first one on, always to the child that was visited most.
    pub fn most_visited(&self) -> Vec<NodeView<TreeState, E::Action>> {
        self.search.most_visited()
    }
}
