//! Depth of an import or an export.

/// How far back an import or an export goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitHistory {
    /// This many commits along each line, as `git clone --depth` counts; at least one.
    Last(u64),
    /// Everything that the repository has.
    All,
}
