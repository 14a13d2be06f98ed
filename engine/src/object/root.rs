//! A root: a whole tree as one object.

use bytes::Bytes;

use super::codec::{Reader, Writer};
use super::entry::{Entry, Node};
use crate::id::{Bare, LinksId, ObjectId, ObjectKind, RootId, StateId};
use crate::malformed::Malformed;

/// The root directory's entry, the hard-link map and the state map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The root directory: its mode, time, attributes and contents.
    pub directory: Entry,
    /// The hard-link map, if the tree has hard links.
    pub links: Option<LinksId>,
    /// The state map, if the tree has state values.
    pub state: Option<StateId>,
}

impl Root {
    /// Returns the canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_with(false)
    }

    /// Returns the id.
    pub fn id(&self) -> RootId {
        RootId::of(&self.encode())
    }

    /// Returns the hash of the tree without times. Two trees are equal except for times exactly if this hash is equal.
    pub fn bare(&self) -> Bare {
        Bare::of(&self.encode_with(true))
    }

    fn encode_with(&self, timeless: bool) -> Vec<u8> {
        let mut out = Writer::object(ObjectKind::Root);
        out.message(1, |out| self.directory.write(out, timeless));
        if let Some(links) = self.links {
            out.bytes(2, links.as_bytes());
        }
        if let Some(state) = self.state {
            out.bytes(3, state.as_bytes());
        }
        out.finish()
    }

    /// Decodes a root.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::object(ObjectKind::Root, bytes)?;
        let (mut directory, mut links, mut state) = (None, None, None);
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => directory = Some(Entry::read(value.message(1)?, false)?),
                2 => links = Some(LinksId::from_bytes(value.hash(2)?)),
                3 => state = Some(StateId::from_bytes(value.hash(3)?)),
                number => return Err(Malformed::Field { number }),
            }
        }
        match directory {
            Some((name, directory)) if name.is_empty() && matches!(directory.node, Node::Directory(_)) => {
                if links.is_some() != (directory.linked() > 0) {
                    return Err(Malformed::Rule("a hard-link map that does not fit the tree"));
                }
                Ok(Self { directory, links, state })
            }
            _ => Err(Malformed::Rule("a root that is not a nameless directory")),
        }
    }

    pub(crate) fn outgoing(&self) -> Vec<ObjectId> {
        let mut ids = Vec::new();
        self.directory.collect_outgoing(&mut ids);
        ids.extend(self.links.map(ObjectId::from));
        ids.extend(self.state.map(ObjectId::from));
        ids
    }
}
