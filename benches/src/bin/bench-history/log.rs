//! Questions to a long history.

use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, Samples, machine, microseconds, sample};
use amalgam_engine::history::{History, LogOrder};
use amalgam_engine::{Commit, Expect, SnapshotId, Store, Time, TreePath, WorkingTree};

const PAGE: &str = "log of 100 k snapshots, first page";
const COMMON: &str = "best common ancestor in a graph of 100 k";
const COMMON_FAR: &str = "best common ancestor, all of the 100 k between them";
const COMMON_FIRST: &str = "best common ancestor, the same, store just opened";
const VERSIONS: &str = "versions of one path, 100 among 10 k snapshots";
const VERSIONS_FIRST: &str = "versions of one path, the same, store just opened";

pub(crate) const FIGURES: &[&str] = &[PAGE, COMMON, COMMON_FAR, COMMON_FIRST, VERSIONS, VERSIONS_FIRST];

const PAGE_ENTRIES: usize = 50;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if [PAGE, COMMON, COMMON_FAR, COMMON_FIRST].iter().any(|figure| bench.wants(figure)) {
        graph(bench)?;
    }
    if [VERSIONS, VERSIONS_FIRST].iter().any(|figure| bench.wants(figure)) {
        versions(bench)?;
    }
    Ok(())
}

/// Two long lines that go off the first snapshot and never meet again; one in ten merges an earlier one of its own line.
fn graph(bench: &mut Bench) -> Result<()> {
    eprintln!("a long history");
    let length = bench.size(100_000, 500);
    let directory = bench.directory("long");
    let store = Store::open(&directory)?;
    let mut random = Random::new(1);
    let mut ids: Vec<SnapshotId> = Vec::with_capacity(length);
    let mut lines: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
    let mut tree = WorkingTree::new(&store);
    for number in 0..length {
        let mut commit = Commit::new(&reference("head/newest"), "step").buffered();
        commit = commit.by("bench", Time(number as i64));
        let before = ids.last().copied();
        commit.expect = before.map_or(Expect::Absent, Expect::At);
        if number > 0 {
            let line = &lines[number % 2];
            let pick = |random: &mut Random| {
                let back = random.below(line.len().clamp(1, 40) as u64) as usize;
                line.get(line.len().wrapping_sub(1 + back)).copied().unwrap_or(0)
            };
            let (first, second) = (line.last().copied().unwrap_or(0), pick(&mut random));
            tree = WorkingTree::open(&store, ids[first])?;
            if second != first && random.below(10) == 0 {
                commit.other_parents = vec![ids[second]];
            }
        }
        tree.write("step", number.to_string().as_bytes())?;
        ids.push(tree.commit(commit)?.snapshot);
        lines[number % 2].push(number);
    }
    // The newest of each line, so that all of it lies between them.
    let far = (ids[length - 1], ids[length - 2]);
    drop((tree, store));
    machine::settle();

    let store = Store::open(&directory)?;
    let history = History::of(&store);
    let start = Instant::now();
    history.common_ancestors(far.0, far.1)?;
    let first = microseconds(start.elapsed()) / 1_000.0;
    bench.add(COMMON_FIRST, (first, "ms"), Bar::None, "reads the record of every snapshot; once".to_owned());
    let again = sample(1, 15, |_| Ok(history.common_ancestors(far.0, far.1).map(drop)?))?;
    let how = format!("two lines of {} snapshots, remembered: {}", length / 2, again.describe("us"));
    bench.add(COMMON_FAR, (again.p50() / 1_000.0, "ms"), Bar::AtMost(20.0), how);
    let mut took = Vec::new();
    for _ in 0..bench.size(300, 10) {
        let (a, b) = (random.below(length as u64) as usize, random.below(length as u64) as usize);
        took.push(sample(0, 1, |_| Ok(history.common_ancestors(ids[a], ids[b]).map(drop)?))?.p50());
    }
    let took = Samples::new(took);
    let how = format!("any two of {length} snapshots, remembered: {}", took.describe("us"));
    bench.add(COMMON, (took.p50() / 1_000.0, "ms"), Bar::AtMost(20.0), how);

    let mut took = Vec::new();
    for _ in 0..bench.size(30, 3) {
        let history = History::of(&store);
        took.push(
            sample(0, 1, |_| {
                for entry in history.log(&[far.0, far.1], LogOrder::Time)?.take(PAGE_ENTRIES) {
                    entry?;
                }
                Ok(())
            })?
            .p50(),
        );
    }
    let took = Samples::new(took);
    let how = format!("the newest {PAGE_ENTRIES}, nothing remembered by the history: {}", took.describe("us"));
    bench.add(PAGE, (took.p50() / 1_000.0, "ms"), Bar::AtMost(2.0), how);
    Ok(())
}

fn versions(bench: &mut Bench) -> Result<()> {
    eprintln!("versions of a path");
    let (files, length, touched) = bench.size((10_000, 10_000, 100), (200, 200, 10));
    let directory = bench.directory("versions");
    let store = Store::open(&directory)?;
    let plan = Plan { shape: Shape::Nested, files };
    let head = reference("head/versions");
    let (mut tree, mut last) = plan.build(&store, &head)?;
    let mut random = Random::new(2);
    let path = plan.path(files / 2);
    for number in 0..length {
        let file = match number % (length / touched) {
            0 => path.clone(),
            _ => plan.path(random.below(files)),
        };
        tree.write(&file, format!("version {number}").as_bytes())?;
        last = tree.commit(Commit::new(&head, "edit").buffered().by("bench", Time(number as i64)))?.snapshot;
    }
    drop((tree, store));
    machine::settle();

    let tree_path = TreePath::new(&path)?;
    let count = |history: &History| -> Result<usize> {
        let versions = history.versions(last, &tree_path, true)?;
        Ok(versions.collect::<Result<Vec<_>, _>>()?.len())
    };
    let mut took = Vec::new();
    for _ in 0..bench.size(5, 1) {
        let store = Store::open(&directory)?;
        let history = History::of(&store);
        took.push(sample(0, 1, |_| count(&history).map(drop))?.p50());
    }
    let took = Samples::new(took);
    let how = format!("store and history just opened, files in the page cache: {}", took.describe("us"));
    bench.add(VERSIONS_FIRST, (took.p50() / 1_000.0, "ms"), Bar::None, how);
    let store = Store::open(&directory)?;
    let history = History::of(&store);
    let found = count(&history)?;
    let took = sample(1, 9, |_| count(&history).map(drop))?;
    let how = format!("{found} versions among {length} snapshots of {files} files: {}", took.describe("us"));
    bench.add(VERSIONS, (took.p50() / 1_000.0, "ms"), Bar::AtMost(100.0), how);
    Ok(())
}
