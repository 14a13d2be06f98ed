//! Extended attributes: in their entry while small, in an object of their own above that.

use bytes::Bytes;

use super::codec::{Reader, Writer};
use crate::id::{ObjectKind, XattrsId};
use crate::malformed::Malformed;

/// The longest attribute name, as on Linux.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// The longest value, as on Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// All names and values of one entry together.
pub const XATTRS_BYTES_MAX: usize = 1 << 20;
/// Up to this many bytes of names and values they stay in the entry.
pub const XATTRS_INLINE_BYTES_MAX: usize = 1_024;

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Xattr {
    /// Its name, with its namespace (`user.…`).
    pub name: Bytes,
    /// Its value, possibly empty.
    pub value: Bytes,
}

/// The attributes of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Xattrs {
    /// None.
    #[default]
    None,
    /// Up to 1 KiB, sorted by name.
    Inline(Vec<Xattr>),
    /// More, in an object.
    Apart(XattrsId),
}

/// Names and values together.
pub(crate) fn total_bytes(xattrs: &[Xattr]) -> usize {
    xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum()
}

/// The rules for any list of attributes.
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

/// Reads one more attribute of a list. The first that breaks the order ends it, so that a list is never much larger in
/// memory than its bytes.
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

/// The object for attributes over the inline limit.
pub(crate) fn encode_apart(xattrs: &[Xattr]) -> Vec<u8> {
    let mut out = Writer::object(ObjectKind::Xattrs);
    for xattr in xattrs {
        out.message(1, |out| write_one(xattr, out));
    }
    out.finish()
}

/// Reads such an object.
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
