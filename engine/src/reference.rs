//! References: the only mutable names, and the operation records of their changes. Plain values with their encoding.

use std::fmt;

use bytes::Bytes;

use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object::codec::{Reader, Writer};
use crate::time::Time;

const REF_NAME_BYTES_MAX: usize = 512;
pub(crate) const REF_NOTE_BYTES_MAX: usize = 64 << 10;
const REF_KEEPS_MAX: usize = 16;
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Begins an id that has a scope. No text in UTF-8 begins so, and ids without a scope were texts.
const SCOPED_MARK: [u8; 2] = [0xff, 1];
const DIGEST_BYTES: usize = 32;
const SCOPE_BYTES: usize = SCOPED_MARK.len() + 32;
const OPERATION_TEXT_BYTES_MAX: usize = 64 << 10;
/// The action of an operation that removes references for good: collections may delete their objects, however young the operation
/// is.
pub const FORGET: &str = "forget";
/// Prefix of the references to the heads of workspaces.
pub(crate) const WORKSPACES: &str = "workspace/";
/// Prefix of the references that keep deleted workspaces; `@` and a number follow the name.
pub(crate) const DELETED_WORKSPACES: &str = "deleted/";
/// Maximum number of references that one transaction moves.
pub const REFS_PER_TRANSACTION_MAX: usize = 100_000;

/// The name of a reference: 1 to 512 bytes of printable UTF-8, by convention `kind/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefName(String);

impl RefName {
    /// Creates a name after checking it.
    pub fn new(name: impl Into<String>) -> Result<Self, Malformed> {
        let name = name.into();
        if name.is_empty() || name.len() > REF_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Malformed::Rule("a reference's name has 1 to 512 printable bytes"));
        }
        Ok(Self(name))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of a reference: an object that it keeps alive, a small note, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RefValue {
    /// The object that it points at.
    pub target: Option<ObjectId>,
    /// Further objects that it keeps alive, such as the base of a workspace.
    pub keeps: Vec<ObjectId>,
    /// Small additional data.
    pub note: Bytes,
}

impl RefValue {
    /// Creates a reference to an object.
    pub fn to(target: impl Into<ObjectId>) -> Self {
        Self { target: Some(target.into()), ..Self::default() }
    }

    /// Creates a reference with only a note.
    pub fn noting(note: impl Into<Bytes>) -> Self {
        Self { note: note.into(), ..Self::default() }
    }

    /// Returns every object that it keeps alive.
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

    /// Encodes the value for the store.
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

    /// Decodes a stored value.
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

/// An id that the caller gives a request, so that a retry is recognised. Up to 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(Bytes);

impl RequestId {
    /// Creates an id after checking its length.
    pub fn new(id: impl AsRef<[u8]>) -> Result<Self, Malformed> {
        let id = id.as_ref();
        if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX {
            return Err(Malformed::Rule("a request id has 1 to 128 bytes"));
        }
        Ok(Self(Bytes::copy_from_slice(id)))
    }

    /// Returns the id of one caller's call of one method: a hash of caller, method and id, and a digest of the arguments. The same
    /// id from another caller, or for another method, is another request; with other arguments the request is refused.
    pub fn scoped(caller: &str, method: &str, id: &str, arguments: &[u8]) -> Result<Self, Malformed> {
        Self::new(id)?;
        let mut scope = blake3::Hasher::new();
        for part in [caller, method, id] {
            scope.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        let digest = blake3::hash(arguments);
        Ok(Self([&SCOPED_MARK[..], scope.finalize().as_bytes(), digest.as_bytes()].concat().into()))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the part that two requests share if they differ only in their arguments. An id without a scope is returned whole.
    pub fn scope(&self) -> &[u8] {
        match self.0.starts_with(&SCOPED_MARK) && self.0.len() == SCOPE_BYTES + DIGEST_BYTES {
            true => &self.0[..SCOPE_BYTES],
            false => &self.0,
        }
    }

    /// Returns whether the id has a scope.
    pub fn is_scoped(&self) -> bool {
        self.scope().len() < self.0.len()
    }
}

/// The part of an operation that the caller supplies. The store adds the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationDraft {
    /// The author.
    pub actor: String,
    /// The time.
    pub time: Time,
    /// The action name (`commit`, `fork`, …).
    pub action: String,
    /// Makes a retry of the same request return the result of the first attempt.
    pub request: Option<RequestId>,
    /// The operation that this one undoes or redoes.
    pub reverts: Option<Revert>,
}

/// A reference to another operation by its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revert {
    /// Undoes it.
    Undo(u64),
    /// Redoes it after it was undone.
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
    /// Returns the operation that is undone.
    pub fn undone(self) -> Option<u64> {
        match self {
            Self::Undo(sequence) => Some(sequence),
            Self::Redo(_) => None,
        }
    }

    /// Returns the operation that is redone.
    pub fn redone(self) -> Option<u64> {
        match self {
            Self::Undo(_) => None,
            Self::Redo(sequence) => Some(sequence),
        }
    }
}

/// The change of one reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefChange {
    /// The name of the reference.
    pub name: RefName,
    /// The value before.
    pub before: Option<RefValue>,
    /// The value after.
    pub after: Option<RefValue>,
    /// The operation that moved it before; 0 if it did not exist.
    pub previous: u64,
}

/// A change of the store's state. Its record is written in the same batch as the change itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The sequence number in the log: ascending, without visible gaps.
    pub sequence: u64,
    /// The author, time and action.
    pub draft: OperationDraft,
    /// The references that moved.
    pub changes: Vec<RefChange>,
}

impl Operation {
    /// Encodes the operation for the store. The sequence number is its key.
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

    /// Decodes a stored operation.
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

/// Rejects 0: the log starts at 1.
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
