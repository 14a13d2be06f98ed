//! API keys: their text, their secret's hash, and the scopes that they grant.

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE32_NOPAD, HEXLOWER};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The prefix of keys that this server makes. A parser takes any prefix, because some client libraries demand their own.
const PREFIX: &str = "am";
/// The prefix of the form that some e2b clients demand.
const E2B_PREFIX: &str = "e2b_";
const ID_BYTES: usize = 10;
const SECRET_BYTES: usize = 32;
/// Maximum length of the text of a key. A longer text is not parsed.
const TEXT_BYTES_MAX: usize = 256;

/// The public part of a key: 16 characters of `a-z` and `2-7`. It names the key in listings, logs and audit records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(String);

impl KeyId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KeyId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match decode(text) {
            Some(bytes) if bytes.len() == ID_BYTES => Ok(Self(text.to_owned())),
            _ => Err("a key id has 16 characters of a-z and 2-7".to_owned()),
        }
    }
}

/// SHA-256 of a key's secret. Keys have 256 random bits, so that a fast hash without salt is enough.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Returns the hash in hexadecimal, as the catalog stores it.
    pub fn to_hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// Parses a hash that the catalog stored. Returns `None` if it is not 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok().map(Self)
    }

    /// Compares two hashes in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

/// A whole key as a caller presents it: `PREFIX_ID_SECRET`. Its `Debug` shows the id only.
pub struct KeyText {
    id: KeyId,
    secret: Vec<u8>,
}

impl KeyText {
    /// Makes a key from random bytes.
    pub fn from_random(random: [u8; ID_BYTES + SECRET_BYTES]) -> Self {
        let (id, secret) = random.split_at(ID_BYTES);
        Self { id: KeyId(encode(id)), secret: secret.to_vec() }
    }

    /// Makes a key from the system's random source.
    ///
    /// # Errors
    /// The system has no random source.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random)?;
        Ok(Self::from_random(random))
    }

    /// Parses a key with any prefix or none, or in the form of e2b clients. Returns `None` if the text is no key.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        if let Some(random) = text.strip_prefix(E2B_PREFIX).and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok()) {
            return random.try_into().ok().map(Self::from_random);
        }
        let (rest, secret) = text.rsplit_once('_')?;
        let id = rest.rsplit_once('_').map_or(rest, |(_, id)| id);
        let secret = decode(secret).filter(|secret| secret.len() == SECRET_BYTES)?;
        Some(Self { id: id.parse().ok()?, secret })
    }

    /// Returns the public part of the key.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Returns the hash of the secret.
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(&self.secret).into())
    }

    /// Returns the whole key as text. It is shown once, when the key is created.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}_{}_{}", self.id, encode(&self.secret))
    }

    /// Returns the whole key in the form that some e2b clients demand: `e2b_` and hexadecimal digits.
    pub fn reveal_e2b(&self) -> String {
        let id = decode(self.id.as_str()).unwrap_or_default();
        format!("{E2B_PREFIX}{}{}", HEXLOWER.encode(&id), HEXLOWER.encode(&self.secret))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyText({}, ..)", self.id)
    }
}

fn encode(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let is_lower = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if is_lower { BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes()).ok() } else { None }
}

/// One right of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Read workspaces, snapshots, files and events.
    Read,
    /// Change files, commit, fork, label, undo; includes `Read`.
    Write,
    /// Merge into other workspaces, decide reviews; includes `Write`.
    Merge,
    /// Run commands: sandboxes, and tests of queue entries.
    Run,
    /// Everything, keys and projects too.
    Admin,
}

impl Scope {
    /// All scopes, in the order of listings.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Merge, Self::Run, Self::Admin];

    /// Returns the word of the scope in commands and in the catalog.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Merge => "merge",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }

    /// Returns the bits of this scope and of all scopes that it includes.
    const fn implied(self) -> u8 {
        match self {
            Self::Read => 0b0_0001,
            Self::Write => 0b0_0011,
            Self::Merge => 0b0_0111,
            Self::Run => 0b0_1000,
            Self::Admin => 0b1_1111,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of scopes, closed under implication: a set with `write` has `read`.
///
/// # Example
/// ```
/// use amalgam_gateway::{Scope, Scopes};
///
/// let scopes: Scopes = "merge".parse().unwrap();
/// assert!(scopes.has(Scope::Read));
/// assert!(!scopes.has(Scope::Run));
/// assert_eq!(scopes.to_string(), "read write merge");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub const ALL: Self = Self(Scope::Admin.implied());

    /// Returns the set with a scope added, and with those that the scope includes.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Self {
        Self(self.0 | scope.implied())
    }

    /// Returns whether the set has a scope.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// Returns the words of all scopes in the set.
    pub fn words(self) -> Vec<String> {
        Scope::ALL.into_iter().filter(|scope| self.has(*scope)).map(|scope| scope.word().to_owned()).collect()
    }

    /// Returns whether the set has no scope.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromStr for Scopes {
    type Err = String;

    /// Parses words separated by spaces or commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut scopes = Self::default();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let found = Scope::ALL.into_iter().find(|scope| scope.word() == word);
            let known = || Scope::ALL.map(Scope::word).join(", ");
            scopes = scopes
                .with(found.ok_or_else(|| format!("unknown scope `{}`; known: {}", word.escape_debug(), known()))?);
        }
        Ok(scopes)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> KeyText {
        KeyText::from_random([seed; ID_BYTES + SECRET_BYTES])
    }

    #[test]
    fn a_key_is_parsed_whatever_its_prefix() {
        let text = key(7).reveal();
        let (_, bare) = text.split_once('_').expect("a prefix");
        for shown in [text.clone(), bare.to_owned(), format!("e2b_{bare}"), format!("sk_live_{bare}")] {
            let parsed = KeyText::parse(&shown).expect("a key");
            assert_eq!(parsed.id(), key(7).id());
            assert!(parsed.secret_hash().matches(&key(7).secret_hash()));
        }
    }

    #[test]
    fn a_key_in_the_form_of_e2b_is_the_same_key() {
        let text = key(7).reveal_e2b();
        let digits = text.strip_prefix("e2b_").expect("the prefix");
        assert!(
            digits.len() == 84 && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        );
        let parsed = KeyText::parse(&text).expect("a key");
        assert_eq!(parsed.id(), key(7).id());
        assert!(parsed.secret_hash().matches(&key(7).secret_hash()));
        assert_eq!(parsed.reveal(), key(7).reveal());
        for wrong in ["e2b_", "e2b_00", &text[..text.len() - 2], &format!("{text}00"), &text.to_uppercase()] {
            assert!(KeyText::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_text_that_is_no_key_is_not_parsed() {
        let good = key(1).reveal();
        let upper = good.to_uppercase();
        let (cut, longer, many) = (&good[..good.len() - 1], format!("{good}a"), "a_".repeat(200));
        for text in ["", "_", "__", "am__", "am_x_y", "no underscore", cut, &longer, &upper, &many, "am_\u{0}_\u{0}"] {
            assert!(KeyText::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn another_secret_does_not_match() {
        assert!(!key(1).secret_hash().matches(&key(2).secret_hash()));
        let stored = SecretHash::from_hex(&key(1).secret_hash().to_hex()).expect("its own text");
        assert!(stored.matches(&key(1).secret_hash()));
        assert!(SecretHash::from_hex("00").is_none());
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let text = key(9);
        let shown = format!("{text:?} {:?}", text.secret_hash());
        assert!(!shown.contains(&encode(&[9; SECRET_BYTES])) && !shown.contains(&text.secret_hash().to_hex()));
    }

    #[test]
    fn scopes_include_lesser_ones_and_nothing_else() {
        let has = |text: &str| Scope::ALL.map(|scope| text.parse::<Scopes>().expect("scopes").has(scope));
        assert_eq!(has(""), [false; 5]);
        assert_eq!(has("read"), [true, false, false, false, false]);
        assert_eq!(has("write"), [true, true, false, false, false]);
        assert_eq!(has("merge"), [true, true, true, false, false]);
        assert_eq!(has("run"), [false, false, false, true, false]);
        assert_eq!(has("admin"), [true; 5]);
        assert_eq!(has("read,run"), [true, false, false, true, false]);
        assert!("reed".parse::<Scopes>().expect_err("a typo").contains("known: read, write"));
    }
}
