//! A view as POSIX has it, without a kernel: names, contents, attributes, listings, numbers, and what becomes of them over
//! commits, restores and the end of a process.

mod ahead;
mod attributes;
mod bases;
mod conflicts;
mod contents;
mod handles;
mod kit;
mod limits;
mod listing;
mod live;
mod names;
mod numbers;
mod placed;
mod recovery;
