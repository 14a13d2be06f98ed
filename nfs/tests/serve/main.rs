//! The server as clients see it, on a loopback port.
#![expect(clippy::print_stderr, reason = "figures are printed")]

mod basics;
mod changes;
mod exports;
mod handles;
mod hostile;
mod kit;
mod listing;
mod load;
mod writes;
