//! Changes between two trees, judged: which of them the agents of a guard may not make.

use amalgam_engine::{Change, DiffOptions, EntryKind, RootId, Store, What, diff_roots};
use amalgam_policy::{Act, Guard, Level, Refusal};
use amalgam_proto::Reason;

use super::Permissions;
use crate::error::{Error, Result};

/// The most refusals that a message lists.
const LISTED_MAX: usize = 10;

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

/// Returns the changes between two trees that the agents of a guard may not make.
fn refusals(store: &Store, guard: &Guard, before: Option<RootId>, after: Option<RootId>) -> Result<Vec<Refusal>> {
    if guard.is_open() || before == after {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for change in diff_roots(store, before, after, DiffOptions::default())? {
        found.extend(refused(guard, &change?));
    }
    Ok(found)
}

impl Permissions {
    /// Describes the changes between two trees that the agents of a guard may not make; nothing if they may make all of them.
    pub(crate) fn refusal_of(
        &self,
        guard: &Guard,
        before: Option<RootId>,
        after: Option<RootId>,
    ) -> Result<Option<String>> {
        let found = refusals(&self.store, guard, before, after)?;
        found.iter().for_each(|refusal| log_refusal(guard, refusal));
        Ok((!found.is_empty()).then(|| format!("the policy does not permit it: {}", refusal_message(&found))))
    }

    /// Refuses to bring a workspace from one tree to another if the agents of a guard may not make each change.
    pub(crate) fn judge(&self, guard: &Guard, before: Option<RootId>, after: Option<RootId>, what: &str) -> Result<()> {
        let found = refusals(&self.store, guard, before, after)?;
        match found.first() {
            None => Ok(()),
            Some(first) => {
                found.iter().for_each(|refusal| log_refusal(guard, refusal));
                let message = format!("the policy does not permit {what}: {}", refusal_message(&found));
                let shown = if first.level == Level::Hidden { String::new() } else { lossy(&first.path) };
                Err(Error::new(Reason::Forbidden, message).with("agent", first.agent.as_str()).with("path", shown))
            }
        }
    }
}

/// Describes refusals. Paths that are hidden from the agent are only counted.
fn refusal_message(refusals: &[Refusal]) -> String {
    let (hidden, shown): (Vec<_>, Vec<_>) = refusals.iter().partition(|refusal| refusal.level == Level::Hidden);
    let mut listed: Vec<String> = shown.iter().take(LISTED_MAX).map(|refusal| refusal.to_string()).collect();
    let more = shown.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    if !hidden.is_empty() {
        listed.push(format!("{} of paths that {} cannot see", changes(hidden.len()), hidden[0].agent));
    }
    listed.join("; ")
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
