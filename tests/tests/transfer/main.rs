//! Snapshots sent from one store to another: the same ids, nothing visible before the end, nothing believed, and resumed
//! where it broke off.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

mod backups;
mod broken;
mod killed;
mod kit;
mod same;
