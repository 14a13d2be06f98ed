//! The messages of e2b's data plane, as the build made them from the .proto files.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

/// Processes of a sandbox.
pub(crate) mod process {
    include!(concat!(env!("OUT_DIR"), "/process.rs"));
}

/// Files of a sandbox.
pub(crate) mod filesystem {
    include!(concat!(env!("OUT_DIR"), "/filesystem.rs"));
}

/// The descriptors of the messages, for their JSON form.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
