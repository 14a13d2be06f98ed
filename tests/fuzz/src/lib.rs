//! The properties that every decoder has, whatever the bytes.

use amalgam_engine::object::{check, outgoing};
use amalgam_engine::{ObjectId, ObjectKind, Store};
use bytes::Bytes;

/// Offers bytes as an object of a kind: to the checks, to the reader of references, and to a store. What is accepted has one
/// encoding, so that any other bytes of the same value are refused.
pub fn offer(kind: ObjectKind, data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let accepted = check(kind, &bytes).is_ok();
    let referred = outgoing(kind, &bytes);
    if accepted {
        assert!(referred.is_ok(), "what is valid says what it refers to");
    }
    let session = Store::in_memory().session();
    match session.admit(kind, bytes) {
        Ok(id) => {
            assert!(accepted, "nothing invalid is admitted");
            assert_eq!(id, ObjectId::of(kind, data));
        }
        Err(_) if accepted => assert!(!stands_alone(kind, data), "a valid object without children is admitted"),
        Err(_) => {}
    }
}

fn stands_alone(kind: ObjectKind, data: &[u8]) -> bool {
    let referred = outgoing(kind, &Bytes::copy_from_slice(data)).expect("it is valid");
    referred.strong.is_empty()
}
