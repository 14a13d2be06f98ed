//! Progress of a transfer.

use std::ops::Deref;

/// Progress of a transfer. Its items are objects that were sent or received.
#[derive(Debug, Default)]
pub struct Progress(amalgam_engine::Progress);

impl Deref for Progress {
    type Target = amalgam_engine::Progress;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
