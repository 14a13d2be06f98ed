//! Dropping an episode: all its references go, in bounded transactions.

use super::record::EpisodeState;
use super::{EpisodeName, Episodes};
use crate::error::{Error, Result};
use crate::operation::{Act, Step, move_refs, trying};
use crate::reference::REFS_PER_TRANSACTION_MAX;

/// References that one transaction of a drop removes. Each is in the operation record with what it held.
const DROP_PAGE: usize = 10_000;

/// How far the dropping of an episode has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Steps that went in this call.
    pub steps: u64,
    /// Whether nothing is left of the episode.
    pub is_done: bool,
}

impl Episodes {
    /// Drops an episode: its snapshots are no longer kept by it. Returns how many steps went.
    ///
    /// First it is marked; from then on it takes no steps. When this is interrupted, the episode is still listed, as being
    /// dropped, and dropping it again finishes it.
    pub fn drop_episode(&self, name: &EpisodeName, act: &Act) -> Result<u64> {
        let mut steps = 0;
        loop {
            let dropped = self.drop_part(name, DROP_PAGE, act)?;
            steps += dropped.steps;
            if dropped.is_done {
                return Ok(steps);
            }
        }
    }

    /// The same for at most so many steps, in one transaction, for whoever wants to show progress or to stop.
    pub fn drop_part(&self, name: &EpisodeName, steps_max: usize, act: &Act) -> Result<Dropped> {
        // The transaction that ends it is the one that a request stands for.
        let part = Act { request: None, ..act.clone() };
        let limit = steps_max.clamp(1, REFS_PER_TRANSACTION_MAX);
        trying(|| {
            let Some(episode) = self.find(name)? else {
                if let Some(request) = &act.request
                    && self.store.find_request(request)?.is_some()
                {
                    return Ok(Dropped { steps: 0, is_done: true });
                }
                return Err(self.absent(name)?);
            };
            let record = |after| Step { name: name.reference(), before: Some(episode.value().clone()), after };
            match episode.state {
                EpisodeState::Kept => {
                    let why = format!("{name} is kept; release it first");
                    return Err(Error::Invalid { what: "episode", why });
                }
                EpisodeState::Open => {
                    let mark = record(Some(episode.value_as(EpisodeState::Dropping)));
                    move_refs(&self.store, &part, part.draft("drop"), vec![mark])?;
                    self.known.lock().remove(name);
                    return Ok(Dropped { steps: 0, is_done: false });
                }
                EpisodeState::Dropping => {}
            }
            let page = self.store.list_refs(&name.step_prefix(), None, limit)?;
            let steps = page.len() as u64;
            if page.is_empty() {
                move_refs(&self.store, act, act.draft("drop"), vec![record(None)])?;
                return Ok(Dropped { steps, is_done: true });
            }
            let gone = page.into_iter().map(|(name, value)| Step { name, before: Some(value), after: None });
            move_refs(&self.store, &part, part.draft("drop"), gone.collect())?;
            Ok(Dropped { steps, is_done: false })
        })
    }
}
