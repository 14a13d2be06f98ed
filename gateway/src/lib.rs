//! The network service: everything that exists once per server process, around the stores that it serves.
//!
//! - [`Server`]: listens, with gRPC and REST on one port.
//! - [`serve_local`]: REST on a Unix socket, for programs of the same user.
//! - [`Catalog`]: the database of projects and API keys.
//! - [`Projects`]: the stores of projects, opened on first use.
//! - [`ClusterStores`]: the stores of projects that several nodes serve at once.
//! - [`KeyText`], [`Scopes`]: the text of a key, and the rights that it grants.
//! - [`Method`]: every method of the API, with the scope that it needs and its place in the REST API.
//! - [`Webhook`], [`WebhookOptions`]: events that are sent to HTTP addresses.
//! - [`RateLimits`]: calls per minute for each key.
//! - [`ErrorCode`]: the numbers and names of errors in REST answers.
//!
//! The crate implements no call on a store: `amalgam-server` does.

mod audit;
mod catalog;
mod cluster;
mod docs_page;
mod error_code;
mod gate;
mod git;
mod guarded_body;
mod identity;
mod key;
mod listener;
mod local;
mod method;
mod metrics;
mod operator_socket;
mod own_services;
mod project;
mod projects;
mod public_address;
mod rate;
mod rest;
mod sandboxes;
mod schema;
mod server;
mod status;
mod system;
mod tls;
mod trace;
mod webhook;
mod webhook_service;
mod webhooks;

pub use catalog::{Catalog, CatalogError, KeyRecord, ListPlace, NewKey, Project, SandboxFilter, SandboxRecord};
pub use cluster::{ClusterOptions, ClusterStores, NodeCache, SharedStore};
pub use error_code::ErrorCode;
pub use gate::{PROJECT_HEADER, REQUEST_ID_HEADER};
pub use identity::{AuthError, Authentication};
pub use key::{KeyId, KeyText, Scope, Scopes, SecretHash};
pub use local::{LocalOptions, serve_local};
pub use method::{Access, METHODS, Method};
pub use operator_socket::serve_operator;
pub use project::ProjectName;
pub use projects::{DEFAULT_PROJECT, OpenHome, ProjectError, Projects};
pub use rate::{CallClass, RateLimits, RatePreset};
pub use sandboxes::{AccessSetting, DockerSettings, HostRule, RuntimeChoice, SandboxOptions, TerminalTimes};
pub use server::{Server, ServerError, ServerOptions};
pub use tls::TlsFiles;
pub use webhook::{Delivery, DeliveryState, NewWebhook, Webhook, WebhookId};
pub use webhooks::WebhookOptions;

/// Returns the OpenAPI document of the REST API.
pub fn openapi() -> &'static serde_json::Value {
    rest::openapi::document()
}
