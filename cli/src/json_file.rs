//! A JSON file of another program, changed in place: keys keep their order, and everything else stays as it is.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

use crate::error::CliError;

/// A JSON value whose objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// An object.
    Object(Vec<(String, Node)>),
    /// An array.
    Array(Vec<Node>),
    /// Any other value.
    Leaf(Value),
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        match value {
            Value::Object(fields) => Self::Object(fields.into_iter().map(|(key, value)| (key, value.into())).collect()),
            Value::Array(values) => Self::Array(values.into_iter().map(Self::from).collect()),
            leaf => Self::Leaf(leaf),
        }
    }
}

impl Node {
    /// Returns the value of a key of an object, inserted with `make` if it is missing. Returns `None` if this is no object.
    pub fn entry(&mut self, key: &str, make: fn() -> Self) -> Option<&mut Self> {
        let Self::Object(fields) = self else { return None };
        let place = match fields.iter().position(|(name, _)| name == key) {
            Some(place) => place,
            None => {
                fields.push((key.to_owned(), make()));
                fields.len() - 1
            }
        };
        fields.get_mut(place).map(|(_, value)| value)
    }

    /// Returns the value of a key, or `None` if it is missing or this is no object.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Object(fields) = self else { return None };
        fields.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Sets a key of an object.
    pub fn set(&mut self, key: &str, value: Self) {
        if let Some(found) = self.entry(key, || Self::Leaf(Value::Null)) {
            *found = value;
        }
    }

    /// Removes a key of an object. Returns whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let Self::Object(fields) = self else { return false };
        let before = fields.len();
        fields.retain(|(name, _)| name != key);
        fields.len() < before
    }

    /// Returns whether this is an object or an array without elements.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Object(fields) => fields.is_empty(),
            Self::Array(values) => values.is_empty(),
            Self::Leaf(_) => false,
        }
    }

    /// Returns whether the text occurs in any string value, at any depth.
    pub fn mentions(&self, text: &str) -> bool {
        match self {
            Self::Object(fields) => fields.iter().any(|(_, value)| value.mentions(text)),
            Self::Array(values) => values.iter().any(|value| value.mentions(text)),
            Self::Leaf(value) => value.as_str().is_some_and(|found| found.contains(text)),
        }
    }

    /// Creates an object without keys.
    pub fn object() -> Self {
        Self::Object(Vec::new())
    }

    /// Creates an array without values.
    pub fn array() -> Self {
        Self::Array(Vec::new())
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Object(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Self::Array(values) => values.serialize(serializer),
            Self::Leaf(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry()? {
            fields.push(entry);
        }
        Ok(Node::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Node, A::Error> {
        let mut found = Vec::new();
        while let Some(value) = values.next_element()? {
            found.push(value);
        }
        Ok(Node::Array(found))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Leaf(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf(Value::Null))
    }
}

/// A JSON file.
pub struct JsonFile {
    path: PathBuf,
    /// Its object.
    pub root: Node,
}

impl JsonFile {
    /// Reads a file. One that is missing or empty is an empty object.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(CliError::machine(path.display(), &error)),
        };
        let unreadable = |why: &str| {
            CliError::refused(format!("{} cannot be changed: {why}", path.display()))
                .hint("change it by hand; `--print` shows what belongs there")
        };
        let root = match text.trim().is_empty() {
            true => Node::object(),
            false => serde_json::from_str(&text).map_err(|error| unreadable(&error.to_string()))?,
        };
        match root {
            Node::Object(_) => Ok(Self { path: path.to_owned(), root }),
            _ => Err(unreadable("it holds no JSON object")),
        }
    }

    /// Writes the file in one step, or removes it if the object is empty.
    pub fn save(&self) -> Result<(), CliError> {
        let failed = |error: io::Error| CliError::machine(self.path.display(), &error);
        if self.root.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        write_whole(&self.path, &format!("{}\n", pretty(&self.root)))
    }
}

/// Formats a value as indented JSON.
pub fn pretty(node: &Node) -> String {
    serde_json::to_string_pretty(node).unwrap_or_default()
}

/// Replaces a file in one step, and creates its parent directories. A symlink stays, and its target is replaced.
pub fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    use std::io::Write as _;
    let failed = |error: io::Error| CliError::machine(path.display(), &error);
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let parent = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    if let Ok(found) = fs::metadata(&target) {
        file.as_file().set_permissions(found.permissions()).map_err(failed)?;
    } else {
        use std::os::unix::fs::PermissionsExt as _;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(failed)?;
    }
    file.persist(&target).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_an_empty_file_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/settings.json");
        let mut file = JsonFile::load(&path).expect("a missing file is empty");
        file.root = serde_json::from_str(r#"{"z": [1, 2.5, null, true], "a": {"y": "x"}}"#).expect("JSON");
        file.root.set("b", Node::Leaf("new".into()));
        file.save().expect("it is written");
        let text = fs::read_to_string(&path).expect("a file");
        assert_eq!(
            text,
            "{\n  \"z\": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  \"a\": {\n    \"y\": \"x\"\n  },\n  \"b\": \"new\"\n}\n"
        );
        let mut file = JsonFile::load(&path).expect("its own text");
        assert!(file.root.mentions("ew") && !file.root.mentions("q"));
        for key in ["z", "a", "b"] {
            assert!(file.root.remove(key));
        }
        file.save().expect("it is removed");
        assert!(!path.exists());
        fs::write(&path, "// a comment\n{}").expect("a file");
        assert!(JsonFile::load(&path).is_err_and(|error| error.message.contains("cannot be changed")));
    }
}
