//! Chunks in their stored form, and their way there and back.
#![no_main]

use amalgam_engine::object::CHUNK_BYTES_MAX;
use amalgam_engine::{Store, unpack_chunk};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(raw) = unpack_chunk(&Bytes::copy_from_slice(data)) {
        assert!((1..=CHUNK_BYTES_MAX).contains(&raw.len()), "a chunk of {} bytes", raw.len());
    }
    let session = Store::in_memory().session();
    match session.put_chunk(data) {
        Ok(_) => assert!((1..=CHUNK_BYTES_MAX).contains(&data.len())),
        Err(_) => assert!(data.is_empty() || data.len() > CHUNK_BYTES_MAX),
    }
});
