//! Commits to a project of PostgreSQL and a bucket again and again, as a node of its own, until it is killed. Each commit has a request id
//! and is repeated until it is acknowledged. Started by the tests: `node-writer DATABASE BUCKET PROJECT LEASE_MILLISECONDS`.
//!
//! Prints `try N` before each attempt of commit N, then `done N SEQUENCE`, `fenced N` (the project is opened anew), `stale N` (another
//! node has moved the shared reference) or `error N REASON`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a process of its own tells its progress")]

use std::process::ExitCode;
use std::time::Duration;

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::{Backend as _, Durability, StoredObject, Transaction};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue, RequestId};
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SplitMix64};
use bytes::Bytes;

/// Delay after each commit.
const COMMIT_DELAY: Duration = Duration::from_millis(2);
/// Every commit with a number that this divides is put into the bucket; the others travel with their statement.
const LARGE_ONE_IN: u64 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [database, bucket, project, lease] = &words[..] else {
        eprintln!("usage: node-writer DATABASE BUCKET PROJECT LEASE_MILLISECONDS");
        return ExitCode::FAILURE;
    };
    let Ok(lease) = lease.parse() else {
        eprintln!("node-writer: {lease} is no number");
        return ExitCode::FAILURE;
    };
    match write(database, bucket, project, Duration::from_millis(lease)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("node-writer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(database: &str, bucket: &str, project: &str, lease: Duration) -> Result<()> {
    let mut options = CloudOptions::new(database, open_bucket(bucket)?, project);
    options.connections = 4;
    options.lease = lease;
    options.inline_bytes_max = 4 << 10;
    let mut cloud = Cloud::open(&options)?;
    let shared = name("shared")?;
    let mut seen = cloud.read_ref(&shared)?;
    for number in 1.. {
        loop {
            println!("try {number}");
            match commit(&cloud, number, seen.clone()) {
                Ok(sequence) => {
                    println!("done {number} {sequence}");
                    break;
                }
                Err(Error::Stale { .. }) => {
                    println!("stale {number}");
                    seen = cloud.read_ref(&shared)?;
                }
                Err(error) if error.to_string().contains("expelled") => {
                    println!("fenced {number}");
                    cloud = Cloud::open(&options)?;
                }
                Err(error) => println!("error {number} {error}"),
            }
        }
        seen = Some(RefValue::noting(format!("writer {number}")));
        std::thread::sleep(COMMIT_DELAY);
    }
    Ok(())
}

fn name(text: &str) -> Result<RefName> {
    RefName::new(text).map_err(|why| Error::Invalid { what: "reference", why: why.to_string() })
}

/// Moves the writer's own reference to a number, and the shared one from what was seen to the writer's name.
fn commit(cloud: &Cloud, number: u64, seen: Option<RefValue>) -> Result<u64> {
    let bytes = if number.is_multiple_of(LARGE_ONE_IN) { 20_000 } else { 1_000 };
    let bytes = Bytes::from(SplitMix64::new(number).bytes(bytes));
    let object = StoredObject { id: ObjectId::of(ObjectKind::Directory, &bytes), bytes };
    let (own, shared) = (name("writer")?, name("shared")?);
    let before = (number > 1).then(|| RefValue::noting((number - 1).to_string()));
    let request = RequestId::new(format!("writer {number}"))
        .map_err(|why| Error::Invalid { what: "request", why: why.to_string() })?;
    let committed = cloud.transact(Transaction {
        objects: vec![object],
        expect: vec![(own.clone(), before), (shared.clone(), seen)],
        set: vec![
            (own, Some(RefValue::noting(number.to_string()))),
            (shared, Some(RefValue::noting(format!("writer {number}")))),
        ],
        operation: Some(OperationDraft { request: Some(request), ..OperationDraft::default() }),
        durability: Durability::Durable,
    })?;
    Ok(committed.operation.map_or(0, |operation| operation.sequence))
}
