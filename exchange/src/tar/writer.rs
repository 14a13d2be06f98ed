//! Writes headers: ustar, preceded by a PAX header if necessary.

use std::io::{self, Write};

use amalgam_engine::Time;
use amalgam_engine::object::{Device, Owner};

use super::format::BLOCK_BYTES;
use super::pax;

/// The largest number of an octal field of eight bytes, and of one of twelve.
const OCTAL_8_MAX: u64 = 0o7_777_777;
const OCTAL_12_MAX: u64 = 0o77_777_777_777;

/// Fields of a header.
pub(super) struct Fields<'a> {
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
    pub(super) link: &'a [u8],
    pub(super) mode: u32,
    pub(super) owner: Owner,
    pub(super) mtime: Time,
    pub(super) size: u64,
    pub(super) device: Option<Device>,
    /// PAX records beside those that the fields ask for.
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Writes a header, with a PAX header before it where one is needed.
pub(super) fn write(output: &mut impl Write, fields: &Fields<'_>) -> io::Result<()> {
    let mut records = fields.records.clone();
    let has_record = |records: &[(Vec<u8>, Vec<u8>)], key: &[u8]| records.iter().any(|(other, _)| other == key);
    let mut add = |key: &str, value: Vec<u8>| {
        if !has_record(&records, key.as_bytes()) {
            records.push((key.as_bytes().to_vec(), value));
        }
    };
    let name = split_name(fields.name);
    if name.is_none() {
        add("path", fields.name.to_vec());
    }
    if fields.link.len() > 100 {
        add("linkpath", fields.link.to_vec());
    }
    if fields.size > OCTAL_12_MAX {
        add("size", fields.size.to_string().into_bytes());
    }
    for (key, id) in [("uid", fields.owner.uid), ("gid", fields.owner.gid)] {
        if u64::from(id) > OCTAL_8_MAX {
            add(key, id.to_string().into_bytes());
        }
    }
    let seconds = fields.mtime.0.div_euclid(1_000_000_000);
    let is_plain_time = fields.mtime.0 % 1_000_000_000 == 0 && (0..=OCTAL_12_MAX as i64).contains(&seconds);
    if !is_plain_time {
        add("mtime", time_text(fields.mtime).into_bytes());
    }
    if !records.is_empty() {
        write_pax(output, fields, records)?;
    }
    let (prefix, name) = name.unwrap_or_else(|| (&[], cut(fields.name, 100)));
    output.write_all(&block(fields, prefix, name, seconds.clamp(0, OCTAL_12_MAX as i64) as u64))
}

fn write_pax(output: &mut impl Write, fields: &Fields<'_>, mut records: Vec<(Vec<u8>, Vec<u8>)>) -> io::Result<()> {
    let is_text = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let is_name = matches!(&key[..], b"path" | b"linkpath" | b"GNU.sparse.name");
        !is_name || std::str::from_utf8(value).is_ok()
    };
    if !records.iter().all(is_text) {
        // Declares the names as bytes of no encoding.
        records.insert(0, (b"hdrcharset".to_vec(), b"BINARY".to_vec()));
    }
    let body: Vec<u8> = records.iter().flat_map(|(key, value)| pax::record(key, value)).collect();
    let last = fields.name.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or(b"root");
    let name = [b"PaxHeaders/", cut(last, 88)].concat();
    let header = Fields {
        kind: b'x',
        name: &name,
        link: &[],
        mode: 0o644,
        owner: Owner { uid: 0, gid: 0 },
        mtime: Time::EPOCH,
        size: body.len() as u64,
        device: None,
        records: Vec::new(),
    };
    output.write_all(&block(&header, &[], &name, 0))?;
    output.write_all(&body)?;
    pad(output, body.len() as u64)
}

/// Writes a plain file as a member.
pub(crate) fn write_member(output: &mut dyn Write, name: &[u8], size: u64, input: &mut dyn io::Read) -> io::Result<()> {
    let fields = Fields {
        kind: b'0',
        name,
        link: &[],
        mode: 0o644,
        owner: Owner { uid: 0, gid: 0 },
        mtime: Time::EPOCH,
        size,
        device: None,
        records: Vec::new(),
    };
    let mut output = output;
    write(&mut output, &fields)?;
    let copied = io::copy(&mut io::Read::take(input, size), &mut output)?;
    if copied < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    pad(&mut output, size)
}

/// Writes the end of an archive.
pub(crate) fn write_end(output: &mut dyn Write) -> io::Result<()> {
    output.write_all(&[0; 2 * BLOCK_BYTES])
}

/// Fills the last block of a body with zeros.
pub(super) fn pad(output: &mut impl Write, bytes: u64) -> io::Result<()> {
    let padding = (bytes.wrapping_neg() % BLOCK_BYTES as u64) as usize;
    output.write_all(&[0; BLOCK_BYTES][..padding])
}

fn cut(name: &[u8], bytes: usize) -> &[u8] {
    &name[..name.len().min(bytes)]
}

/// Splits a name into the prefix and the name of a ustar header. Returns `None` if it does not fit.
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((&[], name));
    }
    // The slash between the two is in neither; a name that ends with one keeps it.
    let from = name.len().checked_sub(101)?;
    let inside = name[from..name.len() - 1].iter().position(|byte| *byte == b'/')?;
    let slash = from + inside;
    (slash > 0 && slash <= 155).then(|| (&name[..slash], &name[slash + 1..]))
}

/// Formats a time as PAX does, for example `-1.5`.
fn time_text(time: Time) -> String {
    let sign = if time.0 < 0 { "-" } else { "" };
    let nanoseconds = time.0.unsigned_abs();
    let text = format!("{sign}{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn block(fields: &Fields<'_>, prefix: &[u8], name: &[u8], seconds: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..name.len()].copy_from_slice(name);
    octal(&mut block[100..108], u64::from(fields.mode));
    octal(&mut block[108..116], u64::from(fields.owner.uid).min(OCTAL_8_MAX));
    octal(&mut block[116..124], u64::from(fields.owner.gid).min(OCTAL_8_MAX));
    octal(&mut block[124..136], fields.size.min(OCTAL_12_MAX));
    octal(&mut block[136..148], seconds);
    block[156] = fields.kind;
    let link = cut(fields.link, 100);
    block[157..157 + link.len()].copy_from_slice(link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    if let Some(Device { major, minor }) = fields.device {
        number(&mut block[329..337], u64::from(major));
        number(&mut block[337..345], u64::from(minor));
    }
    block[345..345 + prefix.len()].copy_from_slice(prefix);
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    field[..digits].copy_from_slice(format!("{value:0digits$o}").as_bytes());
}

/// Writes a number in octal or, where it does not fit, in binary as GNU tar does.
fn number(field: &mut [u8], value: u64) {
    if value <= OCTAL_8_MAX {
        return octal(field, value);
    }
    field.copy_from_slice(&value.to_be_bytes());
    field[0] |= 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_a_slash_where_both_parts_fit() {
        let long = |first: usize, second: usize| [vec![b'a'; first], b"/".to_vec(), vec![b'b'; second]].concat();
        for (name, fits) in
            [(long(155, 100), true), (long(156, 100), false), (long(100, 101), false), (long(1, 100), true)]
        {
            let split = split_name(&name);
            assert_eq!(split.is_some(), fits, "{}", name.len());
            if let Some((prefix, rest)) = split {
                assert_eq!([prefix, b"/", rest].concat(), name);
            }
        }
        let directory = [long(50, 99), b"/".to_vec()].concat();
        assert_eq!(split_name(&directory).expect("fits").1.len(), 100);
    }

    #[test]
    fn times_have_no_more_digits_than_they_need() {
        for (time, text) in [(-1_500_000_000, "-1.5"), (1, "0.000000001"), (-1, "-0.000000001"), (7_000_000_000, "7")] {
            assert_eq!(time_text(Time(time)), text);
        }
    }
}
