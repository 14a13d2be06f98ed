//! A transaction on its way to PostgreSQL.

use amalgam_engine::backend::Durability;
use amalgam_engine::reference::{OperationDraft, RefName, RefValue};

use crate::upload::NamedPack;

/// A transaction whose large objects are in the bucket.
pub(crate) struct Prepared {
    /// Packs that are registered in any case.
    pub(crate) stored: Vec<NamedPack>,
    /// The pack that travels with the transaction.
    pub(crate) inline: Option<NamedPack>,
    pub(crate) expect: Vec<(RefName, Option<RefValue>)>,
    pub(crate) set: Vec<(RefName, Option<RefValue>)>,
    pub(crate) operation: Option<OperationDraft>,
    pub(crate) durability: Durability,
}
