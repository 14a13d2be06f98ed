//! Snapshots sent from one store to another: the same ids, nothing visible before the end, nothing believed, and resumed
//! where it broke off.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

mod broken;
mod kit;
mod same;
