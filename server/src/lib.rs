//! The service: workspaces, snapshots, operations and real directories of one store. gRPC is a thin face of it.
//!
//! [`Service`] does the work, synchronously, on the engine and the materializer. [`api`] translates calls into it and its answers
//! back; [`serve`] listens. Errors become status codes in one place ([`error`]).
//!
//! A workspace that is mounted is answered for from its live view (`views`): the same calls, the same answers.
//!
//! Absent: terminal, environment, clock. The location of the store and the time are arguments.

pub mod api;
mod call_log;
mod caller;
mod calls;
mod collection;
mod conflicts;
mod connection;
mod context;
mod directory;
mod disk_quota;
pub mod error;
mod feed;
mod home;
mod host_path;
mod merge_rules;
mod merging;
mod messages;
mod publishing;
mod registry;
mod repeated_problem;
pub mod serve;
mod service;
mod settings;
mod socket;
mod states;
mod subscriber;
mod views;

pub use amalgam_gc::retention;
pub use amalgam_materializer::remove_tree;
pub use context::{Clock, Clocks};
pub use error::Error;
pub use home::{Home, identity_of};
pub use service::Service;
pub use settings::{CommandSettings, Settings, SettingsSource, local_paths};
