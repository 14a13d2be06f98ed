//! Exports of workspaces and snapshots over NFS, and the server that serves them.
//!
//! The view book records exports, so the next process that opens the store serves them again, with the same key for file handles
//! and at the same port: clients continue without a new mount. An export of a workspace shows its one live view ([`Views`]), and
//! opens it with the first request of a client. A thread closes views that no client used for some minutes.
//!
//! Not here: the protocol, which is in [`amalgam_nfs`].

mod key;
mod listener;
mod source;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::workspace::{LabelName, WorkspaceName};
use amalgam_engine::{SnapshotId, Time};
use amalgam_nfs::{Credentials, ExportSpec, MountLines, MountWatcher, Network, Statistics, export_path};
use amalgam_proto::{Reason, v1};
use parking_lot::{Condvar, Mutex};
use tracing::info;

use crate::call_log::warn_problem;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::host_features::HostFeatures;
use crate::views::{ExportRecord, Mode, Views, mode_message};
pub use listener::NfsListen;
use listener::{Listener, not_listening};
use source::ExportSource;

/// The path component for workspaces without a project.
const NO_PROJECT: &str = "default";
/// The number of hex digits of a snapshot in its path.
const SNAPSHOT_DIGITS: usize = 16;
/// The number of random bytes in a secret path component.
const SECRET_BYTES: usize = 16;
/// Views that no client used for one to two intervals are closed.
const IDLE_INTERVAL: Duration = Duration::from_secs(300);

/// The exports of a store, and its NFS server.
#[derive(Clone)]
pub(crate) struct Exports {
    context: Arc<Context>,
    views: Views,
    inner: Arc<Inner>,
}

struct Inner {
    listener: Mutex<Listener>,
    /// Messages about exports that cannot be served.
    problems: Mutex<Vec<String>>,
    /// Whether this process stays for exports. A process that ends with its command does not.
    is_lasting: Mutex<bool>,
    is_ending: Mutex<bool>,
    ending: Condvar,
}

impl Exports {
    /// Creates the exports of a store, of which none is served yet.
    pub(crate) fn new(context: &Arc<Context>, views: &Views) -> Self {
        let inner = Inner {
            listener: Mutex::new(Listener::new(&context.home.exports_path(), context.clock)),
            problems: Mutex::default(),
            is_lasting: Mutex::default(),
            is_ending: Mutex::default(),
            ending: Condvar::new(),
        };
        Self { context: Arc::clone(context), views: views.clone(), inner: Arc::new(inner) }
    }

    /// Listens at an address from now on, even if nothing is exported.
    pub(crate) fn listen(&self, listen: NfsListen) -> Result<SocketAddr> {
        self.context.host.check("exports")?;
        let mut listener = self.inner.listener.lock();
        self.serve_remembered(&mut listener);
        listener.listen_at(listen)?;
        let address = listener.address().ok_or_else(not_listening)?;
        self.remember(address)?;
        Ok(address)
    }

    /// Serves the exports of the view book. From here on this process stays while there are any. Does nothing if the features of
    /// the host are disabled.
    pub(crate) fn resume(&self) {
        if self.context.host == HostFeatures::Disabled {
            return;
        }
        *self.inner.is_lasting.lock() = true;
        let records = self.views.exports();
        if records.is_empty() {
            return;
        }
        let mut listener = self.inner.listener.lock();
        let mut problems = self.serve_remembered(&mut listener);
        problems.extend(self.listen_for(&mut listener, &records));
        problems.iter().for_each(|problem| warn_problem(problem, "an export cannot be served as before"));
        *self.inner.problems.lock() = problems;
    }

    /// Adds the recorded exports to the table before the server listens: a client that finds no export would get an error for all
    /// its files. Returns messages for their users.
    fn serve_remembered(&self, listener: &mut Listener) -> Vec<String> {
        let records = self.views.exports();
        let known = listener.opened_table();
        let mut problems = Vec::new();
        for (number, record) in &records {
            if known.as_ref().is_some_and(|table| table.contains(&record.path)) {
                continue;
            }
            let added = self.serve(listener, *number, record);
            problems.extend(added.err().map(|failure| format!("{} cannot be served: {failure}", record.path)));
        }
        problems
    }

    /// Listens for the clients of recorded exports. Returns messages for their users.
    fn listen_for(&self, listener: &mut Listener, records: &BTreeMap<u64, ExportRecord>) -> Vec<String> {
        let networks: Vec<_> =
            records.values().flat_map(|record| networks(&record.allow).unwrap_or_default()).collect();
        let remembered = self.views.nfs_port();
        let address = match listener.ensure(&networks, None, remembered) {
            Ok(address) => address,
            Err(failure) => return vec![format!("exports cannot be served: {failure}")],
        };
        let moved = remembered.filter(|port| *port != address.port()).map(|port| {
            let now = address.port();
            format!("exports were served at port {port}, and are at port {now} now; clients have to mount them again")
        });
        moved.into_iter().chain(self.remember(address).err().map(|failure| failure.to_string())).collect()
    }

    /// Records the port of the server, for the next process.
    fn remember(&self, address: SocketAddr) -> Result<()> {
        self.views.set_nfs_port(address.port())
    }

    /// Exports a workspace or a snapshot.
    pub(crate) fn create(&self, request: &v1::CreateExportRequest) -> Result<v1::CreateExportResponse> {
        self.context.host.check("exports")?;
        if !*self.inner.is_lasting.lock() || *self.inner.is_ending.lock() {
            let message = "an export needs the background process; run this without --in-process";
            return Err(Error::new(Reason::MountRefused, message));
        }
        let mut record = self.record(request)?;
        let mut listener = self.inner.listener.lock();
        if record.allow.is_empty() {
            record.allow = listener.default_allow().iter().map(ToString::to_string).collect();
        }
        if self.views.exports().values().any(|other| other.path == record.path) {
            let message = format!(
                "{0} is exported already; `amalgam exports` shows it, `amalgam unexport {0}` ends it",
                record.path
            );
            return Err(Error::new(Reason::AlreadyExists, message));
        }
        let port = u16::try_from(request.port).map_err(|_| Error::new(Reason::Invalid, "port: at most 65535"))?;
        let port = (port != 0).then_some(port);
        let address = listener.ensure(&networks(&record.allow)?, port, self.views.nfs_port())?;
        self.remember(address)?;
        // Recorded first: if the process dies in between, the next one serves the export.
        let number = match self.views.add_export(record.clone()) {
            Ok(number) => number,
            Err(failure) => {
                self.stop_if_unused(&mut listener);
                return Err(failure);
            }
        };
        if let Err(failure) = self.serve(&mut listener, number, &record) {
            self.views.remove_export(number)?;
            self.stop_if_unused(&mut listener);
            return Err(failure);
        }
        info!(export = number, workspace = record.workspace, mode = ?record.mode, "exported");
        let export = self.message(&listener, number, &record)?;
        Ok(v1::CreateExportResponse { export: Some(export) })
    }

    /// Returns the record of a new export. Refuses a request without a workspace or snapshot to show.
    fn record(&self, request: &v1::CreateExportRequest) -> Result<ExportRecord> {
        let here = self.context.here(&request.workspace)?;
        let needed = || Error::new(Reason::Invalid, "workspace: name one");
        let (mode, snapshot) = match request.mode() {
            v1::MountMode::ReadWrite | v1::MountMode::Unspecified => (Mode::ReadWrite, None),
            v1::MountMode::Follow => (Mode::Follow, None),
            v1::MountMode::Snapshot => (Mode::Snapshot, Some(self.context.resolve(&request.revision, here.as_ref())?)),
        };
        let found = here.as_ref().map(|name| self.context.workspaces.get(name)).transpose()?;
        let project = found.as_ref().map(|found| found.project.as_str()).filter(|project| !project.is_empty());
        let name = here.as_ref().map(|name| name.as_str());
        let place = match (mode, snapshot) {
            (Mode::ReadWrite, _) => name.ok_or_else(needed)?.to_owned(),
            (Mode::Follow, _) => {
                let name = name.ok_or_else(needed)?;
                if found.as_ref().is_some_and(|found| found.head.is_none()) {
                    let message = format!("workspace {name} has no snapshot to show yet; commit to it first");
                    return Err(Error::new(Reason::NotFound, message));
                }
                format!("{name}@")
            }
            (Mode::Snapshot, snapshot) => {
                let snapshot = snapshot.ok_or_else(needed)?;
                match self.label_of(&request.revision, snapshot)? {
                    Some(label) => format!("{}@{label}", name.unwrap_or_default()),
                    None => format!("@{}", &snapshot.to_string()[..SNAPSHOT_DIGITS]),
                }
            }
        };
        networks(&request.allow)?;
        let is_of_workspace = mode != Mode::Snapshot;
        Ok(ExportRecord {
            path: export_path(project.unwrap_or(NO_PROJECT), &place),
            mode,
            workspace: name.filter(|_| is_of_workspace).unwrap_or_default().to_owned(),
            snapshot: snapshot.map(|snapshot| snapshot.to_string()).unwrap_or_default(),
            read_only: request.read_only,
            allow: request.allow.clone(),
            secret: request.secret.then(|| key::random_hex(SECRET_BYTES)).transpose()?,
            trusts_users: request.trusts_users,
            since: self.context.now().0,
        })
    }

    /// Returns the label that a revision names, if it is on this snapshot; `None` otherwise.
    fn label_of(&self, revision: &str, snapshot: SnapshotId) -> Result<Option<LabelName>> {
        let Ok(label) = LabelName::new(revision) else { return Ok(None) };
        let found = self.context.labels.find(&label)?;
        Ok((found == Some(snapshot)).then_some(label))
    }

    /// Lets clients mount an export.
    fn serve(&self, listener: &mut Listener, number: u64, record: &ExportRecord) -> Result<()> {
        let handles = self.context.home.exports_path().join(format!("handles-{number}"));
        let source = ExportSource::new(&self.context, &self.views, number, handles);
        let added = listener.table()?.add(spec(record)?, Arc::new(source));
        added.map_err(|error| Error::new(Reason::Invalid, error.to_string()))
    }

    /// Returns all exports, by path.
    pub(crate) fn list(&self) -> Result<v1::ListExportsResponse> {
        let listener = self.inner.listener.lock();
        let mut records: Vec<_> = self.views.exports().into_iter().collect();
        records.sort_by(|(_, one), (_, other)| one.path.cmp(&other.path));
        let exports = records.iter().map(|(number, record)| self.message(&listener, *number, record));
        Ok(v1::ListExportsResponse {
            exports: exports.collect::<Result<_>>()?,
            address: listener.address().map(|address| address.to_string()).unwrap_or_default(),
            connections: listener.statistics().map_or(0, |found| u32::try_from(found.connections).unwrap_or(u32::MAX)),
            problems: self.inner.problems.lock().clone(),
        })
    }

    /// Returns where the files of a workspace are: paths of the host for a local caller, and exports. Refuses a workspace that has
    /// neither.
    pub(crate) fn workspace_path(&self, name: &WorkspaceName, is_local: bool) -> Result<v1::GetWorkspacePathResponse> {
        let workspace = self.views.workspace_message(name)?;
        let directories = workspace.directories.into_iter().map(|directory| directory.path);
        let paths: Vec<_> = workspace.mounts.into_iter().chain(directories).filter(|_| is_local).collect();
        let listener = self.inner.listener.lock();
        let is_listening = listener.address().is_some();
        let of_it = self.views.exports().into_iter().filter(|(_, record)| record.workspace == name.as_str());
        let exports = of_it.filter(|_| is_listening).map(|(number, record)| self.message(&listener, number, &record));
        let mut exports = exports.collect::<Result<Vec<_>>>()?;
        exports.sort_by_key(|export| (export.read_only, export.mode != i32::from(v1::MountMode::ReadWrite)));
        if paths.is_empty() && exports.is_empty() {
            let next = match is_local {
                true => {
                    "`amalgam mount` or `amalgam checkout` gives it one, `amalgam export nfs` shows it to other machines"
                }
                false => "its files are read and written by the API; an operator exports it with `amalgam export nfs`",
            };
            return Err(Error::new(Reason::NotFound, format!("workspace {name} has no path; {next}")));
        }
        let mount = exports.first().and_then(|export| export.commands.as_ref()).map(|commands| commands.mount.clone());
        Ok(v1::GetWorkspacePathResponse {
            path: paths.first().cloned().unwrap_or_default(),
            paths,
            mount: mount.unwrap_or_default(),
            exports,
        })
    }

    /// Deletes exports.
    pub(crate) fn delete(&self, request: &v1::DeleteExportRequest) -> Result<v1::DeleteExportResponse> {
        let mut listener = self.inner.listener.lock();
        let meant = self.meant(request)?;
        let mut response = v1::DeleteExportResponse::default();
        for (number, record) in meant {
            response.exports.push(self.message(&listener, number, &record)?);
            listener.table()?.remove(&record.path);
            self.views.remove_export(number)?;
            // The file holds only numbers; a leftover does no harm.
            let _ = std::fs::remove_file(self.context.home.exports_path().join(format!("handles-{number}")));
            self.inner.problems.lock().retain(|problem| !problem.starts_with(&format!("{} ", record.path)));
            info!(export = number, workspace = record.workspace, "export ended");
        }
        self.stop_if_unused(&mut listener);
        Ok(response)
    }

    /// Returns the exports that a request names. Refuses if there are none.
    fn meant(&self, request: &v1::DeleteExportRequest) -> Result<Vec<(u64, ExportRecord)>> {
        use v1::delete_export_request::Target;
        let all = self.views.exports();
        let (found, what): (Vec<_>, _) = match &request.target {
            Some(Target::Name(name)) => {
                let number = amalgam_proto::export_number(name)?;
                (all.into_iter().filter(|(other, _)| *other == number).collect(), name.clone())
            }
            Some(Target::Path(path)) => {
                let is_it = |record: &ExportRecord| {
                    record.path == *path || spec(record).is_ok_and(|spec| spec.mount_path() == *path)
                };
                (all.into_iter().filter(|(_, record)| is_it(record)).collect(), path.clone())
            }
            Some(Target::Workspace(name)) => {
                let workspace = crate::call_log::workspace_id(name)?;
                let of_it = all.into_iter().filter(|(_, record)| record.workspace == workspace.as_str());
                (of_it.collect(), workspace.to_string())
            }
            None => return Err(Error::new(Reason::Invalid, "target: name an export, a path or a workspace")),
        };
        if found.is_empty() {
            let message = format!("{what} is not exported; `amalgam exports` lists what is");
            return Err(Error::new(Reason::NotFound, message));
        }
        Ok(found)
    }

    /// Stops the server when nothing is exported, unless it has an address to listen at.
    fn stop_if_unused(&self, listener: &mut Listener) {
        if self.views.exports().is_empty() {
            listener.stop_unless_told();
        }
    }

    /// Returns whether this process has to stay, because clients rely on it.
    pub(crate) fn is_serving(&self) -> bool {
        // A thread that holds the lock is about to serve, or waits for clients.
        self.inner.listener.try_lock().is_none_or(|listener| listener.address().is_some())
    }

    /// Calls a function with each mount, unmount and refusal of an NFS client from now on.
    pub(crate) fn observe_mounts(&self, observe: MountWatcher) {
        self.inner.listener.lock().observe_mounts(observe);
    }

    /// Returns the counters of the server; `None` if it does not run.
    pub(crate) fn statistics(&self) -> Option<Statistics> {
        self.inner.listener.lock().statistics()
    }

    /// Closes views that no client uses, at intervals, until the process ends.
    pub(crate) fn keep_releasing(&self) {
        let mut is_ending = self.inner.is_ending.lock();
        while !*is_ending {
            if self.inner.ending.wait_for(&mut is_ending, IDLE_INTERVAL).timed_out() {
                drop(is_ending);
                self.release_idle();
                is_ending = self.inner.is_ending.lock();
            }
        }
    }

    /// Closes the views that no client used since the last call.
    fn release_idle(&self) {
        let Some(table) = self.inner.listener.lock().opened_table() else { return };
        let numbers = self.views.exports();
        let _using = self.context.using();
        table.release_idle(|path| {
            let found = numbers.iter().find(|(_, record)| record.path == path);
            if let Some(Err(failure)) = found.map(|(number, _)| self.views.close_export(*number)) {
                crate::call_log::warn_failure(&failure, "the view of an idle export could not be closed");
            }
        });
    }

    /// Stops the server after the calls under way. The exports stay in the view book.
    pub(crate) fn end(&self) {
        *self.inner.is_ending.lock() = true;
        self.inner.ending.notify_all();
        self.inner.listener.lock().stop();
    }

    /// Returns an export, for the wire.
    fn message(&self, listener: &Listener, number: u64, record: &ExportRecord) -> Result<v1::Export> {
        let spec = spec(record)?;
        let address = listener.reachable_address(&spec.allow);
        let lines = address.map(|address| (address, MountLines::new(address, &spec)));
        let name = volume_name(&record.path);
        let workspace = match record.workspace.as_str() {
            "" => String::new(),
            name => format!("workspaces/{name}"),
        };
        Ok(v1::Export {
            name: amalgam_proto::export_name(number),
            path: record.path.clone(),
            mode: mode_message(record.mode).into(),
            workspace,
            snapshot: SnapshotId::from_hex(&record.snapshot).map(amalgam_proto::snapshot_name).unwrap_or_default(),
            read_only: spec.read_only,
            allow: record.allow.clone(),
            mount_path: spec.mount_path(),
            trusts_users: record.trusts_users,
            host: address.map(|address| address.ip().to_string()).unwrap_or_default(),
            port: address.map_or(0, |address| u32::from(address.port())),
            in_use: self.views.is_export_open(number),
            create_time: Some(amalgam_proto::timestamp(Time(record.since))),
            commands: lines.map(|(_, lines)| v1::MountCommands {
                mount: lines.mount("/mnt"),
                docker: lines.docker(&name),
                kubernetes: lines.kubernetes(&name),
                options: lines.options(),
                device: lines.device(),
            }),
        })
    }
}

/// Parses addresses and networks.
fn networks(texts: &[String]) -> Result<Vec<Network>> {
    let parse = |text: &String| text.parse().map_err(|error| Error::new(Reason::Invalid, format!("allow: {error}")));
    texts.iter().map(parse).collect()
}

/// Returns the settings with which the NFS server serves an export.
fn spec(record: &ExportRecord) -> Result<ExportSpec> {
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut spec = ExportSpec::new(record.path.as_str(), owner);
    spec.secret.clone_from(&record.secret);
    spec.read_only = record.read_only || record.mode != Mode::ReadWrite;
    spec.allow = networks(&record.allow)?;
    if record.trusts_users {
        spec.credentials = Credentials::Trusted { squash_root: true };
    }
    Ok(spec)
}

/// Returns a volume name that Docker and Kubernetes accept: at most 63 lower-case letters, digits and dashes.
fn volume_name(path: &str) -> String {
    let plain = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' => char::from(byte),
        b'A'..=b'Z' => char::from(byte.to_ascii_lowercase()),
        _ => '-',
    };
    let words: String = path.bytes().map(plain).collect();
    let name = format!("amalgam-{}", words.trim_matches('-'));
    name[..name.len().min(63)].trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests;
