//! Files that a command regenerates, in a direct merge and in the queue alike.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amalgam_engine::merge::{Regenerate, Regenerated};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{RootId, TreePath};
use amalgam_merge::Rules;
use amalgam_merge::rules::Content;

use super::Merging;
use super::approval::refusal;
use super::test::TestPlace;

/// Makes files by the commands of rules, in temporary directories.
pub(super) struct Regenerator<'a> {
    merging: &'a Merging,
    rules: Arc<Rules>,
    /// The workspace that is merged into.
    target: WorkspaceName,
}

impl<'a> Regenerator<'a> {
    pub(super) fn new(merging: &'a Merging, rules: &Arc<Rules>, target: &WorkspaceName) -> Self {
        Self { merging, rules: Arc::clone(rules), target: target.clone() }
    }

    /// Returns whether a rule has a command that makes files.
    pub(super) fn has_commands(&self) -> bool {
        self.rules.has_commands()
    }

    /// Returns the command that makes a file and the source of its rule, or `None` if no rule regenerates the file.
    fn command_of(&self, path: &TreePath) -> Option<(&str, &str)> {
        let found = self.rules.explain(path.as_bytes(), Content::Text)?;
        (found.strategy.name() == "regenerate")
            .then_some((found.strategy.options.command.as_str(), found.location.source.as_str()))
    }

    /// Returns whether a command may run: it is in the store's own rules, or was approved.
    fn is_allowed(&self, command: &str, source: &str) -> bool {
        self.merging.rules.is_own_source(source) || self.merging.inner.approvals.is_approved(command)
    }
}

impl Regenerate for Regenerator<'_> {
    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.command_of(path).is_some()
    }

    fn regenerate(&self, tree: RootId, paths: &[TreePath]) -> amalgam_engine::Result<Regenerated> {
        let mut made: Vec<(String, Vec<TreePath>)> = Vec::new();
        let mut refused = Vec::new();
        for path in paths {
            let Some((command, source)) = self.command_of(path) else { continue };
            if !self.is_allowed(command, source) {
                refused.push(refusal(command, source, &self.target));
                continue;
            }
            match made.iter_mut().find(|(known, _)| known == command) {
                Some((_, paths)) => paths.push(path.clone()),
                None => made.push((command.to_owned(), vec![path.clone()])),
            }
        }
        if !refused.is_empty() {
            refused.dedup();
            return Ok(Err(refused.join("\n")));
        }
        let context = &self.merging.context;
        let settings = match context.command_settings() {
            Ok(settings) => settings,
            Err(failure) => return Ok(Err(failure.to_string())),
        };
        let number = self.merging.inner.places.fetch_add(1, Ordering::Relaxed);
        let place = TestPlace::new(&context.home, &format!("made-{number}"));
        // A failure of the machine is returned as the reason.
        Ok(place.regenerate(&context.store, tree, &made, &settings).unwrap_or_else(|failure| Err(failure.to_string())))
    }
}
