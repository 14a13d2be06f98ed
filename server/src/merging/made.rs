//! Files that a command makes: the same for a merge at once and for one of the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amalgam_engine::merge::{Regenerate, Regenerated};
use amalgam_engine::{RootId, TreePath};
use amalgam_merge::Rules;
use amalgam_merge::rules::Content;

use super::test::TestPlace;
use crate::service::Service;

/// Makes files as rules say, in directories that are thrown away.
pub(super) struct Maker<'a> {
    service: &'a Service,
    rules: Arc<Rules>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(service: &'a Service, rules: &Arc<Rules>) -> Self {
        Self { service, rules: Arc::clone(rules) }
    }

    /// Whether a rule has a command that makes files.
    pub(super) fn has_commands(&self) -> bool {
        self.rules.has_commands()
    }

    /// The command that makes a file, if a rule says so.
    fn command_of(&self, path: &TreePath) -> Option<&str> {
        let way = self.rules.choose(path.as_bytes(), Content::Text)?;
        (way.name() == "regenerate").then_some(way.options.command.as_str())
    }
}

impl Regenerate for Maker<'_> {
    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.command_of(path).is_some()
    }

    fn regenerate(&self, tree: RootId, paths: &[TreePath]) -> amalgam_engine::Result<Regenerated> {
        let mut made: Vec<(String, Vec<TreePath>)> = Vec::new();
        for path in paths {
            let Some(command) = self.command_of(path) else { continue };
            match made.iter_mut().find(|(known, _)| known == command) {
                Some((_, paths)) => paths.push(path.clone()),
                None => made.push((command.to_owned(), vec![path.clone()])),
            }
        }
        let inner = &self.service.inner;
        let number = inner.merging.places.fetch_add(1, Ordering::Relaxed);
        let place = TestPlace::new(&inner.home, &format!("made-{number}"));
        // What the machine refuses is told as the reason.
        Ok(place.regenerate(&inner.store, tree, &made).unwrap_or_else(|failure| Err(failure.message)))
    }
}
