//! Describes an operation in the words of the command that made it, for example `commit 1f8099ca "parser"`.

use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{Operation, RefChange, RefValue};
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{ObjectId, SnapshotId};
use amalgam_gc::retention::AUTOMATIC_KEY;

use super::{EDIT, GitScope, States, restore_action};
use crate::error::Result;

const LABEL: &str = "label/";
/// How many digits of an id are shown.
const ID_DIGITS: usize = 8;

impl States {
    /// Describes an operation in a few words.
    pub(crate) fn describe_operation(&self, found: &Operation) -> Result<String> {
        let action = found.draft.action.as_str();
        let of_workspace = |change: &&RefChange| WorkspaceName::of_reference(&change.name).is_ok();
        let moved = found.changes.iter().find(of_workspace);
        Ok(match action {
            EDIT => "changes that were not committed".to_owned(),
            "rename" => {
                let name = |is_gone: bool| {
                    let change = found.changes.iter().find(|change| change.after.is_none() == is_gone);
                    change.map(|change| change.name.as_str().trim_start_matches("workspace/").to_owned())
                };
                format!("rename of {} to {}", name(true).unwrap_or_default(), name(false).unwrap_or_default())
            }
            "label" => {
                let label = found.changes.iter().find(|change| change.name.as_str().starts_with(LABEL));
                let label = label.map(|change| (&change.name.as_str()[LABEL.len()..], change.after.is_none()));
                match label {
                    Some((name, true)) => format!("deletion of label {name}"),
                    Some((name, false)) => format!("label {name}"),
                    None => action.to_owned(),
                }
            }
            action if [GitScope::LeaveAlone, GitScope::Include].map(restore_action).contains(&action) => {
                self.describe_restore(moved)?
            }
            // A restore that led back to the head has its description in the action.
            action if action.starts_with("restore ") => match action.split_once(": ") {
                Some((_, words)) => words.to_owned(),
                None => action.to_owned(),
            },
            action => self.describe_commit(action, moved)?,
        })
    }

    /// Describes a restore by the message of the snapshot that it made. One that led back to the head made none.
    fn describe_restore(&self, moved: Option<&RefChange>) -> Result<String> {
        let read = |change: &RefChange, value: &Option<RefValue>| -> Option<Workspace> {
            Workspace::read(WorkspaceName::of_reference(&change.name).ok()?, value.clone()?).ok()
        };
        let Some(change) = moved else { return Ok("restore".to_owned()) };
        let (before, after) = (read(change, &change.before), read(change, &change.after));
        let Some(after) = after else { return Ok("restore".to_owned()) };
        let is_new_head = before.is_none_or(|before| before.head != after.head);
        if let Some(made) = after.working.or(after.head.filter(|_| is_new_head)) {
            let message = self.snapshot_of_operation(made)?.map(|snapshot| snapshot.message).unwrap_or_default();
            if !message.is_empty() {
                return Ok(message);
            }
        }
        Ok("restore".to_owned())
    }

    fn describe_commit(&self, action: &str, moved: Option<&RefChange>) -> Result<String> {
        let head = moved.and_then(|change| change.after.as_ref()).and_then(|value| value.target);
        let Some(id) = head.and_then(snapshot_id) else { return Ok(action.to_owned()) };
        let snapshot = self.snapshot_of_operation(id)?;
        let is_automatic = snapshot.as_ref().is_some_and(|snapshot| snapshot.metadata.contains_key(AUTOMATIC_KEY));
        let word = match action {
            "capture" | "commit" if is_automatic => "automatic snapshot",
            "capture" | "commit" => "commit",
            action => action,
        };
        let message = snapshot.map(|snapshot| snapshot.message).unwrap_or_default();
        let first = message.lines().next().unwrap_or_default();
        Ok(match first.is_empty() {
            true => format!("{word} {}", short(id)),
            false => format!("{word} {} \"{first}\"", short(id)),
        })
    }

    /// Reads a snapshot that an operation names; `None` if it was collected since.
    fn snapshot_of_operation(&self, id: SnapshotId) -> Result<Option<Snapshot>> {
        match self.context.store.snapshot(id) {
            Ok(snapshot) => Ok(Some((*snapshot).clone())),
            Err(amalgam_engine::Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the first digits of an id, as commands show it.
fn short(id: SnapshotId) -> String {
    id.to_string().chars().take(ID_DIGITS).collect()
}

fn snapshot_id(id: ObjectId) -> Option<SnapshotId> {
    (id.kind == amalgam_engine::ObjectKind::Snapshot).then(|| SnapshotId::from_bytes(id.hash))
}
