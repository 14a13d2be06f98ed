//! The Linux tree, captured into a store and sent into another through a pipe, by two threads of one process.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, Samples, linux, machine, median};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{OperationContext, Store, Time, WorkspaceName, Workspaces};
use amalgam_materializer::{
    CaptureOptions, HostDir, Index, KnownContents, Progress as CaptureProgress, Rules, Scope, capture,
};
use amalgam_transfer::{
    Have, Progress, ReceiveOptions, ReceiveReport, Selection, SendOptions, SendReport, have, receive, send,
};

const RATE: &str = "send and receive of the Linux tree";
const CHANGE: &str = "send and receive of one changed file";
const AGAIN: &str = "send and receive of what is there already";

pub(crate) const FIGURES: &[&str] = &[RATE, CHANGE, AGAIN];

const MB: f64 = 1e6;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("the Linux tree");
    let tree = linux::tree()?;
    let tree = if bench.options.quick { tree.join("kernel") } else { tree };
    let files = machine::files_below(&tree)?;
    let mut bytes = 0;
    for file in &files {
        bytes += file.symlink_metadata()?.len();
    }
    let from_directory = bench.directory("from");
    let from = Store::open(&from_directory)?;
    let start = Instant::now();
    take_in(&from, &tree)?;
    eprintln!("  captured in {:.1} s", start.elapsed().as_secs_f64());
    let input = format!("{} files, {:.0} MB", files.len(), bytes as f64 / MB);
    whole(bench, &from, bytes, &input)?;
    changes(bench, &from, &files[files.len() / 2], &tree, &input)
}

fn main_name() -> Result<WorkspaceName> {
    Ok(WorkspaceName::new("main")?)
}

fn act() -> OperationContext {
    OperationContext::new("bench", Time(1))
}

fn take_in(store: &Store, tree: &Path) -> Result<()> {
    let directory = HostDir::open(tree)?;
    let mut index = Index::new(directory.identity());
    let (rules, known, progress) = (Rules::new(&[])?, KnownContents::default(), CaptureProgress::default());
    let job = CaptureOptions { rules: &rules, scope: Scope::All, known: &known, now: Time(1), progress: &progress };
    let captured = capture(store, &directory, &mut index, &job)?;
    let workspaces = Workspaces::of(store);
    workspaces.create(&main_name()?, &NewWorkspace::default(), &act())?;
    let mut tree = captured.tree;
    workspaces.commit(&main_name()?, &mut tree, &Change::new("all"), &act())?;
    Ok(())
}

/// Sends what the other store does not have, through a pipe.
fn pass(from: &Store, to: &Store, have: &Have) -> Result<(SendReport, ReceiveReport)> {
    let (reader, mut writer) = std::io::pipe()?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<SendReport> {
            let selection = Selection::everything(from)?;
            let sent = send(from, &selection, &SendOptions::since(have), &mut writer, &Progress::default())?;
            writer.flush()?;
            Ok(sent)
        });
        let received = receive(to, reader, &ReceiveOptions::default(), &act(), &Progress::default())?;
        Ok((sender.join().expect("a thread that does not panic")?, received))
    })
}

fn whole(bench: &mut Bench, from: &Store, bytes: u64, input: &str) -> Result<()> {
    let turns = bench.size(5, 1);
    let (mut rates, mut cpu, mut again, mut stream) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for turn in 0..turns {
        let directory: PathBuf = bench.directory(&format!("to-{turn}"));
        let to = Store::open(&directory)?;
        let (start, cpu_before) = (Instant::now(), machine::cpu_seconds());
        let (sent, _) = pass(from, &to, &have(&to)?)?;
        rates.push(bytes as f64 / MB / start.elapsed().as_secs_f64());
        cpu.push(machine::cpu_seconds() - cpu_before);
        stream = sent.bytes;
        let start = Instant::now();
        let (_, received) = pass(from, &to, &Have::default())?;
        again.push(bytes as f64 / MB / start.elapsed().as_secs_f64());
        assert_eq!(received.objects_new, 0, "all of it was there");
        drop(to);
        std::fs::remove_dir_all(&directory)?;
    }
    let how = format!(
        "{input}, in the page cache, a stream of {:.0} MB through a pipe into a new store, {} cores, durable at its end; \
         median of {turns}: {rates:.0?}, with {cpu:.1?} s of processor time",
        stream as f64 / MB,
        machine::cores()
    );
    bench.add(RATE, (median(rates), "MB/s"), Bar::AtLeast(200.0), how);
    let how = format!("{input}, the same stream into the store that has it; median of {turns}: {again:.0?}");
    bench.add(AGAIN, (median(again), "MB/s"), Bar::None, how);
    Ok(())
}

fn changes(bench: &mut Bench, from: &Store, file: &Path, tree: &Path, input: &str) -> Result<()> {
    let directory = bench.directory("changed");
    let to = Store::open(&directory)?;
    pass(from, &to, &have(&to)?)?;
    let workspaces = Workspaces::of(from);
    let path = file.strip_prefix(tree)?.to_str().ok_or("a path that is text")?.to_owned();
    let (mut times, mut stream) = (Vec::new(), 0);
    for turn in 0..bench.size(50, 5) {
        let mut tree = workspaces.open(&main_name()?)?;
        tree.append(&path, format!("change {turn}").as_bytes())?;
        workspaces.commit(&main_name()?, &mut tree, &Change::new("a change"), &act())?;
        let start = Instant::now();
        let (sent, _) = pass(from, &to, &have(&to)?)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        stream = sent.bytes;
    }
    let samples = Samples::new(times);
    let how =
        format!("{input}; asked, sent, received and durable, a stream of {stream} bytes; {}", samples.describe("ms"));
    bench.add(CHANGE, (samples.p50(), "ms"), Bar::AtMost(50.0), how);
    Ok(())
}
