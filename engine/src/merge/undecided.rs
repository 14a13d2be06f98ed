//! Conflicts that cannot be represented as a tree entry: the path of an item, an attribute, or a state value.
//!
//! The tree holds all versions or ours, and the record of the merge holds the version of theirs. Such a matter is open in a tree
//! derived from that merge while the tree still has the state that the merge left and no later snapshot is marked as deciding it.
//! So it is forked, sent and undone with the snapshots, and no separate data has to be kept in sync.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Value, json};

use super::record::{MERGE_RECORD_KEY, MergeRecord};
use super::{Attribute, ConflictKind, PathConflict};
use crate::error::Result;
use crate::history::{History, LogOrder};
use crate::id::SnapshotId;
use crate::name::TreePath;
use crate::object::{EntryKind, Owner};
use crate::work::WorkingTree;

/// The metadata key of a snapshot that decides open matters.
pub const DECIDED_KEY: &str = "decided";
/// Maximum number of ancestor snapshots that are searched for open matters.
const SNAPSHOTS_MAX: usize = 10_000;

/// A matter that a merge left undecided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The path in the merged tree; the root for a state value.
    pub path: TreePath,
    /// The name of the conflict kind.
    pub kind: String,
    /// The subject of the conflict.
    pub matter: Matter,
}

/// The subject of a conflict that is not an entry in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matter {
    /// The path of an item.
    Place {
        /// The path in ours; `None` if ours removed it.
        ours: Option<TreePath>,
        /// The path in theirs; `None` if theirs removed it.
        theirs: Option<TreePath>,
    },
    /// A state value. The tree has ours.
    State {
        /// The key.
        key: String,
        /// Their value as JSON text; `None` if they removed it.
        theirs: Option<String>,
    },
    /// An attribute. The tree has ours.
    Attribute(Attribute),
}

/// A decision about an open matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Use ours.
    Ours,
    /// Use theirs.
    Theirs,
    /// Keep the result of the merge: an item that both sides moved keeps both paths.
    Both,
}

/// An open matter and the merge that left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenMatter {
    /// The snapshot of the merge.
    pub merge: SnapshotId,
    /// Its index in the record of that merge.
    pub number: usize,
    /// The matter.
    pub undecided: Undecided,
}

impl OpenMatter {
    /// Returns the id of the matter.
    pub fn id(&self) -> String {
        format!("{}-{}", self.merge, self.number)
    }
}

impl Undecided {
    /// Returns the open matter of a conflict that is not an entry of the tree.
    pub(crate) fn of(conflict: &PathConflict) -> Option<Self> {
        let matter = match &conflict.kind {
            ConflictKind::MovedTwice | ConflictKind::MovedRemoved => {
                let [ours, theirs] = conflict.places.clone();
                Matter::Place { ours, theirs }
            }
            ConflictKind::State { key, theirs } => Matter::State { key: key.clone(), theirs: theirs.clone() },
            ConflictKind::Attribute(attribute) => Matter::Attribute(attribute.clone()),
            _ => return None,
        };
        Some(Self { path: conflict.path.clone(), kind: conflict.kind.word().to_owned(), matter })
    }

    /// Returns whether a tree still has the state that the merged tree has in this matter.
    pub fn is_as(&self, merged: &WorkingTree, tree: &WorkingTree) -> Result<bool> {
        let path = self.path.as_bytes();
        match &self.matter {
            Matter::Place { ours, theirs } => {
                for place in [ours, theirs].into_iter().flatten() {
                    if !is_there(tree, place)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Matter::State { key, .. } => Ok(tree.state(key)? == merged.state(key)?),
            Matter::Attribute(_) if !(tree.exists(path)? && merged.exists(path)?) => Ok(false),
            Matter::Attribute(attribute) => {
                Ok(attribute_of(tree, &self.path, attribute)? == attribute_of(merged, &self.path, attribute)?)
            }
        }
    }

    /// Applies a decision to a tree. Returns the changed paths.
    pub fn decide(&self, tree: &mut WorkingTree, decision: Decision) -> Result<Vec<TreePath>> {
        let path = self.path.as_bytes();
        match (&self.matter, decision) {
            (Matter::Place { ours, theirs }, Decision::Ours | Decision::Theirs) => {
                let (kept, gone) = match decision {
                    Decision::Ours => (ours, theirs),
                    _ => (theirs, ours),
                };
                let Some(gone) = gone.as_ref().filter(|gone| kept.as_ref() != Some(gone)) else {
                    return Ok(Vec::new());
                };
                if is_there(tree, gone)? {
                    tree.remove(gone.as_bytes())?;
                }
                return Ok(vec![gone.clone()]);
            }
            (Matter::State { key, theirs: Some(value) }, Decision::Theirs) => tree.set_state(key, value)?,
            (Matter::State { key, theirs: None }, Decision::Theirs) => drop(tree.remove_state(key)?),
            (Matter::Attribute(attribute), Decision::Theirs) => {
                match attribute {
                    Attribute::Owner(owner) => tree.set_owner(path, *owner)?,
                    Attribute::Extended { name, value: Some(value) } => tree.set_xattr(path, name, value)?,
                    Attribute::Extended { name, value: None } => drop(tree.remove_xattr(path, name)?),
                }
                return Ok(vec![self.path.clone()]);
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    /// Returns the size of its encoding in a record, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.to_json().to_string().len()
    }

    pub(super) fn to_json(&self) -> Value {
        let path = |path: &Option<TreePath>| path.as_ref().map(|path| bytes_value(path.as_bytes()));
        let about = match &self.matter {
            Matter::Place { ours, theirs } => json!({ "ours": path(ours), "theirs": path(theirs) }),
            Matter::State { key, theirs } => json!({ "key": key, "theirs": theirs }),
            Matter::Attribute(Attribute::Owner(owner)) => {
                json!({ "owner": owner.map(|Owner { uid, gid }| [uid, gid]) })
            }
            Matter::Attribute(Attribute::Extended { name, value }) => {
                json!({ "name": bytes_value(name), "theirs": value.as_deref().map(bytes_value) })
            }
        };
        let mut value = json!({ "path": bytes_value(self.path.as_bytes()), "kind": self.kind });
        if let (Value::Object(value), Value::Object(about)) = (&mut value, about) {
            value.extend(about);
        }
        value
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let tree_path = |value: &Value| TreePath::new(read_bytes(value)?).ok();
        // An absent value is null; a missing key means another kind of matter.
        let or_null = |key: &str| value.get(key).map(|value| Some(value).filter(|value| !value.is_null()));
        let matter = if let Some(key) = value.get("key") {
            let theirs = match or_null("theirs")? {
                Some(theirs) => Some(theirs.as_str()?.to_owned()),
                None => None,
            };
            Matter::State { key: key.as_str()?.to_owned(), theirs }
        } else if let Some(owner) = or_null("owner") {
            let number = |at: usize| u32::try_from(owner?.get(at)?.as_u64()?).ok();
            let owner = match owner {
                Some(_) => Some(Owner { uid: number(0)?, gid: number(1)? }),
                None => None,
            };
            Matter::Attribute(Attribute::Owner(owner))
        } else if let Some(name) = value.get("name") {
            let theirs = match or_null("theirs")? {
                Some(theirs) => Some(read_bytes(theirs)?),
                None => None,
            };
            Matter::Attribute(Attribute::Extended { name: read_bytes(name)?, value: theirs })
        } else {
            let place = |key: &str| match or_null(key)? {
                Some(place) => tree_path(place).map(Some),
                None => Some(None),
            };
            Matter::Place { ours: place("ours")?, theirs: place("theirs")? }
        };
        let (path, kind) = (tree_path(value.get("path")?)?, value.get("kind")?.as_str()?.to_owned());
        Some(Self { path, kind, matter })
    }
}

/// Returns the matters left by merges in the history of a snapshot that no later snapshot decided, newest merge first.
/// [`Undecided::is_as`] tells whether a tree still has the state that the merge left.
pub fn undecided_before(history: &History, head: SnapshotId) -> Result<Vec<OpenMatter>> {
    let mut decided = BTreeSet::new();
    let mut found = Vec::new();
    // In generation order, a snapshot that decides a matter precedes the merge that left it.
    for entry in history.log(&[head], LogOrder::Generation)?.take(SNAPSHOTS_MAX) {
        let entry = entry?;
        if let Some(ids) = entry.snapshot.metadata.get(DECIDED_KEY) {
            decided.extend(ids.split_ascii_whitespace().map(str::to_owned));
        }
        let Some(text) = entry.snapshot.metadata.get(MERGE_RECORD_KEY) else { continue };
        let undecided = MergeRecord::from_json(text).map(|record| record.undecided).unwrap_or_default();
        let open = undecided.into_iter().enumerate();
        let open = open.map(|(number, undecided)| OpenMatter { merge: entry.id, number, undecided });
        found.extend(open.filter(|matter| !decided.contains(&matter.id())));
    }
    Ok(found)
}

/// Returns whether the item is at a path. A directory does not count: merges place only other kinds at two paths.
fn is_there(tree: &WorkingTree, path: &TreePath) -> Result<bool> {
    Ok(tree.stat(path.as_bytes())?.is_some_and(|stat| stat.kind != EntryKind::Directory))
}

/// Returns the attribute with the same name from a tree.
fn attribute_of(tree: &WorkingTree, path: &TreePath, like: &Attribute) -> Result<Attribute> {
    Ok(match like {
        Attribute::Owner(_) => Attribute::Owner(tree.stat(path.as_bytes())?.and_then(|stat| stat.owner)),
        Attribute::Extended { name, .. } => {
            let value = tree.xattr(path.as_bytes(), name)?.map(|value: Bytes| value.to_vec());
            Attribute::Extended { name: name.clone(), value }
        }
    })
}

impl Attribute {
    /// Returns the attribute with the same name from a tree.
    pub fn in_tree(&self, tree: &WorkingTree, path: &TreePath) -> Result<Self> {
        attribute_of(tree, path, self)
    }
}

/// Encodes bytes as a string if they are UTF-8, otherwise as an array of numbers.
fn bytes_value(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::String(text.to_owned()),
        Err(_) => json!(bytes),
    }
}

fn read_bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(bytes) => {
            bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_back() {
        let path = |text: &[u8]| TreePath::new(text).expect("a path");
        let place = |ours, theirs| Matter::Place { ours, theirs };
        let state = |theirs: Option<&str>| Matter::State { key: "k".to_owned(), theirs: theirs.map(str::to_owned) };
        let extended = |value: Option<&[u8]>| {
            Matter::Attribute(Attribute::Extended { name: b"user.n".to_vec(), value: value.map(<[u8]>::to_vec) })
        };
        for matter in [
            place(Some(path(b"x")), Some(path(b"\xff/y"))),
            place(None, Some(path(b"x"))),
            place(Some(path(b"x")), None),
            state(Some("1")),
            state(None),
            Matter::Attribute(Attribute::Owner(Some(Owner { uid: 1, gid: 2 }))),
            Matter::Attribute(Attribute::Owner(None)),
            extended(Some(b"\x00\xff")),
            extended(Some(b"")),
            extended(None),
        ] {
            let one = Undecided { path: path(b"a"), kind: "kind".to_owned(), matter };
            let text = one.to_json().to_string();
            assert_eq!(Undecided::from_json(&serde_json::from_str(&text).expect("JSON")), Some(one), "{text}");
        }
        assert_eq!(Undecided::from_json(&json!({ "path": "a", "kind": "something else" })), None);
    }
}
