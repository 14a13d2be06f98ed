//! Routes a record: checks program, procedure, handle and address, consults the reply cache, calls the procedure.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use amalgam_engine::Time;
use bytes::Bytes;
use nfs3_types::nfs3::{NFS_PROGRAM, nfsstat3};

use crate::export::{Export, Exports};
use crate::handle::export_of;
use crate::mount::{self, MountWatcher, Mounts};
use crate::procedures::{self, Answer, Refusal, Request, failure, is_remembered, read_handle, resolve};
use crate::reply_cache::{Lookup, Pending, ReplyCache};
use crate::rpc::{self, Accepted, Call, Refused};

/// Number of NFS procedures; the MOUNT procedures follow them in the counters.
const PROCEDURES: usize = 22;
const MOUNT_PROCEDURES: usize = 6;

/// State shared by all connections.
pub(crate) struct Dispatcher {
    pub(crate) exports: Arc<Exports>,
    pub(crate) cache: ReplyCache,
    pub(crate) mounts: Mounts,
    pub(crate) counters: Counters,
    pub(crate) verifier: [u8; 8],
    pub(crate) on_mount: Option<MountWatcher>,
    pub(crate) clock: fn() -> Time,
}

/// Counters of operations and bytes.
#[derive(Default)]
pub(crate) struct Counters {
    operations: [AtomicU64; PROCEDURES + MOUNT_PROCEDURES],
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) replayed: AtomicU64,
}

impl Counters {
    fn count(&self, at: usize) {
        if let Some(counter) = self.operations.get(at) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Returns each operation name with the number of its calls.
    pub(crate) fn operations(&self) -> Vec<(&'static str, u64)> {
        const NAMES: [&str; PROCEDURES + MOUNT_PROCEDURES] = [
            "null",
            "getattr",
            "setattr",
            "lookup",
            "access",
            "readlink",
            "read",
            "write",
            "create",
            "mkdir",
            "symlink",
            "mknod",
            "remove",
            "rmdir",
            "rename",
            "link",
            "readdir",
            "readdirplus",
            "fsstat",
            "fsinfo",
            "pathconf",
            "commit",
            "mount_null",
            "mount_mnt",
            "mount_dump",
            "mount_umnt",
            "mount_umntall",
            "mount_export",
        ];
        NAMES.into_iter().zip(self.operations.iter().map(|count| count.load(Relaxed))).collect()
    }
}

/// Whether the calling thread may block, for example to open a view.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocking {
    Allowed,
    /// A call of a closed view ends with [`Outcome::Wait`].
    Forbidden,
}

/// Result of dispatching a record.
pub(crate) enum Outcome {
    /// The answer, and the reply cache entry that waits for it.
    Answer(Answer, Option<Pending>),
    /// A retransmission: the reply of the original call, which may still be executing.
    Replay(tokio::sync::watch::Receiver<Option<Bytes>>),
    /// The view is not open. The caller dispatches the record again on a thread that may block.
    Wait,
    /// Not an RPC call: close the connection.
    CutOff,
}

impl Dispatcher {
    /// Dispatches a record.
    pub(crate) fn answer(&self, peer: SocketAddr, record: &[u8], blocking: Blocking) -> Outcome {
        let call = match Call::read(record) {
            Ok(call) => call,
            Err(Refused::With(reply)) => return Outcome::Answer(Answer::Now(reply), None),
            Err(Refused::NotACall) => return Outcome::CutOff,
        };
        let xid = call.xid;
        let now = |reply| Outcome::Answer(Answer::Now(reply), None);
        match (call.program, call.version) {
            (nfs3_types::nfs3::PROGRAM, nfs3_types::nfs3::VERSION) => self.answer_nfs(peer, record, call, blocking),
            (nfs3_types::mount::PROGRAM, nfs3_types::mount::VERSION) => now(self.answer_mount(peer, call)),
            (nfs3_types::nfs3::PROGRAM | nfs3_types::mount::PROGRAM, _) => {
                now(rpc::accepted(xid, Accepted::NoVersion(3)))
            }
            _ => now(rpc::accepted(xid, Accepted::NoProgram)),
        }
    }

    fn answer_mount(&self, peer: SocketAddr, call: Call<'_>) -> Vec<u8> {
        self.counters.count(PROCEDURES + call.procedure as usize);
        let peer = peer.ip().to_canonical();
        match mount::answer(&self.exports, &self.mounts, peer, call.xid, call.procedure, call.arguments) {
            Ok((reply, events)) => {
                if let Some(tell) = &self.on_mount {
                    events.iter().for_each(|event| tell(event));
                }
                reply
            }
            Err(_) => self.garbage(call.xid),
        }
    }

    fn garbage(&self, xid: u32) -> Vec<u8> {
        self.counters.malformed.fetch_add(1, Relaxed);
        rpc::accepted(xid, Accepted::Garbage)
    }

    fn answer_nfs(&self, peer: SocketAddr, record: &[u8], mut call: Call<'_>, blocking: Blocking) -> Outcome {
        let xid = call.xid;
        let now = |reply| Outcome::Answer(Answer::Now(reply), None);
        let Ok(procedure) = NFS_PROGRAM::try_from(call.procedure) else {
            return now(rpc::accepted(xid, Accepted::NoProcedure));
        };
        if procedure == NFS_PROGRAM::NFSPROC3_NULL {
            self.counters.count(0);
            return now(rpc::accepted(xid, Accepted::Success));
        }
        let Ok(handle) = read_handle(&mut call.arguments) else { return now(self.garbage(xid)) };
        let refuse = |status| now(failure(xid, procedure, status));
        let Some(number) = export_of(handle) else { return refuse(nfsstat3::NFS3ERR_BADHANDLE) };
        let address = peer.ip().to_canonical();
        let export = match self.exports.by_number(number) {
            Some(export) if export.allows(address) => export,
            Some(_) => return refuse(nfsstat3::NFS3ERR_ACCES),
            None => return refuse(nfsstat3::NFS3ERR_STALE),
        };
        // A client without a valid handle cannot make the server open a view.
        if export.key.decode(handle).is_none() {
            return refuse(nfsstat3::NFS3ERR_BADHANDLE);
        }
        if export.opened().is_none() && blocking == Blocking::Forbidden {
            return Outcome::Wait;
        }
        self.counters.count(call.procedure as usize);
        let mut pending = if is_remembered(procedure) {
            match self.cache.lookup(address, xid, record) {
                Lookup::New(pending) => Some(pending),
                Lookup::Retransmission(answer) => {
                    self.counters.replayed.fetch_add(1, Relaxed);
                    return Outcome::Replay(answer);
                }
            }
        } else {
            None
        };
        let answered = catch_unwind(AssertUnwindSafe(|| self.perform(&export, handle, procedure, &call)));
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(Refusal::Malformed)) => Answer::Now(self.garbage(xid)),
            Ok(Err(Refusal::Status(status))) => Answer::Now(failure(xid, procedure, status)),
            Err(_) => Answer::Now(failure(xid, procedure, nfsstat3::NFS3ERR_SERVERFAULT)),
        };
        // WRITE is idempotent after a restart, and too frequent to log.
        if let Some(pending) = pending.as_mut().filter(|_| procedure != NFS_PROGRAM::NFSPROC3_WRITE)
            && let Answer::Now(reply) | Answer::Synced { done: reply, .. } = &answer
        {
            self.cache.log_reply(pending, reply, (self.clock)());
        }
        Outcome::Answer(answer, pending)
    }

    /// Completes the reply cache entry of a call.
    pub(crate) fn settle(&self, pending: Option<&Pending>, reply: &[u8]) {
        if let Some(pending) = pending {
            self.cache.complete(pending, reply, (self.clock)());
        }
    }

    fn perform(
        &self,
        export: &Export,
        handle: &[u8],
        procedure: NFS_PROGRAM,
        call: &Call<'_>,
    ) -> Result<Answer, Refusal> {
        let open = export.open()?;
        let ino = resolve(export, &open, handle)?;
        let caller = export.caller(&call.credential, open.watch_id);
        let request = Request { xid: call.xid, export, open: &open, caller, verifier: self.verifier, ino };
        procedures::answer(&request, procedure, call.arguments.clone())
    }
}
