//! The `amalgam` command. A client of the API, nothing more: for everything that it shows or changes, it calls the process
//! that holds the store.
//!
//! It reads and writes no file of a store except `config.toml`, the definitions and states of remotes, and the log, and compares no
//! trees.
//!
//! The program itself (`main.rs`) only calls [`main`]: cargo compiles a library before RocksDB is there, and links only a program.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "a comment on an argument is its help, where brackets say the default"
)]
#![cfg_attr(not(feature = "network"), allow(dead_code, reason = "modules offer more than this smaller program calls"))]

mod allocator;
mod args;
mod attached;
mod cloning;
mod command;
mod config;
mod connect;
mod contexts;
mod edge;
mod environment;
mod error;
mod exit;
mod help;
mod hooks;
mod json_file;
mod logging;
#[cfg(feature = "network")]
mod mcp;
mod namespace;
#[cfg(feature = "network")]
mod network;
#[cfg(not(feature = "network"))]
#[path = "network_absent.rs"]
mod network;
mod output;
mod program;
mod program_name;
mod prompt;
mod raw_mode;
mod remote;
mod secrets;
mod serve;
mod serve_settings;
mod session;
mod store_copy;
mod text;
mod trust;
mod version;

pub use program::main;
