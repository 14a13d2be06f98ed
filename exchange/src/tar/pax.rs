//! Records of PAX headers, for values that do not fit into the fixed fields of a header.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::FORMAT;
use crate::error::{Error, Result};

/// Memory that one record takes beside its key and its value.
const RECORD_OVERHEAD_BYTES: usize = 128;
/// Memory that one number of a sparse map takes.
const SPARSE_NUMBER_BYTES: usize = 8;

/// The records of one header, or of all global ones so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    by_key: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `GNU.sparse.offset` and `GNU.sparse.numbytes` of version 0.0, which repeat.
    sparse_pairs: Vec<u64>,
    /// Estimate of the memory that all records take.
    memory_bytes: usize,
}

impl Records {
    /// Adds the records of a header. An empty value takes a record back. Fails when the records take more than `memory_bytes_max`.
    pub(super) fn read(&mut self, mut bytes: &[u8], memory_bytes_max: usize, offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let (record, rest) =
                split(bytes).ok_or_else(|| damaged(offset, "a PAX record is not `length key=value`"))?;
            bytes = rest;
            let (key, value) = record;
            match key {
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                    let number = decimal(value).ok_or_else(|| damaged(offset, "a sparse map holds no number"))?;
                    self.sparse_pairs.push(number);
                    self.memory_bytes += SPARSE_NUMBER_BYTES;
                }
                _ => self.set(key, value),
            }
            if self.memory_bytes > memory_bytes_max {
                return Err(damaged(offset, "PAX records take too much memory"));
            }
        }
        Ok(())
    }

    /// Sets a record, or removes it if the value is empty.
    fn set(&mut self, key: &[u8], value: &[u8]) {
        let bytes = |value: &[u8]| key.len() + value.len() + RECORD_OVERHEAD_BYTES;
        if let Some(before) = self.by_key.remove(key) {
            self.memory_bytes -= bytes(&before);
        }
        if !value.is_empty() {
            self.memory_bytes += bytes(value);
            self.by_key.insert(key.to_vec(), value.to_vec());
        }
    }

    fn get(&self, key: &str) -> Option<&[u8]> {
        self.by_key.get(key.as_bytes()).map(|value| &value[..])
    }

    /// Returns the records whose keys have a prefix, each with the rest of its key.
    fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + 'a {
        let from = self.by_key.range(prefix.as_bytes().to_vec()..);
        from.map_while(move |(key, value)| Some((key.strip_prefix(prefix.as_bytes())?, &value[..])))
    }
}

/// The records that apply to a member: its own, and the global ones that those do not override. The global records are shared: a copy
/// for each member would cost more than the member.
pub(super) struct MemberRecords {
    pub(super) global: Arc<Records>,
    /// The records of the member; `None` if it has no PAX header.
    pub(super) own: Option<Records>,
}

impl MemberRecords {
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.own.as_ref().and_then(|own| own.get(key)).or_else(|| self.global.get(key))
    }

    /// Parses a record as a number. Returns `None` if there is no such record.
    pub(super) fn number(&self, key: &str, offset: u64) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        decimal(value).map(Some).ok_or_else(|| damaged(offset, format!("the PAX record `{key}` is no number")))
    }

    /// Parses a record as a time in nanoseconds. Returns `None` if there is no such record.
    pub(super) fn time(&self, key: &str, offset: u64) -> Result<Option<i128>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        nanoseconds(value).map(Some).ok_or_else(|| damaged(offset, format!("the PAX record `{key}` is no time")))
    }

    /// Returns the records whose keys have a prefix, each with the rest of its key.
    pub(super) fn with_prefix<'a>(&'a self, prefix: &'a str) -> BTreeMap<&'a [u8], &'a [u8]> {
        let mut found: BTreeMap<_, _> = self.global.with_prefix(prefix).collect();
        found.extend(self.own.iter().flat_map(|own| own.with_prefix(prefix)));
        found
    }

    /// Returns the numbers of a sparse map of version 0.0.
    pub(super) fn sparse_pairs(&self) -> &[u64] {
        &self.own.as_ref().unwrap_or(&self.global).sparse_pairs
    }
}

pub(super) fn damaged(offset: u64, why: impl Into<String>) -> Error {
    Error::Malformed { format: FORMAT, place: format!("byte {offset}"), why: why.into() }
}

/// A key and a value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Splits the first record from the bytes that follow it. Returns `None` if it is malformed.
fn split(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), &bytes[length..]))
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Parses seconds with an optional fraction, for example `-1.5`. Digits behind the ninth are dropped towards the past.
fn nanoseconds(text: &[u8]) -> Option<i128> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let seconds = decimal(parts.next()?)?;
    let fraction = parts.next().unwrap_or(b"");
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut nanoseconds = i128::from(seconds) * 1_000_000_000;
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    nanoseconds += digits.fold(0, |value, digit| value * 10 + i128::from(digit - b'0'));
    let is_cut = fraction.iter().skip(9).any(|digit| *digit != b'0');
    Some(if is_negative { -nanoseconds - i128::from(is_cut) } else { nanoseconds })
}

/// Encodes one record. Its length counts itself.
pub(super) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        for length in [0, 1, 5, 80, 90, 92, 93, 94, 95, 988, 989, 990, 9_000] {
            let value = vec![b'v'; length];
            let bytes = [record(b"path", &value), record(b"k", b"=\n")].concat();
            let mut records = Records::default();
            records.read(&bytes, usize::MAX, 0).expect("well formed");
            assert_eq!(records.get("path"), (length > 0).then_some(&value[..]));
            assert_eq!(records.get("k"), Some(&b"=\n"[..]));
        }
        for bytes in [&b"5 a=b"[..], b"99 a=b\n", b"x a=b\n", b"7 abcd\n", b"0 \n", b"99999999999999999999 a=b\n"] {
            Records::default().read(bytes, usize::MAX, 0).expect_err("damaged");
        }
    }

    #[test]
    fn records_are_refused_when_they_take_too_much_memory() {
        let mut records = Records::default();
        let max = 3 * (RECORD_OVERHEAD_BYTES + 2);
        for (key, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), ("b", "")] {
            records.read(&record(key.as_bytes(), value.as_bytes()), max, 0).expect("three records at most");
        }
        records.read(&record(b"b", b"5"), max, 0).expect("a removed record takes no memory");
        let pair = record(b"GNU.sparse.offset", b"6");
        for bytes in [&pair, &record(b"d", b"7")] {
            records.clone().read(bytes, max, 0).expect_err("one more than fits");
        }
    }

    #[test]
    fn records_of_a_member_override_global_ones() {
        let read = |bytes: &[Vec<u8>]| {
            let mut records = Records::default();
            records.read(&bytes.concat(), usize::MAX, 0).expect("well formed");
            records
        };
        let number = |value: &[u8]| record(b"GNU.sparse.offset", value);
        let global = Arc::new(read(&[record(b"a", b"1"), record(b"p.x", b"2"), record(b"p.z", b"3"), number(b"4")]));
        let own = read(&[record(b"b", b"5"), record(b"p.x", b"6"), record(b"p.y", b"7"), record(b"q", b"8")]);
        let records = MemberRecords { global: Arc::clone(&global), own: Some(own) };
        assert_eq!((records.get("a"), records.get("b"), records.get("c")), (Some(&b"1"[..]), Some(&b"5"[..]), None));
        let found: Vec<_> = records.with_prefix("p.").into_iter().map(|(rest, value)| [rest, value].concat()).collect();
        assert_eq!(found, [b"x6", b"y7", b"z3"]);
        assert!(records.sparse_pairs().is_empty(), "the member has records without a map");
        assert_eq!(MemberRecords { global, own: None }.sparse_pairs(), [4]);
    }

    #[test]
    fn times_have_signs_and_fractions() {
        for (text, time) in [
            ("1", Some(1_000_000_000)),
            ("1.5", Some(1_500_000_000)),
            ("-1.5", Some(-1_500_000_000)),
            ("0.0000000019", Some(1)),
            ("-0.0000000019", Some(-2)),
            ("1.x", None),
            ("", None),
        ] {
            assert_eq!(nanoseconds(text.as_bytes()), time, "{text}");
        }
    }
}
