//! Receives a stream into a store. Every object is verified, and nothing is visible before the end.

mod omissions;
mod options;
mod set_names;

pub use omissions::Omissions;
pub use options::{Names, ReceiveOptions, ReceiveReport};

use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use amalgam_engine::backend::StoredObject;
use amalgam_engine::history::mark_foreign;
use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{
    Error as EngineError, ErrorKind, HashedObject, NotAdmitted, ObjectId, ObjectKind, OperationContext, SnapshotId,
    Store, WriteSession,
};

use bytes::Bytes;

use crate::error::{Error, FramePosition, Result};
use crate::progress::Progress;
use crate::ref_kinds::Origin;
use crate::stream::{Frame, StreamReader};

/// Bytes and frames that are hashed and admitted together.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_FRAMES: usize = 4_096;
/// Batches that are read ahead, and that are hashed ahead of the writing thread.
const BATCHES_READ: usize = 2;
const BATCHES_HASHED: usize = 4;
/// Memory limit for names and tips of a stream, and of a backup, which holds all names of a store.
const NAMES_BYTES_MAX: usize = 256 << 20;
const NAMES_OF_BACKUP_BYTES_MAX: usize = 2 << 30;
/// Memory of a name or a tip in addition to its text.
const NAME_OVERHEAD_BYTES: usize = 256;
/// Most bases of a stream, and most nodes of bases that it may open.
const BASES_MAX: usize = 1 << 16;
const OPENED_MAX: usize = 8 << 20;
/// Memory limit for tombstones of a stream.
const TOMBSTONES_BYTES_MAX: usize = 256 << 20;

/// Receives a stream: hashes and checks every object, then, after the end mark, sets the names in one operation, or in
/// several if there are too many for one.
///
/// After an error no name has moved, and objects that arrived completely stay until a collection. The caller has to
/// interrupt a read that blocks.
pub fn receive(
    store: &Store,
    from: impl Read + Send,
    options: &ReceiveOptions,
    act: &OperationContext,
    progress: &Progress,
) -> Result<ReceiveReport> {
    let source = ReceiveSource { origin: Origin::Stream, stream: from, left_out: Omissions::default() };
    receive_from(source, store, options, act, progress)
}

/// A stream, or a part of a backup.
pub(crate) struct ReceiveSource<R> {
    pub(crate) origin: Origin,
    pub(crate) stream: R,
    /// Omissions of earlier parts of the backup.
    pub(crate) left_out: Omissions,
}

/// Receives a stream, or a part of a backup. An object of a backup that breaks a rule of the format is skipped, with all that
/// refers to it, and reported, so that the rest is restored.
pub(crate) fn receive_from(
    source: ReceiveSource<impl Read + Send>,
    store: &Store,
    options: &ReceiveOptions,
    act: &OperationContext,
    progress: &Progress,
) -> Result<ReceiveReport> {
    let ReceiveSource { origin, stream: from, left_out } = source;
    let session = store.session();
    let mut state = ReceiveState {
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
        done: ReceiveReport { left_out, ..ReceiveReport::default() },
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
        // Each thread owns its ends of the channels, so that the others notice when it stops.
        let session = &session;
        scope.spawn(move || hash_batches(session, &to_hash, &hashed));
        let taken = state.run(&to_take, progress);
        drop(to_take);
        taken
    });
    if let Err(error) = taken {
        // Complete objects help the next attempt; a failure to write them does not matter.
        session.write_all_ahead().ok();
        return Err(error);
    }
    let ReceiveState { names, tips, newest, mut done, .. } = state;
    // The targets of tips and names are read from the store below.
    session.write_all_ahead()?;
    session.write_tombstones()?;
    if origin == Origin::Stream {
        mark_foreign(store, newest, &OperationContext { request: None, ..act.clone() })?;
    }
    for (place, tip) in tips {
        match set_names::hold(store, tip.object()).map_err(|error| missing_error(error, place, "a tip")) {
            Ok(pins) => {
                done.pins.extend(pins);
                done.tips.push(tip);
            }
            // The name of this tip reports it.
            Err(Error::Damaged { .. }) if origin == Origin::Backup => {}
            Err(error) => return Err(error),
        }
    }
    let mut left_out = std::mem::take(&mut done.left_out);
    done.names = set_names::set_names(session, names, &set_names::NameUpdate { origin, options, act }, &mut left_out)?;
    done.left_out = left_out;
    Ok(done)
}

/// Turns a missing object into an error of the stream.
fn missing_error(error: Error, place: FramePosition, what: &str) -> Error {
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

/// Frames that were read together, each with its position.
struct Batch {
    frames: Vec<(FramePosition, Frame)>,
    bytes: u64,
}

/// Reads batches until the end, an error, or until the receiving thread is gone.
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
            // The receiving thread may be gone.
            Some(Err(error)) => return batches.send(Err(error)).unwrap_or(()),
        }
    }
}

/// Returns the approximate memory of a frame.
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
struct HashedBatch {
    items: Vec<BatchItem>,
    bytes: u64,
}

enum BatchItem {
    /// Consecutive objects, each with its position.
    Objects(Vec<FramePosition>, Vec<HashedObject>),
    Other(FramePosition, Frame),
}

/// Hashes batches until there are no more, or until the receiving thread is gone.
fn hash_batches(session: &WriteSession, read: &Receiver<Result<Batch>>, hashed: &SyncSender<Result<HashedBatch>>) {
    for batch in read {
        let done = batch.and_then(|batch| Ok(HashedBatch { items: hash(session, batch.frames)?, bytes: batch.bytes }));
        if hashed.send(done).is_err() {
            return;
        }
    }
}

fn hash(session: &WriteSession, frames: Vec<(FramePosition, Frame)>) -> Result<Vec<BatchItem>> {
    let (mut items, mut places, mut objects) = (Vec::new(), Vec::new(), Vec::new());
    for (place, frame) in frames {
        match frame {
            Frame::Object(object) => {
                places.push(place);
                objects.push(object);
            }
            other => {
                let looked = session.look_at_stored(std::mem::take(&mut objects))?;
                items.push(BatchItem::Objects(std::mem::take(&mut places), looked));
                items.push(BatchItem::Other(place, other));
            }
        }
    }
    items.push(BatchItem::Objects(places, session.look_at_stored(objects)?));
    Ok(items)
}

/// State of a reception.
struct ReceiveState<'a> {
    origin: Origin,
    store: &'a Store,
    options: &'a ReceiveOptions,
    session: &'a WriteSession,
    /// New snapshots that are no ancestors of other new ones.
    newest: HashSet<SnapshotId>,
    bases: HashSet<SnapshotId>,
    /// Number of opened nodes of bases.
    opened: usize,
    tombstones_bytes: usize,
    tips: Vec<(FramePosition, SnapshotId)>,
    names: Vec<(FramePosition, RefName, RefValue)>,
    names_bytes: usize,
    done: ReceiveReport,
}

impl ReceiveState<'_> {
    fn run(&mut self, batches: &Receiver<Result<HashedBatch>>, progress: &Progress) -> Result<()> {
        loop {
            progress.check()?;
            let batch = batches.recv().map_err(|_| Error::Cancelled)??;
            let before = (self.done.objects, self.done.snapshots);
            let ended = self.process(batch.items)?;
            progress.add_items(self.done.objects - before.0);
            progress.add_snapshots(self.done.snapshots - before.1);
            progress.bytes.store(batch.bytes, Ordering::Relaxed);
            if ended {
                self.done.bytes = batch.bytes;
                return Ok(());
            }
        }
    }

    /// Processes a batch. Returns true at the end of the stream.
    fn process(&mut self, items: Vec<BatchItem>) -> Result<bool> {
        for item in items {
            match item {
                BatchItem::Objects(places, objects) => self.admit(&places, &objects)?,
                BatchItem::Other(place, frame) => {
                    if self.process_frame(place, frame)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn admit(&mut self, places: &[FramePosition], objects: &[HashedObject]) -> Result<()> {
        let mut start = 0;
        while let Err(NotAdmitted { at, source }) = self.admit_until_refused(&objects[start..]) {
            let at = start + at;
            let id = objects[at].id();
            match source {
                // An error of the store, not of the stream.
                EngineError::Full { .. }
                | EngineError::Fault { .. }
                | EngineError::Unreachable { .. }
                | EngineError::DamagedRecord { .. } => return Err(source.into()),
                // An object that it refers to was left out, it breaks a rule, or its bytes are damaged.
                EngineError::Refused { .. } | EngineError::Missing { .. } | EngineError::HashMismatch { .. }
                    if self.origin == Origin::Backup =>
                {
                    self.done.left_out.add_object(id, objects[at].bytes(), &source);
                    start = at + 1;
                }
                // An earlier part has it as purged; its bytes were stored again since.
                EngineError::Unwanted { .. } if self.origin == Origin::Backup => {
                    self.session.unbury(id)?;
                    start = at;
                }
                source => return Err(Error::Refused { place: places[at], id, source: Box::new(source) }),
            }
        }
        self.done.objects += objects.len() as u64;
        self.done.snapshots += objects.iter().filter(|object| object.id().kind == ObjectKind::Snapshot).count() as u64;
        Ok(())
    }

    /// Admits objects up to one that is refused, and counts the new ones.
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

    /// Records a new snapshot in place of its ancestors.
    fn note_newest(&mut self, id: ObjectId, bytes: &Bytes) {
        let Ok(snapshot) = Snapshot::decode(bytes) else { return };
        for parent in &snapshot.parents {
            self.newest.remove(parent);
        }
        self.newest.insert(SnapshotId::from_bytes(id.hash));
    }

    fn process_frame(&mut self, place: FramePosition, frame: Frame) -> Result<bool> {
        match frame {
            Frame::Object(_) => unreachable!("objects are taken together"),
            Frame::Base(snapshot) => self.rest_on(place, snapshot)?,
            Frame::Opened(ids) => {
                for id in ids {
                    // Beyond the limit, and for nodes not known to be in a base, the session walks everything below.
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

    /// Counts the memory of a name or a tip, and fails at the limit.
    fn count_name(&mut self, place: FramePosition, text_bytes: usize) -> Result<()> {
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

    fn rest_on(&mut self, place: FramePosition, snapshot: SnapshotId) -> Result<()> {
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
