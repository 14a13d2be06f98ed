//! Texts merged beside Git: thousands of made-up edits of code-like files, and the same result byte for byte.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use amalgam_merge::{Labels, MergeSettings, MergeStrategy, Outcome, Sides, merge};

const TRIPLES: u64 = 2_400;

/// Numbers that look like chance and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

/// A file of functions, with the many equal lines that code has.
fn source(random: &mut Random, functions: usize) -> Vec<String> {
    let mut lines = vec!["use std::fmt;".to_owned(), String::new()];
    for function in 0..functions {
        lines.push(format!("fn step_{function}(input: &Input) -> Result<()> {{"));
        for _ in 0..2 + random.below(6) {
            lines.extend(statement(random));
        }
        lines.extend(["    Ok(())".to_owned(), "}".to_owned(), String::new()]);
    }
    lines
}

fn statement(random: &mut Random) -> Vec<String> {
    let number = random.below(40);
    match random.below(6) {
        0 => vec![format!("    if input.has({number}) {{"), "        return Ok(());".to_owned(), "    }".to_owned()],
        1 => vec!["    // Nothing to do here.".to_owned()],
        2 => vec![String::new()],
        3 => vec![
            format!("    for item in input.items({number}) {{"),
            "        check(item)?;".to_owned(),
            "    }".to_owned(),
        ],
        _ => vec![format!("    let value = input.get({number})?;")],
    }
}

fn edit(random: &mut Random, lines: &mut Vec<String>) {
    let at = random.below(lines.len());
    let end = (at + 1 + random.below(4)).min(lines.len());
    match random.below(7) {
        0 | 1 => {
            let new = statement(random);
            lines.splice(at..at, new);
        }
        2 => drop(lines.drain(at..end)),
        3 | 4 => {
            let new = statement(random);
            lines.splice(at..end, new);
        }
        5 => {
            let moved: Vec<_> = lines.drain(at..end).collect();
            let to = random.below(lines.len() + 1);
            lines.splice(to..to, moved);
        }
        _ => {
            if let Some(line) = lines.get_mut(at) {
                let _ = write!(line, " // {}", random.below(9));
            }
        }
    }
    if lines.is_empty() {
        lines.push("}".to_owned());
    }
}

fn bytes(lines: &[String], newline: &str, ends: bool) -> Vec<u8> {
    let mut text = lines.join(newline);
    if ends {
        text.push_str(newline);
    }
    text.into_bytes()
}

fn triple(seed: u64) -> [Vec<u8>; 3] {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let functions = 1 + random.below(8);
    let base = source(&mut random, functions);
    let newline = if seed.is_multiple_of(10) { "\r\n" } else { "\n" };
    let mut sides = [base.clone(), base.clone(), base];
    for side in &mut sides[1..] {
        for _ in 0..1 + random.below(6) {
            edit(&mut random, side);
        }
    }
    sides.map(|lines| bytes(&lines, newline, random.below(12) > 0))
}

/// What Git makes of it: whether it is clean, and the bytes.
fn git(directory: &Path, [base, ours, theirs]: &[Vec<u8>; 3], algorithm: &str) -> (bool, Vec<u8>) {
    for (name, text) in [("base", base), ("ours", ours), ("theirs", theirs)] {
        std::fs::write(directory.join(name), text).expect("a file");
    }
    let mut command = Command::new("git");
    command.args(["merge-file", "-p", "--diff3", "-L", "ours", "-L", "base", "-L", "theirs"]);
    command.arg(format!("--diff-algorithm={algorithm}")).args(["ours", "base", "theirs"]);
    let output = command.current_dir(directory).output().expect("git runs");
    let code = output.status.code().expect("an exit code");
    assert!((0..128).contains(&code), "seed: {}", String::from_utf8_lossy(&output.stderr));
    (code == 0, output.stdout)
}

fn ours(versions: &[Vec<u8>; 3]) -> (bool, Vec<u8>) {
    let setting = MergeSettings { labels: Labels::plain("ours", "base", "theirs"), ..MergeSettings::default() };
    let sides = Sides { base: Some(&versions[0]), ours: &versions[1], theirs: &versions[2] };
    match merge(&MergeStrategy::named("text").expect("a way"), &sides, &setting) {
        Outcome::Merged(bytes) => (true, bytes),
        Outcome::Conflicted(conflicted) => (false, conflicted.rendered.bytes),
        Outcome::Unable(why) => panic!("{why}"),
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the share is the point")]
fn texts_merge_as_git_merges_them() {
    let has_git = Command::new("git").arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(has_git, "git is not installed: there is nothing to compare with");
    let scratch = tempfile::tempdir().expect("a directory");
    let (mut equal, mut clean, mut both_clean_differ, mut only_ours, mut only_git) = (0, 0, 0, 0, 0);
    for seed in 1..=TRIPLES {
        let versions = triple(seed);
        let theirs = git(scratch.path(), &versions, "histogram");
        let mine = ours(&versions);
        equal += u64::from(mine == theirs);
        clean += u64::from(mine.0);
        if mine != theirs {
            match (mine.0, theirs.0) {
                (true, true) => both_clean_differ += 1,
                (true, false) => {
                    // The ends that two versions share are matched first here, and by all of Git's algorithms but this one.
                    assert_eq!(mine, git(scratch.path(), &versions, "myers"), "seed {seed}");
                    only_ours += 1;
                }
                (false, true) => only_git += 1,
                (false, false) => {}
            }
        }
    }
    println!(
        "{TRIPLES} triples: {equal} equal byte for byte; {clean} clean; both clean and different {both_clean_differ}, \
         clean only here {only_ours}, clean only in git {only_git}"
    );
    // Where equal lines could be matched in several ways, Git slides a change by other steps, and the edges of a conflict lie
    // elsewhere. Clean results are the same.
    assert!(equal >= 2_388, "{equal}");
    assert_eq!((both_clean_differ, only_git), (0, 0));
    assert!(only_ours <= 1, "{only_ours}");
}

#[test]
fn ends_that_versions_share_are_matched_first() {
    let lines = |text: &str| text.split(' ').flat_map(|line| [line, "\n"]).collect::<String>().into_bytes();
    // Our `e` and `.` could be those in the middle of the base; they are the end of both.
    let base = lines("if return } ok e . step . note ok e .");
    let mine = lines("IF note } e . for check } ok e .");
    let other = lines("if return } ok e . step . note ok for check } return } .");
    let merged = lines("IF note } e . for check } ok for check } return } .");
    assert_eq!(ours(&[base.clone(), mine.clone(), other.clone()]), (true, merged.clone()));
    assert_eq!(ours(&[base, other, mine]), (true, merged));
}
