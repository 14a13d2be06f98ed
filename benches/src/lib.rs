//! What the benchmarks share: figures with their bars, samples, made-up trees, the machine, curves.
//!
//! A benchmark is a binary `bench-NAME` of this package. It measures everything in one run, so that its ratios compare like
//! with like, prints a table and writes `target/bench/NAME.json`. It never fails for being slow.

pub mod bench;
pub mod linux;
pub mod machine;
pub mod options;
pub mod random;
pub mod served;
pub mod svg;
pub mod trees;

mod figure;
mod samples;

pub use figure::{Bar, Figure, Report};
pub use samples::{Samples, median, microseconds, sample};

/// Whatever went wrong, for a person to read.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
