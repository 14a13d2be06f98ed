//! Commits beside plain ones of PostgreSQL, of many clients, and of many files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, Samples, sample};
use amalgam_engine::{Commit, WorkingTree};
use sqlx::{Connection as _, PgConnection};

use crate::add;
use crate::place::{Node, Place};

const BUFFERED: &str = "commit of 1 KiB, buffered / PostgreSQL, asynchronous";
const DURABLE: &str = "commit of 1 KiB, durable / PostgreSQL, synchronous";
const STATEMENTS: &str = "SQL calls of a durable commit of 1 KiB";
const LARGE_STATEMENTS: &str = "SQL calls of a durable commit of 512 KiB";
const LARGE_PUTS: &str = "S3 puts of a durable commit of 512 KiB";
pub(crate) const FIGURES: &[&str] = &[BUFFERED, DURABLE, STATEMENTS, LARGE_STATEMENTS, LARGE_PUTS];

const CLIENTS: &str = "commits of 64 clients on different workspaces";
pub(crate) const CLIENT_FIGURES: &[&str] = &[CLIENTS];
const CLIENT_COUNT: u64 = 64;

const FILES: &str = "100,000 small files created and committed";
pub(crate) const FILE_FIGURES: &[&str] = &[FILES];

const PLAIN_BYTES: usize = 4_096;
const EDIT_BYTES: usize = 1_024;
const LARGE_BYTES: usize = 512 << 10;

/// Times plain commits of PostgreSQL, each of a row of 4 KiB.
fn plain(place: &Place, is_durable: bool, warm_up: usize, times: usize) -> Result<Samples> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut connection = runtime.block_on(PgConnection::connect(&place.database))?;
    let create = "CREATE TABLE IF NOT EXISTS bench_rows (number bigserial PRIMARY KEY, body bytea NOT NULL)";
    runtime.block_on(sqlx::query(create).execute(&mut connection))?;
    let setting = if is_durable { "SET synchronous_commit = on" } else { "SET synchronous_commit = off" };
    runtime.block_on(sqlx::query(setting).execute(&mut connection))?;
    let mut random = Random::new(9);
    sample(warm_up, times, |_| {
        let row = random.text(PLAIN_BYTES);
        let query = sqlx::query("INSERT INTO bench_rows (body) VALUES ($1)").bind(row);
        runtime.block_on(query.execute(&mut connection))?;
        Ok(())
    })
}

pub(crate) fn run(bench: &mut Bench, place: &Place) -> Result<()> {
    eprintln!("commits, {:?} of delay", place.delay);
    let node = Node::open(&place.options())?;
    let (warm_up, times) =
        if place.delay.is_zero() { bench.size((50, 1_000), (5, 30)) } else { bench.size((10, 200), (2, 10)) };
    let mut random = Random::new(8);
    let mut tree = WorkingTree::new(&node.store);
    for number in 0..100 {
        tree.write(format!("file-{number:03}"), &random.text(EDIT_BYTES))?;
    }
    let head = reference("head/main");
    tree.commit(Commit::new(&head, "files"))?;
    for (name, is_durable) in [(BUFFERED, false), (DURABLE, true)] {
        let peer = plain(place, is_durable, warm_up, times)?;
        let ours = sample(warm_up, times, |round| {
            tree.write(format!("file-{:03}", round % 100), &random.text(EDIT_BYTES))?;
            let commit = Commit::new(&head, "an edit");
            tree.commit(if is_durable { commit } else { commit.buffered() })?;
            Ok(())
        })?;
        let how = format!("an edit and its commit {}; a row of 4 KiB {}", ours.describe("us"), peer.describe("us"));
        add(bench, place, name, (ours.p50() / peer.p50(), "x"), Bar::AtMost(2.0), how);
    }
    round_trips(bench, place, &node, &mut tree)
}

fn round_trips(bench: &mut Bench, place: &Place, node: &Node, tree: &mut WorkingTree) -> Result<()> {
    const COMMITS: u64 = 20;
    let mut random = Random::new(10);
    let head = reference("head/main");
    tree.write("large", &noise(&mut random, LARGE_BYTES))?;
    tree.commit(Commit::new(&head, "names of packs are reserved"))?;
    for (bytes, statements, puts) in [(EDIT_BYTES, STATEMENTS, None), (LARGE_BYTES, LARGE_STATEMENTS, Some(LARGE_PUTS))]
    {
        let before = node.cloud.calls();
        for _ in 0..COMMITS {
            tree.write("large", &noise(&mut random, bytes))?;
            tree.commit(Commit::new(&head, "an edit"))?;
        }
        let after = node.cloud.calls();
        let each = |before: u64, after: u64| (after - before) as f64 / COMMITS as f64;
        let how = format!("{COMMITS} commits of {bytes} bytes, from the edit to the acknowledgement");
        let sql = each(before.statements, after.statements);
        add(bench, place, statements, (sql, "calls"), Bar::AtMost(1.0), how.clone());
        if let Some(puts) = puts {
            add(bench, place, puts, (each(before.puts, after.puts), "puts"), Bar::AtMost(1.0), how);
        }
    }
    Ok(())
}

/// Bytes that cannot be compressed.
fn noise(random: &mut Random, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

pub(crate) fn clients(bench: &mut Bench, place: &Place) -> Result<()> {
    eprintln!("clients, {:?} of delay", place.delay);
    let node = Node::open(&place.options())?;
    let time = Duration::from_millis(bench.size(5_000, 300));
    let (commits, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let took = std::thread::scope(|scope| -> Result<f64> {
        let threads: Vec<_> = (0..CLIENT_COUNT)
            .map(|client| {
                let (node, commits, is_over) = (&node, &commits, &is_over);
                scope.spawn(move || -> Result<()> {
                    let mut random = Random::new(client);
                    let mut tree = WorkingTree::new(&node.store);
                    let head = reference(&format!("head/{client}"));
                    while !is_over.load(Ordering::Relaxed) {
                        tree.write("file", &random.text(EDIT_BYTES))?;
                        tree.commit(Commit::new(&head, "an edit"))?;
                        commits.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        // The first commits connect.
        std::thread::sleep(time / 5);
        let (begun, before) = (Instant::now(), commits.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let (took, done) = (begun.elapsed().as_secs_f64(), commits.load(Ordering::Relaxed) - before);
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))?;
        Ok(done as f64 / took)
    })?;
    let how = format!("{CLIENT_COUNT} threads of one node, durable commits of {EDIT_BYTES} bytes, {time:?}");
    add(bench, place, CLIENTS, (took, "/s"), Bar::AtLeast(1_000.0), how);
    Ok(())
}

pub(crate) fn many_files(bench: &mut Bench, place: &Place) -> Result<()> {
    eprintln!("many files, {:?} of delay", place.delay);
    let node = Node::open(&place.options())?;
    let plan = Plan { shape: Shape::Nested, files: bench.size(100_000, 1_000) };
    let begun = Instant::now();
    plan.build(&node.store, &reference("head/main"))?;
    let took = begun.elapsed().as_secs_f64();
    let calls = node.cloud.calls();
    let how = format!(
        "{} files of 100 to 200 bytes, one durable commit, {took:.2} s; {} SQL calls, {} puts",
        plan.files, calls.statements, calls.puts
    );
    add(bench, place, FILES, (plan.files as f64 / took, "entries/s"), Bar::AtLeast(10_000.0), how);
    Ok(())
}
