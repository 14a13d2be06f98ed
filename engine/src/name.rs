//! Names and paths inside a tree: validated bytes, never a path of the host.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

/// Maximum length of a name, in bytes, as on Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum number of names in a path.
pub const DEPTH_MAX: usize = 2_048;

/// The reason why bytes are not a valid name or path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// An empty name, for example between two slashes.
    #[error("a name is empty (a path is relative, without leading, trailing or double slashes)")]
    Empty,
    /// `.` or `..`.
    #[error("`.` and `..` are not names")]
    Dots,
    /// Contains a slash or a NUL.
    #[error("a name holds a slash or a NUL byte")]
    ForbiddenByte,
    /// Longer than 255 bytes.
    #[error("a name of {bytes} bytes; the longest is {NAME_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// More than 2,048 names.
    #[error("a path of more than {DEPTH_MAX} names")]
    TooDeep,
}

/// A name in a directory: 1 to 255 bytes without `/` and NUL, and not `.` or `..`. Any encoding.
#[derive(Clone)]
pub struct Name(Letters);

/// Maximum length of a name that is stored inline, without an allocation. Nearly all names are shorter, and every changed node
/// copies dozens.
const NAME_BYTES_INLINE: usize = 22;

#[derive(Clone)]
enum Letters {
    Inline { length: u8, bytes: [u8; NAME_BYTES_INLINE] },
    Shared(Arc<[u8]>),
}

impl Name {
    /// Validates and copies a name.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidName> {
        check(bytes)?;
        Ok(Self::checked(bytes))
    }

    /// Copies a name that was validated before, as a part of a path.
    pub(crate) fn checked(name: &[u8]) -> Self {
        if name.len() > NAME_BYTES_INLINE {
            return Self(Letters::Shared(name.into()));
        }
        let mut bytes = [0; NAME_BYTES_INLINE];
        bytes[..name.len()].copy_from_slice(name);
        Self(Letters::Inline { length: name.len() as u8, bytes })
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Letters::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Letters::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

fn check(bytes: &[u8]) -> Result<(), InvalidName> {
    match bytes {
        [] => Err(InvalidName::Empty),
        b"." | b".." => Err(InvalidName::Dots),
        _ if bytes.len() > NAME_BYTES_MAX => Err(InvalidName::TooLong { bytes: bytes.len() }),
        _ if bytes.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(InvalidName::ForbiddenByte),
        _ => Ok(()),
    }
}

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// A path from the root of a tree: names joined by slashes; empty for the root itself.
///
/// Ordered name by name, so that a directory is immediately followed by its contents (`a`, `a/b`, `a-b`).
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct TreePath(Bytes);

impl TreePath {
    /// Returns the path of the root.
    pub const fn root() -> Self {
        Self(Bytes::new())
    }

    /// Validates every name.
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, InvalidName> {
        let bytes = path.as_ref();
        if !bytes.is_empty() {
            let mut depth = 0;
            for name in bytes.split(|byte| *byte == b'/') {
                check(name)?;
                depth += 1;
            }
            if depth > DEPTH_MAX {
                return Err(InvalidName::TooDeep);
            }
        }
        Ok(Self(Bytes::copy_from_slice(bytes)))
    }

    /// Returns whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Iterates over the names, first to last.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = Name> + '_ {
        self.letters().map(Name::checked)
    }

    /// Iterates over the bytes of the names, first to last, without copying them.
    pub(crate) fn letters(&self) -> impl DoubleEndedIterator<Item = &[u8]> + '_ {
        let separated = (!self.0.is_empty()).then(|| self.0.split(|byte| *byte == b'/'));
        separated.into_iter().flatten()
    }

    /// Returns the parent directory and the last name, or `None` for the root.
    pub fn split_last(&self) -> Option<(Self, Name)> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (Self(self.0.slice(..slash)), Name::checked(&self.0[slash + 1..])),
            None => (Self::root(), Name::checked(&self.0)),
        })
    }

    /// Returns the path itself, its parent directory, and so on up to the root.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> + use<> {
        std::iter::successors(Some(self.clone()), |path| path.split_last().map(|(parent, _)| parent))
    }

    /// Returns the number of names in the path.
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { 1 + self.0.iter().filter(|byte| **byte == b'/').count() }
    }

    /// Returns the path of a new name in this directory, or an error if it has too many names, as [`new`](Self::new) does.
    pub fn child(&self, name: &Name) -> Result<Self, InvalidName> {
        if self.depth() < DEPTH_MAX { Ok(self.join(name)) } else { Err(InvalidName::TooDeep) }
    }

    /// Returns the path of an existing name in this directory, without a check of its depth; for a new name use [`child`](Self::child).
    pub fn join(&self, name: &Name) -> Self {
        if self.is_root() {
            return Self(Bytes::copy_from_slice(name.as_bytes()));
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.as_bytes().len());
        bytes.extend_from_slice(&self.0);
        bytes.push(b'/');
        bytes.extend_from_slice(name.as_bytes());
        Self(bytes.into())
    }

    /// Returns the rest of this path below `ancestor`, or `None` if it is not at or below it. For example the rest of `a/b/c`
    /// below `a` is `b/c`, and that of `a` below `a` is empty.
    pub fn below<'a>(&'a self, ancestor: &Self) -> Option<&'a [u8]> {
        if ancestor.is_root() {
            return Some(&self.0);
        }
        match self.0.strip_prefix(ancestor.as_bytes())? {
            [] => Some(&[]),
            [b'/', rest @ ..] => Some(rest),
            _ => None,
        }
    }

    /// Returns whether one of the names is `.git`: the path is a Git repository directory or lies in one.
    pub fn is_in_git(&self) -> bool {
        self.0.split(|byte| *byte == b'/').any(|name| name == b".git")
    }
}

/// A type that converts to a path: bytes, which are validated, or an existing path.
pub trait AsTreePath {
    /// The owned or borrowed path.
    type Path: Deref<Target = TreePath>;

    /// Returns the path.
    fn tree_path(self) -> Result<Self::Path, InvalidName>;
}

impl<T: AsRef<[u8]>> AsTreePath for T {
    type Path = Cow<'static, TreePath>;

    fn tree_path(self) -> Result<Self::Path, InvalidName> {
        TreePath::new(self).map(Cow::Owned)
    }
}

impl<'a> AsTreePath for &'a TreePath {
    type Path = &'a TreePath;

    fn tree_path(self) -> Result<Self::Path, InvalidName> {
        Ok(self)
    }
}

impl Ord for TreePath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Treating the slash as the smallest byte compares name by name: names contain no NUL.
        let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        self.0.iter().map(rank).cmp(other.0.iter().map(rank))
    }
}

impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str("(root)");
        }
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.chars().any(char::is_control) => f.write_str(text),
            _ => write!(f, "{}", self.0.escape_ascii()),
        }
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_no_directory_may_hold() {
        for (bytes, why) in [
            (&b""[..], InvalidName::Empty),
            (b".", InvalidName::Dots),
            (b"..", InvalidName::Dots),
            (b"a/b", InvalidName::ForbiddenByte),
            (b"a\0b", InvalidName::ForbiddenByte),
            (&[b'x'; 256], InvalidName::TooLong { bytes: 256 }),
        ] {
            assert_eq!(Name::new(bytes), Err(why));
        }
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert!(Name::new(b"\xff\xfe").is_ok());
    }

    #[test]
    fn refuses_paths_that_leave_or_loop() {
        for path in ["/a", "a/", "a//b", "a/../b", ".", "/"] {
            assert!(TreePath::new(path).is_err(), "{path}");
        }
        assert_eq!(TreePath::new("a/".repeat(DEPTH_MAX) + "a"), Err(InvalidName::TooDeep));
        let deepest = TreePath::new("a/".repeat(DEPTH_MAX - 1) + "a").expect("as deep as can be");
        assert_eq!(deepest.depth(), DEPTH_MAX);
        let name = Name::new(b"a").expect("valid");
        assert_eq!(deepest.child(&name), Err(InvalidName::TooDeep));
        let (above, name) = deepest.split_last().expect("not the root");
        assert_eq!(above.child(&name), Ok(deepest));
        assert_eq!((TreePath::root().depth(), TreePath::root().child(&name).map(|path| path.depth())), (0, Ok(1)));
    }

    #[test]
    fn orders_name_by_name() {
        let mut paths: Vec<_> =
            ["a-b", "a/b", "a", "", "a/b/c", "b"].iter().map(|path| TreePath::new(path).expect("valid")).collect();
        paths.sort();
        let sorted: Vec<_> = paths.iter().map(|path| String::from_utf8_lossy(path.as_bytes()).into_owned()).collect();
        assert_eq!(sorted, ["", "a", "a/b", "a/b/c", "a-b", "b"]);
    }

    #[test]
    fn splits_joins_and_descends() {
        let path = TreePath::new("a/b/c").expect("valid");
        let (parent, name) = path.split_last().expect("not the root");
        assert_eq!((parent.as_bytes(), name.as_bytes()), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(parent.join(&name), path);
        assert_eq!(path.names().count(), 3);
        assert_eq!(TreePath::root().names().count(), 0);
        assert_eq!(path.below(&TreePath::new("a").expect("valid")), Some(&b"b/c"[..]));
        assert_eq!(path.below(&TreePath::new("a/bb").expect("valid")), None);
        assert_eq!(TreePath::new("ab").expect("valid").below(&TreePath::new("a").expect("valid")), None);
    }
}
