//! An NFSv3 and MOUNT server over views, on one TCP port, in user space, without privilege.
//!
//! Translates requests into calls of an [`amalgam_view::View`], and errors of the view into NFS statuses. Keeps no file state: the view has
//! the table of issued handles. This crate has the protocol: RPC records, exports, keyed handles, the reply cache, group syncs, and limits on
//! the resources that clients can use.
//!
//! `xdr` decodes requests without allocating; `nfs3_types` encodes replies. One task serves a connection; slow calls run on a bounded
//! thread pool. See `docs/design/0016-nfs.md`.
//!
//! Not here: authentication (NFSv3 has none, see `docs/NFS.md`), the network lock manager (clients mount with `nolock`), the portmapper,
//! a clock (the caller passes one).

pub mod client;
mod connection;
mod convert;
mod dispatch;
mod export;
mod handle;
mod mount;
mod mount_lines;
mod network;
mod offline;
mod procedures;
mod reply_cache;
mod reply_log;
mod rpc;
mod server;
mod sync;
mod xdr;

pub use export::{Credentials, ExportError, ExportSpec, Exports, ViewSource, export_path};
pub use mount::{MountChange, MountEvent, MountWatcher};
pub use mount_lines::MountLines;
pub use network::{InvalidNetwork, Network};
pub use offline::OfflineServer;
pub use server::{Server, ServerOptions, Statistics, listen, listen_or_any_port};
