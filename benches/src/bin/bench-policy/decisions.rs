//! One decision about a path.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, sample};
use amalgam_policy::Policy;

const FIRST: &str = "decision, 1,000 rules, first";
const CACHED: &str = "decision, 1,000 rules, cached";
const RULES: usize = 1_000;
/// Decisions in one sample: a single one is shorter than a look at the clock.
const BATCH: usize = 1_000;

pub(crate) const FIGURES: &[&str] = &[FIRST, CACHED];

/// The text of a policy with this many rules: most name a directory, some names at any depth, some have wildcards inside.
pub(crate) fn policy_text(rules: usize) -> Result<String> {
    let mut text = "default = \"R\"\n".to_owned();
    for number in 0..rules {
        let path = match number % 10 {
            0 => format!("*.kind{number}"),
            1 => format!("area{number}/*/generated"),
            _ => format!("area{}/part{number}", number % 37),
        };
        let level = ["R", "RA", "RW-", "RW"][number % 4];
        writeln!(text, "[[rule]]\nagents = [\"bot-*\"]\npaths = [\"{path}\"]\nlevel = \"{level}\"")?;
    }
    Ok(text)
}

/// A policy with this many rules.
pub(crate) fn policy(rules: usize) -> Result<Arc<Policy>> {
    Ok(Arc::new(Policy::read(&policy_text(rules)?)?))
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("decisions");
    let agent = policy(RULES)?.agent("bot-7");
    let paths: Vec<String> = (0..BATCH).map(|at| format!("area{}/part{}/src/file{at}.rs", at % 37, at % 997)).collect();
    let times = bench.size(200, 5);
    let decide = |is_cached: bool| {
        sample(2, times, |_| {
            for path in &paths {
                let path = path.as_bytes();
                black_box(if is_cached { agent.decide(path) } else { agent.decide_uncached(path) });
            }
            Ok(())
        })
    };
    for (name, is_cached, bar) in [(FIRST, false, 20.0), (CACHED, true, 1.0)] {
        let taken = decide(is_cached)?;
        let how = format!("{BATCH} paths in a sample: {}", taken.describe("us"));
        bench.add(name, (taken.p50() / BATCH as f64, "us"), Bar::AtMost(bar), how);
    }
    Ok(())
}
