//! Objects of the API as JSON. `docs/JSON.md` describes every line that is built here.

use amalgam_proto::v1;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::text;

/// Builds an object with this type and these fields.
pub fn line(kind: &str, fields: Value) -> Value {
    let mut object = Map::new();
    object.insert("type".to_owned(), json!(kind));
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    Value::Object(object)
}

/// Sets a key to bytes as text. For bytes that are not UTF-8, the text is lossy, and `KEY_base64` has the exact bytes.
pub fn put_bytes(object: &mut Value, key: &str, bytes: &[u8]) {
    object[key] = json!(String::from_utf8_lossy(bytes));
    if str::from_utf8(bytes).is_err() {
        object[format!("{key}_base64")] = json!(STANDARD.encode(bytes));
    }
}

/// Adds a path to an object.
pub fn with_path(mut object: Value, path: &[u8]) -> Value {
    put_bytes(&mut object, "path", path);
    object
}

/// Returns a time in UTC as text, or null.
pub fn time(time: Option<&prost_types::Timestamp>) -> Value {
    time.map_or(Value::Null, |time| json!(text::timestamp(Some(time)).to_string()))
}

pub fn or_null(id: &str) -> Value {
    if id.is_empty() { Value::Null } else { json!(text::id(id)) }
}

fn ids(names: &[String]) -> Vec<&str> {
    names.iter().map(|name| text::id(name)).collect()
}

/// Marks a line of a dry run with `dry_run`; other lines have no such field.
pub fn of_dry_run(mut object: Value, dry_run: bool) -> Value {
    if dry_run {
        object["dry_run"] = true.into();
    }
    object
}

/// Returns the JSON line of a snapshot.
pub fn snapshot(snapshot: &v1::Snapshot) -> Value {
    let metadata: std::collections::BTreeMap<_, _> = snapshot.metadata.iter().collect();
    line(
        "snapshot",
        json!({
            "id": text::id(&snapshot.name),
            "parents": ids(&snapshot.parents),
            "author": snapshot.author,
            "time": time(snapshot.time.as_ref()),
            "message": snapshot.message,
            "metadata": metadata,
            "labels": &snapshot.labels,
            "workspaces": &snapshot.workspaces,
            "conflicts": snapshot.conflicts,
            "tree": snapshot.tree,
            "thinned": snapshot.thinned,
            "without_caches": snapshot.without_caches,
            "note": snapshot.note,
            "reward": snapshot.reward,
        }),
    )
}

/// Returns the id of a snapshot, or null if there is none.
pub fn snapshot_id(snapshot: Option<&v1::Snapshot>) -> Value {
    snapshot.map_or(Value::Null, |snapshot| or_null(&snapshot.name))
}

/// Returns the JSON line of a workspace.
pub fn workspace(workspace: &v1::Workspace) -> Value {
    let directory =
        |directory: &v1::WorkspaceDirectory| with_path(json!({"id": text::id(&directory.name)}), &directory.path);
    line(
        "workspace",
        json!({
            "name": text::id(&workspace.name),
            "head": or_null(&workspace.head),
            "base": or_null(&workspace.base),
            "agent": workspace.agent,
            "project": workspace.project,
            "create_time": time(workspace.create_time.as_ref()),
            "etag": workspace.etag,
            "target": or_null(&workspace.target),
            "directories": workspace.directories.iter().map(directory).collect::<Vec<_>>(),
            "publishing": workspace.publishing.as_ref().map(publishing),
            "following": workspace.following.as_ref().map(following),
        }),
    )
}

fn publishing(publishing: &v1::Publishing) -> Value {
    json!({
        "every_seconds": (publishing.every_seconds > 0).then_some(publishing.every_seconds),
        "on_commit": publishing.on_commit,
        "quiet_milliseconds": publishing.on_write.then_some(publishing.quiet_milliseconds),
        "target": or_null(&publishing.target),
        "last_time": publishing.last_time.as_ref().map(|last| time(Some(last))),
        "last": (!publishing.last_how.is_empty()).then_some(&publishing.last_how),
        "reason": publishing.reason,
        "review": or_null(&publishing.review),
    })
}

fn following(following: &v1::Following) -> Value {
    json!({
        "source": or_null(&following.source),
        "mode": following.mode,
        "every_seconds": (following.every_seconds > 0).then_some(following.every_seconds),
        "origin": (!following.origin.is_empty()).then_some(&following.origin),
        "last": following.last.as_ref().map(follow_update),
    })
}

/// Returns an update of a follower as an object without a type.
pub fn follow_update(update: &v1::FollowUpdate) -> Value {
    json!({
        "time": time(update.time.as_ref()),
        "how": update.how,
        "source_snapshot": or_null(&update.source_snapshot),
        "synced": update.synced,
        "skipped": update.skipped,
        "total": update.total,
        "conflicts": update.conflicts,
        "reason": update.reason,
    })
}

/// Returns the JSON line of a directory.
pub fn directory(directory: &v1::Directory) -> Value {
    let object = line(
        "directory",
        json!({
            "id": text::id(&directory.name),
            "workspace": or_null(&directory.workspace),
            "exclude": directory.exclude,
            "snapshot": or_null(&directory.snapshot),
            "last_look_time": time(directory.last_look_time.as_ref()),
            "watched": directory.watched,
            "watch_wanted": directory.watch_wanted,
            "watch_problem": directory.watch_problem,
            "problem": directory.problem,
            "made_by_checkout": directory.made_by_checkout,
        }),
    );
    with_path(object, &directory.path)
}

/// Returns the counts of a capture as an object without a type.
pub fn counts(counts: &v1::Counts) -> Value {
    json!({
        "files": counts.files,
        "directories": counts.directories,
        "symlinks": counts.symlinks,
        "others": counts.others,
        "bytes": counts.bytes,
        "files_read": counts.files_read,
        "bytes_read": counts.bytes_read,
        "ignored": counts.ignored,
    })
}

/// Returns the JSON line of a notice.
pub fn notice(notice: &v1::Notice) -> Value {
    let object = line(
        "notice",
        json!({
            "kind": text::notice_word(notice.kind()),
            "message": notice.message,
            "failure": notice.failure,
        }),
    );
    with_path(object, &notice.path)
}

/// Returns the JSON line of an operation.
pub fn operation(operation: &v1::Operation) -> Value {
    // Targets that are no snapshots have their kind before the id, as `root 58be...`.
    let id = |target: &str| or_null(target.rsplit_once(' ').map_or(target, |(_, id)| id));
    let change = |change: &v1::ReferenceChange| json!({"reference": change.reference, "before": id(&change.before), "after": id(&change.after)});
    line(
        "operation",
        json!({
            "sequence": operation.sequence,
            "actor": operation.actor,
            "time": time(operation.time.as_ref()),
            "action": operation.action,
            "reverts": (operation.reverts != 0).then_some(operation.reverts),
            "changes": operation.changes.iter().map(change).collect::<Vec<_>>(),
        }),
    )
}

/// Returns the JSON line of an entry of a tree.
pub fn entry(entry: &v1::Entry) -> Value {
    let mut object = line(
        "entry",
        json!({
            "kind": text::kind_word(entry.kind()),
            "mode": format!("{:04o}", entry.mode),
            "modify_time": time(entry.modify_time.as_ref()),
            "size": entry.size,
        }),
    );
    if entry.kind() == v1::EntryKind::Symlink {
        put_bytes(&mut object, "symlink_target", &entry.symlink_target);
    }
    with_path(object, &entry.path)
}

/// Returns the JSON line of a changed path.
pub fn change(change: &v1::Change) -> Value {
    let size = |entry: &Option<v1::Entry>| entry.as_ref().map(|entry| entry.size);
    let mut object = line(
        "change",
        json!({
            "kind": text::change_word(change.kind()),
            "size_before": size(&change.before),
            "size_after": size(&change.after),
            "attributes": change.attributes,
        }),
    );
    if change.kind() == v1::ChangeKind::Renamed {
        put_bytes(&mut object, "from_path", &change.from_path);
    }
    with_path(object, &change.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_text_keeps_its_bytes() {
        assert_eq!(with_path(json!({}), b"a/b"), json!({"path": "a/b"}));
        assert_eq!(with_path(json!({}), b"\xff"), json!({"path": "\u{fffd}", "path_base64": "/w=="}));
    }

    #[test]
    fn absent_heads_are_null() {
        let value = workspace(&v1::Workspace { name: "workspaces/a/b".to_owned(), ..Default::default() });
        assert_eq!(value["type"], "workspace");
        assert_eq!(value["name"], "a/b");
        assert_eq!(value["head"], Value::Null);
    }
}
