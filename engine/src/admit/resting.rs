//! Trees that a session rests on: they were in the store before it and stay pinned, so that nothing in them has to be walked.

use super::reach::Edges;
use crate::error::Result;
use crate::id::{ObjectId, RootId};
use crate::name::DEPTH_MAX;
use crate::store::WriteSession;

impl WriteSession {
    /// Pins a tree of the store for the lifetime of the session. Objects that [`open_resting`](Self::open_resting) finds in it
    /// may be referred to without a walk over them.
    pub fn rest_on(&self, root: RootId) -> Result<()> {
        let pin = self.store().hold(root)?;
        let mut resting = self.resting().lock();
        resting.pins.push(pin);
        resting.below.insert(root.object(), DEPTH_MAX);
        Ok(())
    }

    /// Registers the children of an object of a tree that the session rests on. Returns how many of them were new; 0 if the
    /// object is not known to be in such a tree.
    pub fn open_resting(&self, id: ObjectId) -> Result<usize> {
        let Some(depth) = self.resting().lock().below.get(&id).copied() else { return Ok(0) };
        let edges = Edges::of_stored(self, id)?;
        let (ids, names) = edges.parts();
        // A valid tree does not exceed the maximum depth: an object below `names` names has at most the remaining depth below it.
        let depth = depth.saturating_sub(names);
        let mut resting = self.resting().lock();
        let before = resting.below.len();
        for id in ids {
            let known = resting.below.entry(*id).or_insert(depth);
            *known = depth.min(*known);
        }
        Ok(resting.below.len() - before)
    }

    /// Discards the recorded upper bounds of depths, because they may be too high. Returns false if there were none.
    pub(super) fn forget_resting(&self) -> bool {
        let mut resting = self.resting().lock();
        let had = !resting.below.is_empty();
        resting.below.clear();
        if had {
            self.checked_objects().lock().retain(|_, known| known.bytes > 0);
        }
        had
    }
}
