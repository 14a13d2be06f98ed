//! Import and export: trees and histories of other programs become snapshots, and snapshots become theirs.
//!
//! An import reads a foreign format once, checks everything that it says, and puts what it finds in a write session. It returns
//! snapshots that no name points at ([`Imported`]); the caller makes them visible in one transaction, or drops them. An export
//! writes a snapshot, a difference or a history to a stream, a directory or a repository, and reports what the format cannot say.
//!
//! What is absent: no path of the host is opened on the word of an archive, no clock is read, and no user's repository is written
//! but the one that an export names. The only program that is run is `git`, and only by an export to a repository.

mod build;
mod compress;
mod error;
mod git;
mod imported;
mod member;
mod oci;
mod overlay;
mod progress;
mod report;
mod source;
mod tar;
mod walk;
mod zip;

pub use build::Owners;
pub use compress::Compression;
pub use error::{Error, Result};
pub use git::{
    GITLINK_XATTR, GITMODE_XATTR, GitExport, GitExported, GitHistory, GitImport, Identity, count_git, export_git,
    import_git,
};
pub use imported::{Imported, Words};
pub use oci::{OciExport, OciExported, OciImport, OciTarget, export_layer, export_oci, import_oci};
pub use overlay::{OverlayImport, import_overlay};
pub use progress::Progress;
pub use report::{Notice, Report};
pub use tar::{Limits, TarExport, TarImport, export_tar, import_tar};
pub use zip::{ZipExport, ZipImport, export_zip, import_zip};
