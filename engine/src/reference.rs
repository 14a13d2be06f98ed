//! References: the only mutable names, and the operation records that say how they moved. Plain values with their encoding.

use std::fmt;

use bytes::Bytes;

use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object::codec::{Reader, Writer};
use crate::time::Time;

const REF_NAME_BYTES_MAX: usize = 512;
const REF_NOTE_BYTES_MAX: usize = 64 << 10;
const REF_KEEPS_MAX: usize = 16;
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Begins an id that has a scope. No text in UTF-8 begins so, and ids without a scope were texts.
const SCOPED_MARK: [u8; 2] = [0xff, 1];
const DIGEST_BYTES: usize = 32;
const SCOPE_BYTES: usize = SCOPED_MARK.len() + 32;
const OPERATION_TEXT_BYTES_MAX: usize = 64 << 10;
/// The action of an operation that removes references for good: what they held may go, however young the operation is.
pub const FORGET: &str = "forget";
/// The most references one transaction moves.
pub const REFS_PER_TRANSACTION_MAX: usize = 100_000;

/// The name of a reference: 1 to 512 bytes of printable UTF-8, by custom `kind/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefName(String);

impl RefName {
    /// Checks a name.
    pub fn new(name: impl Into<String>) -> Result<Self, Malformed> {
        let name = name.into();
        if name.is_empty() || name.len() > REF_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Malformed::Rule("a reference's name has 1 to 512 printable bytes"));
        }
        Ok(Self(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a reference holds: an object that it keeps alive, a small note, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RefValue {
    /// The object it points at.
    pub target: Option<ObjectId>,
    /// Other objects that it keeps alive, such as the one that a workspace began with.
    pub keeps: Vec<ObjectId>,
    /// Anything small beside it.
    pub note: Bytes,
}

impl RefValue {
    /// A reference to an object and nothing else.
    pub fn to(target: impl Into<ObjectId>) -> Self {
        Self { target: Some(target.into()), ..Self::default() }
    }

    /// A note and nothing else.
    pub fn noting(note: impl Into<Bytes>) -> Self {
        Self { note: note.into(), ..Self::default() }
    }

    /// Every object that it keeps alive.
    pub fn roots(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.target.iter().chain(&self.keeps).copied()
    }

    pub(crate) fn check(&self) -> Result<(), Malformed> {
        if self.keeps.len() > REF_KEEPS_MAX {
            return Err(Malformed::TooMuch { what: "what a reference keeps" });
        }
        if self.note.len() > REF_NOTE_BYTES_MAX {
            return Err(Malformed::TooMuch { what: "a reference's note" });
        }
        Ok(())
    }

    /// Its bytes in the store.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::record();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut Writer) {
        if let Some(target) = self.target {
            out.uint(1, target.kind as u64);
            out.bytes(2, &target.hash);
        }
        out.bytes(3, &self.note);
        for kept in &self.keeps {
            out.message(4, |out| {
                out.uint(1, kept.kind as u64);
                out.bytes(2, &kept.hash);
            });
        }
    }

    /// Reads those bytes.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        Self::read(Reader::record(bytes))
    }

    fn read(mut from: Reader) -> Result<Self, Malformed> {
        let (mut kind, mut hash, mut note, mut keeps) = (None, None, Bytes::new(), Vec::new());
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => kind = u8::try_from(value.number(1)?).ok().and_then(ObjectKind::from_number),
                2 => hash = Some(value.hash(2)?),
                3 => note = value.bytes(3)?,
                4 if keeps.len() == REF_KEEPS_MAX => {
                    return Err(Malformed::TooMuch { what: "what a reference keeps" });
                }
                4 => keeps.push(read_kept(value.message(4)?)?),
                number => return Err(Malformed::Field { number }),
            }
        }
        let target = match (kind, hash) {
            (Some(kind), Some(hash)) => Some(ObjectId { kind, hash }),
            (None, None) => None,
            _ => return Err(Malformed::Rule("a reference with half a target")),
        };
        let value = Self { target, keeps, note };
        value.check()?;
        Ok(value)
    }
}

fn read_kept(from: Reader) -> Result<ObjectId, Malformed> {
    let value = RefValue::read(from)?;
    match (value.target, value.keeps.is_empty() && value.note.is_empty()) {
        (Some(kept), true) => Ok(kept),
        _ => Err(Malformed::Rule("a reference that keeps nothing in particular")),
    }
}

/// A name the caller gives a request so that a retry is recognised. Up to 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(Bytes);

impl RequestId {
    /// Checks the length.
    pub fn new(id: impl AsRef<[u8]>) -> Result<Self, Malformed> {
        let id = id.as_ref();
        if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX {
            return Err(Malformed::Rule("a request id has 1 to 128 bytes"));
        }
        Ok(Self(Bytes::copy_from_slice(id)))
    }

    /// The id of one caller's call of one method: a hash of who calls what under which name, and a digest of the arguments. The
    /// same name given by another caller, or to another method, is another request; with other arguments it is refused.
    pub fn scoped(caller: &str, method: &str, id: &str, arguments: &[u8]) -> Result<Self, Malformed> {
        Self::new(id)?;
        let mut scope = blake3::Hasher::new();
        for part in [caller, method, id] {
            scope.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        let digest = blake3::hash(arguments);
        Ok(Self([&SCOPED_MARK[..], scope.finalize().as_bytes(), digest.as_bytes()].concat().into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The part that two requests share when they differ in their arguments alone; all of an id without a scope.
    pub(crate) fn scope(&self) -> &[u8] {
        match self.0.starts_with(&SCOPED_MARK) && self.0.len() == SCOPE_BYTES + DIGEST_BYTES {
            true => &self.0[..SCOPE_BYTES],
            false => &self.0,
        }
    }

    /// Whether it has a scope.
    pub(crate) fn is_scoped(&self) -> bool {
        self.scope().len() < self.0.len()
    }
}

/// What the caller says of a change; the store adds the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationDraft {
    /// Who.
    pub actor: String,
    /// When.
    pub time: Time,
    /// What, in a word (`commit`, `fork`, …).
    pub action: String,
    /// Makes a retry of the same request return the first one's result.
    pub request: Option<RequestId>,
    /// The operation that this one takes back, or does again.
    pub reverts: Option<Revert>,
}

/// An operation about another one, by its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revert {
    /// Takes it back.
    Undo(u64),
    /// Does it again after it was taken back.
    Redo(u64),
}

impl OperationDraft {
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        if self.actor.len() + self.action.len() > OPERATION_TEXT_BYTES_MAX {
            return Err(Malformed::TooMuch { what: "an operation's texts" });
        }
        Ok(())
    }
}

impl Revert {
    /// The operation that is taken back.
    pub fn undone(self) -> Option<u64> {
        match self {
            Self::Undo(sequence) => Some(sequence),
            Self::Redo(_) => None,
        }
    }

    /// The operation that is done again.
    pub fn redone(self) -> Option<u64> {
        match self {
            Self::Undo(_) => None,
            Self::Redo(sequence) => Some(sequence),
        }
    }
}

/// How one reference moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefChange {
    /// Which one.
    pub name: RefName,
    /// What it was.
    pub before: Option<RefValue>,
    /// What it became.
    pub after: Option<RefValue>,
    /// The operation that had moved it before; 0 when it was not there.
    pub previous: u64,
}

/// One change of the store's state, written in the same batch as the change itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its place in the log: ascending, without gaps in what is visible.
    pub sequence: u64,
    /// Who, when, what.
    pub draft: OperationDraft,
    /// The references that moved.
    pub changes: Vec<RefChange>,
}

impl Operation {
    /// Its bytes in the store; the sequence number is its key.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::record();
        out.bytes(1, self.draft.actor.as_bytes());
        out.sint(2, self.draft.time.0);
        out.bytes(3, self.draft.action.as_bytes());
        if let Some(request) = &self.draft.request {
            out.bytes(4, request.as_bytes());
        }
        let revert = |of: fn(Revert) -> Option<u64>| self.draft.reverts.and_then(of).unwrap_or(0);
        for change in &self.changes {
            out.message(5, |out| {
                out.bytes(1, change.name.as_str().as_bytes());
                for (field, value) in [(2, &change.before), (3, &change.after)] {
                    if let Some(value) = value {
                        out.message(field, |out| value.write(out));
                    }
                }
                out.uint(4, change.previous);
            });
        }
        out.uint(6, revert(Revert::undone));
        out.uint(7, revert(Revert::redone));
        out.finish()
    }

    /// Reads those bytes.
    pub fn decode(sequence: u64, bytes: Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::record(bytes);
        let mut operation = Self { sequence, draft: OperationDraft::default(), changes: Vec::new() };
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => operation.draft.actor = value.text(1)?,
                2 => operation.draft.time = Time(value.signed(2)?),
                3 => operation.draft.action = value.text(3)?,
                4 => operation.draft.request = Some(RequestId::new(value.bytes(4)?)?),
                5 if operation.changes.len() == REFS_PER_TRANSACTION_MAX => {
                    return Err(Malformed::TooMuch { what: "an operation's changes" });
                }
                5 => operation.changes.push(read_change(value.message(5)?)?),
                6 => operation.draft.reverts = Some(Revert::Undo(reverted(value.number(6)?)?)),
                7 => operation.draft.reverts = Some(Revert::Redo(reverted(value.number(7)?)?)),
                number => return Err(Malformed::Field { number }),
            }
        }
        Ok(operation)
    }
}

/// The log starts at 1.
fn reverted(sequence: u64) -> Result<u64, Malformed> {
    if sequence == 0 { Err(Malformed::Rule("an operation that reverts none")) } else { Ok(sequence) }
}

fn read_change(mut from: Reader) -> Result<RefChange, Malformed> {
    let (mut name, mut before, mut after, mut previous) = (None, None, None, 0);
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => name = Some(RefName::new(value.text(1)?)?),
            2 => before = Some(RefValue::read(value.message(2)?)?),
            3 => after = Some(RefValue::read(value.message(3)?)?),
            4 => previous = value.number(4)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    let name = name.ok_or(Malformed::Rule("a change without a name"))?;
    Ok(RefChange { name, before, after, previous })
}
