//! Paths as text: UTF-8, with an escape for other bytes.
//!
//! A byte that is not part of UTF-8 text is written `\xHH`, and a backslash `\\`. So every path has exactly one text.

use amalgam_engine::TreePath;
use amalgam_proto::Reason;

use crate::error::{Error, Result};

/// Reads a path of a request.
pub(crate) fn parse_path(text: &str) -> Result<TreePath> {
    let bytes = parse_bytes(text)?;
    TreePath::new(bytes).map_err(|why| Error::new(Reason::Invalid, format!("path {text:?}: {why}")))
}

/// Reads escaped bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<Vec<u8>> {
    if !text.contains('\\') {
        return Ok(text.as_bytes().to_vec());
    }
    let wrong = || {
        let message = format!("{text:?}: a backslash is written `\\\\`, and a byte that is not UTF-8 `\\xHH`");
        Error::new(Reason::Invalid, message)
    };
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'\\', [b'\\', tail @ ..]) => {
                bytes.push(b'\\');
                tail
            }
            (b'\\', [b'x', high, low, tail @ ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
                let (high, low) = digit(high).zip(digit(low)).ok_or_else(wrong)?;
                bytes.push((high * 16 + low) as u8);
                tail
            }
            (b'\\', _) => return Err(wrong()),
            (byte, tail) => {
                bytes.push(*byte);
                tail
            }
        };
    }
    // One text for each path: an escape stands only for bytes that need it.
    if show_bytes(&bytes) == text { Ok(bytes) } else { Err(wrong()) }
}

/// Returns a path as text.
pub(crate) fn show_path(path: &TreePath) -> String {
    show_bytes(path.as_bytes())
}

/// Returns bytes as text.
pub(crate) fn show_bytes(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for (at, part) in chunk.valid().split('\\').enumerate() {
            text.push_str(if at > 0 { "\\\\" } else { "" });
            text.push_str(part);
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("a string takes everything");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_one_text_that_reads_back() {
        for bytes in [&b"a/b"[..], b"", "é/日".as_bytes(), b"a\\b", b"\xff\xfe/x", b"\\xff", b"a\xc3"] {
            let text = show_bytes(bytes);
            assert_eq!(parse_bytes(&text).expect("reads back"), bytes, "{text}");
        }
        assert_eq!(show_bytes(b"a\\b\xff"), "a\\\\b\\xff");
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let deep = "a/".repeat(2_048) + "a";
        for text in ["..", "a/../b", "/etc", "a//b", "a/", "a\0b", ".", "\\", "a\\b", "\\x61", "\\xFF", "\\xf", &deep] {
            assert_eq!(parse_path(text).expect_err(text).reason(), Reason::Invalid);
        }
        assert!(parse_path("").expect("the root").is_root());
    }
}
