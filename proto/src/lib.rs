//! The wire: the public API of Amalgam as protobuf (`amalgam/v1`), its generated code, and the conversions between its words and
//! the engine's.
//!
//! Absent: no service is implemented here, and nothing here opens a connection. Prost types of the API live in this crate
//! and nowhere below it.

mod convert;
mod failure;
mod names;
mod request;

/// The generated messages, clients and servers.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("amalgam.v1");
}

pub use convert::{change_kind, entry, entry_kind, instant, timestamp};
pub use failure::{DOMAIN, Failure, Reason};
pub use names::{
    directory_id, directory_name, episode_id, episode_name, export_name, export_number, label_id, label_name,
    mount_name, mount_number, operation_name, operation_sequence, snapshot_id, snapshot_name, workspace_id,
    workspace_name,
};
pub use request::{IDENTIFIED_METHODS, Identified};

/// The API's descriptors, encoded: every message, service and method. For reflection, and for checks that cover all methods.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The version of the API, exchanged at the handshake. A client and a server of different versions do not talk.
pub const API_VERSION: u32 = 1;
