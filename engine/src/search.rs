//! Search: Monte-Carlo tree search over any states, and over trees that are committed and recorded as they are found.
//!
//! The user's part says which actions a state has, what they make of it and what that is worth ([`Problem`]). The search
//! keeps a tree of the states seen so far and grows it by one state at a time, where that promises most. A state is
//! evaluated once; a part of the tree that has been searched through is not entered again, so a small space is searched
//! to its end. Several threads can grow one tree: on their way they count as visits without reward (a virtual loss), so
//! that each goes its own way.
//!
//! There is no clock here: a run ends after so many states, or when the caller's function says so. One thread with one
//! seed finds the same every time; several threads do not.
//!
//! ```
//! use amalgam_engine::search::{Choice, Problem, Search, SearchOptions};
//!
//! /// Three digits, one after another; worth as much as their sum.
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
mod random;
mod run;
mod states;

pub use arena::{NodeId, NodeView};
pub use run::{Ended, Search};
pub use states::{Edits, TreeSearch, TreeState};

use crate::error::Error;

/// The user's part of a search. Called by several threads at once when there are several.
pub trait Problem: Sync {
    /// A state.
    type State: Send + Sync;
    /// What can be done in a state.
    type Action: Clone + Send;
    /// What can go wrong.
    type Error: From<Error> + Send;

    /// What can be done in a state that is so many actions below the first one. Without any it is an end.
    fn actions(&self, state: &Self::State, depth: usize) -> Result<Vec<Choice<Self::Action>>, Self::Error>;

    /// What an action makes of a state.
    fn apply(&self, state: &Self::State, action: &Self::Action) -> Result<Self::State, Self::Error>;

    /// What a state is worth, from 0 to 1. Asked once for each.
    fn evaluate(&self, state: &Self::State) -> Result<f64, Self::Error>;

    /// Whether nothing is to be done in a state any more. Then its actions are not asked for.
    fn is_terminal(&self, _state: &Self::State, _reward: f64) -> Result<bool, Self::Error> {
        Ok(false)
    }
}

/// An action, and how promising it looks before it is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<A> {
    /// The action.
    pub action: A,
    /// Its weight among the actions of its state, 0 or more. Only [`Selection::Puct`] looks at it.
    pub prior: f64,
}

impl<A> Choice<A> {
    /// An action like any other.
    pub fn of(action: A) -> Self {
        Self { action, prior: 1.0 }
    }
}

/// How the way down the tree is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// `mean + constant * sqrt(ln(visits of the parent) / visits)`; what was never tried comes first, in any order.
    Uct {
        /// The larger, the more is explored.
        constant: f64,
    },
    /// `mean + constant * prior * sqrt(visits of the parent) / (1 + visits)`; what was never tried has its parent's mean.
    Puct {
        /// The larger, the more is explored.
        constant: f64,
    },
}

/// Progressive widening: a state with `n` visits has at most `factor * n ^ exponent` states below it, and one at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Widening {
    /// Times.
    pub factor: f64,
    /// To the power of.
    pub exponent: f64,
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchOptions {
    /// How the way down is chosen.
    pub selection: Selection,
    /// Whether states with many actions are widened slowly.
    pub widening: Option<Widening>,
    /// States so many actions below the first one are ends.
    pub depth_max: usize,
    /// How many threads grow the tree.
    pub threads: usize,
    /// The order in which equal actions are tried follows from it.
    pub seed: u64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self { selection: Selection::Uct { constant: 0.5 }, widening: None, depth_max: usize::MAX, threads: 1, seed: 0 }
    }
}

/// How a search stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// States that were made by applying an action.
    pub expansions: u64,
    /// States that were evaluated: the first one and those.
    pub evaluations: u64,
    /// States that are ends.
    pub terminals: u64,
    /// The most actions between the first state and another.
    pub depth_max: usize,
    /// The highest reward.
    pub best_reward: f64,
}
