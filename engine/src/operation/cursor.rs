//! Following the log.

use std::time::Duration;

use crate::error::Result;
use crate::reference::Operation;
use crate::store::Store;

const PAGE: usize = 256;

/// A place in the operation log. Everything that reports changes is one of these: it misses nothing, sees nothing twice, and
/// can be put down and taken up again by its number.
#[derive(Clone)]
pub struct OperationCursor {
    store: Store,
    after: u64,
}

impl OperationCursor {
    /// A cursor behind the operation with this number; 0 is before the first of all. Reading fails where the log has been
    /// shortened beyond it: something would be missed.
    pub fn after(store: &Store, sequence: u64) -> Self {
        Self { store: store.clone(), after: sequence }
    }

    /// A cursor before the oldest operation that the log still has.
    pub fn at_beginning(store: &Store) -> Result<Self> {
        Ok(Self::after(store, store.first_operation()? - 1))
    }

    /// A cursor behind all that has happened so far.
    pub fn at_end(store: &Store) -> Result<Self> {
        Ok(Self::after(store, store.last_operation()?))
    }

    /// The number of the last operation that was read.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// The next operations, up to 256 of them; none at the end of the log.
    pub fn read(&mut self) -> Result<Vec<Operation>> {
        let page = self.store.list_operations(self.after, PAGE)?;
        if let Some(last) = page.last() {
            self.after = last.sequence;
        }
        Ok(page)
    }

    /// The same, but waits at the end of the log for something to happen, and no longer than this.
    pub fn wait(&mut self, at_most: Duration) -> Result<Vec<Operation>> {
        self.store.wait_for_operation(self.after, at_most)?;
        self.read()
    }
}
