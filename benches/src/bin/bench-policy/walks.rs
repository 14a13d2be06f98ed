//! A walk of a view that looks at each entry and reads each file, without a policy and with one. Without a kernel between, it shows
//! the cost of the decisions; the figures with a bar are those of a mount.

use std::sync::Arc;

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, sample};
use amalgam_engine::object::Owner;
use amalgam_engine::{Store, Time};
use amalgam_policy::Guard;
use amalgam_view::{Caller, Kind, ROOT, View, ViewOptions};

use crate::decisions::policy;

const WALK: &str = "warm walk of a view, 100 rules beside none";
const RULES: usize = 100;

pub(crate) const FIGURES: &[&str] = &[WALK];

/// Lists everything and reads each file. Returns the number of entries.
fn walk(view: &View, caller: &Caller) -> Result<usize> {
    let (mut open, mut count) = (vec![ROOT], 0);
    while let Some(directory) = open.pop() {
        let mut below = Vec::new();
        view.read_directory_plus(caller, directory, 0, |entry| {
            if entry.name != b"." && entry.name != b".." {
                below.push((entry.attributes.ino, entry.attributes.kind));
            }
            true
        })?;
        for (ino, kind) in below {
            count += 1;
            view.attributes(ino)?;
            match kind {
                Kind::Directory => open.push(ino),
                _ => drop(view.read(ino, 0, 4_096)?),
            }
        }
    }
    Ok(count)
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("walks");
    let (files, times) = bench.size((20_000, 9), (500, 2));
    let store = Store::open(bench.directory("policy"))?;
    let (_, snapshot) = Plan { shape: Shape::Nested, files }.build(&store, &reference("head/built"))?;
    let view = View::of_snapshot(&store, snapshot, ViewOptions::new(Owner { uid: 0, gid: 0 }, || Time(1)))?;
    let guarded = Arc::new(Guard::new(vec![Arc::new(policy(RULES)?.agent("bot-7"))]));
    let caller = Caller::owner(0, 0);
    let mut taken = Vec::new();
    for guard in [Arc::default(), Arc::clone(&guarded)] {
        view.set_guard(guard)?;
        taken.push(sample(1, times, |_| walk(&view, &caller).map(drop))?);
    }
    let ratio = taken[1].p50() / taken[0].p50();
    let how = format!("{files} files; without: {}; with: {}", taken[0].describe("us"), taken[1].describe("us"));
    bench.add(WALK, (ratio, "x"), Bar::None, how);
    Ok(())
}
