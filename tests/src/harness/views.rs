//! Mounts that end in the middle of work: by a kill, by a power cut, and by going to another state while they are in use.
//!
//! A writer works on the mount from this process and keeps, outside of it, what it was told was done. The mount's process is
//! killed at a random moment; then everything that was done must be there. After a power cut, everything that was synced.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Random;
use super::mounting::{Mounted, Orders};
use super::powercut::Pool;

const FILES: u64 = 24;
const RECORD_BYTES: usize = 64;
/// After so many power cuts the disk is made anew.
const ROUNDS_PER_DISK: u64 = 5;

/// What some rounds came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewSummary {
    /// Ends.
    pub rounds: u64,
    /// Saves and appends that were done.
    pub done: u64,
    /// Of these, those that were synced.
    pub synced: u64,
    /// What was done and not synced, and gone after a power cut.
    pub lost_unsynced: u64,
}

impl std::fmt::Display for ViewSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, done, synced, lost_unsynced } = self;
        write!(
            f,
            "{rounds} ends; {done} edits done, {synced} of them synced, 0 of those lost; {lost_unsynced} unsynced ones gone"
        )
    }
}

/// How far a file has come: the newest version begun, done, and synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    begun: u64,
    done: u64,
    synced: u64,
}

/// What the writer knows, by file. Number [`FILES`] is the log, whose versions are its records.
type Manifest = BTreeMap<u64, Progress>;

/// What a file holds in a version: as many bytes as the version says, and none like those of another.
fn contents(seed: u64, file: u64, version: u64) -> Vec<u8> {
    let mut random = Random::of(&[seed, file, version]);
    let length = if random.one_in(8) { random.below(300_000) } else { random.below(6_000) } as usize;
    let mut bytes = format!("{file} {version}\n").into_bytes();
    bytes.extend(random.bytes(length));
    bytes
}

fn record(seed: u64, number: u64) -> Vec<u8> {
    Random::of(&[seed, u64::MAX, number]).bytes(RECORD_BYTES)
}

/// A writer on a mount, until the mount ends under it.
struct Writer {
    directory: PathBuf,
    seed: u64,
    random: Random,
    manifest: Arc<Mutex<Manifest>>,
}

impl Writer {
    fn note(&self, file: u64, change: impl FnOnce(&mut Progress)) {
        change(self.manifest.lock().expect("no panic").entry(file).or_default());
    }

    fn progress(&self, file: u64) -> Progress {
        self.manifest.lock().expect("no panic").get(&file).copied().unwrap_or_default()
    }

    /// Works until a call fails because the mount is gone.
    fn work(mut self) {
        while self.step().is_ok() {}
    }

    fn step(&mut self) -> std::io::Result<()> {
        if self.random.one_in(3) {
            return self.append();
        }
        let file = self.random.below(FILES);
        let version = self.progress(file).begun + 1;
        self.note(file, |progress| progress.begun = version);
        let name = self.directory.join(format!("f{file}"));
        let new = self.directory.join(format!("f{file}.new"));
        let sync = self.random.one_in(3);
        let open = File::create(&new)?;
        (&open).write_all(&contents(self.seed, file, version))?;
        fs::rename(&new, &name)?;
        self.note(file, |progress| progress.done = version);
        if sync {
            // The file, and the name that it has.
            open.sync_all()?;
            File::open(&self.directory)?.sync_all()?;
            self.note(file, |progress| progress.synced = version);
        }
        Ok(())
    }

    /// One more record at the end of the log.
    fn append(&mut self) -> std::io::Result<()> {
        let number = self.progress(FILES).done;
        let log = File::options().create(true).truncate(false).write(true).open(self.directory.join("log"))?;
        self.note(FILES, |progress| progress.begun = number + 1);
        log.write_all_at(&record(self.seed, number), number * RECORD_BYTES as u64)?;
        self.note(FILES, |progress| progress.done = number + 1);
        if self.random.one_in(4) {
            log.sync_data()?;
            self.note(FILES, |progress| progress.synced = number + 1);
        }
        Ok(())
    }
}

/// Checks a mount against the manifest: each file holds one whole version, none older than what must be there. Returns how
/// many done edits are not, and makes the manifest what was found.
fn check(directory: &Path, seed: u64, manifest: &mut Manifest, survived: impl Fn(&Progress) -> u64) -> u64 {
    let mut gone = 0;
    for (file, progress) in manifest.iter_mut() {
        let least = survived(progress);
        let found = if *file == FILES {
            check_log(&directory.join("log"), seed, least)
        } else {
            check_file(&directory.join(format!("f{file}")), seed, *file, least, progress.begun)
        };
        gone += progress.done.saturating_sub(found);
        // What was begun may be done; what is there from now on is known.
        *progress = Progress { begun: progress.begun.max(found), done: found, synced: found };
        if *file == FILES {
            progress.begun = found;
        }
    }
    gone
}

fn check_file(path: &Path, seed: u64, file: u64, least: u64, most: u64) -> u64 {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && least == 0 => return 0,
        Err(error) => panic!("{}: {error}, and version {least} must be there", path.display()),
    };
    let first = String::from_utf8_lossy(bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()).into_owned();
    let version: u64 = first.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
    assert!(
        (least..=most).contains(&version),
        "{}: {first:?}, {} bytes; version {least} to {most} must be there",
        path.display(),
        bytes.len()
    );
    assert!(bytes == contents(seed, file, version), "{}: version {version} is not whole", path.display());
    version
}

fn check_log(path: &Path, seed: u64, least: u64) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    let whole = (bytes.len() / RECORD_BYTES) as u64;
    assert!(whole >= least, "{}: {whole} records, {least} must be there", path.display());
    for (number, found) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
        assert!(found == record(seed, number as u64), "{}: record {number} is wrong", path.display());
    }
    whole
}

fn count(manifest: &Manifest, of: impl Fn(&Progress) -> u64) -> u64 {
    manifest.values().map(of).sum()
}

/// Writes for a random time, then calls `end`, which ends the mount under the writer. It is given a way to ask which versions
/// are synced at that moment.
fn write_until<T>(
    mounted: Mounted,
    seed: u64,
    random: &mut Random,
    manifest: &mut Manifest,
    end: impl FnOnce(Mounted, &dyn Fn() -> BTreeMap<u64, u64>) -> T,
) -> T {
    let shared = Arc::new(Mutex::new(std::mem::take(manifest)));
    let writer = Writer {
        directory: mounted.path().to_owned(),
        seed,
        random: Random::new(random.number()),
        manifest: Arc::clone(&shared),
    };
    let worker = std::thread::spawn(move || writer.work());
    std::thread::sleep(Duration::from_micros(50_000 + random.below(400_000)));
    let synced = || {
        let manifest = shared.lock().expect("no panic");
        manifest.iter().map(|(file, progress)| (*file, progress.synced)).collect()
    };
    let ended = end(mounted, &synced);
    worker.join().expect("the writer ends with the mount");
    *manifest = std::mem::take(&mut *shared.lock().expect("no panic"));
    ended
}

/// Kills mounts again and again over one store. Everything that was done must be there, synced or not: the machine goes on.
pub fn view_kill_rounds(command: &dyn Fn() -> Command, rounds: u64, seed: u64) -> ViewSummary {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut random = Random::new(seed);
    let (mut manifest, mut summary) = (Manifest::new(), ViewSummary::default());
    for round in 0..rounds {
        let mut orders = Orders::new(&scratch.path().join("store"), "main", &scratch.path().join("mount"));
        // In two of three rounds a kill may come in the middle of a commit, a checkpoint or a collection.
        orders.beside = round % 3 != 0;
        let mounted = Mounted::start(command(), &orders);
        check(mounted.path(), seed, &mut manifest, |progress| progress.done);
        let before = (count(&manifest, |p| p.done), count(&manifest, |p| p.synced));
        write_until(mounted, seed, &mut random, &mut manifest, |mounted, _| mounted.kill());
        summary.rounds += 1;
        summary.done += count(&manifest, |p| p.done) - before.0;
        summary.synced += count(&manifest, |p| p.synced).saturating_sub(before.1);
    }
    let orders = Orders::new(&scratch.path().join("store"), "main", &scratch.path().join("mount"));
    let mounted = Mounted::start(command(), &orders);
    check(mounted.path(), seed, &mut manifest, |progress| progress.done);
    mounted.end();
    assert!(summary.done > rounds && summary.synced > 0, "hardly anything was done: {summary:?}");
    summary
}

/// Cuts the power again and again under the disk that the store and the journal lie on. Everything that was synced must be
/// there. Needs root and a mount namespace of its own.
pub fn view_powercut_rounds(
    command: &dyn Fn() -> Command,
    directory: &Path,
    rounds: u64,
    seed: u64,
    tell: &dyn Fn(String),
) -> ViewSummary {
    let mut random = Random::new(seed);
    let mut pool = Pool::new(directory);
    let (mut manifest, mut summary) = (Manifest::new(), ViewSummary::default());
    for round in 0..rounds {
        if round % ROUNDS_PER_DISK == 0 {
            if round > 0 {
                pool.unmount();
            }
            pool.make_disk();
            manifest = Manifest::new();
        }
        let disk_seed = seed.wrapping_add(round / ROUNDS_PER_DISK);
        let mut orders = Orders::new(&pool.disk().join("home"), "main", &directory.join("mount"));
        orders.beside = round % 3 != 0;
        let mounted = Mounted::start(command(), &orders);
        summary.lost_unsynced += check(mounted.path(), disk_seed, &mut manifest, |progress| progress.synced);
        let before = (count(&manifest, |p| p.done), count(&manifest, |p| p.synced));
        let mut image = None;
        let synced = write_until(mounted, disk_seed, &mut random, &mut manifest, |mounted, synced| {
            // What was synced is noted before the disk is copied: what is synced afterwards may be in it, and need not.
            let known = synced();
            image = Some(pool.cut());
            mounted.kill();
            known
        });
        pool.become_cut(&image.expect("the power was cut"));
        manifest.iter_mut().for_each(|(file, progress)| progress.synced = synced.get(file).copied().unwrap_or(0));
        summary.rounds += 1;
        summary.done += count(&manifest, |p| p.done) - before.0;
        summary.synced += count(&manifest, |p| p.synced).saturating_sub(before.1);
        tell(format!("round {}: {summary}", round + 1));
    }
    summary
}

/// Goes to and fro between two states while a program reads, maps, lists and writes. Nothing hangs, and every file that was
/// read is one of the two, whole. Returns how often it went, and what the program says it did.
pub fn rollback_rounds(command: &dyn Fn() -> Command, program: &Path, rounds: u64) -> (u64, String) {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let orders = Orders::new(&scratch.path().join("store"), "main", &scratch.path().join("mount"));
    let mut mounted = Mounted::start(command(), &orders);
    let states = ["one", "two"].map(|state| {
        for file in 0..FILES {
            let bytes = format!("{state} {file} ").repeat(20 + 900 * (file as usize % 5));
            let below = mounted.path().join(format!("d{}", file % 3));
            fs::create_dir_all(&below).expect("mkdir");
            fs::write(below.join(format!("f{file}")), bytes).expect("write");
        }
        fs::write(mounted.path().join(format!("only-{state}")), state).expect("write");
        if state == "two" {
            fs::remove_file(mounted.path().join("only-one")).expect("remove");
        }
        mounted.commit()
    });
    let stop = scratch.path().join("stop");
    let load = Command::new("python3")
        .arg(program)
        .args([mounted.path(), stop.as_path()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    for round in 0..rounds {
        mounted.ask(&format!("go {}", states[(round % 2) as usize]));
        std::thread::sleep(Duration::from_millis(15));
    }
    fs::write(&stop, "").expect("write");
    let said = load.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    // And it is what it went to last.
    let last = ["one", "two"][((rounds - 1) % 2) as usize];
    for file in 0..FILES {
        let bytes = fs::read(mounted.path().join(format!("d{}/f{file}", file % 3))).expect("read");
        assert!(bytes.starts_with(last.as_bytes()), "f{file} is not that of state {last}");
    }
    mounted.end();
    (rounds, String::from_utf8_lossy(&said.stdout).trim().to_owned())
}
