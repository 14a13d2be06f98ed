//! The server for other machines and programs: its listeners, its catalog and its options.

mod rest;
mod server;
mod settings;

pub use rest::RestListener;
pub use server::{catalog_error, lock, make_private, open_catalog, open_server_catalog, operator_socket, serve};
pub use settings::CATALOG;
