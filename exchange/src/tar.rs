//! tar archives in and out: ustar, PAX and GNU, with sparse files, extended attributes, ACLs, hard links and devices.
//!
//! The archive is read once, front to back, from any stream. No member can reach outside of the root, because there is no outside:
//! members become entries of a tree, and no path of the host is opened.

mod acl;
mod export;
mod header;
mod import;
mod pax;
mod reader;
mod sparse;
mod writer;

pub use export::{TarExport, export_tar};
pub use import::{Limits, TarImport, import_tar};

pub(crate) use export::{LayerChange, NOTE_CONFLICT, NOTE_STATE, TarSink};
pub(crate) use import::{Members, add_members, check_limits};
pub(crate) use reader::{MemberKind, TarReader};
pub(crate) use writer::{write_end, write_member};

pub(crate) const FORMAT: &str = "tar archive";
/// Archives consist of blocks of this size.
pub(crate) const BLOCK_BYTES: usize = 512;
