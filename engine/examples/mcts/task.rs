//! The task of the search example: a small Python program with planted bugs, the script that tests it, and the edits that a
//! search may try. Needs `python3`.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use amalgam_engine::object::{EntryKind, Node};
use amalgam_engine::search::{Choice, Edits};
use amalgam_engine::{Bare, SnapshotId, Store, WorkingTree};

/// Whatever went wrong, for a person to read.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The program to be repaired.
pub const PROGRAM: &str = "ledger.py";
const SCRIPT: &str = "check.py";

/// Five functions have one bug each, `gcd` has none.
const PROGRAM_TEXT: &str = "\
def clamp(x, low, high):
    return max(low, max(x, high))

def mean(xs):
    return sum(xs) // len(xs)

def median(xs):
    ys = sorted(xs)
    middle = len(ys) // 2
    if len(ys) % 2 != 0:
        return (ys[middle - 1] + ys[middle]) / 2
    return ys[middle]

def place(xs, x):
    low, high = 0, len(xs)
    while low < high:
        middle = (low + high) // 2
        if xs[middle] <= x:
            low = middle + 1
        else:
            high = middle
    return low

def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a - b
    return a

def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a
";

/// Says of each test whether it passes. A wrong edit may loop for ever, so each has a tenth of a second of
/// processor time.
const SCRIPT_TEXT: &str = "\
import signal
import ledger

TESTS = [
    ('clamp', lambda: [ledger.clamp(x, 0, 10) for x in (-5, 0, 7, 10, 12)] == [0, 0, 7, 10, 10]),
    ('clamp', lambda: ledger.clamp(3, 5, 9) == 5),
    ('mean', lambda: ledger.mean([1, 2]) == 1.5),
    ('mean', lambda: ledger.mean([4, 4, 4]) == 4),
    ('median', lambda: ledger.median([3, 1, 2]) == 2),
    ('median', lambda: ledger.median([4, 1, 3, 2]) == 2.5),
    ('place', lambda: ledger.place([1, 3, 3, 5], 3) == 1),
    ('place', lambda: ledger.place([1, 3, 3, 5], 6) == 4),
    ('fibonacci', lambda: [ledger.fibonacci(n) for n in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]),
    ('fibonacci', lambda: ledger.fibonacci(20) == 6765),
    ('gcd', lambda: ledger.gcd(12, 18) == 6),
    ('gcd', lambda: ledger.gcd(7, 0) == 7),
]

def late(*_):
    raise TimeoutError

signal.signal(signal.SIGVTALRM, late)
for name, test in TESTS:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)
    try:
        passed = test()
    except Exception:
        passed = False
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print('ok' if passed else 'FAIL', name)
";

/// What may be put for what.
const SWAPS: [(&str, &str); 12] = [
    (" < ", " <= "),
    (" <= ", " < "),
    (" == ", " != "),
    (" != ", " == "),
    (" + ", " - "),
    (" - ", " + "),
    (" // ", " / "),
    (" / ", " // "),
    ("min(", "max("),
    ("max(", "min("),
    (" + 1", ""),
    (" - 1", ""),
];

/// A line of the program, and what is to stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineEdit {
    line: usize,
    text: String,
}

/// What the tests said of a program.
#[derive(Clone, Debug)]
struct Verdict {
    reward: f64,
    failing: BTreeSet<String>,
}

/// Repairs the program: runs the tests on a written-out copy of each state, and edits the functions whose tests fail.
pub struct Repair {
    python: Option<String>,
    seen: Mutex<HashMap<Option<Bare>, Verdict>>,
    /// How often the tests were run, and how often their result was known.
    counts: Mutex<(u64, u64)>,
}

impl Repair {
    /// With real evaluation. Fails with what to do when there is no `python3`.
    pub fn new() -> Result<Self> {
        let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        match asked {
            Ok(done) if done.status.success() => {
                Ok(Self::with(Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())))
            }
            _ => Err("python3 is not there or does not run; install it, or search with --free".into()),
        }
    }

    /// With free evaluation: a number that follows from the tree. Every function may be edited.
    pub fn free() -> Self {
        Self::with(None)
    }

    fn with(python: Option<String>) -> Self {
        Self { python, seen: Mutex::default(), counts: Mutex::default() }
    }

    /// How often the tests were run, and how often their result was known.
    pub fn counts(&self) -> (u64, u64) {
        *self.counts.lock().expect("no thread panicked")
    }

    /// The program and its tests, not committed yet.
    pub fn program(store: &Store) -> Result<WorkingTree> {
        let mut tree = WorkingTree::new(store);
        tree.write(PROGRAM, PROGRAM_TEXT.as_bytes())?;
        tree.write(SCRIPT, SCRIPT_TEXT.as_bytes())?;
        Ok(tree)
    }

    /// What the tests say of a tree. Trees that are equal but for their times are tested once.
    fn verdict(&self, tree: &WorkingTree, snapshot: SnapshotId) -> Result<Verdict> {
        let store = tree.store();
        let bare = match store.root(store.snapshot(snapshot)?.root)?.directory.node {
            Node::Directory(contents) => contents.map(|contents| contents.bare),
            _ => None,
        };
        if let Some(known) = self.seen.lock().expect("no thread panicked").get(&bare) {
            self.counts.lock().expect("no thread panicked").1 += 1;
            return Ok(known.clone());
        }
        let verdict = match &self.python {
            Some(python) => run_tests(python, tree)?,
            None => {
                let number =
                    snapshot.to_string().bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31) ^ u32::from(byte));
                Verdict { reward: f64::from(number % 1_000) / 1_001.0, failing: BTreeSet::new() }
            }
        };
        self.counts.lock().expect("no thread panicked").0 += 1;
        self.seen.lock().expect("no thread panicked").insert(bare, verdict.clone());
        Ok(verdict)
    }
}

impl Edits for Repair {
    type Action = LineEdit;
    type Error = Box<dyn Error + Send + Sync>;

    fn actions(&self, tree: &WorkingTree, _: usize) -> Result<Vec<Choice<LineEdit>>> {
        let text = String::from_utf8(tree.read(PROGRAM)?)?;
        let failing = match (&self.python, tree.base()) {
            (Some(_), Some(snapshot)) => Some(self.verdict(tree, snapshot)?.failing),
            _ => None,
        };
        let lines: Vec<&str> = text.lines().collect();
        let mut choices = Vec::new();
        for (name, body) in functions(&lines) {
            if failing.as_ref().is_some_and(|failing| !failing.contains(name)) {
                continue;
            }
            for line in body {
                for (from, to) in SWAPS {
                    for (at, _) in lines[line].match_indices(from) {
                        let mut text = lines[line].to_owned();
                        text.replace_range(at..at + from.len(), to);
                        choices.push(Choice::of(LineEdit { line, text }));
                    }
                }
            }
        }
        Ok(choices)
    }

    fn edit(&self, tree: &mut WorkingTree, edit: &LineEdit) -> Result<()> {
        let text = String::from_utf8(tree.read(PROGRAM)?)?;
        let mut lines: Vec<&str> = text.lines().collect();
        *lines.get_mut(edit.line).ok_or("no such line")? = &edit.text;
        tree.write(PROGRAM, (lines.join("\n") + "\n").as_bytes())?;
        Ok(())
    }

    fn evaluate(&self, tree: &WorkingTree, snapshot: SnapshotId) -> Result<f64> {
        Ok(self.verdict(tree, snapshot)?.reward)
    }

    fn describe(&self, edit: &LineEdit) -> String {
        format!("line {}: {}", edit.line + 1, edit.text.trim())
    }
}

/// The functions of a program, with their lines.
fn functions<'a>(lines: &[&'a str]) -> Vec<(&'a str, Range<usize>)> {
    let mut found: Vec<(&str, Range<usize>)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        match line.strip_prefix("def ").and_then(|rest| rest.split('(').next()) {
            Some(name) => found.push((name, at + 1..at + 1)),
            None => found.iter_mut().last().into_iter().for_each(|(_, body)| body.end = at + 1),
        }
    }
    found
}

/// Writes a tree out and runs its tests there.
fn run_tests(python: &str, tree: &WorkingTree) -> Result<Verdict> {
    let directory = tempfile::tempdir()?;
    write_out(tree, "", directory.path())?;
    let done = Command::new(python).args(["-S", "-B", SCRIPT]).current_dir(directory.path()).output()?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let results: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    let passed = results.iter().filter(|(word, _)| *word == "ok").count();
    let failing = results.iter().filter(|(word, _)| *word != "ok").map(|(_, name)| (*name).to_owned()).collect();
    let total = SCRIPT_TEXT.matches("lambda").count();
    Ok(Verdict { reward: passed as f64 / total as f64, failing })
}

fn write_out(tree: &WorkingTree, path: &str, target: &Path) -> Result<()> {
    for item in tree.list(path)? {
        let (name, stat) = item?;
        let name = std::str::from_utf8(name.as_bytes())?;
        let inside = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        match stat.kind {
            EntryKind::Directory => {
                std::fs::create_dir(target.join(name))?;
                write_out(tree, &inside, &target.join(name))?;
            }
            _ => std::fs::write(target.join(name), tree.read(&inside)?)?,
        }
    }
    Ok(())
}
