//! A change of a thousand files looked into, beside Git on the same change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, linux, machine, median};
use amalgam_engine::{Commit, InsightOptions, RootId, Store, Summary, WorkingTree, insight};

const TIME: &str = "InsightDiff of 1,000 changed files (similar renames on)";
const RATIO: &str = "InsightDiff of 1,000 changed files, against git diff -M --numstat";
const GIT: &str = "git diff -M --numstat of the same change";
const OPENED: &str = "InsightDiff of 1,000 changed files, store just opened";

pub(crate) const FIGURES: &[&str] = &[TIME, RATIO, GIT, OPENED];

type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("insight");
    let (count, changed, turns) = bench.size((5_000, 1_000, 15), (200, 40, 3));
    let before = source_files(count)?;
    let after = edited(&before, changed);
    let directory = bench.directory("insight-store");
    let store = Store::open(&directory)?;
    let roots = (Some(commit(&store, "head/before", &before)?), Some(commit(&store, "head/after", &after)?));
    let repository = bench.directory("insight-git");
    let commits = git_commits(&repository, &[&before, &after])?;
    machine::settle();

    let options = InsightOptions::default();
    let look = |store: &Store| -> Result<Summary> { Ok(insight(store, roots.0, roots.1, &options)?.finish()?) };
    let summary = look(&store)?;
    let numbers = git_diff(&repository, &commits)?;
    let (mut ours, mut gits) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        ours.push(milliseconds(|| look(&store))?);
        gits.push(milliseconds(|| git_diff(&repository, &commits))?);
    }
    drop(store);
    let mut opened = Vec::new();
    for _ in 0..turns {
        opened.push(milliseconds(|| look(&Store::open(&directory)?))?);
    }

    let renames = numbers.lines().filter(|line| line.contains(" => ")).count();
    let what = format!(
        "{count} files of the Linux tree, {} changed: {} modified, {} renamed with edits, {} added, {} removed, {} + {} lines, \
         {:.1} MB on both sides; git lists {} files, {renames} renames, {} + {} lines",
        summary.files.total(),
        summary.files.modified,
        summary.files.renamed,
        summary.files.added,
        summary.files.removed,
        summary.lines_added,
        summary.lines_removed,
        (summary.bytes_before + summary.bytes_after) as f64 / 1e6,
        numbers.lines().count(),
        column(&numbers, 0),
        column(&numbers, 1),
    );
    let spread = format!("ms: ours {ours:.0?}, git {gits:.0?}");
    let (ours, gits) = (median(ours), median(gits));
    let how = format!(
        "{what}; RocksDB store, warm, {} threads; git repository of one pack, warm; in turns, median of {turns}; {spread}",
        machine::cores()
    );
    bench.add(TIME, (ours, "ms"), Bar::AtMost(300.0), how.clone());
    bench.add(RATIO, (ours / gits, "x"), Bar::AtMost(1.0), how.clone());
    bench.add(GIT, (gits, "ms"), Bar::None, how);
    let how = format!("{what}; the store is opened and dropped in each turn; median of {turns}: {opened:.0?}");
    bench.add(OPENED, (median(opened), "ms"), Bar::None, how);
    Ok(())
}

/// Sources of some size, the same in every run.
fn source_files(count: usize) -> Result<Files> {
    let tree = linux::tree()?;
    let mut files = Files::new();
    for part in ["fs", "kernel", "mm", "net", "drivers/net"] {
        for path in machine::files_below(&tree.join(part))? {
            if files.len() == count {
                return Ok(files);
            }
            let bytes = std::fs::read(&path)?;
            let name = path.strip_prefix(&tree)?.to_str().ok_or("a name that is no text")?.to_owned();
            if bytes.len() > 100 {
                files.insert(name, bytes);
            }
        }
    }
    Ok(files)
}

/// The same after a day's work: most of the changed files edited in place, one in ten moved and edited, a few new or gone.
fn edited(files: &Files, changed: usize) -> Files {
    let mut random = Random::new(11);
    let mut after = files.clone();
    let paths: Vec<&String> = files.keys().collect();
    let step = paths.len() / changed;
    for (number, path) in paths.iter().step_by(step).take(changed).enumerate() {
        let Some(bytes) = after.remove(*path) else { continue };
        let contents = edit(&bytes, &mut random);
        match number % 40 {
            0 => drop(contents),
            1 => {
                after.insert((*path).clone(), bytes);
                after.insert(format!("{path}.new.c"), random.text(4_000));
            }
            2 | 3 => drop(after.insert(format!("moved/{path}"), contents)),
            4 | 5 => drop(after.insert(format!("moved/renamed-{number}.c"), contents)),
            _ => drop(after.insert((*path).clone(), contents)),
        }
    }
    after
}

/// One to eight places with a line or two changed, put in or taken out.
fn edit(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..=random.below(8) {
        let at = random.below(lines.len() as u64) as usize;
        let mut line = random.text(30);
        line.retain(|byte| *byte != b'\n');
        line.push(b'\n');
        match random.below(3) {
            0 => lines[at] = line,
            1 => lines.insert(at, line),
            _ if lines.len() > 4 => drop(lines.remove(at)),
            _ => lines.push(line),
        }
    }
    lines.concat()
}

fn commit(store: &Store, head: &str, files: &Files) -> Result<RootId> {
    let mut tree = WorkingTree::new(store);
    for (path, bytes) in files {
        if let Some((directory, _)) = path.rsplit_once('/') {
            tree.create_directories(directory)?;
        }
        tree.write(path, bytes)?;
    }
    let done = tree.commit(Commit::new(&reference(head), "the whole tree"))?;
    Ok(store.snapshot(done.snapshot)?.root)
}

fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(repository).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]);
    command
}

/// A repository with a commit of each tree, in one pack.
fn git_commits(repository: &PathBuf, trees: &[&Files]) -> Result<Vec<String>> {
    std::fs::create_dir_all(repository)?;
    output(git(repository).args(["init", "--quiet"]))?;
    let mut commits = Vec::new();
    for files in trees {
        for entry in std::fs::read_dir(repository)? {
            let entry = entry?;
            if entry.file_name() != ".git" {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        for (path, bytes) in *files {
            let path = repository.join(path);
            std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
            std::fs::write(path, bytes)?;
        }
        output(git(repository).args(["add", "--all", "--force"]))?;
        output(git(repository).args(["commit", "--quiet", "-m", "a tree"]))?;
        commits.push(output(git(repository).args(["rev-parse", "HEAD"]))?.trim().to_owned());
    }
    output(git(repository).args(["repack", "-adq"]))?;
    Ok(commits)
}

fn git_diff(repository: &Path, commits: &[String]) -> Result<String> {
    output(git(repository).args(["diff", "-M", "--numstat"]).args(commits))
}

/// The sum of the added or the removed lines.
fn column(numbers: &str, index: usize) -> u64 {
    numbers.lines().filter_map(|line| line.split('\t').nth(index)?.parse::<u64>().ok()).sum()
}

fn output(command: &mut Command) -> Result<String> {
    let done = command.stderr(Stdio::inherit()).output()?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(format!("{command:?} ended with {}", done.status).into())
    }
}

fn milliseconds<T>(run: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
