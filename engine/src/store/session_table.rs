//! The open write sessions of a store.

use std::collections::BTreeMap;

use crate::backend::Epoch;

/// The epochs of the open sessions.
#[derive(Default)]
pub(super) struct SessionTable(pub(super) BTreeMap<Epoch, usize>);

impl SessionTable {
    pub(super) fn oldest(&self) -> Option<Epoch> {
        self.0.keys().next().copied()
    }
}
