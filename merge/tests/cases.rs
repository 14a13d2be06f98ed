//! Merges as data: each directory below `cases/WAY/` holds three versions and what must come of them.
//!
//! `base` may be missing: both sides added the file. `rule.toml` may give the way its options. What must come out is either
//! `expected`, byte for byte, or `conflict.txt`: the paths in conflict, a line `---`, and the file as it is shown. `by` names
//! the way that must have brought it where that is another one. With `AMALGAM_BLESS` set, what is missing is written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use amalgam_merge::rules::Content;
use amalgam_merge::{
    Clash, Labels, MergeReport, MergeSettings, MergeStrategy, Outcome, Rules, Sides, merge_with_fallback,
};

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).expect("a directory of cases");
    let mut found: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

struct Case {
    name: String,
    directory: PathBuf,
    base: Option<Vec<u8>>,
    ours: Vec<u8>,
    theirs: Vec<u8>,
    strategy: MergeStrategy,
}

impl Case {
    fn read(strategy: &str, directory: PathBuf) -> Self {
        let file = |name: &str| std::fs::read(directory.join(name)).ok();
        let strategy = match file("rule.toml") {
            Some(rule) => {
                let text = String::from_utf8(rule).expect("rules are text");
                let rules = Rules::read(&text, "rule.toml").expect("rules");
                rules.choose(b"file", Content::Text).expect("a rule for everything").clone()
            }
            None => MergeStrategy::named(strategy).expect("a directory is called like a way"),
        };
        let version = |name: &str| file(name).unwrap_or_else(|| panic!("{}: no {name}", directory.display()));
        let name = format!("{}/{}", strategy.name(), directory.file_name().expect("a name").to_string_lossy());
        Self { name, base: file("base"), ours: version("ours"), theirs: version("theirs"), strategy, directory }
    }

    fn sides(&self) -> Sides<'_> {
        Sides { base: self.base.as_deref(), ours: &self.ours, theirs: &self.theirs }
    }

    fn merged(&self, sides: &Sides<'_>) -> MergeReport {
        let setting = MergeSettings { labels: Labels::plain("ours", "base", "theirs"), ..MergeSettings::default() };
        merge_with_fallback(&self.strategy, sides, &setting)
    }
}

/// A conflict as a text: where, and how it looks.
fn shown(outcome: &Outcome) -> Option<Vec<u8>> {
    let Outcome::Conflicted(conflicted) = outcome else { return None };
    let mut text = Vec::new();
    for clash in &conflicted.clashes {
        let line = match clash {
            Clash::Path(path) => format!("{path}\n"),
            Clash::Lines { .. } => "lines\n".to_owned(),
        };
        text.extend_from_slice(line.as_bytes());
    }
    text.extend_from_slice(b"---\n");
    text.extend_from_slice(&conflicted.rendered.bytes);
    Some(text)
}

fn check(case: &Case, errors: &mut Vec<String>) {
    let done = case.merged(&case.sides());
    let (file, bytes) = match &done.outcome {
        Outcome::Merged(bytes) => ("expected", bytes.clone()),
        Outcome::Conflicted(_) => ("conflict.txt", shown(&done.outcome).expect("a conflict")),
        Outcome::Unable(why) => return errors.push(format!("{}: unable: {why}", case.name)),
    };
    let steps: Vec<_> = done.failed_attempts.iter().map(|step| step.why.to_string()).collect();
    let others = ["expected", "conflict.txt"].map(|name| case.directory.join(name));
    if std::env::var_os("AMALGAM_BLESS").is_some() && others.iter().all(|path| !path.exists()) {
        std::fs::write(case.directory.join(file), &bytes).expect("a file");
        if done.strategy != case.strategy.name() {
            std::fs::write(case.directory.join("by"), format!("{}\n", done.strategy)).expect("a file");
        }
    }
    let expected = std::fs::read(case.directory.join(file)).unwrap_or_default();
    if bytes != expected {
        let text = String::from_utf8_lossy(&bytes);
        errors.push(format!("{} by {} {steps:?}: not as {file} says:\n{text}", case.name, done.strategy));
    }
    let by = std::fs::read_to_string(case.directory.join("by")).unwrap_or_else(|_| case.strategy.name().to_owned());
    if by.trim() != done.strategy {
        errors.push(format!("{}: merged by {}, not by {}: {steps:?}", case.name, done.strategy, by.trim()));
    }
    mirrored(case, &done, errors);
}

/// With the sides exchanged it comes to the same: the same paths in conflict, or the same lines in some order.
fn mirrored(case: &Case, done: &MergeReport, errors: &mut Vec<String>) {
    let mirror = case.merged(&case.sides().swapped());
    let lines = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut lines: Vec<_> = text.lines().map(|line| line.trim_end_matches(',').to_owned()).collect();
        lines.sort();
        lines
    };
    let paths = |outcome: &Outcome| match outcome {
        Outcome::Conflicted(conflicted) => conflicted.clashes.iter().map(|clash| format!("{clash:?}")).collect(),
        _ => BTreeSet::new(),
    };
    let is_same = match (&done.outcome, &mirror.outcome) {
        (Outcome::Merged(one), Outcome::Merged(other)) if case.strategy.name() == "crdt" => one == other,
        (Outcome::Merged(one), Outcome::Merged(other)) => lines(one) == lines(other),
        (Outcome::Conflicted(_), Outcome::Conflicted(_)) if done.strategy == "text" => true,
        (one, other) => paths(one) == paths(other) && !paths(one).is_empty(),
    };
    if !is_same {
        errors.push(format!("{}: not the same with the sides exchanged:\n{done:?}\n{mirror:?}", case.name));
    }
}

#[test]
fn every_case_comes_out_as_written() {
    let mut errors = Vec::new();
    let mut count = 0;
    for directory in directories(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")) {
        let strategy = directory.file_name().expect("a name").to_string_lossy().into_owned();
        for case in directories(&directory) {
            check(&Case::read(&strategy, case), &mut errors);
            count += 1;
        }
    }
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
    assert!(count >= 100, "{count} cases");
}
