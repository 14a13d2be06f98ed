//! The shortest way through all floors.

use amalgam_engine::reference::RefName;
use amalgam_engine::work::RenameMode;
use amalgam_engine::{Commit, DiffOptions, Store, WorkingTree, diff};

fn names(store: &Store, a: amalgam_engine::SnapshotId, b: amalgam_engine::SnapshotId) -> Vec<String> {
    diff(store, a, b, DiffOptions::default())
        .expect("diff")
        .map(|change| {
            let change = change.expect("change");
            format!("{} {:?}", change.path, change.what)
        })
        .collect()
}

fn tour(store: &Store) {
    let head = RefName::new("head/main").expect("name");
    let mut tree = WorkingTree::new(store);
    tree.create_directories("src/deep").expect("mkdir");
    for i in 0..500 {
        tree.write(format!("src/deep/file{i}"), format!("content {i}").as_bytes()).expect("write");
    }
    tree.write("big", &(0..300_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).expect("write");
    tree.link("big", "src/big2").expect("link");
    let first = tree.commit(Commit::new(&head, "first")).expect("commit").snapshot;
    assert!(tree.is_clean());
    let mut fork = tree.fork();
    fork.write_at("src/big2", 600_000, b"x").expect("write");
    fork.remove("src/deep/file7").expect("remove");
    fork.rename("src/deep", "src/shallow", RenameMode::Replace).expect("rename");
    let second = fork.commit(Commit::new(&head, "second").buffered()).expect("commit").snapshot;
    assert_eq!(fork.read_at("big", 599_999, 3).expect("read")[1], b'x');
    let changed = names(store, first, second);
    assert!(changed.contains(&"big Modified".to_owned()) && changed.contains(&"src/big2 Modified".to_owned()));
    assert_eq!(changed.len(), 2 + 501 + 500);
    let mut again = WorkingTree::open(store, first).expect("open");
    assert_eq!(again.read("src/deep/file7").expect("read"), b"content 7");
    assert_eq!(again.stat("big").expect("stat").expect("there").links, 2);
    again.restore(second).expect("restore");
    assert!(!again.exists("src/shallow/file7").expect("exists"));
    assert!(again.exists("src/shallow/file8").expect("exists"));
    assert!(tree.commit(Commit::new(&head, "stale")).is_err());
}

#[test]
fn in_memory() {
    tour(&Store::in_memory());
}

#[test]
fn on_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    tour(&Store::open(directory.path().join("store")).expect("open"));
    let store = Store::open(directory.path().join("store")).expect("reopen");
    assert_eq!(store.list_operations(0, 10).expect("operations").len(), 2);
}
