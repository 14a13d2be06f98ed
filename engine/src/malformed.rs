//! The rules of the format, as what some bytes break. On the ground, because objects and references speak of them and know no
//! other errors.

use crate::id::ObjectId;
use crate::name::InvalidName;

/// The rule of the format that some bytes break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end too early or a length lies.
    #[error("truncated or a length that lies")]
    Truncated,
    /// The first byte names another kind.
    #[error("the first byte says kind {found}")]
    Kind {
        /// The byte.
        found: u8,
    },
    /// The second byte names a version that is not known here.
    #[error("version {found} is not known here")]
    Version {
        /// The byte.
        found: u8,
    },
    /// A field that the format does not have, or has with another wire type.
    #[error("field {number} does not belong here")]
    Field {
        /// Its number.
        number: u32,
    },
    /// Valid, but not the one encoding of these values.
    #[error("not the canonical encoding")]
    NotCanonical,
    /// A hash that is not 32 bytes.
    #[error("a hash of {bytes} bytes")]
    Hash {
        /// How many there are.
        bytes: usize,
    },
    /// A bad name.
    #[error("{0}")]
    Name(#[from] InvalidName),
    /// Items are unsorted or double.
    #[error("items are not in strictly ascending order")]
    Order,
    /// A node without items, or an inner one with a single child.
    #[error("a node with too few items")]
    TooFew,
    /// More than a limit allows.
    #[error("{what} over its limit")]
    TooMuch {
        /// Of what.
        what: &'static str,
    },
    /// A sum overflows.
    #[error("a total that overflows")]
    Overflow,
    /// A node is not cut where the rule of cutting says.
    #[error("a node boundary in the wrong place")]
    Boundary,
    /// An object from outside refers to one that has not come.
    #[error("{id}, which it refers to, is not here; what an object refers to comes before it")]
    Absent {
        /// The one that is not here.
        id: ObjectId,
    },
    /// What a link says of its child is not so.
    #[error("a link does not describe its child")]
    Link,
    /// Any other rule.
    #[error("{0}")]
    Rule(&'static str),
}
