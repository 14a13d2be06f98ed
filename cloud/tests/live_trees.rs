//! Live trees that two nodes take from each other.

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::{FilePart, LiveTrees as _};
use amalgam_test_support::postgres;

fn nodes(project: &str) -> Option<(Cloud, Cloud)> {
    let bucket = open_bucket("memory:").expect("memory");
    let options = CloudOptions::new(postgres::shared()?, bucket, project);
    let open = || Cloud::open(&options).expect("open");
    Some((open(), open()))
}

fn part(name: &str, start: u64, bytes: &[u8]) -> FilePart {
    FilePart { name: name.to_owned(), start, bytes: bytes.to_vec() }
}

#[test]
fn a_tree_that_another_node_took_is_not_written() {
    let Some((one, two)) = nodes("fenced trees") else { return };
    let taken = one.take("main").expect("take");
    assert!(taken.files.is_empty());
    let names = ["base".to_owned(), "0.journal".to_owned()];
    let parts = [part("base", 0, b"base"), part("0.journal", 0, b"one")];
    assert!(one.write(taken.number, taken.token, &names, &parts).expect("write"));
    assert!(one.write(taken.number, taken.token, &names, &[part("0.journal", 3, b" two")]).expect("write"));
    // The answer of a write may be lost, so that it is sent twice.
    assert!(one.write(taken.number, taken.token, &names, &[part("0.journal", 3, b" two")]).expect("write"));

    let stolen = two.take("main").expect("take");
    assert_eq!(stolen.number, taken.number);
    assert!(stolen.token > taken.token);
    let expected = [("0.journal".to_owned(), b"one two".to_vec()), ("base".to_owned(), b"base".to_vec())];
    assert_eq!(stolen.files, expected);
    assert!(!one.is_held(taken.number, taken.token).expect("asked"));
    assert!(two.is_held(stolen.number, stolen.token).expect("asked"));
    assert!(!one.write(taken.number, taken.token, &names, &[part("0.journal", 7, b" late")]).expect("write"));
    one.release(taken.number, taken.token).expect("a tree of another node is left alone");
    assert_eq!(one.find("main").expect("find"), Some(taken.number));

    let names = ["base".to_owned(), "1.journal".to_owned()];
    assert!(two.write(stolen.number, stolen.token, &names, &[part("1.journal", 0, b"new")]).expect("write"));
    drop(two);
    let again = one.take("main").expect("a node that left uses nothing");
    let expected = [("1.journal".to_owned(), b"new".to_vec()), ("base".to_owned(), b"base".to_vec())];
    assert_eq!(again.files, expected);
    one.release(again.number, again.token).expect("release");
    assert_eq!(one.find("main").expect("find"), None);
    assert_eq!(one.number("main").expect("number"), taken.number, "a tree keeps its number");
    one.rename("main", "other").expect("rename");
    assert_eq!(one.number("other").expect("number"), taken.number);
    one.forget("other").expect("forget");
    assert_ne!(one.number("other").expect("number"), taken.number);
}
