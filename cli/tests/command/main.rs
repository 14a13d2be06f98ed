//! The real command, as a process, with a store and a background process of its own.

mod agents;
mod commands;
mod conflicts;
mod demo;
mod exchange;
mod gc;
mod interrupts;
mod json;
mod killed;
mod logs;
mod lost;
mod machine;
mod merging;
mod messages;
mod reading;
mod scratch;
mod transcripts;
mod transfer;
mod trust;
mod usage;
mod watching;
