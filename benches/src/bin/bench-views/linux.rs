//! The Linux source tree on three sides: found, searched, compared by git, unpacked, cloned, read and written.
//!
//! *Warm* means again on the same mount; *cold* means a fresh mount and empty caches. Each figure says what both sides took.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, linux, machine, median};

use crate::serve::Serving;
use crate::sides::{Overlay, drop_caches, run as do_run, seconds, several, shell};
use crate::trees::take_in;

pub const FIGURES: &[&str] = &[
    MOUNT,
    FIND_WARM,
    FIND_COLD,
    GREP_THIRD,
    GREP_SECOND,
    GREP_COLD,
    STATUS,
    STATUS_REMOUNT,
    UNTAR,
    UNTAR_PINNED,
    CLONE,
    CLONE_PEER,
    READ,
    WRITE,
    OPEN,
    MEMORY,
    FORKS,
];
const MOUNT: &str = "mount, 78 k files";
const FIND_WARM: &str = "find, warm / ext4";
const FIND_COLD: &str = "find, cold / fuse-overlayfs";
const GREP_THIRD: &str = "grep -r, third pass / ext4";
const GREP_SECOND: &str = "grep -r, second pass / ext4";
const GREP_COLD: &str = "grep -r, cold / fuse-overlayfs";
const STATUS: &str = "git status, warm / ext4";
const STATUS_REMOUNT: &str = "git status after a remount / ext4";
const UNTAR: &str = "untar / fuse-overlayfs";
const UNTAR_PINNED: &str = "untar, pinned / ext4";
const CLONE: &str = "git clone / ext4";
const CLONE_PEER: &str = "git clone / fuse-overlayfs";
const READ: &str = "ext4 / sequential read, cold";
const WRITE: &str = "ext4 / sequential write with fsync";
const OPEN: &str = "open + read + close, warm / ext4";
const MEMORY: &str = "memory of a mount after reading everything";
const FORKS: &str = "memory of 100 mounts of forks, 1,000 files read in each";

const FIND: &str = "find . -name .git -prune -o -newermt 2200-01-01 -print";
const GREP: &str = "grep -r --exclude-dir=.git --binary-files=text no-such-words-anywhere . || [[ $? == 1 ]]";
const MAIN: &str = "main";
const MB: f64 = 1e6;

/// Where everything is.
struct Places {
    disk: PathBuf,
    home: PathBuf,
    mount: PathBuf,
    overlay: Overlay,
    /// Always there but for a moment in [`cold`](Self::cold).
    serving: Option<Serving>,
}

impl Places {
    /// The same in a new process, mounted anew, with nothing in any cache. Returns the seconds until the mount could be used.
    fn cold(&mut self) -> Result<f64> {
        // One process at a time has the store.
        self.serving = None;
        self.overlay.again()?;
        drop_caches()?;
        self.serving = Some(Serving::start(&self.home)?);
        let mount = self.mount.clone();
        self.serving()?.mount(MAIN, &mount)
    }

    fn serving(&mut self) -> Result<&mut Serving> {
        Ok(self.serving.as_mut().ok_or("the serving process did not start")?)
    }

    fn sides(&self) -> [(&'static str, PathBuf); 3] {
        [("ext4", self.disk.clone()), ("overlay", self.overlay.path().to_owned()), ("ours", self.mount.clone())]
    }

    /// Keeps both servers on the first core, or lets them go anywhere.
    fn pin(&mut self, pinned: bool) -> Result<()> {
        let cores = if pinned { "0".to_owned() } else { format!("0-{}", machine::cores() - 1) };
        self.serving()?.pin(&cores)?;
        self.overlay.pin(&cores)
    }
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let tree = linux::tree()?;
    let tree = if bench.options.quick { tree.join("fs") } else { tree };
    let disk = bench.directory("disk");
    do_run(Command::new("cp").arg("-a").arg(&tree).arg(&disk))?;
    do_run(&mut shell(
        &disk,
        "git init -q . && git add -A --force && git commit -q -m all && git repack -adq --window=0 && git status",
        false,
    ))?;
    let home = bench.directory("home");
    take_in(&home, MAIN, &disk)?;
    let overlay = Overlay::mount(&disk, &bench.directory("over"))?;
    let mut places = Places { disk, home, mount: bench.directory("mount"), overlay, serving: None };
    let mounts = (0..5).map(|_| places.cold()).collect::<Result<Vec<_>>>()?;
    let how = format!(
        "a new process that has the store open; to the first listing of the root, caches dropped, median of {mounts:.4?} s"
    );
    bench.add(MOUNT, (median(mounts) * 1e3, "ms"), Bar::AtMost(50.0), how);
    find(bench, &mut places)?;
    grep(bench, &mut places)?;
    status(bench, &mut places)?;
    untar(bench, &mut places, &tree)?;
    clone(bench, &places)?;
    sequential(bench, &mut places)?;
    open(bench, &places)?;
    forks(bench, places)
}

/// What each side takes for a line of the shell.
fn each(places: &Places, line: &str, pinned: bool) -> Result<[f64; 3]> {
    let [one, two, three] = places.sides().map(|(_, directory)| seconds(&mut shell(&directory, line, pinned), &[0]));
    Ok([one?, two?, three?])
}

/// So often is measured what a disk and a cold start have a part in: one of them alone may be half as long again.
const ROUNDS: usize = 3;

/// Some things one after the other on each side, cold at the beginning, in turn: the medians of each, by side.
fn cold_rounds<const N: usize>(
    places: &mut Places,
    measure: impl Fn(&Path) -> Result<[f64; N]>,
) -> Result<[[f64; 3]; N]> {
    let mut taken: [[Vec<f64>; 3]; N] = std::array::from_fn(|_| [const { Vec::new() }; 3]);
    for _ in 0..ROUNDS {
        for side in 0..3 {
            places.cold()?;
            for (all, one) in taken.iter_mut().zip(measure(&places.sides()[side].1)?) {
                all[side].push(one);
            }
        }
    }
    Ok(taken.map(|sides| sides.map(median)))
}

fn told(taken: &[f64; 3]) -> String {
    format!("ours {:.3} s, ext4 {:.3} s, fuse-overlayfs {:.3} s", taken[2], taken[0], taken[1])
}

fn find(bench: &mut Bench, places: &mut Places) -> Result<()> {
    if !bench.wants(FIND_WARM) && !bench.wants(FIND_COLD) {
        return Ok(());
    }
    let [cold] = cold_rounds(places, |directory| Ok([seconds(&mut shell(directory, FIND, false), &[0])?]))?;
    let how = format!("{}; median of {ROUNDS}", told(&cold));
    bench.add(FIND_COLD, (cold[2] / cold[1], "x"), Bar::AtMost(0.5), how);
    each(places, FIND, false)?;
    let mut warm = [0.0; 3];
    for (side, warm) in warm.iter_mut().enumerate() {
        let directory = places.sides()[side].1.clone();
        *warm = several(5, || seconds(&mut shell(&directory, FIND, false), &[0]))?;
    }
    let pinned = {
        places.pin(true)?;
        let pinned = each(places, FIND, true)?;
        places.pin(false)?;
        pinned
    };
    let how = format!("{}; median of 5; pinned: {}", told(&warm), told(&pinned));
    bench.add(FIND_WARM, (warm[2] / warm[0], "x"), Bar::AtMost(1.5), how);
    Ok(())
}

fn grep(bench: &mut Bench, places: &mut Places) -> Result<()> {
    if ![GREP_COLD, GREP_SECOND, GREP_THIRD, MEMORY].iter().any(|name| bench.wants(name)) {
        return Ok(());
    }
    let [cold, second, third] = cold_rounds(places, |directory| {
        let pass = || seconds(&mut shell(directory, GREP, false), &[0]);
        Ok([pass()?, pass()?, pass()?])
    })?;
    let how = |taken| format!("{}; median of {ROUNDS}", told(taken));
    bench.add(GREP_COLD, (cold[2] / cold[1], "x"), Bar::AtMost(0.5), how(&cold));
    bench.add(GREP_SECOND, (second[2] / second[0], "x"), Bar::AtMost(2.0), how(&second));
    bench.add(GREP_THIRD, (third[2] / third[0], "x"), Bar::AtMost(1.2), how(&third));
    let memory = places.serving()?.memory_bytes()? as f64 / MB;
    bench.add(MEMORY, (memory, "MB"), Bar::AtMost(250.0), "resident, after three passes of grep -r".to_owned());
    Ok(())
}

fn status(bench: &mut Bench, places: &mut Places) -> Result<()> {
    if !bench.wants(STATUS) && !bench.wants(STATUS_REMOUNT) {
        return Ok(());
    }
    const LINE: &str = "git status --porcelain";
    let time = |directory: &Path| seconds(&mut shell(directory, LINE, false), &[0]);
    // The first one on each side writes the index anew: it has seen other numbers and times.
    time(&places.disk)?;
    time(&places.mount)?;
    let (disk, mount) = (places.disk.clone(), places.mount.clone());
    let theirs = several(5, || time(&disk))?;
    let ours = several(5, || time(&mount))?;
    let how = format!("ours {ours:.3} s, ext4 {theirs:.3} s, median of 5");
    bench.add(STATUS, (ours / theirs, "x"), Bar::AtMost(1.2), how);
    places.serving()?.unmount(MAIN)?;
    places.serving()?.mount(MAIN, &mount)?;
    let ours = time(&mount)?;
    // A disk's file system that was mounted anew has nothing in memory either.
    drop_caches()?;
    let fresh = time(&disk)?;
    let how = format!(
        "ours {ours:.3} s on a fresh mount in the same process, ext4 {fresh:.3} s with caches dropped, {theirs:.3} s warm"
    );
    bench.add(STATUS_REMOUNT, (ours / fresh, "x"), Bar::AtMost(3.0), how);
    Ok(())
}

fn untar(bench: &mut Bench, places: &mut Places, tree: &Path) -> Result<()> {
    if !bench.wants(UNTAR) && !bench.wants(UNTAR_PINNED) {
        return Ok(());
    }
    let archive = bench.directory("some.tar");
    let part = if bench.options.quick {
        "ext4"
    } else {
        "arch drivers/net drivers/media drivers/scsi drivers/staging fs net sound"
    };
    do_run(&mut shell(tree, &format!("tar -cf {} {part}", archive.display()), false))?;
    let bytes = fs::metadata(&archive)?.len() as f64 / MB;
    let line = |number: u32| format!("mkdir untar-{number} && tar -xf {} -C untar-{number}", archive.display());
    // In turn, three times: a disk that has just been written to is slow for whoever comes next.
    let in_turn = |places: &Places, numbers: [u32; 3], pinned: bool| -> Result<[f64; 3]> {
        let mut several_times = [const { Vec::new() }; 3];
        for number in numbers {
            for (all, taken) in several_times.iter_mut().zip(each(places, &line(number), pinned)?) {
                all.push(taken);
            }
        }
        Ok(several_times.map(median))
    };
    let free = in_turn(places, [1, 2, 3], false)?;
    let how = format!("{bytes:.0} MB, median of 3; {}", told(&free));
    bench.add(UNTAR, (free[2] / free[1], "x"), Bar::AtMost(1.0), how);
    places.pin(true)?;
    let pinned = in_turn(places, [4, 5, 6], true)?;
    places.pin(false)?;
    let how = format!("{bytes:.0} MB, client and servers on one core, median of 3; {}", told(&pinned));
    bench.add(UNTAR_PINNED, (pinned[2] / pinned[0], "x"), Bar::AtMost(2.5), how);
    for (_, directory) in places.sides() {
        do_run(&mut shell(&directory, "rm -rf untar-*", false))?;
    }
    fs::remove_file(archive)?;
    Ok(())
}

fn clone(bench: &mut Bench, places: &Places) -> Result<()> {
    if !bench.wants(CLONE) && !bench.wants(CLONE_PEER) {
        return Ok(());
    }
    let origin = bench.directory("origin");
    fs::create_dir_all(&origin)?;
    let part = if bench.options.quick { "ext4" } else { "fs net" };
    let line = format!(
        "for part in {part}; do cp -a {}/$part .; done; git init -q . && git add -A --force && git commit -q -m all",
        places.disk.display()
    );
    do_run(&mut shell(&origin, &line, false))?;
    let taken =
        each(places, &format!("git clone -q --no-hardlinks {} clone && rm -rf clone", origin.display()), false)?;
    let how = format!("fs and net of the tree, one commit, removed again; {}", told(&taken));
    bench.add(CLONE, (taken[2] / taken[0], "x"), Bar::AtMost(2.5), how.clone());
    bench.add(CLONE_PEER, (taken[2] / taken[1], "x"), Bar::AtMost(1.0), how);
    Ok(())
}

fn sequential(bench: &mut Bench, places: &mut Places) -> Result<()> {
    if !bench.wants(READ) && !bench.wants(WRITE) {
        return Ok(());
    }
    let blocks = bench.size(1_024, 64);
    // Bytes that do not compress, from a file that is in memory.
    let source = bench.directory("source");
    do_run(&mut shell(Path::new("/"), &format!("head -c {blocks}M /dev/urandom >{}", source.display()), false))?;
    let write = format!("dd if={} of=large bs=1M conv=fsync status=none", source.display());
    let written = each(places, &write, false)?;
    let how = format!("{blocks} MiB in blocks of 1 MiB, conv=fsync; {}", told(&written));
    bench.add(WRITE, (written[0] / written[2], "x"), Bar::AtLeast(0.5), how);
    // Stored, as it is after a commit.
    places.serving()?.ask(&format!("commit {MAIN}"))?;
    let line = "dd if=large of=/dev/null bs=1M status=none";
    let [read] = cold_rounds(places, |directory| Ok([seconds(&mut shell(directory, line, false), &[0])?]))?;
    let how = format!("{blocks} MiB, committed, caches dropped and a fresh mount; {}; median of {ROUNDS}", told(&read));
    bench.add(READ, (read[0] / read[2], "x"), Bar::AtLeast(0.5), how);
    for (_, directory) in places.sides() {
        fs::remove_file(directory.join("large")).ok();
    }
    fs::remove_file(source)?;
    Ok(())
}

fn open(bench: &mut Bench, places: &Places) -> Result<()> {
    if !bench.wants(OPEN) {
        return Ok(());
    }
    let files = machine::files_below(&places.disk)?;
    let small = files.iter().find(|file| file.metadata().is_ok_and(|found| (1_000..4_000).contains(&found.len())));
    let small = small.ok_or("no small file")?.strip_prefix(&places.disk)?.to_owned();
    let times = bench.size(50_000, 1_000);
    let time = |directory: &Path| -> Result<f64> {
        let path = directory.join(&small);
        fs::read(&path)?;
        let begun = Instant::now();
        for _ in 0..times {
            fs::read(&path)?;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(times) * 1e6)
    };
    let theirs = several(3, || time(&places.disk))?;
    let ours = several(3, || time(&places.mount))?;
    let how = format!("ours {ours:.2} us, ext4 {theirs:.2} us, median of 3 x {times}");
    bench.add(OPEN, (ours / theirs, "x"), Bar::AtMost(1.5), how);
    Ok(())
}

fn forks(bench: &mut Bench, places: Places) -> Result<()> {
    if !bench.wants(FORKS) {
        return Ok(());
    }
    let Places { disk, home, mount, overlay, serving } = places;
    drop((overlay, serving));
    // What git wrote since is on the disk only.
    let files = machine::files_below(&disk)?;
    let files: Vec<_> = files.into_iter().filter(|file| !file.starts_with(disk.join(".git"))).collect();
    let mut serving = Serving::start(&home)?;
    let count = bench.size(100, 5);
    for number in 0..count {
        let name = format!("fork-{number}");
        serving.ask(&format!("fork {MAIN} {name}"))?;
        let directory = mount.with_file_name(&name);
        serving.mount(&name, &directory)?;
        // Each fork reads others of them.
        let step = (files.len() / 1_000).max(1);
        for file in files.iter().skip(number % step).step_by(step).take(1_000) {
            fs::read(directory.join(file.strip_prefix(&disk)?))?;
        }
    }
    let memory = serving.memory_bytes()? as f64 / MB;
    let how = format!("resident, {count} mounts in one process");
    bench.add(FORKS, (memory, "MB"), Bar::AtMost(300.0), how);
    Ok(())
}
