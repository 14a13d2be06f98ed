//! Bytes of an NFS client: as they are, and as the arguments of a procedure behind a valid handle. The server answers or closes the
//! connection, and every reply is one record for the call.
#![no_main]

use std::path::Path;
use std::sync::{Arc, OnceLock};

use amalgam_engine::object::Owner;
use amalgam_engine::{Store, Time, WorkingTree};
use amalgam_nfs::{ExportSpec, Exports, OfflineServer};
use amalgam_view::{View, ViewOptions};
use libfuzzer_sys::fuzz_target;

const XID: u32 = 7;
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const PROCEDURES: u32 = 22;
/// The longest reply: a READ of 1 MiB with its headers.
const REPLY_BYTES_MAX: usize = (1 << 20) + (8 << 10);

struct Target {
    server: OfflineServer,
    root: Vec<u8>,
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let scratch = tempfile::tempdir().expect("a directory").keep();
        let mut tree = WorkingTree::new(&Store::in_memory());
        tree.write("f", b"contents").expect("written");
        let server =
            OfflineServer::new(Arc::new(exports(tree, &scratch)), "127.0.0.1:900".parse().expect("an address"), now);
        let mut arguments = words(&[4]);
        arguments.extend_from_slice(b"/p/w");
        let reply = server.answer(&record(MOUNT, 1, &arguments)).remove(0);
        // Record mark, reply header, status and length are before the handle.
        let root = reply[36..36 + usize::from(reply[35])].to_vec();
        Target { server, root }
    })
}

fn exports(tree: WorkingTree, scratch: &Path) -> Exports {
    let mut options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
    options.quota_bytes = Some(64 << 20);
    let (view, _) = View::open(tree, &scratch.join("journal"), options).expect("a view");
    view.keep_handles().expect("handles");
    let exports = Exports::new([7; 32]);
    exports.add(ExportSpec::new("/p/w", (0, 0)), Arc::new(view)).expect("exported");
    exports
}

fn now() -> Time {
    Time(1)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A call without credentials, as one fragment.
fn record(program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut body = words(&[XID, 0, 2, program, 3, procedure, 0, 0, 0, 0]);
    body.extend_from_slice(arguments);
    let mut record = words(&[1 << 31 | body.len() as u32]);
    record.extend(body);
    record
}

fn check(replies: &[Vec<u8>], xid: Option<u32>) {
    for reply in replies {
        assert!(reply.len() <= REPLY_BYTES_MAX, "{} bytes", reply.len());
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(word(0), 1 << 31 | (reply.len() - 4) as u32, "one record");
        assert!(xid.is_none_or(|xid| word(4) == xid));
    }
}

fuzz_target!(|data: &[u8]| {
    let Target { server, root } = target();
    check(&server.answer(data), None);
    let Some((procedure, rest)) = data.split_first() else { return };
    let mut arguments = words(&[root.len() as u32]);
    arguments.extend_from_slice(root);
    arguments.resize(arguments.len().next_multiple_of(4), 0);
    arguments.extend_from_slice(rest);
    check(&server.answer(&record(NFS, u32::from(*procedure) % PROCEDURES, &arguments)), Some(XID));
    check(&server.answer(&record(MOUNT, u32::from(*procedure) % 7, rest)), Some(XID));
});
