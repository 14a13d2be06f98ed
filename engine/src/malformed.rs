//! The rules of the format, as the errors that describe their violation. A bottom-level module: objects and references use it and
//! no other error type.

use crate::id::ObjectId;
use crate::name::InvalidName;

/// The rule of the format that the bytes violate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end too early, or a length prefix is wrong.
    #[error("truncated or a length that lies")]
    Truncated,
    /// The first byte is that of another kind.
    #[error("the first byte says kind {found}")]
    Kind {
        /// The byte.
        found: u8,
    },
    /// The second byte is an unsupported version.
    #[error("version {found} is not known here")]
    Version {
        /// The byte.
        found: u8,
    },
    /// A field that the format does not define, or one with another wire type.
    #[error("field {number} does not belong here")]
    Field {
        /// The field number.
        number: u32,
    },
    /// Valid, but not the canonical encoding of the value.
    #[error("not the canonical encoding")]
    NotCanonical,
    /// A hash that is not 32 bytes.
    #[error("a hash of {bytes} bytes")]
    Hash {
        /// The actual length.
        bytes: usize,
    },
    /// An invalid name.
    #[error("{0}")]
    Name(#[from] InvalidName),
    /// Items are unsorted or duplicated.
    #[error("items are not in strictly ascending order")]
    Order,
    /// A node without items, or an inner node with a single child.
    #[error("a node with too few items")]
    TooFew,
    /// A limit is exceeded.
    #[error("{what} over its limit")]
    TooMuch {
        /// The limited item.
        what: &'static str,
    },
    /// A sum overflows.
    #[error("a total that overflows")]
    Overflow,
    /// A node is not cut according to the cut rule.
    #[error("a node boundary in the wrong place")]
    Boundary,
    /// An object from outside refers to an object that has not been admitted.
    #[error("{id}, which it refers to, is not here; what an object refers to comes before it")]
    Absent {
        /// The missing object.
        id: ObjectId,
    },
    /// A link makes a false claim about its child.
    #[error("a link does not describe its child")]
    Link,
    /// Any other rule.
    #[error("{0}")]
    Rule(&'static str),
}
