//! The store on a real S3 store, which `make test-cloud` starts. Without one the tests say that they are skipped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::Backend as _;
use amalgam_engine::{Commit, RefName, SnapshotId, SplitMix64, Store, StoreOptions, WorkingTree};
use amalgam_test_support::{postgres, skip};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;

const BUCKET_VARIABLE: &str = "AMALGAM_TEST_BUCKET";

fn options(project: &str) -> Option<CloudOptions> {
    let Ok(bucket) = std::env::var(BUCKET_VARIABLE) else {
        skip("s3", "AMALGAM_TEST_BUCKET names no bucket (make test-cloud starts one)");
        return None;
    };
    let bucket = open_bucket(&bucket).expect("a bucket");
    Some(CloudOptions::new(postgres::shared()?, bucket, project))
}

fn store(options: &CloudOptions) -> Store {
    Store::new(Arc::new(Cloud::open(options).expect("open")), &StoreOptions::default())
}

/// Bytes that cannot be compressed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    SplitMix64::new(seed).bytes(bytes)
}

#[test]
fn a_tree_that_one_node_commits_is_read_by_another() {
    let Some(options) = options("trees") else { return };
    let main = RefName::new("head/main").expect("a name");
    let first = store(&options);
    let mut tree = WorkingTree::new(&first);
    for number in 0..40 {
        tree.write(&*format!("file {number}"), &noise(number, 1 << 20)).expect("write");
    }
    tree.commit(Commit::new(&main, "large")).expect("commit");
    tree.write("small", b"small").expect("write");
    tree.commit(Commit::new(&main, "small")).expect("commit");
    drop((tree, first));

    let second = store(&options);
    let head = second.read_ref(&main).expect("read").and_then(|value| value.target).expect("a head");
    let tree = WorkingTree::open(&second, SnapshotId::from_bytes(head.hash)).expect("open");
    assert_eq!(tree.read("small").expect("read"), b"small");
    for number in 0..40 {
        assert!(tree.read(&*format!("file {number}")).expect("read") == noise(number, 1 << 20), "file {number}");
    }
    second.empty_log().expect("inline packs move to the bucket");
    let third = Cloud::open(&options).expect("open");
    assert!(third.get(head).expect("get").is_some());
}

/// The client keeps its connections. One that a runtime made which is not driven any more must not be used: it would not answer.
#[test]
fn a_bucket_that_another_runtime_has_used_answers_at_once() {
    let Some(options) = options("runtimes") else { return };
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let head = other.block_on(options.bucket.head(&Path::from("nothing")));
    assert!(matches!(head, Err(object_store::Error::NotFound { .. })), "{head:?}");
    let begun = Instant::now();
    let store = store(&options);
    let mut tree = WorkingTree::new(&store);
    tree.write("large", &noise(1, 1 << 20)).expect("write");
    tree.commit(Commit::new(&RefName::new("head/main").expect("a name"), "large")).expect("commit");
    // The time-out of a request is 30 s.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(other);
}
