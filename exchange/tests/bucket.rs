//! Objects of a bucket as a tree: by difference, with hostile keys, and with objects that change while they are read.

use std::collections::BTreeMap;
use std::io::Read;

use amalgam_engine::{EntryKind, SnapshotId, Store, Time, TreePath, WorkingTree};
use amalgam_exchange::{
    BUCKET_OBJECTS_MAX, BucketCounts, BucketImport, BucketIndex, BucketSource, Error, ImportedBucket, ListedObject,
    Progress, Result, SnapshotInfo, import_bucket,
};

/// A bucket in memory. Its listings have short pages.
#[derive(Default)]
struct Bucket {
    objects: BTreeMap<Vec<u8>, Vec<u8>>,
    listed: Vec<ListedObject>,
    /// Keys whose objects are written between their listing and their reading.
    overwritten: Vec<Vec<u8>>,
    /// The number of objects that were read.
    reads: usize,
    is_listed: bool,
}

fn etag(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("\"{sum:x}-{}\"", bytes.len())
}

impl Bucket {
    fn of(objects: &[(&str, &str)]) -> Self {
        let mut bucket = Self::default();
        objects.iter().for_each(|(key, text)| bucket.put(key.as_bytes(), text.as_bytes()));
        bucket
    }

    fn put(&mut self, key: &[u8], bytes: &[u8]) {
        self.objects.insert(key.to_vec(), bytes.to_vec());
    }

    fn current(&self, object: &ListedObject) -> Option<Vec<u8>> {
        let bytes = self.objects.get(&object.key).filter(|_| !self.overwritten.contains(&object.key))?;
        (etag(bytes) == object.etag).then(|| bytes.clone())
    }
}

impl BucketSource for Bucket {
    fn next_page(&mut self) -> Result<Option<Vec<ListedObject>>> {
        if !self.is_listed {
            self.is_listed = true;
            let listed = |(key, bytes): (&Vec<u8>, &Vec<u8>)| ListedObject {
                key: key.clone(),
                etag: etag(bytes),
                size: bytes.len() as u64,
                modified: Time::from_seconds(1_600_000_000, 0),
            };
            self.listed = self.objects.iter().map(listed).rev().collect();
        }
        if self.listed.is_empty() {
            self.is_listed = false;
            return Ok(None);
        }
        let rest = self.listed.len().saturating_sub(3);
        Ok(Some(self.listed.drain(rest..).rev().collect()))
    }

    fn read_many(&mut self, objects: &[ListedObject]) -> Result<Vec<Option<Vec<u8>>>> {
        self.reads += objects.len();
        Ok(objects.iter().map(|object| self.current(object)).collect())
    }

    fn read_one(&mut self, object: &ListedObject) -> Result<Option<Box<dyn Read + Send + '_>>> {
        self.reads += 1;
        let bytes = self.current(object);
        Ok(bytes.map(|bytes| Box::new(std::io::Cursor::new(bytes)) as Box<dyn Read + Send>))
    }
}

/// A workspace that follows a bucket.
struct Follower {
    store: Store,
    head: Option<SnapshotId>,
    index: Option<BucketIndex>,
}

impl Follower {
    fn new() -> Self {
        Self { store: Store::in_memory(), head: None, index: None }
    }

    fn try_update(&mut self, bucket: &mut Bucket, objects_max: u64) -> Result<ImportedBucket> {
        let words = SnapshotInfo { message: "import".to_owned(), ..SnapshotInfo::default() };
        let options = BucketImport { onto: self.head, known: self.index.clone(), objects_max, words };
        import_bucket(&self.store, bucket, options, &Progress::default())
    }

    /// Updates it. Returns the counts: synced, skipped, removed, left out, total.
    fn update(&mut self, bucket: &mut Bucket) -> [u64; 5] {
        let done = self.try_update(bucket, BUCKET_OBJECTS_MAX).expect("imported");
        let BucketCounts { synced, skipped, removed, left_out, total } = done.counts;
        if let Some(imported) = &done.imported {
            self.head = Some(imported.head);
            // Without a name, the pins of the import keep it in memory only as long as it lives.
            std::mem::forget(self.store.pin(imported.head));
        }
        // An index that is stored and read back is the same.
        self.index = Some(BucketIndex::decode(&done.index.encode()).expect("an index"));
        [synced, skipped, removed, left_out, total]
    }

    fn tree(&self) -> WorkingTree {
        let root = self.store.snapshot(self.head.expect("a snapshot")).expect("stored").root;
        WorkingTree::open_root(&self.store, root).expect("the tree opens")
    }

    /// The files with their texts, and directories with a slash.
    fn files(&self) -> BTreeMap<String, String> {
        let (tree, mut found, mut open) = (self.tree(), BTreeMap::new(), vec![TreePath::root()]);
        while let Some(path) = open.pop() {
            for item in tree.list(&path).expect("listed") {
                let path = path.join(&item.expect("an entry").0);
                let stat = tree.stat(&path).expect("stat").expect("it is there");
                let shown = path.as_bytes().escape_ascii().to_string();
                match stat.kind {
                    EntryKind::Directory => {
                        found.insert(format!("{shown}/"), String::new());
                        open.push(path);
                    }
                    _ => {
                        let bytes = tree.read_at(&path, 0, 100).expect("read");
                        found.insert(shown, String::from_utf8_lossy(&bytes).into_owned());
                    }
                }
            }
        }
        found
    }
}

fn names(follower: &Follower) -> Vec<String> {
    follower.files().into_keys().collect()
}

#[test]
fn only_objects_whose_etag_changed_are_read_and_vanished_ones_are_removed() {
    let mut bucket = Bucket::of(&[("a", "1"), ("d/b", "2"), ("d/e/c", "3"), ("f", "4")]);
    let mut follower = Follower::new();
    assert_eq!(follower.update(&mut bucket), [4, 0, 0, 0, 4]);
    assert_eq!(names(&follower), ["a", "d/", "d/b", "d/e/", "d/e/c", "f"]);
    let head = follower.head;
    assert_eq!(follower.update(&mut bucket), [0, 4, 0, 0, 4]);
    assert_eq!((bucket.reads, follower.head), (4, head), "nothing was read, and there is no new snapshot");
    bucket.put(b"d/b", b"two");
    bucket.put(b"new", b"5");
    bucket.objects.remove(&b"d/e/c"[..]);
    assert_eq!(follower.update(&mut bucket), [2, 2, 1, 0, 4]);
    assert_eq!(names(&follower), ["a", "d/", "d/b", "f", "new"], "a directory without objects goes");
    assert_eq!((follower.files()["d/b"].as_str(), bucket.reads), ("two", 6));
    let message = follower.store.snapshot(follower.head.expect("one")).expect("stored").message.clone();
    assert_eq!(message, "import: 2 synced, 2 skipped, 1 removed, 4 in total");
    bucket.objects.clear();
    assert_eq!(follower.update(&mut bucket), [0, 0, 4, 0, 0]);
    assert_eq!(names(&follower), [""; 0]);
}

#[test]
fn a_lost_index_and_one_of_another_tree_cost_reads_and_nothing_else() {
    let mut bucket = Bucket::of(&[("a", "1"), ("b", "2")]);
    let mut follower = Follower::new();
    follower.update(&mut bucket);
    let (first, stale) = (follower.head, follower.index.clone());
    follower.index = None;
    bucket.objects.remove(&b"b"[..]);
    assert_eq!(follower.update(&mut bucket), [1, 0, 1, 0, 1], "what vanished is found without an index");
    assert_eq!(names(&follower), ["a"]);
    // The workspace went back to its first snapshot, and the index is about the second.
    follower.head = first;
    assert_eq!(follower.update(&mut bucket), [1, 0, 1, 0, 1]);
    assert_eq!(names(&follower), ["a"]);
    follower.index = stale;
    assert_eq!(follower.update(&mut bucket), [1, 0, 0, 0, 1]);
}

#[test]
fn keys_that_are_no_paths_are_left_out_and_told() {
    let mut bucket = Bucket::of(&[("fine", "1")]);
    let hostile: [&[u8]; 9] = [b"../up", b"a/../../b", b"/etc/passwd", b"a//b", b"./x", b"x/.", b"nul\0", b"//", b".."];
    hostile.iter().for_each(|key| bucket.put(key, b"evil"));
    bucket.put(b"odd\xff\xfe", b"bytes");
    bucket.put(&[b'n'; 300], b"a name that no file system has");
    let mut follower = Follower::new();
    let done = follower.try_update(&mut bucket, BUCKET_OBJECTS_MAX).expect("imported");
    assert_eq!(done.report.notices.len(), 1, "{:?}", done.report.notices);
    assert!(done.report.notices[0].count >= 9 && !done.report.notices[0].examples.is_empty());
    follower.update(&mut bucket);
    let files = follower.files();
    assert_eq!(files["fine"], "1");
    assert_eq!(files["odd\\xff\\xfe"], "bytes", "a key need not be UTF-8");
    assert!(
        files.keys().all(|name| !name.contains("passwd") && !name.contains("up") && !name.contains("..")),
        "{files:?}"
    );
}

#[test]
fn an_object_that_others_lie_below_is_left_out_until_they_are_gone() {
    let mut bucket = Bucket::of(&[("a", "file"), ("a-", "between")]);
    let mut follower = Follower::new();
    assert_eq!(follower.update(&mut bucket), [2, 0, 0, 0, 2]);
    bucket.put(b"a/b", b"below");
    assert_eq!(follower.update(&mut bucket), [1, 1, 1, 1, 3]);
    assert_eq!(names(&follower), ["a-", "a/", "a/b"]);
    assert_eq!(follower.update(&mut bucket), [0, 2, 0, 1, 3], "it stays so");
    assert_eq!(names(&follower), ["a-", "a/", "a/b"]);
    bucket.objects.remove(&b"a/b"[..]);
    follower.update(&mut bucket);
    assert_eq!(follower.files(), BTreeMap::from([("a".into(), "file".into()), ("a-".into(), "between".into())]));
    // A directory that a program marked with an object of its own.
    bucket.put(b"empty/", b"");
    follower.update(&mut bucket);
    assert_eq!(names(&follower), ["a", "a-", "empty/"]);
}

#[test]
fn an_object_that_changes_while_it_is_read_stays_as_it_was_until_the_next_time() {
    let large = "x".repeat(3 << 20);
    let mut bucket = Bucket::of(&[("a", "1"), ("b", "2"), ("large", &large)]);
    let mut follower = Follower::new();
    bucket.overwritten = vec![b"a".to_vec(), b"large".to_vec()];
    assert_eq!(follower.update(&mut bucket), [1, 0, 0, 2, 3]);
    assert_eq!(names(&follower), ["b"]);
    bucket.overwritten.clear();
    assert_eq!(follower.update(&mut bucket), [2, 1, 0, 0, 3]);
    bucket.put(b"a", b"new");
    bucket.overwritten = vec![b"a".to_vec()];
    assert_eq!(follower.update(&mut bucket), [0, 2, 0, 1, 3]);
    assert_eq!(follower.files()["a"], "1", "the version that was read whole stays");
    // It vanishes before it could be read: it must not stay for ever.
    bucket.overwritten.clear();
    bucket.objects.remove(&b"a"[..]);
    assert_eq!(follower.update(&mut bucket), [0, 2, 1, 0, 2]);
    assert_eq!(names(&follower), ["b", "large"]);
}

#[test]
fn a_listing_beyond_the_limit_is_refused_and_a_long_one_is_read() {
    let mut bucket = Bucket::default();
    for number in 0..5_000 {
        bucket.put(format!("d{}/f{number}", number % 70).as_bytes(), format!("{number}").as_bytes());
    }
    let mut follower = Follower::new();
    assert!(matches!(follower.try_update(&mut bucket, 4_999), Err(Error::TooLarge { max: 4_999, .. })));
    bucket.is_listed = false;
    assert_eq!(follower.update(&mut bucket), [5_000, 0, 0, 0, 5_000]);
    bucket.put(b"d1/f71", b"other");
    assert_eq!(follower.update(&mut bucket), [1, 4_999, 0, 0, 5_000]);
    assert_eq!(follower.files().len(), 5_070);
}
