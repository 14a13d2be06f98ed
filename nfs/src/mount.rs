//! The MOUNT protocol: the path of an export becomes the handle of its root.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use amalgam_view::Handle;
use nfs3_types::mount::{
    MOUNT_PROGRAM, dirpath, export_node, exports, fhandle3, mountbody, mountlist, mountres3, mountres3_ok, mountstat3,
    name,
};
use nfs3_types::xdr_codec::{List, Opaque};
use parking_lot::Mutex;

use crate::export::Exports;
use crate::rpc::{self, Accepted};
use crate::xdr::{Reader, Result};

/// The longest path, as the protocol has it.
const PATH_BYTES_MAX: usize = 1_024;
/// Mounts that are listed. The protocol has no way to know of one that ended without a word.
const MOUNTS_MAX: usize = 4_096;
const AUTH_NONE: u32 = 0;
const AUTH_UNIX: u32 = 1;

/// Something that happened to a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEvent {
    /// The client.
    pub client: IpAddr,
    /// The path of the export, without its secret component.
    pub path: String,
    /// What happened.
    pub what: MountChange,
}

/// Told of mounts, as they happen. Called by threads that answer clients: it must only take the event and return.
pub type MountWatcher = Arc<dyn Fn(&MountEvent) + Send + Sync>;

/// What happened to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountChange {
    /// A client got the handle of the root.
    Mounted,
    /// A client was refused.
    Refused,
    /// A client said that it unmounted.
    Unmounted,
}

/// Who said that they mounted what, and not that they unmounted it.
#[derive(Default)]
pub(crate) struct Mounts(Mutex<BTreeSet<(IpAddr, String)>>);

impl Mounts {
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

/// Answers a call, and says what happened.
pub(crate) fn answer(
    exports: &Exports,
    mounts: &Mounts,
    peer: IpAddr,
    xid: u32,
    procedure: u32,
    mut from: Reader<'_>,
) -> Result<(Vec<u8>, Vec<MountEvent>)> {
    let Ok(procedure) = MOUNT_PROGRAM::try_from(procedure) else {
        return Ok((rpc::accepted(xid, Accepted::NoProcedure), Vec::new()));
    };
    let path = match procedure {
        MOUNT_PROGRAM::MOUNTPROC3_MNT | MOUNT_PROGRAM::MOUNTPROC3_UMNT => from.opaque(PATH_BYTES_MAX)?,
        _ => b"",
    };
    from.end()?;
    let mut events = Vec::new();
    let mut event = |path: String, what| events.push(MountEvent { client: peer, path, what });
    let reply = match procedure {
        MOUNT_PROGRAM::MOUNTPROC3_NULL => rpc::accepted(xid, Accepted::Success),
        MOUNT_PROGRAM::MOUNTPROC3_MNT => match exports.find(path, peer) {
            Some(export) => {
                let mut all = mounts.0.lock();
                if all.len() < MOUNTS_MAX {
                    all.insert((peer, export.spec.path.clone()));
                }
                event(export.spec.path.clone(), MountChange::Mounted);
                let fhandle = fhandle3(Opaque::owned(export.key.encode(Handle::ROOT).to_vec()));
                rpc::reply(xid, &mountres3::Ok(mountres3_ok { fhandle, auth_flavors: vec![AUTH_UNIX, AUTH_NONE] }))
            }
            None => {
                // A secret that was nearly right does not belong into a log.
                event("?".to_owned(), MountChange::Refused);
                rpc::reply(xid, &mountres3::Err(mountstat3::MNT3ERR_NOENT))
            }
        },
        MOUNT_PROGRAM::MOUNTPROC3_DUMP => rpc::reply(xid, &dump(mounts, peer)),
        MOUNT_PROGRAM::MOUNTPROC3_UMNT => {
            if let Some(export) = exports.find(path, peer)
                && mounts.0.lock().remove(&(peer, export.spec.path.clone()))
            {
                event(export.spec.path.clone(), MountChange::Unmounted);
            }
            rpc::accepted(xid, Accepted::Success)
        }
        MOUNT_PROGRAM::MOUNTPROC3_UMNTALL => {
            mounts.0.lock().retain(|(client, path)| {
                if *client == peer {
                    event(path.clone(), MountChange::Unmounted);
                }
                *client != peer
            });
            rpc::accepted(xid, Accepted::Success)
        }
        MOUNT_PROGRAM::MOUNTPROC3_EXPORT => rpc::reply(xid, &listed(exports, peer)),
    };
    Ok((reply, events))
}

/// What a client mounted itself: others are none of its business.
fn dump(mounts: &Mounts, peer: IpAddr) -> mountlist<'static, 'static> {
    let all = mounts.0.lock();
    let own = all.iter().filter(|(client, _)| *client == peer);
    List(
        own.map(|(client, path)| mountbody {
            ml_hostname: name(Opaque::owned(client.to_string().into_bytes())),
            ml_directory: dirpath(Opaque::owned(path.clone().into_bytes())),
        })
        .collect(),
    )
}

/// The exports that a client may mount, without their secrets.
fn listed(all: &Exports, peer: IpAddr) -> exports<'static, 'static> {
    let allowed = all.list().into_iter().filter(|spec| spec.allow.iter().any(|network| network.contains(peer)));
    List(
        allowed
            .map(|spec| export_node {
                ex_dir: dirpath(Opaque::owned(spec.path.into_bytes())),
                ex_groups: List(
                    spec.allow.iter().map(|network| name(Opaque::owned(network.to_string().into_bytes()))).collect(),
                ),
            })
            .collect(),
    )
}
