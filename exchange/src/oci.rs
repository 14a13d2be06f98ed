//! Imports and exports OCI images: image layouts as directories or tar archives, the archives of `docker save`, and images
//! of a Docker engine.
//!
//! Manifests, configurations and layers are believed after their digests were compared. Each layer is a snapshot on the one below it.

mod archive;
mod digest;
mod engine;
mod export;
mod import;
mod keys;
mod layer;
mod manifest;

pub use engine::{DOCKER_SOCKET, DockerImage, import_docker};
pub use export::{OciExport, OciExportReport, OciTarget, export_oci};
pub use import::{OciImport, import_oci};
pub use layer::export_layer;
