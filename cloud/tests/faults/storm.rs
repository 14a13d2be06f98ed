//! Three nodes that commit through faults of all kinds at once: lost answers of commits and puts, cut connections, partitions, delays,
//! refused and truncated reads. Every acknowledged commit is there once, and none that was refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_engine::SplitMix64;

use super::*;

const NODES: u64 = 3;
/// Commits of a node at least; it goes on until there were enough faults.
const COMMITS_MIN: u64 = 40;
const FAULTS_MIN: u64 = 60;

/// Causes one random fault.
fn cause(random: &mut SplitMix64, proxies: &[Proxy], bucket: &FaultyBucket) {
    let proxy = &proxies[random.below(NODES) as usize];
    let pause = Duration::from_millis(5 + random.below(60));
    match random.below(10) {
        0 | 1 => proxy.swallow_next_answer(),
        2 => proxy.cut(),
        3 => {
            // A partition: this node does not reach PostgreSQL.
            proxy.hold();
            std::thread::sleep(pause);
            proxy.release();
        }
        4 => {
            proxy.delay(Duration::from_millis(random.below(8)));
            std::thread::sleep(pause);
            proxy.delay(Duration::ZERO);
        }
        5 => bucket.inject(Fault::LosePutAnswer),
        6 => bucket.inject(Fault::FailPut),
        7 => bucket.inject(Fault::FailGet),
        8 => bucket.inject(Fault::TruncateGet),
        _ => bucket.inject(Fault::FlipGet),
    }
}

#[test]
fn every_acknowledged_commit_of_three_nodes_is_there_once_after_a_storm_of_faults() {
    let Some(mut server) = postgres::own() else { return };
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let bucket = FaultyBucket::new();
    let proxies: Vec<_> = (0..NODES).map(|_| Proxy::start(server.directory())).collect();
    let nodes: Vec<_> =
        proxies.iter().map(|proxy| open(&options(postgres::url(proxy.directory()), &bucket, "a storm"))).collect();
    let (is_over, faults) = (AtomicBool::new(false), AtomicU64::new(0));
    let has_enough_faults = || {
        let swallowed: usize = proxies.iter().map(Proxy::swallowed).sum();
        swallowed > 0 && bucket.injected() > 0 && faults.load(Ordering::SeqCst) > FAULTS_MIN
    };
    // The last acknowledged commit of each node, and how many it tried.
    let done: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let chaos = scope.spawn(|| {
            let mut random = SplitMix64::new(seed);
            while !is_over.load(Ordering::SeqCst) {
                cause(&mut random, &proxies, &bucket);
                if faults.fetch_add(1, Ordering::SeqCst) == 30 {
                    server.restart();
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let writers: Vec<_> = (0..NODES)
            .map(|number| {
                let (node, has_enough_faults) = (&nodes[number as usize], &has_enough_faults);
                scope.spawn(move || {
                    let reference = format!("node {number}");
                    let (mut last, mut commit) = (None, 0);
                    while commit < COMMITS_MIN || !has_enough_faults() {
                        let bytes = if commit % 2 == 0 { 1_000 } else { 200 << 10 };
                        let object = object(&format!("{number} {commit}"), bytes);
                        let next = last.map_or(1, |last| last + 1);
                        match step(node, &reference, last, next, vec![object.clone()]) {
                            Ok(done) => {
                                assert!(!done.replayed);
                                last = Some(next);
                            }
                            // Two puts in a row failed: nothing was committed.
                            Err(error) => assert!(error.to_string().contains("write a pack"), "{error}"),
                        }
                        // Reads may fail as often as the bucket does, and never return other bytes.
                        if let Ok(Some(found)) = node.get(object.id) {
                            assert_eq!(found, object.bytes);
                        }
                        commit += 1;
                    }
                    (last.unwrap_or(0), commit)
                })
            })
            .collect();
        let done = writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
        is_over.store(true, Ordering::SeqCst);
        chaos.join().expect("no panic");
        done
    });
    while bucket.take_fault() {}
    drop(nodes);
    let fresh = open(&options(server.url(), &bucket, "a storm"));
    for (number, (last, commits)) in done.iter().enumerate() {
        let value = fresh.read_ref(&name(&format!("node {number}"))).expect("read");
        assert_eq!(value, Some(RefValue::noting(last.to_string())), "node {number}");
        for commit in 0..*commits {
            let bytes = if commit % 2 == 0 { 1_000 } else { 200 << 10 };
            let object = object(&format!("{number} {commit}"), bytes);
            // Those of refused commits may be missing.
            if let Some(found) = fresh.get(object.id).expect("get") {
                assert_eq!(found, object.bytes);
            } else {
                assert_eq!(bytes, 200 << 10, "an inline pack travels with its commit");
            }
        }
    }
    let acknowledged = done.iter().map(|(last, _)| last).sum::<u64>();
    let operations = fresh.list_operations(0, 1 + acknowledged as usize).expect("list");
    assert_eq!(operations.len() as u64, acknowledged, "one operation for each acknowledged commit");
    assert!(operations.iter().zip(1..).all(|(operation, number)| operation.sequence == number), "no gap");
}
