//! Names of episodes and numbers of steps.

use std::fmt;

use crate::error::{Error, Result};
use crate::reference::RefName;
use crate::workspace::WorkspaceName;

/// Prefix of references to the records of episodes.
pub(super) const PREFIX: &str = "episode/";
/// Prefix of references to steps. It is a separate prefix, so that a list of episodes reads no steps.
pub(super) const STEP_PREFIX: &str = "step/";

/// The name of an episode. It follows the rules of workspace names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpisodeName(WorkspaceName);

impl EpisodeName {
    /// Creates a name after checking it.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        match WorkspaceName::new(name) {
            Ok(name) => Ok(Self(name)),
            Err(Error::Invalid { why, .. }) => Err(Error::Invalid { what: "episode name", why }),
            Err(error) => Err(error),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the reference of the episode's record.
    pub fn reference(&self) -> RefName {
        RefName::new(format!("{PREFIX}{}", self.0)).expect("an episode's name is a part of a reference's")
    }

    pub(super) fn of_reference(name: &RefName) -> Result<Self> {
        let text = name.as_str().strip_prefix(PREFIX).unwrap_or_default();
        Self::new(text).map_err(|why| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_string() })
    }

    /// Returns the prefix of the references of its steps. Names contain no `@`, so it matches no other episode.
    pub(super) fn step_prefix(&self) -> String {
        format!("{STEP_PREFIX}{}@", self.0)
    }

    pub(super) fn step_reference(&self, step: StepId) -> RefName {
        RefName::new(format!("{STEP_PREFIX}{}@{:016x}", self.0, step.0)).expect("as above")
    }

    pub(super) fn step_of(&self, name: &RefName) -> Result<StepId> {
        let damaged = || Error::DamagedRecord {
            what: format!("reference {name}"),
            why: "a step's number has 16 hex digits".to_owned(),
        };
        let digits = name.as_str().strip_prefix(&self.step_prefix()).ok_or_else(damaged)?;
        let number = u64::from_str_radix(digits, 16).map_err(|_| damaged())?;
        if number == 0 || *name != self.step_reference(StepId(number)) {
            return Err(damaged());
        }
        Ok(StepId(number))
    }
}

impl fmt::Display for EpisodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The number of a step. Numbers ascend from 1 in recording order; the number of a parent is below those of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u64);

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
