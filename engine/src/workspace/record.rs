//! The stored record of a workspace: its head and base as objects, the rest as the note of the same reference.

use super::follow::Follow;
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

/// The stored record of a workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Workspace {
    /// The name.
    pub name: WorkspaceName,
    /// The newest snapshot; `None` before the first commit of a workspace that started empty.
    pub head: Option<SnapshotId>,
    /// The snapshot it started from. It is kept alive as long as the workspace exists.
    pub base: Option<SnapshotId>,
    /// The agent that owns it.
    pub agent: String,
    /// The project it belongs to.
    pub project: String,
    /// The time of creation.
    pub created: Time,
    /// The workspace that its changes are merged into: the one it was forked from, unless set otherwise.
    pub target: Option<WorkspaceName>,
    /// The last commit that was taken from a live view.
    pub journaled: Option<JournaledCommit>,
    /// A snapshot of the workspace's files as the last restore or undo left them, if they differ from the head. Its parent is the
    /// head; it is not part of any history.
    pub working: Option<SnapshotId>,
    /// The source that the workspace is kept up to date with, if it follows one.
    pub follow: Option<Follow>,
    value: RefValue,
}

/// A position in the journal of a view at which a commit was taken. The snapshot contains all edits before it and none after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// The unique id of the journal.
    pub journal: [u8; JOURNAL_BYTES],
    /// The number of the journal file that starts at the position.
    pub file: u64,
}

/// A commit that was taken from a live view. It is stored together with the head, so that a journal that lost its end, and with
/// it the record of the commit, is replayed from the position after the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournaledCommit {
    /// The committed snapshot.
    pub snapshot: SnapshotId,
    /// The position in the journal.
    pub place: JournalPlace,
}

/// The note of a workspace's reference.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) agent: String,
    pub(super) project: String,
    pub(super) created: Time,
    pub(super) target: Option<WorkspaceName>,
    pub(super) journaled: Option<JournaledCommit>,
    pub(super) working: Option<SnapshotId>,
    pub(super) follow: Option<Follow>,
}

impl Workspace {
    /// Decodes a workspace from a value of its reference, for example one in an operation record.
    pub fn read(name: WorkspaceName, value: RefValue) -> Result<Self> {
        let damaged = |why: String| Error::DamagedRecord { what: format!("workspace {name}"), why };
        let snapshot = |id| snapshot_of(id).ok_or_else(|| damaged("its head is not a snapshot".to_owned()));
        let head = value.target.map(snapshot).transpose()?;
        let Record { agent, project, created, target, journaled, working, follow } =
            Record::read(&value).map_err(|why| damaged(why.to_string()))?;
        // The working snapshot is kept after the base.
        let kept = match working {
            Some(working) => match value.keeps.split_last() {
                Some((last, kept)) if *last == working.object() => kept,
                _ => return Err(damaged("it does not keep its working snapshot".to_owned())),
            },
            None => &value.keeps[..],
        };
        let base = kept.first().copied().map(snapshot).transpose()?;
        Ok(Self { name, head, base, agent, project, created, target, journaled, working, follow, value })
    }

    /// Returns the snapshot of the files as the last recorded operation left them: the working snapshot, or else the head.
    pub fn state(&self) -> Option<SnapshotId> {
        self.working.or(self.head)
    }

    /// Returns the stored value of its reference.
    pub(crate) fn value(&self) -> &RefValue {
        &self.value
    }

    pub(super) fn into_value(self) -> RefValue {
        self.value
    }

    pub(super) fn record(&self) -> Record {
        Record {
            agent: self.agent.clone(),
            project: self.project.clone(),
            created: self.created,
            target: self.target.clone(),
            journaled: self.journaled,
            working: self.working,
            follow: self.follow.clone(),
        }
    }

    /// Returns the value of its reference after a commit moved its head.
    pub(super) fn committed(&self, snapshot: SnapshotId, place: Option<JournalPlace>) -> Result<RefValue> {
        let journaled = place.map(|place| JournaledCommit { snapshot, place }).or(self.journaled);
        Record { journaled, working: None, ..self.record() }.value(Some(snapshot), self.base)
    }

    /// Returns the value of its reference with another head. The files are those of the new head.
    pub(crate) fn at_head(&self, head: Option<SnapshotId>) -> Result<RefValue> {
        match self.working {
            Some(_) if head != self.head => Record { working: None, ..self.record() }.value(head, self.base),
            _ => Ok(RefValue { target: head.map(SnapshotId::object), ..self.value.clone() }),
        }
    }

    /// Returns the value of its reference with another working snapshot and the same head.
    pub(super) fn working_at(&self, working: Option<SnapshotId>) -> Result<RefValue> {
        Record { working, ..self.record() }.value(self.head, self.base)
    }
}

/// Converts the reference of a workspace from another store for this one. Other references stay unchanged.
///
/// Of a workspace that exists here only the head moves: its agent, project, target, base and journal position are decisions of
/// this store. A new workspace gets no journal position and no working snapshot, because journal and files are not in this store.
pub fn receive_workspace(name: &RefName, value: RefValue, here: Option<&RefValue>) -> Result<RefValue> {
    if !is_workspace(name) {
        return Ok(value);
    }
    let damaged = |why: Malformed| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_string() };
    let value = share_workspace(name, value)?;
    let record = Record { journaled: None, ..Record::read(&value).map_err(damaged)? };
    if let Some(here) = here
        && let Some(workspace) = name.as_str().strip_prefix(PREFIX)
    {
        let here = Workspace::read(WorkspaceName::new(workspace)?, here.clone())?;
        return here.at_head(value.target.and_then(snapshot_of));
    }
    Ok(RefValue { note: record.value(None, None)?.note, ..value })
}

/// Converts a workspace's reference for another store: removes its working snapshot, which holds uncommitted files, and the source that
/// it follows, which may name a path of this host. Other references stay unchanged.
pub fn share_workspace(name: &RefName, mut value: RefValue) -> Result<RefValue> {
    if !is_workspace(name) {
        return Ok(value);
    }
    let damaged = |why: Malformed| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_string() };
    let record = Record::read(&value).map_err(damaged)?;
    if record.working.is_none() && record.follow.is_none() {
        return Ok(value);
    }
    if let Some(working) = record.working
        && value.keeps.last() == Some(&working.object())
    {
        value.keeps.pop();
    }
    value.note = Record { working: None, follow: None, ..record }.value(None, None)?.note;
    Ok(value)
}

fn is_workspace(name: &RefName) -> bool {
    [PREFIX, DELETED_PREFIX].iter().any(|prefix| name.as_str().starts_with(prefix))
}

impl Record {
    /// Encodes the value of the reference.
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
        if let Some(JournaledCommit { snapshot, place: JournalPlace { journal, file } }) = &self.journaled {
            note.bytes(5, &[&snapshot.as_bytes()[..], journal, &file.to_be_bytes()].concat());
        }
        if let Some(working) = &self.working {
            note.bytes(6, working.as_bytes());
        }
        if let Some(follow) = &self.follow {
            follow.check()?;
            note.message(7, |note| follow.write(note));
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
            follow: None,
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
                5 => record.journaled = Some(JournaledCommit::read(&value.bytes(5)?)?),
                6 => record.working = Some(SnapshotId::from_bytes(value.hash(6)?)),
                7 => record.follow = Some(Follow::read(value.message(7)?)?),
                number => return Err(Malformed::Field { number }),
            }
        }
        Ok(record)
    }
}

impl JournaledCommit {
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
