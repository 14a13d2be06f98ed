//! Receiving: a stream into a store. Nothing is believed, and nothing is visible before the end.

mod names;

pub use names::Names;

use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use amalgam_engine::backend::StoredObject;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{
    Act, Error as EngineError, Looked, NotAdmitted, ObjectKind, Pin, SnapshotId, Store, WriteSession,
};

use crate::error::{Error, Result, Where};
use crate::progress::Progress;
use crate::stream::{Frame, StreamReader};

/// So much is hashed and taken in together.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_FRAMES: usize = 4_096;
/// Batches that are read ahead, and that are hashed ahead: while one is written, the next ones are hashed.
const BATCHES_READ: usize = 2;
const BATCHES_HASHED: usize = 4;
/// What names may take in memory.
const NAMES_BYTES_MAX: usize = 256 << 20;

/// How to receive.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// What becomes of the stream's names.
    pub names: Names,
    /// Set names that hold something else here, even if that is no older state of what was sent.
    pub replace: bool,
    /// Take tombstones in for what the sender has purged. Who can plant them can keep bytes away, so it is only for streams
    /// from somebody who is trusted that far; without it, a stream with purged content is refused.
    pub tombstones: bool,
}

/// What was received.
#[derive(Debug, Default)]
pub struct Received {
    /// Objects and records in the stream.
    pub objects: u64,
    /// Those of them that the store did not have.
    pub objects_new: u64,
    /// Snapshots with their trees.
    pub snapshots: u64,
    /// Names that were set.
    pub names: Vec<RefName>,
    /// The snapshots that were asked for.
    pub tips: Vec<SnapshotId>,
    /// The length of the stream.
    pub bytes: u64,
    /// Keep what was received from collection as long as this lives: snapshots without a name have nothing else.
    pub pins: Vec<Pin>,
}

/// Receives a stream into a store: every object is hashed and checked, then, after the end mark, the names are set in one
/// operation, or in several where there are more than one takes.
///
/// Whatever goes wrong, no name has moved, and what arrived whole stays until it is collected. A read that hangs is for the
/// caller to end.
pub fn receive(
    store: &Store,
    from: impl Read + Send,
    options: &ReceiveOptions,
    act: &Act,
    progress: &Progress,
) -> Result<Received> {
    let session = store.session();
    let mut taking = Taking {
        store,
        options,
        session: &session,
        tips: Vec::new(),
        names: Vec::new(),
        names_bytes: 0,
        done: Received::default(),
    };
    let taken = std::thread::scope(|scope| {
        let (read, to_hash) = sync_channel(BATCHES_READ);
        let (hashed, to_take) = sync_channel(BATCHES_HASHED);
        scope.spawn(move || read_batches(from, &read));
        // Each owns its ends of the channels: when one of them goes, the others notice.
        let session = &session;
        scope.spawn(move || hash_batches(session, &to_hash, &hashed));
        let taken = taking.take_all(&to_take, progress);
        drop(to_take);
        taken
    });
    if let Err(error) = taken {
        // What is whole is of use next time; if it cannot be written either, that is no news.
        session.write_all_ahead().ok();
        return Err(error);
    }
    let Taking { names, tips, mut done, .. } = taking;
    // All of it has to be readable now: what tips and names hold is looked up in the store.
    session.write_all_ahead()?;
    session.write_tombstones()?;
    for (place, tip) in tips {
        done.pins.extend(names::hold(store, tip.object()).map_err(|error| not_sent(error, place, "a tip"))?);
        done.tips.push(tip);
    }
    done.names = names::set(session, names, options, act)?;
    Ok(done)
}

/// What a stream says of something that did not come with it.
fn not_sent(error: Error, place: Where, what: &str) -> Error {
    match error {
        Error::Engine(EngineError::Missing { id }) => {
            Error::Damaged { place, why: format!("{what} holds {id}, which was not sent") }
        }
        other => other,
    }
}

/// Frames that were read together, each with its place.
struct Batch {
    frames: Vec<(Where, Frame)>,
    bytes: u64,
}

/// Reads until the end, an error, or nobody listens.
fn read_batches(from: impl Read, batches: &SyncSender<Result<Batch>>) {
    let mut reader = StreamReader::new(from);
    loop {
        let (mut frames, mut held, mut ends) = (Vec::new(), 0, None);
        while held < BATCH_BYTES && frames.len() < BATCH_FRAMES && ends.is_none() {
            match reader.next_frame() {
                Ok(frame) => {
                    if let Frame::Object(StoredObject { bytes, .. }) = &frame {
                        held += bytes.len();
                    }
                    if matches!(frame, Frame::End { .. }) {
                        ends = Some(Ok(()));
                    }
                    frames.push((reader.place(), frame));
                }
                Err(error) => ends = Some(Err(error)),
            }
        }
        let batch = Batch { frames, bytes: reader.bytes() };
        if batches.send(Ok(batch)).is_err() {
            return;
        }
        match ends {
            None => {}
            Some(Ok(())) => return,
            // Nobody listens any more: then nobody wants to know.
            Some(Err(error)) => return batches.send(Err(error)).unwrap_or(()),
        }
    }
}

/// A batch whose objects were hashed.
struct Hashed {
    items: Vec<Item>,
    bytes: u64,
}

enum Item {
    /// Objects that follow each other, each with its place.
    Objects(Vec<Where>, Vec<Looked>),
    Other(Where, Frame),
}

/// Hashes batches until there are no more, or nobody listens.
fn hash_batches(session: &WriteSession, read: &Receiver<Result<Batch>>, hashed: &SyncSender<Result<Hashed>>) {
    for batch in read {
        let done = batch.and_then(|batch| Ok(Hashed { items: hash(session, batch.frames)?, bytes: batch.bytes }));
        if hashed.send(done).is_err() {
            return;
        }
    }
}

fn hash(session: &WriteSession, frames: Vec<(Where, Frame)>) -> Result<Vec<Item>> {
    let (mut items, mut places, mut objects) = (Vec::new(), Vec::new(), Vec::new());
    for (place, frame) in frames {
        match frame {
            Frame::Object(object) => {
                places.push(place);
                objects.push(object);
            }
            other => {
                let looked = session.look_at_stored(std::mem::take(&mut objects))?;
                items.push(Item::Objects(std::mem::take(&mut places), looked));
                items.push(Item::Other(place, other));
            }
        }
    }
    items.push(Item::Objects(places, session.look_at_stored(objects)?));
    Ok(items)
}

/// A stream on its way into a store.
struct Taking<'a> {
    store: &'a Store,
    options: &'a ReceiveOptions,
    session: &'a WriteSession,
    tips: Vec<(Where, SnapshotId)>,
    names: Vec<(Where, RefName, RefValue)>,
    names_bytes: usize,
    done: Received,
}

impl Taking<'_> {
    fn take_all(&mut self, batches: &Receiver<Result<Hashed>>, progress: &Progress) -> Result<()> {
        loop {
            progress.check()?;
            let batch = batches.recv().map_err(|_| Error::Cancelled)??;
            let before = (self.done.objects, self.done.snapshots);
            let ended = self.take(batch.items)?;
            progress.add(self.done.objects - before.0, self.done.snapshots - before.1);
            progress.bytes.store(batch.bytes, Ordering::Relaxed);
            if ended {
                self.done.bytes = batch.bytes;
                return Ok(());
            }
        }
    }

    /// Takes a batch in; true at the end of the stream.
    fn take(&mut self, items: Vec<Item>) -> Result<bool> {
        for item in items {
            match item {
                Item::Objects(places, objects) => self.admit(&places, &objects)?,
                Item::Other(place, frame) => {
                    if self.take_other(place, frame)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn admit(&mut self, places: &[Where], objects: &[Looked]) -> Result<()> {
        let new = self.session.admit_looked(objects).map_err(|NotAdmitted { at, source }| match source {
            // The store's own trouble is none of the stream's.
            EngineError::Full { .. } | EngineError::Fault { .. } | EngineError::DamagedRecord { .. } => source.into(),
            source => Error::Refused { place: places[at], id: objects[at].id(), source: Box::new(source) },
        })?;
        self.done.objects += objects.len() as u64;
        self.done.objects_new += new.iter().filter(|new| **new).count() as u64;
        self.done.snapshots += objects.iter().filter(|object| object.id().kind == ObjectKind::Snapshot).count() as u64;
        Ok(())
    }

    fn take_other(&mut self, place: Where, frame: Frame) -> Result<bool> {
        match frame {
            Frame::Object(_) => unreachable!("objects are taken together"),
            Frame::Base(snapshot) => self.rest_on(snapshot)?,
            Frame::Opened(ids) => {
                for id in ids {
                    // What is not known to be in a base was sent, or is walked.
                    self.session.open_resting(id)?;
                }
            }
            Frame::Thinned(bytes) => {
                let (_, new) = self.session.admit_thinned(bytes).map_err(|source| match source.kind() {
                    amalgam_engine::ErrorKind::Invalid => Error::Damaged { place, why: source.to_string() },
                    _ => source.into(),
                })?;
                self.done.objects += 1;
                self.done.objects_new += u64::from(new);
            }
            Frame::Purged(id, tombstone) => {
                if !self.options.tombstones {
                    let why = format!("{id} was purged {tombstone}; say that tombstones are welcome to receive it");
                    return Err(Error::Damaged { place, why });
                }
                self.session.bury(id, tombstone).map_err(|error| Error::Damaged { place, why: error.to_string() })?;
            }
            Frame::Tip(snapshot) => self.tips.push((place, snapshot)),
            Frame::Name(name, value) => {
                self.names_bytes += name.as_str().len() + value.note.len() + 256;
                if self.names_bytes > NAMES_BYTES_MAX {
                    return Err(Error::Damaged { place, why: "too many names".to_owned() });
                }
                self.names.push((place, name, value));
            }
            Frame::End { .. } => return Ok(true),
        }
        Ok(false)
    }

    fn rest_on(&mut self, snapshot: SnapshotId) -> Result<()> {
        let root = self.store.snapshot(snapshot).map(|snapshot| snapshot.root);
        match root.and_then(|root| self.session.rest_on(root)) {
            Ok(()) => Ok(()),
            Err(EngineError::Missing { .. }) => Err(Error::NoBase { snapshot }),
            Err(error) => Err(error.into()),
        }
    }
}
