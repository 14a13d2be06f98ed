//! The cache on a node's disk: it saves requests, and its damage does no harm.

use std::ops::ControlFlow;

use amalgam_engine::backend::{DiskCache, Family, Inspect as _, RowEdit, rows};
use amalgam_engine::{VerifyOptions, repair, verify};
use tempfile::TempDir;

use super::*;

fn cached(settings: &CloudOptions) -> (CloudOptions, Arc<DiskCache>, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = Arc::new(DiskCache::open(directory.path(), 64 << 20).expect("open"));
    let settings = CloudOptions { disk_cache: Some(Arc::clone(&cache)), ..settings.clone() };
    (settings, cache, directory)
}

fn some_objects(count: usize) -> Vec<StoredObject> {
    (0..count).map(|number| object(&format!("object {number}"), 3_000)).collect()
}

fn read_all(cloud: &Cloud, objects: &[StoredObject]) {
    let ids: Vec<_> = objects.iter().map(|object| object.id).collect();
    let found = cloud.get_many(&ids).expect("get");
    assert!(found.iter().zip(objects).all(|(found, object)| found.as_ref() == Some(&object.bytes)));
}

#[test]
fn objects_in_the_cache_on_disk_need_no_request() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "warm caches");
    let objects = some_objects(200);
    open(&settings).put_ahead(objects.clone()).expect("put");

    let (warm, _cache, _directory) = cached(&settings);
    let reader = open(&warm);
    read_all(&reader, &objects);
    let first = reader.calls();
    assert!(first.cache.misses > 0 && first.cache.disk_hits == 0 && first.cache.read_bytes >= 600_000, "{first:?}");
    drop(reader);
    // The node starts anew: even the footers of the packs are in the cache.
    let before = bucket.gets();
    let reader = open(&warm);
    read_all(&reader, &objects);
    read_all(&reader, &objects);
    let counts = reader.calls().cache;
    assert_eq!((counts.disk_hits, counts.memory_hits, counts.misses), (200, 200, 0), "{counts:?}");
    assert_eq!(counts.hit_bytes, 2 * 200 * 3_000);
    assert_eq!(bucket.gets(), before);
}

#[test]
fn objects_that_a_node_wrote_are_in_its_cache_and_stay_there_when_they_move() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let (settings, _cache, _directory) = cached(&options(url, &bucket, "own objects"));
    let cloud = open(&settings);
    let objects = some_objects(20);
    cloud.put_ahead(objects.clone()).expect("an inline pack");
    cloud.empty_log().expect("it moves to the bucket");
    assert_eq!(bucket.puts(), 1);
    let before = (bucket.gets(), cloud.calls());
    read_all(&cloud, &objects);
    assert_eq!(cloud.calls().cache.disk_hits - before.1.cache.disk_hits, 20);
    assert_eq!((bucket.gets(), cloud.calls().statements), (before.0, before.1.statements));
}

#[test]
fn a_damaged_entry_of_the_cache_is_found_and_read_elsewhere() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let (settings, cache, _directory) = cached(&options(url, &bucket, "damaged caches"));
    let cloud = open(&settings);
    let large = object("large", 300 << 10);
    step(&cloud, "a", None, 1, vec![large.clone()]).expect("committed");
    let mut flipped = large.bytes.to_vec();
    flipped[1_000] ^= 1;
    cache.put_many([(large.id, &flipped[..])]);
    assert_eq!(cloud.get(large.id).expect("get").expect("there"), large.bytes);
    let counts = cloud.calls().cache;
    assert_eq!((counts.damaged, counts.misses), (1, 1), "{counts:?}");
    cloud.release_memory().expect("the memory is empty");
    assert_eq!(cloud.get(large.id).expect("get").expect("there"), large.bytes);
    let counts = cloud.calls().cache;
    assert_eq!((counts.damaged, counts.disk_hits), (1, 1), "the right bytes are in the cache again: {counts:?}");
}

#[test]
fn a_purge_on_another_node_empties_the_cache() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "purged caches");
    let (cached, cache, _directory) = cached(&settings);
    let reader = open(&cached);
    let large = object("secret", 300 << 10);
    step(&reader, "a", None, 1, vec![large.clone()]).expect("committed");
    assert!(cache.get_many(&[large.id])[0].is_some());
    let other = open(&settings);
    let key = Bytes::copy_from_slice(&rows::tombstone_key(object("purged", 100).id));
    let edit = RowEdit { family: Family::Tombstones, key, value: Some(Bytes::from_static(b"a tombstone")) };
    other.edit(vec![edit]).expect("a purge");
    assert_eq!(reader.read_ref(&name("a")).expect("read"), Some(RefValue::noting("1")));
    assert!(cache.get_many(&[large.id])[0].is_none(), "the node has seen the tombstone");
    assert_eq!(reader.get(large.id).expect("get").expect("there"), large.bytes);
}

/// Packs that are damaged, missing or swapped come back from the cache of a node.
#[test]
fn a_repair_restores_packs_from_the_cache() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "restored");
    let (cached, _cache, _directory) = cached(&settings);
    let store = |settings: &CloudOptions| Store::new(Arc::new(open(settings)), &StoreOptions::default());
    let writer = store(&cached);
    let main = name("head/main");
    let mut tree = amalgam_engine::WorkingTree::new(&writer);
    let content = |number: u64| amalgam_engine::SplitMix64::new(number).bytes(400 << 10);
    for number in 0..6 {
        tree.write(&*format!("file {number}"), &content(number)).expect("write");
        tree.commit(amalgam_engine::Commit::new(&main, "one")).expect("commit");
    }
    let head = tree.base().expect("a snapshot");
    drop((tree, writer));
    let packs = bucket.names();
    assert!(packs.len() >= 6, "{packs:?}");
    bucket.flip(&packs[0], 10);
    bucket.remove(&packs[1]);
    let size = bucket.size(&packs[2]);
    bucket.flip(&packs[2], size - 60);
    bucket.swap([&packs[3], &packs[4]]);

    let without = store(&settings);
    let check = |store: &Store| verify(store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(()));
    assert!(!check(&without).is_ok_and(|report| report.is_clean()), "five packs are damaged");
    drop(without);
    let with = store(&cached);
    let done = repair(&with, &VerifyOptions::reading_data()).expect("repaired");
    assert!(done.left.is_clean(), "{:?}", done.left);
    assert!(!done.done.is_empty());
    drop(with);
    let without = store(&settings);
    assert!(check(&without).expect("verified").is_clean());
    let tree = amalgam_engine::WorkingTree::open(&without, head).expect("open");
    for number in 0..6 {
        assert!(tree.read(&*format!("file {number}")).expect("read") == content(number), "file {number}");
    }
}

/// The disk of a node is a cache: an acknowledged commit is in PostgreSQL and in the bucket.
#[test]
fn a_node_whose_disk_is_wiped_goes_on_and_nothing_acknowledged_is_lost() {
    const COMMITS: u64 = 40;
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let plain = options(url, &bucket, "wiped disks");
    let directory = tempfile::tempdir().expect("a directory");
    // Small enough that files are written and evicted.
    let cache = Arc::new(DiskCache::open(directory.path(), 8 << 20).expect("open"));
    let cloud = open(&CloudOptions { disk_cache: Some(cache), ..plain.clone() });
    // Every other one goes into the bucket.
    let objects: Vec<_> = (0..COMMITS)
        .map(|number| object(&format!("object {number}"), 1_000 + 600_000 * (number as usize % 2)))
        .collect();
    for (number, object) in (0..).zip(&objects) {
        if number == COMMITS / 2 {
            // Again where a file was made meanwhile.
            while directory.path().exists() {
                std::fs::remove_dir_all(directory.path()).ok();
            }
        }
        step(&cloud, "a", u64::checked_sub(number, 1), number, vec![object.clone()]).expect("committed");
    }
    cloud.sync().expect("durable");
    cloud.release_memory().expect("only the disk is left");
    read_all(&cloud, &objects);
    // It dies without a word.
    std::mem::forget(cloud);
    let other = open(&plain);
    assert_eq!(other.read_ref(&name("a")).expect("read"), Some(RefValue::noting((COMMITS - 1).to_string())));
    read_all(&other, &objects);
}
