//! A waiting merge, stored as a reference: the name contains the target, the time and the source; the reference points at the
//! snapshot to merge; the note holds the rest as JSON.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::name::TreePath;
use crate::operation::{OperationContext, snapshot_of};
use crate::reference::{RefName, RefValue};
use crate::time::Time;
use crate::workspace::WorkspaceName;

pub(super) const QUEUE_PREFIX: &str = "queue/";
pub(super) const REVIEW_PREFIX: &str = "review/";
/// Not allowed in workspace names.
pub(super) const SEPARATOR: char = ':';
const ID_DIGITS: usize = 12;
/// Maximum total length of an entry's texts, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Maximum size of an entry's note, in bytes. A review adds its conflicts and its reason to it.
const NOTE_BYTES_MAX: usize = 48 << 10;
/// Maximum number of paths with an individual decision.
const SIDE_CHOICES_MAX: usize = 1_000;

/// The options of a queued merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOptions {
    /// Whether to end the workspace after it was merged.
    pub ends: bool,
    /// The message of the merge snapshot; if empty, a default that names the source.
    pub message: String,
    /// A command that must succeed on the merged tree; empty for none.
    pub test: Vec<String>,
    /// Time limit of the test in seconds; 0 for the default of the policy.
    pub test_seconds: u32,
    /// Whether to commit conflicts into the target's tree. If false, an entry with conflicts becomes a review.
    pub keep_conflicts: bool,
    /// Which side to take for conflicts.
    pub choices: Vec<SideChoice>,
    /// Whether to merge the permitted changes if the policy refuses others; `None` for the default of the policy.
    pub takes_rest: Option<bool>,
    /// The actor that approved the changes that the policy refuses; empty without an approval.
    pub approver: String,
}

/// A decision about a conflicting path and everything below it; without a path, about all conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideChoice {
    /// The path.
    pub path: Option<TreePath>,
    /// The side.
    pub side: Side,
}

/// A side of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The target's version.
    Ours,
    /// The source's version.
    Theirs,
    /// The version of the merge base.
    Base,
}

/// A merge that waits in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueEntry {
    /// A short id: hexadecimal digits.
    pub id: String,
    /// The target workspace.
    pub target: WorkspaceName,
    /// The source workspace.
    pub source: WorkspaceName,
    /// The snapshot to merge: the head of the source at the time of submission.
    pub snapshot: SnapshotId,
    /// The options.
    pub options: QueueOptions,
    /// The agent that owns the source.
    pub agent: String,
    /// The submitter.
    pub actor: String,
    /// The time of submission.
    pub time: Time,
    /// Whether the entry waits to be released: an undo or a restored backup brought it back, or its operation is not in the log
    /// any more.
    pub is_held: bool,
    pub(super) name: RefName,
    pub(super) value: RefValue,
}

impl QueueEntry {
    pub(super) fn new(
        source: &WorkspaceName,
        target: &WorkspaceName,
        snapshot: SnapshotId,
        options: &QueueOptions,
        agent: &str,
        context: &OperationContext,
    ) -> Result<Self> {
        let text: usize = options.test.iter().map(String::len).sum::<usize>() + options.message.len();
        if text > TEXT_BYTES_MAX || options.choices.len() > SIDE_CHOICES_MAX {
            let why = format!("at most {TEXT_BYTES_MAX} bytes of message and test, and {SIDE_CHOICES_MAX} decisions");
            return Err(Error::Invalid { what: "wish", why });
        }
        let name = name(QUEUE_PREFIX, target, context.time, source)?;
        let note = json!({
            "agent": agent,
            "actor": context.actor,
            "ends": options.ends,
            "message": options.message,
            "test": options.test,
            "test_seconds": options.test_seconds,
            "keep_conflicts": options.keep_conflicts,
            "takes_rest": options.takes_rest,
            "approver": options.approver,
            "takes": options.choices.iter().map(take_value).collect::<Vec<_>>(),
        });
        let value =
            RefValue { target: Some(snapshot.object()), keeps: Vec::new(), note: note.to_string().into_bytes().into() };
        if value.note.len() > NOTE_BYTES_MAX {
            let why = format!("message, test and decisions take more than {NOTE_BYTES_MAX} bytes as JSON");
            return Err(Error::Invalid { what: "wish", why });
        }
        value.check().map_err(|why| Error::Invalid { what: "wish", why: why.to_string() })?;
        Ok(Self {
            id: id(&name),
            target: target.clone(),
            source: source.clone(),
            snapshot,
            options: options.clone(),
            agent: agent.to_owned(),
            actor: context.actor.clone(),
            time: context.time,
            is_held: false,
            name,
            value,
        })
    }

    /// Reads an entry. Returns `None` if the name is not that of an entry.
    pub(super) fn read(name: &RefName, value: &RefValue) -> Result<Option<Self>> {
        let text = name.as_str();
        let Some(rest) = text.strip_prefix(QUEUE_PREFIX).or_else(|| text.strip_prefix(REVIEW_PREFIX)) else {
            return Ok(None);
        };
        let damaged = |why: &str| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_owned() };
        let parts = rest.split_once(SEPARATOR).and_then(|(target, rest)| Some((target, rest.split_once('-')?)));
        let Some((target, (time, source))) = parts else { return Err(damaged("its name has no parts")) };
        let time = i64::from_str_radix(time, 16).map_err(|_| damaged("its name has no time"))?;
        let snapshot = value.target.and_then(snapshot_of).ok_or_else(|| damaged("it points at no snapshot"))?;
        let note: Value = serde_json::from_slice(&value.note).map_err(|_| damaged("its note is no JSON"))?;
        let text = |key: &str| note.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is = |key: &str| note.get(key).and_then(Value::as_bool).unwrap_or_default();
        let list = |key: &str| note.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let choices = list("takes").iter().map(read_take).collect::<Option<Vec<_>>>();
        let options = QueueOptions {
            ends: is("ends"),
            message: text("message"),
            test: list("test").iter().filter_map(|word| word.as_str().map(str::to_owned)).collect(),
            test_seconds: note.get("test_seconds").and_then(Value::as_u64).map_or(0, |seconds| seconds as u32),
            keep_conflicts: is("keep_conflicts"),
            takes_rest: note.get("takes_rest").and_then(Value::as_bool),
            approver: text("approver"),
            choices: choices.ok_or_else(|| damaged("its decisions cannot be read"))?,
        };
        Ok(Some(Self {
            id: id(name),
            target: WorkspaceName::new(target)?,
            source: WorkspaceName::new(source)?,
            snapshot,
            options,
            agent: text("agent"),
            actor: text("actor"),
            time: Time(time),
            is_held: false,
            name: name.clone(),
            value: value.clone(),
        }))
    }
}

impl Side {
    /// Returns the name of the side.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Base => "base",
        }
    }
}

/// Returns the reference name `queue/{target}:{time}-{source}`, which sorts by target and then by time.
pub(super) fn name(prefix: &str, target: &WorkspaceName, time: Time, source: &WorkspaceName) -> Result<RefName> {
    let moment = time.0.max(0);
    RefName::new(format!("{prefix}{target}{SEPARATOR}{moment:016x}-{source}"))
        .map_err(|why| Error::Invalid { what: "name of a queue entry", why: why.to_string() })
}

/// Returns the id of an entry. It stays the same when the entry becomes a review.
pub(super) fn id(name: &RefName) -> String {
    let rest = name.as_str().split_once('/').map_or("", |(_, rest)| rest);
    blake3::hash(rest.as_bytes()).to_hex()[..ID_DIGITS].to_owned()
}

/// Encodes a path for a note: a string, or an array of bytes if it is not UTF-8.
pub(super) fn path_value(path: &TreePath) -> Value {
    match str::from_utf8(path.as_bytes()) {
        Ok(text) => json!(text),
        Err(_) => json!(path.as_bytes()),
    }
}

/// Decodes a path from a note.
pub(super) fn read_path(value: &Value) -> Option<TreePath> {
    let bytes = match value {
        Value::String(text) => text.clone().into_bytes(),
        Value::Array(bytes) => {
            bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect::<Option<_>>()?
        }
        _ => return None,
    };
    TreePath::new(bytes).ok()
}

fn take_value(take: &SideChoice) -> Value {
    json!({ "path": take.path.as_ref().map(path_value), "side": take.side.word() })
}

fn read_take(value: &Value) -> Option<SideChoice> {
    let side = match value.get("side")?.as_str()? {
        "ours" => Side::Ours,
        "theirs" => Side::Theirs,
        "base" => Side::Base,
        _ => return None,
    };
    let path = match value.get("path") {
        None | Some(Value::Null) => None,
        Some(path) => Some(read_path(path)?),
    };
    Some(SideChoice { path, side })
}
