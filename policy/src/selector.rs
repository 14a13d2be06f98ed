//! Which agents a rule is about: names, patterns of names, and groups of them.

use globset::{GlobBuilder, GlobMatcher};

/// A set of agents: names and patterns of names. Groups are replaced by their members when a policy is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    /// As written in the policy, for explanations.
    pub(crate) text: Vec<String>,
    names: Vec<GlobMatcher>,
}

impl Selector {
    /// Adds a name or a pattern. The error is a message for the user.
    pub(crate) fn add(&mut self, name: &str) -> Result<(), String> {
        let glob = GlobBuilder::new(name).backslash_escape(true).build();
        self.names.push(glob.map_err(|error| error.kind().to_string())?.compile_matcher());
        Ok(())
    }

    /// Adds the members of a group.
    pub(crate) fn add_all(&mut self, group: &Self) {
        self.names.extend(group.names.iter().cloned());
    }

    pub(crate) fn contains(&self, agent: &str) -> bool {
        self.names.iter().any(|name| name.is_match(agent))
    }
}
