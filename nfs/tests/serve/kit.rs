//! A server over a view in a temporary directory, and short words for what tests ask of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SnapshotId, Store, Time};
use amalgam_nfs::client::{Client, Reply};
use amalgam_nfs::{ExportSpec, Exports, Server, ServerOptions};
use amalgam_view::{Caller, View, ViewOptions};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

pub(crate) const OWNER: u32 = 1_000;
pub(crate) const PATH: &str = "/p/w";
const SECRET: [u8; 32] = [7; 32];

#[expect(clippy::disallowed_methods, reason = "files have the time that it is")]
pub(crate) fn now() -> Time {
    Time::from(SystemTime::now())
}

/// A view, its workspace, and where its journal is.
pub(crate) struct Home {
    pub(crate) view: View,
    pub(crate) workspaces: Workspaces,
    journal: PathBuf,
    _scratch: Arc<tempfile::TempDir>,
}

fn main_workspace() -> WorkspaceName {
    WorkspaceName::new("main").expect("a name")
}

impl Home {
    pub(crate) fn new() -> Self {
        let scratch = Arc::new(tempfile::tempdir().expect("a directory"));
        let workspaces = Workspaces::of(&Store::in_memory());
        workspaces
            .create(&main_workspace(), &NewWorkspace::default(), &OperationContext::new("test", now()))
            .expect("a workspace");
        let journal = scratch.path().join("journal");
        let view = open(&workspaces, &journal);
        Self { view, workspaces, journal, _scratch: scratch }
    }

    /// The view of a new life; without `close` the last one ended as with a kill.
    pub(crate) fn reopen(self, close: bool) -> Self {
        let Self { view, workspaces, journal, _scratch } = self;
        if close {
            view.close().expect("closed");
        }
        drop(view);
        let view = open(&workspaces, &journal);
        Self { view, workspaces, journal, _scratch }
    }

    pub(crate) fn commit(&self) -> SnapshotId {
        let act = OperationContext::new("test", now());
        let committed = self.view.commit(&self.workspaces, &main_workspace(), &Change::new("x"), &act, "commit");
        committed.expect("committed").snapshot
    }

    pub(crate) fn scratch(&self) -> &Path {
        self._scratch.path()
    }
}

fn open(workspaces: &Workspaces, journal: &Path) -> View {
    let mut options = ViewOptions::new(Owner { uid: OWNER, gid: OWNER }, now);
    options.journaled_commit = workspaces.get(&main_workspace()).expect("a workspace").journaled;
    let tree = workspaces.open(&main_workspace()).expect("a tree");
    let (view, _) = View::open(tree, journal, options).expect("a view");
    view.keep_handles().expect("handles");
    view
}

/// A server with one export, and a client that has mounted it.
pub(crate) struct Kit {
    pub(crate) home: Home,
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) root: nfs_fh3,
}

pub(crate) fn spec() -> ExportSpec {
    ExportSpec::new(PATH, (OWNER, OWNER))
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions::new(now)
}

pub(crate) fn serve(view: &View, spec: ExportSpec, options: &ServerOptions) -> Server {
    let exports = Exports::new(SECRET);
    exports.add(spec, Arc::new(view.clone())).expect("exported");
    let listener = amalgam_nfs::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
    Server::start(listener, Arc::new(exports), options).expect("a server")
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::with(spec(), &options())
    }

    pub(crate) fn with(spec: ExportSpec, options: &ServerOptions) -> Self {
        Self::over(Home::new(), spec, options)
    }

    pub(crate) fn over(home: Home, spec: ExportSpec, options: &ServerOptions) -> Self {
        let path = spec.mount_path();
        let server = serve(&home.view, spec, options);
        let mut client = Client::connect(server.address()).expect("connected");
        client.act_as(OWNER, OWNER, &[]);
        let root = client.root(&path).expect("answered").expect("mounted");
        Self { home, server, client, root }
    }

    /// The server and the view end, and begin again.
    pub(crate) fn restart(self, close: bool) -> Self {
        let Self { home, server, client, .. } = self;
        drop(client);
        server.stop(Duration::from_secs(5));
        Self::over(home.reopen(close), spec(), &options())
    }

    pub(crate) fn connect(&self) -> Client {
        let mut client = Client::connect(self.server.address()).expect("connected");
        client.act_as(OWNER, OWNER, &[]);
        client
    }

    /// A caller who comes through another door.
    pub(crate) fn elsewhere(&self) -> Caller {
        Caller::owner(OWNER, OWNER)
    }
}

/// Calls a procedure; a call that is refused as such is a failure of the test.
#[track_caller]
pub(crate) fn call<T: Unpack, E: Unpack>(
    client: &mut Client,
    procedure: NFS_PROGRAM,
    arguments: &impl Pack,
) -> Result<T, (nfsstat3, E)> {
    let reply: Reply<Nfs3Result<T, E>> = client.nfs(procedure, arguments).expect("answered");
    match reply.result() {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err(failed) => Err(failed),
    }
}

pub(crate) fn at<'a>(directory: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
}

pub(crate) fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: set_mode3::Some(mode), ..sattr3::default() }
}

pub(crate) trait Ask {
    fn attributes(&mut self, handle: &nfs_fh3) -> Result<fattr3, nfsstat3>;
    fn look(&mut self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3>;
    fn make(&mut self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3>;
    fn make_directory(&mut self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3>;
    fn put(&mut self, file: &nfs_fh3, offset: u64, data: &[u8], stable: stable_how) -> Result<WRITE3resok, nfsstat3>;
    fn get(&mut self, file: &nfs_fh3, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3>;
    fn remove(&mut self, directory: &nfs_fh3, name: &str) -> Result<(), nfsstat3>;
    fn remove_directory(&mut self, directory: &nfs_fh3, name: &str) -> Result<(), nfsstat3>;
    fn rename(&mut self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Result<(), nfsstat3>;
    fn set(&mut self, handle: &nfs_fh3, set: sattr3) -> Result<(), nfsstat3>;
    fn commit(&mut self, file: &nfs_fh3) -> Result<writeverf3, nfsstat3>;
}

impl Ask for Client {
    fn attributes(&mut self, handle: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let arguments = GETATTR3args { object: handle.clone() };
        let found: Result<GETATTR3resok, (_, nfs3_types::xdr_codec::Void)> =
            call(self, NFS_PROGRAM::NFSPROC3_GETATTR, &arguments);
        found.map(|ok| ok.obj_attributes).map_err(|(status, _)| status)
    }

    fn look(&mut self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let arguments = LOOKUP3args { what: at(directory, name) };
        let found: Result<LOOKUP3resok, (_, LOOKUP3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_LOOKUP, &arguments);
        found.map(|ok| ok.object).map_err(|(status, _)| status)
    }

    fn make(&mut self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let arguments = CREATE3args { where_: at(directory, name), how: createhow3::GUARDED(mode(0o644)) };
        let made: Result<CREATE3resok, (_, CREATE3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_CREATE, &arguments);
        made.map(|ok| ok.obj.unwrap()).map_err(|(status, _)| status)
    }

    fn make_directory(&mut self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let arguments = MKDIR3args { where_: at(directory, name), attributes: mode(0o755) };
        let made: Result<MKDIR3resok, (_, MKDIR3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_MKDIR, &arguments);
        made.map(|ok| ok.obj.unwrap()).map_err(|(status, _)| status)
    }

    fn put(&mut self, file: &nfs_fh3, offset: u64, data: &[u8], stable: stable_how) -> Result<WRITE3resok, nfsstat3> {
        let count = data.len() as u32;
        let arguments = WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::borrowed(data) };
        let done: Result<_, (_, WRITE3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_WRITE, &arguments);
        done.map_err(|(status, _)| status)
    }

    fn get(&mut self, file: &nfs_fh3, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        let arguments = READ3args { file: file.clone(), offset, count };
        let found: Result<READ3resok<'_>, (_, READ3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_READ, &arguments);
        found.map(|ok| (ok.data.into_owned(), ok.eof)).map_err(|(status, _)| status)
    }

    fn remove(&mut self, directory: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let arguments = REMOVE3args { object: at(directory, name) };
        let done: Result<REMOVE3resok, (_, REMOVE3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_REMOVE, &arguments);
        done.map(drop).map_err(|(status, _)| status)
    }

    fn remove_directory(&mut self, directory: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let arguments = RMDIR3args { object: at(directory, name) };
        let done: Result<RMDIR3resok, (_, RMDIR3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_RMDIR, &arguments);
        done.map(drop).map_err(|(status, _)| status)
    }

    fn rename(&mut self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Result<(), nfsstat3> {
        let arguments = RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) };
        let done: Result<RENAME3resok, (_, RENAME3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_RENAME, &arguments);
        done.map(drop).map_err(|(status, _)| status)
    }

    fn set(&mut self, handle: &nfs_fh3, set: sattr3) -> Result<(), nfsstat3> {
        let arguments = SETATTR3args { object: handle.clone(), new_attributes: set, guard: sattrguard3::None };
        let done: Result<SETATTR3resok, (_, SETATTR3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_SETATTR, &arguments);
        done.map(drop).map_err(|(status, _)| status)
    }

    fn commit(&mut self, file: &nfs_fh3) -> Result<writeverf3, nfsstat3> {
        let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        let done: Result<COMMIT3resok, (_, COMMIT3resfail)> = call(self, NFS_PROGRAM::NFSPROC3_COMMIT, &arguments);
        done.map(|ok| ok.verf).map_err(|(status, _)| status)
    }
}
