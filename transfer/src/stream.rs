//! The stream format: a header, frames, and an end with counts and a checksum. `docs/STREAM.md` defines the bytes. This module
//! knows no store.

mod format;
mod reader;
mod writer;

pub(crate) use format::CHECK_BYTES;
pub use format::Frame;
pub use reader::StreamReader;
pub use writer::StreamWriter;
