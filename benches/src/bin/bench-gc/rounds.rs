//! Exploration again and again: a hundred forks, one stays, the rest is collected. The store must not grow.

use std::ops::ControlFlow;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result};
use amalgam_engine::object::Snapshot;
use amalgam_engine::{Commit, Expect, LivedTime, SnapshotId, Store, Time, WorkingTree};
use amalgam_gc::{CollectOptions, LogRetention, collect, first_kept_operation};

use crate::made::{Made, disk_bytes, remove};

pub const FIGURES: &[&str] = &["store after rounds of exploration / after a tenth of them"];

const FORKS: u64 = 100;
const EDIT_BYTES: usize = 8 << 10;

pub fn run(bench: &mut Bench) -> Result<()> {
    let rounds = bench.size(1_000, 30);
    let directory = bench.directory("rounds");
    let mut head = {
        let store = Store::open(&directory)?;
        Made { objects: 5_000, file_bytes: 2 << 10 }.build_tree(&store, "head/main", 0)?
    };
    let mut sizes = Vec::new();
    let mut store = Store::open(&directory)?;
    for round in 0..rounds {
        let base = WorkingTree::open(&store, head)?;
        for fork in 0..FORKS {
            let mut tree = base.fork();
            let mut random = Random::new(round * FORKS + fork);
            tree.write(format!("d0/f{}", 1 + random.below(40)), &random.bytes(EDIT_BYTES))?;
            let name = reference(&format!("fork/{fork}"));
            tree.commit(Commit::new(&name, "try").buffered().expecting(Expect::Absent))?;
            if fork == round % FORKS {
                let main = reference("head/main");
                head = tree.commit(Commit::new(&main, "keep").buffered().expecting(Expect::At(head)))?.snapshot;
            }
        }
        drop(base);
        for fork in 0..FORKS {
            remove(&store, &format!("fork/{fork}"))?;
        }
        // What was explored is forgotten: of the history only the newest tree stays.
        let keeps = |_: SnapshotId, _: &Snapshot| false;
        let last = store.last_operation()?;
        let log_from =
            first_kept_operation(&store, &LogRetention::default(), Time::EPOCH, last, &LivedTime::default())?;
        let options = CollectOptions { retention: &keeps, log_from, ..CollectOptions::default() };
        collect(&store, &options, &mut |_| ControlFlow::Continue(()))?;
        if (round + 1) % (rounds / 10).max(1) == 0 {
            drop(store);
            sizes.push(disk_bytes(&directory));
            store = Store::open(&directory)?;
        }
    }
    drop(store);
    let (first, last) = (sizes[0] as f64, sizes[sizes.len() - 1] as f64);
    let mib: Vec<String> = sizes.iter().map(|bytes| format!("{:.1}", *bytes as f64 / f64::from(1 << 20))).collect();
    let how = format!(
        "{rounds} rounds of {FORKS} forks, each edited by {EDIT_BYTES} bytes and committed, one kept; MiB on disk, closed: {}; of the log \
         the newest {} operations stay",
        mib.join(" "),
        LogRetention::default().operations_max
    );
    bench.add(FIGURES[0], (last / first, "times"), Bar::AtMost(1.1), how);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
