//! Decodes the header of a member, 512 bytes.

use super::format::BLOCK_BYTES;

/// A header block whose checksum was right.
pub(super) struct Header(pub(super) [u8; BLOCK_BYTES]);

/// Which rules a header follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// No magic number at all.
    V7,
    Ustar,
    Gnu,
}

impl Header {
    pub(super) fn is_checksum_right(&self) -> bool {
        let Some(said) = octal(&self.0[148..156]) else { return false };
        let byte = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { b' ' } else { *byte };
        let unsigned: u64 = self.0.iter().enumerate().map(|it| u64::from(byte(it))).sum();
        // Some old programs added signed bytes.
        let signed: i64 = self.0.iter().enumerate().map(|it| i64::from(byte(it) as i8)).sum();
        said == unsigned || i64::try_from(said) == Ok(signed)
    }

    pub(super) fn dialect(&self) -> Dialect {
        match &self.0[257..263] {
            b"ustar\0" => Dialect::Ustar,
            b"ustar " => Dialect::Gnu,
            _ => Dialect::V7,
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// Returns the name, with the prefix that ustar has in a field of its own.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = match self.dialect() {
            Dialect::Ustar => text(&self.0[345..500]),
            Dialect::Gnu | Dialect::V7 => &[],
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link_name(&self) -> Vec<u8> {
        text(&self.0[157..257]).to_vec()
    }

    pub(super) fn field(&self, range: std::ops::Range<usize>) -> Option<i128> {
        number(&self.0[range])
    }
}

/// Returns the bytes of a field up to its NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().expect("a split has a part")
}

/// Parses a number: octal digits or, with the first bit set, a big-endian number in two's complement. An empty field is 0.
pub(super) fn number(field: &[u8]) -> Option<i128> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => {
            let is_negative = first & 0x40 != 0;
            let start: i128 = if is_negative { -1 } else { 0 };
            let mut value = (start << 7) | i128::from(first & 0x7f);
            for byte in &field[1..] {
                value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
            }
            Some(value)
        }
        _ => octal(field).map(i128::from),
    }
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"12x4\0\0\0\0", None),
            (&[0x80, 0, 0, 0, 0, 0, 1, 0], Some(256)),
            (&[0xff; 12], Some(-1)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0x00], Some(-512)),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }
}
