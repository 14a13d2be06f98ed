//! Parses and resolves the names that users write for snapshots. The only parser of such names: other modules take ids.

mod time;

pub use time::Now;

use std::fmt;

use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::operation::{operation, snapshot_of};
use crate::reference::{Operation, RefChange, RefValue};
use crate::store::Store;
use crate::time::Time;
use crate::workspace::{LabelName, Labels, Workspace, WorkspaceName, Workspaces, nearest};
use time::Moment;

/// Minimum number of hexadecimal digits of an id prefix.
const PREFIX_DIGITS_MIN: usize = 4;
const CANDIDATES_MAX: usize = 8;
const NAMES_SCANNED_MAX: usize = 1_000;

/// A name for a snapshot, as written by a user:
///
/// - `@`: the head of the current workspace; `main@`: the head of another one
/// - `@{10 minutes ago}`, `main@{yesterday 14:00}`: the head that a workspace had at that time
/// - `@{op:123}`: the files of a workspace right after an operation: its working snapshot if it had one, or else its head
/// - `v1`: the snapshot of a label; otherwise `main`: the head of a workspace
/// - `3f9a`: the only snapshot whose id starts with these digits, at least four, if it is no other snapshot's name
/// - any of these followed by `~` or `~3`: its first parent, or the third one back
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    text: String,
    start: Start,
    back: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Start {
    /// A head of the current workspace, or of a named one.
    Head(Option<WorkspaceName>, When),
    Name(String),
}

/// The time at which a workspace had a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    At(Moment),
    After { operation: u64 },
}

impl Revision {
    /// Parses a name. Looks up nothing.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::Invalid { what: "snapshot name", why: format!("`{text}`: {why}") };
        let (start, steps) = text.split_at(text.find('~').unwrap_or(text.len()));
        let mut back = 0_u64;
        for step in steps.split('~').skip(1) {
            let count = match step {
                "" => 1,
                digits => digits.parse().map_err(|_| wrong(format!("after ~ a number is needed, not `{digits}`")))?,
            };
            back = back.checked_add(count).ok_or_else(|| wrong("that is too far back".to_owned()))?;
        }
        let start = match start.find('@') {
            Some(at) => {
                let name = if at == 0 { None } else { Some(WorkspaceName::new(&start[..at])?) };
                let when = When::parse(&start[at + 1..]).map_err(wrong)?;
                Start::Head(name, when)
            }
            None if start.is_empty() => {
                return Err(wrong("a name is needed, such as @, a workspace or a label".to_owned()));
            }
            None => Start::Name(start.to_owned()),
        };
        Ok(Self { text: text.to_owned(), start, back })
    }

    /// Resolves the name to a snapshot. `here` is the workspace that `@` refers to.
    pub fn resolve(&self, store: &Store, here: Option<&WorkspaceName>, now: &Now) -> Result<SnapshotId> {
        let mut found = match &self.start {
            Start::Head(name, when) => {
                let name = name.as_ref().or(here).ok_or_else(|| Error::Invalid {
                    what: "snapshot name",
                    why: format!("`{}`: @ needs a workspace at hand; write its name before the @", self.text),
                })?;
                when.head(store, name, now)?
            }
            Start::Name(name) => by_name(store, name)?,
        };
        for step in 0..self.back {
            found = store.snapshot(found)?.parents.first().copied().ok_or_else(|| Error::Absent {
                what: format!("snapshot {}", self.text),
                hint: format!("history begins {step} back, at {}", found.short()),
            })?;
        }
        Ok(found)
    }
}

impl When {
    /// Parses the text after the `@`.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::Now);
        }
        let Some(inside) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
            return Err("after the @ only ~, ~N or {TIME} may follow".to_owned());
        };
        if let Some(number) = inside.trim().strip_prefix("op:") {
            let operation = number.trim().parse();
            let operation =
                operation.map_err(|_| format!("after op: the number of an operation is needed, not `{number}`"));
            return Ok(Self::After { operation: operation? });
        }
        Moment::parse(inside).map(Self::At).ok_or_else(|| {
            format!("`{inside}` is not a time; write 10 minutes ago, yesterday 14:00, 2026-01-31 09:30 or op:123")
        })
    }

    /// Returns the head that the workspace had at that time.
    fn head(self, store: &Store, name: &WorkspaceName, now: &Now) -> Result<SnapshotId> {
        match self {
            Self::Now => head(store, name),
            Self::At(moment) => head_at(store, name, moment.resolve(now)),
            Self::After { operation } => head_after(store, name, operation),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn head(store: &Store, name: &WorkspaceName) -> Result<SnapshotId> {
    Workspaces::of(store).get(name)?.head.ok_or_else(|| Error::Absent {
        what: format!("snapshot in workspace {name}"),
        hint: "nothing was committed to it yet".to_owned(),
    })
}

/// A value that the reference of a workspace got, and the operation that set it.
struct PastValue {
    operation: Operation,
    /// The name that the workspace had then.
    name: WorkspaceName,
    /// `None` where the operation removed the reference.
    value: Option<RefValue>,
}

impl PastValue {
    fn head(&self) -> Option<SnapshotId> {
        self.value.as_ref().and_then(|value| value.target).and_then(snapshot_of)
    }

    /// Returns the snapshot of the workspace's files.
    fn state(self) -> Result<Option<SnapshotId>> {
        let Self { name, value, .. } = self;
        value.map_or(Ok(None), |value| Ok(Workspace::read(name, value)?.state()))
    }
}

/// Iterates over the past values of a workspace, newest first, also under the names that it had before a renaming. Ends at the
/// start of the operation log or of the workspace.
fn past_values(store: &Store, name: &WorkspaceName) -> Result<impl Iterator<Item = Result<PastValue>>> {
    let mut reference = name.reference();
    let mut sequence = store.last_move(&reference)?;
    let (store, mut name) = (store.clone(), name.clone());
    Ok(std::iter::from_fn(move || {
        if sequence == 0 {
            return None;
        }
        let moved = match operation(&store, sequence) {
            Ok(moved) => moved,
            Err(Error::Trimmed { .. } | Error::Absent { .. }) => return None,
            Err(error) => return Some(Err(error)),
        };
        let change = moved.changes.iter().find(|change| change.name == reference)?;
        let past = PastValue { name: name.clone(), value: change.after.clone(), operation: moved.clone() };
        let origin = origin_of(&moved.changes, change);
        sequence = origin.unwrap_or(change).previous;
        if let Some(origin) = origin {
            reference = origin.name.clone();
            // The reference of a deleted workspace has no name of a workspace.
            name = WorkspaceName::of_reference(&reference).unwrap_or_else(|_| name.clone());
        }
        Some(Ok(past))
    }))
}

/// Returns the reference that became another one with its value: by a renaming, by `undelete`, or by the undo of one. Of several with
/// that value, as where forks end together, it is the one of the same workspace.
fn origin_of<'a>(changes: &'a [RefChange], change: &RefChange) -> Option<&'a RefChange> {
    if change.before.is_some() || change.after.is_none() {
        return None;
    }
    let is_origin = |origin: &&RefChange| origin.after.is_none() && origin.before == change.after;
    let origins: Vec<_> = changes.iter().filter(is_origin).collect();
    match origins[..] {
        [one] => Some(one),
        _ => {
            let name = WorkspaceName::in_reference(&change.name)?;
            origins.into_iter().find(|origin| WorkspaceName::in_reference(&origin.name) == Some(name))
        }
    }
}

/// Returns the head of a workspace at a time. Before the start of the workspace or of a trimmed operation log, its history
/// decides: the newest first parent that is at least that old.
fn head_at(store: &Store, name: &WorkspaceName, time: Time) -> Result<SnapshotId> {
    let mut oldest = Workspaces::of(store).get(name)?.head;
    for past in past_values(store, name)? {
        let past = past?;
        let head = past.head();
        oldest = head.or(oldest);
        if let (true, Some(head)) = (past.operation.draft.time <= time, head) {
            return Ok(head);
        }
    }
    let mut first = None;
    while let Some(id) = oldest {
        let snapshot = store.snapshot(id)?;
        if snapshot.time <= time {
            return Ok(id);
        }
        (first, oldest) = (Some(id), snapshot.parents.first().copied());
    }
    let hint = first.map_or_else(
        || "nothing was committed to it yet".to_owned(),
        |first| format!("its history begins later, at {}", first.short()),
    );
    Err(Error::Absent { what: format!("snapshot of {name} that is so old"), hint })
}

/// Returns the snapshot of the files of a workspace right after an operation.
fn head_after(store: &Store, name: &WorkspaceName, operation: u64) -> Result<SnapshotId> {
    let last = store.last_operation()?;
    if operation > last {
        let hint = format!("the log of operations ends at {last}");
        return Err(Error::Absent { what: format!("operation {operation}"), hint });
    }
    Workspaces::of(store).get(name)?;
    let mut first = None;
    for past in past_values(store, name)? {
        let past = past?;
        if let (true, Some(head)) = (past.operation.sequence <= operation, past.head()) {
            return Ok(past.state()?.unwrap_or(head));
        }
        first = Some(past.operation.sequence);
    }
    let hint = first.map_or_else(String::new, |first| format!("the log knows of it from operation {first} on"));
    Err(Error::Absent { what: format!("head of {name} at operation {operation}"), hint })
}

/// Resolves a name: labels take precedence over workspaces. A complete id is always an id, and a name that is also the prefix of an
/// id is ambiguous: a received label cannot take the place of a snapshot.
fn by_name(store: &Store, name: &str) -> Result<SnapshotId> {
    let named = named(store, name)?;
    let is_prefix = name.len() >= PREFIX_DIGITS_MIN && name.len() <= 64 && name.chars().all(|c| c.is_ascii_hexdigit());
    let mut found = match is_prefix {
        true => by_prefix(store, &name.to_ascii_lowercase())?,
        false => Vec::new(),
    };
    match (named, &found[..]) {
        (Some(id), []) => Ok(id),
        (None, [id]) => Ok(*id),
        (None, []) => Err(Error::Absent { what: format!("snapshot {name}"), hint: near(store, name)? }),
        (_, [id]) if name.len() == 64 => Ok(*id),
        (named, _) => {
            found.extend(named.filter(|id| !found.contains(id)));
            if let [one] = found[..] {
                return Ok(one);
            }
            let candidates = found.iter().map(|id| describe(store, *id)).collect::<Result<_>>()?;
            Err(Error::Ambiguous { text: name.to_owned(), candidates })
        }
    }
}

/// Returns the snapshot of a label, or else the head of a workspace.
fn named(store: &Store, name: &str) -> Result<Option<SnapshotId>> {
    if let Ok(label) = LabelName::new(name)
        && let Some(found) = Labels::of(store).find(&label)?
    {
        return Ok(Some(found));
    }
    match WorkspaceName::new(name) {
        Ok(workspace) if Workspaces::of(store).find(&workspace)?.is_some() => head(store, &workspace).map(Some),
        _ => Ok(None),
    }
}

/// Returns snapshots whose id starts with these hexadecimal digits, at most a few.
fn by_prefix(store: &Store, digits: &str) -> Result<Vec<SnapshotId>> {
    let first = SnapshotId::from_hex(&format!("{digits:0<64}")).expect("64 hex digits are an id");
    let mut found = Vec::new();
    if store.has(first.object())? {
        found.push(first);
    }
    let mut after = ObjectId { kind: ObjectKind::Snapshot, hash: *first.as_bytes() };
    loop {
        let page = store.scan_index(Some(after), 256)?;
        let Some(last) = page.last() else { return Ok(found) };
        after = last.id;
        for row in page {
            let id = SnapshotId::from_bytes(row.id.hash);
            if !id.to_string().starts_with(digits) || found.len() == CANDIDATES_MAX {
                return Ok(found);
            }
            if row.id.kind == ObjectKind::Snapshot {
                found.push(id);
            }
        }
    }
}

fn describe(store: &Store, id: SnapshotId) -> Result<String> {
    let message = store.snapshot(id)?.message.clone();
    let line: String = message.lines().next().unwrap_or_default().chars().take(40).collect();
    Ok(if line.is_empty() { id.short() } else { format!("{} ({line})", id.short()) })
}

/// Suggests similar names.
fn near(store: &Store, name: &str) -> Result<String> {
    let workspaces = Workspaces::of(store).list("", None, NAMES_SCANNED_MAX)?;
    let labels = Labels::of(store).list("", None, NAMES_SCANNED_MAX)?;
    let mut names: Vec<_> = labels.into_iter().map(|(label, _)| label.to_string()).collect();
    names.extend(workspaces.into_iter().map(|workspace| workspace.name.to_string()));
    Ok(nearest(names, name).unwrap_or_else(|| "the store has no labels and no workspaces yet".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::RefName;

    #[test]
    fn of_forks_that_end_together_each_one_has_its_own_past() {
        let change = |name: &str, is_removed: bool| {
            let [mut before, mut after] = [Some(RefValue::default()), None];
            if !is_removed {
                (before, after) = (after, before);
            }
            RefChange { name: RefName::new(name).expect("a name"), before, after, previous: 0 }
        };
        let ended = [("workspace/a/x", true), ("workspace/b", true), ("deleted/a/x@1", false), ("deleted/b@1", false)];
        let ended = ended.map(|(name, is_removed)| change(name, is_removed));
        let origin =
            |changes: &[RefChange], at: usize| origin_of(changes, &changes[at]).map(|origin| origin.name.to_string());
        assert_eq!(origin(&ended, 2).as_deref(), Some("workspace/a/x"));
        assert_eq!(origin(&ended, 3).as_deref(), Some("workspace/b"));
        assert_eq!(origin(&ended, 0), None, "it was removed");
        let renamed =
            [("workspace/a", true), ("workspace/b", false)].map(|(name, is_removed)| change(name, is_removed));
        assert_eq!(origin(&renamed, 1).as_deref(), Some("workspace/a"));
        let unclear = [("workspace/a", true), ("workspace/b", true), ("workspace/c", false)];
        assert_eq!(origin(&unclear.map(|(name, is_removed)| change(name, is_removed)), 2), None);
    }

    #[test]
    fn texts_are_read_or_refused() {
        for (text, back) in [
            ("@", 0),
            ("@~", 1),
            ("@~2", 2),
            ("main@~~3", 4),
            ("v1", 0),
            ("agent/7@", 0),
            ("3f9a~1", 1),
            ("@{1h ago}~", 1),
            ("a@{op:3}", 0),
        ] {
            assert_eq!(Revision::parse(text).expect(text).back, back, "{text}");
        }
        for text in [
            "",
            "~2",
            "@x",
            "a@b",
            "@{",
            "@{}",
            "@{soon}",
            "@{op:}",
            "@{op:x}",
            "@{now}x",
            "@~x",
            "@~18446744073709551616",
            "a b@",
            "@~18446744073709551615~",
        ] {
            assert!(Revision::parse(text).is_err(), "{text}");
        }
    }
}
