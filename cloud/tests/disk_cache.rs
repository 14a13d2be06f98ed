//! The cache of objects on a node's disk: bounded, and emptied once for each purge.

use std::time::{Duration, Instant};

use amalgam_engine::backend::DiskCache;
use amalgam_engine::{ObjectId, ObjectKind, SplitMix64};
use bytes::Bytes;

fn object(number: u64) -> (ObjectId, Vec<u8>) {
    let bytes = SplitMix64::new(number).bytes(1_000);
    (ObjectId::of(ObjectKind::Chunk, &bytes), bytes)
}

#[test]
fn the_oldest_entries_go_when_the_cache_is_full() {
    const BYTES_MAX: u64 = 2 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let cache = DiskCache::open(directory.path(), BYTES_MAX).expect("open");
    for number in 0..8_000 {
        let (id, bytes) = object(number);
        cache.put_many([(id, &bytes[..])]);
    }
    cache.flush().expect("flush");
    // RocksDB drops files in the background.
    let begun = Instant::now();
    while cache.bytes() > BYTES_MAX && begun.elapsed().as_secs() < 20 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(cache.bytes() <= BYTES_MAX, "{} bytes", cache.bytes());
    let (oldest, newest) = (object(0), object(7_999));
    assert_eq!(cache.get_many(&[oldest.0, newest.0]), [None, Some(Bytes::from(newest.1))]);
}

#[test]
fn entries_survive_a_restart_and_a_purge_removes_them_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let (id, bytes) = object(1);
    let open = || DiskCache::open(directory.path(), 1 << 20).expect("open");
    let cache = open();
    cache.put_many([(id, &bytes[..])]);
    cache.flush().expect("flush");
    drop(cache);
    let cache = open();
    assert_eq!(cache.get_many(&[id]), [Some(Bytes::from(bytes.clone()))]);
    DiskCache::open(directory.path(), 1 << 20).expect_err("it is open");
    cache.follow_purge("store", 5).expect("emptied");
    assert_eq!(cache.get_many(&[id]), [None]);
    cache.put_many([(id, &bytes[..])]);
    cache.flush().expect("flush");
    drop(cache);
    let cache = open();
    cache.follow_purge("store", 5).expect("it was followed");
    assert_eq!(cache.get_many(&[id]), [Some(Bytes::from(bytes))]);
    cache.follow_purge("other store", 1).expect("emptied");
    assert_eq!(cache.get_many(&[id]), [None]);
}
