//! The decision which changes of a merge follow renames.

use crate::name::TreePath;

/// Decides which entries follow a directory that the other side of a merge renamed, and which changes follow an entry that it
/// renamed. The others stay at their paths.
pub trait AdmitMove: std::fmt::Debug + Send + Sync {
    /// Returns whether an entry may follow from one path to another.
    fn admits(&self, from: &TreePath, to: &TreePath) -> bool;

    /// Returns whether a directory may follow with everything below it.
    fn admits_below(&self, from: &TreePath, to: &TreePath) -> bool;
}
