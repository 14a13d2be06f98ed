//! Episodes: the steps of a run, recorded and queried.
//!
//! A step is a snapshot with its parent step, its reward, and the visit count of a search. The steps form a forest. An episode
//! may have a hundred thousand steps: queries read pages and keep only a few numbers per step in memory. Each step is a reference
//! to its snapshot, so an episode keeps all its states alive until the whole episode is dropped.
//!
//! ```
//! use amalgam_engine::episode::{EpisodeName, Episodes, Metadata, StepDraft};
//! use amalgam_engine::{OperationContext, Store, Time, WorkingTree};
//!
//! let store = Store::in_memory();
//! let episodes = Episodes::of(&store);
//! let (run, ada) = (EpisodeName::new("run/1")?, OperationContext::new("ada", Time(1)));
//! episodes.begin(&run, &Metadata::new(), &ada)?;
//! let mut tree = WorkingTree::new(&store);
//! tree.write("plan.md", b"think")?;
//! let first = episodes.commit_step(&run, &mut tree, "think", &StepDraft::default(), &ada)?;
//! tree.write("plan.md", b"act")?;
//! let second = episodes.commit_step(&run, &mut tree, "act", &StepDraft::after(first.step).reward(0.7), &ada)?;
//!
//! let best = episodes.best_leaf(&run)?.expect("a leaf has a reward");
//! assert_eq!(best.id, second.step);
//! assert_eq!(episodes.path_to(&run, best.id)?.len(), 2);
//! episodes.drop_episode(&run, &ada)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod compare;
mod discard;
mod export;
mod name;
mod query;
mod record;
mod write;

pub use check::check_reference;
pub use compare::Comparison;
pub use discard::Dropped;
pub use name::{EpisodeName, StepId};
pub use query::Order;
pub use record::{Episode, EpisodeState, METADATA_BYTES_MAX, Metadata, Step, StepDraft, StepUpdate};
pub use write::{CommittedStep, STEPS_PER_UPDATE_MAX};

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::operation::{self, OperationContext, move_refs, recorded, trying};
use crate::reference::{Operation, RefValue};
use crate::store::Store;
use crate::workspace::nearest;
use record::{check_metadata, episode_value};

/// Number of steps that are read at once.
const PAGE: usize = 1_024;
/// Maximum number of names that are searched for suggestions in an error.
const NAMES_SCANNED_MAX: usize = 1_000;
/// Maximum number of episodes that are cached between calls.
const CACHED_EPISODES_MAX: usize = 1_024;

/// The episodes of a store. Threads that record into one episode must share an instance: it assigns the step numbers.
#[derive(Clone)]
pub struct Episodes {
    store: Store,
    known: Arc<Mutex<HashMap<EpisodeName, CachedEpisode>>>,
}

/// The cached record of an episode and its next step number.
#[derive(Clone)]
struct CachedEpisode {
    value: RefValue,
    next: u64,
}

impl Episodes {
    /// Returns the episodes of a store.
    pub fn of(store: &Store) -> Self {
        Self { store: store.clone(), known: Arc::default() }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Creates an episode without steps.
    pub fn begin(&self, name: &EpisodeName, metadata: &Metadata, context: &OperationContext) -> Result<Episode> {
        check_metadata(metadata)?;
        let value = episode_value(EpisodeState::Open, context.time, metadata);
        let step = operation::Step { name: name.reference(), before: None, after: Some(value.clone()) };
        match move_refs(&self.store, context, context.draft("begin"), vec![step]) {
            Err(Error::Stale { .. }) => match self.find(name)?.map(|found| found.state) {
                Some(EpisodeState::Dropping) => Err(half_dropped(name)),
                _ => Err(Error::Taken { what: format!("episode {name}") }),
            },
            done => {
                done?;
                Episode::read(name.clone(), value)
            }
        }
    }

    /// Returns an episode, or `None` if it does not exist.
    pub fn find(&self, name: &EpisodeName) -> Result<Option<Episode>> {
        self.store.read_ref(&name.reference())?.map(|value| Episode::read(name.clone(), value)).transpose()
    }

    /// Returns an episode, or an error if it does not exist.
    pub fn get(&self, name: &EpisodeName) -> Result<Episode> {
        match self.find(name)? {
            Some(episode) => Ok(episode),
            None => Err(self.absent(name)?),
        }
    }

    /// Lists up to `limit` episodes after `after` whose name starts with `prefix`, by name. Includes episodes that are being
    /// dropped until their last step is removed.
    pub fn list(&self, prefix: &str, after: Option<&EpisodeName>, limit: usize) -> Result<Vec<Episode>> {
        let after = after.map(EpisodeName::reference);
        let found = self.store.list_refs(&format!("{}{prefix}", name::PREFIX), after.as_ref(), limit)?;
        found.into_iter().map(|(name, value)| Episode::read(EpisodeName::of_reference(&name)?, value)).collect()
    }

    /// Protects an episode from being dropped until it is released.
    pub fn keep(&self, name: &EpisodeName, context: &OperationContext) -> Result<Operation> {
        self.set_state(name, EpisodeState::Kept, "keep", context)
    }

    /// Releases a kept episode, so that it can be dropped.
    pub fn release(&self, name: &EpisodeName, context: &OperationContext) -> Result<Operation> {
        self.set_state(name, EpisodeState::Open, "release", context)
    }

    fn set_state(
        &self,
        name: &EpisodeName,
        state: EpisodeState,
        word: &str,
        context: &OperationContext,
    ) -> Result<Operation> {
        trying(|| {
            let episode = self.get(name)?;
            if episode.state == EpisodeState::Dropping {
                return Err(half_dropped(name));
            }
            let (before, after) = (Some(episode.value().clone()), Some(episode.value_as(state)));
            let step = operation::Step { name: name.reference(), before, after };
            move_refs(&self.store, context, context.draft(word), vec![step]).map(recorded)
        })
    }

    fn absent(&self, name: &EpisodeName) -> Result<Error> {
        let found = self.store.list_refs(name::PREFIX, None, NAMES_SCANNED_MAX)?.into_iter();
        let names = found.map(|(reference, _)| Ok(EpisodeName::of_reference(&reference)?.to_string()));
        let near = nearest(names.collect::<Result<_>>()?, name.as_str());
        let hint = near.unwrap_or_else(|| "the store has none yet; begin one first".to_owned());
        Ok(Error::Absent { what: format!("episode {name}"), hint })
    }
}

fn half_dropped(name: &EpisodeName) -> Error {
    let why = format!("{name} is being dropped; drop it again to finish that");
    Error::Invalid { what: "episode", why }
}
