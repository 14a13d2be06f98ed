//! Runs a collection: mark, survey, sweep, trim, reclaim.

use std::ops::ControlFlow;
use std::time::Duration;

use amalgam_engine::backend::{IndexRow, Reclaimed};
use amalgam_engine::{ObjectId, ObjectKind, Result, Store, SweepRound, SweepScope, Swept, Tallies};
use rayon::prelude::*;
use tracing::debug;

use crate::mark::{KeepAll, MarkStats, Marks, Retention};

/// A mark batch spans this many times the rows of a sweep batch, because few rows are nodes.
const MARK_BATCH_FACTOR: u64 = 4;
/// Index rows that a survey reads at once.
const SURVEY_PAGE_ROWS: usize = 8_192;
/// Parts of the index that a survey reads, and how many of them in parallel.
const SURVEY_PARTS: usize = 64;
const SURVEY_PARTS_AT_ONCE: usize = 4;
/// Operations that are trimmed from the log at once.
const TRIM_OPERATIONS: usize = 1_000;

/// Options of a collection.
#[derive(Clone, Copy)]
pub struct CollectOptions<'a> {
    /// Which snapshots of the history keep their trees.
    pub retention: &'a dyn Retention,
    /// Additional roots, beside the current references. A scope that excludes references is only for dry runs.
    pub scope: Option<&'a SweepScope>,
    /// Operations before this number are trimmed from the log, unless the scope needs them. See
    /// [`first_kept_operation`](crate::first_kept_operation).
    pub log_from: u64,
    /// Approximate memory of the marks. They take two bytes per object if that fits; with less, more garbage stays until a
    /// later collection.
    pub memory_bytes: usize,
    /// Find dead objects without deleting them.
    pub dry_run: bool,
    /// Free the disk space of deleted objects.
    pub reclaim: bool,
    /// Thread pool of mark and survey, which no caller waits for, so it may have a low priority; rayon's global pool if
    /// `None`. The sweep runs on the caller's thread, because writers may wait for it.
    pub readers: Option<&'a rayon::ThreadPool>,
    /// Upper limit of the speed.
    pub rate_limit: Option<RateLimit<'a>>,
    /// Index rows that are swept at once. A writer may wait for as long as that takes.
    pub sweep_batch_rows: usize,
}

impl Default for CollectOptions<'_> {
    fn default() -> Self {
        Self {
            retention: &KeepAll,
            scope: None,
            log_from: 0,
            memory_bytes: 224 << 20,
            dry_run: false,
            reclaim: true,
            readers: None,
            rate_limit: None,
            sweep_batch_rows: 2_048,
        }
    }
}

/// Rate limit. After each step the collection sleeps for the time that the step takes at this rate, so the actual rate is
/// lower.
#[derive(Clone, Copy)]
pub struct RateLimit<'a> {
    /// Rows read or deleted.
    pub objects_per_second: u64,
    /// Bytes rewritten.
    pub bytes_per_second: u64,
    /// Sleep function: the collector has no clock.
    pub sleep: &'a (dyn Fn(Duration) + Sync),
}

/// Phase of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Finds live objects. Counted in object numbers.
    Mark,
    /// Counts dead objects. Counted in parts of the index, of which there are 64.
    Survey,
    /// Deletes dead objects. Counted in index rows; the index is read twice.
    Sweep,
    /// Trims the operation log. Counted in operations.
    Trim,
    /// Frees disk space. Counted in bytes.
    Reclaim,
}

impl Stage {
    /// Returns the name of the stage, as progress and reports show it.
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

/// Progress of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Units of the stage that are done.
    pub done: u64,
    /// Units of the stage in total.
    pub total: u64,
    /// Objects deleted so far.
    pub deleted: u64,
}

/// Progress callback, called every few milliseconds. While it blocks, the collection is paused. A break cancels the
/// collection; the store stays consistent, and the next collection continues.
pub type ProgressFn<'a> = &'a mut (dyn FnMut(&Progress) -> ControlFlow<()> + Send);

/// Result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// The stage in which it was cancelled; `None` if it ran to its end.
    pub ended_in: Option<Stage>,
    /// Number of objects that references and pins name.
    pub roots: u64,
    /// Statistics of the mark phase.
    pub mark: MarkStats,
    /// Reachable objects.
    pub alive: Tallies,
    /// Unreachable objects that are old enough to be deleted.
    pub dead: Tallies,
    /// Unreachable objects that are too young: sessions that were open may need them.
    pub young: Tallies,
    /// Deleted objects.
    pub freed: Tallies,
    /// Operations trimmed from the log; in a dry run, those that would be.
    pub operations: u64,
    /// Freed disk space, if reclaiming was asked for.
    pub reclaimed: Option<Reclaimed>,
}

/// Deletes all objects that no reference and no pin reaches. Readers and writers may use the store meanwhile; a second
/// collection at the same time is refused.
///
/// Fails without deleting anything if the store is damaged: objects below an unreadable one would look dead.
pub fn collect(store: &Store, options: &CollectOptions<'_>, watch: ProgressFn<'_>) -> Result<CollectReport> {
    let round = store.begin_sweep_with(options.scope.cloned().unwrap_or_default())?;
    let mut collection = Collection { round, options, watch, done: CollectReport::default() };
    let ended = collection.run()?;
    collection.done.ended_in = ended;
    collection.done.freed = collection.round.freed().clone();
    Ok(collection.done)
}

/// Frees the disk space that earlier collections and crashes left unreclaimed, without marking or deleting anything.
pub fn reclaim(store: &Store, options: &CollectOptions<'_>, watch: ProgressFn<'_>) -> Result<CollectReport> {
    let mut round = store.begin_sweep()?;
    while let Swept::Some { .. } | Swept::Unmarked(_) = round.sweep_some(SURVEY_PAGE_ROWS, &|_| true)? {}
    let mut collection = Collection { round, options, watch, done: CollectReport::default() };
    let finished = collection.reclaim()?;
    collection.done.ended_in = (!finished).then_some(Stage::Reclaim);
    Ok(collection.done)
}

struct Collection<'a, 'w> {
    round: SweepRound,
    options: &'a CollectOptions<'a>,
    watch: ProgressFn<'w>,
    done: CollectReport,
}

impl Collection<'_, '_> {
    /// Runs all stages. Returns the stage in which it was cancelled, if any.
    fn run(&mut self) -> Result<Option<Stage>> {
        let batch_rows = (self.options.sweep_batch_rows as u64 * MARK_BATCH_FACTOR).max(1);
        let mut marks = Marks::new(&self.round, self.options.retention, self.options.memory_bytes, batch_rows)?;
        let readers = self.options.readers;
        if !run_on(readers, || self.mark(&mut marks))? {
            return Ok(Some(Stage::Mark));
        }
        if !run_on(readers, || self.survey(&mut marks))? {
            return Ok(Some(Stage::Survey));
        }
        self.done.mark = marks.stats();
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
            self.done.operations = self.round.operations_to_trim(self.options.log_from)?;
            return Ok(None);
        }
        if !self.sweep(&mut marks)? {
            return Ok(Some(Stage::Sweep));
        }
        self.done.mark = marks.stats();
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

    /// Marks everything that the roots reach, then everything that became a root meanwhile. Returns false if it was
    /// cancelled.
    fn mark(&mut self, marks: &mut Marks<'_>) -> Result<bool> {
        let roots = self.round.roots()?;
        self.done.roots = roots.len() as u64;
        let end = self.round.numbers_end();
        let (rate_limit, watch, mut read) = (self.options.rate_limit, &mut *self.watch, 0);
        let marked = marks.mark_all(&self.round, &roots, &mut |rows, numbers| {
            wait_after_objects(rate_limit, rows);
            // Snapshots and trees share one range of numbers, which is read once for each of the two families.
            read += numbers;
            watch(&Progress { stage: Stage::Mark, done: read, total: 2 * end, deleted: 0 }).is_continue()
        })?;
        if marked.is_none() {
            return Ok(false);
        }
        loop {
            let late = self.round.roots()?;
            if late.is_empty() {
                return Ok(true);
            }
            marks.mark_late_roots(&self.round, &late)?;
        }
    }

    /// Counts live and dead objects, and checks that every marked object is readable: objects below an unreadable one must not
    /// be deleted.
    fn survey(&mut self, marks: &mut Marks<'_>) -> Result<bool> {
        // A page is about as long as a part, so that few rows are read twice.
        let in_a_part = self.round.objects_estimate()? as usize / SURVEY_PARTS;
        let sweep_batch_rows = (in_a_part + in_a_part / 8).clamp(64, SURVEY_PAGE_ROWS);
        let parts: Vec<_> = (0..SURVEY_PARTS).collect();
        for (at, some) in (0..).step_by(SURVEY_PARTS_AT_ONCE).zip(parts.chunks(SURVEY_PARTS_AT_ONCE)) {
            let progress = Progress { stage: Stage::Survey, done: at, total: SURVEY_PARTS as u64, deleted: 0 };
            if (self.watch)(&progress).is_break() {
                return Ok(false);
            }
            let round = &self.round;
            let counted: Result<Vec<SurveyCounts>> =
                some.par_iter().map(|part| count_part(round, &*marks, *part, sweep_batch_rows)).collect();
            for counted in counted? {
                wait_after_objects(self.options.rate_limit, counted.rows);
                self.done.alive.merge(&counted.alive);
                self.done.dead.merge(&counted.dead);
                self.done.young.merge(&counted.young);
                for row in counted.doubtful {
                    marks.recheck(&self.round, row.id)?;
                    self.done.alive.add(row.id.kind, row.stored_bytes);
                }
            }
        }
        Ok(true)
    }

    /// Deletes unmarked objects that are old enough. Returns false if it was cancelled.
    fn sweep(&mut self, marks: &mut Marks<'_>) -> Result<bool> {
        let total = 2 * (self.done.alive.total().objects + self.done.dead.total().objects);
        let mut seen = 0;
        loop {
            match self.round.sweep_some(self.options.sweep_batch_rows.max(1), &|row| marks.keeps(row))? {
                Swept::Done { .. } => return Ok(true),
                Swept::Unmarked(late) => marks.mark_late_roots(&self.round, &late)?,
                Swept::Some { rows } => {
                    seen += rows;
                    wait_after_objects(self.options.rate_limit, rows);
                    let deleted = self.round.freed().total().objects;
                    let progress = Progress { stage: Stage::Sweep, done: seen, total: total.max(seen), deleted };
                    if (self.watch)(&progress).is_break() {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Trims the operation log. Returns false if it was cancelled.
    fn trim(&mut self) -> Result<bool> {
        let from = self.options.log_from;
        let total = self.round.operations_to_trim(from)?;
        while self.done.operations < total {
            self.round.trim_operations(from, TRIM_OPERATIONS)?;
            let left = self.round.operations_to_trim(from)?;
            wait_after_objects(self.options.rate_limit, (total - left).saturating_sub(self.done.operations));
            self.done.operations = total - left;
            let deleted = self.round.freed().total().objects;
            let progress = Progress { stage: Stage::Trim, done: self.done.operations, total, deleted };
            if (self.watch)(&progress).is_break() {
                return Ok(left == 0);
            }
        }
        Ok(true)
    }

    /// Frees the disk space of deleted objects. Returns false if it was cancelled.
    fn reclaim(&mut self) -> Result<bool> {
        let (rate_limit, watch) = (self.options.rate_limit, &mut *self.watch);
        let deleted = self.round.freed().total().objects;
        let reclaimed = self.round.reclaim(&mut |at| {
            if let Some(rate_limit) = rate_limit {
                wait(rate_limit, at.step_bytes, rate_limit.bytes_per_second);
            }
            watch(&Progress { stage: Stage::Reclaim, done: at.bytes_done, total: at.bytes_total, deleted })
        })?;
        debug!(finished = reclaimed.finished, "reclaimed");
        self.done.reclaimed = Some(reclaimed);
        Ok(reclaimed.finished)
    }
}

/// Runs a closure on this thread pool, or on the current thread.
fn run_on<T: Send>(readers: Option<&rayon::ThreadPool>, does: impl FnOnce() -> T + Send) -> T {
    match readers {
        Some(readers) => readers.install(does),
        None => does(),
    }
}

#[derive(Default)]
struct SurveyCounts {
    rows: u64,
    alive: Tallies,
    dead: Tallies,
    young: Tallies,
    doubtful: Vec<IndexRow>,
}

/// Counts one part of the index.
fn count_part(round: &SweepRound, marks: &Marks<'_>, part: usize, sweep_batch_rows: usize) -> Result<SurveyCounts> {
    let width = 256 / SURVEY_PARTS;
    let mut after = (part > 0).then(|| {
        let mut hash = [0xff; 32];
        hash[0] = (part * width - 1) as u8;
        ObjectId { kind: ObjectKind::Chunk, hash }
    });
    let mut counted = SurveyCounts::default();
    loop {
        let page = round.scan(after, sweep_batch_rows)?;
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

fn wait_after_objects(rate_limit: Option<RateLimit<'_>>, objects: u64) {
    if let Some(rate_limit) = rate_limit {
        wait(rate_limit, objects, rate_limit.objects_per_second);
    }
}

fn wait(rate_limit: RateLimit<'_>, done: u64, per_second: u64) {
    if done > 0 && per_second > 0 {
        (rate_limit.sleep)(Duration::from_secs_f64(done as f64 / per_second as f64));
    }
}
