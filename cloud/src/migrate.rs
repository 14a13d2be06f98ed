//! Moves whole stores between the backend of one process and the one of many nodes: objects, references, the operation log with its
//! numbers, requests and tombstones. The source is only read. A migration that was interrupted is started again and copies the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amalgam_engine::backend::rows::RefRow;
use amalgam_engine::backend::{
    Backend as _, Epoch, Family, Held, Holder, IndexRow, Inspect, PageEnd, RowEdit, StoredObject,
};
use amalgam_engine::reference::{Operation, RequestId};
use amalgam_engine::{Error, Result};
use bytes::Bytes;

use crate::identity::{Identity, signed};
use crate::node::Cloud;

/// Bytes and number of objects that are copied at once.
const BATCH_BYTES_MAX: u64 = 64 << 20;
const BATCH_OBJECTS_MAX: usize = 32_768;
/// Bytes of rows that are read at once.
const PAGE_BYTES: usize = 4 << 20;
const SCAN_ROWS: usize = 4_096;
/// Time that PostgreSQL takes to store all references at once.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The result of a migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Objects of the source.
    pub objects: u64,
    /// Objects that the target did not have.
    pub copied: u64,
    /// The stored bytes of these.
    pub copied_bytes: u64,
    /// References.
    pub references: u64,
    /// Operations in the log.
    pub operations: u64,
}

/// Callback that receives the number of objects that are done, and of all.
pub type WatchMigration<'a> = dyn FnMut(u64, u64) + 'a;

/// Copies a store into an empty project of a cluster.
///
/// # Errors
/// The project has operations already, or one of the stores cannot be read or written.
pub fn migrate_to_cloud(source: &dyn Inspect, target: &Cloud, watch: &mut WatchMigration<'_>) -> Result<Migrated> {
    target.refuse_operations()?;
    // Nothing refers to the objects until the end: until then they belong to a session.
    let importing = Arc::new(Importing { epoch: target.epoch(), is_over: AtomicBool::new(false) });
    target.share_holds(Arc::clone(&importing) as Arc<dyn Holder>);
    let _until_the_end = EndImport(&importing);
    let mut migrated = copy_objects(source, target, watch)?;
    copy_marks(source, target)?;
    migrated.operations = target.import_operations(source)?;
    target.import_requests(source)?;
    migrated.references = target.finish_import(source)?;
    Ok(migrated)
}

/// Copies a project of a cluster into an empty store.
///
/// # Errors
/// The store has references already, or one of the stores cannot be read or written.
pub fn migrate_from_cloud(source: &Cloud, target: &dyn Inspect, watch: &mut WatchMigration<'_>) -> Result<Migrated> {
    if !target.list_refs("", None, 1)?.is_empty() {
        return Err(not_empty());
    }
    let mut migrated = copy_objects(source, target, watch)?;
    copy_marks(source, target)?;
    let copy = |family: Family| -> Result<u64> {
        let mut count = 0;
        each_page(source, family, &mut |rows| {
            count += rows.len() as u64;
            target.edit(rows.into_iter().map(|(key, value)| RowEdit { family, key, value: Some(value) }).collect())
        })?;
        Ok(count)
    };
    migrated.operations = copy(Family::Operations)?;
    copy(Family::Requests)?;
    // Last: with references the store is complete.
    migrated.references = copy(Family::Refs)?;
    Ok(migrated)
}

/// The session of an import.
struct Importing {
    epoch: Epoch,
    is_over: AtomicBool,
}

impl Holder for Importing {
    fn held(&self) -> Option<Held> {
        let is_over = self.is_over.load(Ordering::SeqCst);
        (!is_over).then(|| Held { oldest: Some(self.epoch), pins: Vec::new() })
    }
}

/// Ends the session of an import when it is dropped.
struct EndImport<'a>(&'a Importing);

impl Drop for EndImport<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

fn not_empty() -> Error {
    let why = "it has a history of its own; name a project or a directory without one".to_owned();
    Error::Invalid { what: "target of a migration", why }
}

/// Copies the objects that the target does not have, in write order: an object comes before those that refer to it.
fn copy_objects(source: &dyn Inspect, target: &dyn Inspect, watch: &mut WatchMigration<'_>) -> Result<Migrated> {
    let mut rows: Vec<IndexRow> = Vec::new();
    loop {
        let page = source.scan(rows.last().map(|row| row.id), SCAN_ROWS)?;
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    rows.sort_unstable_by_key(|row| row.number);
    let mut migrated = Migrated { objects: rows.len() as u64, ..Migrated::default() };
    let epoch = target.epoch();
    let mut done = 0;
    while done < rows.len() {
        let mut bytes = 0;
        let fits = |row: &&IndexRow| {
            bytes += row.stored_bytes;
            bytes <= BATCH_BYTES_MAX || bytes == row.stored_bytes
        };
        let count = rows[done..].iter().take(BATCH_OBJECTS_MAX).take_while(fits).count();
        let ids: Vec<_> = rows[done..done + count].iter().map(|row| row.id).collect();
        let present = target.contains_many(&ids, epoch)?;
        let missing: Vec<_> =
            ids.into_iter().zip(present).filter(|(_, is_there)| !is_there).map(|(id, _)| id).collect();
        let mut objects = Vec::with_capacity(missing.len());
        for (id, bytes) in missing.iter().zip(source.get_many(&missing)?) {
            let bytes = bytes.ok_or(Error::Missing { id: *id })?;
            migrated.copied += 1;
            migrated.copied_bytes += bytes.len() as u64;
            objects.push(StoredObject { id: *id, bytes });
        }
        target.put_ahead(objects)?;
        done += count;
        watch(done as u64, migrated.objects);
    }
    Ok(migrated)
}

/// Copies tombstones and quarantined rows.
fn copy_marks(source: &dyn Inspect, target: &dyn Inspect) -> Result<()> {
    for family in [Family::Tombstones, Family::Quarantine] {
        each_page(source, family, &mut |rows| {
            target.edit(rows.into_iter().map(|(key, value)| RowEdit { family, key, value: Some(value) }).collect())
        })?;
    }
    Ok(())
}

/// Calls a function with the rows of a family, page by page.
fn each_page(
    source: &dyn Inspect,
    family: Family,
    take: &mut dyn FnMut(Vec<(Bytes, Bytes)>) -> Result<()>,
) -> Result<()> {
    let mut from = Vec::new();
    loop {
        let page = source.rows(family, &from, None, PAGE_BYTES)?;
        if let PageEnd::Damaged { why } = &page.end {
            let what = format!("rows of {}", family.name());
            return Err(Error::DamagedRecord { what, why: why.clone() });
        }
        let Some((last, _)) = page.rows.last() else { return Ok(()) };
        from = [&last[..], &[0]].concat();
        take(page.rows)?;
        if page.end == PageEnd::Range {
            return Ok(());
        }
    }
}

fn operation_number(key: &[u8]) -> Result<u64> {
    let number = key.try_into().map(u64::from_be_bytes);
    number.map_err(|_| Error::DamagedRecord { what: "operation".to_owned(), why: "its key is no number".to_owned() })
}

impl Cloud {
    fn refuse_operations(&self) -> Result<()> {
        match self.log_range()?.1 {
            0 => Ok(()),
            _ => Err(not_empty()),
        }
    }

    fn import_operations(&self, source: &dyn Inspect) -> Result<u64> {
        let Identity { project, node, generation } = self.identity;
        let mut count = 0;
        each_page(source, Family::Operations, &mut |rows| {
            let (mut numbers, mut records, mut previous) = (Vec::new(), Vec::new(), Vec::new());
            for (key, value) in rows {
                let number = operation_number(&key)?;
                let malformed = |why: amalgam_engine::Malformed| Error::DamagedRecord {
                    what: format!("operation {number}"),
                    why: why.to_string(),
                };
                let operation = Operation::decode(number, value.clone()).map_err(malformed)?;
                let moves: Vec<_> = operation.changes.iter().map(|change| change.previous.to_string()).collect();
                numbers.push(signed(number));
                records.push(value.to_vec());
                previous.push(format!("{{{}}}", moves.join(",")));
            }
            count += numbers.len() as u64;
            self.database.call("import operations", async |connection| {
                let query = sqlx::query("SELECT import_operations($1, $2, $3, $4, $5, $6)");
                let query = query.bind(project).bind(&node[..]).bind(generation);
                let query = query.bind(&numbers[..]).bind(&records[..]).bind(&previous[..]);
                query.execute(connection).await.map(drop)
            })
        })?;
        Ok(count)
    }

    fn import_requests(&self, source: &dyn Inspect) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        each_page(source, Family::Requests, &mut |rows| {
            let (mut scopes, mut requests, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
            for (key, value) in rows {
                let request = RequestId::new(&key)
                    .map_err(|why| Error::DamagedRecord { what: "request".to_owned(), why: why.to_string() })?;
                scopes.push(request.scope().to_vec());
                requests.push(key.to_vec());
                numbers.push(signed(operation_number(&value)?));
            }
            self.database.call("import requests", async |connection| {
                let query = sqlx::query("SELECT import_requests($1, $2, $3, $4, $5, $6)");
                let query = query.bind(project).bind(&node[..]).bind(generation);
                let query = query.bind(&scopes[..]).bind(&requests[..]).bind(&numbers[..]);
                query.execute(connection).await.map(drop)
            })
        })
    }

    fn finish_import(&self, source: &dyn Inspect) -> Result<u64> {
        let Identity { project, node, generation } = self.identity;
        let (mut names, mut values, mut moves) = (Vec::new(), Vec::new(), Vec::new());
        each_page(source, Family::Refs, &mut |rows| {
            for (key, value) in rows {
                let row = RefRow::decode(value)?;
                names.push(String::from_utf8_lossy(&key).into_owned());
                values.push(row.value.encode());
                moves.push(signed(row.operation));
            }
            Ok(())
        })?;
        let (first, last) = (source.first_operation()?, source.last_operation()?);
        let database = self.database.with_answer_timeout(IMPORT_TIMEOUT);
        database.call("finish an import", async |connection| {
            let query = sqlx::query("SELECT finish_import($1, $2, $3, $4, $5, $6, $7, $8)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(signed(first)).bind(signed(last + 1));
            let query = query.bind(&names[..]).bind(&values[..]).bind(&moves[..]);
            query.execute(connection).await.map(drop)
        })?;
        Ok(names.len() as u64)
    }
}
