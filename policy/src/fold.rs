//! Folding of names: names that a reader, or a file system without case, takes for the same one fold to the same bytes.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization as _;

/// Returns a path or a pattern in compatibility form and lower case. A name that is not UTF-8 only loses ASCII case; the other names
/// of its path are folded all the same.
pub(crate) fn fold(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.is_ascii() {
        let has_capitals = bytes.iter().any(u8::is_ascii_uppercase);
        return if has_capitals { Cow::Owned(bytes.to_ascii_lowercase()) } else { Cow::Borrowed(bytes) };
    }
    let mut folded = Vec::with_capacity(bytes.len());
    for (at, name) in bytes.split(|byte| *byte == b'/').enumerate() {
        if at > 0 {
            folded.push(b'/');
        }
        match str::from_utf8(name) {
            Ok(text) => folded.extend(fold_text(text).into_bytes()),
            Err(_) => folded.extend(name.to_ascii_lowercase()),
        }
    }
    Cow::Owned(folded)
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

    #[test]
    fn each_name_folds_by_itself_if_another_one_is_not_utf8() {
        for (path, folded) in [("CAF\u{c9}", "caf\u{e9}"), ("A/cafe\u{301}/", "a/caf\u{e9}/"), ("/\u{ff41}", "/a")] {
            let path = [path.as_bytes(), &b"/\xffB"[..]].concat();
            assert_eq!(fold(&path).into_owned(), [folded.as_bytes(), &b"/\xffb"[..]].concat(), "{folded}");
        }
    }
}
