//! Who calls: keys in the headers of a request, checked against the catalog.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_server::api::ACTOR_HEADER;
use data_encoding::BASE64;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::catalog::{Catalog, CatalogError, KeyRecord};
use crate::key::{KeyId, KeyText, Scopes};
use crate::project::ProjectName;

/// The other header that may hold a key.
const API_KEY: &str = "x-api-key";
/// How long a record of a key is cached before the catalog is asked again.
const CACHED_FOR: Duration = Duration::from_secs(5);
/// Number of cached keys above which unused ones are dropped.
const REMEMBERED_MAX: usize = 10_000;
/// Interval of the checks for keys that another process revoked.
const REVOKED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Difference between the clocks of two nodes up to which a node finds the revocations of the other one.
const CLOCK_DIFFERENCE_MAX_NANOSECONDS: i64 = 3_600 * 1_000_000_000;
/// The agent of callers on a server without keys.
const ANONYMOUS: &str = "anonymous";

/// How a server authenticates its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Every call needs a key.
    Keys,
    /// No call needs a key, and every caller may do everything.
    Off,
    /// The listener lets in only the user who owns the store. A caller names itself in the header of the actor.
    SameUser,
}

/// Why a caller cannot be authenticated.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The request has no key.
    #[error(
        "this server needs an API key: send `Authorization: Bearer KEY` or `X-API-Key: KEY`; `amalgam key create` makes one"
    )]
    Missing,
    /// The key is not known, or its secret is wrong.
    #[error("the API key is not valid")]
    Invalid,
    /// The key has expired.
    #[error("the API key {0} has expired; `amalgam key create` makes a new one")]
    Expired(KeyId),
    /// The key was revoked.
    #[error("the API key {0} was revoked")]
    Revoked(KeyId),
    /// The catalog failed.
    #[error("the key cannot be checked: {0}")]
    Catalog(#[from] CatalogError),
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The key; `None` on a server without keys.
    pub key: Option<Arc<KeyRecord>>,
    /// Becomes true when the key is revoked.
    revoked: Option<watch::Receiver<bool>>,
    /// The name of a caller without a key.
    name: Option<String>,
    /// Whether the operating system vouches for the caller: it is the user of the store.
    is_same_user: bool,
}

impl Identity {
    /// Returns the identity of a caller on a server without keys.
    pub(crate) fn without_key(name: Option<String>, is_same_user: bool) -> Self {
        Self { key: None, revoked: None, name, is_same_user }
    }

    /// Returns whether the operating system has verified that the caller is the user of the store, who may see paths of the host.
    pub fn is_same_user(&self) -> bool {
        self.is_same_user
    }

    /// Returns the actor of the operations that this caller makes.
    pub fn agent(&self) -> &str {
        match &self.key {
            Some(key) => &key.agent,
            None => self.name.as_deref().unwrap_or(ANONYMOUS),
        }
    }

    /// Returns the id of the key for logs, or `-` without a key.
    pub fn key_id(&self) -> &str {
        self.key.as_ref().map_or("-", |key| key.id.as_str())
    }

    /// Returns the scopes of the caller: those of its key, or all on a server without keys.
    pub fn scopes(&self) -> Scopes {
        self.key.as_ref().map_or(Scopes::ALL, |key| key.scopes)
    }

    /// Returns whether the caller may use all projects.
    pub fn reaches_all(&self) -> bool {
        self.key.as_ref().is_none_or(|key| key.projects.is_empty())
    }

    /// Returns whether the caller may use a project.
    pub fn reaches(&self, project: &ProjectName) -> bool {
        self.key.as_ref().is_none_or(|key| key.reaches(project))
    }

    /// Completes with the reason when the key of the caller expires or is revoked. Never completes for a caller without a key.
    pub async fn ended(self, now: fn() -> Time) -> AuthError {
        let (Some(key), Some(mut revoked)) = (self.key, self.revoked) else { return std::future::pending().await };
        let expired = async {
            match key.expires {
                // The clock may be changed meanwhile, so it is read again each minute.
                Some(expires) => loop {
                    let left = expires.0.saturating_sub(now().0);
                    match u64::try_from(left) {
                        Ok(left) if left > 0 => {
                            let left = Duration::from_nanos(left).min(Duration::from_secs(60));
                            tokio::time::sleep(left).await;
                        }
                        _ => break,
                    }
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = revoked.wait_for(|revoked| *revoked) => AuthError::Revoked(key.id.clone()),
            () = expired => AuthError::Expired(key.id.clone()),
        }
    }
}

/// Checks keys. Cheap to clone.
#[derive(Clone)]
pub struct Keys {
    inner: Arc<Inner>,
}

struct Inner {
    catalog: Catalog,
    authentication: Authentication,
    now: fn() -> Time,
    known: Mutex<HashMap<KeyId, CachedKey>>,
}

/// A cached record of a key.
struct CachedKey {
    record: Arc<KeyRecord>,
    asked: Instant,
    revoked: watch::Sender<bool>,
}

impl Keys {
    /// Returns a checker of keys that reads them from a catalog.
    pub fn new(catalog: Catalog, authentication: Authentication, now: fn() -> Time) -> Self {
        Self { inner: Arc::new(Inner { catalog, authentication, now, known: Mutex::default() }) }
    }

    /// Authenticates the caller of a request.
    ///
    /// # Errors
    /// The request has no key, or one that is not valid now.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Identity, AuthError> {
        match self.inner.authentication {
            Authentication::Off => return Ok(Identity::without_key(None, false)),
            Authentication::SameUser => return Ok(Identity::without_key(actor(headers), true)),
            Authentication::Keys => {}
        }
        let text = presented(headers)?;
        let presented = KeyText::parse(&text).ok_or(AuthError::Invalid)?;
        let (record, revoked) = self.find(presented.id()).await?;
        if !record.secret_hash.matches(&presented.secret_hash()) {
            return Err(AuthError::Invalid);
        }
        if record.revoked.is_some() || *revoked.borrow() {
            return Err(AuthError::Revoked(record.id.clone()));
        }
        if record.is_expired((self.inner.now)()) {
            return Err(AuthError::Expired(record.id.clone()));
        }
        Ok(Identity { key: Some(record), revoked: Some(revoked), name: None, is_same_user: false })
    }

    async fn find(&self, id: &KeyId) -> Result<(Arc<KeyRecord>, watch::Receiver<bool>), AuthError> {
        if let Some(known) = self.inner.known.lock().get(id).filter(|known| known.asked.elapsed() < CACHED_FOR) {
            return Ok((Arc::clone(&known.record), known.revoked.subscribe()));
        }
        let record = match self.inner.catalog.key(id).await {
            Err(CatalogError::NoKey(_)) => return Err(AuthError::Invalid),
            found => Arc::new(found?),
        };
        let mut known = self.inner.known.lock();
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, known| known.revoked.receiver_count() > 0 || known.asked.elapsed() < CACHED_FOR);
        }
        let is_revoked = record.revoked.is_some();
        let entry = known.entry(id.clone()).or_insert_with(|| CachedKey {
            record: Arc::clone(&record),
            asked: Instant::now(),
            revoked: watch::Sender::new(is_revoked),
        });
        (entry.record, entry.asked) = (Arc::clone(&record), Instant::now());
        if is_revoked {
            entry.revoked.send_replace(true);
        }
        Ok((record, entry.revoked.subscribe()))
    }

    /// Marks a cached key as revoked, which ends all its running calls and connections.
    pub fn forget(&self, id: &KeyId) {
        if let Some(known) = self.inner.known.lock().get_mut(id) {
            known.revoked.send_replace(true);
        }
    }

    /// Checks the catalog for revoked keys at an interval, and ends their calls. Never completes.
    pub(crate) async fn keep_checking(&self) {
        let mut since = Time(0);
        loop {
            tokio::time::sleep(REVOKED_CHECK_INTERVAL).await;
            match self.end_revoked(since).await {
                Ok(next) => since = next,
                Err(error) => tracing::warn!(%error, "revoked keys cannot be looked for"),
            }
        }
    }

    /// Ends the calls of the keys that were revoked at `since` or later. Returns the time from which the next check has to ask:
    /// earlier than the newest revocation, because the clocks of nodes differ. Ending the calls of a key again changes nothing.
    async fn end_revoked(&self, since: Time) -> Result<Time, CatalogError> {
        let found = self.inner.catalog.revoked_since(since).await?;
        found.iter().for_each(|(id, _)| self.forget(id));
        let Some(newest) = found.iter().map(|(_, at)| *at).max() else { return Ok(since) };
        // A revocation by a node whose clock is ahead must not hide later ones by others.
        let newest = newest.min((self.inner.now)());
        Ok(since.max(Time(newest.0.saturating_sub(CLOCK_DIFFERENCE_MAX_NANOSECONDS))))
    }
}

/// Returns the name that a caller gave itself in the actor header, or `None` if it gave none.
fn actor(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(ACTOR_HEADER)?.to_str().ok()?;
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

/// Returns the key in the headers of a request: in `X-API-Key`, as a bearer token, or as the password of Basic authentication.
fn presented(headers: &HeaderMap) -> Result<String, AuthError> {
    if let Some(key) = headers.get(API_KEY) {
        return key.to_str().map(|key| key.trim().to_owned()).map_err(|_| AuthError::Invalid);
    }
    let value = headers.get(AUTHORIZATION).ok_or(AuthError::Missing)?.to_str().map_err(|_| AuthError::Invalid)?;
    let (scheme, rest) = value.trim().split_once(' ').ok_or(AuthError::Invalid)?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(rest.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(AuthError::Invalid);
    }
    // The key is the password; a tool that has only a name gives the key as name.
    let decoded = BASE64.decode(rest.as_bytes()).map_err(|_| AuthError::Invalid)?;
    let decoded = String::from_utf8(decoded).map_err(|_| AuthError::Invalid)?;
    let (user, password) = decoded.split_once(':').ok_or(AuthError::Invalid)?;
    Ok(if password.is_empty() { user.to_owned() } else { password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::NewKey;

    const SECOND: i64 = 1_000_000_000;

    fn now() -> Time {
        Time(1_000_000 * SECOND)
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().expect("a header value"))])
    }

    #[test]
    fn keys_are_read_from_three_headers() {
        let basic = |text: &str| format!("Basic {}", BASE64.encode(text.as_bytes()));
        for found in [
            headers("authorization", "Bearer am_key"),
            headers("authorization", "bearer   am_key "),
            headers("x-api-key", "am_key"),
            headers("authorization", &basic("agent:am_key")),
            headers("authorization", &basic("am_key:")),
        ] {
            assert_eq!(presented(&found).expect("a key"), "am_key", "{found:?}");
        }
        assert!(matches!(presented(&HeaderMap::new()), Err(AuthError::Missing)));
        for bad in ["Bearer", "Digest x", "Basic !!", "am_key"] {
            assert!(matches!(presented(&headers("authorization", bad)), Err(AuthError::Invalid)), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_key_that_a_node_with_another_clock_revoked_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let catalog = Catalog::open(&directory.path().join("catalog.db")).await.expect("a catalog");
        let keys = Keys::new(catalog.clone(), Authentication::Keys, now);
        let mut since = Time(0);
        // The clock of the first node is far ahead, that of the last one behind.
        for seconds in [100_000, 0, -1_000] {
            let new = NewKey { agent: "ann".to_owned(), scopes: Scopes::ALL, projects: Vec::new(), expires: None };
            let (text, record) = catalog.create_key(&new, now()).await.expect("a key");
            let identity = keys.authenticate(&headers("x-api-key", &text.reveal())).await.expect("a caller");
            since = keys.end_revoked(since).await.expect("a check");
            let revoked = identity.revoked.expect("a caller with a key");
            assert!(!*revoked.borrow(), "{seconds}");
            catalog.revoke_key(&record.id, Time(now().0 + seconds * SECOND)).await.expect("revoked");
            since = keys.end_revoked(since).await.expect("a check");
            assert!(*revoked.borrow(), "{seconds}");
        }
        assert!(since > Time(0), "the checks do not ask for all keys");
    }
}
