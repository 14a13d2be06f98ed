//! Compares two changed versions of a file and finds the parts that both changed: lines of a text, keys of a JSON document. Positions are those of the version
//! from which both started.

use std::ops::Range;

use amalgam_textdiff::line_hunks;
use serde_json::Value;

/// Files above this size are compared as a whole.
pub(super) const COMPARED_BYTES_MAX: usize = 1 << 20;
/// The most keys and ranges that are returned.
const FOUND_MAX: usize = 100;
/// The most changed keys of one side that are compared.
const KEYS_MAX: usize = 1_000;
/// How deep documents are compared.
const DEPTH_MAX: usize = 64;

/// The part of a file that two versions both changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Common {
    /// Both made the same change.
    Same,
    /// Nothing but the file.
    File,
    /// These lines of the base, counted from 0.
    Lines(Vec<Range<usize>>),
    /// These keys of the document, as JSON pointers.
    Keys(Vec<String>),
}

/// Compares two versions of a file with the version from which both started. An absent version is `None`.
pub(super) fn common(base: Option<&[u8]>, left: Option<&[u8]>, right: Option<&[u8]>, is_json: bool) -> Common {
    if left == right {
        return Common::Same;
    }
    let (Some(left), Some(right)) = (left, right) else { return Common::File };
    let base = base.unwrap_or_default();
    if [base, left, right].iter().any(|text| text.len() > COMPARED_BYTES_MAX || text.contains(&0)) {
        return Common::File;
    }
    if is_json && let (Some(base), Some(left), Some(right)) = (document(base), document(left), document(right)) {
        let keys = common_keys(&changed_keys(&base, &left), &changed_keys(&base, &right));
        return if keys.is_empty() { Common::File } else { Common::Keys(keys) };
    }
    let hunks = |text: &[u8]| line_hunks(base, text).into_iter().map(|hunk| hunk.before).collect::<Vec<_>>();
    let lines = common_ranges(&hunks(left), &hunks(right));
    if lines.is_empty() { Common::File } else { Common::Lines(lines) }
}

fn document(text: &[u8]) -> Option<Value> {
    if text.is_empty() { Some(Value::Null) } else { serde_json::from_slice(text).ok() }
}

/// Returns the ranges that two sorted lists have in common, up to a limit. Two insertions at one place share an empty range.
fn common_ranges(left: &[Range<usize>], right: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut found, mut at) = (Vec::new(), (0, 0));
    while let (Some(one), Some(other)) = (left.get(at.0), right.get(at.1)) {
        let (start, end) = (one.start.max(other.start), one.end.min(other.end));
        let is_inside = start == end && start > one.start.min(other.start) && start < one.end.max(other.end);
        if start < end || one.start == other.start || (is_inside && (one.is_empty() || other.is_empty())) {
            found.push(start..end.max(start));
            if found.len() == FOUND_MAX {
                break;
            }
        }
        if one.end <= other.end { at.0 += 1 } else { at.1 += 1 }
    }
    found
}

/// Returns the JSON pointers of the values that differ between two documents, up to a limit. Arrays are compared as a whole.
fn changed_keys(before: &Value, after: &Value) -> Vec<String> {
    fn visit(before: &Value, after: &Value, at: &mut String, depth: usize, found: &mut Vec<String>) {
        if before == after || found.len() >= KEYS_MAX {
            return;
        }
        let (Value::Object(old), Value::Object(new)) = (before, after) else {
            found.push(at.clone());
            return;
        };
        if depth >= DEPTH_MAX {
            found.push(at.clone());
            return;
        }
        let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let length = at.len();
            at.push('/');
            at.push_str(&key.replace('~', "~0").replace('/', "~1"));
            match (old.get(key), new.get(key)) {
                (Some(old), Some(new)) => visit(old, new, at, depth + 1, found),
                _ => found.push(at.clone()),
            }
            at.truncate(length);
        }
    }
    let mut found = Vec::new();
    visit(before, after, &mut String::new(), 0, &mut found);
    found
}

/// Returns the pointers that two lists have in common, up to a limit: of two that are equal or nested, the longer one.
fn common_keys(left: &[String], right: &[String]) -> Vec<String> {
    let contains = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut found = std::collections::BTreeSet::new();
    for one in left {
        for other in right {
            if contains(one, other) {
                found.insert(other.clone());
            } else if contains(other, one) {
                found.insert(one.clone());
            }
        }
    }
    found.into_iter().take(FOUND_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one common range of lines.
    fn lines(start: usize, end: usize) -> Common {
        Common::Lines([Range { start, end }].to_vec())
    }

    #[test]
    fn lines_that_both_sides_change_are_found() {
        let base = b"1\n2\n3\n4\n5\n6\n";
        for (left, right, expected) in [
            ("1\nX\n3\n4\n5\n6\n", "1\nY\n3\n4\n5\n6\n", lines(1, 2)),
            ("1\nX\n3\n4\n5\n6\n", "1\n2\n3\n4\nY\n6\n", Common::File),
            ("1\nX\nX\n4\n5\n6\n", "1\n2\nY\nY\n5\n6\n", lines(2, 3)),
            ("1\n2\n3\n4\n5\n6\nX\n", "1\n2\n3\n4\n5\n6\nY\n", lines(6, 6)),
            ("1\n2\n", "1\n2\n", Common::Same),
        ] {
            assert_eq!(
                common(Some(base), Some(left.as_bytes()), Some(right.as_bytes()), false),
                expected,
                "{left:?} {right:?}"
            );
        }
    }

    #[test]
    fn keys_that_both_sides_change_are_found() {
        let base = br#"{"a": 1, "b": {"c": 1, "d": 2}, "l": [1]}"#;
        for (left, right, expected) in [
            (
                r#"{"a": 2, "b": {"c": 1, "d": 2}, "l": [1]}"#,
                r#"{"a": 1, "b": {"c": 2, "d": 2}, "l": [1]}"#,
                Common::File,
            ),
            (
                r#"{"a": 1, "b": {"c": 5, "d": 2}, "l": [1]}"#,
                r#"{"a": 1, "b": {"c": 6, "d": 7}, "l": [1]}"#,
                Common::Keys(vec!["/b/c".to_owned()]),
            ),
            (
                r#"{"a": 1, "l": [1]}"#,
                r#"{"a": 1, "b": {"c": 1, "d": 7}, "l": [1]}"#,
                Common::Keys(vec!["/b/d".to_owned()]),
            ),
        ] {
            assert_eq!(
                common(Some(base), Some(left.as_bytes()), Some(right.as_bytes()), true),
                expected,
                "{left} {right}"
            );
        }
    }

    #[test]
    fn a_removed_or_binary_file_has_no_lines() {
        assert_eq!(common(Some(b"1\n"), None, Some(b"2\n"), false), Common::File);
        assert_eq!(common(Some(b"1\n"), Some(b"\0"), Some(b"2\n"), false), Common::File);
        assert_eq!(common(Some(b"1\n"), None, None, false), Common::Same);
    }
}
