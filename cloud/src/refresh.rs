//! Brings the index of a node up to date with the changes that PostgreSQL has numbered since.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::Result;
use amalgam_engine::backend::rows::damaged;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::bucket::fault;
use crate::identity::{signed, unsigned};
use crate::index::Pack;
use crate::node::Node;
use crate::pack::{PackId, read_footer};

const ACTION: &str = "read the index";
/// Number of footers that are read concurrently.
const FOOTERS_MAX: usize = 10;
/// Number of attempts to read a footer that is damaged or missing.
const FOOTER_ATTEMPTS_MAX: usize = 3;
/// Delay before packs whose footers could not be read are read again.
const BROKEN_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The changes after the one that is bound, and the head of the project, in one snapshot. The first column is the kind of the row.
const CHANGES: &str = "
SELECT 0, next_change, epoch, next_operation, forgotten_change, NULL::bytea, NULL::bytea, NULL::int[], false
  FROM projects WHERE project = $1
UNION ALL SELECT 1, first_number, epoch, bytes, footer_bytes, id, footer, NULL, state = 'l'
  FROM packs WHERE project = $1 AND change > $2
UNION ALL SELECT 2, pack, 0, 0, 0, NULL, NULL, slots, false FROM graves WHERE project = $1 AND change > $2
UNION ALL SELECT 3, change, 0, 0, 0, key, value, NULL, false
  FROM marks WHERE project = $1 AND family = 't' AND change > $2";

/// Packs by their first numbers, and the deletions in them, with the columns of the query above.
const PACKS: &str = "
SELECT 1, first_number, epoch, bytes, footer_bytes::bigint, id, footer, NULL::int[], state = 'l'
  FROM packs WHERE project = $1 AND first_number = ANY ($2)
UNION ALL SELECT 2, pack, 0, 0, 0, NULL, NULL, slots, false FROM graves WHERE project = $1 AND pack = ANY ($2)";

/// The head of a project.
struct Head {
    last_change: u64,
    epoch: i64,
    last_operation: u64,
    /// The newest change of a pack whose row is gone.
    forgotten_change: u64,
}

/// A tombstone that was set, or removed.
struct MarkRow {
    change: u64,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// Rows of the query above.
struct Changes {
    head: Head,
    packs: Vec<PackRow>,
    /// Numbers of packs, and the slots in them whose objects were deleted.
    graves: Vec<(u64, Vec<i32>)>,
    marks: Vec<MarkRow>,
}

/// A row of a pack.
struct PackRow {
    first: u64,
    id: PackId,
    is_live: bool,
    bytes: u64,
    footer_bytes: u64,
    footer: Option<Vec<u8>>,
    epoch: u64,
}

impl PackRow {
    fn read(row: &PgRow) -> Result<Self> {
        let id: Vec<u8> = row.get(5);
        Ok(Self {
            first: unsigned(row.get(1)),
            id: id.try_into().map_err(|_| damaged("list of packs", &"a name of the wrong length"))?,
            is_live: row.get(8),
            bytes: unsigned(row.get(3)),
            footer_bytes: unsigned(row.get(4)),
            footer: row.get(6),
            epoch: unsigned(row.get(2)),
        })
    }
}

impl Changes {
    fn read(rows: &[PgRow]) -> Result<Self> {
        let (mut head, mut packs, mut graves, mut marks) = (None, Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            match row.get::<i32, _>(0) {
                0 => {
                    head = Some(Head {
                        last_change: unsigned(row.get::<i64, _>(1) - 1),
                        epoch: row.get(2),
                        last_operation: unsigned(row.get::<i64, _>(3) - 1),
                        forgotten_change: unsigned(row.get(4)),
                    });
                }
                1 => packs.push(PackRow::read(row)?),
                2 => graves.push((unsigned(row.get(1)), row.get(7))),
                _ => marks.push(MarkRow { change: unsigned(row.get(1)), key: row.get(5), value: row.get(6) }),
            }
        }
        let head = head.ok_or_else(|| damaged("list of projects", &"the project is missing"))?;
        packs.sort_unstable_by_key(|pack| pack.first);
        Ok(Self { head, packs, graves, marks })
    }
}

impl Node {
    /// Refreshes the index if there are changes that it lacks. `next_change` was read together with data that may depend on them.
    pub(crate) fn refresh_until(&self, next_change: i64) -> Result<()> {
        if unsigned(next_change) > self.index.read().seen() + 1 { self.refresh() } else { Ok(()) }
    }

    /// Reads all changes so far into the index, and packs that could not be read before.
    pub(crate) fn refresh(&self) -> Result<()> {
        let mut last_retry = self.refreshing.lock();
        self.refresh_alone()?;
        let broken = self.index.read().broken_packs();
        if !broken.is_empty() && last_retry.is_none_or(|last| last.elapsed() >= BROKEN_RETRY_DELAY) {
            self.reload(&broken)?;
            *last_retry = Some(Instant::now());
        }
        Ok(())
    }

    /// Reads packs again whose footers could not be read, and the deletions in them.
    fn reload(&self, broken: &[u64]) -> Result<()> {
        let numbers: Vec<_> = broken.iter().map(|first| signed(*first)).collect();
        let rows = self.database.call(ACTION, async |connection| {
            sqlx::query(PACKS).bind(self.identity.project).bind(&numbers[..]).fetch_all(connection).await
        })?;
        let (mut packs, mut graves) = (Vec::new(), Vec::new());
        for row in &rows {
            match row.get::<i32, _>(0) {
                1 => packs.push(PackRow::read(row)?),
                _ => graves.push((unsigned(row.get(1)), row.get::<Vec<i32>, _>(7))),
            }
        }
        packs.retain(|pack| pack.is_live);
        let read = self.load(packs)?;
        let mut index = self.index.write();
        for (first, pack) in read {
            match pack {
                Ok(pack) => {
                    tracing::info!(first, "a pack can be read again");
                    index.add(pack);
                }
                Err(error) => index.add_broken(first, error),
            }
        }
        for (pack, slots) in graves {
            index.bury(pack, slots.into_iter().map(i32::unsigned_abs));
        }
        Ok(())
    }

    fn refresh_alone(&self) -> Result<()> {
        let seen = self.index.read().seen();
        let rows = self.database.call(ACTION, async |connection| {
            sqlx::query(CHANGES).bind(self.identity.project).bind(signed(seen)).fetch_all(connection).await
        })?;
        let Changes { head, packs, graves, marks } = Changes::read(&rows)?;
        self.note_epoch(head.epoch);
        self.pulse.note_operation(head.last_operation);
        if head.last_change <= seen {
            return Ok(());
        }
        let gone = if head.forgotten_change > seen { self.forgotten_packs(seen)? } else { Vec::new() };
        if let Some(purge) = marks.iter().map(|mark| mark.change).max() {
            self.fetcher.follow_purge(purge)?;
        }
        let (live, doomed): (Vec<_>, Vec<_>) = packs.into_iter().partition(|pack| pack.is_live);
        let live = self.load(live)?;
        let mut index = self.index.write();
        for (first, pack) in live {
            match pack {
                Ok(pack) => index.add(pack),
                Err(error) => {
                    tracing::error!(%error, "a pack cannot be read");
                    index.add_broken(first, error);
                }
            }
        }
        doomed.iter().for_each(|pack| index.doom(pack.first));
        gone.into_iter().for_each(|first| index.doom(first));
        for (pack, slots) in graves {
            index.bury(pack, slots.into_iter().map(i32::unsigned_abs));
        }
        for mark in marks {
            index.set_tombstone(mark.key, mark.value.map(Bytes::from));
        }
        index.note_all(head.last_change);
        Ok(())
    }

    /// Returns the packs of the index whose rows were deleted before this node had seen that they were doomed.
    fn forgotten_packs(&self, seen: u64) -> Result<Vec<u64>> {
        // An empty index has nothing to lose.
        if seen == 0 {
            return Ok(Vec::new());
        }
        // Before the query: a pack that this node registers meanwhile is not in its result.
        let known: Vec<u64> = self.index.read().packs_from(0).map(|pack| pack.first).collect();
        let rows: Vec<i64> = self.database.call(ACTION, async |connection| {
            let query = sqlx::query_scalar("SELECT first_number FROM packs WHERE project = $1");
            query.bind(self.identity.project).fetch_all(connection).await
        })?;
        let left: HashSet<u64> = rows.into_iter().map(unsigned).collect();
        Ok(known.into_iter().filter(|first| !left.contains(first)).collect())
    }

    async fn stored_footer(&self, row: &PackRow) -> Result<Option<Bytes>> {
        let range = row.bytes.saturating_sub(row.footer_bytes)..row.bytes;
        self.bucket.get(&row.id, range).await.map_err(|source| fault("read a pack", &source))
    }

    /// Reads a footer, again if it is damaged or missing: it may have been damaged on the way, or the S3 store does not know the pack yet.
    /// A pack without its footer counts as broken until a later look at it.
    async fn whole_footer(&self, row: &PackRow, name: &str) -> Result<Option<Bytes>> {
        let mut attempts = 0;
        loop {
            let footer = self.stored_footer(row).await?;
            attempts += 1;
            if let Some(footer) = footer.as_ref().filter(|footer| read_footer(name, &row.id, footer).is_ok()) {
                self.fetcher.keep_footer(&row.id, footer);
                return Ok(Some(footer.clone()));
            }
            if attempts == FOOTER_ATTEMPTS_MAX {
                return Ok(footer);
            }
        }
    }

    /// Reads the footers of packs that are not in the index. A damaged or missing one does not keep the others from being used.
    fn load(&self, rows: Vec<PackRow>) -> Result<Vec<(u64, Result<Arc<Pack>>)>> {
        let rows: Vec<_> = {
            let index = self.index.read();
            rows.into_iter().filter(|row| index.at(row.first).is_none()).collect()
        };
        let read = |row: PackRow| async move {
            let name = self.bucket.name(&row.id);
            let footer = match &row.footer {
                Some(footer) => Some(Bytes::copy_from_slice(footer)),
                None => match self
                    .fetcher
                    .cached_footer(&row.id)
                    .filter(|footer| read_footer(&name, &row.id, footer).is_ok())
                {
                    Some(footer) => Some(footer),
                    None => self.whole_footer(&row, &name).await?,
                },
            };
            let PackRow { first, id, bytes, epoch, footer: inline, .. } = row;
            let footer = footer.ok_or_else(|| damaged(&format!("pack {name}"), &"it is missing"));
            let slots = footer.and_then(|footer| read_footer(&name, &id, &footer));
            let pack =
                slots.map(|slots| Arc::new(Pack { id, first, epoch, is_inline: inline.is_some(), bytes, slots }));
            Ok((first, pack))
        };
        let read = stream::iter(rows).map(read).buffered(FOOTERS_MAX).collect::<Vec<Result<_>>>();
        self.database.wait(read).into_iter().collect()
    }

    /// Adds a pack that this node registered.
    pub(crate) fn add_own(&self, pack: Pack, change: u64) {
        self.index.write().add_own(Arc::new(pack), change);
    }

    /// Returns the live slots of packs, by the index.
    pub(crate) fn live_slots(&self, packs: &[Arc<Pack>]) -> BTreeMap<u64, Vec<u32>> {
        let index = self.index.read();
        let live = |pack: &Arc<Pack>| {
            let named = (0..).zip(&pack.slots).filter(|(at, slot)| {
                index.find(slot.id).is_some_and(|found| found.number() == pack.first + u64::from(*at))
            });
            (pack.first, named.map(|(at, _)| at).collect())
        };
        packs.iter().map(live).collect()
    }
}
