//! The test kit: models and harnesses that more than one suite uses. Nothing of the product depends on it.

pub mod git;
pub mod harness;
pub mod linear;
pub mod model;
