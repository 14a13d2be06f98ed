//! The stored records of episodes and steps: the snapshot is the target of a reference, the other data its note.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::name::{EpisodeName, StepId};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::malformed::Malformed;
use crate::object::codec::{Reader, Value, Writer};
use crate::operation::snapshot_of;
use crate::reference::RefValue;
use crate::time::Time;

/// Maximum total length of the keys and values in the metadata of an episode or a step, in bytes.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
const METADATA_ITEMS_MAX: usize = 256;

/// Small key-value pairs of an episode or a step.
pub type Metadata = BTreeMap<String, String>;

/// The stored record of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// The name.
    pub name: EpisodeName,
    /// The time of creation.
    pub created: Time,
    /// The state.
    pub state: EpisodeState,
    /// User-defined key-value pairs.
    pub metadata: Metadata,
    value: RefValue,
}

/// The state of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EpisodeState {
    /// Accepts steps and can be dropped.
    #[default]
    Open,
    /// Accepts steps and cannot be dropped until it is released.
    Kept,
    /// Being dropped: some of its steps may be gone. Dropping it again continues.
    Dropping,
}

impl EpisodeState {
    /// Returns the name of the state.
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Kept => "kept",
            Self::Dropping => "dropping",
        }
    }

    fn of_number(number: u64) -> Result<Self, Malformed> {
        match number {
            0 => Ok(Self::Open),
            1 => Ok(Self::Kept),
            2 => Ok(Self::Dropping),
            _ => Err(Malformed::Rule("an episode in a state that is not known here")),
        }
    }
}

/// The stored record of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The number.
    pub id: StepId,
    /// The resulting state.
    pub snapshot: SnapshotId,
    /// The parent step; `None` for a root.
    pub parent: Option<StepId>,
    /// Number of steps between its root and itself; 0 for a root.
    pub depth: u64,
    /// The time of recording.
    pub time: Time,
    /// The reward of its state.
    pub reward: Option<f64>,
    /// Number of visits by a search.
    pub visits: u64,
    /// Total reward of these visits.
    pub total: f64,
    /// User-defined key-value pairs.
    pub metadata: Metadata,
}

/// The parameters of a new step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDraft {
    /// The parent step; `None` for a root.
    pub parent: Option<StepId>,
    /// The reward of its state.
    pub reward: Option<f64>,
    /// Number of visits by a search.
    pub visits: u64,
    /// Total reward of these visits.
    pub total: f64,
    /// User-defined small key-value pairs.
    pub metadata: Metadata,
}

/// New statistics of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepUpdate {
    /// The step to update.
    pub step: StepId,
    /// The reward of its state.
    pub reward: Option<f64>,
    /// Number of visits by a search.
    pub visits: u64,
    /// Total reward of these visits.
    pub total: f64,
}

impl Episode {
    pub(super) fn read(name: EpisodeName, value: RefValue) -> Result<Self> {
        let read = || -> Result<_, Malformed> {
            let mut from = Reader::record(value.note.clone());
            let (mut state, mut created, mut metadata) = (EpisodeState::Open, Time::EPOCH, Metadata::new());
            while let Some((field, value)) = from.next_field()? {
                match field {
                    1 => state = EpisodeState::of_number(value.number(1)?)?,
                    2 => created = Time(value.signed(2)?),
                    3 => read_metadata(value, 3, &mut metadata)?,
                    number => return Err(Malformed::Field { number }),
                }
            }
            Ok((state, created, metadata))
        };
        let damaged = |why: Malformed| Error::DamagedRecord { what: format!("episode {name}"), why: why.to_string() };
        let (state, created, metadata) = read().map_err(damaged)?;
        Ok(Self { name, created, state, metadata, value })
    }

    /// Returns the stored value of its reference.
    pub(super) fn value(&self) -> &RefValue {
        &self.value
    }

    /// Returns the value of its reference for another state.
    pub(super) fn value_as(&self, state: EpisodeState) -> RefValue {
        episode_value(state, self.created, &self.metadata)
    }
}

/// Encodes the value of an episode's reference. The caller has checked the metadata.
pub(super) fn episode_value(state: EpisodeState, created: Time, metadata: &Metadata) -> RefValue {
    let mut note = Writer::record();
    note.uint(1, state as u64);
    note.sint(2, created.0);
    write_metadata(&mut note, 3, metadata);
    RefValue::noting(note.finish())
}

impl StepDraft {
    /// Creates a draft for a step with this parent.
    pub fn after(parent: StepId) -> Self {
        Self { parent: Some(parent), ..Self::default() }
    }

    /// Sets the reward, with one visit.
    #[must_use]
    pub fn reward(mut self, reward: f64) -> Self {
        (self.reward, self.visits, self.total) = (Some(reward), 1, reward);
        self
    }

    /// Adds a key-value pair.
    #[must_use]
    pub fn say(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        check_numbers(self.reward, self.total)?;
        check_metadata(&self.metadata)
    }
}

impl StepUpdate {
    pub(super) fn check(&self) -> Result<()> {
        check_numbers(self.reward, self.total)
    }
}

impl Step {
    /// Returns the mean reward of all visits; `None` before the first visit.
    #[expect(clippy::cast_precision_loss, reason = "a mean need not be exact to the last digit")]
    pub fn mean(&self) -> Option<f64> {
        (self.visits > 0).then(|| self.total / self.visits as f64)
    }

    pub(super) fn read(episode: &EpisodeName, id: StepId, value: &RefValue) -> Result<Self> {
        let damaged = |why: String| Error::DamagedRecord { what: format!("step {id} of episode {episode}"), why };
        let snapshot = value.target.and_then(snapshot_of);
        let snapshot = snapshot.ok_or_else(|| damaged("it has no snapshot".to_owned()))?;
        Self::read_note(id, snapshot, value.note.clone()).map_err(|why| damaged(why.to_string()))
    }

    fn read_note(id: StepId, snapshot: SnapshotId, note: Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::record(note);
        let mut step = Self {
            id,
            snapshot,
            parent: None,
            depth: 0,
            time: Time::EPOCH,
            reward: None,
            visits: 0,
            total: 0.0,
            metadata: Metadata::new(),
        };
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => step.parent = Some(StepId(value.number(1)?)),
                2 => step.depth = value.number(2)?,
                3 => step.time = Time(value.signed(3)?),
                4 => step.reward = Some(read_float(value, 4)?),
                5 => step.visits = value.number(5)?,
                6 => step.total = read_float(value, 6)?,
                7 => read_metadata(value, 7, &mut step.metadata)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        if step.parent.is_some_and(|parent| parent >= id || parent.0 == 0) {
            return Err(Malformed::Rule("a step that came before its parent"));
        }
        Ok(step)
    }

    /// Encodes the value of its reference.
    pub(super) fn value(&self) -> RefValue {
        let mut note = Writer::record();
        note.uint(1, self.parent.map_or(0, |parent| parent.0));
        note.uint(2, self.depth);
        note.sint(3, self.time.0);
        if let Some(reward) = self.reward {
            note.item(4, &reward.to_be_bytes());
        }
        note.uint(5, self.visits);
        if self.total != 0.0 {
            note.item(6, &self.total.to_be_bytes());
        }
        write_metadata(&mut note, 7, &self.metadata);
        RefValue { target: Some(self.snapshot.object()), keeps: Vec::new(), note: note.finish().into() }
    }
}

fn check_numbers(reward: Option<f64>, total: f64) -> Result<()> {
    for number in reward.into_iter().chain([total]) {
        if !number.is_finite() {
            let why = format!("{number} cannot be compared or written down; give a finite number");
            return Err(Error::Invalid { what: "reward", why });
        }
    }
    Ok(())
}

pub(super) fn check_metadata(metadata: &Metadata) -> Result<()> {
    let (what, bytes) = ("bytes of metadata", metadata.iter().map(|(key, value)| key.len() + value.len()).sum());
    for (what, value, max) in
        [(what, bytes, METADATA_BYTES_MAX), ("items of metadata", metadata.len(), METADATA_ITEMS_MAX)]
    {
        if value > max {
            return Err(Error::TooLarge { what, value: value as u64, max: max as u64 });
        }
    }
    match metadata.keys().find(|key| key.is_empty() || key.chars().any(char::is_control)) {
        Some(key) => {
            let why = format!("the key {key:?} has to be printable text");
            Err(Error::Invalid { what: "metadata", why })
        }
        None => Ok(()),
    }
}

fn write_metadata(note: &mut Writer, field: u32, metadata: &Metadata) {
    for (key, value) in metadata {
        note.message(field, |out| {
            out.bytes(1, key.as_bytes());
            out.bytes(2, value.as_bytes());
        });
    }
}

fn read_metadata(value: Value<'_>, field: u32, metadata: &mut Metadata) -> Result<(), Malformed> {
    if metadata.len() == METADATA_ITEMS_MAX {
        return Err(Malformed::TooMuch { what: "metadata" });
    }
    let mut from = value.message(field)?;
    let (mut key, mut text) = (String::new(), String::new());
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => key = value.text(1)?,
            2 => text = value.text(2)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    if metadata.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return Err(Malformed::Order);
    }
    metadata.insert(key, text);
    Ok(())
}

fn read_float(value: Value<'_>, field: u32) -> Result<f64, Malformed> {
    let bytes = value.bytes(field)?;
    let bytes = bytes[..].try_into().map_err(|_| Malformed::Rule("a number that has not eight bytes"))?;
    let number = f64::from_be_bytes(bytes);
    if number.is_finite() { Ok(number) } else { Err(Malformed::Rule("a number that is not finite")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_have_golden_bytes_and_are_read_back() {
        let name = EpisodeName::new("run").expect("a name");
        let metadata = Metadata::from([("k".to_owned(), "v".to_owned()), ("l".to_owned(), String::new())]);
        let step = Step {
            id: StepId(9),
            snapshot: SnapshotId::from_bytes([3; 32]),
            parent: Some(StepId(8)),
            depth: 2,
            time: Time(-1),
            reward: Some(0.5),
            visits: 300,
            total: 1.0,
            metadata: metadata.clone(),
        };
        let value = step.value();
        let golden: &[u8] =
            b"\x08\x08\x10\x02\x18\x01\x22\x08\x3f\xe0\0\0\0\0\0\0\x28\xac\x02\x32\x08\x3f\xf0\0\0\0\0\0\0\
            \x3a\x06\x0a\x01k\x12\x01v\x3a\x03\x0a\x01l";
        assert_eq!(&value.note[..], golden);
        assert_eq!(Step::read(&name, StepId(9), &value).expect("its own bytes"), step);
        assert!(Step::read(&name, StepId(8), &value).is_err(), "a parent comes before its children");

        let value = episode_value(EpisodeState::Dropping, Time(1), &metadata);
        assert_eq!(&value.note[..], b"\x08\x02\x10\x02\x1a\x06\x0a\x01k\x12\x01v\x1a\x03\x0a\x01l");
        let episode = Episode::read(name, value.clone()).expect("its own bytes");
        assert_eq!((episode.state, episode.metadata == metadata), (EpisodeState::Dropping, true));
        assert_eq!(episode.value_as(EpisodeState::Dropping), value);
    }

    #[test]
    fn damaged_notes_are_refused() {
        let name = EpisodeName::new("run").expect("a name");
        let read = |note: &'static [u8]| {
            let value = RefValue { target: Some(SnapshotId::from_bytes([3; 32]).object()), ..RefValue::noting(note) };
            Step::read(&name, StepId(9), &value)
        };
        assert!(read(b"").is_ok());
        for note in
            [&b"\x40\x01"[..], b"\x08\x09", b"\x22\x01\x00", b"\x22\x08\x7f\xf8\0\0\0\0\0\0", b"\x3a\x00\x3a\x00"]
        {
            assert!(read(note).is_err(), "{note:?}");
        }
        assert!(Step::read(&name, StepId(9), &RefValue::noting(&b""[..])).is_err());
        assert!(Episode::read(name, RefValue::noting(&b"\x08\x03"[..])).is_err());
    }
}
