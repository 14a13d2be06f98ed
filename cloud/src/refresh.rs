//! Brings the index of a node up to date with the changes that PostgreSQL has numbered since.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

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
        let id: Vec<u8> = row.get(1);
        Ok(Self {
            first: unsigned(row.get(0)),
            id: id.try_into().map_err(|_| damaged("list of packs", &"a name of the wrong length"))?,
            is_live: row.get(2),
            bytes: unsigned(row.get(3)),
            footer_bytes: u64::from(row.get::<i32, _>(4).unsigned_abs()),
            footer: row.get(5),
            epoch: unsigned(row.get(6)),
        })
    }
}

impl Node {
    /// Refreshes the index if there are changes that it lacks. `next_change` was read together with data that may depend on them.
    pub(crate) fn refresh_until(&self, next_change: i64) -> Result<()> {
        if unsigned(next_change) > self.index.read().seen() + 1 { self.refresh() } else { Ok(()) }
    }

    /// Reads all changes so far into the index.
    pub(crate) fn refresh(&self) -> Result<()> {
        let _alone = self.refreshing.lock();
        let project = self.identity.project;
        let pool = &self.database.pool;
        let head = self.database.call(ACTION, || async {
            let query = sqlx::query("SELECT next_change, epoch, next_operation FROM projects WHERE project = $1");
            query.bind(project).fetch_one(pool).await
        })?;
        let last_change = unsigned(head.get::<i64, _>(0)) - 1;
        self.note_epoch(head.get(1));
        self.pulse.note_operation(unsigned(head.get::<i64, _>(2)) - 1);
        let seen = self.index.read().seen();
        if last_change <= seen {
            return Ok(());
        }
        // Everything up to `last_change` is committed, so that these queries find it.
        let packs = self.database.call(ACTION, || async {
            let query = sqlx::query(
                "SELECT first_number, id, state = 'l', bytes, footer_bytes, footer, epoch FROM packs
                 WHERE project = $1 AND change > $2 ORDER BY first_number",
            );
            query.bind(project).bind(signed(seen)).fetch_all(pool).await
        })?;
        let packs: Vec<_> = packs.iter().map(PackRow::read).collect::<Result<_>>()?;
        let graves = self.database.call(ACTION, || async {
            let query = sqlx::query("SELECT pack, slots FROM graves WHERE project = $1 AND change > $2");
            query.bind(project).bind(signed(seen)).fetch_all(pool).await
        })?;
        let marks = self.database.call(ACTION, || async {
            let query =
                sqlx::query("SELECT key, value, change FROM marks WHERE project = $1 AND family = 't' AND change > $2");
            query.bind(project).bind(signed(seen)).fetch_all(pool).await
        })?;
        // Read last: a row that was forgotten before is counted, and one that is forgotten later was read above.
        let gone = self.forgotten_packs(seen)?;
        if let Some(purge) = marks.iter().map(|row| unsigned(row.get(2))).max() {
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
        for row in graves {
            let slots: Vec<i32> = row.get(1);
            index.bury(unsigned(row.get(0)), slots.into_iter().map(i32::unsigned_abs));
        }
        for row in marks {
            index.set_tombstone(row.get(0), row.get::<Option<Vec<u8>>, _>(1).map(Bytes::from));
        }
        index.note_all(last_change);
        Ok(())
    }

    /// Returns the packs of the index whose rows were deleted before this node had seen that they were doomed.
    fn forgotten_packs(&self, seen: u64) -> Result<Vec<u64>> {
        let project = self.identity.project;
        let forgotten: i64 = self.database.call(ACTION, || async {
            let query = sqlx::query_scalar("SELECT forgotten_change FROM projects WHERE project = $1");
            query.bind(project).fetch_one(&self.database.pool).await
        })?;
        // An empty index has nothing to lose.
        if unsigned(forgotten) <= seen || seen == 0 {
            return Ok(Vec::new());
        }
        // Before the query: a pack that this node registers meanwhile is not in its result.
        let known: Vec<u64> = self.index.read().packs_from(0).map(|pack| pack.first).collect();
        let rows: Vec<i64> = self.database.call(ACTION, || async {
            let query = sqlx::query_scalar("SELECT first_number FROM packs WHERE project = $1");
            query.bind(project).fetch_all(&self.database.pool).await
        })?;
        let left: HashSet<u64> = rows.into_iter().map(unsigned).collect();
        Ok(known.into_iter().filter(|first| !left.contains(first)).collect())
    }

    async fn stored_footer(&self, row: &PackRow) -> Result<Option<Bytes>> {
        let range = row.bytes.saturating_sub(row.footer_bytes)..row.bytes;
        self.bucket.get(&row.id, range).await.map_err(|source| fault("read a pack", &source))
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
                None => match self.fetcher.cached_footer(&row.id).filter(|footer| read_footer(&name, footer).is_ok()) {
                    Some(footer) => Some(footer),
                    None => {
                        let read = self.stored_footer(&row).await?;
                        read.iter().for_each(|footer| self.fetcher.keep_footer(&row.id, footer));
                        read
                    }
                },
            };
            let PackRow { first, id, bytes, epoch, footer: inline, .. } = row;
            let footer = footer.ok_or_else(|| damaged(&format!("pack {name}"), &"it is missing"));
            let slots = footer.and_then(|footer| read_footer(&name, &footer));
            let pack =
                slots.map(|slots| Arc::new(Pack { id, first, epoch, is_inline: inline.is_some(), bytes, slots }));
            Ok((first, pack))
        };
        let read = stream::iter(rows).map(read).buffered(FOOTERS_MAX).collect::<Vec<Result<_>>>();
        self.database.wait(read).into_iter().collect()
    }

    /// Adds a pack that this node registered.
    pub(crate) fn add_own(&self, pack: Pack, change: u64) {
        let mut index = self.index.write();
        index.add(Arc::new(pack));
        index.note(change);
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
