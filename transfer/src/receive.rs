//! Receiving: a stream into a store. Nothing is believed, and nothing is visible before the end.

mod left_out;
mod names;

pub use left_out::LeftOut;
pub use names::Names;

use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use amalgam_engine::backend::StoredObject;
use amalgam_engine::history::mark_foreign;
use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{
    Error as EngineError, ErrorKind, HashedObject, NotAdmitted, ObjectId, ObjectKind, OperationContext, Pin,
    SnapshotId, Store, WriteSession,
};

use bytes::Bytes;

use crate::error::{Error, Result, Where};
use crate::kinds::Origin;
use crate::progress::Progress;
use crate::stream::{Frame, StreamReader};

/// So much is hashed and taken in together.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_FRAMES: usize = 4_096;
/// Batches that are read ahead, and that are hashed ahead: while one is written, the next ones are hashed.
const BATCHES_READ: usize = 2;
const BATCHES_HASHED: usize = 4;
/// What names and tips of a stream may take in memory, and those of a backup, which holds all names of a store.
const NAMES_BYTES_MAX: usize = 256 << 20;
const NAMES_OF_BACKUP_BYTES_MAX: usize = 2 << 30;
/// What a name or a tip takes beside its text.
const NAME_OVERHEAD_BYTES: usize = 256;
/// The most bases of a stream, and the most nodes of theirs that it may have opened.
const BASES_MAX: usize = 1 << 16;
const OPENED_MAX: usize = 8 << 20;
/// What tombstones of a stream may take in memory.
const TOMBSTONES_BYTES_MAX: usize = 256 << 20;

/// How to receive.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// What becomes of the stream's names.
    pub names: Names,
    /// Set names that hold something else here, even if that is no older state of what was sent.
    pub replace: bool,
    /// Take tombstones in for what the sender has purged. Who can plant them can keep bytes away, so it is only for streams
    /// from a sender that is trusted that far; without it, a stream with purged content is refused.
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
    /// What a restore could not bring back, or not as it was. Always empty for a stream, which is received whole or not at all.
    pub left_out: LeftOut,
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
    act: &OperationContext,
    progress: &Progress,
) -> Result<Received> {
    let source = Source { origin: Origin::Stream, stream: from, left_out: LeftOut::default() };
    receive_from(source, store, options, act, progress)
}

/// A stream, or a part of a backup.
pub(crate) struct Source<R> {
    pub(crate) origin: Origin,
    pub(crate) stream: R,
    /// What earlier parts of a backup have left out.
    pub(crate) left_out: LeftOut,
}

/// Receives a stream, or a part of a backup. Of a backup an object that breaks a rule of the format is skipped, with all that
/// refers to it, and reported: whatever else it has comes back.
pub(crate) fn receive_from(
    source: Source<impl Read + Send>,
    store: &Store,
    options: &ReceiveOptions,
    act: &OperationContext,
    progress: &Progress,
) -> Result<Received> {
    let Source { origin, stream: from, left_out } = source;
    let session = store.session();
    let mut taking = Taking {
        origin,
        store,
        options,
        session: &session,
        newest: HashSet::new(),
        bases: HashSet::new(),
        opened: 0,
        tombstones_bytes: 0,
        tips: Vec::new(),
        names: Vec::new(),
        names_bytes: 0,
        done: Received { left_out, ..Received::default() },
    };
    let taken = std::thread::scope(|scope| {
        let (read, to_hash) = sync_channel(BATCHES_READ);
        let (hashed, to_take) = sync_channel(BATCHES_HASHED);
        let reader = match origin {
            Origin::Stream => StreamReader::new(from),
            Origin::Backup => StreamReader::salvaging(from),
        };
        let rest = match options.names {
            Names::None if origin == Origin::Backup => Rest::MayBeLost,
            _ => Rest::Needed,
        };
        scope.spawn(move || read_batches(reader, rest, &read));
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
    let Taking { names, tips, newest, mut done, .. } = taking;
    // All of it has to be readable now: what tips and names hold is looked up in the store.
    session.write_all_ahead()?;
    session.write_tombstones()?;
    if origin == Origin::Stream {
        mark_foreign(store, newest, &OperationContext { request: None, ..act.clone() })?;
    }
    for (place, tip) in tips {
        match names::hold(store, tip.object()).map_err(|error| not_sent(error, place, "a tip")) {
            Ok(pins) => {
                done.pins.extend(pins);
                done.tips.push(tip);
            }
            // The name that held it says so.
            Err(Error::Damaged { .. }) if origin == Origin::Backup => {}
            Err(error) => return Err(error),
        }
    }
    let mut left_out = std::mem::take(&mut done.left_out);
    done.names = names::set(session, names, &names::Setting { origin, options, act }, &mut left_out)?;
    done.left_out = left_out;
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

/// Whether a stream is of use without the frames behind a damaged length.
#[derive(Clone, Copy, PartialEq)]
enum Rest {
    /// It is not: the names come last.
    Needed,
    /// It is an earlier part of a backup, whose names are not set.
    MayBeLost,
}

/// Frames that were read together, each with its place.
struct Batch {
    frames: Vec<(Where, Frame)>,
    bytes: u64,
}

/// Reads until the end, an error, or until the receiving thread is gone.
fn read_batches(mut reader: StreamReader<impl Read>, rest: Rest, batches: &SyncSender<Result<Batch>>) {
    loop {
        let (mut frames, mut held, mut ends) = (Vec::new(), 0, None);
        while held < BATCH_BYTES && frames.len() < BATCH_FRAMES && ends.is_none() {
            match reader.next_frame() {
                Ok(frame) => {
                    held += held_bytes(&frame);
                    if matches!(frame, Frame::End { .. }) {
                        ends = Some(Ok(()));
                    }
                    frames.push((reader.place(), frame));
                }
                Err(error @ (Error::Damaged { .. } | Error::Cut { .. })) if rest == Rest::MayBeLost => {
                    let why = format!("{error}; the rest of this part is lost");
                    frames.push((reader.place(), Frame::Unreadable { why }));
                    frames.push((reader.place(), Frame::End { is_intact: false, objects: 0, names: 0 }));
                    ends = Some(Ok(()));
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
            // The receiving thread is gone and needs no answer.
            Some(Err(error)) => return batches.send(Err(error)).unwrap_or(()),
        }
    }
}

/// What a frame takes in memory, about.
fn held_bytes(frame: &Frame) -> usize {
    match frame {
        Frame::Object(StoredObject { bytes, .. }) | Frame::Thinned(bytes) => bytes.len(),
        Frame::Opened(ids) => ids.len() * size_of::<ObjectId>(),
        Frame::Name(name, value) => name.as_str().len() + value.note.len(),
        Frame::Purged(_, tombstone) => tombstone.actor.len() + tombstone.reason.len(),
        Frame::Unreadable { why } => why.len(),
        Frame::Base(_) | Frame::Tip(_) | Frame::End { .. } => 0,
    }
}

/// A batch whose objects were hashed.
struct Hashed {
    items: Vec<Item>,
    bytes: u64,
}

enum Item {
    /// Objects that follow each other, each with its place.
    Objects(Vec<Where>, Vec<HashedObject>),
    Other(Where, Frame),
}

/// Hashes batches until there are no more, or until the receiving thread is gone.
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
    origin: Origin,
    store: &'a Store,
    options: &'a ReceiveOptions,
    session: &'a WriteSession,
    /// New snapshots that no other new one came of.
    newest: HashSet<SnapshotId>,
    bases: HashSet<SnapshotId>,
    /// How many nodes of bases were opened.
    opened: usize,
    tombstones_bytes: usize,
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

    fn admit(&mut self, places: &[Where], objects: &[HashedObject]) -> Result<()> {
        let mut start = 0;
        while let Err(NotAdmitted { at, source }) = self.admit_until_refused(&objects[start..]) {
            let at = start + at;
            let id = objects[at].id();
            match source {
                // The store's own trouble is none of the stream's.
                EngineError::Full { .. } | EngineError::Fault { .. } | EngineError::DamagedRecord { .. } => {
                    return Err(source.into());
                }
                // An object that it refers to was left out, it breaks a rule, or its bytes are damaged.
                EngineError::Refused { .. } | EngineError::Missing { .. } | EngineError::HashMismatch { .. }
                    if self.origin == Origin::Backup =>
                {
                    self.done.left_out.add_object(id, objects[at].bytes(), &source);
                    start = at + 1;
                }
                source => return Err(Error::Refused { place: places[at], id, source: Box::new(source) }),
            }
        }
        self.done.objects += objects.len() as u64;
        self.done.snapshots += objects.iter().filter(|object| object.id().kind == ObjectKind::Snapshot).count() as u64;
        Ok(())
    }

    /// Takes objects in, and counts those that are new, up to one that is refused.
    fn admit_until_refused(&mut self, objects: &[HashedObject]) -> Result<(), NotAdmitted> {
        let new = self.session.admit_looked(objects);
        let (admitted, done) = match new {
            Ok(_) => (objects.len(), Ok(())),
            Err(refused) => (refused.at, Err(refused)),
        };
        for object in objects[..admitted].iter().filter(|object| object.is_new()) {
            self.done.objects_new += 1;
            if object.id().kind == ObjectKind::Snapshot {
                self.note_newest(object.id(), object.bytes());
            }
        }
        done
    }

    /// Notes a new snapshot, which stands for those that it came of.
    fn note_newest(&mut self, id: ObjectId, bytes: &Bytes) {
        let Ok(snapshot) = Snapshot::decode(bytes) else { return };
        for parent in &snapshot.parents {
            self.newest.remove(parent);
        }
        self.newest.insert(SnapshotId::from_bytes(id.hash));
    }

    fn take_other(&mut self, place: Where, frame: Frame) -> Result<bool> {
        match frame {
            Frame::Object(_) => unreachable!("objects are taken together"),
            Frame::Base(snapshot) => self.rest_on(place, snapshot)?,
            Frame::Opened(ids) => {
                for id in ids {
                    // Beyond the limit, and for what is not known to be in a base, what is below is walked.
                    if self.opened < OPENED_MAX {
                        self.opened += self.session.open_resting(id)?;
                    }
                }
            }
            Frame::Thinned(bytes) => {
                self.done.objects += 1;
                match self.session.admit_thinned(bytes.clone()) {
                    Ok((_, new)) => self.done.objects_new += u64::from(new),
                    Err(source) if source.kind() != ErrorKind::Invalid => return Err(source.into()),
                    Err(source) if self.origin == Origin::Backup => {
                        let id = ObjectId::of(ObjectKind::Snapshot, &bytes);
                        self.done.left_out.add_object(id, &bytes, &source);
                    }
                    Err(source) => return Err(Error::Damaged { place, why: source.to_string() }),
                }
            }
            Frame::Purged(id, tombstone) => {
                if !self.options.tombstones {
                    let why = format!("{id} was purged {tombstone}; say that tombstones are welcome to receive it");
                    return Err(Error::Damaged { place, why });
                }
                self.tombstones_bytes += tombstone.actor.len() + tombstone.reason.len() + NAME_OVERHEAD_BYTES;
                if self.tombstones_bytes > TOMBSTONES_BYTES_MAX {
                    return Err(Error::Damaged { place, why: "too many tombstones".to_owned() });
                }
                self.session.bury(id, tombstone).map_err(|error| Error::Damaged { place, why: error.to_string() })?;
            }
            Frame::Tip(snapshot) => {
                self.count_name(place, 0)?;
                self.tips.push((place, snapshot));
            }
            Frame::Name(name, value) => {
                self.count_name(place, name.as_str().len() + value.note.len())?;
                self.names.push((place, name, value));
            }
            Frame::Unreadable { why } => self.done.left_out.add_damage(Some(place), why),
            Frame::End { is_intact, .. } => {
                if !is_intact {
                    let why = "its checksum does not match: some of its bytes are damaged, perhaps those of a name";
                    self.done.left_out.add_damage(None, why.to_owned());
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Counts what a name or a tip takes in memory, and refuses one too many.
    fn count_name(&mut self, place: Where, text_bytes: usize) -> Result<()> {
        let most = match self.origin {
            Origin::Stream => NAMES_BYTES_MAX,
            Origin::Backup => NAMES_OF_BACKUP_BYTES_MAX,
        };
        self.names_bytes += text_bytes + NAME_OVERHEAD_BYTES;
        if self.names_bytes > most {
            return Err(Error::Damaged { place, why: "too many names and tips".to_owned() });
        }
        Ok(())
    }

    fn rest_on(&mut self, place: Where, snapshot: SnapshotId) -> Result<()> {
        if !self.bases.insert(snapshot) {
            return Ok(());
        }
        if self.bases.len() > BASES_MAX {
            return Err(Error::Damaged { place, why: format!("more than {BASES_MAX} bases") });
        }
        let root = self.store.snapshot(snapshot).map(|snapshot| snapshot.root);
        match root.and_then(|root| self.session.rest_on(root)) {
            Ok(()) => Ok(()),
            Err(error @ EngineError::Missing { .. }) if self.origin == Origin::Backup => {
                // The part before this one has lost it. Objects that rest on it are left out in their turn.
                self.done.left_out.add(snapshot.to_string(), error.to_string());
                Ok(())
            }
            Err(EngineError::Missing { .. }) => Err(Error::NoBase { snapshot }),
            Err(error) => Err(error.into()),
        }
    }
}
