//! Trees that a session rests on: they were in the store before it and stay, so nothing in them has to be walked.

use super::reach::Edges;
use crate::error::Result;
use crate::id::{ObjectId, RootId};
use crate::name::DEPTH_MAX;
use crate::store::WriteSession;

impl WriteSession {
    /// Keeps a tree of the store while the session lives. What [`open_resting`](Self::open_resting) finds in it may be referred
    /// to without a walk over it.
    pub fn rest_on(&self, root: RootId) -> Result<()> {
        let pin = self.store().hold(root)?;
        let mut resting = self.resting().lock();
        resting.pins.push(pin);
        resting.below.insert(root.object(), DEPTH_MAX);
        Ok(())
    }

    /// Looks at the children of an object of a tree that the session rests on. Returns how many of them were not known; none
    /// when the object is not known to be in such a tree.
    pub fn open_resting(&self, id: ObjectId) -> Result<usize> {
        let Some(depth) = self.resting().lock().below.get(&id).copied() else { return Ok(0) };
        let edges = Edges::of_stored(self, id)?;
        let (ids, names) = edges.parts();
        // A valid tree is no deeper than allowed: what lies so many names down has at most the others below it.
        let depth = depth.saturating_sub(names);
        let mut resting = self.resting().lock();
        let before = resting.below.len();
        for id in ids {
            let known = resting.below.entry(*id).or_insert(depth);
            *known = depth.min(*known);
        }
        Ok(resting.below.len() - before)
    }

    /// Takes what is known of depths back, because it may be too much; false when there was nothing to take back.
    pub(super) fn forget_resting(&self) -> bool {
        let mut resting = self.resting().lock();
        let had = !resting.below.is_empty();
        resting.below.clear();
        if had {
            self.known().lock().retain(|_, known| known.bytes > 0);
        }
        had
    }
}
