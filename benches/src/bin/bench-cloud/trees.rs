//! The Linux tree captured into the cloud and checked out again, beside a local store and the S3 store itself.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, linux, machine};
use amalgam_cloud::CloudOptions;
use amalgam_engine::backend::DiskCache;
use amalgam_engine::{Commit, RootId, Store, Time};
use amalgam_materializer::{
    CaptureOptions, CheckoutOptions, HostDir, Index, KnownContents, Progress, Rules, Scope, Times, capture, checkout,
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::ObjectStoreExt as _;
use object_store::path::Path as ObjectPath;

use crate::add;
use crate::place::{Node, Place};

const CAPTURE: &str = "first capture of the Linux tree / local";
const REQUESTS: &str = "S3 requests of the first capture";
const COLD: &str = "cold checkout, rate / the S3 store's own";
const WARM: &str = "checkout from the node's cache / local";
pub(crate) const FIGURES: &[&str] = &[CAPTURE, REQUESTS, COLD, WARM];

const COLD_LARGE: &str = "cold checkout of large files, rate / the S3 store's own";
pub(crate) const LARGE_FIGURES: &[&str] = &[COLD_LARGE];

const CACHE_BYTES: u64 = 4 << 30;
/// Packs that are read at a time, as a node does.
const READS_MAX: usize = 10;
const MB: f64 = 1e6;

const LARGE_FILES: usize = 96;
const LARGE_FILES_QUICK: usize = 16;
const LARGE_FILE_BYTES: usize = 8 << 20;
const LARGE_SEED: u64 = 7;

#[allow(clippy::disallowed_methods, reason = "a capture needs the time")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

/// Captures a directory and commits it. Returns its root and the seconds that it took.
fn capture_tree(store: &Store, directory: &Path) -> Result<(RootId, f64)> {
    let begun = Instant::now();
    let host = HostDir::open(directory)?;
    let (rules, known, progress) = (Rules::new(&[])?, KnownContents::default(), Progress::default());
    let mut index = Index::new(host.identity());
    let job = CaptureOptions { rules: &rules, scope: Scope::All, known: &known, now: now(), progress: &progress };
    let mut captured = capture(store, &host, &mut index, &job)?;
    captured.tree.commit(Commit::new(&reference("head/linux"), "the Linux tree"))?;
    Ok((captured.root, begun.elapsed().as_secs_f64()))
}

/// Checks a tree out into a new directory. Returns the seconds that it took.
fn check_out(store: &Store, root: RootId, directory: &Path) -> Result<f64> {
    std::fs::create_dir(directory)?;
    let begun = Instant::now();
    let host = HostDir::open(directory)?;
    let progress = Progress::default();
    let options = CheckoutOptions {
        keep_git: false,
        rules: None,
        leave_git_file: false,
        withholds: false,
        paths: None,
        times: Times::Exact,
        source: None,
        pool: None,
        progress: &progress,
    };
    checkout(store, &host, &Index::new(host.identity()), root, &options)?;
    let took = begun.elapsed().as_secs_f64();
    std::fs::remove_dir_all(directory)?;
    machine::settle();
    Ok(took)
}

/// Reads all objects of the bucket that a project has written since, and returns bytes a second.
fn read_bucket(place: &Place, since: &[ObjectPath]) -> Result<(f64, u64)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let all: Vec<ObjectPath> = runtime.block_on(names(place))?;
    let new: Vec<_> = all.into_iter().filter(|name| !since.contains(name)).collect();
    let begun = Instant::now();
    let bytes = runtime.block_on(async {
        let read = |name: ObjectPath| async move {
            Ok::<u64, object_store::Error>(place.bucket.get(&name).await?.bytes().await?.len() as u64)
        };
        let sizes: Vec<u64> =
            futures_util::stream::iter(new).map(read).buffer_unordered(READS_MAX).try_collect().await?;
        Ok::<u64, object_store::Error>(sizes.iter().sum())
    })?;
    Ok((bytes as f64 / begun.elapsed().as_secs_f64(), bytes))
}

/// The objects of the bucket at this moment.
fn names_now(place: &Place) -> Result<Vec<ObjectPath>> {
    // Ends here, and its connections with it: the client keeps them, and a request over a connection that nothing drives waits for the
    // time-out of 30 s.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(names(place))
}

async fn names(place: &Place) -> Result<Vec<ObjectPath>> {
    Ok(place.bucket.list(None).map_ok(|found| found.location).try_collect().await?)
}

/// Measures a checkout by a node without a cache beside plain reads of the same objects.
fn add_cold(
    bench: &mut Bench,
    place: &Place,
    name: &str,
    before: &[ObjectPath],
    root: RootId,
    directory: &Path,
) -> Result<()> {
    let (own_rate, stored_bytes) = read_bucket(place, before)?;
    let cold = Node::open(&place.options())?;
    let took = check_out(&cold.store, root, directory)?;
    drop(cold);
    let rate = stored_bytes as f64 / took;
    let how = format!(
        "{:.0} MB of packs in {took:.2} s by a node without a cache, {:.0} MB/s; read with {READS_MAX} requests at a time and thrown \
         away: {:.0} MB/s",
        stored_bytes as f64 / MB,
        rate / MB,
        own_rate / MB
    );
    add(bench, place, name, (rate / own_rate, "x"), Bar::AtLeast(0.5), how);
    Ok(())
}

/// Files whose bytes, and not whose number, decide how long a checkout takes.
pub(crate) fn run_large(bench: &mut Bench, place: &Place) -> Result<()> {
    eprintln!("large files, {:?} of delay", place.delay);
    let suffix = place.delay.as_millis();
    let (tree, out) = (bench.directory(&format!("large-{suffix}")), bench.directory(&format!("out-large-{suffix}")));
    std::fs::create_dir(&tree)?;
    let count = if bench.options.quick { LARGE_FILES_QUICK } else { LARGE_FILES };
    let mut random = Random::new(LARGE_SEED);
    for number in 0..count {
        std::fs::write(tree.join(format!("{number:03}")), random.bytes(LARGE_FILE_BYTES))?;
    }
    let before = names_now(place)?;
    let node = Node::open(&place.options())?;
    let (root, _) = capture_tree(&node.store, &tree)?;
    drop(node);
    machine::settle();
    add_cold(bench, place, COLD_LARGE, &before, root, &out)?;
    std::fs::remove_dir_all(&tree)?;
    Ok(())
}

pub(crate) fn run(bench: &mut Bench, place: &Place) -> Result<()> {
    eprintln!("the Linux tree, {:?} of delay", place.delay);
    let tree = linux::tree()?;
    let tree = if bench.options.quick { tree.join("kernel") } else { tree };
    let suffix = place.delay.as_millis();
    let directory = |name: &str| bench.directory(&format!("{name}-{suffix}"));
    let (local_place, cache_place) = (directory("local"), directory("cache"));
    let (work, cold_place, warm_place) = (directory("out-local"), directory("out-cold"), directory("out-warm"));
    let before = names_now(place)?;
    // Into the page cache.
    for file in machine::files_below(&tree)? {
        std::fs::read(file)?;
    }
    let local = Store::open(&local_place)?;
    let (root, local_took) = capture_tree(&local, &tree)?;
    machine::settle();
    let options = place.options();
    let node = Node::open(&options)?;
    let calls = node.cloud.calls();
    let (cloud_root, cloud_took) = capture_tree(&node.store, &tree)?;
    if cloud_root != root {
        return Err("the two stores have different trees".into());
    }
    let done = node.cloud.calls();
    let requests = (done.puts + done.gets) - (calls.puts + calls.gets);
    drop(node);
    let how = format!("read, cut, hashed, compressed, stored, committed: {cloud_took:.2} s, local {local_took:.2} s");
    add(bench, place, CAPTURE, (cloud_took / local_took, "x"), Bar::AtMost(2.0), how);
    let statements = done.statements - calls.statements;
    let how =
        format!("{} puts, {} gets; beside {statements} SQL calls", done.puts - calls.puts, done.gets - calls.gets);
    add(bench, place, REQUESTS, (requests as f64, "requests"), Bar::AtMost(200.0), how);

    add_cold(bench, place, COLD, &before, root, &cold_place)?;

    let cache = Arc::new(DiskCache::open(&cache_place, CACHE_BYTES)?);
    let cached = CloudOptions { disk_cache: Some(cache), ..options };
    let filling = Node::open(&cached)?;
    let filled = check_out(&filling.store, root, &warm_place)?;
    drop(filling);
    let warm = Node::open(&cached)?;
    let warm_took = check_out(&warm.store, root, &warm_place)?;
    let hits = warm.cloud.calls().cache;
    drop((warm, local));
    let local = Store::open(&local_place)?;
    let local_took = check_out(&local, root, &work)?;
    let how = format!(
        "a node that was opened anew, {} objects from its cache, {} from elsewhere: {warm_took:.2} s; filling the cache took \
         {filled:.2} s; local {local_took:.2} s",
        hits.disk_hits + hits.memory_hits,
        hits.misses
    );
    add(bench, place, WARM, (warm_took / local_took, "x"), Bar::AtMost(1.2), how);
    drop(local);
    std::fs::remove_dir_all(&local_place)?;
    Ok(())
}
