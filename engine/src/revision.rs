//! How snapshots are named by people, read in one place.

use std::fmt;

use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::store::Store;
use crate::workspace::{LabelName, Labels, WorkspaceName, Workspaces, nearest};

/// The shortest beginning of an id that is looked for.
const PREFIX_DIGITS_MIN: usize = 4;
const CANDIDATES_MAX: usize = 8;
const NAMES_LOOKED_AT: usize = 1_000;

/// A name for a snapshot, as it was written:
///
/// - `@`: the head of the workspace at hand; `main@`: the head of another one
/// - `v1`: what a label is on
/// - `3f9a`: the only snapshot whose id starts so, from four digits on
/// - any of these followed by `~` or `~3`: its first parent, or the third one back
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    text: String,
    start: Start,
    back: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Start {
    Here,
    Workspace(WorkspaceName),
    Name(String),
}

impl Revision {
    /// Reads a name; nothing is looked up yet.
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
        let start = match start.strip_suffix('@') {
            Some("") => Start::Here,
            Some(name) => Start::Workspace(WorkspaceName::new(name)?),
            None if start.is_empty() => return Err(wrong("a name is needed, such as @, main@ or a label".to_owned())),
            None if start.contains('@') => return Err(wrong("nothing but ~ may follow the @".to_owned())),
            None => Start::Name(start.to_owned()),
        };
        Ok(Self { text: text.to_owned(), start, back })
    }

    /// The snapshot it names. `here` is the workspace that `@` stands for.
    pub fn resolve(&self, store: &Store, here: Option<&WorkspaceName>) -> Result<SnapshotId> {
        let mut found = match &self.start {
            Start::Here => {
                let here = here.ok_or_else(|| Error::Invalid {
                    what: "snapshot name",
                    why: "@ needs a workspace at hand; write NAME@ for one".to_owned(),
                })?;
                head(store, here)?
            }
            Start::Workspace(name) => head(store, name)?,
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

/// A label goes before an id that happens to start so.
fn by_name(store: &Store, name: &str) -> Result<SnapshotId> {
    if let Ok(label) = LabelName::new(name)
        && let Some(found) = Labels::of(store).find(&label)?
    {
        return Ok(found);
    }
    if name.len() >= PREFIX_DIGITS_MIN && name.len() <= 64 && name.chars().all(|c| c.is_ascii_hexdigit()) {
        let found = by_prefix(store, &name.to_ascii_lowercase())?;
        match &found[..] {
            [] => {}
            [one] => return Ok(*one),
            several => {
                let candidates = several.iter().map(|id| describe(store, *id)).collect::<Result<_>>()?;
                return Err(Error::Ambiguous { text: name.to_owned(), candidates });
            }
        }
    }
    Err(Error::Absent { what: format!("snapshot {name}"), hint: near(store, name)? })
}

/// Snapshots whose id starts with these hex digits; a few of them when there are many.
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

/// What could have been meant.
fn near(store: &Store, name: &str) -> Result<String> {
    let workspaces = Workspaces::of(store).list("", None, NAMES_LOOKED_AT)?;
    if workspaces.iter().any(|workspace| workspace.name.as_str() == name) {
        return Ok(format!("the head of workspace {name} is {name}@"));
    }
    let labels = Labels::of(store).list("", None, NAMES_LOOKED_AT)?;
    let mut names: Vec<_> = labels.into_iter().map(|(label, _)| label.to_string()).collect();
    names.extend(workspaces.into_iter().map(|workspace| format!("{}@", workspace.name)));
    Ok(nearest(names, name).unwrap_or_else(|| "the store has no labels and no workspaces yet".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_or_refused() {
        for (text, back) in
            [("@", 0), ("@~", 1), ("@~2", 2), ("main@~~3", 4), ("v1", 0), ("agent/7@", 0), ("3f9a~1", 1)]
        {
            assert_eq!(Revision::parse(text).expect(text).back, back, "{text}");
        }
        for text in ["", "~2", "@x", "a@b", "@~x", "@~18446744073709551616", "a b@", "@~18446744073709551615~"] {
            assert!(Revision::parse(text).is_err(), "{text}");
        }
    }
}
