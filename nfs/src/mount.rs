//! The MOUNT protocol: maps an export path to the handle of its root.

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

/// Longest path (MNTPATHLEN).
const PATH_BYTES_MAX: usize = 1_024;
/// Limit of listed mounts. Clients that crash never send UMNT.
const MOUNTS_MAX: usize = 4_096;
const AUTH_NONE: u32 = 0;
const AUTH_UNIX: u32 = 1;

/// A mount, unmount or refused mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEvent {
    /// Address of the client.
    pub client: IpAddr,
    /// Path of the export, without the secret component.
    pub path: String,
    /// The kind of the event.
    pub what: MountChange,
}

/// Callback for mount events. Request threads call it, so it must not block.
pub type MountWatcher = Arc<dyn Fn(&MountEvent) + Send + Sync>;

/// Kind of a mount event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountChange {
    /// The client received the handle of the root.
    Mounted,
    /// The server refused the mount.
    Refused,
    /// The client unmounted.
    Unmounted,
}

/// Mounts that clients have made and not undone.
#[derive(Default)]
pub(crate) struct Mounts(Mutex<BTreeSet<(IpAddr, String)>>);

impl Mounts {
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

/// Answers a call. Returns the reply and the mount events.
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
                // The requested path may contain a secret: do not log it.
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

/// Lists the mounts of one client. Clients do not see those of others.
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

/// Lists the exports that a client may mount, without secret components.
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
