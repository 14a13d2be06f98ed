//! Notes in the metadata of a sandbox beside those of its creator: the API has no place for them.

use std::collections::HashMap;

use amalgam_proto::v1;

use crate::refusal::Refusal;

/// Prefix of the names in metadata that are not the creator's.
const PREFIX: &str = "amalgam.e2b/";
const TEMPLATE: &str = "amalgam.e2b/template";
const ON_TIMEOUT: &str = "amalgam.e2b/on-timeout";
const AUTO_RESUME: &str = "amalgam.e2b/auto-resume";
/// The first word of the reason of a sandbox whose time was up.
const EXPIRED: &str = "expired";
/// The reason of a sandbox that is being deleted.
const DELETED: &str = "deleted";

/// Notes about a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// The template as the client named it.
    pub(crate) template: String,
    /// A time-out pauses the sandbox, instead of ending it for ever.
    pub(crate) is_paused_on_timeout: bool,
    /// A request for a paused sandbox starts it.
    pub(crate) has_auto_resume: bool,
    /// The metadata of the creator.
    pub(crate) metadata: HashMap<String, String>,
}

impl Notes {
    /// Reads the notes about a sandbox.
    pub(crate) fn of(sandbox: &v1::Sandbox) -> Self {
        let note = |name: &str| sandbox.metadata.get(name);
        let of_creator = sandbox.metadata.iter().filter(|(name, _)| !name.starts_with(PREFIX));
        Self {
            template: note(TEMPLATE).unwrap_or(&sandbox.template).clone(),
            is_paused_on_timeout: note(ON_TIMEOUT).is_some_and(|word| word == "pause"),
            has_auto_resume: note(AUTO_RESUME).is_some_and(|word| word == "true"),
            metadata: of_creator.map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }

    /// Returns the metadata of a new sandbox: the creator's and the notes. Fails if the creator uses a name of the notes.
    pub(crate) fn into_metadata(self) -> Result<HashMap<String, String>, Refusal> {
        if self.metadata.keys().any(|name| name.starts_with(PREFIX)) {
            return Err(Refusal::invalid(format!("metadata: names that begin with {PREFIX} are taken")));
        }
        let mut all = self.metadata;
        all.insert(TEMPLATE.to_owned(), self.template);
        if self.is_paused_on_timeout {
            all.insert(ON_TIMEOUT.to_owned(), "pause".to_owned());
        }
        if self.has_auto_resume {
            all.insert(AUTO_RESUME.to_owned(), "true".to_owned());
        }
        Ok(all)
    }

    /// Returns the state of a sandbox by e2b's names; `None` for a sandbox that no longer exists to its clients.
    pub(crate) fn state(&self, sandbox: &v1::Sandbox) -> Option<&'static str> {
        match sandbox.state.as_str() {
            "running" | "starting" => Some("running"),
            // Its workspace is still being committed.
            "stopping" if sandbox.reason.starts_with(DELETED) => None,
            "stopped" | "stopping" if self.is_paused_on_timeout || !sandbox.reason.starts_with(EXPIRED) => {
                Some("paused")
            }
            _ => None,
        }
    }

    /// Returns whether a request for the sandbox starts it again.
    pub(crate) fn is_resumed_by_traffic(&self, sandbox: &v1::Sandbox) -> bool {
        self.has_auto_resume && self.state(sandbox) == Some("paused")
    }
}

/// Returns whether an e2b client created a sandbox, and can connect to it although it does not run.
pub fn is_paused(sandbox: &v1::Sandbox) -> bool {
    sandbox.metadata.contains_key(TEMPLATE) && Notes::of(sandbox).state(sandbox) == Some("paused")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_back_beside_those_of_the_creator() {
        let notes = Notes {
            template: "base".to_owned(),
            is_paused_on_timeout: true,
            has_auto_resume: true,
            metadata: HashMap::from([("user".to_owned(), "ann".to_owned())]),
        };
        let metadata = notes.clone().into_metadata().expect("metadata");
        assert_eq!(Notes::of(&v1::Sandbox { metadata, ..v1::Sandbox::default() }), notes);
        let taken = HashMap::from([(TEMPLATE.to_owned(), "x".to_owned())]);
        assert!(Notes { metadata: taken, ..Notes::default() }.into_metadata().is_err());
    }

    #[test]
    fn a_sandbox_that_expired_is_gone_unless_a_timeout_pauses_it() {
        let sandbox = |state: &str, reason: &str| v1::Sandbox {
            state: state.to_owned(),
            reason: reason.to_owned(),
            ..v1::Sandbox::default()
        };
        let pauses = Notes { is_paused_on_timeout: true, ..Notes::default() };
        let expired = sandbox("stopped", "expired; the workspace was committed and kept");
        assert_eq!(Notes::default().state(&expired), None);
        assert_eq!(pauses.state(&expired), Some("paused"));
        assert_eq!(Notes::default().state(&sandbox("stopped", "paused; kept")), Some("paused"));
        assert_eq!(Notes::default().state(&sandbox("running", "")), Some("running"));
        assert_eq!(pauses.state(&sandbox("error", "x")), None);
        assert_eq!(pauses.state(&sandbox("stopping", "expired; kept")), Some("paused"));
        assert_eq!(pauses.state(&sandbox("stopping", "deleted")), None);
        assert!(!pauses.is_resumed_by_traffic(&expired));
        // Only sandboxes of e2b clients are paused for them.
        assert!(!is_paused(&sandbox("stopped", "paused; kept")));
        let of_client = v1::Sandbox { metadata: pauses.into_metadata().expect("metadata"), ..expired };
        assert!(is_paused(&of_client));
        assert!(!is_paused(&v1::Sandbox { state: "error".to_owned(), ..of_client }));
    }
}
