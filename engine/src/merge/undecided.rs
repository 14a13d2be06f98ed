//! Conflicts that cannot be represented as a tree entry: the path of an item, an attribute, or a state value.
//!
//! The tree holds all versions or ours, and the record of the merge holds the version of theirs. Such a conflict is open in a tree
//! derived from that merge while the tree still has the state that the merge left and no later snapshot is marked as deciding it.
//! So it is forked, sent and undone with the snapshots, and no separate data has to be kept in sync.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Attribute, ConflictKind, PathConflict};
use crate::error::Result;
use crate::name::TreePath;
use crate::object::{EntryKind, Owner};
use crate::work::WorkingTree;

/// A conflict that a merge left undecided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The path in the merged tree; the root for a state value.
    pub path: TreePath,
    /// The name of the conflict kind.
    pub kind: String,
    /// The subject of the conflict.
    pub subject: ConflictSubject,
}

/// The subject of a conflict that is not an entry in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictSubject {
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

/// A decision about an open conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Use ours.
    Ours,
    /// Use theirs.
    Theirs,
    /// Keep the result of the merge: an item that both sides moved keeps both paths.
    Both,
}

impl Undecided {
    /// Returns the undecided conflict for a conflict that is not an entry of the tree.
    pub(crate) fn of(conflict: &PathConflict) -> Option<Self> {
        let subject = match &conflict.kind {
            ConflictKind::MovedTwice | ConflictKind::MovedRemoved => {
                let [ours, theirs] = conflict.places.clone();
                ConflictSubject::Place { ours, theirs }
            }
            ConflictKind::State { key, theirs } => ConflictSubject::State { key: key.clone(), theirs: theirs.clone() },
            ConflictKind::Attribute(attribute) => ConflictSubject::Attribute(attribute.clone()),
            _ => return None,
        };
        Some(Self { path: conflict.path.clone(), kind: conflict.kind.word().to_owned(), subject })
    }

    /// Returns whether a tree still has the state that the merged tree has in this respect.
    pub fn is_as(&self, merged: &WorkingTree, tree: &WorkingTree) -> Result<bool> {
        let path = self.path.as_bytes();
        match &self.subject {
            ConflictSubject::Place { ours, theirs } => {
                for place in [ours, theirs].into_iter().flatten() {
                    if !is_there(tree, place)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            ConflictSubject::State { key, .. } => Ok(tree.state(key)? == merged.state(key)?),
            ConflictSubject::Attribute(_) if !(tree.exists(path)? && merged.exists(path)?) => Ok(false),
            ConflictSubject::Attribute(attribute) => {
                Ok(attribute_of(tree, &self.path, attribute)? == attribute_of(merged, &self.path, attribute)?)
            }
        }
    }

    /// Applies a decision to a tree. Returns the changed paths.
    pub fn decide(&self, tree: &mut WorkingTree, decision: Decision) -> Result<Vec<TreePath>> {
        let path = self.path.as_bytes();
        match (&self.subject, decision) {
            (ConflictSubject::Place { ours, theirs }, Decision::Ours | Decision::Theirs) => {
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
            (ConflictSubject::State { key, theirs: Some(value) }, Decision::Theirs) => tree.set_state(key, value)?,
            (ConflictSubject::State { key, theirs: None }, Decision::Theirs) => drop(tree.remove_state(key)?),
            (ConflictSubject::Attribute(attribute), Decision::Theirs) => {
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
        let about = match &self.subject {
            ConflictSubject::Place { ours, theirs } => json!({ "ours": path(ours), "theirs": path(theirs) }),
            ConflictSubject::State { key, theirs } => json!({ "key": key, "theirs": theirs }),
            ConflictSubject::Attribute(Attribute::Owner(owner)) => {
                json!({ "owner": owner.map(|Owner { uid, gid }| [uid, gid]) })
            }
            ConflictSubject::Attribute(Attribute::Extended { name, value }) => {
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
        // An absent value is null; a missing key means another kind of subject.
        let or_null = |key: &str| value.get(key).map(|value| Some(value).filter(|value| !value.is_null()));
        let subject = if let Some(key) = value.get("key") {
            let theirs = match or_null("theirs")? {
                Some(theirs) => Some(theirs.as_str()?.to_owned()),
                None => None,
            };
            ConflictSubject::State { key: key.as_str()?.to_owned(), theirs }
        } else if let Some(owner) = or_null("owner") {
            let number = |at: usize| u32::try_from(owner?.get(at)?.as_u64()?).ok();
            let owner = match owner {
                Some(_) => Some(Owner { uid: number(0)?, gid: number(1)? }),
                None => None,
            };
            ConflictSubject::Attribute(Attribute::Owner(owner))
        } else if let Some(name) = value.get("name") {
            let theirs = match or_null("theirs")? {
                Some(theirs) => Some(read_bytes(theirs)?),
                None => None,
            };
            ConflictSubject::Attribute(Attribute::Extended { name: read_bytes(name)?, value: theirs })
        } else {
            let place = |key: &str| match or_null(key)? {
                Some(place) => tree_path(place).map(Some),
                None => Some(None),
            };
            ConflictSubject::Place { ours: place("ours")?, theirs: place("theirs")? }
        };
        let (path, kind) = (tree_path(value.get("path")?)?, value.get("kind")?.as_str()?.to_owned());
        Some(Self { path, kind, subject })
    }
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
        let place = |ours, theirs| ConflictSubject::Place { ours, theirs };
        let state =
            |theirs: Option<&str>| ConflictSubject::State { key: "k".to_owned(), theirs: theirs.map(str::to_owned) };
        let extended = |value: Option<&[u8]>| {
            ConflictSubject::Attribute(Attribute::Extended {
                name: b"user.n".to_vec(),
                value: value.map(<[u8]>::to_vec),
            })
        };
        for subject in [
            place(Some(path(b"x")), Some(path(b"\xff/y"))),
            place(None, Some(path(b"x"))),
            place(Some(path(b"x")), None),
            state(Some("1")),
            state(None),
            ConflictSubject::Attribute(Attribute::Owner(Some(Owner { uid: 1, gid: 2 }))),
            ConflictSubject::Attribute(Attribute::Owner(None)),
            extended(Some(b"\x00\xff")),
            extended(Some(b"")),
            extended(None),
        ] {
            let one = Undecided { path: path(b"a"), kind: "kind".to_owned(), subject };
            let text = one.to_json().to_string();
            assert_eq!(Undecided::from_json(&serde_json::from_str(&text).expect("JSON")), Some(one), "{text}");
        }
        assert_eq!(Undecided::from_json(&json!({ "path": "a", "kind": "something else" })), None);
    }
}
