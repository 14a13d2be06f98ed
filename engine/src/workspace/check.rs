//! Validates references from outside by the rules of their name.

use super::label;
use super::name::{self, DELETED_NUMBER_MAX, DELETED_PREFIX, WorkspaceName};
use super::record::Workspace;
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::lean;
use crate::operation::snapshot_of;
use crate::reference::{RefName, RefValue};

/// Validates a reference to a workspace, a label, a lean tree, a note or a reward by the rules of its name. Other references are
/// accepted.
pub(crate) fn check_reference(reference: &RefName, value: &RefValue) -> Result<()> {
    let wrong = |why: &str| Err(Error::Invalid { what: "reference", why: format!("{reference}: {why}") });
    let text = reference.as_str();
    if let Some(name) = text.strip_prefix(name::PREFIX) {
        return Workspace::read(WorkspaceName::new(name)?, value.clone()).map(drop);
    }
    if let Some(rest) = text.strip_prefix(DELETED_PREFIX) {
        let Some((name, number)) = rest.rsplit_once('@') else { return wrong("it has no number") };
        let name = WorkspaceName::new(name)?;
        let number = number.parse().ok().filter(|number| (1..=DELETED_NUMBER_MAX).contains(number));
        if number.map(|number| name.deleted_reference(number)).as_ref() != Some(reference) {
            return wrong("its number is none");
        }
        return Workspace::read(name, value.clone()).map(drop);
    }
    if let Some(name) = text.strip_prefix(label::LABEL_PREFIX) {
        label::LabelName::new(name)?;
        return if value.target.and_then(snapshot_of).is_some() { Ok(()) } else { wrong("it is on no snapshot") };
    }
    lean::check(reference, value).or_else(wrong)?;
    let noted = |prefix: &str| text.strip_prefix(prefix).map(|id| SnapshotId::from_hex(id).is_some());
    match (noted(label::NOTE_PREFIX), noted(label::REWARD_PREFIX)) {
        (Some(false), _) | (_, Some(false)) => wrong("its name is no snapshot's id"),
        (Some(true), _) if value.note.len() > label::NOTE_BYTES_MAX => wrong("it is too long"),
        (_, Some(true)) => match value.note[..].try_into().map(f64::from_be_bytes) {
            Ok(number) if !number.is_nan() => Ok(()),
            _ => wrong("it is not a number"),
        },
        _ => Ok(()),
    }
}
