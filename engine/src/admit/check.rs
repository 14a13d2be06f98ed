//! The check of one object from outside.

use crate::error::{Error, Result};
use crate::id::ObjectKind;
use crate::malformed::Malformed;
use crate::store::WriteSession;

/// The check of one object.
pub(super) struct AdmissionCheck<'a> {
    pub(super) session: &'a WriteSession,
    pub(super) kind: ObjectKind,
}

impl AdmissionCheck<'_> {
    pub(super) fn refusal(&self, source: Malformed) -> Error {
        Error::Refused { kind: self.kind, source }
    }

    /// Refuses the object if a claim about a child does not hold.
    pub(super) fn claim(&self, holds: bool) -> Result<()> {
        if holds { Ok(()) } else { Err(self.refusal(Malformed::Link)) }
    }
}
