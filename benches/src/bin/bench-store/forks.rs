//! Many forks of a large base, few of them edited.

use std::time::Instant;

use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result};
use amalgam_engine::{Commit, Expect, WorkingTree};

use crate::{Bench, open_metered};

const NEW: &str = "1,000 forks of 500 MB, 100 edited, new objects";
const EACH: &str = "1,000 forks of 500 MB, a fork and its commit";

pub(crate) const FIGURES: &[&str] = &[NEW, EACH];

const FORKS: u64 = 1_000;
const EDITED: u64 = 100;
const EDIT_BYTES: usize = 10_000;
const FILE_BYTES: usize = 50_000;
const FILES_EACH: u64 = 100;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("forks");
    let files: u64 = bench.size(10_000, 200);
    let (store, meter) = open_metered(&bench.directory("forks"))?;
    let mut random = Random::new(5);
    let mut base = WorkingTree::new(&store);
    let path = |index: u64| format!("directory-{:03}/file-{index:05}", index / FILES_EACH);
    for index in 0..files {
        if index % FILES_EACH == 0 {
            base.create_directories(format!("directory-{:03}", index / FILES_EACH))?;
        }
        base.write(path(index), &random.text(FILE_BYTES))?;
    }
    base.commit(Commit::new(&reference("head/base"), "the base"))?;
    let (bytes_before, objects_before) = (meter.bytes_written(), meter.objects_written());
    let start = Instant::now();
    let mut forks = Vec::new();
    for number in 0..FORKS {
        let mut fork = base.fork();
        if number % (FORKS / EDITED) == 0 {
            let place = random.below((FILE_BYTES - EDIT_BYTES) as u64);
            fork.write_at(path(random.below(files)), place, &random.text(EDIT_BYTES))?;
        }
        let head = reference(&format!("fork/{number}"));
        fork.commit(Commit::new(&head, format!("fork {number}")).buffered().expecting(Expect::Absent))?;
        forks.push(fork);
    }
    let took = start.elapsed().as_secs_f64();
    let (bytes, objects) = (meter.bytes_written() - bytes_before, meter.objects_written() - objects_before);
    let how = format!(
        "{files} files of {FILE_BYTES} bytes of text; {EDITED} forks with {EDIT_BYTES} other bytes inside a file; all \
         {FORKS} committed to references of their own, {objects} objects"
    );
    bench.add(NEW, (bytes as f64 / 1e6, "MB"), Bar::AtMost(3.0), how);
    let how = format!("all {FORKS} forks and buffered commits, none closed before the last: {took:.3} s");
    bench.add(EACH, (took * 1e6 / FORKS as f64, "us"), Bar::None, how);
    Ok(())
}
