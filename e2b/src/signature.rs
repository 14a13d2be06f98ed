//! URLs of files that are good without a key, because they are signed with the access token of a sandbox.
//!
//! The access token is the key of the caller and the id of the sandbox. The server keeps no keys that it could compare a signature with, so
//! those that asked for a token are remembered here, in memory: a signed URL ends with the process of the server, until a client asks for
//! the sandbox again. A request with a good signature is made with the key that signed it, so that its rights, its end and its limits are
//! those of the key.

use std::collections::VecDeque;
use std::fmt;

use data_encoding::BASE64_NOPAD;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Separator between the key and the id of the sandbox in an access token.
const SEPARATOR: char = '.';
/// Limit on tokens that are remembered; the oldest is forgotten first.
const TOKENS_MAX: usize = 4_096;
/// The version of signatures.
const PREFIX: &str = "v1_";

/// Builds the access token of a sandbox for the owner of a key.
pub(crate) fn access_token(key: &str, sandbox: &str) -> String {
    format!("{key}{SEPARATOR}{sandbox}")
}

/// Returns the key in an access token. A token without a separator is a key itself.
pub(crate) fn key_of(token: &str) -> &str {
    token.split_once(SEPARATOR).map_or(token, |(key, _)| key)
}

/// The parts of a URL that a signature covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed<'a> {
    pub(crate) path: &'a str,
    /// `read` or `write`.
    pub(crate) operation: &'static str,
    pub(crate) user: &'a str,
    /// Seconds since 1970, as the URL has them.
    pub(crate) expiration: Option<&'a str>,
}

impl Signed<'_> {
    fn signature(&self, token: &str) -> String {
        let mut text = format!("{}:{}:{}:{token}", self.path, self.operation, self.user);
        if let Some(expiration) = self.expiration {
            text = format!("{text}:{expiration}");
        }
        format!("{PREFIX}{}", BASE64_NOPAD.encode(&Sha256::digest(text.as_bytes())))
    }
}

/// A token that a client has.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Signer {
    pub(crate) sandbox: String,
    pub(crate) key: String,
}

impl fmt::Debug for Signer {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

/// The tokens that clients have.
#[derive(Default)]
pub(crate) struct Signers {
    known: Mutex<VecDeque<Signer>>,
}

impl Signers {
    /// Remembers that a client has the access token of a sandbox.
    pub(crate) fn remember(&self, key: &str, sandbox: &str) {
        let signer = Signer { sandbox: sandbox.to_owned(), key: key.to_owned() };
        let mut known = self.known.lock();
        known.retain(|one| *one != signer);
        if known.len() >= TOKENS_MAX {
            known.pop_front();
        }
        known.push_back(signer);
    }

    /// Forgets a sandbox that was deleted.
    pub(crate) fn forget(&self, sandbox: &str) {
        self.known.lock().retain(|one| one.sandbox != sandbox);
    }

    /// Finds the token that a signature was made with, of any sandbox or of the named one. Returns `None` if no known token fits.
    pub(crate) fn find(&self, signed: Signed<'_>, signature: &str, sandbox: Option<&str>) -> Option<Signer> {
        if !signature.starts_with(PREFIX) {
            return None;
        }
        let known: Vec<_> =
            self.known.lock().iter().filter(|one| sandbox.is_none_or(|id| one.sandbox == id)).cloned().collect();
        known.into_iter().find(|one| {
            let expected = signed.signature(&access_token(&one.key, &one.sandbox));
            expected.as_bytes().ct_eq(signature.as_bytes()).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_e2b_clients() {
        // Computed by `get_signature` of the package `e2b` 2.63.0.
        let signed = Signed { path: "/workspace/a b", operation: "read", user: "", expiration: None };
        assert_eq!(signed.signature("secret"), "v1_W+FpJcImUwwasyp8baZEgeajFVIXuDxx/u+pfR8oDfQ");
        let signed = Signed { path: "x", operation: "write", user: "user", expiration: Some("1700000000") };
        assert_eq!(signed.signature("secret"), "v1_VGbf4IMQxOBXtL3pY4Xb8RalQJQKrdpJplvCq17ECMM");
    }

    #[test]
    fn a_signature_is_good_for_one_operation_on_one_path_of_one_sandbox() {
        let signers = Signers::default();
        signers.remember("am_1", "sbx-a");
        signers.remember("am_1", "sbx-b");
        let read = Signed { path: "f", operation: "read", user: "", expiration: None };
        let signature = read.signature(&access_token("am_1", "sbx-a"));
        let found = |signed, sandbox| signers.find(signed, &signature, sandbox).map(|signer| signer.sandbox);
        assert_eq!(found(read, None).as_deref(), Some("sbx-a"));
        assert_eq!(found(read, Some("sbx-a")).as_deref(), Some("sbx-a"));
        let others = [
            (Signed { path: "g", ..read }, None),
            (Signed { operation: "write", ..read }, None),
            (Signed { user: "user", ..read }, None),
            (Signed { expiration: Some("1700000000"), ..read }, None),
            (read, Some("sbx-b")),
        ];
        for (signed, sandbox) in others {
            assert_eq!(found(signed, sandbox), None, "{signed:?} {sandbox:?}");
        }
        for signature in ["", "v1_", &signature[3..], &signature[..20], &read.signature("am_1")] {
            assert_eq!(signers.find(read, signature, None), None, "{signature}");
        }
        signers.forget("sbx-a");
        assert_eq!(found(read, None), None);
    }

    #[test]
    fn old_tokens_are_forgotten_and_one_is_remembered_once() {
        let signers = Signers::default();
        for number in 0..TOKENS_MAX + 10 {
            signers.remember("am_1", &format!("sbx-{number}"));
            signers.remember("am_1", &format!("sbx-{number}"));
        }
        let known = signers.known.lock();
        assert_eq!((known.len(), known[0].sandbox.as_str()), (TOKENS_MAX, "sbx-10"));
    }

    #[test]
    fn a_token_has_the_key_and_the_sandbox() {
        let token = access_token("e2b_00ff", "sbx-1");
        assert_eq!((token.as_str(), key_of(&token), key_of("e2b_00ff")), ("e2b_00ff.sbx-1", "e2b_00ff", "e2b_00ff"));
    }
}
