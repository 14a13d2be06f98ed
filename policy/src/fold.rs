//! Folding of names: names that a reader, or a file system without case, takes for the same one fold to the same bytes.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization as _;

/// Returns a path or a pattern in compatibility form and lower case. Bytes that are not UTF-8 only lose ASCII case.
pub(crate) fn fold(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.is_ascii() {
        let has_capitals = bytes.iter().any(u8::is_ascii_uppercase);
        return if has_capitals { Cow::Owned(bytes.to_ascii_lowercase()) } else { Cow::Borrowed(bytes) };
    }
    match str::from_utf8(bytes) {
        Ok(text) => Cow::Owned(fold_text(text).into_bytes()),
        Err(_) => Cow::Owned(bytes.to_ascii_lowercase()),
    }
}

/// Returns a text in compatibility form and lower case.
pub(crate) fn fold_text(text: &str) -> String {
    // Lower case can decompose a letter again, and capitals such as `ẞ` have two lower-case forms.
    text.nfkc().flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfkc().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_fold_to_the_same_bytes() {
        let same = |one: &str, other: &str| fold(one.as_bytes()) == fold(other.as_bytes());
        assert!(same("Secrets/A", "secrets/a"));
        assert!(same("caf\u{e9}", "cafe\u{301}"));
        assert!(same("CAF\u{c9}", "cafe\u{301}"));
        assert!(same("stra\u{df}e", "STRASSE"));
        assert!(same("\u{ff41}", "a"), "full-width letters");
        assert!(!same("a", "b"));
        assert_eq!(&*fold(b"\xffA"), b"\xffa");
    }
}
