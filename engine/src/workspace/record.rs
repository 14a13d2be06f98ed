//! What a store keeps of a workspace: its head and its base as objects, the rest as a note of the same reference.

use super::name::{DELETED_PREFIX, PREFIX, WorkspaceName};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::malformed::Malformed;
use crate::object::codec::{Reader, Writer};
use crate::operation::snapshot_of;
use crate::reference::{RefName, RefValue};
use crate::time::Time;

const TEXT_BYTES_MAX: usize = 1 << 10;
const JOURNAL_BYTES: usize = 16;

/// A workspace as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Workspace {
    /// Its name.
    pub name: WorkspaceName,
    /// Its newest snapshot; none before the first commit of one that began empty.
    pub head: Option<SnapshotId>,
    /// Where it began. Kept from collection as long as the workspace is.
    pub base: Option<SnapshotId>,
    /// Whose it is.
    pub agent: String,
    /// What it belongs to.
    pub project: String,
    /// When it was made.
    pub created: Time,
    /// The workspace that its changes are merged into: the one it was forked from, unless somebody said otherwise.
    pub target: Option<WorkspaceName>,
    /// The last commit that was taken from a live view.
    pub journaled: Option<Journaled>,
    /// A snapshot of the workspace's files as the last restore or undo left them, where they differ from the head. Its parent is
    /// the head; no history goes through it.
    pub working: Option<SnapshotId>,
    value: RefValue,
}

/// Where in the journal of a view a commit was taken. All edits before it are in the snapshot, none behind it are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// Which journal, of all that ever were.
    pub journal: [u8; JOURNAL_BYTES],
    /// The number of its file that begins there.
    pub file: u64,
}

/// A commit that was taken from a live view. It is written together with the head, so that a journal whose end was lost, and
/// with it the word of the commit, is taken up behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journaled {
    /// What was committed.
    pub snapshot: SnapshotId,
    /// Where.
    pub place: JournalPlace,
}

/// The note of a workspace's reference.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) agent: String,
    pub(super) project: String,
    pub(super) created: Time,
    pub(super) target: Option<WorkspaceName>,
    pub(super) journaled: Option<Journaled>,
    pub(super) working: Option<SnapshotId>,
}

impl Workspace {
    /// A workspace as a value of its reference says it, for example one that an operation names.
    pub fn read(name: WorkspaceName, value: RefValue) -> Result<Self> {
        let damaged = |why: String| Error::DamagedRecord { what: format!("workspace {name}"), why };
        let snapshot = |id| snapshot_of(id).ok_or_else(|| damaged("its head is not a snapshot".to_owned()));
        let head = value.target.map(snapshot).transpose()?;
        let Record { agent, project, created, target, journaled, working } =
            Record::read(&value).map_err(|why| damaged(why.to_string()))?;
        // The working snapshot is kept behind the base.
        let kept = match working {
            Some(working) => match value.keeps.split_last() {
                Some((last, kept)) if *last == working.object() => kept,
                _ => return Err(damaged("it does not keep its working snapshot".to_owned())),
            },
            None => &value.keeps[..],
        };
        let base = kept.first().copied().map(snapshot).transpose()?;
        Ok(Self { name, head, base, agent, project, created, target, journaled, working, value })
    }

    /// The snapshot that holds the files as the last recorded operation left them: the working snapshot, or else the head.
    pub fn state(&self) -> Option<SnapshotId> {
        self.working.or(self.head)
    }

    /// What its reference held when it was read.
    pub(crate) fn value(&self) -> &RefValue {
        &self.value
    }

    pub(super) fn into_value(self) -> RefValue {
        self.value
    }

    pub(super) fn record(&self) -> Record {
        let (agent, project, target) = (self.agent.clone(), self.project.clone(), self.target.clone());
        Record { agent, project, created: self.created, target, journaled: self.journaled, working: self.working }
    }

    /// What its reference holds when a commit moved its head.
    pub(super) fn committed(&self, snapshot: SnapshotId, place: Option<JournalPlace>) -> Result<RefValue> {
        let journaled = place.map(|place| Journaled { snapshot, place }).or(self.journaled);
        Record { journaled, working: None, ..self.record() }.value(Some(snapshot), self.base)
    }

    /// The value of its reference with another head. The files are what the new head holds.
    pub(crate) fn at_head(&self, head: Option<SnapshotId>) -> Result<RefValue> {
        match self.working {
            Some(_) if head != self.head => Record { working: None, ..self.record() }.value(head, self.base),
            _ => Ok(RefValue { target: head.map(SnapshotId::object), ..self.value.clone() }),
        }
    }

    /// The value of its reference with another working snapshot and the same head.
    pub(super) fn working_at(&self, working: Option<SnapshotId>) -> Result<RefValue> {
        Record { working, ..self.record() }.value(self.head, self.base)
    }
}

/// Returns what the reference of a workspace from another store holds here; other references are as they came. A place in a
/// journal belongs to the store that has the journal: that of the workspace that is here stays, and one that came is dropped. So
/// is a working snapshot: it belongs to files that are not here.
pub fn receive_workspace(name: &RefName, value: RefValue, here: Option<&RefValue>) -> Result<RefValue> {
    if !is_workspace(name) {
        return Ok(value);
    }
    let damaged = |why: Malformed| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_string() };
    let value = share_workspace(name, value)?;
    let journaled = here.map(Record::read).transpose().map_err(damaged)?.and_then(|record| record.journaled);
    let record = Record { journaled, ..Record::read(&value).map_err(damaged)? };
    Ok(RefValue { note: record.value(None, None)?.note, ..value })
}

/// Returns what another store gets to see of a workspace's reference: all but its working snapshot, which holds files that were
/// not committed. Other references are as they are.
pub fn share_workspace(name: &RefName, mut value: RefValue) -> Result<RefValue> {
    if !is_workspace(name) {
        return Ok(value);
    }
    let damaged = |why: Malformed| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_string() };
    let record = Record::read(&value).map_err(damaged)?;
    let Some(working) = record.working else { return Ok(value) };
    if value.keeps.last() == Some(&working.object()) {
        value.keeps.pop();
    }
    value.note = Record { working: None, ..record }.value(None, None)?.note;
    Ok(value)
}

fn is_workspace(name: &RefName) -> bool {
    [PREFIX, DELETED_PREFIX].iter().any(|prefix| name.as_str().starts_with(prefix))
}

impl Record {
    /// What the reference holds.
    pub(super) fn value(&self, head: Option<SnapshotId>, base: Option<SnapshotId>) -> Result<RefValue> {
        for (what, text) in [("agent", &self.agent), ("project", &self.project)] {
            if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
                let why = format!("at most {TEXT_BYTES_MAX} bytes of printable text");
                return Err(Error::Invalid { what, why });
            }
        }
        let mut note = Writer::record();
        note.bytes(1, self.agent.as_bytes());
        note.bytes(2, self.project.as_bytes());
        note.sint(3, self.created.0);
        if let Some(target) = &self.target {
            note.bytes(4, target.as_str().as_bytes());
        }
        if let Some(Journaled { snapshot, place: JournalPlace { journal, file } }) = &self.journaled {
            note.bytes(5, &[&snapshot.as_bytes()[..], journal, &file.to_be_bytes()].concat());
        }
        if let Some(working) = &self.working {
            note.bytes(6, working.as_bytes());
        }
        Ok(RefValue {
            target: head.map(SnapshotId::object),
            keeps: base.into_iter().chain(self.working).map(SnapshotId::object).collect(),
            note: note.finish().into(),
        })
    }

    fn read(value: &RefValue) -> Result<Self, Malformed> {
        let mut from = Reader::record(value.note.clone());
        let mut record = Self {
            agent: String::new(),
            project: String::new(),
            created: Time::EPOCH,
            target: None,
            journaled: None,
            working: None,
        };
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => record.agent = value.text(1)?,
                2 => record.project = value.text(2)?,
                3 => record.created = Time(value.signed(3)?),
                4 => {
                    let wrong = |_| Malformed::Rule("a workspace's target has a workspace's name");
                    record.target = Some(WorkspaceName::new(value.text(4)?).map_err(wrong)?);
                }
                5 => record.journaled = Some(Journaled::read(&value.bytes(5)?)?),
                6 => record.working = Some(SnapshotId::from_bytes(value.hash(6)?)),
                number => return Err(Malformed::Field { number }),
            }
        }
        Ok(record)
    }
}

impl Journaled {
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let parts = || -> Option<Self> {
            let (snapshot, rest) = bytes.split_first_chunk()?;
            let (journal, file) = rest.split_first_chunk()?;
            let file = u64::from_be_bytes(file.try_into().ok()?);
            let place = JournalPlace { journal: *journal, file };
            Some(Self { snapshot: SnapshotId::from_bytes(*snapshot), place })
        };
        parts().ok_or(Malformed::Rule("a place in a journal has 56 bytes"))
    }
}
