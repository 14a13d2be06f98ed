//! Drops an episode: removes all its references in transactions of bounded size.

use super::record::EpisodeState;
use super::{EpisodeName, Episodes};
use crate::error::{Error, Result};
use crate::operation::{OperationContext, Step, move_refs, trying};
use crate::reference::REFS_PER_TRANSACTION_MAX;

/// Number of references that one transaction removes. The operation record contains each with its value.
const DROP_PAGE: usize = 10_000;

/// The progress of dropping an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Number of steps removed by this call.
    pub steps: u64,
    /// Whether the episode is completely removed.
    pub is_done: bool,
}

impl Episodes {
    /// Drops an episode: it no longer keeps its snapshots alive. Returns the number of removed steps.
    ///
    /// The episode is first marked as being dropped and accepts no steps from then on. If the call is interrupted, the episode is
    /// still listed in that state, and a second call finishes it.
    pub fn drop_episode(&self, name: &EpisodeName, context: &OperationContext) -> Result<u64> {
        let mut steps = 0;
        let mut is_begun = false;
        loop {
            let dropped = self.drop_page(name, DROP_PAGE, context, is_begun)?;
            steps += dropped.steps;
            if dropped.is_done {
                return Ok(steps);
            }
            is_begun = true;
        }
    }

    /// Removes at most `steps_max` steps of an episode in one transaction, for callers that show progress or may stop.
    pub fn drop_part(&self, name: &EpisodeName, steps_max: usize, context: &OperationContext) -> Result<Dropped> {
        self.drop_page(name, steps_max, context, false)
    }

    /// Removes at most `steps_max` steps of an episode in one transaction. A drop that `is_begun` ends where the episode is not being
    /// dropped any more: another caller has finished it, and the name may belong to a new episode.
    fn drop_page(
        &self,
        name: &EpisodeName,
        steps_max: usize,
        context: &OperationContext,
        is_begun: bool,
    ) -> Result<Dropped> {
        // The request id belongs to the final transaction.
        let part = OperationContext { request: None, ..context.clone() };
        let limit = steps_max.clamp(1, REFS_PER_TRANSACTION_MAX);
        trying(|| {
            let done = Dropped { steps: 0, is_done: true };
            // The name of an episode that this request has dropped may belong to a new one.
            if context.done_before(&self.store)?.is_some() {
                return Ok(done);
            }
            let found = self.find(name)?;
            if is_begun && found.as_ref().is_none_or(|episode| episode.state != EpisodeState::Dropping) {
                return Ok(done);
            }
            let Some(episode) = found else { return Err(self.absent(name)?) };
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
                move_refs(&self.store, context, context.draft("drop"), vec![record(None)])?;
                return Ok(Dropped { steps, is_done: true });
            }
            let gone = page.into_iter().map(|(name, value)| Step { name, before: Some(value), after: None });
            move_refs(&self.store, &part, part.draft("drop"), gone.collect())?;
            Ok(Dropped { steps, is_done: false })
        })
    }
}
