//! Small calls: attributes, names, listings, and whole lives of small files.

use std::net::SocketAddr;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_nfs::client::Client;
use amalgam_nfs::client::types::*;
use amalgam_nfs::client::xdr::Opaque;

use crate::pipeline::pipeline;
use crate::served::Served;

pub const FIGURES: &[&str] = &[GETATTR, LOOKUP, GETATTR_SINGLE, LISTING, CYCLES];
const GETATTR: &str = "GETATTR, one connection, pipelined";
const LOOKUP: &str = "LOOKUP, one connection, pipelined";
const GETATTR_SINGLE: &str = "GETATTR, one connection, one at a time";
const LISTING: &str = "READDIRPLUS of 100,000 names";
const CYCLES: &str = "create, write 4 KiB, COMMIT, remove, 8 connections";

/// Small requests in flight.
const DEPTH: usize = 64;
const CONNECTIONS: usize = 8;

pub fn run(bench: &mut Bench) -> Result<()> {
    let around = bench.directory("calls");
    std::fs::create_dir_all(&around)?;
    let served = Served::start(&around)?;
    let (mut client, root) = served.mount()?;
    attributes(bench, &mut client, &root)?;
    if bench.wants(LISTING) {
        listing(bench, &mut client, &root)?;
    }
    if bench.wants(CYCLES) {
        cycles(bench, served.address, &root)?;
    }
    Ok(())
}

fn attributes(bench: &mut Bench, client: &mut Client, root: &nfs_fh3) -> Result<()> {
    let calls = bench.size(200_000, 5_000);
    let file = client.create(root, "small")?;
    let getattr = |_| GETATTR3args { object: file.clone() };
    let taken = pipeline(client, NFS_PROGRAM::NFSPROC3_GETATTR, calls, DEPTH, getattr)?;
    let how = format!("{calls} calls, {DEPTH} in flight");
    bench.add(GETATTR, (calls as f64 / taken.as_secs_f64(), "/s"), Bar::AtLeast(40_000.0), how.clone());
    let taken = pipeline(client, NFS_PROGRAM::NFSPROC3_LOOKUP, calls, DEPTH, |_| LOOKUP3args {
        what: diropargs3 { dir: root.clone(), name: filename3(Opaque::borrowed(b"small")) },
    })?;
    bench.add(LOOKUP, (calls as f64 / taken.as_secs_f64(), "/s"), Bar::AtLeast(40_000.0), how);
    let calls = calls / 10;
    let taken = pipeline(client, NFS_PROGRAM::NFSPROC3_GETATTR, calls, 1, getattr)?;
    let how = format!("{calls} calls, each after the reply of the one before");
    bench.add(GETATTR_SINGLE, (calls as f64 / taken.as_secs_f64(), "/s"), Bar::None, how);
    Ok(())
}

fn listing(bench: &mut Bench, client: &mut Client, root: &nfs_fh3) -> Result<()> {
    let names: usize = bench.size(100_000, 2_000);
    let directory = client.create_directory(root, "many")?;
    let made: Vec<String> = (0..names).map(|number| format!("name-{number:06}")).collect();
    pipeline(client, NFS_PROGRAM::NFSPROC3_CREATE, names, DEPTH, |at| CREATE3args {
        where_: diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(made[at].as_bytes())) },
        how: createhow3::UNCHECKED(sattr3::default()),
    })?;
    let (begun, mut found, mut cookie) = (Instant::now(), 0, 0);
    loop {
        let arguments = READDIRPLUS3args {
            dir: directory.clone(),
            cookie,
            cookieverf: cookieverf3::default(),
            dircount: 1 << 20,
            maxcount: 1 << 20,
        };
        let page = client
            .result_of::<READDIRPLUS3resok<'_>, READDIRPLUS3resfail>(NFS_PROGRAM::NFSPROC3_READDIRPLUS, &arguments)?;
        found += page.reply.entries.0.len();
        cookie = page.reply.entries.0.last().map_or(cookie, |entry| entry.cookie);
        if page.reply.eof {
            break;
        }
    }
    let taken = begun.elapsed().as_secs_f64();
    if found != names + 2 {
        return Err(format!("{found} names were listed instead of {names} and two dots").into());
    }
    bench.add(LISTING, (taken, "s"), Bar::AtMost(0.5), format!("{names} names in pages of 1 MiB, decoded"));
    Ok(())
}

fn cycles(bench: &mut Bench, address: SocketAddr, root: &nfs_fh3) -> Result<()> {
    let rounds = bench.size(1_000, 50);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CONNECTIONS).map(|number| scope.spawn(move || cycle(address, root, number, rounds))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)
    })?;
    let all = CONNECTIONS * rounds;
    let rate = all as f64 / begun.elapsed().as_secs_f64();
    bench.add(CYCLES, (rate, "/s"), Bar::AtLeast(2_000.0), format!("{all} cycles, each step synced before its reply"));
    Ok(())
}

fn cycle(address: SocketAddr, root: &nfs_fh3, number: usize, rounds: usize) -> Result<()> {
    let mut client = Client::connect(address)?;
    let name = format!("of-{number}");
    for _ in 0..rounds {
        let file = client.create(root, &name)?;
        client.write(&file, 0, &[7; 4_096])?;
        client.commit_file(&file)?;
        client.remove_file(root, &name)?;
    }
    Ok(())
}
