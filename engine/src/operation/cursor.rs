//! Follows the operation log.

use std::time::Duration;

use crate::error::Result;
use crate::reference::Operation;
use crate::store::Store;

const PAGE: usize = 256;

/// A position in the operation log. All change notifications are based on it: it misses no operation, returns none twice, and can
/// be resumed by its number.
#[derive(Clone)]
pub struct OperationCursor {
    store: Store,
    after: u64,
}

impl OperationCursor {
    /// Creates a cursor after the operation with this number; 0 is before the first one. Reading fails if the log has been
    /// trimmed beyond it, because operations would be missed.
    pub fn after(store: &Store, sequence: u64) -> Self {
        Self { store: store.clone(), after: sequence }
    }

    /// Creates a cursor before the oldest operation in the log.
    pub fn at_beginning(store: &Store) -> Result<Self> {
        Ok(Self::after(store, store.first_operation()? - 1))
    }

    /// Creates a cursor after the newest operation.
    pub fn at_end(store: &Store) -> Result<Self> {
        Ok(Self::after(store, store.last_operation()?))
    }

    /// Returns the number of the last operation that was read.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// Returns up to 256 further operations; none at the end of the log.
    pub fn read(&mut self) -> Result<Vec<Operation>> {
        let page = self.store.list_operations(self.after, PAGE)?;
        if let Some(last) = page.last() {
            self.after = last.sequence;
        }
        Ok(page)
    }

    /// Returns further operations. At the end of the log, waits for new ones until the timeout.
    pub fn wait(&mut self, at_most: Duration) -> Result<Vec<Operation>> {
        self.store.wait_for_operation(self.after, at_most)?;
        self.read()
    }
}
