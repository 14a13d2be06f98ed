//! Imports and exports tar archives: ustar, PAX and GNU, with sparse files, extended attributes, ACLs, hard links and devices.
//!
//! The archive is read once, front to back, from any stream. No member can reach outside of the root, because there is no outside:
//! members become entries of a tree, and no path of the host is opened.

mod acl;
mod export;
mod format;
mod header;
mod import;
mod pax;
mod reader;
mod sparse;
mod writer;

pub use export::{TarExport, export_tar};
pub use import::{Limits, TarImport, import_tar};

pub(crate) use export::{NOTE_CONFLICT, NOTE_STATE, TarSink};
pub(crate) use import::{MemberOptions, add_members, check_limits};
pub(crate) use reader::{MemberKind, TarReader};
pub(crate) use writer::{write_end, write_member};
