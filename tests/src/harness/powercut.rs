//! A power cut, without device mapper: the store lies on an ext4 whose disk is a file in a btrfs, opened past the page cache.
//! A reflink copy of that file at a random moment is the disk as a power cut would have left it.
//!
//! Mounts happen in a mount namespace of the process's own, with loop devices that free themselves: however the process ends,
//! the kernel takes everything down with it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use amalgam_engine::Store;
use amalgam_engine::backend::Durability;

use super::Random;
use super::kill::Committer;
use super::workload::{Ledger, Orders, durability};

const POOL_BYTES: u64 = 6 << 30;
const DISK_BYTES: u64 = 1 << 30;
/// After so many cuts the disk is made anew: a cut may also come while a store is created.
const ROUNDS_PER_DISK: u64 = 5;

/// What some rounds came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct CutSummary {
    /// Cuts.
    pub rounds: u64,
    /// Commits acknowledged before the cuts.
    pub acknowledged: u64,
    /// Of these, those that were durable: by themselves, or by a later durable commit or sync.
    pub durable: u64,
    /// Buffered commits that were acknowledged and gone.
    pub buffered_lost: u64,
    /// Commits under way at the cuts.
    pub in_flight: u64,
    /// Cuts that left no operation at all.
    pub empty: u64,
}

impl std::fmt::Display for CutSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, acknowledged, durable, buffered_lost, in_flight, empty } = self;
        write!(
            f,
            "{rounds} power cuts; {acknowledged} commits acknowledged, {durable} of them durable, 0 of those lost; \
             {buffered_lost} buffered ones lost, all from the end of the log; {in_flight} under way; {empty} cuts left an empty store"
        )
    }
}

/// Whether this process may mount.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Starts a program in a mount namespace of its own, and waits for it. It must end when its standard input does, which lasts
/// as long as this process.
pub fn in_own_namespace(program: &Path, words: &[String]) -> bool {
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(program)
        .args(words)
        .stdin(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let input = child.stdin.take();
    let status = child.wait().expect("it is our child");
    drop(input);
    status.success()
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

/// The disks, in a directory that exists. Unmounts what it mounted when it goes.
pub(super) struct Pool {
    directory: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Pool {
    pub(super) fn new(directory: &Path) -> Self {
        let mut pool = Self { directory: directory.join("pool"), mounted: Vec::new() };
        fs::create_dir(&pool.directory).expect("the directory is new");
        let image = directory.join("pool.img");
        make_image(&image, POOL_BYTES);
        run("mkfs.btrfs", &["--quiet", text(&image)]);
        let directory = pool.directory.clone();
        pool.mount(&image, &directory);
        // The loop device holds it: when that goes, the image goes.
        fs::remove_file(&image).expect("it was just made");
        fs::create_dir(pool.disk()).expect("the pool is empty");
        pool
    }

    pub(super) fn disk(&self) -> PathBuf {
        self.directory.join("disk")
    }

    fn image(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    fn mount(&mut self, image: &Path, place: &Path) {
        // mount makes a loop device that frees itself.
        run("mount", &["-o", "loop,noatime", text(image), text(place)]);
        self.mounted.push(place.to_owned());
    }

    pub(super) fn unmount(&mut self) {
        let place = self.mounted.pop().expect("something is mounted");
        run("umount", &[text(&place)]);
    }

    pub(super) fn make_disk(&mut self) {
        fs::remove_file(self.image()).ok();
        make_image(&self.image(), DISK_BYTES);
        run("mkfs.ext4", &["-q", "-F", text(&self.image())]);
        self.mount_disk();
    }

    fn mount_disk(&mut self) {
        let disk = self.disk();
        self.mount(&self.image(), &disk);
        let device = run("findmnt", &["--noheadings", "--output", "SOURCE", text(&disk)]);
        run("losetup", &["--direct-io=on", &device]);
        let direct = run("losetup", &["--noheadings", "--output", "DIO", &device]);
        assert_eq!(direct.trim(), "1", "without direct I/O the page cache would survive the cut");
    }

    /// The disk as it is on its medium at this moment.
    pub(super) fn cut(&self) -> PathBuf {
        let cut = self.directory.join("cut.img");
        run("cp", &["--reflink=always", text(&self.image()), text(&cut)]);
        cut
    }

    /// Goes on with what the cut left.
    pub(super) fn become_cut(&mut self, cut: &Path) {
        self.unmount();
        fs::rename(cut, self.image()).expect("both lie in the pool");
        self.mount_disk();
    }
}

fn make_image(path: &Path, bytes: u64) {
    fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
}

impl Drop for Pool {
    fn drop(&mut self) {
        while let Some(place) = self.mounted.pop() {
            // Lazily: what still uses it goes with this process.
            Command::new("umount").arg("--lazy").arg(&place).status().ok();
        }
    }
}

/// Cuts the power again and again. Needs root, and a mount namespace of its own. Panics when a durable commit is lost, when a
/// commit is there by half or gone from the middle, and when the cuts put nothing at risk.
pub fn powercut_rounds(
    command: &dyn Fn() -> Command,
    directory: &Path,
    rounds: u64,
    seed: u64,
    tell: &dyn Fn(String),
) -> CutSummary {
    let mut random = Random::new(seed);
    let mut pool = Pool::new(directory);
    let mut summary = CutSummary::default();
    for round in 0..rounds {
        if round % ROUNDS_PER_DISK == 0 {
            if round > 0 {
                pool.unmount();
            }
            pool.make_disk();
        }
        let orders = Orders { seed: seed.wrapping_add(round / ROUNDS_PER_DISK), writers: 4, seconds_max: 120 };
        one_round(command, &mut pool, orders, &mut random, &mut summary);
        tell(format!("round {}: {summary}", round + 1));
    }
    assert!(summary.durable > rounds, "hardly anything was durable: {summary:?}");
    assert!(summary.in_flight > 0, "no cut came in the middle of a commit: {summary:?}");
    assert!(summary.buffered_lost > 0, "no cut lost a buffered commit, so none was a cut: {summary:?}");
    summary
}

fn one_round(
    command: &dyn Fn() -> Command,
    pool: &mut Pool,
    orders: Orders,
    random: &mut Random,
    summary: &mut CutSummary,
) {
    let store_directory = pool.disk().join("store");
    let mut committer = Committer::start(command(), &store_directory, orders);
    if random.one_in(5) {
        std::thread::sleep(Duration::from_micros(random.below(150_000)));
    } else {
        committer.wait_for(|told| told.done.len() > 3);
        std::thread::sleep(Duration::from_micros(random.below(2_500_000)));
    }
    let told = committer.told();
    let cut = pool.cut();
    committer.kill();
    pool.become_cut(&cut);

    let store = Store::open(&store_directory).expect("a store opens after a power cut, without repair");
    // Commits that were lost are made again later with the same ids: nothing is known of them from before.
    let held =
        Ledger::default().check(&store, orders, &told.done).expect("everything that a reference reaches can be read");
    let durable = told.done.iter().filter(|done| durability(done.number) == Durability::Durable);
    let durable_until = durable.map(|done| done.operation).max().unwrap_or(0).max(told.synced);
    assert!(
        held.operations >= durable_until,
        "operation {durable_until} was acknowledged as durable, and the log ends at {}",
        held.operations
    );
    summary.rounds += 1;
    summary.acknowledged += told.done.len() as u64;
    summary.durable += told.done.iter().filter(|done| done.operation <= durable_until).count() as u64;
    summary.buffered_lost += told.done.iter().filter(|done| done.operation > held.operations).count() as u64;
    summary.in_flight += told.in_flight() as u64;
    summary.empty += u64::from(held.operations == 0);
}
