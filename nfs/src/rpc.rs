//! ONC RPC over TCP: record marking, call headers, reply headers.

use bytes::{Buf as _, Bytes, BytesMut};
use nfs3_types::xdr_codec::Pack;

use crate::xdr::{Malformed, Reader, Result};

/// Longest READ and WRITE.
pub(crate) const DATA_BYTES_MAX: u32 = 1 << 20;
/// Longest record: the longest WRITE with its headers.
pub(crate) const RECORD_BYTES_MAX: usize = DATA_BYTES_MAX as usize + (8 << 10);
/// Limit of fragments per record.
const FRAGMENTS_MAX: usize = 1_024;
/// Longest credential body, by RFC 5531.
const CREDENTIAL_BYTES_MAX: usize = 400;
/// Longest machine name and most groups in AUTH_UNIX.
const MACHINE_BYTES_MAX: usize = 255;
const GROUPS_MAX: usize = 16;

const LAST_FRAGMENT: u32 = 1 << 31;
const RPC_VERSION: u32 = 2;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_UNIX: u32 = 1;
const AUTH_BAD_CREDENTIAL: u32 = 1;
const AUTH_TOO_WEAK: u32 = 5;

/// Assembles records from fragments.
#[derive(Default)]
pub(crate) struct Records {
    /// Fragments of an incomplete record.
    assembled: BytesMut,
    fragments: usize,
}

impl Records {
    /// Returns the next complete record, or `None` if more input is needed. Fails for records and fragment counts over the limits;
    /// the caller then closes the connection.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>> {
        loop {
            let Some(head) = input.first_chunk::<4>() else { return Ok(None) };
            let head = u32::from_be_bytes(*head);
            let length = (head & !LAST_FRAGMENT) as usize;
            if self.assembled.len() + length > RECORD_BYTES_MAX || self.fragments >= FRAGMENTS_MAX {
                return Err(Malformed);
            }
            if input.len() < 4 + length {
                return Ok(None);
            }
            input.advance(4);
            let fragment = input.split_to(length);
            let is_last = head & LAST_FRAGMENT != 0;
            if is_last && self.assembled.is_empty() {
                self.fragments = 0;
                return Ok(Some(fragment.freeze()));
            }
            self.assembled.extend_from_slice(&fragment);
            self.fragments += 1;
            if is_last {
                self.fragments = 0;
                return Ok(Some(std::mem::take(&mut self.assembled).freeze()));
            }
        }
    }

    /// Returns whether part of a record was received: fragments that are assembled, or bytes that are not consumed yet.
    pub(crate) fn is_within(&self, input: &BytesMut) -> bool {
        self.fragments > 0 || !input.is_empty()
    }

    /// Returns the number of bytes assembled from earlier fragments.
    pub(crate) fn assembled_bytes(&self) -> usize {
        self.assembled.len()
    }

    /// Returns the number of bytes that [`next`](Self::next) needs to make progress; 0 if it can.
    pub(crate) fn missing_bytes(&self, input: &BytesMut) -> usize {
        let Some(head) = input.first_chunk::<4>() else { return 4 - input.len() };
        let length = (u32::from_be_bytes(*head) & !LAST_FRAGMENT) as usize;
        if self.assembled.len() + length > RECORD_BYTES_MAX {
            return 0;
        }
        (4 + length).saturating_sub(input.len())
    }
}

/// Credentials of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    None,
    Unix { uid: u32, gid: u32, groups: Vec<u32> },
}

/// Header of a call, and a reader at its arguments.
pub(crate) struct Call<'a> {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) credential: Credential,
    pub(crate) arguments: Reader<'a>,
}

/// A record that cannot be dispatched.
pub(crate) enum Refused {
    /// Not an RPC call: close the connection.
    NotACall,
    /// Send this reply.
    With(Vec<u8>),
}

impl<'a> Call<'a> {
    pub(crate) fn read(record: &'a [u8]) -> std::result::Result<Self, Refused> {
        let mut from = Reader::new(record);
        let head = (|| Ok((from.u32()?, from.u32()?, from.u32()?)))();
        let Ok((xid, CALL, rpc_version)) = head.map_err(|Malformed| Refused::NotACall) else {
            return Err(Refused::NotACall);
        };
        if rpc_version != RPC_VERSION {
            let mut reply = denied(xid);
            for word in [RPC_MISMATCH, RPC_VERSION, RPC_VERSION] {
                put(&mut reply, word);
            }
            return Err(Refused::With(finish(reply)));
        }
        let garbage = |Malformed| Refused::With(accepted(xid, Accepted::Garbage));
        let (program, version, procedure) = (|| Ok((from.u32()?, from.u32()?, from.u32()?)))().map_err(garbage)?;
        let flavor = from.u32().map_err(garbage)?;
        let body = from.opaque(CREDENTIAL_BYTES_MAX).map_err(garbage)?;
        // Skip the verifier.
        from.u32().and_then(|_| from.opaque(CREDENTIAL_BYTES_MAX)).map_err(garbage)?;
        let credential = match flavor {
            AUTH_NONE => Credential::None,
            AUTH_UNIX => unix(body).map_err(|Malformed| auth_error(xid, AUTH_BAD_CREDENTIAL))?,
            _ => return Err(auth_error(xid, AUTH_TOO_WEAK)),
        };
        Ok(Self { xid, program, version, procedure, credential, arguments: from })
    }
}

fn unix(body: &[u8]) -> Result<Credential> {
    let mut from = Reader::new(body);
    from.u32()?;
    from.opaque(MACHINE_BYTES_MAX)?;
    let (uid, gid, count) = (from.u32()?, from.u32()?, from.u32()? as usize);
    if count > GROUPS_MAX {
        return Err(Malformed);
    }
    let groups = (0..count).map(|_| from.u32()).collect::<Result<_>>()?;
    from.end()?;
    Ok(Credential::Unix { uid, gid, groups })
}

fn auth_error(xid: u32, why: u32) -> Refused {
    let mut reply = denied(xid);
    put(&mut reply, AUTH_ERROR);
    put(&mut reply, why);
    Refused::With(finish(reply))
}

/// Accept status of a reply.
#[derive(Clone, Copy)]
pub(crate) enum Accepted {
    Success,
    NoProgram,
    NoVersion(u32),
    NoProcedure,
    Garbage,
    Failed,
}

fn put(reply: &mut Vec<u8>, word: u32) {
    reply.extend_from_slice(&word.to_be_bytes());
}

/// Starts a reply. The first word is reserved for the record mark.
fn begin(xid: u32, stat: u32) -> Vec<u8> {
    let mut reply = Vec::with_capacity(256);
    for word in [0, xid, REPLY, stat] {
        put(&mut reply, word);
    }
    reply
}

fn denied(xid: u32) -> Vec<u8> {
    begin(xid, DENIED)
}

/// Starts a successful reply.
pub(crate) fn success(xid: u32) -> Vec<u8> {
    let mut reply = begin(xid, ACCEPTED);
    // AUTH_NONE verifier, SUCCESS.
    for word in [AUTH_NONE, 0, 0] {
        put(&mut reply, word);
    }
    reply
}

/// Encodes a reply without a result.
pub(crate) fn accepted(xid: u32, how: Accepted) -> Vec<u8> {
    let mut reply = begin(xid, ACCEPTED);
    let words: &[u32] = match how {
        Accepted::Success => &[0],
        Accepted::NoProgram => &[1],
        Accepted::NoVersion(version) => &[2, version, version],
        Accepted::NoProcedure => &[3],
        Accepted::Garbage => &[4],
        Accepted::Failed => &[5],
    };
    for word in [AUTH_NONE, 0].iter().chain(words) {
        put(&mut reply, *word);
    }
    finish(reply)
}

/// Encodes a reply with a result.
pub(crate) fn reply(xid: u32, result: &impl Pack) -> Vec<u8> {
    let mut reply = success(xid);
    reply.reserve(result.packed_size());
    match result.pack(&mut reply) {
        Ok(_) => finish(reply),
        Err(_) => accepted(xid, Accepted::Failed),
    }
}

/// Sets the record mark.
pub(crate) fn finish(mut reply: Vec<u8>) -> Vec<u8> {
    let length = (reply.len() - 4) as u32 | LAST_FRAGMENT;
    reply[..4].copy_from_slice(&length.to_be_bytes());
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(bytes: &[u8], is_last: bool) -> Vec<u8> {
        let head = bytes.len() as u32 | if is_last { LAST_FRAGMENT } else { 0 };
        [&head.to_be_bytes()[..], bytes].concat()
    }

    #[test]
    fn records_are_put_together_however_they_arrive() {
        let sent =
            [fragment(b"ab", false), fragment(b"", false), fragment(b"cd", true), fragment(b"ef", true)].concat();
        for step in 1..sent.len() {
            let (mut records, mut input, mut found) = (Records::default(), BytesMut::new(), Vec::new());
            for piece in sent.chunks(step) {
                input.extend_from_slice(piece);
                while let Some(record) = records.next(&mut input).expect("sound") {
                    found.push(record);
                }
            }
            assert_eq!(found, ["abcd", "ef"], "in pieces of {step}");
            assert!(!records.is_within(&input));
        }
    }

    #[test]
    fn long_records_and_endless_fragments_are_refused() {
        let next = |sent: &[u8]| Records::default().next(&mut BytesMut::from(sent));
        assert_eq!(next(&0xffff_ffff_u32.to_be_bytes()), Err(Malformed));
        assert_eq!(next(&(RECORD_BYTES_MAX as u32 + 1).to_be_bytes()), Err(Malformed));
        assert_eq!(next(&fragment(b"", false).repeat(FRAGMENTS_MAX)), Ok(None));
        assert_eq!(next(&fragment(b"", false).repeat(FRAGMENTS_MAX + 1)), Err(Malformed));
        assert_eq!(next(&fragment(&[0; 60_000], false).repeat(20)), Err(Malformed));
    }

    #[test]
    fn credentials_have_bounds() {
        let body = |machine: u32, groups: u32| -> Vec<u8> {
            let mut words = vec![0, machine];
            words.extend(std::iter::repeat_n(0, machine as usize / 4));
            words.extend([1_000, 1_001, groups]);
            words.extend(0..groups.min(100));
            words.into_iter().flat_map(u32::to_be_bytes).collect()
        };
        let groups = vec![0, 1];
        assert_eq!(unix(&body(4, 2)), Ok(Credential::Unix { uid: 1_000, gid: 1_001, groups }));
        assert_eq!(unix(&body(4, 17)), Err(Malformed));
        assert_eq!(unix(&body(4, u32::MAX)), Err(Malformed));
        assert_eq!(unix(&body(256, 0)), Err(Malformed));
    }
}
