//! Validates references from outside by the rules of their name, of any kind.

use super::name::{EpisodeName, PREFIX, STEP_PREFIX};
use super::record::{Episode, Step};
use crate::error::{Error, Result};
use crate::queue;
use crate::reference::{RefName, RefValue};
use crate::workspace;

/// Checks that a reference from outside follows the rules of its name (`docs/FORMAT.md`), so that listings of workspaces, labels
/// or episodes can read it. Does not check the object that it points at.
pub fn check_reference(reference: &RefName, value: &RefValue) -> Result<()> {
    let text = reference.as_str();
    if text.starts_with(PREFIX) {
        return Episode::read(EpisodeName::of_reference(reference)?, value.clone()).map(drop);
    }
    if let Some(rest) = text.strip_prefix(STEP_PREFIX) {
        let Some((name, _)) = rest.rsplit_once('@') else {
            return Err(Error::Invalid { what: "reference", why: format!("{reference}: it has no number") });
        };
        let name = EpisodeName::new(name)?;
        return Step::read(&name, name.step_of(reference)?, value).map(drop);
    }
    queue::check_reference(reference, value)?;
    workspace::check_reference(reference, value)
}
