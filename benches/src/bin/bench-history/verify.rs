//! The Linux tree in a store, verified: its structure, and all of its data.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, linux, machine, median};
use amalgam_engine::{Commit, Store, VerifyOptions, VerifyReport, WorkingTree, verify};

const STRUCTURE: &str = "verify, structure only, on the Linux tree";
const DATA: &str = "verify, read-data, on the Linux tree";

pub(crate) const FIGURES: &[&str] = &[STRUCTURE, DATA];

const MB: f64 = 1e6;
/// What is not committed lies in memory.
const COMMIT_BYTES: usize = 128 << 20;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("verification");
    let tree = linux::tree()?;
    let tree = if bench.options.quick { tree.join("kernel") } else { tree };
    let directory = bench.directory("verified");
    let (files, bytes) = put(&Store::open(&directory)?, &tree)?;
    let turns = bench.size(5, 1);
    let store = Store::open(&directory)?;
    let input = format!("{files} files, {:.0} MB, in the page cache", bytes as f64 / MB);
    let threads = machine::cores();
    if bench.wants(STRUCTURE) {
        let Took { seconds, cpu_seconds, report } = times(&store, &VerifyOptions::default(), turns)?;
        let rates: Vec<_> = seconds.iter().map(|seconds| report.objects as f64 / seconds).collect();
        let how = format!(
            "{input}; {} objects in the index, of which {:.1} MB that are no chunks were read, hashed, decoded and \
             compared by {threads} threads; median of {turns}, after one for the caches: {seconds:.3?} s, with {cpu_seconds:.2?} s \
             of processor time",
            report.objects,
            report.bytes as f64 / MB
        );
        bench.add(STRUCTURE, (median(rates), "objects/s"), Bar::AtLeast(200_000.0), how);
    }
    if bench.wants(DATA) {
        let Took { seconds, cpu_seconds, report } = times(&store, &VerifyOptions::reading_data(), turns)?;
        let rates: Vec<_> = seconds.iter().map(|seconds| report.bytes as f64 / MB / seconds).collect();
        let how = format!(
            "{input}; all {} objects read, unpacked and hashed by {threads} threads, {:.0} MB unpacked, equal chunks once; \
             median of {turns}, after one for the caches: {seconds:.3?} s, with {cpu_seconds:.2?} s \
             of processor time",
            report.objects,
            report.bytes as f64 / MB
        );
        bench.add(DATA, (median(rates), "MB/s"), Bar::AtLeast(500.0), how);
    }
    drop(store);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// What a verification took, by the clock and of the processors.
struct Took {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    report: VerifyReport,
}

fn times(store: &Store, options: &VerifyOptions, turns: usize) -> Result<Took> {
    let mut took = Took { seconds: Vec::new(), cpu_seconds: Vec::new(), report: VerifyReport::default() };
    for turn in 0..=turns {
        let (start, cpu_before) = (Instant::now(), machine::cpu_seconds());
        took.report = verify(store, options, &|_| ControlFlow::Continue(()))?;
        if !took.report.is_clean() {
            return Err("the store is damaged".into());
        }
        if turn > 0 {
            took.seconds.push(start.elapsed().as_secs_f64());
            took.cpu_seconds.push(machine::cpu_seconds() - cpu_before);
        }
    }
    Ok(took)
}

/// Puts all regular files of a directory into a tree, and counts them and their bytes.
fn put(store: &Store, from: &Path) -> Result<(usize, u64)> {
    let head = reference("head/linux");
    let mut tree = WorkingTree::new(store);
    let (mut count, mut total, mut waiting) = (0, 0, 0);
    for file in machine::files_below(from)? {
        let path = file.strip_prefix(from)?.to_str().ok_or("a path that is no text")?;
        if let Some((directory, _)) = path.rsplit_once('/') {
            tree.create_directories(directory)?;
        }
        let bytes = std::fs::read(&file)?;
        tree.write(path, &bytes)?;
        (count, total, waiting) = (count + 1, total + bytes.len() as u64, waiting + bytes.len());
        if waiting >= COMMIT_BYTES {
            tree.commit(Commit::new(&head, "part of the Linux tree").buffered())?;
            waiting = 0;
        }
    }
    tree.commit(Commit::new(&head, "the Linux tree"))?;
    Ok((count, total))
}
