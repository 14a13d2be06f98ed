//! The process is killed while an NFS client writes: the client goes on, and what was committed is there.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amalgam_nfs::client::types::{nfs_fh3, nfsstat3};
use amalgam_nfs::client::{CallResult, Client};
use rustix::process::{Pid, Signal, kill_process};

use crate::kit::{Exported, connect, export, free_port, process, until};
use crate::scratch::Scratch;

const ROUNDS: usize = 6;
/// Files that the client writes between two kills, at least.
const FILES_EACH: usize = 5;
const FILE_BYTES: usize = 100_000;
/// Timeout of one call, with all its retries.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A client that writes files, and tries again after its server was killed, as the client of a kernel does.
struct Writer {
    /// Where the server is; the port may be another one after a restart.
    address: Arc<Mutex<SocketAddr>>,
    client: Option<Client>,
    root: nfs_fh3,
}

impl Writer {
    /// Calls until the server answers.
    fn call<T>(&mut self, work: impl Fn(&mut Client, &nfs_fh3) -> CallResult<T>) -> T {
        let began = Instant::now();
        loop {
            let address = *self.address.lock().expect("no panic");
            let client = self.client.take().map_or_else(|| Client::connect(address), Ok);
            let done = client.map(|mut client| (work(&mut client, &self.root), client));
            match done {
                Ok((Ok(result), client)) => {
                    self.client = Some(client);
                    return result;
                }
                // The server asks for patience.
                Ok((Err(error), client)) if error.status() == Some(nfsstat3::NFS3ERR_JUKEBOX) => {
                    self.client = Some(client);
                }
                Ok((Err(error), _)) if error.status().is_some() => panic!("{error}"),
                Ok((Err(_), _)) | Err(_) => {}
            }
            assert!(began.elapsed() < CALL_TIMEOUT, "the server does not come back");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Writes a file in pieces and commits it, again if the server was another one meanwhile.
    fn write_file(&mut self, number: usize) -> nfs_fh3 {
        let file = self.call(|client, root| client.create(root, &name_of(number)));
        let bytes = bytes_of(number);
        loop {
            let mut verifiers = Vec::new();
            for (at, piece) in bytes.chunks(FILE_BYTES / 4).enumerate() {
                let offset = (at * (FILE_BYTES / 4)) as u64;
                verifiers.push(self.call(|client, _| client.write(&file, offset, piece)));
            }
            let committed = self.call(|client, _| client.commit_file(&file));
            if verifiers.iter().all(|verifier| verifier.0 == committed.0) {
                return file;
            }
        }
    }
}

fn name_of(number: usize) -> String {
    format!("file-{number}")
}

fn bytes_of(number: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at * 31 + number * 7) as u8).collect()
}

fn kill(process: i32) {
    kill_process(Pid::from_raw(process).expect("a number"), Signal::KILL).expect("killed");
    let descriptors = format!("/proc/{process}/fd");
    until("it goes", || std::fs::read_dir(Path::new(&descriptors)).map_or(true, |mut open| open.next().is_none()));
}

#[test]
fn a_client_goes_on_when_the_process_is_killed_and_finds_what_it_committed() {
    let scratch = Scratch::new();
    let exported = export(&scratch, &format!("--create work --port {}", free_port()));
    let (_, root) = exported.mounted();
    let address = Arc::new(Mutex::new(exported.address));
    let (is_enough, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut writer = Writer { address: Arc::clone(&address), client: None, root: root.clone() };
    let handles = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut handles = Vec::new();
            while !is_enough.load(SeqCst) {
                handles.push(writer.write_file(handles.len()));
                written.store(handles.len(), SeqCst);
            }
            handles
        });
        for round in 0..ROUNDS {
            let wanted = written.load(SeqCst) + FILES_EACH;
            until("the client writes", || written.load(SeqCst) >= wanted || writing.is_finished());
            if round % 2 == 1 {
                scratch.run("amalgam commit -q -w work");
            }
            kill(process(&scratch));
            *address.lock().expect("no panic") = Exported::listed(&scratch)[0].address;
        }
        is_enough.store(true, SeqCst);
        writing.join().expect("no call failed")
    });
    let mut client = connect(*address.lock().expect("no panic"));
    for (number, handle) in handles.iter().enumerate() {
        assert_eq!(client.lookup(&root, &name_of(number)).expect("found"), *handle);
        assert_eq!(client.read(handle, 0, 1 << 20).expect("read"), bytes_of(number), "file {number}");
    }
    scratch.run("amalgam commit -w work && amalgam verify --read-data");
    assert_eq!(scratch.run("amalgam ls work").lines().count(), handles.len());
}
