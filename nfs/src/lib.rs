//! The NFS door on views: NFS version 3 and MOUNT on one TCP port, in user space, without privilege.
//!
//! Requests are translated into calls of an [`amalgam_view::View`], and its errors into the protocol's. There is no state of files here:
//! the view knows which handles were given out and where their files are. What is here is the protocol's own: records and calls, which
//! exports there are, keyed handles, the cache of replies, one sync for all who wait for one, and bounds for what clients can make the
//! server do.
//!
//! What a client sends is read by [`xdr`], which allocates nothing; what is sent is written with `nfs3_types`. A connection is one task
//! that receives, answers and sends; what may take long is done by other threads, within bounds. See `docs/design/0016-nfs.md`.
//!
//! What is absent: no authentication worth the name, because version 3 has none (see `docs/NFS.md`); no locks of the network (clients
//! mount with `nolock`); no portmapper; no clock but the one that is given.

pub mod client;
mod connection;
mod convert;
mod dispatch;
mod export;
mod handle;
mod lines;
mod mount;
mod network;
mod procedures;
mod reply_cache;
mod reply_log;
mod rpc;
mod server;
mod sync;
mod xdr;

pub use export::{Credentials, ExportError, ExportSpec, Exports, ViewSource, export_path};
pub use lines::MountLines;
pub use mount::{MountChange, MountEvent, MountWatcher};
pub use network::{InvalidNetwork, Network};
pub use server::{Server, ServerOptions, Statistics, listen};
