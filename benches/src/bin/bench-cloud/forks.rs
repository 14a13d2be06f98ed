//! The objects of many forks of a base.

use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result};
use amalgam_engine::{Commit, Expect, WorkingTree};

use crate::add;
use crate::place::{Node, Place};

const FORKS: &str = "1,000 forks, 100 edited, new objects";
pub(crate) const FIGURES: &[&str] = &[FORKS];

const FILE_BYTES: usize = 50_000;
const EDIT_BYTES: usize = 10_000;
const EDITED_ONE_IN: u64 = 10;

pub(crate) fn run(bench: &mut Bench, place: &Place) -> Result<()> {
    // The number of bytes does not depend on a delay.
    if !place.delay.is_zero() {
        return Ok(());
    }
    eprintln!("forks");
    let (files, forks): (u64, u64) = bench.size((1_000, 1_000), (50, 50));
    let node = Node::open(&place.options())?;
    let mut random = Random::new(5);
    let mut base = WorkingTree::new(&node.store);
    for index in 0..files {
        base.write(format!("file-{index:05}"), &random.text(FILE_BYTES))?;
    }
    base.commit(Commit::new(&reference("head/base"), "the base"))?;
    let bytes = || -> Result<u64> { Ok(node.store.last_collection()?.ok_or("a shared store knows its size")?.bytes) };
    let before = bytes()?;
    let begun = Instant::now();
    for number in 0..forks {
        let mut fork = base.fork();
        if number % EDITED_ONE_IN == 0 {
            let at = random.below((FILE_BYTES - EDIT_BYTES) as u64);
            fork.write_at(format!("file-{:05}", random.below(files)), at, &random.text(EDIT_BYTES))?;
        }
        let head = reference(&format!("fork/{number}"));
        fork.commit(Commit::new(&head, "a fork").buffered().expecting(Expect::Absent))?;
    }
    let took = begun.elapsed().as_secs_f64();
    let how = format!(
        "{forks} forks of {files} files of {FILE_BYTES} bytes, each committed to a reference of its own, one in \
         {EDITED_ONE_IN} with {EDIT_BYTES} other bytes; bytes of packs with their footers; {took:.2} s"
    );
    add(bench, place, FORKS, ((bytes()? - before) as f64 / 1e6, "MB"), Bar::AtMost(3.0), how);
    Ok(())
}
