//! FUSE server for a [`View`](amalgam_view::View): answers a kernel's requests with calls of the view. Keeps no file state.
//!
//! The kernel may cache everything for a day: names, absent names, attributes, contents, listings. Changes that did not come through this
//! mount are invalidated by notifications. Open, close and listing need no messages of their own. The kernel checks permissions. It writes
//! through: an acknowledged write is in the view.
//!
//! One thread answers requests, because most take less time than waking another thread. Requests that may be slow, reads from the store and
//! syncs, go to a worker pool. While requests follow each other closely, the thread polls the device instead of sleeping. Invalidations are
//! sent by a thread of their own, which holds no lock: a kernel that waits for an answer must not be sent an invalidation of the same data by
//! the thread that has to answer.

mod amalgam_fs;
mod busy_poll;
mod convert;
mod mount;
mod mount_device;
mod relist;
mod stale_retries;
mod worker_pool;

pub use mount::{Mount, MountError, MountOptions, StillMounted};
pub use mount_device::{unmount, unmount_lazily};
