//! The states of a sandbox.

use std::fmt;
use std::str::FromStr;

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Its processes are being started.
    Starting,
    /// Its agent has registered.
    Running,
    /// Its processes are being ended.
    Stopping,
    /// It was ended by a call or because its time was up.
    Stopped,
    /// It could not be started, or its processes ended by themselves.
    Error,
}

impl SandboxState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Running, Self::Stopping, Self::Stopped, Self::Error];

    /// Returns the name of the state in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Error => "error",
        }
    }

    /// Returns whether a sandbox in this state may have processes.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping)
    }

    /// Returns whether a sandbox may change from this state to another one.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Starting => matches!(next, Self::Running | Self::Stopping | Self::Error),
            Self::Running => matches!(next, Self::Stopping | Self::Error),
            Self::Stopping => matches!(next, Self::Stopped | Self::Error),
            Self::Error => matches!(next, Self::Stopping | Self::Stopped),
            Self::Stopped => matches!(next, Self::Starting),
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for SandboxState {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.word() == word);
        found.ok_or_else(|| format!("`{}` is no state of a sandbox", word.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_a_stopped_sandbox_can_only_be_started_again() {
        for state in SandboxState::ALL {
            assert_eq!(state.word().parse(), Ok(state));
            assert!(!state.may_become(state), "{state}");
            assert_eq!(SandboxState::Stopped.may_become(state), state == SandboxState::Starting, "{state}");
        }
        assert!("RUNNING".parse::<SandboxState>().is_err());
    }
}
