//! Commits: transactions of this node that wait at the same time travel in one call of PostgreSQL's function `transact`.
//!
//! A batch has a number. When its answer is lost it is sent again with the same number, and the function returns the reply of the first
//! execution: nothing is done twice, whether or not the caller gave a request id.

use std::sync::atomic::Ordering;

use amalgam_engine::backend::rows::damaged;
use amalgam_engine::backend::{Committed, Durability, StoredObject, Transaction};
use amalgam_engine::reference::{Operation, RefChange, RefName, RefValue};
use amalgam_engine::{Error, Result};
use bytes::Bytes;
use serde_json::Value;

use crate::identity::{Identity, signed, unsigned};
use crate::index::Pack;
use crate::node::Node;
use crate::prepared::Prepared;
use crate::upload::{NamedPack, divide};

/// A batch of up to this many transactions, references and packs is executed by statements for single rows. The statements for a larger
/// one are for all of its rows, and take longer to start.
const SMALL_BATCH_ROWS_MAX: usize = 8;

/// The function for small batches, and for those in which two transactions concern one reference.
const TRANSACT_IN_ORDER: &str = "SELECT transact_in_order($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, \
     $18, $19, $20, $21)";
const TRANSACT: &str =
    "SELECT transact($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)";

/// The arguments of the function, one array for each column.
#[derive(Default)]
struct Columns {
    scopes: Vec<Option<Vec<u8>>>,
    requests: Vec<Option<Vec<u8>>>,
    records: Vec<Option<Vec<u8>>>,
    ref_transaction: Vec<i32>,
    ref_name: Vec<String>,
    ref_old: Vec<Option<Vec<u8>>>,
    ref_set: Vec<i32>,
    ref_new: Vec<Option<Vec<u8>>>,
}

/// The columns of packs.
#[derive(Default)]
pub(crate) struct PackColumns<'a> {
    transaction: Vec<i32>,
    pub(crate) id: Vec<&'a [u8]>,
    pub(crate) objects: Vec<i32>,
    pub(crate) bytes: Vec<i64>,
    pub(crate) footer_bytes: Vec<i32>,
    footer: Vec<Option<&'a [u8]>>,
    body: Vec<Option<&'a [u8]>>,
    packs: Vec<&'a NamedPack>,
}

impl<'a> PackColumns<'a> {
    pub(crate) fn add(&mut self, transaction: usize, pack: &'a NamedPack) {
        self.transaction.push(count(transaction));
        self.id.push(&pack.id);
        self.objects.push(count(pack.pack.slots.len()));
        self.bytes.push(signed(pack.bytes()));
        self.footer_bytes.push(count(pack.pack.footer.len()));
        self.footer.push(pack.is_inline.then_some(&pack.pack.footer[..]));
        self.body.push(pack.is_inline.then_some(&pack.pack.body[..]));
        self.packs.push(pack);
    }

    pub(crate) fn of(packs: &'a [NamedPack]) -> Self {
        let mut columns = Self::default();
        packs.iter().for_each(|pack| columns.add(0, pack));
        columns
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Node {
    /// Writes the large objects of a transaction to the bucket, then commits it together with others.
    pub(crate) fn commit(&self, transaction: Transaction) -> Result<Committed> {
        transaction.check()?;
        self.refuse_if_expelled("commit")?;
        let Transaction { objects, expect, set, operation, durability } = transaction;
        let (stored, inline) = self.store_objects(objects)?;
        let prepared = Prepared { stored, inline, expect, set, operation, durability };
        self.commits.submit(prepared, |group| self.commit_group(group))
    }

    /// Puts objects into the bucket. Returns their packs, and one of those objects that travel with the call.
    fn store_objects(&self, objects: Vec<StoredObject>) -> Result<(Vec<NamedPack>, Option<NamedPack>)> {
        let (stored, inline) = divide(objects, self.options.inline_bytes_max);
        let stored = if stored.is_empty() { Vec::new() } else { self.uploader.put(stored)? };
        let inline = if inline.is_empty() { None } else { Some(NamedPack::inline(&inline)?) };
        Ok((stored, inline))
    }

    /// Registers objects ahead of their transaction.
    pub(crate) fn put_objects(&self, objects: Vec<StoredObject>) -> Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        self.refuse_if_expelled("register packs")?;
        let (mut packs, inline) = self.store_objects(objects)?;
        packs.extend(inline);
        let columns = PackColumns::of(&packs);
        let Identity { project, node, generation } = self.identity;
        let reply: Result<String> = self.database.call("register packs", async |connection| {
            let query = sqlx::query_scalar("SELECT register_packs($1, $2, $3, $4, $5, $6, $7, $8, $9)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(&columns.id[..]);
            let query = query.bind(&columns.objects[..]).bind(&columns.bytes[..]).bind(&columns.footer_bytes[..]);
            query.bind(&columns.footer[..]).bind(&columns.body[..]).fetch_one(connection).await
        });
        let reply = reply.inspect_err(|_| self.uploader.give_up(&packs))?;
        self.note_registered(&packs, &reply)
    }

    /// Adds registered packs to the index. The reply lists first number, epoch and change of each.
    pub(crate) fn note_registered(&self, packs: &[NamedPack], reply: &str) -> Result<()> {
        let reply = parse(reply)?;
        for (at, pack) in packs.iter().enumerate() {
            self.add_registered(pack, &reply[at], 0)?;
        }
        Ok(())
    }

    fn add_registered(&self, pack: &NamedPack, row: &Value, from: usize) -> Result<()> {
        let number = |at: usize| row[from + at].as_i64().ok_or_else(wrong_reply);
        let (first, epoch, change) = (unsigned(number(0)?), number(1)?, unsigned(number(2)?));
        self.note_epoch(epoch);
        self.fetcher.keep_own(&pack.pack.slots, &pack.pack.body);
        if !pack.is_inline {
            self.fetcher.keep_footer(&pack.id, &pack.pack.footer);
        }
        let (slots, is_inline) = (pack.pack.slots.clone(), pack.is_inline);
        let pack = Pack { id: pack.id, first, epoch: unsigned(epoch), is_inline, bytes: pack.bytes(), slots };
        self.add_own(pack, change);
        Ok(())
    }

    fn commit_group(&self, group: Vec<Prepared>) -> Vec<Result<Committed>> {
        let columns = columns(&group);
        let mut packs = PackColumns::default();
        for (transaction, prepared) in (1..).zip(&group) {
            prepared.stored.iter().for_each(|pack| packs.add(0, pack));
            prepared.inline.iter().for_each(|pack| packs.add(transaction, pack));
        }
        let durable = group.iter().any(|prepared| prepared.durability == Durability::Durable);
        let reply = self.call_transact(&columns, &packs, durable).and_then(|reply| parse(&reply));
        let added = reply.and_then(|reply| self.add_all(&packs, &reply).map(|()| reply));
        drop(packs);
        match added {
            Ok(reply) => {
                let replies = (0..).zip(group);
                replies.map(|(at, prepared)| self.outcome(prepared, &reply["replies"][at as usize])).collect()
            }
            Err(error) => {
                group.iter().for_each(|prepared| self.uploader.give_up(&prepared.stored));
                self.note_expulsion(&error);
                group.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    fn call_transact(&self, columns: &Columns, packs: &PackColumns<'_>, durable: bool) -> Result<String> {
        let batch = signed(self.last_batch.fetch_add(1, Ordering::SeqCst) + 1);
        let Identity { project, node, generation } = self.identity;
        let rows = columns.records.len().max(columns.ref_name.len()).max(packs.id.len());
        let statement = if rows <= SMALL_BATCH_ROWS_MAX { TRANSACT_IN_ORDER } else { TRANSACT };
        self.database.call("commit", async |connection| {
            let query = sqlx::query_scalar(statement);
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(durable).bind(batch);
            let query = query.bind(count(columns.records.len()));
            let query = query.bind(&columns.scopes[..]).bind(&columns.requests[..]).bind(&columns.records[..]);
            let query = query.bind(&columns.ref_transaction[..]).bind(&columns.ref_name[..]);
            let query = query.bind(&columns.ref_old[..]).bind(&columns.ref_set[..]).bind(&columns.ref_new[..]);
            let query = query.bind(&packs.transaction[..]).bind(&packs.id[..]).bind(&packs.objects[..]);
            let query = query.bind(&packs.bytes[..]).bind(&packs.footer_bytes[..]);
            query.bind(&packs.footer[..]).bind(&packs.body[..]).fetch_one(connection).await
        })
    }

    fn add_all(&self, packs: &PackColumns<'_>, reply: &Value) -> Result<()> {
        self.note_epoch(reply["epoch"].as_i64().ok_or_else(wrong_reply)?);
        for row in reply["packs"].as_array().ok_or_else(wrong_reply)? {
            // The position in the columns, from 1.
            let at = row[0].as_u64().and_then(|at| usize::try_from(at).ok()?.checked_sub(1)).ok_or_else(wrong_reply)?;
            self.add_registered(packs.packs.get(at).ok_or_else(wrong_reply)?, row, 1)?;
        }
        Ok(())
    }

    fn outcome(&self, prepared: Prepared, reply: &Value) -> Result<Committed> {
        if let Some(sequence) = reply["replayed"].as_u64() {
            let operation = self.operation(sequence)?;
            let operation =
                operation.ok_or_else(|| damaged("operation log", &format!("operation {sequence} is missing")))?;
            return Ok(Committed { operation: Some(operation), replayed: true });
        }
        if let Some(operation) = reply["reused"].as_u64() {
            return Err(Error::RequestReused { operation });
        }
        if let Some(moved) = reply["moved"].as_array() {
            return Err(Error::Stale { moved: moved.iter().map(read_moved).collect::<Result<_>>()? });
        }
        let sequence = reply["done"].as_u64().ok_or_else(wrong_reply)?;
        if sequence > 0 {
            self.pulse.note_operation(sequence);
            self.hints.tell(self.identity.project, sequence);
        }
        let Prepared { operation, expect, set, .. } = prepared;
        let Some(draft) = operation else { return Ok(Committed { operation: None, replayed: false }) };
        let mut changes = changes(expect, set);
        for (at, change) in changes.iter_mut().enumerate() {
            change.previous = reply["previous"][at].as_u64().ok_or_else(wrong_reply)?;
        }
        Ok(Committed { operation: Some(Operation { sequence, draft, changes }), replayed: false })
    }
}

fn wrong_reply() -> Error {
    damaged("database", &"a reply of the wrong form")
}

fn parse(reply: &str) -> Result<Value> {
    serde_json::from_str(reply).map_err(|why| damaged("database", &why))
}

fn read_moved(row: &Value) -> Result<(RefName, Option<RefValue>)> {
    let name = row[0].as_str().ok_or_else(wrong_reply)?;
    let name = RefName::new(name).map_err(|why| damaged("reference", &why))?;
    let value = row[1].as_str().map(|hex| {
        let bytes = from_hex(hex).ok_or_else(wrong_reply)?;
        RefValue::decode(bytes.into()).map_err(|why| damaged("reference", &why))
    });
    Ok((name, value.transpose()?))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |at: &u8| char::from(*at).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(&pair[0])? * 16 + digit(&pair[1])?).ok();
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks_exact(2).map(byte).collect())?
}

/// Returns the changes of references, without the operations before.
fn changes(expect: Vec<(RefName, Option<RefValue>)>, set: Vec<(RefName, Option<RefValue>)>) -> Vec<RefChange> {
    let mut before: std::collections::HashMap<_, _> = expect.into_iter().collect();
    let change = |(name, after)| RefChange { before: before.remove(&name).flatten(), name, after, previous: 0 };
    set.into_iter().map(change).collect()
}

fn columns(group: &[Prepared]) -> Columns {
    let mut columns = Columns::default();
    for (transaction, prepared) in (1..).zip(group) {
        let request = prepared.operation.as_ref().and_then(|draft| draft.request.as_ref());
        columns.scopes.push(request.map(|request| request.scope().to_vec()));
        columns.requests.push(request.map(|request| request.as_bytes().to_vec()));
        let record = prepared.operation.as_ref().map(|draft| {
            let changes = changes(prepared.expect.clone(), prepared.set.clone());
            Operation { sequence: 0, draft: draft.clone(), changes }.encode()
        });
        columns.records.push(record);
        let set: std::collections::HashMap<_, _> =
            (1..).zip(&prepared.set).map(|(at, (name, value))| (name, (at, value))).collect();
        for (name, old) in &prepared.expect {
            let (at, new) = set.get(name).map_or((0, None), |(at, value)| (*at, value.as_ref()));
            columns.ref_transaction.push(count(transaction));
            columns.ref_name.push(name.as_str().to_owned());
            columns.ref_old.push(old.as_ref().map(RefValue::encode));
            columns.ref_set.push(at);
            columns.ref_new.push(new.map(RefValue::encode));
        }
    }
    columns
}

/// Decodes an operation. The record lacks the operations before, which PostgreSQL knows.
pub(crate) fn read_operation(sequence: i64, record: Vec<u8>, previous: &[i64]) -> Result<Operation> {
    let mut operation =
        Operation::decode(unsigned(sequence), Bytes::from(record)).map_err(|why| damaged("operation", &why))?;
    for (change, previous) in operation.changes.iter_mut().zip(previous) {
        change.previous = unsigned(*previous);
    }
    Ok(operation)
}
