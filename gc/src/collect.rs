//! A collection from its beginning to its end: mark, survey, sweep, trim, reclaim.

use std::ops::ControlFlow;
use std::time::Duration;

use amalgam_engine::backend::{IndexRow, Reclaimed};
use amalgam_engine::{ObjectId, ObjectKind, Result, Store, SweepRound, SweepScope, Swept, Tallies};
use rayon::prelude::*;
use tracing::debug;

use crate::mark::{KeepAll, MarkFigures, Marks, Retention};

/// Marking reads so many times the numbers of a step of the sweep in one go: few of them are nodes.
const STRETCH_ROWS: u64 = 4;
/// Rows of the index that a survey reads in one go.
const SURVEY_ROWS: usize = 8_192;
/// The parts in which a survey reads the index, and how many of them at once.
const SURVEY_PARTS: usize = 64;
const SURVEY_AT_ONCE: usize = 4;
/// Operations that go from the log in one go.
const TRIM_OPERATIONS: usize = 1_000;

/// How a collection is done.
#[derive(Clone, Copy)]
pub struct CollectOptions<'a> {
    /// Which snapshots of the history keep their trees.
    pub retention: &'a dyn Retention,
    /// From where to mark beside what references hold now. One that leaves references out is for dry runs.
    pub scope: Option<&'a SweepScope>,
    /// Operations before this number go from the log, unless the scope counts them. See [`log_begins`](crate::log_begins).
    pub operations_from: u64,
    /// About how much memory the marks may take. They take two bytes for each object as long as that fits; with less, more of
    /// what is dead stays until a later collection.
    pub memory_bytes: usize,
    /// Find out what is dead, and leave it.
    pub dry_run: bool,
    /// Give the room of what went back to the disk.
    pub reclaim: bool,
    /// The threads that read: no caller waits for what they do, so they may have a low priority. Without them those that everybody shares.
    /// What is deleted is deleted on the caller's own thread, because writers may wait for that.
    pub readers: Option<&'a rayon::ThreadPool>,
    /// How fast at the most.
    pub pace: Option<Pace<'a>>,
    /// Rows of the index that are swept in one go. A writer may wait for as long as that takes.
    pub rows_at_once: usize,
}

impl Default for CollectOptions<'_> {
    fn default() -> Self {
        Self {
            retention: &KeepAll,
            scope: None,
            operations_from: 0,
            memory_bytes: 224 << 20,
            dry_run: false,
            reclaim: true,
            readers: None,
            pace: None,
            rows_at_once: 2_048,
        }
    }
}

/// A limit that leaves the machine to others. What is done is followed by a rest of the time that it would take at this rate; so the
/// true rate is below it.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    /// Rows that are read, or deleted.
    pub objects_per_second: u64,
    /// Bytes that are rewritten.
    pub bytes_per_second: u64,
    /// How to wait: the collector has no clock.
    pub sleep: &'a (dyn Fn(Duration) + Sync),
}

/// What a collection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Finding what is alive. Counted in numbers of objects.
    Mark,
    /// Counting what is dead. Counted in sixty-fourths of the index.
    Survey,
    /// Deleting it. Counted in rows of the index, which is gone through twice.
    Sweep,
    /// Shortening the log. Counted in operations.
    Trim,
    /// Giving the room back. Counted in bytes.
    Reclaim,
}

impl Stage {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mark => "mark",
            Self::Survey => "survey",
            Self::Sweep => "sweep",
            Self::Trim => "trim",
            Self::Reclaim => "reclaim",
        }
    }
}

/// How far a collection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub stage: Stage,
    /// How much of it is done.
    pub done: u64,
    /// Of how much.
    pub total: u64,
    /// Objects deleted so far.
    pub deleted: u64,
}

/// Told of every step of some milliseconds. A call that does not return pauses the collection; a break ends it, and leaves a store as
/// good as any: the next collection does the rest.
pub type Watch<'a> = &'a mut (dyn FnMut(&Progress) -> ControlFlow<()> + Send);

/// What a collection came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The stage in which it was ended; nothing when it came to its end.
    pub ended_in: Option<Stage>,
    /// Objects that references and pins named.
    pub roots: u64,
    /// What marking did.
    pub mark: MarkFigures,
    /// What is alive.
    pub alive: Tallies,
    /// What is dead and old enough to go.
    pub dead: Tallies,
    /// What nothing leads to, and is too young to go: sessions that were open may need it.
    pub young: Tallies,
    /// What went.
    pub freed: Tallies,
    /// Operations that went from the log; in a dry run, that would.
    pub operations: u64,
    /// What came back to the disk, if that was asked for.
    pub reclaimed: Option<Reclaimed>,
}

/// Collects what no reference and no pin leads to. Others may go on with the store meanwhile. One collection at a time: while one is
/// under way another is refused.
///
/// A store that is damaged is left alone: what hangs on an object that cannot be read would look dead.
pub fn collect(store: &Store, options: &CollectOptions<'_>, watch: Watch<'_>) -> Result<Collected> {
    let round = store.begin_sweep_with(options.scope.cloned().unwrap_or_default())?;
    let mut collection = Collection { round, options, watch, done: Collected::default() };
    let ended = collection.run()?;
    collection.done.ended_in = ended;
    collection.done.freed = collection.round.freed().clone();
    Ok(collection.done)
}

/// Gives back the room of what earlier collections took and did not give back, and of what crashes left: without marking, and
/// without deleting anything.
pub fn reclaim(store: &Store, options: &CollectOptions<'_>, watch: Watch<'_>) -> Result<Collected> {
    let mut round = store.begin_sweep()?;
    while let Swept::Some { .. } | Swept::Unmarked(_) = round.sweep_some(SURVEY_ROWS, &|_| true)? {}
    let mut collection = Collection { round, options, watch, done: Collected::default() };
    let finished = collection.reclaim()?;
    collection.done.ended_in = (!finished).then_some(Stage::Reclaim);
    Ok(collection.done)
}

struct Collection<'a, 'w> {
    round: SweepRound,
    options: &'a CollectOptions<'a>,
    watch: Watch<'w>,
    done: Collected,
}

impl Collection<'_, '_> {
    /// Nothing, or the stage in which it was ended.
    fn run(&mut self) -> Result<Option<Stage>> {
        let stretch = (self.options.rows_at_once as u64 * STRETCH_ROWS).max(1);
        let mut marks = Marks::new(&self.round, self.options.retention, self.options.memory_bytes, stretch)?;
        let readers = self.options.readers;
        if !on(readers, || self.mark(&mut marks))? {
            return Ok(Some(Stage::Mark));
        }
        if !on(readers, || self.survey(&mut marks))? {
            return Ok(Some(Stage::Survey));
        }
        self.done.mark = marks.figures();
        let (alive, dead, young) = (self.done.alive.total(), self.done.dead.total(), self.done.young.total());
        debug!(
            roots = self.done.roots,
            alive_objects = alive.objects,
            dead_objects = dead.objects,
            dead_bytes = dead.bytes,
            young_objects = young.objects,
            "marked and counted"
        );
        if self.options.dry_run {
            self.done.operations = self.round.operations_to_trim(self.options.operations_from)?;
            return Ok(None);
        }
        if !self.sweep(&mut marks)? {
            return Ok(Some(Stage::Sweep));
        }
        self.done.mark = marks.figures();
        drop(marks);
        debug!(deleted_objects = self.round.freed().total().objects, "swept");
        if !self.trim()? {
            return Ok(Some(Stage::Trim));
        }
        if self.options.reclaim && !self.reclaim()? {
            return Ok(Some(Stage::Reclaim));
        }
        Ok(None)
    }

    fn mark(&mut self, marks: &mut Marks<'_>) -> Result<bool> {
        let roots = self.round.roots()?;
        self.done.roots = roots.len() as u64;
        let end = self.round.numbers_end();
        let (pace, watch, mut read) = (self.options.pace, &mut *self.watch, 0);
        let went = marks.mark_all(&self.round, &roots, &mut |rows, numbers| {
            rest_after_objects(pace, rows);
            // Both families lie in one range of numbers, which is read once for each.
            read += numbers;
            watch(&Progress { stage: Stage::Mark, done: read, total: 2 * end, deleted: 0 }).is_continue()
        })?;
        if went.is_none() {
            return Ok(false);
        }
        loop {
            let late = self.round.roots()?;
            if late.is_empty() {
                return Ok(true);
            }
            marks.mark_late(&self.round, &late)?;
        }
    }

    /// Counts, and makes sure that everything marked could be read: what hangs on something that could not must not go.
    fn survey(&mut self, marks: &mut Marks<'_>) -> Result<bool> {
        // A page is about as long as a part, so that little is read twice.
        let in_a_part = self.round.objects_estimate()? as usize / SURVEY_PARTS;
        let rows_at_once = (in_a_part + in_a_part / 8).clamp(64, SURVEY_ROWS);
        let parts: Vec<_> = (0..SURVEY_PARTS).collect();
        for (at, some) in (0..).step_by(SURVEY_AT_ONCE).zip(parts.chunks(SURVEY_AT_ONCE)) {
            let progress = Progress { stage: Stage::Survey, done: at, total: SURVEY_PARTS as u64, deleted: 0 };
            if (self.watch)(&progress).is_break() {
                return Ok(false);
            }
            let round = &self.round;
            let counted: Result<Vec<Counted>> =
                some.par_iter().map(|part| count_part(round, &*marks, *part, rows_at_once)).collect();
            for counted in counted? {
                rest_after_objects(self.options.pace, counted.rows);
                self.done.alive.merge(&counted.alive);
                self.done.dead.merge(&counted.dead);
                self.done.young.merge(&counted.young);
                for row in counted.doubtful {
                    marks.settle(&self.round, row.id)?;
                    self.done.alive.add(row.id.kind, row.stored_bytes);
                }
            }
        }
        Ok(true)
    }

    fn sweep(&mut self, marks: &mut Marks<'_>) -> Result<bool> {
        let total = 2 * (self.done.alive.total().objects + self.done.dead.total().objects);
        let mut seen = 0;
        loop {
            match self.round.sweep_some(self.options.rows_at_once.max(1), &|row| marks.keeps(row))? {
                Swept::Done { .. } => return Ok(true),
                Swept::Unmarked(late) => marks.mark_late(&self.round, &late)?,
                Swept::Some { rows } => {
                    seen += rows;
                    rest_after_objects(self.options.pace, rows);
                    let deleted = self.round.freed().total().objects;
                    let progress = Progress { stage: Stage::Sweep, done: seen, total: total.max(seen), deleted };
                    if (self.watch)(&progress).is_break() {
                        return Ok(false);
                    }
                }
            }
        }
    }

    fn trim(&mut self) -> Result<bool> {
        let from = self.options.operations_from;
        let total = self.round.operations_to_trim(from)?;
        while self.done.operations < total {
            self.round.trim_operations(from, TRIM_OPERATIONS)?;
            let left = self.round.operations_to_trim(from)?;
            rest_after_objects(self.options.pace, (total - left).saturating_sub(self.done.operations));
            self.done.operations = total - left;
            let deleted = self.round.freed().total().objects;
            let progress = Progress { stage: Stage::Trim, done: self.done.operations, total, deleted };
            if (self.watch)(&progress).is_break() {
                return Ok(left == 0);
            }
        }
        Ok(true)
    }

    fn reclaim(&mut self) -> Result<bool> {
        let (pace, watch) = (self.options.pace, &mut *self.watch);
        let deleted = self.round.freed().total().objects;
        let reclaimed = self.round.reclaim(&mut |at| {
            if let Some(pace) = pace {
                rest(pace, at.step_bytes, pace.bytes_per_second);
            }
            watch(&Progress { stage: Stage::Reclaim, done: at.bytes_done, total: at.bytes_total, deleted })
        })?;
        debug!(finished = reclaimed.finished, "reclaimed");
        self.done.reclaimed = Some(reclaimed);
        Ok(reclaimed.finished)
    }
}

/// Does something on these threads.
fn on<T: Send>(readers: Option<&rayon::ThreadPool>, does: impl FnOnce() -> T + Send) -> T {
    match readers {
        Some(readers) => readers.install(does),
        None => does(),
    }
}

#[derive(Default)]
struct Counted {
    rows: u64,
    alive: Tallies,
    dead: Tallies,
    young: Tallies,
    doubtful: Vec<IndexRow>,
}

/// Counts one part of the index.
fn count_part(round: &SweepRound, marks: &Marks<'_>, part: usize, rows_at_once: usize) -> Result<Counted> {
    let width = 256 / SURVEY_PARTS;
    let mut after = (part > 0).then(|| {
        let mut hash = [0xff; 32];
        hash[0] = (part * width - 1) as u8;
        ObjectId { kind: ObjectKind::Chunk, hash }
    });
    let mut counted = Counted::default();
    loop {
        let page = round.scan(after, rows_at_once)?;
        for row in &page {
            if usize::from(row.id.hash[0]) / width != part {
                return Ok(counted);
            }
            counted.rows += 1;
            let tallies = if marks.keeps(row) {
                &mut counted.alive
            } else if row.number < round.numbers_end() && marks.is_doubtful(row) {
                counted.doubtful.push(*row);
                continue;
            } else if round.is_old(row) {
                &mut counted.dead
            } else {
                &mut counted.young
            };
            tallies.add(row.id.kind, row.stored_bytes);
        }
        match page.last() {
            Some(last) => after = Some(last.id),
            None => return Ok(counted),
        }
    }
}

fn rest_after_objects(pace: Option<Pace<'_>>, objects: u64) {
    if let Some(pace) = pace {
        rest(pace, objects, pace.objects_per_second);
    }
}

fn rest(pace: Pace<'_>, done: u64, per_second: u64) {
    if done > 0 && per_second > 0 {
        (pace.sleep)(Duration::from_secs_f64(done as f64 / per_second as f64));
    }
}
