//! The queue: merges that wait, folded one after another.

mod folds;
mod kill;
mod permitted;
mod reviews;
mod runs;
