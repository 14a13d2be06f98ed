//! Exports: the views that clients can mount, the addresses that may mount them, and the users that clients act as.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_view::{Caller, Error, View, WatchId};
use parking_lot::{Mutex, RwLock};

use crate::handle::HandleKey;
use crate::network::Network;
use crate::rpc::Credential;
use crate::sync::Syncer;

/// User and group id for squashed and anonymous callers.
pub(crate) const NOBODY: u32 = 65_534;
/// Longest secret path component.
const SECRET_BYTES_MAX: usize = 64;

/// The user that clients act as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Every client acts as the owner of the workspace; AUTH_UNIX credentials are ignored.
    #[default]
    Owner,
    /// The server believes AUTH_UNIX credentials. Only for trusted hosts.
    Trusted {
        /// Whether root is mapped to `nobody`.
        squash_root: bool,
    },
}

/// Configuration of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// The path that clients mount; see [`export_path`].
    pub path: String,
    /// A secret last path component that a client must know to mount. EXPORT and DUMP never list it.
    pub secret: Option<String>,
    /// Refuses all changes, even if the view is writable.
    pub read_only: bool,
    /// Addresses that may mount the export and use its handles.
    pub allow: Vec<Network>,
    /// The user that clients act as.
    pub credentials: Credentials,
    /// User and group id of the owner of the workspace.
    pub owner: (u32, u32),
    /// Whether the server syncs each change before it replies, as NFSv3 requires. If not, a power cut loses changes that no COMMIT covered.
    pub durable: bool,
}

impl ExportSpec {
    /// Returns a writable export for loopback addresses, with owner credentials.
    pub fn new(path: impl Into<String>, owner: (u32, u32)) -> Self {
        let (allow, credentials) = (Network::loopback().to_vec(), Credentials::default());
        Self { path: path.into(), secret: None, read_only: false, allow, credentials, owner, durable: true }
    }

    /// Returns the path that a client mounts, including the secret component.
    pub fn mount_path(&self) -> String {
        match &self.secret {
            Some(secret) => format!("{}/{secret}", self.path),
            None => self.path.clone(),
        }
    }
}

/// Builds the path of an export from a project and a workspace: `/PROJECT/WORKSPACE`, `/PROJECT/WORKSPACE@LABEL` or `/PROJECT/@SNAPSHOT`.
/// Escapes all bytes but letters, digits, `-`, `_`, `.` and `@` as `%XX`, and a leading dot, so no component is `..` or contains a slash.
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

/// Reason why an export cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The path or the secret component is invalid.
    #[error("{path:?} cannot be exported: {why}")]
    Invalid {
        /// The path.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// The path is already exported.
    #[error("{path} is exported already; remove that export first")]
    Taken {
        /// The path.
        path: String,
    },
}

/// Opens the view of an export: on first use, and again after [`Exports::release`].
pub trait ViewSource: Send + Sync {
    /// Opens the view. The view must keep handles; see [`View::keep_handles`].
    fn open(&self) -> Result<View, Error>;
}

impl ViewSource for View {
    fn open(&self) -> Result<View, Error> {
        Ok(self.clone())
    }
}

/// The exports of a server.
pub struct Exports {
    secret: [u8; 32],
    by_number: RwLock<BTreeMap<u64, Arc<Export>>>,
}

/// An export with its key and its view.
pub(crate) struct Export {
    pub(crate) spec: ExportSpec,
    pub(crate) key: HandleKey,
    source: Arc<dyn ViewSource>,
    opened: RwLock<Option<Arc<OpenExport>>>,
    /// Serialises opening.
    opening: Mutex<()>,
}

/// An export whose view is open.
pub(crate) struct OpenExport {
    pub(crate) view: View,
    pub(crate) watch_id: WatchId,
    /// Number of changes that did not come through this export. Weak cache consistency data is exact only if this did not change meanwhile.
    pub(crate) foreign_changes: Arc<AtomicU64>,
    /// Serialises changes through this export, so that attributes before and after belong to one change.
    pub(crate) changing: Mutex<()>,
    pub(crate) syncer: Arc<Syncer>,
    /// Whether a call used the view since the last [`Exports::release_idle`].
    is_used: AtomicBool,
}

impl Drop for OpenExport {
    fn drop(&mut self) {
        self.view.unwatch(self.watch_id);
    }
}

impl Exports {
    /// Creates an empty set. `secret` belongs to the store: handles stay valid as long as it does not change.
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

    /// Removes an export, which makes its handles stale. Returns whether it existed.
    pub fn remove(&self, path: &str) -> bool {
        let mut all = self.by_number.write();
        let before = all.len();
        all.retain(|_, export| export.spec.path != path);
        all.len() < before
    }

    /// Drops the view of an export so that it can be closed. The next request opens it again.
    pub fn release(&self, path: &str) {
        let found = self.by_number.read().values().find(|export| export.spec.path == path).cloned();
        if let Some(export) = found {
            *export.opened.write() = None;
        }
    }

    /// Drops the views that no call used since the last time this was called. `close` gets the path of each such export, and no request
    /// opens its view until it returns.
    pub fn release_idle(&self, mut close: impl FnMut(&str)) {
        let all: Vec<_> = self.by_number.read().values().cloned().collect();
        for export in all {
            // An export whose view is being opened is not idle.
            if let Some(_one) = export.opening.try_lock()
                && export.release_if_idle()
            {
                close(&export.spec.path);
            }
        }
    }

    /// Lists the exports, sorted by path.
    pub fn list(&self) -> Vec<ExportSpec> {
        let mut all: Vec<_> = self.by_number.read().values().map(|export| export.spec.clone()).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }

    /// Returns whether a path is exported.
    pub fn contains(&self, path: &str) -> bool {
        self.by_number.read().values().any(|export| export.spec.path == path)
    }

    pub(crate) fn by_number(&self, number: u64) -> Option<Arc<Export>> {
        self.by_number.read().get(&number).cloned()
    }

    /// Finds the export that a client wants to mount. Exports that the address may not mount are not found.
    pub(crate) fn find(&self, path: &[u8], peer: IpAddr) -> Option<Arc<Export>> {
        let path = std::str::from_utf8(path).ok()?.trim_end_matches('/');
        let all = self.by_number.read();
        let matches = |export: &&Arc<Export>| same_bytes(&export.spec.mount_path(), path) && export.allows(peer);
        all.values().find(matches).cloned()
    }

    /// Returns all exports whose views are open.
    pub(crate) fn open_ones(&self) -> Vec<Arc<OpenExport>> {
        self.by_number.read().values().filter_map(|export| export.opened.read().clone()).collect()
    }
}

/// Compares in constant time.
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

    /// Returns the view if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<OpenExport>> {
        let opened = self.opened.read().clone();
        opened.inspect(|opened| opened.is_used.store(true, Ordering::Relaxed))
    }

    /// Drops the view unless a call used it since the last time, or is using it. Returns whether it did.
    fn release_if_idle(&self) -> bool {
        let mut opened = self.opened.write();
        let is_idle = opened.as_ref().is_some_and(|opened| {
            let was_used = opened.is_used.swap(false, Ordering::Relaxed);
            // Calls in progress hold the other references. The lock keeps new ones out.
            !was_used && Arc::strong_count(opened) == 1
        });
        if is_idle {
            *opened = None;
        }
        is_idle
    }

    /// Returns the view, and opens it if necessary. May block.
    pub(crate) fn open(&self) -> Result<Arc<OpenExport>, Error> {
        let _one = self.opening.lock();
        if let Some(opened) = self.opened() {
            return Ok(opened);
        }
        let view = self.source.open()?;
        let foreign_changes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&foreign_changes);
        let watch_id = view.watch(Arc::new(move |_| {
            counter.fetch_add(1, Ordering::Release);
        }));
        let syncer = Syncer::new(view.clone());
        let (changing, is_used) = (Mutex::new(()), AtomicBool::new(true));
        let opened = Arc::new(OpenExport { view, watch_id, foreign_changes, changing, syncer, is_used });
        *self.opened.write() = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Maps RPC credentials to a caller.
    pub(crate) fn caller(&self, credential: &Credential, origin: WatchId) -> Caller {
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
        caller.enforce = true;
        caller.origin = Some(origin);
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
