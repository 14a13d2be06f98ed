//! Who writes: a project, a node, and the generation of the node that PostgreSQL compares at every write.

use amalgam_engine::{Error, Result};

/// The identity of an open store. A node that joins again gets another generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) project: i64,
    pub(crate) node: [u8; 16],
    pub(crate) generation: i64,
}

/// Returns 16 random bytes: the name of a node or of a pack.
pub(crate) fn random_name() -> Result<[u8; 16]> {
    let mut name = [0; 16];
    getrandom::fill(&mut name).map_err(|why| Error::Fault { action: "get random bytes", why: why.to_string() })?;
    Ok(name)
}

/// Converts a number that PostgreSQL stores with a sign.
pub(crate) fn unsigned(number: i64) -> u64 {
    number.max(0) as u64
}

/// Converts a number to the one that PostgreSQL stores. Greater ones are no numbers of a store.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
