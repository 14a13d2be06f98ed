//! The state of all references after an operation.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::reference::{RefName, RefValue};
use crate::store::Store;

const PAGE: usize = 1024;

/// All references as they were after an operation. The objects they point at are read as usual; some may have been collected
/// since.
#[derive(Clone, Debug)]
pub struct PastRefs {
    sequence: u64,
    refs: BTreeMap<RefName, RefValue>,
}

impl PastRefs {
    /// Reconstructs the state right after the operation with this number; 0 is before the first.
    ///
    /// Reads every reference, and the log from that operation on. The log must reach back that far.
    pub fn at(store: &Store, sequence: u64) -> Result<Self> {
        let last = store.last_operation()?;
        if sequence > last {
            let hint = format!("the log ends at {last}");
            return Err(Error::Absent { what: format!("operation {sequence}"), hint });
        }
        let mut refs = BTreeMap::new();
        let mut after = None;
        loop {
            let page = store.list_refs("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            refs.extend(page);
        }
        // Read after the references, so that it contains the moves made while they were read.
        let mut touched = BTreeMap::new();
        let mut position = sequence;
        loop {
            let page = store.list_operations(position, PAGE)?;
            let Some(last) = page.last() else { break };
            position = last.sequence;
            for change in page.into_iter().flat_map(|operation| operation.changes) {
                touched.entry(change.name).or_insert(change.before);
            }
        }
        for (name, before) in touched {
            match before {
                Some(value) => refs.insert(name, value),
                None => refs.remove(&name),
            };
        }
        Ok(Self { sequence, refs })
    }

    /// Returns the number of the operation.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the value that a reference had.
    pub fn read_ref(&self, name: &RefName) -> Option<&RefValue> {
        self.refs.get(name)
    }

    /// Returns all references whose name starts with the prefix, by name.
    pub fn refs<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a RefName, &'a RefValue)> + 'a {
        self.refs.iter().filter(move |(name, _)| name.as_str().starts_with(prefix))
    }
}
