//! git repositories in and out: commits become snapshots, and snapshots become commits.
//!
//! `gix` finds objects; commits and trees are decoded here, because an import must be exact where a reader for people may be
//! lenient. `git fast-import` writes. The design is in `docs/design/0015-exchange.md`.

mod blobs;
mod commit;
mod export;
mod fast_import;
mod import;
mod objects;
mod trees;
mod walk;

pub use export::{GitExport, GitExported, Identity, export_git};
pub use import::{GitHistory, GitImport, count_git, import_git};

pub(crate) const FORMAT: &str = "git repository";

/// The attribute of an empty directory that stands for a submodule: the commit's id in hexadecimal digits.
pub const GITLINK_XATTR: &str = "user.amalgam.gitlink";
/// The attribute of a file that git has as a symlink, and that cannot be one: its target is empty, too long or holds a NUL byte.
pub const GITMODE_XATTR: &str = "user.amalgam.gitmode";

/// The id of the commit that a snapshot was imported from.
pub(crate) const KEY_COMMIT: &str = "git.commit";
/// The author's line, and the committer's.
pub(crate) const KEY_AUTHOR: &str = "git.author";
pub(crate) const KEY_COMMITTER: &str = "git.committer";
/// The whole commit, where the rest does not say it exactly: as text, or with bytes as `%xx`.
pub(crate) const KEY_RAW: &str = "git.raw";
pub(crate) const KEY_RAW_ESCAPED: &str = "git.raw-escaped";
/// Present on snapshots whose history was cut by a limited import.
pub(crate) const KEY_HISTORY: &str = "git.history";
