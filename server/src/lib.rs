//! The service: workspaces, snapshots, operations and real directories of one store. gRPC is a thin face of it.
//!
//! [`Service`] does the work, synchronously, on the engine and the materializer. [`api`] translates calls into it and its answers
//! back; [`serve`] listens. Errors become status codes in one place ([`error`]).
//!
//! A workspace that is mounted is answered for from its live view (`views`): the same calls, the same answers.
//!
//! Absent: terminal, environment, clock. The location of the store and the time are arguments.

pub mod api;
mod background;
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
mod events;
mod exports;
mod feed;
mod files;
mod follow_book;
mod followers;
mod home;
mod host_features;
mod host_path;
mod incoming;
mod merge_rules;
mod merging;
mod messages;
mod notices;
mod open_store;
mod permissions;
mod publishing;
mod radar;
mod registry;
mod repeated_problem;
mod request_results;
mod running_requests;
pub mod serve;
mod served_git;
mod service;
mod settings;
mod socket;
mod states;
mod subscriber;
mod views;

pub use amalgam_exchange::{GitRequest, GitRoute, git_route};
pub use amalgam_gc::retention;
pub use amalgam_materializer::remove_tree;
pub use amalgam_nfs::{MountChange, MountEvent, Network, Statistics as NfsStatistics};
pub use context::{Clock, Clocks};
pub use error::Error;
pub use events::{EVENT_KINDS, EventFilter, EventStream};
pub use exports::NfsListen;
pub use home::{Home, identity_of};
pub use host_features::HostFeatures;
pub use open_store::OpenStore;
pub use service::{Service, ServiceOptions, StoreUsage};
pub use settings::{CommandSettings, Settings, SettingsSource, local_paths};
pub use socket::{SocketFile, handover_socket, listen};
