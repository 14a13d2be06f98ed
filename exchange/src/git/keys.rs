//! Names of attributes and metadata that keep data of git which a tree cannot hold.

/// Name of the format in errors.
pub(crate) const FORMAT: &str = "git repository";

/// The attribute of a directory that stands for a submodule, empty unless submodules were imported: the commit's id in hexadecimal digits.
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
/// Present on snapshots that have the files of submodules.
pub(crate) const KEY_SUBMODULES: &str = "git.submodules";
