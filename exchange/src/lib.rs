//! Imports and exports trees and histories in foreign formats: tar, zip, git, OCI images, overlay upper directories, buckets.
//!
//! An import reads a foreign format once, checks it, and stores it in a write session. It returns snapshots that no name
//! points at ([`Imported`]); the caller makes them visible in one transaction, or drops them. An export writes a snapshot, a
//! difference or a history to a stream, a directory or a repository, and reports data that the format cannot represent.
//!
//! No path of the host is opened because an archive names it, and no repository is written except the target of an export and
//! those of a [`GitCache`]. The only program that is run is `git`, by an export to a repository and by a served one.

mod bucket;
mod build;
mod compress;
mod counting;
mod error;
mod file_range;
mod git;
mod imported;
mod layer;
mod member;
mod oci;
mod overlay;
mod paired;
mod read_ahead;
mod report;
mod source;
mod tar;
mod walk;
mod zip;

pub use amalgam_engine::Progress;
pub use bucket::{
    BUCKET_OBJECTS_MAX, BucketCounts, BucketImport, BucketIndex, BucketSource, ImportedBucket, ListedObject,
    import_bucket,
};
pub use build::Owners;
pub use compress::Compression;
pub use error::{Error, Result};
pub use git::{
    GITLINK_XATTR, GITMODE_XATTR, GitCache, GitExport, GitExportReport, GitHistory, GitImport, GitRequest, GitResponse,
    GitRoute, GitServeLimits, Identity, SERVED_BRANCH, ServedRepository, count_git, export_git, git_route, import_git,
};
pub use imported::{Imported, SnapshotInfo};
pub use oci::{
    DOCKER_SOCKET, DockerImage, OciExport, OciExportReport, OciImport, OciTarget, export_layer, export_oci,
    import_docker, import_oci,
};
pub use overlay::{OverlayExport, OverlayImport, Whiteouts, export_overlay, import_overlay};
pub use report::{Notice, Report};
pub use tar::{Limits, TarExport, TarImport, export_tar, import_tar};
pub use zip::{ZipExport, ZipImport, export_zip, import_zip};
