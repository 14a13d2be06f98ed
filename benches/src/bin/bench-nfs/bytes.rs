//! One large file, written and read through NFS, and beside it through a FUSE mount of the same process.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_nfs::client::types::{NFS_PROGRAM, READ3args, WRITE3args, stable_how};
use amalgam_nfs::client::xdr::Opaque;
use rustix::fs::{Advice, fadvise};

use crate::pipeline::pipeline;
use crate::served::Served;

pub const FIGURES: &[&str] = &[WRITE, READ, WRITE_RATIO, READ_RATIO];
const WRITE: &str = "write and COMMIT, loopback";
const READ: &str = "read, loopback";
const WRITE_RATIO: &str = "write and COMMIT / FUSE mount";
const READ_RATIO: &str = "read / FUSE mount";

const PIECE_BYTES: usize = 1 << 20;
/// Large requests in flight.
const DEPTH: usize = 8;

/// Megabytes a second.
struct Rates {
    write: f64,
    read: f64,
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let pieces = bench.size(1_024, 32);
    let around = bench.directory("bytes");
    std::fs::create_dir_all(&around)?;
    let served = Served::start(&around)?;
    let nfs = through_nfs(&served, pieces)?;
    let size = format!("{pieces} MiB in requests of 1 MiB, {DEPTH} in flight");
    bench.add(WRITE, (nfs.write, "MB/s"), Bar::AtLeast(200.0), size.clone());
    bench.add(READ, (nfs.read, "MB/s"), Bar::AtLeast(500.0), size);
    if !bench.wants(WRITE_RATIO) && !bench.wants(READ_RATIO) {
        return Ok(());
    }
    let mount = around.join("mount");
    if let Err(why) = served.run(&["mount", "--create", "fuse", &mount.to_string_lossy()]) {
        eprintln!("  ratios to FUSE: left out, nothing can be mounted here: {why}");
        return Ok(());
    }
    let fuse = through_mount(&mount.join("large"), pieces)?;
    served.run(&["umount", "--lazy", &mount.to_string_lossy()])?;
    let how = |ours: f64, theirs: f64| format!("{pieces} MiB; NFS {ours:.0} MB/s, FUSE {theirs:.0} MB/s");
    bench.add(WRITE_RATIO, (nfs.write / fuse.write, "x"), Bar::AtLeast(0.5), how(nfs.write, fuse.write));
    bench.add(READ_RATIO, (nfs.read / fuse.read, "x"), Bar::AtLeast(0.5), how(nfs.read, fuse.read));
    Ok(())
}

fn piece() -> Vec<u8> {
    (0..PIECE_BYTES).map(|at| (at * 31 / 7) as u8).collect()
}

fn rate(pieces: usize, begun: Instant) -> f64 {
    (pieces * PIECE_BYTES) as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn through_nfs(served: &Served, pieces: usize) -> Result<Rates> {
    let (mut client, root) = served.mount()?;
    let (file, piece) = (client.create(&root, "large")?, piece());
    let count = PIECE_BYTES as u32;
    let begun = Instant::now();
    pipeline(&mut client, NFS_PROGRAM::NFSPROC3_WRITE, pieces, DEPTH, |at| WRITE3args {
        file: file.clone(),
        offset: (at * PIECE_BYTES) as u64,
        count,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(&piece),
    })?;
    client.commit_file(&file)?;
    let write = rate(pieces, begun);
    let begun = Instant::now();
    pipeline(&mut client, NFS_PROGRAM::NFSPROC3_READ, pieces, DEPTH, |at| READ3args {
        file: file.clone(),
        offset: (at * PIECE_BYTES) as u64,
        count,
    })?;
    Ok(Rates { write, read: rate(pieces, begun) })
}

fn through_mount(path: &Path, pieces: usize) -> Result<Rates> {
    let mut piece = piece();
    let begun = Instant::now();
    let mut file = File::create(path)?;
    for _ in 0..pieces {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    let write = rate(pieces, begun);
    // The client of NFS has no cache either.
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let begun = Instant::now();
    let mut file = File::open(path)?;
    for _ in 0..pieces {
        file.read_exact(&mut piece)?;
    }
    Ok(Rates { write, read: rate(pieces, begun) })
}
