//! Sessions at a terminal, as data: each file in `transcripts/` holds commands after `$ ` and what they print. What differs from
//! run to run (ids, ages, sizes in the store, paths) is masked. With UPDATE_TRANSCRIPTS=1 the files are written anew.

use std::path::{Path, PathBuf};

use crate::scratch::Scratch;

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/command/transcripts").join(name);
    let expected = std::fs::read_to_string(&path).expect("the transcript");
    let scratch = Scratch::new();
    let mut found = String::new();
    for line in expected.lines() {
        if line.starts_with('#') || line.is_empty() {
            found.push_str(&format!("{line}\n"));
        }
        let Some(command) = line.strip_prefix("$ ") else { continue };
        found.push_str(&format!("{line}\n"));
        let done = scratch.output(&format!("exec 2>&1; {command}"));
        let printed = masked(&String::from_utf8_lossy(&done.stdout), &scratch.path());
        // Lines of output that could be taken for something else are set apart.
        found.extend(printed.lines().map(|line| format!("  {line}\n")));
        match done.status.code() {
            Some(0) => {}
            code => found.push_str(&format!("  [ends with {}]\n", code.unwrap_or(-1))),
        }
    }
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        std::fs::write(&path, &found).expect("written");
    }
    let found: Vec<_> = found.lines().map(str::trim_end).collect();
    let expected: Vec<_> = expected.lines().map(str::trim_end).collect();
    if let Some(at) = (0..found.len().max(expected.len())).find(|at| found.get(*at) != expected.get(*at)) {
        panic!("{name}:{}: expected {:?}, found {:?}\n{}", at + 1, expected.get(at), found.get(at), found.join("\n"));
    }
}

/// Without what differs from run to run.
fn masked(text: &str, scratch: &Path) -> String {
    let text = text.replace(&scratch.display().to_string(), "SCRATCH");
    let without_time = |line: &str| match line.strip_prefix("Time:") {
        Some(_) => "Time: TIME".to_owned(),
        None => line.to_owned(),
    };
    let text = text.lines().map(without_time).collect::<Vec<_>>().join("\n");
    let mut masked = String::new();
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let hex = rest.find(|c: char| !c.is_ascii_hexdigit() || c.is_ascii_uppercase()).unwrap_or(rest.len());
        let starts_word = !masked.ends_with(|c: char| c.is_alphanumeric());
        if hex >= 8 && starts_word {
            masked.push_str("ID");
            rest = &rest[hex..];
        } else if let Some(length) = age(rest).filter(|_| starts_word) {
            masked.push_str("AGO");
            rest = &rest[length..];
        } else if let Some(length) =
            size(rest).filter(|length| masked.ends_with("store grew ") || rest[*length..].starts_with(" in the store"))
        {
            masked.push_str("SIZE");
            rest = &rest[length..];
        } else {
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    masked
}

/// The length of an age at the start of a text.
fn age(text: &str) -> Option<usize> {
    if text.starts_with("just now") {
        return Some("just now".len());
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0)?;
    let units = ["second", "minute"].iter().find(|unit| text[digits..].starts_with(&format!(" {unit}")))?;
    let end = text[digits + 1 + units.len()..].find(" ago")?;
    (end <= 1).then_some(digits + 1 + units.len() + end + " ago".len())
}

/// The length of a size at the start of a text.
fn size(text: &str) -> Option<usize> {
    let number = text.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|digits| *digits > 0)?;
    let unit = text[number..].strip_prefix(' ')?;
    let letters = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
    Some(number + 1 + letters)
}

#[test]
fn masks_hide_what_differs_and_nothing_else() {
    let mask = |text: &str| masked(text, &PathBuf::from("/x/y"));
    assert_eq!(mask("3f9a2c1e  main  just now"), "ID  main  AGO");
    assert_eq!(mask("since 12 seconds ago; 3 files"), "since AGO; 3 files");
    assert_eq!(mask("1 minute ago, store grew 1.2 MB in /x/y/z"), "AGO, store grew SIZE in SCRATCH/z");
    assert_eq!(mask("1 file, 366 B in the store"), "1 file, SIZE in the store");
    assert_eq!(mask("Time:    2026-01-01"), "Time: TIME");
    assert_eq!(mask("12 changed (+3 ~8 -1)"), "12 changed (+3 ~8 -1)");
}

#[test]
fn a_project_is_protected_broken_and_brought_back() {
    check("protect.txt");
}

#[test]
fn what_is_purged_is_listed_and_may_come_back() {
    check("purge.txt");
}

#[test]
fn forks_are_made_compared_and_removed() {
    check("forks.txt");
}

#[test]
fn history_is_shown_labelled_and_searched() {
    check("history.txt");
}

#[test]
fn commands_run_between_snapshots_and_the_best_attempt_wins() {
    check("run.txt");
}

#[test]
fn errors_say_what_happened_and_what_to_do() {
    check("errors.txt");
}

#[test]
fn settings_are_kept() {
    check("settings.txt");
}

#[test]
fn merges_are_made_queued_reviewed_and_ruled() {
    check("merging.txt");
}
