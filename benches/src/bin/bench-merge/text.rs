//! A file of a thousand lines with ten edits on each side.

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::{Bar, Result, sample};
use amalgam_merge::{MergeSettings, MergeStrategy, Outcome, Sides, merge};

const TIME: &str = "text merge of 1,000 lines, 10 edits a side";
const CONFLICT: &str = "text merge of 1,000 lines, 10 edits a side in conflict";
const GIT: &str = "text merge of the same by git merge-file";
const LARGE: &str = "text merge of 100,000 lines, 1,000 edits a side";

pub(crate) const FIGURES: &[&str] = &[TIME, CONFLICT, GIT, LARGE];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("text");
    let times = bench.size(2_000, 20);
    let clean = versions(1_000, 10, 50);
    let bytes = clean[0].len();
    let spent = measure(&clean, times, true)?;
    let how = format!("{bytes} bytes of code-like lines, {}", spent.describe("us"));
    bench.add(TIME, (spent.p50(), "us"), Bar::AtMost(500.0), how);
    let spent = measure(&versions(1_000, 10, 0), times, false)?;
    bench.add(CONFLICT, (spent.p50(), "us"), Bar::None, spent.describe("us"));
    let peer = super::git(&bench.directory("text"), &clean, bench.size(100, 5))?;
    bench.add(GIT, (peer.p50(), "us"), Bar::None, format!("a process for each, {}", peer.describe("us")));
    let (lines, edits) = bench.size((100_000, 1_000), (10_000, 100));
    let spent = measure(&versions(lines, edits, 50), bench.size(20, 3), true)?;
    bench.add(LARGE, (spent.p50() / 1e3, "ms"), Bar::None, spent.describe("us"));
    Ok(())
}

/// A file and two edited versions of it; theirs are so many lines below ours, each in a stretch of its own.
fn versions(lines: usize, edits: usize, apart: usize) -> [Vec<u8>; 3] {
    let mut random = Random::new(7);
    let line = |random: &mut Random| match random.below(5) {
        0 => "    }\n".to_owned(),
        1 => "\n".to_owned(),
        _ => format!("    let value_{} = input.get({})?;\n", random.below(400), random.below(400)),
    };
    let base: Vec<String> = (0..lines).map(|_| line(&mut random)).collect();
    let edited = |random: &mut Random, side: &str, below: usize| {
        let mut copy = base.clone();
        for edit in (0..edits).rev() {
            let at = edit * (lines / edits) + below;
            match random.below(3) {
                _ if apart == 0 => copy[at] = format!("    {side}({edit});\n"),
                0 => copy.insert(at, format!("    {side}({edit});\n")),
                1 => drop(copy.remove(at)),
                _ => copy[at] = format!("    {side}({edit});\n"),
            }
        }
        copy.concat().into_bytes()
    };
    let (ours, theirs) = (edited(&mut random, "ours", 10), edited(&mut random, "theirs", 10 + apart));
    [base.concat().into_bytes(), ours, theirs]
}

fn measure([base, ours, theirs]: &[Vec<u8>; 3], times: usize, is_clean: bool) -> Result<amalgam_benches::Samples> {
    let strategy = MergeStrategy::named("text").ok_or("no way called text")?;
    let (sides, setting) = (Sides { base: Some(base), ours, theirs }, MergeSettings::default());
    sample(times / 10, times, |_| match merge(&strategy, &sides, &setting) {
        Outcome::Merged(_) if is_clean => Ok(()),
        Outcome::Conflicted(_) if !is_clean => Ok(()),
        other => Err(format!("not as it should be: {other:?}").into()),
    })
}
