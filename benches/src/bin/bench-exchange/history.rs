//! A history of many commits, made from a seed: imported beside `git fast-export`, exported beside `git fast-import`.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::{Bar, Result, machine};
use amalgam_engine::Store;
use amalgam_exchange::{GitExport, GitHistory, GitImport, Identity, Progress, export_git, import_git};

use crate::kit::{Beside, git, land, remove, seconds};

const IMPORT: &str = "git import of 10,000 commits";
const NEW: &str = "git import of 10 new commits";
const EXPORT: &str = "git export of 10,000 commits";

pub(crate) const FIGURES: &[&str] = &[IMPORT, NEW, EXPORT];

const FILES: u64 = 2_000;
const NEW_COMMITS: u64 = 10;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("a history of many commits");
    let commits = bench.size(10_000, 300);
    let repository = bench.directory("history.git");
    seconds(git(&["init", "--quiet", "--bare", "--initial-branch=main"]).arg(&repository))?;
    let mut made = MadeHistory::default();
    made.feed(&repository, commits)?;
    seconds(git(&["-C"]).arg(&repository).args(["repack", "-a", "-d", "-q"]))?;
    let input = format!("{commits} commits, {FILES} files at most, 1 to 4 of them changed in each, merges");
    let all = GitImport { history: GitHistory::All, ..GitImport::default() };
    let store_path = bench.directory("history-store");
    let turns = bench.size(3, 1);
    let mut import = Beside::default();
    for turn in 0..turns {
        let store = Store::open(&store_path)?;
        let start = Instant::now();
        let imported = import_git(&store, &repository, &all, &Progress::default())?;
        land(&store, &imported)?;
        import.ours.push(start.elapsed().as_secs_f64());
        assert_eq!(imported.snapshots.len() as u64, commits, "all commits are imported");
        import.theirs.push(seconds(git(&["-C"]).arg(&repository).args(["fast-export", "--all"]))?);
        let head = imported.head;
        drop(imported);
        if turn + 1 == turns {
            export(bench, &store, head, &repository, &input)?;
            new_commits(bench, &store, &mut made, &repository, &GitImport { known: vec![head], ..all.clone() })?;
        }
        drop(store);
        remove(&store_path)?;
    }
    import.add(bench, IMPORT, 2.0, &input, "git fast-export to nowhere");
    Ok(())
}

fn new_commits(
    bench: &mut Bench,
    store: &Store,
    made: &mut MadeHistory,
    repository: &Path,
    options: &GitImport,
) -> Result<()> {
    made.feed(repository, NEW_COMMITS)?;
    let start = Instant::now();
    let imported = import_git(store, repository, options, &Progress::default())?;
    let took = start.elapsed().as_secs_f64();
    assert_eq!(imported.snapshots.len() as u64, NEW_COMMITS, "only new commits are imported");
    let how = format!("on top of the imported history, {} cores, once", machine::cores());
    bench.add(NEW, (took, "s"), Bar::AtMost(0.5), how);
    Ok(())
}

fn export(
    bench: &mut Bench,
    store: &Store,
    head: amalgam_engine::SnapshotId,
    repository: &Path,
    input: &str,
) -> Result<()> {
    let stream = bench.directory("history.stream");
    let mut command = git(&["-C"]);
    command.arg(repository).args(["fast-export", "--all"]).stdout(File::create(&stream)?);
    if !command.status()?.success() {
        return Err("git fast-export failed".into());
    }
    let (ours, theirs) = (bench.directory("export.git"), bench.directory("peer.git"));
    let mut beside = Beside::default();
    for _ in 0..bench.size(3, 1) {
        let options = GitExport {
            branch: "main".to_owned(),
            history: GitHistory::All,
            since: None,
            identity: Identity::default(),
            create: true,
            is_mirror: false,
            dry_run: false,
        };
        let start = Instant::now();
        export_git(store, head, &ours, &options, &Progress::default())?;
        beside.ours.push(start.elapsed().as_secs_f64());
        remove(&ours)?;
        let start = Instant::now();
        seconds(git(&["init", "--quiet", "--bare", "--initial-branch=main"]).arg(&theirs))?;
        seconds(git(&["-C"]).arg(&theirs).args(["fast-import", "--quiet"]).stdin(File::open(&stream)?))?;
        beside.theirs.push(start.elapsed().as_secs_f64());
        remove(&theirs)?;
    }
    beside.add(bench, EXPORT, 2.0, input, "git fast-import of the stream of git fast-export");
    Ok(())
}

/// A made-up history that grows: commits that edit lines of source files, now and then on a side branch that is merged.
struct MadeHistory {
    random: Random,
    files: Vec<Vec<u8>>,
    /// Commits so far. Marks do not last from one stream to the next.
    commits: u64,
}

impl Default for MadeHistory {
    fn default() -> Self {
        Self { random: Random::new(25), files: Vec::new(), commits: 0 }
    }
}

impl MadeHistory {
    /// Adds commits to the branch `main` of a repository.
    fn feed(&mut self, repository: &Path, commits: u64) -> Result<()> {
        let mut command = git(&["-C"]);
        command.arg(repository).args(["fast-import", "--quiet"]).stdin(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stream = BufWriter::new(child.stdin.take().ok_or("git has no standard input")?);
        for number in 1..=commits {
            self.commit(&mut stream, number)?;
        }
        stream.flush()?;
        drop(stream);
        if !child.wait()?.success() {
            return Err("git fast-import failed".into());
        }
        Ok(())
    }

    fn commit(&mut self, stream: &mut impl std::io::Write, number: u64) -> Result<()> {
        let seconds = 1_600_000_000 + self.commits * 600;
        let message = String::from_utf8(self.random.text(80))?;
        let author = self.random.below(20);
        writeln!(stream, "commit refs/heads/main\nmark :{number}")?;
        writeln!(stream, "author A{author} <a{author}@example.org> {seconds} +0100")?;
        writeln!(stream, "committer C <c@example.org> {seconds} +0000\ndata {}\n{message}", message.len())?;
        if number == 1 && self.commits > 0 {
            writeln!(stream, "from refs/heads/main^0")?;
        } else if number > 1 {
            writeln!(stream, "from :{}", number - 1)?;
        }
        if number > 10 && self.random.below(20) == 0 {
            writeln!(stream, "merge :{}", number - 5)?;
        }
        for _ in 0..=self.random.below(4) {
            let at = self.edit()?;
            let path = format!("dir{}/sub{}/file{at}.c", at % 20, at / 20 % 10);
            writeln!(stream, "M 100644 inline {path}\ndata {}", self.files[at].len())?;
            stream.write_all(&self.files[at])?;
            writeln!(stream)?;
        }
        self.commits += 1;
        Ok(())
    }

    /// Adds a file or edits one, and returns its number.
    fn edit(&mut self) -> Result<usize> {
        let is_new = (self.files.len() as u64) < FILES && self.random.below(4) == 0;
        if is_new || self.files.is_empty() {
            let length = 500 + self.random.below(20_000) as usize;
            self.files.push(self.random.text(length));
            return Ok(self.files.len() - 1);
        }
        let at = usize::try_from(self.random.below(self.files.len() as u64))?;
        let line = self.random.text(60);
        let file = &mut self.files[at];
        let start = usize::try_from(self.random.below(file.len() as u64))?;
        let end = (start + 40).min(file.len());
        file.splice(start..end, line);
        Ok(at)
    }
}
