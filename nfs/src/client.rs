//! A blocking NFS client for tests, benchmarks and health checks. It trusts the server that it connects to.

mod files;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nfs3_types::mount::{MOUNT_PROGRAM, dirpath, mountres3, mountstat3};
use nfs3_types::nfs3::{NFS_PROGRAM, nfs_fh3};
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, fragment_header, msg_body, opaque_auth, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

pub use files::{CallError, CallResult};
/// The types of the protocol.
pub use nfs3_types::nfs3 as types;
/// The encoding of the protocol.
pub use nfs3_types::xdr_codec as xdr;

/// Timeout for one reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest reply that the client accepts.
const REPLY_BYTES_MAX: usize = 4 << 20;

/// A connection to a server.
pub struct Client {
    stream: TcpStream,
    xid: u32,
    credential: opaque_auth<'static>,
}

/// Reply of a server: the result of the procedure, or an RPC error.
#[derive(Debug)]
pub enum Reply<T> {
    /// The procedure's result.
    Result(T),
    /// The server rejected the call at the RPC level; the text names the RPC status.
    Refused(String),
}

impl<T> Reply<T> {
    /// Returns the result of the procedure.
    ///
    /// # Panics
    ///
    /// Panics if the server rejected the call.
    #[track_caller]
    pub fn result(self) -> T {
        match self {
            Self::Result(result) => result,
            Self::Refused(how) => panic!("the call was refused: {how}"),
        }
    }
}

impl Client {
    /// Connects with AUTH_NONE credentials.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let xid: u32 = stream.local_addr()?.port().into();
        Ok(Self { stream, xid: xid << 16, credential: opaque_auth::default() })
    }

    /// Uses AUTH_UNIX credentials of this user for the following calls.
    pub fn act_as(&mut self, uid: u32, gid: u32, groups: &[u32]) {
        let machinename = Opaque::borrowed(b"client");
        self.credential = opaque_auth::auth_unix(&auth_unix { stamp: 0, machinename, uid, gid, gids: groups.to_vec() });
    }

    /// Sets the transaction id (xid) of the next call. A repeated xid makes the call a retransmission.
    pub fn set_xid(&mut self, xid: u32) {
        self.xid = xid;
    }

    /// Calls an NFS procedure.
    pub fn nfs<R: Unpack>(&mut self, procedure: NFS_PROGRAM, arguments: &impl Pack) -> io::Result<Reply<R>> {
        self.call(nfs3_types::nfs3::PROGRAM, nfs3_types::nfs3::VERSION, procedure as u32, arguments)
    }

    /// Calls a MOUNT procedure.
    pub fn mount<R: Unpack>(&mut self, procedure: MOUNT_PROGRAM, arguments: &impl Pack) -> io::Result<Reply<R>> {
        self.call(nfs3_types::mount::PROGRAM, nfs3_types::mount::VERSION, procedure as u32, arguments)
    }

    /// Mounts an export and returns the handle of its root.
    pub fn root(&mut self, path: &str) -> io::Result<Result<nfs_fh3, mountstat3>> {
        let path = dirpath(Opaque::borrowed(path.as_bytes()));
        let reply: Reply<mountres3<'_>> = self.mount(MOUNT_PROGRAM::MOUNTPROC3_MNT, &path)?;
        Ok(match reply.result() {
            mountres3::Ok(ok) => Ok(nfs_fh3 { data: Opaque::owned(ok.fhandle.0.into_owned()) }),
            mountres3::Err(status) => Err(status),
        })
    }

    /// Calls any procedure.
    pub fn call<R: Unpack>(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &impl Pack,
    ) -> io::Result<Reply<R>> {
        let record = self.record(program, version, procedure, arguments)?;
        self.send(&record)?;
        read_reply(&self.receive()?).map(|(_, reply)| reply)
    }

    /// Encodes a call as one RPC record.
    pub fn record(&mut self, program: u32, version: u32, procedure: u32, arguments: &impl Pack) -> io::Result<Vec<u8>> {
        let call = call_body {
            rpcvers: RPC_VERSION_2,
            prog: program,
            vers: version,
            proc: procedure,
            cred: self.credential.borrow(),
            verf: opaque_auth::default(),
        };
        let head = rpc_msg { xid: self.xid, body: msg_body::CALL(call) };
        self.xid = self.xid.wrapping_add(1);
        let length = head.packed_size() + arguments.packed_size();
        let mut record = Vec::with_capacity(4 + length);
        let packed = fragment_header::new(length as u32, true)
            .pack(&mut record)
            .and_then(|_| head.pack(&mut record))
            .and_then(|_| arguments.pack(&mut record));
        packed.map_err(io::Error::other)?;
        Ok(record)
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives one record.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let length = (u32::from_be_bytes(head) & 0x7fff_ffff) as usize;
        if length > REPLY_BYTES_MAX {
            return Err(io::Error::other("an answer that is too long"));
        }
        let mut record = vec![0; length];
        self.stream.read_exact(&mut record)?;
        Ok(record)
    }

    /// Returns the TCP stream.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// Decodes a reply: its xid and its result.
pub fn read_reply<R: Unpack>(record: &[u8]) -> io::Result<(u32, Reply<R>)> {
    let mut from = record;
    let (head, _) = rpc_msg::unpack(&mut from).map_err(io::Error::other)?;
    let reply = match head.body {
        msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted)) => match accepted.reply_data {
            accept_stat_data::SUCCESS => {
                let (result, _) = R::unpack(&mut from).map_err(io::Error::other)?;
                if !from.is_empty() {
                    return Err(io::Error::other(format!("{} bytes behind the result", from.len())));
                }
                Reply::Result(result)
            }
            other => Reply::Refused(format!("{other:?}")),
        },
        msg_body::REPLY(reply_body::MSG_DENIED(denied)) => Reply::Refused(format!("{denied:?}")),
        msg_body::CALL(_) => return Err(io::Error::other("a call instead of an answer")),
    };
    Ok((head.xid, reply))
}
