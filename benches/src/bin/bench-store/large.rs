//! Small edits in large files.

use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, Samples, machine, sample};
use amalgam_engine::{Commit, WorkingTree};

use crate::{Bench, open_metered};

const EDIT: &str = "one byte in 1 GiB, edit and commit";
const EDIT_NEW: &str = "one byte in 1 GiB, new objects";
const SPREAD_NEW: &str = "16 bytes over 32 MiB, new objects";
const FRONT_NEW: &str = "a byte in front of 32 MiB, new objects";

pub(crate) const FIGURES: &[&str] = &[EDIT, EDIT_NEW, SPREAD_NEW, FRONT_NEW];

const KIB: f64 = 1024.0;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("large files");
    if bench.wants(EDIT) || bench.wants(EDIT_NEW) {
        one_byte(bench)?;
    }
    if bench.wants(SPREAD_NEW) || bench.wants(FRONT_NEW) {
        many_bytes(bench)?;
    }
    Ok(())
}

fn one_byte(bench: &mut Bench) -> Result<()> {
    let size: u64 = bench.size(1 << 30, 100 << 20);
    let (store, meter) = open_metered(&bench.directory("large"))?;
    let head = reference("head/large");
    let mut tree = WorkingTree::new(&store);
    let mut random = Random::new(3);
    tree.write("large", &random.bytes(size as usize))?;
    tree.commit(Commit::new(&head, "a large file"))?;
    machine::settle();
    let mut written = Vec::new();
    let (warm_up, times) = bench.size((10, 101), (1, 5));
    let samples = sample(warm_up, times, |_| {
        // The middle half: no two edits meet the same chunks.
        let place = size / 4 + random.below(size / 2);
        let before = meter.bytes_written();
        tree.write_at("large", place, &[random.number() as u8])?;
        tree.commit(Commit::new(&head, "a byte").buffered())?;
        written.push((meter.bytes_written() - before) as f64 / KIB);
        Ok(())
    })?;
    let how =
        format!("random bytes, anywhere in the middle half, write_at and buffered commit: {}", samples.describe("us"));
    bench.add(EDIT, (samples.p50() / 1e3, "ms"), Bar::AtMost(2.0), how);
    let written = Samples::new(written);
    let how = format!("by one of these edits: {}, {:.0} KiB at most", written.describe("KiB"), written.at(1.0));
    bench.add(EDIT_NEW, (written.p50(), "KiB"), Bar::AtMost(128.0), how);
    Ok(())
}

fn many_bytes(bench: &mut Bench) -> Result<()> {
    const SIZE: u64 = 32 << 20;
    const EDITS: u64 = 16;
    let (store, meter) = open_metered(&bench.directory("medium"))?;
    let head = reference("head/medium");
    let mut random = Random::new(4);
    let mut tree = WorkingTree::new(&store);
    tree.write("medium", &random.bytes(SIZE as usize))?;
    tree.commit(Commit::new(&head, "a file"))?;
    let before = meter.bytes_written();
    for edit in 0..EDITS {
        tree.write_at("medium", (edit * 2 + 1) * SIZE / (EDITS * 2), &[random.number() as u8])?;
    }
    tree.commit(Commit::new(&head, "some bytes"))?;
    let spread = meter.bytes_written() - before;
    let mut whole = tree.read("medium")?;
    whole.insert(0, b'!');
    let before = meter.bytes_written();
    tree.write("medium", &whole)?;
    tree.commit(Commit::new(&head, "a byte in front"))?;
    let front = meter.bytes_written() - before;
    let mib = |bytes: u64| (bytes as f64 / KIB / KIB, "MiB");
    bench.add(SPREAD_NEW, mib(spread), Bar::AtMost(0.3), "random bytes, evenly spread edits, one commit".to_owned());
    bench.add(FRONT_NEW, mib(front), Bar::AtMost(0.1), "random bytes, the whole file written anew".to_owned());
    Ok(())
}
