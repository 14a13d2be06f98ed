//! Tokens in URLs of ports: the holder of a token reaches one port of one sandbox without a key, until the token expires. Browsers
//! and most programs cannot send a header with a key.
//!
//! A token is valid as long as the key that requested it: it ends when the key is revoked or expires, and with the server.

use std::collections::HashMap;

use amalgam_engine::Time;
use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::SecretHash;
use data_encoding::BASE32_NOPAD;
use tonic::Status;

use super::Sandboxes;
use crate::identity::Identity;
use crate::project::ProjectName;

/// Prefix of paths that begin with a token.
pub(super) const TOKENS: &str = "/ports/";
/// Number of random bits of a token. Its text fits into a label of a host name.
const TOKEN_BITS: usize = 160;
/// Number of characters of a token.
const TOKEN_CHARACTERS: usize = TOKEN_BITS / 5;
/// Maximum number of tokens of one sandbox. A further one displaces the one that expires first.
const PER_SANDBOX_MAX: usize = 64;

/// The tokens of a server, by the hash of their text.
#[derive(Default)]
pub(super) struct PortTokens(HashMap<String, PortToken>);

/// The port that a token opens.
#[derive(Clone)]
pub(super) struct PortToken {
    pub(super) sandbox: String,
    pub(super) port: u16,
    /// The caller that requested the token, and the project of the sandbox.
    pub(super) holder: (Identity, ProjectName),
    pub(super) expires: Time,
}

impl PortTokens {
    fn add(&mut self, text: &str, token: PortToken, now: Time) {
        self.0.retain(|_, other| other.expires > now);
        let of_sandbox = || self.0.iter().filter(|(_, other)| other.sandbox == token.sandbox);
        if of_sandbox().count() >= PER_SANDBOX_MAX
            && let Some(oldest) = of_sandbox().min_by_key(|(_, other)| other.expires).map(|(hash, _)| hash.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(SecretHash::of(text).as_hex().to_owned(), token);
    }

    fn find(&self, text: &str, now: Time) -> Option<PortToken> {
        self.0.get(SecretHash::of(text).as_hex()).filter(|token| token.expires > now).cloned()
    }
}

/// Returns whether a text has the form of a token.
pub(super) fn is_token(text: &str) -> bool {
    text.len() == TOKEN_CHARACTERS && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}

impl Sandboxes {
    /// Creates a token, and returns its text.
    pub(super) fn new_port_token(&self, token: PortToken) -> Result<String, Status> {
        let mut random = [0; TOKEN_BITS / 8];
        getrandom::fill(&mut random).map_err(|error| Status::internal(error.to_string()))?;
        let text = BASE32_NOPAD.encode(&random).to_ascii_lowercase();
        self.inner.port_tokens.lock().add(&text, token, self.now());
        Ok(text)
    }

    /// Returns the port that a token opens, or fails if the token is unknown or has expired.
    pub(super) fn find_port_token(&self, text: &str) -> Result<PortToken, Status> {
        let found = self.inner.port_tokens.lock().find(text, self.now());
        let message = "the URL of the port has expired, or is of an earlier run of the server; ask for a new one";
        found.ok_or_else(|| Failure::new(Reason::Unauthenticated, message).into_status())
    }

    /// Returns the URL of a token without its scheme: a host name of its own, or the host of the server and a path.
    pub(super) fn port_host(&self, token: &str, server: Option<&str>) -> String {
        match (self.port_domain(), server) {
            (Some(domain), _) if domain.contains(':') => format!("{token}.{domain}"),
            (Some(domain), server) => {
                let port = server.and_then(|server| server.rsplit_once(':')).map(|(_, port)| port);
                let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
                port.map_or_else(|| format!("{token}.{domain}"), |port| format!("{token}.{domain}:{port}"))
            }
            (None, server) => format!("{}{TOKENS}{token}", server.unwrap_or_default()),
        }
    }

    /// Removes all tokens of a sandbox.
    pub(super) fn forget_port_tokens(&self, sandbox: &str) {
        self.inner.port_tokens.lock().0.retain(|_, token| token.sandbox != sandbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(sandbox: &str, expires: i64) -> PortToken {
        let holder = (Identity::without_key(None, true), ProjectName::new("default").expect("a name"));
        PortToken { sandbox: sandbox.to_owned(), port: 80, holder, expires: Time(expires) }
    }

    #[test]
    fn tokens_expire_and_the_oldest_of_a_sandbox_is_displaced() {
        let mut tokens = PortTokens::default();
        tokens.add("other", token("sbx-2", 5), Time(0));
        for count in 0..=PER_SANDBOX_MAX {
            let expires = 10 + i64::try_from(count).expect("small");
            tokens.add(&count.to_string(), token("sbx-1", expires), Time(0));
        }
        assert!(tokens.find("0", Time(0)).is_none(), "displaced");
        assert!(tokens.find("1", Time(10)).is_some() && tokens.find("1", Time(11)).is_none());
        assert!(tokens.find("other", Time(0)).is_some() && tokens.find("unknown", Time(0)).is_none());
        tokens.add("new", token("sbx-3", 200), Time(100));
        assert_eq!(tokens.0.len(), 1);
    }

    #[test]
    fn the_form_of_a_token_is_checked() {
        assert!(is_token(&"a2".repeat(16)));
        for other in ["", "a", &"a".repeat(33), &"A".repeat(32), &"1".repeat(32), &"a-".repeat(16)] {
            assert!(!is_token(other), "{other}");
        }
    }
}
