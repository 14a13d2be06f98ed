//! Secrets with which an agent proves that it is in its sandbox.

use std::fmt;
use std::io;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// 256 random bits in hexadecimal. Each secret is valid for one registration.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Generates a random secret.
    ///
    /// # Errors
    /// The system has no random source.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(HEXLOWER.encode(&bytes)))
    }

    /// Returns the text that the agent sends.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the hash of the secret, which the server stores in its place.
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// SHA-256 of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretHash(String);

impl SecretHash {
    /// Returns the hash of a text.
    pub fn of(text: &str) -> Self {
        Self(HEXLOWER.encode(&Sha256::digest(text.as_bytes())))
    }

    /// Wraps a hash that was stored as hexadecimal text. The text is not checked.
    pub fn from_hex(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the hash as hexadecimal text.
    pub fn as_hex(&self) -> &str {
        &self.0
    }

    /// Returns whether a text has this hash. The comparison takes constant time.
    pub fn fits(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(Self::of(text).0.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_fits_its_hash() {
        let (one, other) = (Secret::generate().expect("random"), Secret::generate().expect("random"));
        assert!(one.hash().fits(one.reveal()));
        assert!(!one.hash().fits(other.reveal()) && !one.hash().fits("") && !one.hash().fits(one.hash().as_hex()));
        assert!(!format!("{one:?}").contains(one.reveal()));
    }
}
