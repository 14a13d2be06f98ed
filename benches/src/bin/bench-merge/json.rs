//! A document of a megabyte, changed in many places by both sides.

use std::fmt::Write as _;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, sample};
use amalgam_merge::{MergeSettings, MergeStrategy, Outcome, Sides, merge};

const TIME: &str = "json merge of a 1 MB document";
const CRDT: &str = "json merge of a 1 MB document without conflicts (crdt)";
const GIT: &str = "json merge of the same by lines, git merge-file";

pub(crate) const FIGURES: &[&str] = &[TIME, CRDT, GIT];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("json");
    let (records, times) = bench.size((5_500, 100), (200, 5));
    let versions = [document(records, usize::MAX, 0), document(records, 50, 0), document(records, 50, 25)];
    let what = format!("{} bytes, {records} records by id, every 50th changed on each side", versions[0].len());
    for (name, strategy, bar) in [(TIME, "json", Bar::AtMost(60.0)), (CRDT, "crdt", Bar::None)] {
        let strategy = MergeStrategy::named(strategy).ok_or("no such way")?;
        let [base, ours, theirs] = &versions;
        let (sides, setting) = (Sides { base: Some(base), ours, theirs }, MergeSettings::default());
        let spent = sample(times / 10, times, |_| match merge(&strategy, &sides, &setting) {
            Outcome::Merged(_) => Ok(()),
            _ => Err("it was not merged".into()),
        })?;
        bench.add(name, (spent.p50() / 1e3, "ms"), bar, format!("{what}; {}", spent.describe("us")));
    }
    let peer = super::git(&bench.directory("json"), &versions, bench.size(30, 3))?;
    bench.add(GIT, (peer.p50() / 1e3, "ms"), Bar::None, format!("a process for each, {}", peer.describe("us")));
    Ok(())
}

/// Records with lists and maps in them; every so many-th, from a first one on, has another value.
fn document(records: usize, every: usize, first: usize) -> Vec<u8> {
    let mut text = String::from("{\n  \"records\": [\n");
    for id in 0..records {
        let is_changed = every != usize::MAX && id % every == first;
        let value = if is_changed { format!("changed {first}") } else { "as it was".to_owned() };
        let end = if id + 1 == records { "" } else { "," };
        let _ = writeln!(
            text,
            "    {{\n      \"id\": {id},\n      \"name\": \"record {id}\",\n      \"value\": \"{value}\",\n      \
             \"tags\": [\"a\", \"b\", {}],\n      \"at\": {{\"x\": {}.5, \"y\": -{}}},\n      \"note\": null\n    }}{end}",
            id % 7,
            id * 3,
            id * 5
        );
    }
    text.push_str("  ]\n}\n");
    text.into_bytes()
}
