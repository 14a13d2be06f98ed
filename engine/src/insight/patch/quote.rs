//! Paths as Git writes them: verbatim where possible, otherwise quoted and escaped.

use crate::name::TreePath;

/// Writes a path after a prefix, quoted if it contains a byte that needs an escape.
pub(super) fn quoted(prefix: &str, path: &TreePath, out: &mut Vec<u8>) {
    let bytes = path.as_bytes();
    if !bytes.iter().any(|byte| needs_escape(*byte)) {
        out.extend_from_slice(prefix.as_bytes());
        out.extend_from_slice(bytes);
        return;
    }
    out.push(b'"');
    out.extend_from_slice(prefix.as_bytes());
    for byte in bytes {
        match byte {
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0b => out.extend_from_slice(b"\\v"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            byte if needs_escape(*byte) => {
                out.extend_from_slice(&[b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]);
            }
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}

fn needs_escape(byte: u8) -> bool {
    matches!(byte, 0..=0x1f | b'"' | b'\\' | 0x7f..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_quoted_as_git_does() {
        for (path, expected) in [
            (&b"plain/name with space"[..], &b"a/plain/name with space"[..]),
            (b"tab\there", b"\"a/tab\\there\""),
            (b"quote\"back\\", b"\"a/quote\\\"back\\\\\""),
            (b"new\nline\x01\x7f", b"\"a/new\\nline\\001\\177\""),
            (b"\xc3\xa4\xff", b"\"a/\\303\\244\\377\""),
        ] {
            let mut out = Vec::new();
            quoted("a/", &TreePath::new(path).expect("valid"), &mut out);
            assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }
}
