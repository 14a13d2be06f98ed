//! Exports: which views can be mounted under which paths, by whom, and as whom.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_view::{Caller, Error, View, WatchId};
use parking_lot::{Mutex, RwLock};

use crate::handle::HandleKey;
use crate::network::Network;
use crate::rpc::Credential;
use crate::sync::Syncer;

/// The number of the user and the group that root and strangers become.
pub(crate) const NOBODY: u32 = 65_534;
/// The longest secret component.
const SECRET_BYTES_MAX: usize = 64;

/// As whom clients act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Every client acts as the workspace's owner, whoever it says that it is.
    #[default]
    Owner,
    /// Clients are who they say. For hosts that are trusted to say so.
    Trusted {
        /// Whether root becomes `nobody`.
        squash_root: bool,
    },
}

/// What an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// The path that clients mount: see [`export_path`].
    pub path: String,
    /// A further component that a client must know to mount it; never listed.
    pub secret: Option<String>,
    /// Whether changes are refused, also where the view takes them.
    pub read_only: bool,
    /// The addresses that may mount it and use its handles.
    pub allow: Vec<Network>,
    /// As whom clients act.
    pub credentials: Credentials,
    /// The user and group of the workspace.
    pub owner: (u32, u32),
    /// Whether a change is on disk before its reply. Without it a power cut loses what was not committed, as on a local disk.
    pub durable: bool,
}

impl ExportSpec {
    /// An export for this machine alone, to write to, as the owner.
    pub fn new(path: impl Into<String>, owner: (u32, u32)) -> Self {
        let (allow, credentials) = (Network::loopback().to_vec(), Credentials::default());
        Self { path: path.into(), secret: None, read_only: false, allow, credentials, owner, durable: true }
    }

    /// The path that a client mounts, with the secret component.
    pub fn mount_path(&self) -> String {
        match &self.secret {
            Some(secret) => format!("{}/{secret}", self.path),
            None => self.path.clone(),
        }
    }
}

/// The path of an export: `/PROJECT/WORKSPACE`, `/PROJECT/WORKSPACE@LABEL` or `/PROJECT/@SNAPSHOT`, out of the two parts. Bytes that are
/// no letters, digits, `-`, `_`, `.` or `@` become `%XX`, and so does a leading dot: no part is `..`, and none has a slash.
pub fn export_path(project: &str, workspace: &str) -> String {
    let escape = |part: &str| {
        let mut escaped = String::with_capacity(part.len());
        for (at, byte) in part.bytes().enumerate() {
            let is_plain = byte.is_ascii_alphanumeric() || b"-_@".contains(&byte) || byte == b'.' && at > 0;
            if is_plain { escaped.push(char::from(byte)) } else { escaped.push_str(&format!("%{byte:02X}")) }
        }
        escaped
    };
    format!("/{}/{}", escape(project), escape(workspace))
}

/// Why something cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// A path that no client could mount.
    #[error("{path:?} cannot be exported: {why}")]
    Invalid {
        /// The path.
        path: String,
        /// Why not.
        why: &'static str,
    },
    /// A path that is exported already.
    #[error("{path} is exported already; remove that export first")]
    Taken {
        /// The path.
        path: String,
    },
}

/// Where the view of an export comes from. Asked when a client first needs it, and again after [`Exports::release`].
pub trait ViewSource: Send + Sync {
    /// Opens the view. Handles must be kept in it: see [`View::keep_handles`].
    fn open(&self) -> Result<View, Error>;
}

impl ViewSource for View {
    fn open(&self) -> Result<View, Error> {
        Ok(self.clone())
    }
}

/// All exports of a server.
pub struct Exports {
    secret: [u8; 32],
    by_number: RwLock<BTreeMap<u64, Arc<Export>>>,
}

/// One export, as it is served.
pub(crate) struct Export {
    pub(crate) spec: ExportSpec,
    pub(crate) key: HandleKey,
    source: Arc<dyn ViewSource>,
    opened: RwLock<Option<Arc<OpenExport>>>,
    /// One opening at a time.
    opening: Mutex<()>,
}

/// An export whose view is open.
pub(crate) struct OpenExport {
    pub(crate) view: View,
    pub(crate) door: WatchId,
    /// How often others changed something: what is told of before and after a change holds only if nobody else came in between.
    pub(crate) foreign_changes: Arc<AtomicU64>,
    /// One change at a time through this door, so that its attributes before and after are its own.
    pub(crate) changing: Mutex<()>,
    pub(crate) syncer: Arc<Syncer>,
}

impl Drop for OpenExport {
    fn drop(&mut self) {
        self.view.unwatch(self.door);
    }
}

impl Exports {
    /// No exports yet. The secret is the store's: handles are valid as long as it stays.
    pub fn new(secret: [u8; 32]) -> Self {
        Self { secret, by_number: RwLock::default() }
    }

    /// Adds an export.
    pub fn add(&self, spec: ExportSpec, source: Arc<dyn ViewSource>) -> Result<(), ExportError> {
        check(&spec)?;
        let key = HandleKey::new(&self.secret, &spec.path, spec.secret.as_deref());
        let mut all = self.by_number.write();
        if all.values().any(|export| export.spec.path == spec.path) || all.contains_key(&key.export) {
            return Err(ExportError::Taken { path: spec.path });
        }
        let (number, opened, opening) = (key.export, RwLock::default(), Mutex::default());
        all.insert(number, Arc::new(Export { spec, key, source, opened, opening }));
        Ok(())
    }

    /// Removes an export: its handles are stale from now on. Returns whether it was there.
    pub fn remove(&self, path: &str) -> bool {
        let mut all = self.by_number.write();
        let before = all.len();
        all.retain(|_, export| export.spec.path != path);
        all.len() < before
    }

    /// Lets go of the view of an export, so that it can be closed; the next request opens it again.
    pub fn release(&self, path: &str) {
        let found = self.by_number.read().values().find(|export| export.spec.path == path).cloned();
        if let Some(export) = found {
            *export.opened.write() = None;
        }
    }

    /// What is exported.
    pub fn list(&self) -> Vec<ExportSpec> {
        let mut all: Vec<_> = self.by_number.read().values().map(|export| export.spec.clone()).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }

    pub(crate) fn by_number(&self, number: u64) -> Option<Arc<Export>> {
        self.by_number.read().get(&number).cloned()
    }

    /// The export that a client wants to mount. One that it may not, or whose secret it does not know, is as if it were not there.
    pub(crate) fn find(&self, path: &[u8], peer: IpAddr) -> Option<Arc<Export>> {
        let path = std::str::from_utf8(path).ok()?.trim_end_matches('/');
        let all = self.by_number.read();
        let matches = |export: &&Arc<Export>| same_bytes(&export.spec.mount_path(), path) && export.allows(peer);
        all.values().find(matches).cloned()
    }

    /// All exports that are open now.
    pub(crate) fn open_ones(&self) -> Vec<Arc<OpenExport>> {
        self.by_number.read().values().filter_map(|export| export.opened.read().clone()).collect()
    }
}

/// Compares all bytes, so that the time says nothing of where they differ.
fn same_bytes(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |found, (one, other)| found | (one ^ other)) == 0
}

fn check(spec: &ExportSpec) -> Result<(), ExportError> {
    let invalid = |why| Err(ExportError::Invalid { path: spec.path.clone(), why });
    if !spec.path.starts_with('/') || spec.path.len() < 2 || spec.path.ends_with('/') {
        return invalid("it begins with a slash and does not end with one");
    }
    if spec.path.split('/').skip(1).any(|part| part.is_empty() || part == "." || part == "..") {
        return invalid("each part has a name");
    }
    if !spec.path.bytes().all(|byte| byte.is_ascii_graphic()) || spec.path.len() > 900 {
        return invalid("it has plain characters only, at most 900");
    }
    let is_plain = |secret: &String| {
        (1..=SECRET_BYTES_MAX).contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    if !spec.secret.as_ref().is_none_or(is_plain) {
        return invalid("the secret component has 1 to 64 letters and digits");
    }
    Ok(())
}

impl Export {
    pub(crate) fn allows(&self, peer: IpAddr) -> bool {
        self.spec.allow.iter().any(|network| network.contains(peer))
    }

    /// The view, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<OpenExport>> {
        self.opened.read().clone()
    }

    /// The view, opened if need be. May take long.
    pub(crate) fn open(&self) -> Result<Arc<OpenExport>, Error> {
        let _one = self.opening.lock();
        if let Some(opened) = self.opened() {
            return Ok(opened);
        }
        let view = self.source.open()?;
        let foreign_changes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&foreign_changes);
        let door = view.watch(Arc::new(move |_| {
            counter.fetch_add(1, Ordering::Release);
        }));
        let syncer = Syncer::new(view.clone());
        let opened = Arc::new(OpenExport { view, door, foreign_changes, changing: Mutex::new(()), syncer });
        *self.opened.write() = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// The caller that a credential stands for.
    pub(crate) fn caller(&self, credential: &Credential, door: WatchId) -> Caller {
        let (uid, gid, groups) = match (self.spec.credentials, credential) {
            (Credentials::Owner, _) => (self.spec.owner.0, self.spec.owner.1, Vec::new()),
            (Credentials::Trusted { .. }, Credential::None) => (NOBODY, NOBODY, Vec::new()),
            (Credentials::Trusted { squash_root: true }, Credential::Unix { uid: 0, .. }) => {
                (NOBODY, NOBODY, Vec::new())
            }
            (Credentials::Trusted { squash_root }, Credential::Unix { uid, gid, groups }) => {
                let squash = |gid: u32| if squash_root && gid == 0 { NOBODY } else { gid };
                (*uid, squash(*gid), groups.iter().map(|gid| squash(*gid)).collect())
            }
        };
        let mut caller = Caller::owner(uid, gid);
        caller.groups = groups;
        caller.checked = true;
        caller.door = Some(door);
        caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_so_that_no_part_is_special() {
        for (project, workspace, expected) in [
            ("p", "w", "/p/w"),
            ("p", "w@v1.0", "/p/w@v1.0"),
            ("p", "agents/one", "/p/agents%2Fone"),
            ("..", ".", "/%2E./%2E"),
            ("a b", "ü", "/a%20b/%C3%BC"),
        ] {
            let path = export_path(project, workspace);
            assert_eq!(path, expected);
            assert_eq!(check(&ExportSpec::new(path, (0, 0))), Ok(()));
        }
    }

    #[test]
    fn paths_and_secrets_that_no_client_could_mount_are_refused() {
        for path in ["", "/", "a", "/a/", "/a//b", "/a/..", "/./a", "/a b"] {
            assert!(check(&ExportSpec::new(path, (0, 0))).is_err(), "{path}");
        }
        for secret in ["", "a/b", "..", &"a".repeat(65)] {
            let spec = ExportSpec { secret: Some(secret.to_owned()), ..ExportSpec::new("/a", (0, 0)) };
            assert!(check(&spec).is_err(), "{secret}");
        }
    }
}
