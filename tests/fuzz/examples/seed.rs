//! Writes the seeds of the corpora from the golden bytes, and streams of a small store: `cargo run --example seed`.

use std::fs;
use std::path::Path;

use amalgam_engine::{Commit, RefName, Store, WorkingTree};
use amalgam_transfer::{Progress, Selection, SendOptions, send};

const GOLDEN: &str = include_str!("../../../engine/tests/golden/v1.txt");

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let directory = corpus.join(target);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(name), bytes)
    };
    for line in GOLDEN.lines() {
        let Some((name, value)) = line.split_once(" = ") else { continue };
        let Some(bytes) = unhex(value) else { continue };
        let file = name.replace(['/', ' ', ','], "-");
        if let Some(object) = name.strip_prefix("object/").and_then(|name| name.strip_suffix(" bytes")) {
            put(object.split('/').next().unwrap_or(object), &file, &bytes)?;
        } else if name.starts_with("record/") {
            put("record", &file, &bytes)?;
        }
    }
    put(
        "xattrs",
        "two",
        &[
            &b"\x08\x01\x0a\x85\x04\x0a\x01a\x12\xff\x03"[..],
            &[1; 511],
            b"\x0a\x85\x04\x0a\x01b\x12\xff\x03",
            &[2; 511],
        ]
        .concat(),
    )?;
    put("chunk", "raw", b"\0hello")?;
    let packed = "01e803000028b52ffd00006d0000186161620200f04015ef2ac002";
    put("chunk", "zstd", &unhex(packed).unwrap_or_default())?;
    for (name, bytes) in [("path", &b"a/b/c"[..]), ("dots", b".."), ("order", b"a-b/c"), ("ref", b"head/main")] {
        put("name", name, bytes)?;
    }
    for (name, seed) in [("one", 1_u32), ("two", 2), ("three", 3)] {
        let bytes: Vec<u8> =
            (0..400_u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_mul(seed) >> 24) as u8).collect();
        put("edits", name, &bytes)?;
    }
    // A procedure and its arguments behind the handle of the root: LOOKUP of a name, CREATE, READ, READDIRPLUS.
    for (name, procedure, arguments) in [
        ("lookup", 3, &b"\0\0\0\x01f\0\0\0"[..]),
        ("create", 8, b"\0\0\0\x01g\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("read", 6, b"\0\0\0\0\0\0\0\0\0\0\x10\0"),
        ("readdirplus", 17, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\x10\0"),
    ] {
        put("nfs", name, &[&[procedure][..], arguments].concat())?;
    }
    for (name, bytes) in streams() {
        put("stream", name, &bytes)?;
    }
    Ok(())
}

/// A stream with everything in it, and one with the difference to it.
fn streams() -> [(&'static str, Vec<u8>); 2] {
    let store = Store::in_memory();
    let main = RefName::new("workspace/main").expect("a name");
    let mut tree = WorkingTree::new(&store);
    tree.create_directories("a/b").expect("mkdir");
    tree.write("a/b/c", b"text").expect("write");
    tree.write("large", &[7; 70_000]).expect("write");
    tree.set_state("key", "1").expect("state");
    let first = tree.commit(Commit::new(&main, "one")).expect("commit").snapshot;
    let sent = |had: Vec<_>| {
        let mut stream = Vec::new();
        let selection = Selection::everything(&store).expect("everything");
        let options = SendOptions { had, verify: false };
        send(&store, &selection, &options, &mut stream, &Progress::default()).expect("memory takes it");
        stream
    };
    let whole = sent(Vec::new());
    tree.write("a/b/c", b"more").expect("write");
    tree.commit(Commit::new(&main, "two")).expect("commit");
    [("whole", whole), ("difference", sent(vec![first]))]
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    pairs.collect()
}
