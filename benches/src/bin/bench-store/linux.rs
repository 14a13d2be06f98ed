//! The Linux tree's contents, put into a fresh store.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, linux, machine, median};
use amalgam_engine::backend::Durability;
use amalgam_engine::content::write_content;
use amalgam_engine::object::{Entry, Root};
use amalgam_engine::reference::{OperationDraft, RefValue};
use amalgam_engine::{RefMove, Store, Time, WriteSession};

use crate::Bench;

const RATE: &str = "bulk put of the Linux tree";
const STORED: &str = "bulk put of the Linux tree, stored";
const COPY: &str = "cp -a of the Linux tree";
const GIT: &str = "git add and commit of the Linux tree";

pub(crate) const FIGURES: &[&str] = &[RATE, STORED, COPY, GIT];

const MB: f64 = 1e6;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("the Linux tree");
    let tree = linux::tree()?;
    let tree = if bench.options.quick { tree.join("kernel") } else { tree };
    let files = machine::files_below(&tree)?;
    let mut bytes = 0;
    for file in &files {
        bytes += std::fs::read(file)?.len();
    }
    let turns = bench.size(3, 1);
    let (mut rates, mut cpu, mut stored) = (Vec::new(), Vec::new(), 0);
    for turn in 0..turns {
        let directory = bench.directory(&format!("linux-{turn}"));
        let store = Store::open(&directory)?;
        let (start, cpu_before) = (Instant::now(), machine::cpu_seconds());
        put(&store, &files)?;
        cpu.push(machine::cpu_seconds() - cpu_before);
        rates.push(bytes as f64 / MB / start.elapsed().as_secs_f64());
        drop(store);
        stored = table_bytes(&directory)?;
        std::fs::remove_dir_all(&directory)?;
    }
    let input = format!("{} files, {:.0} MB", files.len(), bytes as f64 / MB);
    let how = format!(
        "{input}, in the page cache; read, cut, hashed, compressed and stored by {} threads, one durable commit at the end; \
         median of {turns}: {rates:.0?}, with {cpu:.1?} s of processor time",
        machine::cores()
    );
    bench.add(RATE, (median(rates), "MB/s"), Bar::AtLeast(300.0), how);
    let how = format!("{input}; the database's table files after it was closed: chunks, ropes and index");
    bench.add(STORED, (stored as f64 / MB, "MB"), Bar::AtMost(300.0), how);
    peers(bench, &tree, &input)
}

/// What is stored; logs are left over for use again and are not counted.
fn table_bytes(store: &Path) -> Result<u64> {
    let files = machine::files_below(store)?.into_iter();
    let tables = files.filter(|file| file.extension().is_some_and(|suffix| suffix == "sst"));
    tables.map(|file| Ok(file.metadata()?.len())).sum()
}

fn put(store: &Store, files: &[PathBuf]) -> Result<()> {
    let session = store.session();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..machine::cores()).map(|_| scope.spawn(|| put_files(&session, files, &next))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    })?;
    let root = Root { directory: Entry::empty_directory(0o755, Time::EPOCH), links: None, state: None };
    let root = session.put_root(&root)?;
    let head = reference("head/linux");
    let operation = OperationDraft { action: "put".to_owned(), ..OperationDraft::default() };
    let durability = Durability::Durable;
    let set = vec![(head.clone(), Some(RefValue::to(root)))];
    session.commit(root, RefMove { expect: vec![(head, None)], set, operation, durability })?;
    Ok(())
}

fn put_files(session: &WriteSession, files: &[PathBuf], next: &AtomicUsize) -> Result<()> {
    while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
        write_content(session, &std::fs::read(file)?.as_slice())?;
    }
    Ok(())
}

fn peers(bench: &mut Bench, tree: &Path, input: &str) -> Result<()> {
    let copy = bench.directory("copy");
    let start = Instant::now();
    done(Command::new("cp").arg("-a").arg(tree).arg(&copy))?;
    bench.add(COPY, (start.elapsed().as_secs_f64(), "s"), Bar::None, format!("{input}, in the page cache, once"));
    if bench.options.peers {
        let git = |arguments: &[&str]| done(Command::new("git").arg("-C").arg(&copy).args(arguments));
        git(&["init", "--quiet"])?;
        let start = Instant::now();
        git(&["add", "--all", "--force"])?;
        git(&["-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "--quiet", "-m", "all"])?;
        bench.add(GIT, (start.elapsed().as_secs_f64(), "s"), Bar::None, format!("{input}, in the page cache, once"));
    }
    std::fs::remove_dir_all(copy)?;
    Ok(())
}

fn done(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
