//! Decodes arguments of calls. Borrows from the record and allocates nothing.
//!
//! `nfs3_types` encodes replies. Its decoder allocates the length that a client claims before it checks the input, and ignores padding, so
//! requests do not use it.

/// Malformed input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) type Result<T> = std::result::Result<T, Malformed>;

/// The undecoded rest of a record.
#[derive(Clone)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// Decodes eight opaque bytes.
    pub(crate) fn verifier(&mut self) -> Result<[u8; 8]> {
        self.array()
    }

    /// Decodes opaque bytes up to a maximum length, and checks the zero padding.
    pub(crate) fn opaque(&mut self, max: usize) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > max {
            return Err(Malformed);
        }
        let bytes = self.take(length)?;
        let padding = self.take(length.wrapping_neg() & 3)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Malformed);
        }
        Ok(bytes)
    }

    /// Decodes an optional value.
    pub(crate) fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Refuses trailing bytes.
    pub(crate) fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_believed_only_as_far_as_there_are_bytes() {
        let opaque = |bytes: &[u8]| Reader::new(bytes).opaque(64).map(<[u8]>::to_vec);
        assert_eq!(opaque(&[0, 0, 0, 2, 7, 8, 0, 0]), Ok(vec![7, 8]));
        assert_eq!(opaque(&[0, 0, 0, 0]), Ok(vec![]));
        assert_eq!(opaque(&[0, 0, 0, 2, 7, 8, 0, 1]), Err(Malformed), "padding is zeros");
        assert_eq!(opaque(&[0, 0, 0, 2, 7, 8]), Err(Malformed), "padding is there");
        assert_eq!(opaque(&[0, 0, 0, 65]), Err(Malformed));
        assert_eq!(opaque(&[0xff, 0xff, 0xff, 0xff, 1]), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).bool(), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0]).u32(), Err(Malformed));
    }
}
