//! What a store keeps of an episode and of its steps: the snapshot as the target of a reference, the rest as its note.

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

/// The most bytes of keys and values in the metadata of an episode or a step.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
const METADATA_ITEMS_MAX: usize = 256;

/// Whatever is to be kept with an episode or a step, small.
pub type Metadata = BTreeMap<String, String>;

/// An episode as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Its name.
    pub name: EpisodeName,
    /// When it began.
    pub created: Time,
    /// What becomes of it.
    pub state: EpisodeState,
    /// Whatever was said of it.
    pub metadata: Metadata,
    value: RefValue,
}

/// What becomes of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EpisodeState {
    /// Steps can be recorded, and it can be dropped.
    #[default]
    Open,
    /// The same, but it is not dropped until it is released.
    Kept,
    /// Being dropped: some of its steps may be gone. Dropping it again goes on with that.
    Dropping,
}

impl EpisodeState {
    /// Its word.
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

/// A step as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its number.
    pub id: StepId,
    /// The state it led to.
    pub snapshot: SnapshotId,
    /// The step it began at; none for a root.
    pub parent: Option<StepId>,
    /// How many steps lead to it from its root, itself not counted.
    pub depth: u64,
    /// When it was recorded.
    pub time: Time,
    /// What its state was found to be worth.
    pub reward: Option<f64>,
    /// How often a search came by.
    pub visits: u64,
    /// The rewards of all those visits together.
    pub total: f64,
    /// Whatever else was said of it.
    pub metadata: Metadata,
}

/// What is said of a step when it is recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDraft {
    /// The step it begins at; none for a root.
    pub parent: Option<StepId>,
    /// What its state was found to be worth.
    pub reward: Option<f64>,
    /// How often a search came by.
    pub visits: u64,
    /// The rewards of all those visits together.
    pub total: f64,
    /// Whatever else is to be kept with it, small.
    pub metadata: Metadata,
}

/// What a step's numbers become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepUpdate {
    /// Which one.
    pub step: StepId,
    /// What its state was found to be worth.
    pub reward: Option<f64>,
    /// How often a search came by.
    pub visits: u64,
    /// The rewards of all those visits together.
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

    /// What its reference holds.
    pub(super) fn value(&self) -> &RefValue {
        &self.value
    }

    /// What its reference holds in another state.
    pub(super) fn value_as(&self, state: EpisodeState) -> RefValue {
        episode_value(state, self.created, &self.metadata)
    }
}

/// What the reference of an episode holds. The metadata has been checked.
pub(super) fn episode_value(state: EpisodeState, created: Time, metadata: &Metadata) -> RefValue {
    let mut note = Writer::record();
    note.uint(1, state as u64);
    note.sint(2, created.0);
    write_metadata(&mut note, 3, metadata);
    RefValue::noting(note.finish())
}

impl StepDraft {
    /// A step that begins at another one.
    pub fn after(parent: StepId) -> Self {
        Self { parent: Some(parent), ..Self::default() }
    }

    /// The same with a reward, seen once.
    #[must_use]
    pub fn reward(mut self, reward: f64) -> Self {
        (self.reward, self.visits, self.total) = (Some(reward), 1, reward);
        self
    }

    /// The same with something said of it.
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
    /// The mean of the rewards of all visits; none before the first.
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

    /// What its reference holds.
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
