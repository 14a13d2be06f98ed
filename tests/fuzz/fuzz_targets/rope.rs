//! Nodes of ropes.
#![no_main]

use amalgam_engine::ObjectKind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| amalgam_fuzz::offer(ObjectKind::Rope, data));
