//! Monte Carlo tree search over arbitrary states, and over trees of files that are committed and recorded as they are found.
//!
//! The caller implements a [`Problem`]: the actions of a state, the state that results from an action, and the reward of a state.
//! The search keeps a tree of the states seen so far and expands the most promising node, one state at a time. A state is
//! evaluated once. A fully explored sub-tree is not entered again, so that a small space is searched exhaustively. Several
//! threads can grow one tree: a thread in progress counts as a visit without reward (a virtual loss), so that threads take
//! different paths.
//!
//! The search uses no clock: a run ends after a number of states, or when the caller's function returns true. One thread with one
//! seed is deterministic; several threads are not.
//!
//! ```
//! use amalgam_engine::search::{Choice, Problem, Search, SearchOptions};
//!
//! /// Finds three digits, one after another. The reward is proportional to their sum.
//! struct Digits;
//!
//! impl Problem for Digits {
//!     type State = Vec<u8>;
//!     type Action = u8;
//!     type Error = amalgam_engine::Error;
//!
//!     fn actions(&self, state: &Vec<u8>, _: usize) -> Result<Vec<Choice<u8>>, Self::Error> {
//!         Ok(if state.len() == 3 { Vec::new() } else { (0..10).map(Choice::of).collect() })
//!     }
//!     fn apply(&self, state: &Vec<u8>, action: &u8) -> Result<Vec<u8>, Self::Error> {
//!         Ok([&state[..], &[*action]].concat())
//!     }
//!     fn evaluate(&self, state: &Vec<u8>) -> Result<f64, Self::Error> {
//!         Ok(state.iter().map(|digit| f64::from(*digit)).sum::<f64>() / 27.0)
//!     }
//! }
//!
//! let mut search = Search::new(Digits, Vec::new(), SearchOptions::default())?;
//! search.run(200, |so_far| so_far.best_reward >= 1.0)?;
//! assert_eq!(*search.best().state, [9, 9, 9]);
//! # Ok::<(), amalgam_engine::Error>(())
//! ```

mod arena;
mod run;
mod states;

pub use arena::{NodeId, NodeView};
pub use run::{Ended, Search};
pub use states::{Edits, TreeSearch, TreeState};

use crate::error::Error;

/// A search problem. Methods are called concurrently if the search has several threads.
pub trait Problem: Sync {
    /// The type of states.
    type State: Send + Sync;
    /// The type of actions.
    type Action: Clone + Send;
    /// The error type.
    type Error: From<Error> + Send;

    /// Returns the actions of a state at this depth below the first one. A state without actions is terminal.
    fn actions(&self, state: &Self::State, depth: usize) -> Result<Vec<Choice<Self::Action>>, Self::Error>;

    /// Returns the state that results from an action.
    fn apply(&self, state: &Self::State, action: &Self::Action) -> Result<Self::State, Self::Error>;

    /// Returns the reward of a state, from 0 to 1. Called once per state.
    fn evaluate(&self, state: &Self::State) -> Result<f64, Self::Error>;

    /// Returns whether a state is terminal. Then its actions are not requested.
    fn is_terminal(&self, _state: &Self::State, _reward: f64) -> Result<bool, Self::Error> {
        Ok(false)
    }
}

/// An action with its prior.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<A> {
    /// The action.
    pub action: A,
    /// The weight among the actions of its state, at least 0. Only [`Selection::Puct`] uses it.
    pub prior: f64,
}

impl<A> Choice<A> {
    /// Creates an action with the default prior.
    pub fn of(action: A) -> Self {
        Self { action, prior: 1.0 }
    }
}

/// The strategy to select a path down the tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// `mean + constant * sqrt(ln(visits of the parent) / visits)`. Untried actions come first, in any order.
    Uct {
        /// The exploration constant: larger values explore more.
        constant: f64,
    },
    /// `mean + constant * prior * sqrt(visits of the parent) / (1 + visits)`. Untried actions have the mean of their parent.
    Puct {
        /// The exploration constant: larger values explore more.
        constant: f64,
    },
}

/// Progressive widening: a state with `n` visits has at most `factor * n ^ exponent` children, and at least one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Widening {
    /// The factor.
    pub factor: f64,
    /// The exponent.
    pub exponent: f64,
}

/// Options of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchOptions {
    /// The selection strategy.
    pub selection: Selection,
    /// Progressive widening of states with many actions, if set.
    pub widening: Option<Widening>,
    /// States at this depth below the first one are terminal.
    pub depth_max: usize,
    /// Number of threads that grow the tree.
    pub threads: usize,
    /// Seed of the order in which equal actions are tried.
    pub seed: u64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self { selection: Selection::Uct { constant: 0.5 }, widening: None, depth_max: usize::MAX, threads: 1, seed: 0 }
    }
}

/// The progress of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Number of states created by applying an action.
    pub expansions: u64,
    /// Number of evaluated states: the first one and all expansions.
    pub evaluations: u64,
    /// Number of terminal states.
    pub terminals: u64,
    /// Maximum depth of a state below the first one.
    pub depth_max: usize,
    /// The highest reward.
    pub best_reward: f64,
}
