//! The Linux source tree: captured, looked at again, checked out, restored.
//!
//! No side ends in a sync of the files it wrote; ours makes its own commit durable, as it always does. Each begins when what
//! the one before wrote is on the disk, and everything is in the page cache unless it says otherwise. Nothing is removed before the
//! end: ext4 does not give away an inode again for minutes, and whoever makes files after a large removal searches for free ones.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amalgam_benches::bench::Bench;

use amalgam_benches::{Bar, Result, linux, machine, median};

use crate::peers::{self, Amalgam};

pub const FIGURES: &[&str] = &[
    FIRST,
    FIRST_COPY,
    FIRST_GIT,
    FIRST_RESTIC,
    FIRST_BORG,
    SIZE,
    AGAIN,
    STATUS,
    WATCHED_STATUS,
    WATCHED_COMMIT,
    CHECKOUT,
    CHECKOUT_WORKTREE,
    CHECKOUT_COLD,
    RESTORE,
    RESTORE_TOUCHED,
];
const FIRST: &str = "first capture";
const FIRST_COPY: &str = "first capture / cp -a";
const FIRST_GIT: &str = "git add -A / first capture";
const FIRST_RESTIC: &str = "restic backup / first capture";
const FIRST_BORG: &str = "borg create / first capture";
const SIZE: &str = "store size / restic's repository";
const AGAIN: &str = "commit, one file changed / git status";
const STATUS: &str = "status / git status";
const WATCHED_STATUS: &str = "status, watched";
const WATCHED_COMMIT: &str = "commit of one file, watched";
const CHECKOUT: &str = "checkout / cp -a";
const CHECKOUT_WORKTREE: &str = "git worktree add / checkout";
const CHECKOUT_COLD: &str = "checkout / cp -a, caches dropped";
const RESTORE: &str = "restore of 10 files / git status";
const RESTORE_TOUCHED: &str = "files touched by that restore";

const MB: f64 = 1e6;

/// Nothing is removed before the end, so there are a dozen copies of the tree by then.
const ROOM_BYTES: u64 = 22 << 30;

pub fn run(bench: &mut Bench) -> Result<()> {
    let tree = linux::tree()?;
    let free = machine::free_bytes(&bench.directory("."))?;
    if free < ROOM_BYTES && !bench.options.quick {
        let (need, have) = (ROOM_BYTES >> 30, free >> 30);
        return Err(format!("needs {need} GiB of free disk, {have} are there; choose another place with --dir").into());
    }
    let tree = if bench.options.quick { tree.join("Documentation") } else { tree };
    let turns = bench.size(3, 1);
    let work = bench.directory("work");
    peers::copy(&tree, &work)?;
    let copies = (0..turns).map(|turn| peers::copy(&work, &bench.directory(&format!("copy-{turn}"))));
    let copies = copies.collect::<Result<Vec<_>>>()?;
    let copied = median(copies.clone());
    let repository = bench.directory(&format!("copy-{}", turns - 1));

    let mut firsts = Vec::new();
    let mut ours = None;
    for turn in 0..turns {
        drop(ours.take());
        let amalgam = Amalgam::new(bench.directory(&format!("store-{turn}")))?;
        firsts.push(amalgam.seconds(&work, &["init", "-q"])?);
        ours = Some(amalgam);
    }
    let amalgam = ours.expect("at least one turn");
    let first = median(firsts.clone());
    let files = machine::files_below(&work)?;
    let bytes: u64 = files.iter().map(|file| Ok(file.symlink_metadata()?.len())).sum::<Result<u64>>()?;
    let input = format!("{} files, {:.0} MB, page cache", files.len(), bytes as f64 / MB);
    bench.add(FIRST, (first, "s"), Bar::None, format!("{input}; `amalgam init`, median of {firsts:.2?}"));
    let how = format!("{input}; {first:.2} s, `cp -a` median of {copies:.2?}");
    bench.add(FIRST_COPY, (first / copied, "x"), Bar::AtMost(2.0), how);
    // Written out before it is measured, as the peers' repositories are.
    amalgam.stop()?;
    let size = peers::disk_bytes(&amalgam.store)?;
    backups(bench, &work, first, size)?;

    peers::git(&repository, &["init", "--quiet"])?;
    let added = peers::git(&repository, &["add", "-A", "--force"])?;
    bench.add(
        FIRST_GIT,
        (added / first, "x"),
        Bar::AtLeast(6.0),
        format!("`git add -A --force` {added:.1} s, ours {first:.2} s"),
    );
    peers::git(&repository, &["commit", "--quiet", "-m", "all"])?;

    again(bench, &amalgam, &work, &repository)?;
    restore(bench, &amalgam, &work, &repository)?;
    checkout(bench, &amalgam, &work, &repository, turns)?;
    amalgam.stop()
}

fn backups(bench: &mut Bench, work: &Path, first: f64, size: u64) -> Result<()> {
    let source = work.display().to_string();
    if peers::have("restic") {
        let repository = bench.directory("restic");
        peers::restic(&repository, &["init"])?;
        let took = peers::restic(&repository, &["backup", &source])?;
        let how = format!("`restic backup` {took:.1} s, ours {first:.2} s");
        bench.add(FIRST_RESTIC, (took / first, "x"), Bar::AtLeast(2.5), how);
        let theirs = peers::disk_bytes(&repository)?;
        let how =
            format!("{:.0} MB on disk after the process ended, restic {:.0} MB", size as f64 / MB, theirs as f64 / MB);
        bench.add(SIZE, (size as f64 / theirs as f64, "x"), Bar::AtMost(1.15), how);
    }
    if peers::have("borg") {
        let repository = bench.directory("borg").display().to_string();
        peers::borg(&["init", "--encryption", "none", &repository])?;
        let took = peers::borg(&["create", &format!("{repository}::one"), &source])?;
        let how = format!("`borg create` {took:.1} s, ours {first:.2} s");
        bench.add(FIRST_BORG, (took / first, "x"), Bar::None, how);
    }
    Ok(())
}

/// A file somewhere in the middle of the tree.
fn some_file(directory: &Path, number: usize) -> Result<PathBuf> {
    let files = machine::files_below(directory)?;
    let plain: Vec<_> =
        files.into_iter().filter(|file| !file.components().any(|part| part.as_os_str() == ".git")).collect();
    Ok(plain[(number * 7_919 + plain.len() / 2) % plain.len()].clone())
}

fn append(file: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    Ok(fs::OpenOptions::new().append(true).open(file)?.write_all(text.as_bytes())?)
}

/// The same question to us and to git, again and again in turns, so that the hour's weather falls on both.
fn again(bench: &mut Bench, amalgam: &Amalgam, work: &Path, repository: &Path) -> Result<()> {
    const ROUNDS: usize = 7;
    let (mut commits, mut statuses, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    peers::git(repository, &["status", "--short"])?;
    amalgam.seconds(work, &["status"])?;
    for round in 0..ROUNDS {
        append(&some_file(work, round)?, "one more line\n")?;
        append(&some_file(repository, round)?, "one more line\n")?;
        std::thread::sleep(Duration::from_millis(50));
        theirs.push(peers::git(repository, &["status", "--short"])?);
        commits.push(amalgam.seconds(work, &["commit", "-m", "one file"])?);
        statuses.push(amalgam.seconds(work, &["status"])?);
    }
    let (commit, status, git) = (median(commits), median(statuses), median(theirs));
    let how = |what: &str, ours: f64| {
        format!("{what} {:.0} ms, `git status` {:.0} ms; {ROUNDS} rounds in turns", ours * 1e3, git * 1e3)
    };
    bench.add(AGAIN, (commit / git, "x"), Bar::AtMost(1.5), how("`amalgam commit`, walk included,", commit));
    bench.add(STATUS, (status / git, "x"), Bar::AtMost(1.5), how("`amalgam status`", status));

    amalgam.seconds(work, &["watch", "--background", "--quiet-for", "0s"])?;
    amalgam.seconds(work, &["commit"])?;
    let (mut commits, mut statuses) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        append(&some_file(work, round + 100)?, "one more line\n")?;
        std::thread::sleep(Duration::from_millis(50));
        statuses.push(amalgam.seconds(work, &["status"])? * 1e3);
        commits.push(amalgam.seconds(work, &["commit", "-m", "one file"])? * 1e3);
    }
    amalgam.seconds(work, &["watch", "--stop"])?;
    let how = || format!("one changed file, {ROUNDS} rounds; the whole command, process start included");
    bench.add(WATCHED_STATUS, (median(statuses), "ms"), Bar::AtMost(20.0), how());
    bench.add(WATCHED_COMMIT, (median(commits), "ms"), Bar::AtMost(20.0), how());
    Ok(())
}

/// Inode and ctime of every file: what was not touched has the same.
fn stamps(directory: &Path) -> Result<Vec<(u64, i64, i64)>> {
    let stamp = |file: &PathBuf| {
        let found = file.symlink_metadata()?;
        Ok((found.ino(), found.ctime(), found.ctime_nsec()))
    };
    machine::files_below(directory)?.iter().map(stamp).collect()
}

fn restore(bench: &mut Bench, amalgam: &Amalgam, work: &Path, repository: &Path) -> Result<()> {
    const ROUNDS: usize = 5;
    let (mut ours, mut theirs, mut touched) = (Vec::new(), Vec::new(), 0);
    for round in 0..ROUNDS {
        for number in 0..10 {
            append(&some_file(work, 1_000 + round * 10 + number)?, "to be taken back\n")?;
        }
        amalgam.seconds(work, &["commit", "-m", "ten files"])?;
        std::thread::sleep(Duration::from_millis(50));
        let before = stamps(work)?;
        theirs.push(peers::git(repository, &["status", "--short"])?);
        ours.push(amalgam.seconds(work, &["restore", "@~"])?);
        touched = touched.max(before.iter().zip(stamps(work)?).filter(|(before, after)| **before != *after).count());
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let how =
        format!("`amalgam restore @~` {:.0} ms, `git status` {:.0} ms; {ROUNDS} rounds", ours * 1e3, theirs * 1e3);
    bench.add(RESTORE, (ours / theirs, "x"), Bar::AtMost(1.5), how);
    let how = "files whose inode or ctime differs afterwards, at most".to_owned();
    bench.add(RESTORE_TOUCHED, (touched as f64, ""), Bar::AtMost(10.0), how);
    Ok(())
}

fn checkout(bench: &mut Bench, amalgam: &Amalgam, work: &Path, repository: &Path, turns: usize) -> Result<()> {
    let check_out = |to: &Path| amalgam.seconds(work, &["checkout", "@", &to.display().to_string(), "--detached"]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        ours.push(check_out(&bench.directory(&format!("checkout-{turn}")))?);
        theirs.push(peers::copy(work, &bench.directory(&format!("copied-{turn}")))?);
    }
    let (out, copied) = (median(ours.clone()), median(theirs.clone()));
    let how = format!("`amalgam checkout` {ours:.2?} s, `cp -a` {theirs:.2?} s, in turns");
    bench.add(CHECKOUT, (out / copied, "x"), Bar::AtMost(1.5), how);
    let tree = bench.directory("worktree").display().to_string();
    let added = peers::git(repository, &["worktree", "add", "--quiet", &tree, "-f", "--detach"])?;
    let how = format!("`git worktree add` {added:.1} s, ours {out:.2} s");
    bench.add(CHECKOUT_WORKTREE, (added / out, "x"), Bar::AtLeast(4.0), how);
    let (mut ours, mut theirs, mut means) = (Vec::new(), Vec::new(), "");
    for turn in 0..turns.min(2) {
        amalgam.stop()?;
        means = machine::drop_caches(&amalgam.store)?;
        ours.push(check_out(&bench.directory(&format!("checkout-cold-{turn}")))?);
        machine::drop_caches(work)?;
        theirs.push(peers::copy(work, &bench.directory(&format!("copied-cold-{turn}")))?);
    }
    let (out, copied) = (median(ours.clone()), median(theirs.clone()));
    let how = format!("ours {ours:.2?} s, process started anew, `cp -a` {theirs:.2?} s, in turns; {means}");
    bench.add(CHECKOUT_COLD, (out / copied, "x"), Bar::AtMost(2.0), how);
    Ok(())
}
