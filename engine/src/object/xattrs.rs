//! Extended attributes: stored inline in the entry while small, in a separate object otherwise.

use bytes::Bytes;

use super::codec::{Reader, Writer};
use crate::id::{ObjectKind, XattrsId};
use crate::malformed::Malformed;

/// Maximum length of an attribute name, in bytes, as on Linux.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Maximum length of an attribute value, in bytes, as on Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// Maximum total length of the names and values of one entry, in bytes.
pub const XATTRS_BYTES_MAX: usize = 1 << 20;
/// Names and values up to this total length, in bytes, are stored inline in the entry.
pub const XATTRS_INLINE_BYTES_MAX: usize = 1_024;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Xattr {
    /// The name with its namespace (`user.…`).
    pub name: Bytes,
    /// The value; may be empty.
    pub value: Bytes,
}

/// The attributes of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Xattrs {
    /// No attributes.
    #[default]
    None,
    /// Up to 1 KiB of attributes, sorted by name.
    Inline(Vec<Xattr>),
    /// More than 1 KiB, in a separate object.
    Apart(XattrsId),
}

/// Returns the total length of names and values.
pub(crate) fn total_bytes(xattrs: &[Xattr]) -> usize {
    xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum()
}

/// Checks the rules that hold for every list of attributes.
pub(crate) fn check(xattrs: &[Xattr]) -> Result<(), Malformed> {
    xattrs.iter().try_for_each(check_one)?;
    if !xattrs.is_sorted_by(|a, b| a.name < b.name) {
        return Err(Malformed::Order);
    }
    if total_bytes(xattrs) > XATTRS_BYTES_MAX {
        return Err(Malformed::TooMuch { what: "an entry's attributes" });
    }
    Ok(())
}

fn check_one(xattr: &Xattr) -> Result<(), Malformed> {
    if xattr.name.is_empty() || xattr.name.contains(&0) {
        return Err(Malformed::Rule("an attribute name that is empty or holds a NUL"));
    }
    if xattr.name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Malformed::TooMuch { what: "an attribute name" });
    }
    if xattr.value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(Malformed::TooMuch { what: "an attribute value" });
    }
    Ok(())
}

pub(super) fn write_one(xattr: &Xattr, out: &mut Writer) {
    out.bytes(1, &xattr.name);
    out.bytes(2, &xattr.value);
}

/// Reads one more attribute of a list. Stops at the first one that is out of order, so that a list never takes much more memory
/// than its encoding.
pub(super) fn push(xattrs: &mut Vec<Xattr>, from: Reader) -> Result<(), Malformed> {
    let xattr = read_one(from)?;
    check_one(&xattr)?;
    if xattrs.last().is_some_and(|last| last.name >= xattr.name) {
        return Err(Malformed::Order);
    }
    xattrs.push(xattr);
    Ok(())
}

fn read_one(mut from: Reader) -> Result<Xattr, Malformed> {
    let mut xattr = Xattr { name: Bytes::new(), value: Bytes::new() };
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => xattr.name = value.bytes(1)?,
            2 => xattr.value = value.bytes(2)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    Ok(xattr)
}

/// Encodes the object for attributes above the inline limit.
pub(crate) fn encode_apart(xattrs: &[Xattr]) -> Vec<u8> {
    let mut out = Writer::object(ObjectKind::Xattrs);
    for xattr in xattrs {
        out.message(1, |out| write_one(xattr, out));
    }
    out.finish()
}

/// Decodes an object of attributes above the inline limit.
pub(crate) fn decode_apart(bytes: &Bytes) -> Result<Vec<Xattr>, Malformed> {
    let mut from = Reader::object(ObjectKind::Xattrs, bytes)?;
    let mut xattrs = Vec::new();
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => push(&mut xattrs, value.message(1)?)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    check(&xattrs)?;
    if total_bytes(&xattrs) <= XATTRS_INLINE_BYTES_MAX {
        return Err(Malformed::Rule("small attributes belong in their entry"));
    }
    Ok(xattrs)
}
