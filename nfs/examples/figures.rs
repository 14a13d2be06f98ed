//! Rough figures of the server on loopback: `figures [MEGABYTES]`. Client and server are in one process, over a store in memory and a journal
//! in a temporary directory.
#![expect(clippy::print_stdout, reason = "it is a command")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use amalgam_engine::object::Owner;
use amalgam_engine::{Store, Time, WorkingTree};
use amalgam_nfs::client::{Client, Reply, read_reply};
use amalgam_nfs::{ExportSpec, Exports, Server, ServerOptions, listen};
use amalgam_view::{Caller, ROOT, View, ViewOptions};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack};

type Failure = Box<dyn std::error::Error>;

const PIECE_BYTES: usize = 1 << 20;
/// Requests under way at a time on one connection.
const PIPELINED: usize = 64;

#[expect(clippy::disallowed_methods, reason = "files have the time that it is")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

/// Sends requests, so many at a time, and takes the answers.
fn pipeline<A: Pack>(
    client: &mut Client,
    procedure: NFS_PROGRAM,
    count: usize,
    depth: usize,
    mut arguments: impl FnMut(usize) -> A,
) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < count {
        let mut batch = Vec::new();
        while sent < count && sent - received < depth {
            batch.extend(client.record(PROGRAM, VERSION, procedure as u32, &arguments(sent))?);
            sent += 1;
        }
        if !batch.is_empty() {
            client.send(&batch)?;
        }
        let waited_for = if sent < count { (sent - received).div_ceil(2) } else { sent - received };
        for _ in 0..waited_for {
            let answer = client.receive()?;
            let status = u32::from_be_bytes(answer[24..28].try_into()?);
            if status != 0 {
                return Err(format!("{procedure}: status {status}").into());
            }
            received += 1;
        }
    }
    Ok(begun.elapsed())
}

fn create(client: &mut Client, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
    let where_ = diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) };
    let arguments = CREATE3args { where_, how: createhow3::UNCHECKED(sattr3::default()) };
    let made: Reply<CREATE3res> = client.nfs(NFS_PROGRAM::NFSPROC3_CREATE, &arguments)?;
    Ok(made.result().unwrap().obj.unwrap())
}

fn rate(what: &str, count: usize, elapsed: Duration) {
    println!("{what}: {:.0} a second", count as f64 / elapsed.as_secs_f64());
}

fn main() -> Result<(), Failure> {
    let megabytes: usize = std::env::args().nth(1).map_or(Ok(256), |text| text.parse())?;
    let scratch = tempfile::tempdir()?;
    let options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
    let (view, _) = View::open(WorkingTree::new(&Store::in_memory()), &scratch.path().join("journal"), options)?;
    view.keep_handles()?;
    let exports = Exports::new([7; 32]);
    exports.add(ExportSpec::new("/p/w", (0, 0)), Arc::new(view.clone()))?;
    let server = Server::start(listen("127.0.0.1:0".parse()?)?, Arc::new(exports), &ServerOptions::new(now))?;
    let address = server.address();
    let mut client = Client::connect(address)?;
    let root = client.root("/p/w")?.map_err(|status| status.to_string())?;
    bytes(&mut client, &root, megabytes)?;
    attributes(&mut client, &root)?;
    listing(&mut client, &view, &root)?;
    cycles(address, &root)?;
    server.stop(Duration::from_secs(5));
    Ok(())
}

fn bytes(client: &mut Client, root: &nfs_fh3, megabytes: usize) -> Result<(), Failure> {
    let file = create(client, root, "large")?;
    let piece: Vec<u8> = (0..PIECE_BYTES).map(|at| (at * 31 / 7) as u8).collect();
    let begun = Instant::now();
    pipeline(client, NFS_PROGRAM::NFSPROC3_WRITE, megabytes, 8, |at| WRITE3args {
        file: file.clone(),
        offset: (at * PIECE_BYTES) as u64,
        count: PIECE_BYTES as u32,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(&piece),
    })?;
    let _: Reply<COMMIT3res> =
        client.nfs(NFS_PROGRAM::NFSPROC3_COMMIT, &COMMIT3args { file: file.clone(), offset: 0, count: 0 })?;
    rate("write and commit, MiB", megabytes, begun.elapsed());
    let elapsed = pipeline(client, NFS_PROGRAM::NFSPROC3_READ, megabytes, 8, |at| READ3args {
        file: file.clone(),
        offset: (at * PIECE_BYTES) as u64,
        count: PIECE_BYTES as u32,
    })?;
    rate("read, MiB", megabytes, elapsed);
    Ok(())
}

fn attributes(client: &mut Client, root: &nfs_fh3) -> Result<(), Failure> {
    const CALLS: usize = 100_000;
    let file = create(client, root, "small")?;
    let elapsed =
        pipeline(client, NFS_PROGRAM::NFSPROC3_GETATTR, CALLS, PIPELINED, |_| GETATTR3args { object: file.clone() })?;
    rate("GETATTR, pipelined", CALLS, elapsed);
    let elapsed = pipeline(client, NFS_PROGRAM::NFSPROC3_LOOKUP, CALLS, PIPELINED, |_| LOOKUP3args {
        what: diropargs3 { dir: root.clone(), name: filename3(Opaque::borrowed(b"small")) },
    })?;
    rate("LOOKUP, pipelined", CALLS, elapsed);
    let elapsed =
        pipeline(client, NFS_PROGRAM::NFSPROC3_GETATTR, CALLS / 10, 1, |_| GETATTR3args { object: file.clone() })?;
    rate("GETATTR, one at a time", CALLS / 10, elapsed);
    Ok(())
}

fn listing(client: &mut Client, view: &View, root: &nfs_fh3) -> Result<(), Failure> {
    const NAMES: usize = 100_000;
    let caller = Caller::owner(0, 0);
    let directory = view.create_directory(&caller, ROOT, b"many", 0o755)?.ino;
    for number in 0..NAMES {
        let made = view.create(&caller, directory, format!("name-{number:06}").as_bytes(), 0o644)?;
        view.forget([(made.ino, 1)]);
    }
    let what = diropargs3 { dir: root.clone(), name: filename3(Opaque::borrowed(b"many")) };
    let found: Reply<LOOKUP3res> = client.nfs(NFS_PROGRAM::NFSPROC3_LOOKUP, &LOOKUP3args { what })?;
    let dir = found.result().unwrap().object;
    for round in ["first", "second"] {
        let (begun, mut names, mut cookie) = (Instant::now(), 0, 0);
        let mut server_time = Duration::ZERO;
        loop {
            let arguments = READDIRPLUS3args {
                dir: dir.clone(),
                cookie,
                cookieverf: cookieverf3::default(),
                dircount: 1 << 20,
                maxcount: 1 << 20,
            };
            let record = client.record(PROGRAM, VERSION, NFS_PROGRAM::NFSPROC3_READDIRPLUS as u32, &arguments)?;
            let asked = Instant::now();
            client.send(&record)?;
            let answer = client.receive()?;
            server_time += asked.elapsed();
            let (_, found) = read_reply::<READDIRPLUS3res<'_>>(&answer)?;
            let found = found.result().unwrap().reply;
            names += found.entries.0.len();
            cookie = found.entries.0.last().map_or(cookie, |entry| entry.cookie);
            if found.eof {
                break;
            }
        }
        println!(
            "READDIRPLUS of {names} names, {round} time: {server_time:.2?} (with decoding {:.2?})",
            begun.elapsed()
        );
    }
    Ok(())
}

fn cycles(address: SocketAddr, root: &nfs_fh3) -> Result<(), Failure> {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 200;
    let begun = Instant::now();
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || cycle(address, root, number, ROUNDS).is_ok())).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|is_done| *is_done).count()
    });
    if done < CLIENTS {
        return Err("a client failed".into());
    }
    rate("create, write 4 KiB, commit, remove, by 8 clients", CLIENTS * ROUNDS, begun.elapsed());
    Ok(())
}

fn cycle(address: SocketAddr, root: &nfs_fh3, number: usize, rounds: usize) -> Result<(), Failure> {
    let mut client = Client::connect(address)?;
    let name = format!("of-{number}");
    for _ in 0..rounds {
        let file = create(&mut client, root, &name)?;
        let data = Opaque::borrowed(&[7; 4_096]);
        let stable = stable_how::UNSTABLE;
        let write = WRITE3args { file: file.clone(), offset: 0, count: 4_096, stable, data };
        let _: Reply<WRITE3res> = client.nfs(NFS_PROGRAM::NFSPROC3_WRITE, &write)?;
        let _: Reply<COMMIT3res> =
            client.nfs(NFS_PROGRAM::NFSPROC3_COMMIT, &COMMIT3args { file, offset: 0, count: 0 })?;
        let object = diropargs3 { dir: root.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) };
        let removed: Reply<REMOVE3res> = client.nfs(NFS_PROGRAM::NFSPROC3_REMOVE, &REMOVE3args { object })?;
        removed.result().unwrap();
    }
    Ok(())
}
