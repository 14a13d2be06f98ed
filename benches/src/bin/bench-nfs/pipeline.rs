//! Requests on one connection, several in flight.

use std::time::{Duration, Instant};

use amalgam_benches::Result;
use amalgam_nfs::client::Client;
use amalgam_nfs::client::types::{NFS_PROGRAM, PROGRAM, VERSION};
use amalgam_nfs::client::xdr::Pack;

/// Where the status of a successful RPC reply is.
const STATUS_AT: usize = 24;

/// Sends `count` requests with at most `depth` in flight, and receives the replies. Fails if one has a status other than OK.
pub fn pipeline<A: Pack>(
    client: &mut Client,
    procedure: NFS_PROGRAM,
    count: usize,
    depth: usize,
    mut arguments: impl FnMut(usize) -> A,
) -> Result<Duration> {
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
            let reply = client.receive()?;
            let status = reply.get(STATUS_AT..STATUS_AT + 4).ok_or("a short reply")?;
            if status != [0; 4] {
                return Err(format!("{procedure}: status {status:?}").into());
            }
            received += 1;
        }
    }
    Ok(begun.elapsed())
}
