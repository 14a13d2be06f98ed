//! Binary contents in a patch: deflated, in base 85, in lines; and Git's blob ids.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Number of bytes per line: the maximum that one letter can encode.
const LINE_BYTES: usize = 52;

/// Returns the id of the Git blob with these bytes.
pub(super) fn blob_id(bytes: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    let digits = b"0123456789abcdef";
    let hex = |byte: u8| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]].map(char::from);
    hash.finalize().into_iter().flat_map(hex).collect()
}

/// Writes the bytes as a literal hunk of a binary patch.
pub(super) fn literal(bytes: &[u8], out: &mut Vec<u8>) {
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(bytes).expect("a vector takes everything");
    let deflated = deflate.finish().expect("a vector takes everything");
    out.extend_from_slice(format!("literal {}\n", bytes.len()).as_bytes());
    for line in deflated.chunks(LINE_BYTES) {
        let length = line.len() as u8;
        out.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
        for group in line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            base85(u32::from_be_bytes(word), out);
        }
        out.push(b'\n');
    }
    out.push(b'\n');
}

fn base85(mut number: u32, out: &mut Vec<u8>) {
    let mut digits = [0; 5];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number % 85) as usize];
        number /= 85;
    }
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_gits() {
        assert_eq!(blob_id(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(blob_id(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn numbers_have_five_digits() {
        let digits = |number| {
            let mut out = Vec::new();
            base85(number, &mut out);
            String::from_utf8(out).expect("ASCII")
        };
        assert_eq!((digits(0).as_str(), digits(u32::MAX).as_str()), ("00000", "|NsC0"));
    }
}
