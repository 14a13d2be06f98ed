//! What references hold, and operation records.
#![no_main]

use amalgam_engine::reference::{Operation, RefValue};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // These are the store's own records: read leniently, so the property is that reading and writing settle at once.
    if let Ok(value) = RefValue::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(RefValue::decode(value.encode().into()), Ok(value));
    }
    if let Ok(operation) = Operation::decode(7, Bytes::copy_from_slice(data)) {
        assert_eq!(Operation::decode(7, operation.encode().into()), Ok(operation));
    }
});
