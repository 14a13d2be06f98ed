//! Files that a command makes: the same for a merge at once and for one of the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amalgam_engine::merge::{Regenerate, Regenerated};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{RootId, TreePath};
use amalgam_merge::Rules;
use amalgam_merge::rules::Content;

use super::approval::refusal;
use super::test::TestPlace;
use crate::service::Service;

/// Makes files as rules say, in directories that are thrown away.
pub(super) struct Maker<'a> {
    service: &'a Service,
    rules: Arc<Rules>,
    /// The workspace that is merged into.
    target: WorkspaceName,
}

impl<'a> Maker<'a> {
    pub(super) fn new(service: &'a Service, rules: &Arc<Rules>, target: &WorkspaceName) -> Self {
        Self { service, rules: Arc::clone(rules), target: target.clone() }
    }

    /// Whether a rule has a command that makes files.
    pub(super) fn has_commands(&self) -> bool {
        self.rules.has_commands()
    }

    /// The command that makes a file, and the source of the rule that says so, if one does.
    fn command_of(&self, path: &TreePath) -> Option<(&str, &str)> {
        let found = self.rules.explain(path.as_bytes(), Content::Text)?;
        (found.way.name() == "regenerate").then_some((found.way.options.command.as_str(), found.place.source.as_str()))
    }

    /// Whether a command may run: it is the user's own, or was approved.
    fn is_allowed(&self, command: &str, source: &str) -> bool {
        self.service.is_own_source(source) || self.service.inner.merging.approvals.is_approved(command)
    }
}

impl Regenerate for Maker<'_> {
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
        let inner = &self.service.inner;
        let settings = match self.service.settings() {
            Ok(settings) => settings.commands,
            Err(failure) => return Ok(Err(failure.to_string())),
        };
        let number = inner.merging.places.fetch_add(1, Ordering::Relaxed);
        let place = TestPlace::new(&inner.home, &format!("made-{number}"));
        // What the machine refuses is told as the reason.
        Ok(place.regenerate(&inner.store, tree, &made, &settings).unwrap_or_else(|failure| Err(failure.to_string())))
    }
}
