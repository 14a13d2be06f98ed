//! The service: workspaces, snapshots, operations and real directories of one store. gRPC is a thin face of it.
//!
//! [`Service`] does the work, synchronously, on the engine and the materializer. [`api`] translates calls into it and its answers
//! back; [`serve`] listens. Errors become status codes in one place ([`failure`]).
//!
//! A workspace that is mounted is answered for from its live view (`views`): the same calls, the same answers.
//!
//! What is absent: no terminal, no environment, no clock. Where the store lies and what time it is are arguments.

pub mod api;
mod call_log;
mod calls;
mod collection;
mod complaints;
mod conflicts;
mod connection;
mod directory;
pub mod failure;
mod feed;
mod home;
mod left_alone;
mod merging;
mod registry;
mod room;
pub mod serve;
mod service;
mod settings;
mod socket;
mod usage;
mod views;

pub use amalgam_gc::retention;
pub use amalgam_materializer::remove_tree;
pub use home::{Home, identity_of};
pub use service::{Clock, Clocks, Service};
pub use settings::{CommandSettings, Settings, SettingsSource, local_paths};
