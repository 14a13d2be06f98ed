//! A view as POSIX has it, without a kernel: names, contents, attributes, listings, numbers, and what becomes of them over
//! commits, restores and the end of a process.

mod attributes;
mod bases;
mod conflicts;
mod contents;
mod handles;
mod kit;
mod limits;
mod listing;
mod live;
mod local_entries;
mod names;
mod numbers;
mod permissions;
mod prefetch;
mod recovery;
