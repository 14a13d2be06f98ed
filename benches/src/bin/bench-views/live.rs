//! A mounted workspace of a million files: how soon it is there, what a commit costs and whom it stops, how fast it goes back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::{Plan, Shape};
use amalgam_benches::{Bar, Result, Samples, median};

use crate::serve::Serving;
use crate::sides::drop_caches;
use crate::trees::make_up;

pub const FIGURES: &[&str] = &[MOUNT, COMMIT, PAUSE, ROLLBACK];
const MOUNT: &str = "mount, 1 M files";
const COMMIT: &str = "commit of a mount after one small edit, 1 M files";
const PAUSE: &str = "longest pause of a writer beside commits";
const ROLLBACK: &str = "hot rollback after 1,000 changed files";

const MAIN: &str = "main";

pub fn run(bench: &mut Bench) -> Result<()> {
    let files = bench.size(1_000_000, 10_000);
    let plan = Plan { shape: Shape::Nested, files };
    let home = bench.directory("many");
    make_up(&home, MAIN, files)?;
    let mount = bench.directory("many-mount");
    let mut serving = Serving::start(&home)?;
    let mut mounts = Vec::new();
    for _ in 0..5 {
        drop_caches()?;
        mounts.push(serving.mount(MAIN, &mount)?);
        serving.unmount(MAIN)?;
    }
    let how = format!("{files} files; to the first listing of the root, caches dropped, median of {mounts:.4?} s");
    bench.add(MOUNT, (median(mounts) * 1e3, "ms"), Bar::AtMost(50.0), how);
    serving.mount(MAIN, &mount)?;

    let edited = mount.join(plan.path(files / 2));
    let mut commits = Vec::new();
    for round in 0..51 {
        fs::write(&edited, format!("round {round}"))?;
        commits.push(serving.ask(&format!("commit {MAIN}"))?.0 * 1e3);
    }
    let commits = Samples::new(commits);
    let how = format!("{files} files, buffered; {}", commits.describe("ms"));
    bench.add(COMMIT, (commits.p50(), "ms"), Bar::AtMost(5.0), how);

    let end = AtomicBool::new(false);
    let pauses = std::thread::scope(|scope| -> Result<Samples> {
        let writer = scope.spawn(|| -> Result<Samples> {
            let file = File::create(mount.join("written"))?;
            let mut taken = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let begun = Instant::now();
                file.write_all_at(&[7; 4096], (taken.len() as u64 % 256) * 4096)?;
                taken.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            Ok(Samples::new(taken))
        });
        for round in 0..50 {
            fs::write(&edited, format!("again {round}"))?;
            serving.ask(&format!("commit {MAIN}"))?;
        }
        end.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| "the writer failed")?
    })?;
    let how = format!("4 KiB writes through the mount beside 50 commits; {}", pauses.describe("ms"));
    bench.add(PAUSE, (pauses.at(1.0), "ms"), Bar::AtMost(10.0), how);

    let (_, then) = serving.ask(&format!("commit {MAIN}"))?;
    let mut rollbacks = Vec::new();
    for round in 0..5 {
        for number in 0..1_000 {
            fs::write(mount.join(plan.path(number * (files / 1_000))), format!("changed {round} {number}"))?;
        }
        serving.ask(&format!("commit {MAIN}"))?;
        rollbacks.push(serving.ask(&format!("go {MAIN} {then}"))?.0 * 1e3);
    }
    let how = format!("{files} files, 1,000 of them changed, written and known to the kernel; {rollbacks:.2?} ms");
    bench.add(ROLLBACK, (median(rollbacks), "ms"), Bar::AtMost(20.0), how);
    Ok(())
}
