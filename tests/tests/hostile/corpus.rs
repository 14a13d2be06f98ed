//! The corpora of the fuzzer, without a fuzzer: what once went wrong, and what leads everywhere, is tried in every run.

use std::path::Path;

use amalgam_engine::object::{check, outgoing};
use amalgam_engine::reference::{Operation, RefValue};
use amalgam_engine::{Name, ObjectId, ObjectKind, Store, TreePath, unpack_chunk};
use bytes::Bytes;

fn inputs(target: &str) -> Vec<Bytes> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&directory).unwrap_or_else(|why| panic!("{}: {why}", directory.display()));
    let inputs: Vec<_> = files.map(|file| std::fs::read(file.expect("a file").path()).expect("read").into()).collect();
    assert!(!inputs.is_empty(), "{target} has inputs");
    inputs
}

#[test]
fn objects() {
    let mut accepted = 0;
    for kind in ObjectKind::ALL.into_iter().filter(|kind| *kind != ObjectKind::Chunk) {
        for bytes in inputs(kind.word()) {
            let valid = check(kind, &bytes).is_ok();
            let referred = outgoing(kind, &bytes);
            let session = Store::in_memory().session();
            match session.admit(kind, bytes.clone()) {
                Ok(id) => assert!(valid && id == ObjectId::of(kind, &bytes)),
                Err(_) => assert!(!valid || !referred.expect("valid").strong.is_empty()),
            }
            accepted += u32::from(valid);
        }
    }
    assert!(accepted > 0, "the golden objects are among them");
}

#[test]
fn chunks_records_and_names() {
    for bytes in inputs("chunk") {
        assert!(unpack_chunk(&bytes).is_ok_and(|raw| raw.len() <= 128 << 10) || unpack_chunk(&bytes).is_err());
    }
    for bytes in inputs("record") {
        if let Ok(value) = RefValue::decode(bytes.clone()) {
            assert_eq!(RefValue::decode(value.encode().into()), Ok(value));
        }
        if let Ok(operation) = Operation::decode(7, bytes) {
            assert_eq!(Operation::decode(7, operation.encode().into()), Ok(operation));
        }
    }
    for bytes in inputs("name") {
        if let Ok(path) = TreePath::new(&bytes) {
            assert_eq!(path.names().fold(TreePath::root(), |path, name: Name| path.join(&name)), path);
        }
    }
}
