//! Devices that a client has mounted: in a namespace of its own a command mounts without any privilege, and hands the device over
//! a socket to the process that answers. A token from an earlier call names the view to show. It is valid once, for the same user.

use std::collections::HashMap;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use amalgam_fuse::Mount;
use amalgam_proto::{Reason, v1};
use parking_lot::MutexGuard;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg, sockopt};
use rustix::process::Pid;

use super::book::{Mode, MountRecord, RecordedOptions};
use super::local::LocalPathKind;
use super::mount_state::{Expected, PrivateMount};
use super::mounting::{mount_error, mount_options};
use super::{Mounted, MountedTree, Views, kernel, view_name};
use crate::error::{Error, Result};
use crate::messages::path_bytes;

/// How long a client may take to hand a device over.
const WITHIN: Duration = Duration::from_secs(10);
/// The most announced mounts at a time; more are refused.
const EXPECTED_MAX: usize = 1_024;
/// The time after which an announced mount that was not made is forgotten.
const EXPECTED_NANOSECONDS: i64 = 60_000_000_000;

impl Views {
    /// Prepares a mount of a workspace that the client makes by itself.
    pub(crate) fn prepare_mount(&self, request: &v1::PrepareMountRequest) -> Result<v1::PrepareMountResponse> {
        self.demand_lasting()?;
        let workspace = amalgam_proto::workspace_id(&request.workspace)?;
        let locked = self.open_for_mount(&workspace)?;
        self.place_local(&locked, request.options.as_ref(), LocalPathKind::Mount)?;
        let bindings = self.bindings(&locked)?;
        let view = locked.id;
        // The same place each time, so that what a build wrote about paths stays true.
        let path = self.context.home.path().join("mnt").join(view.to_string());
        std::fs::create_dir_all(&path).map_err(Error::io("make the place for the mount"))?;
        let token = kernel::token().map_err(Error::io("make a token"))?;
        let options = mount_options(request.options.as_ref());
        let expected = Expected { view, path: path.clone(), options, since: self.context.now() };
        let mut waiting = self.expected();
        if waiting.len() >= EXPECTED_MAX {
            let message = format!("{EXPECTED_MAX} mounts are being made, which is the most; try again in a minute");
            return Err(Error::new(Reason::TooMany, message));
        }
        waiting.insert(token.clone(), expected);
        drop(waiting);
        let recovered_edits = locked.live.recovered.edits;
        let warnings = locked.live.recovered.warning().into_iter().collect();
        let socket = self.inner.handover_socket.lock().clone().unwrap_or_default();
        Ok(v1::PrepareMountResponse {
            socket: path_bytes(&socket),
            token: token.into(),
            path: path_bytes(&path),
            recovered_edits,
            directory: view_name(view),
            bindings,
            warnings,
        })
    }

    /// Returns whether a client is about to mount a view.
    pub(super) fn is_expected(&self, id: u64) -> bool {
        self.expected().values().any(|expected| expected.view == id)
    }

    /// Locks the announced mounts, by their tokens. Forgets those that were not made in time.
    fn expected(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Expected>> {
        let now = self.context.now();
        let mut waiting = self.inner.expected.lock();
        waiting.retain(|_, expected| now.0.saturating_sub(expected.since.0) < EXPECTED_NANOSECONDS);
        waiting
    }

    /// Answers requests of a device that a process has mounted in its own namespace.
    fn take_over(&self, token: &[u8], device: OwnedFd, process: Pid) -> Result<()> {
        let unknown = || Error::new(Reason::NotFound, "unknown mount token, or one that was used before or is too old");
        let view = self.expected().get(token).map(|expected| expected.view).ok_or_else(unknown)?;
        let _using = self.context.using();
        // Locked until the mount exists, so that no other call closes the view.
        let locked = self.lock_view(view)?;
        let expected = self.inner.expected.lock().remove(token).ok_or_else(unknown)?;
        let record = MountRecord {
            path: expected.path.clone(),
            mode: Mode::ReadWrite,
            workspace: self.view_workspace(expected.view)?.to_string(),
            since: self.context.now().0,
            private: true,
            snapshot: String::new(),
            options: RecordedOptions::default(),
            remounted: false,
        };
        let mount = Mount::on(&locked.live.view, &expected.path, device, &expected.options);
        let mount = mount.map_err(|error| mount_error(&error, &expected.options))?;
        let number = self.inner.book.add_mount(record.clone())?;
        let namespace = u32::try_from(process.as_raw_nonzero().get()).ok().and_then(kernel::mount_namespace);
        let private = Some(PrivateMount { token: token.to_vec(), namespace });
        let shows = MountedTree::Live(expected.view);
        let mounted = Mounted { mount, shows, record, leaving: false, device: None, private, is_unclaimed: false };
        self.inner.state.lock().mounts.insert(number, mounted);
        Ok(())
    }
}

/// Takes one device from a client. The answer is empty on success, and the reason otherwise.
pub(crate) fn answer(views: &Views, mut stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(WITHIN))?;
    stream.set_write_timeout(Some(WITHIN))?;
    let peer = sockopt::socket_peercred(&stream)?;
    if peer.uid != rustix::process::geteuid() {
        return stream.write_all(b"this store belongs to another user");
    }
    match receive(&stream) {
        Ok((token, device)) => match views.take_over(&token, device, peer.pid) {
            Ok(()) => Ok(()),
            Err(failure) => stream.write_all(failure.to_string().as_bytes()),
        },
        Err(error) => stream.write_all(format!("no device arrived: {error}").as_bytes()),
    }
}

/// Receives a token and one device from a client.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, OwnedFd)> {
    let mut token = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut token)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let devices: Vec<OwnedFd> = fds.flatten().collect();
    if got.flags.contains(ReturnFlags::CTRUNC) || devices.len() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "one device is expected"));
    }
    let device = devices.into_iter().next().expect("there is one");
    Ok((token[..got.bytes].to_vec(), device))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicI64, Ordering};

    use amalgam_engine::Time;
    use amalgam_engine::workspace::{NewWorkspace, WorkspaceName};

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    static NOW: AtomicI64 = AtomicI64::new(1);

    fn now() -> Time {
        Time(NOW.load(Ordering::Relaxed))
    }

    #[test]
    fn announced_mounts_are_limited_and_end_after_their_time() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let (views, act) = (&service.views, service.context.act("ann"));
        let name = WorkspaceName::new("main").expect("a name");
        service.context.workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
        *views.inner.handover_socket.lock() = Some(around.path().join("door"));
        for number in 0..EXPECTED_MAX {
            let options = mount_options(None);
            let expected = Expected { view: u64::MAX, path: PathBuf::new(), options, since: now() };
            views.inner.expected.lock().insert(number.to_string().into_bytes(), expected);
        }
        let workspace = amalgam_proto::workspace_name(&name);
        let request = v1::PrepareMountRequest { workspace, ..Default::default() };
        let refused = views.prepare_mount(&request).expect_err("there are too many");
        assert_eq!(refused.reason(), Reason::TooMany);
        assert_eq!(views.inner.expected.lock().len(), EXPECTED_MAX, "the others can still be made");
        NOW.fetch_add(EXPECTED_NANOSECONDS, Ordering::Relaxed);
        let prepared = views.prepare_mount(&request).expect("the others are too old");
        assert_eq!(views.inner.expected.lock().len(), 1);
        NOW.fetch_add(EXPECTED_NANOSECONDS, Ordering::Relaxed);
        let device = File::open("/dev/null").expect("opened").into();
        let refused = views.take_over(&prepared.token, device, rustix::process::getpid()).expect_err("it is too old");
        assert_eq!(refused.reason(), Reason::NotFound);
    }
}
