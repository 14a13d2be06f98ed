//! Names of projects.

use std::fmt;

/// Maximum length of a name in bytes, so that the directory of a project fits into one path component.
const NAME_BYTES_MAX: usize = 63;

/// The name of a project: 1 to 63 of `a-z`, `0-9` and `-`, beginning with a letter and not ending with a dash.
///
/// The rules are those of a DNS label, so that a name can be part of a URL, a host name and a directory without escaping.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProjectName(String);

impl ProjectName {
    /// Checks a name.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    pub fn new(name: impl Into<String>) -> Result<Self, String> {
        let name = name.into();
        let wrong = |why: &str| Err(format!("project name `{}` {why}", name.escape_debug()));
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        match name.as_bytes() {
            [] => wrong("is empty"),
            bytes if bytes.len() > NAME_BYTES_MAX => wrong("is longer than 63 bytes"),
            bytes if !bytes.iter().copied().all(is_allowed) => wrong("has a character other than a-z, 0-9 and -"),
            [first, ..] if !first.is_ascii_lowercase() => wrong("does not begin with a letter"),
            [.., b'-'] => wrong("ends with a dash"),
            _ => Ok(Self(name)),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_dns_label_is_refused() {
        let long = "a".repeat(64);
        for name in ["", "A", "a_b", "9a", "-a", "a-", "a.b", "..", "a/b", "ä", "a b", "a\n", long.as_str()] {
            assert!(ProjectName::new(name).is_err(), "{name:?}");
        }
        for name in ["a", "a9", "agent-7", &"a".repeat(63)] {
            assert!(ProjectName::new(name).is_ok(), "{name:?}");
        }
    }
}
