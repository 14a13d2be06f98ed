//! The rules of a transaction that hold for every backend.

use std::collections::HashSet;

use super::Transaction;
use crate::error::{Error, Result};
use crate::reference::REFS_PER_TRANSACTION_MAX;

impl Transaction {
    /// Checks the rules that hold for every backend: each moved reference is compared first, none twice, and a record exists.
    pub fn check(&self) -> Result<()> {
        check(self)
    }
}

fn check(transaction: &Transaction) -> Result<()> {
    let wrong = |why: String| Err(Error::Invalid { what: "transaction", why });
    let refs = transaction.expect.len().max(transaction.set.len());
    if refs > REFS_PER_TRANSACTION_MAX {
        return Err(Error::TooLarge {
            what: "references in a transaction",
            value: refs as u64,
            max: REFS_PER_TRANSACTION_MAX as u64,
        });
    }
    let mut expected = HashSet::with_capacity(transaction.expect.len());
    for (name, _) in &transaction.expect {
        if !expected.insert(name) {
            return wrong(format!("{name} is expected twice"));
        }
    }
    let mut set = HashSet::with_capacity(transaction.set.len());
    for (name, value) in &transaction.set {
        if !expected.contains(name) {
            return wrong(format!("{name} would move without being compared first"));
        }
        if !set.insert(name) {
            return wrong(format!("{name} is set twice"));
        }
        if let Some(value) = value {
            value.check().map_err(|why| Error::Invalid { what: "reference", why: why.to_string() })?;
        }
    }
    match &transaction.operation {
        None if !transaction.set.is_empty() => wrong("references move without an operation record".to_owned()),
        Some(draft) => draft.check().map_err(|why| Error::Invalid { what: "operation", why: why.to_string() }),
        None => Ok(()),
    }
}
