//! Changes between two trees, judged: which of them the agents of a guard may not make.

use amalgam_engine::{Change, DiffOptions, EntryKind, RootId, Store, What, diff_roots};
use amalgam_policy::{Act, Guard, Level, Refusal};
use amalgam_proto::Reason;

use super::Permissions;
use crate::error::{Error, Result};

/// The most refusals that a message lists.
const LISTED_MAX: usize = 10;
/// The most refusals of one difference that are logged and become events.
const LOGGED_MAX: usize = 1_000;

/// Returns why the agents of a guard may not make a change, or `None` if they may.
pub(crate) fn refused(guard: &Guard, change: &Change) -> Option<Refusal> {
    let path = change.path.as_bytes();
    match &change.what {
        What::Added => guard.refusal(path, Act::Add),
        What::Removed => guard.refusal(path, Act::Remove),
        What::Modified | What::Metadata => guard.refusal(path, Act::Change),
        // A file can be replaced by a symlink; a directory has to be removed before.
        What::KindChanged => {
            let entries = change.before.iter().chain(&change.after);
            let has_directory = entries.into_iter().any(|entry| entry.kind() == EntryKind::Directory);
            guard.refusal(path, if has_directory { Act::Remove } else { Act::Change })
        }
        What::Renamed { from } => guard.refusal(from.as_bytes(), Act::Remove).or_else(|| guard.refusal(path, Act::Add)),
    }
}

/// The refused changes of a difference: some of them, and how many there are. A small tree can have millions of paths.
#[derive(Default)]
struct Refusals {
    first: Option<Refusal>,
    /// The first refusals that may be shown.
    shown: Vec<Refusal>,
    shown_count: usize,
    /// Refusals of paths that are hidden from the agent.
    hidden_count: usize,
}

impl Refusals {
    /// Judges each difference between two trees, and logs refusals.
    fn find(store: &Store, guard: &Guard, before: Option<RootId>, after: Option<RootId>) -> Result<Self> {
        let mut found = Self::default();
        if guard.is_open() || before == after {
            return Ok(found);
        }
        for change in diff_roots(store, before, after, DiffOptions::default())? {
            if let Some(refusal) = refused(guard, &change?) {
                found.add(guard, refusal);
            }
        }
        Ok(found)
    }

    fn add(&mut self, guard: &Guard, refusal: Refusal) {
        if self.shown_count + self.hidden_count < LOGGED_MAX {
            log_refusal(guard, &refusal);
        }
        if self.first.is_none() {
            self.first = Some(refusal.clone());
        }
        if refusal.level == Level::Hidden {
            self.hidden_count += 1;
            return;
        }
        self.shown_count += 1;
        if self.shown.len() < LISTED_MAX {
            self.shown.push(refusal);
        }
    }

    /// Describes the refusals. Paths that are hidden from the agent are only counted.
    fn message(&self) -> String {
        let mut listed: Vec<String> = self.shown.iter().map(Refusal::to_string).collect();
        let more = self.shown_count - self.shown.len();
        if more > 0 {
            listed.push(format!("and {more} more"));
        }
        if let Some(first) = self.first.as_ref().filter(|_| self.hidden_count > 0) {
            listed.push(format!("{} of paths that {} cannot see", changes(self.hidden_count), first.agent));
        }
        listed.join("; ")
    }
}

impl Permissions {
    /// Describes the changes between two trees that the agents of a guard may not make, or returns `None` if they may make all of
    /// them.
    pub(crate) fn refusal_of(
        &self,
        guard: &Guard,
        before: Option<RootId>,
        after: Option<RootId>,
    ) -> Result<Option<String>> {
        let found = Refusals::find(&self.store, guard, before, after)?;
        Ok(found.first.is_some().then(|| format!("the policy does not permit it: {}", found.message())))
    }

    /// Refuses to bring a workspace from one tree to another if the agents of a guard may not make each change.
    pub(crate) fn judge(&self, guard: &Guard, before: Option<RootId>, after: Option<RootId>, what: &str) -> Result<()> {
        let found = Refusals::find(&self.store, guard, before, after)?;
        match &found.first {
            None => Ok(()),
            Some(first) => {
                let message = format!("the policy does not permit {what}: {}", found.message());
                let shown = if first.level == Level::Hidden { String::new() } else { lossy(&first.path) };
                Err(Error::new(Reason::Forbidden, message).with("agent", first.agent.as_str()).with("path", shown))
            }
        }
    }
}

fn changes(count: usize) -> String {
    if count == 1 { "a change".to_owned() } else { format!("{count} changes") }
}

fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Logs a refusal and reports it to the observer of its guard. Paths are names of files, so they are logged at debug.
fn log_refusal(guard: &Guard, refusal: &Refusal) {
    guard.report(refusal);
    let (agent, act, line) = (refusal.agent.as_str(), refusal.act.word(), refusal.line);
    tracing::info!(agent, act, line, "policy.refused");
    tracing::debug!(agent, path = %lossy(&refusal.path), "policy.refused");
}
