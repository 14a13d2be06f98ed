//! A store whose cache holds nothing: whatever was put a moment ago has to be found all the same.

use std::sync::Arc;

use amalgam_engine::backend::Memory;
use amalgam_engine::{Commit, RefName, Store, StoreOptions, WorkingTree};

#[test]
fn a_directory_that_shrinks_to_one_node() {
    let options = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
    let store = Store::new(Arc::new(Memory::default()), &options);
    let head = RefName::new("head").expect("a name");
    let mut tree = WorkingTree::new(&store);
    for number in 0..2_000 {
        tree.write(format!("{number:04}"), b"").expect("written");
    }
    tree.commit(Commit::new(&head, "many")).expect("committed");
    for number in 3..2_000 {
        tree.remove(format!("{number:04}")).expect("removed");
    }
    let done = tree.commit(Commit::new(&head, "few")).expect("committed");
    let root = store.snapshot(done.snapshot).expect("stored").root;

    let mut anew = WorkingTree::new(&Store::in_memory());
    for number in 0..3 {
        anew.write(format!("{number:04}"), b"").expect("written");
    }
    let done = anew.commit(Commit::new(&head, "few")).expect("committed");
    assert_eq!(anew.store().snapshot(done.snapshot).expect("stored").root, root);
}
