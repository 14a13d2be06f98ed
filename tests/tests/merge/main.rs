//! Merging: cases, properties, Git as an oracle, workspaces, conflicts that are carried on.

mod carried;
mod cases;
mod kit;
mod oracle;
mod properties;
mod workspaces;
