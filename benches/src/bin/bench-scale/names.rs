//! One name that is created, deleted and undeleted again and again.

use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_engine::workspace::{NewWorkspace, WorkspaceName, Workspaces};

use crate::grown::{Grown, act};

/// Rounds at either end that are compared.
const COMPARED: usize = 200;

pub fn run(bench: &mut Bench, grown: &Grown, made: &str) -> Result<()> {
    let rounds = bench.size(5_000, 1_000);
    let workspaces = Workspaces::of(grown.store());
    let name = WorkspaceName::new("again")?;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let [create, delete, undelete] = &mut times;
        let timed = |times: &mut Vec<f64>, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            let begun = Instant::now();
            run()?;
            times.push(microseconds(begun.elapsed()));
            Ok(())
        };
        timed(create, &mut || Ok(workspaces.create(&name, &NewWorkspace::default(), &act()).map(drop)?))?;
        timed(delete, &mut || Ok(workspaces.delete(&name, &act()).map(drop)?))?;
        timed(undelete, &mut || Ok(workspaces.undelete(&name, &act()).map(drop)?))?;
        workspaces.delete(&name, &act())?;
    }
    let names = ["create, 5,000th / first", "delete, 5,000th / first", "undelete, 5,000th / first"];
    for (figure, times) in names.into_iter().zip(times) {
        let [first, last] =
            [&times[..COMPARED], &times[times.len() - COMPARED..]].map(|times| Samples::new(times.to_vec()));
        let how = format!(
            "the first {COMPARED} of {rounds} times: {}; the last: {}; nothing forgotten in between; {made}",
            first.describe("us"),
            last.describe("us")
        );
        bench.add(figure, (last.p50() / first.p50(), "times"), Bar::AtMost(1.5), how);
    }
    Ok(())
}
