//! The service: workspaces, snapshots, operations and real directories of one store. gRPC is a thin face of it.
//!
//! [`Service`] does the work, synchronously, on the engine and the materializer. [`api`] translates calls into it and its answers
//! back; [`serve`] listens. Errors become status codes in one place ([`failure`]).
//!
//! What is absent: no terminal, no environment, no clock. Where the store lies and what time it is are arguments.

pub mod api;
mod directory;
pub mod failure;
mod home;
mod registry;
pub mod serve;
mod service;

pub use home::{Home, identity_of};
pub use service::{Clock, Service};
