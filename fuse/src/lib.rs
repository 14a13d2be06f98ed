//! The FUSE door on a [`View`](amalgam_view::View): answers a kernel's requests from it. Holds no file state, decides nothing.
//!
//! The kernel is asked to remember all it can, for a day: names, absent names, attributes, contents, listings. What changes
//! through another door or underneath is invalidated by notice. Opening, closing and listing need no message of their own;
//! permissions are the kernel's business. The kernel writes through: a write that was acknowledged is in the view.
//!
//! One thread answers: nearly all requests are answered in less time than it takes to wake another. What may take long, a
//! read of something that is not at hand and a sync, is done aside, by others. While requests come thick and fast that thread does
//! not sleep in between. Notices are sent from a thread of their own, which holds no lock: a kernel that waits for an answer
//! must never be told to forget what it waits for by whoever is to answer.

mod again;
mod aside;
mod attention;
mod convert;
mod door;
mod kernel;
mod mount;
mod relist;

pub use kernel::unmount;
pub use mount::{Mount, MountError, MountOptions, StillMounted};
