//! Checks references, operations and requests: whether they can be read and are consistent. The operation log is authoritative;
//! rows that differ from it can be rebuilt from it.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;

use super::index::each_row;
use super::report::{Record, RecordProblem};
use crate::backend::rows::{Quarantined, RefRow, number};
use crate::backend::{Family, Inspect, RowEdit};
use crate::error::Result;
use crate::reference::{Operation, OperationDraft, RefChange, RefName, RefValue, RequestId};

/// The action name of an operation of which only the moved references are known.
const LOST: &str = "lost";

/// A problem with a row, and the edits that fix it, if possible.
pub(super) struct Flaw {
    pub(super) problem: RecordProblem,
    pub(super) edits: Vec<RowEdit>,
    /// A description of the edits.
    pub(super) remedy: &'static str,
}

#[derive(Default)]
pub(super) struct Records {
    /// The values of the references; for a damaged row, the value from the log.
    pub(super) refs: BTreeMap<RefName, RefValue>,
    pub(super) operations: u64,
    pub(super) flaws: Vec<Flaw>,
}

/// The value of a name and the operation that set it.
type RefState = (Option<RefValue>, u64);

/// The contents of the log.
#[derive(Default)]
struct Log {
    newest: BTreeMap<RefName, RefState>,
    requests: HashMap<Bytes, u64>,
    /// The number up to which operations were trimmed from the log.
    trimmed: u64,
    /// Numbers of operations that cannot be read, with their remaining bytes.
    lost: BTreeMap<u64, Option<Bytes>>,
    last: u64,
}

/// Returns the edits that move a row into quarantine.
pub(super) fn quarantine(family: Family, key: &[u8], bytes: &Bytes, reason: &str) -> [RowEdit; 2] {
    let kept = Quarantined { kind: 0, reason: reason.to_owned(), bytes: bytes.clone() };
    let place = [&[family as u8 + 1], key].concat();
    [
        RowEdit { family: Family::Quarantine, key: place.into(), value: Some(kept.encode().into()) },
        RowEdit { family, key: Bytes::copy_from_slice(key), value: None },
    ]
}

fn put(family: Family, key: &[u8], value: Vec<u8>) -> RowEdit {
    RowEdit { family, key: Bytes::copy_from_slice(key), value: Some(value.into()) }
}

pub(super) fn read(inspect: &dyn Inspect) -> Result<Records> {
    let mut records = Records::default();
    let log = records.read_log(inspect)?;
    let rows = records.read_refs(inspect, &log)?;
    records.read_requests(inspect, &log)?;
    if !log.lost.is_empty() {
        records.rebuild_operations(inspect, &log, &rows)?;
    }
    Ok(records)
}

impl Records {
    fn flaw(&mut self, record: Record, why: impl Into<String>, edits: Vec<RowEdit>, remedy: &'static str) {
        self.flaws.push(Flaw { problem: RecordProblem { record, why: why.into() }, edits, remedy });
    }

    fn unreadable(&mut self, family: Family, whys: Vec<String>) {
        for why in whys {
            self.flaw(Record::Rows(family), why, Vec::new(), "");
        }
    }

    fn read_log(&mut self, inspect: &dyn Inspect) -> Result<Log> {
        // Read first, so that operations added meanwhile do not look like a gap.
        let last = inspect.last_operation()?;
        let trimmed = inspect.first_operation()? - 1;
        let mut log = Log { trimmed, last: trimmed, ..Log::default() };
        let unreadable = each_row(inspect, Family::Operations, &[], None, &mut |key, value| {
            let Ok(sequence) = number(&key, "operations") else { return };
            if sequence <= trimmed {
                return;
            }
            log.lost.extend((log.last + 1..sequence).map(|gone| (gone, None)));
            log.last = sequence;
            match Operation::decode(sequence, value.clone()) {
                Ok(operation) => {
                    for change in operation.changes {
                        log.newest.insert(change.name, (change.after, sequence));
                    }
                    if let Some(request) = operation.draft.request {
                        log.requests.insert(Bytes::copy_from_slice(request.as_bytes()), sequence);
                    }
                }
                Err(_) => drop(log.lost.insert(sequence, Some(value))),
            }
        })?;
        self.unreadable(Family::Operations, unreadable);
        log.lost.extend((log.last + 1..=last).map(|gone| (gone, None)));
        log.last = log.last.max(last);
        self.operations = log.last - trimmed - log.lost.len() as u64;
        Ok(log)
    }

    /// Compares the references with the log, and returns the readable ones.
    fn read_refs(&mut self, inspect: &dyn Inspect, log: &Log) -> Result<BTreeMap<RefName, RefRow>> {
        let mut rows = BTreeMap::new();
        let mut broken = Vec::new();
        let unreadable = each_row(inspect, Family::Refs, &[], None, &mut |key, value| {
            let name = std::str::from_utf8(&key).ok().and_then(|name| RefName::new(name).ok());
            match (name, RefRow::decode(value.clone())) {
                (Some(name), Ok(row)) => drop(rows.insert(name, row)),
                (name, row) => broken.push((key, value, name, row.err().map(|error| error.to_string()))),
            }
        })?;
        self.unreadable(Family::Refs, unreadable);
        let now = newest_operation(inspect, log.last)?;
        for (key, value, name, why) in broken {
            let why = why.unwrap_or_else(|| "a name that is none".to_owned());
            let mut edits = quarantine(Family::Refs, &key, &value, &why).to_vec();
            if let Some(name) = &name
                && let Some((Some(held), sequence)) = log.newest.get(name)
            {
                edits[1] = put(Family::Refs, &key, RefRow::encode(*sequence, held));
                self.refs.insert(name.clone(), held.clone());
            }
            let record = Record::Reference(String::from_utf8_lossy(&key).into_owned());
            self.flaw(record, why, edits, "put back as the log has it, or taken out where the log does not have it");
        }
        for (name, row) in &rows {
            let newest = log.newest.get(name);
            let known = newest.map_or(0, |(_, sequence)| *sequence);
            let by_lost = row.operation > known && log.lost.contains_key(&row.operation);
            let by_later = (log.last + 1..=now).contains(&row.operation);
            let by_trimmed = newest.is_none() && (1..=log.trimmed).contains(&row.operation);
            if by_lost
                || by_later
                || by_trimmed
                || newest.is_some_and(|(held, at)| held.as_ref() == Some(&row.value) && *at == row.operation)
            {
                self.refs.insert(name.clone(), row.value.clone());
                continue;
            }
            let key = name.as_str().as_bytes();
            let found = Bytes::from(RefRow::encode(row.operation, &row.value));
            let why = format!("it differs from what operation {known} made of it");
            let mut edits = quarantine(Family::Refs, key, &found, &why).to_vec();
            if let Some((Some(held), sequence)) = newest {
                edits[1] = put(Family::Refs, key, RefRow::encode(*sequence, held));
                self.refs.insert(name.clone(), held.clone());
            }
            self.flaw(Record::Reference(name.to_string()), why, edits, "put back as the log has it");
        }
        for (name, (held, sequence)) in &log.newest {
            // A lost operation, or one added meanwhile, may have removed it.
            let unsure = now > log.last || log.lost.range(sequence + 1..).next().is_some();
            if let Some(held) = held
                && !unsure
                && !rows.contains_key(name)
                && !self.refs.contains_key(name)
            {
                let edit = put(Family::Refs, name.as_str().as_bytes(), RefRow::encode(*sequence, held));
                self.refs.insert(name.clone(), held.clone());
                let why = format!("it is gone, and operation {sequence} set it");
                self.flaw(Record::Reference(name.to_string()), why, vec![edit], "put back as the log has it");
            }
        }
        Ok(rows)
    }

    fn read_requests(&mut self, inspect: &dyn Inspect, log: &Log) -> Result<()> {
        let mut seen = HashSet::new();
        let mut wrong = Vec::new();
        let unreadable = each_row(inspect, Family::Requests, &[], None, &mut |key, value| {
            let sequence = number(&value, "request").ok();
            let fits = sequence
                .is_some_and(|sequence| log.requests.get(&key) == Some(&sequence) || log.lost.contains_key(&sequence));
            if !fits {
                wrong.push((key.clone(), value, sequence));
            }
            seen.insert(key);
        })?;
        self.unreadable(Family::Requests, unreadable);
        let now = newest_operation(inspect, log.last)?;
        wrong.retain(|(_, _, sequence)| !sequence.is_some_and(|sequence| (log.last + 1..=now).contains(&sequence)));
        for (key, value, sequence) in wrong {
            let why = match sequence {
                Some(sequence) => format!("operation {sequence} is not what it came to"),
                None => "a row of the wrong form".to_owned(),
            };
            let mut edits = quarantine(Family::Requests, &key, &value, &why).to_vec();
            if let Some(sequence) = log.requests.get(&key) {
                edits[1] = put(Family::Requests, &key, sequence.to_be_bytes().to_vec());
            }
            self.flaw(Record::Request(key.to_vec()), why, edits, "put back as the log has it, or taken out");
        }
        for (key, sequence) in log.requests.iter().filter(|(key, _)| !seen.contains(*key)) {
            let edit = put(Family::Requests, key, sequence.to_be_bytes().to_vec());
            let why = format!("it is gone, and operation {sequence} is what it came to");
            self.flaw(Record::Request(key.to_vec()), why, vec![edit], "put back as the log has it");
        }
        Ok(())
    }

    /// Replaces each lost operation, so that the log has no gap, with one that contains the references it moved, as far as later
    /// operations and the references themselves show. Its author, time and action are lost.
    fn rebuild_operations(&mut self, inspect: &dyn Inspect, log: &Log, rows: &BTreeMap<RefName, RefRow>) -> Result<()> {
        let mut moved: HashMap<u64, BTreeMap<RefName, RefValue>> = HashMap::new();
        let mut requests: HashMap<u64, RequestId> = HashMap::new();
        each_row(inspect, Family::Requests, &[], None, &mut |key, value| {
            let sequence = number(&value, "request").ok().filter(|sequence| log.lost.contains_key(sequence));
            if let (Some(sequence), Ok(request)) = (sequence, RequestId::new(&key)) {
                requests.insert(sequence, request);
            }
        })?;
        for (name, row) in rows.iter().filter(|(_, row)| log.lost.contains_key(&row.operation)) {
            moved.entry(row.operation).or_default().insert(name.clone(), row.value.clone());
        }
        each_operation(inspect, &mut |operation| {
            for change in operation.changes {
                if let (Some(before), true) = (change.before, log.lost.contains_key(&change.previous)) {
                    moved.entry(change.previous).or_default().insert(change.name, before);
                }
            }
        })?;
        let mut held: BTreeMap<RefName, RefState> = BTreeMap::new();
        let mut lost = log.lost.iter().peekable();
        let mut rebuilt = Vec::new();
        let mut rebuild = |sequence: u64, left: &Option<Bytes>, held: &mut BTreeMap<RefName, RefState>| {
            let request = requests.remove(&sequence);
            let draft = OperationDraft { action: LOST.to_owned(), request, ..OperationDraft::default() };
            let mut changes = Vec::new();
            for (name, after) in moved.remove(&sequence).unwrap_or_default() {
                let (before, previous) = held.insert(name.clone(), (Some(after.clone()), sequence)).unwrap_or_default();
                let previous = if before.is_some() { previous } else { 0 };
                changes.push(RefChange { name, before, after: Some(after), previous });
            }
            rebuilt.push((sequence, left.clone(), Operation { sequence, draft, changes }));
        };
        each_operation(inspect, &mut |operation| {
            while let Some((sequence, left)) = lost.next_if(|(sequence, _)| **sequence < operation.sequence) {
                rebuild(*sequence, left, &mut held);
            }
            for change in operation.changes {
                held.insert(change.name, (change.after, operation.sequence));
            }
        })?;
        for (sequence, left) in lost {
            rebuild(*sequence, left, &mut held);
        }
        for (sequence, left, operation) in rebuilt {
            let key = sequence.to_be_bytes();
            let why = if left.is_some() { "it cannot be read" } else { "it is gone" };
            let mut edits = vec![put(Family::Operations, &key, operation.encode())];
            if let Some(left) = left {
                edits.insert(0, quarantine(Family::Operations, &key, &left, why)[0].clone());
            }
            let remedy = "put back with the references that it moved; who, when and what are lost";
            self.flaw(Record::Operation(sequence), why, edits, remedy);
        }
        Ok(())
    }
}

/// Returns the number of the newest operation that has a row, at least `after`. The backend counts an operation shortly after its
/// rows become readable, so its own number may be too small.
fn newest_operation(inspect: &dyn Inspect, after: u64) -> Result<u64> {
    let mut newest = inspect.last_operation()?.max(after);
    each_row(inspect, Family::Operations, &after.saturating_add(1).to_be_bytes(), None, &mut |key, _| {
        newest = newest.max(number(&key, "operations").unwrap_or(0));
    })?;
    Ok(newest)
}

fn each_operation(inspect: &dyn Inspect, take: &mut dyn FnMut(Operation)) -> Result<()> {
    each_row(inspect, Family::Operations, &[], None, &mut |key, value| {
        let operation = number(&key, "operations").ok().map(|sequence| Operation::decode(sequence, value));
        operation.and_then(Result::ok).into_iter().for_each(&mut *take);
    })?;
    Ok(())
}
