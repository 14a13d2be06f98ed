//! Imports git commits as snapshots, and exports snapshots as git commits.
//!
//! `gix` finds objects; commits and trees are decoded here, because an import must be exact where a reader for people may be
//! lenient. `git fast-import` writes. The design is in `docs/design/0015-exchange.md`.

mod blobs;
mod claims;
mod commit;
mod export;
mod fast_import;
mod git_entry;
mod history;
mod import;
mod keys;
mod objects;
mod serve;
mod trees;
mod walk;

pub use export::{GitExport, GitExportReport, Identity, export_git};
pub use history::GitHistory;
pub use import::{GitImport, count_git, import_git};
pub use keys::{GITLINK_XATTR, GITMODE_XATTR};
pub use serve::{
    GitCache, GitRequest, GitResponse, GitRoute, GitServeLimits, SERVED_BRANCH, ServedRepository, git_route,
};
