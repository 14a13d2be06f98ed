//! The functions of PostgreSQL that execute batches of transactions: statements for single rows and statements for all rows of a batch
//! have the same outcome, an import can be ended twice, and a database of an earlier version is updated.

use std::borrow::Cow;
use std::sync::Arc;

use amalgam_cloud::{Cloud, CloudOptions};
use amalgam_engine::SplitMix64;
use amalgam_engine::backend::{Backend as _, Durability, Transaction};
use amalgam_engine::reference::{Operation, OperationDraft, RefName, RefValue};
use amalgam_test_support::faulty_bucket::FaultyBucket;
use amalgam_test_support::postgres;
use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

const NODE: [u8; 16] = [7; 16];
const GENERATION: i64 = 1;
const SEEDS: u64 = 20;
const BATCHES: i64 = 12;
/// Names of references and of requests. Few, so that transactions meet.
const NAMES: u64 = 6;

type Bytes = Vec<u8>;

/// The arguments of a batch.
#[derive(Clone, Default)]
struct Batch {
    scopes: Vec<Option<Bytes>>,
    requests: Vec<Option<Bytes>>,
    records: Vec<Option<Bytes>>,
    ref_tx: Vec<i32>,
    ref_name: Vec<String>,
    ref_old: Vec<Option<Bytes>>,
    ref_set: Vec<i32>,
    ref_new: Vec<Option<Bytes>>,
    pack_tx: Vec<i32>,
    pack_id: Vec<Bytes>,
    pack_objects: Vec<i32>,
    pack_bytes: Vec<i64>,
    pack_footer_bytes: Vec<i32>,
    pack_footer: Vec<Option<Bytes>>,
    pack_body: Vec<Option<Bytes>>,
}

impl Batch {
    /// Adds a transaction that moves one reference.
    fn moving(mut self, name: &str, old: Option<&str>, new: &str) -> Self {
        self.scopes.push(None);
        self.requests.push(None);
        self.records.push(Some(b"record".to_vec()));
        self.ref_tx.push(i32::try_from(self.records.len()).expect("few"));
        self.ref_name.push(name.to_owned());
        self.ref_old.push(old.map(|old| old.as_bytes().to_vec()));
        self.ref_set.push(1);
        self.ref_new.push(Some(new.as_bytes().to_vec()));
        self
    }

    fn add_pack(&mut self, transaction: i32, id: Bytes, is_inline: bool) {
        self.pack_tx.push(transaction);
        self.pack_objects.push(i32::from(id[0] % 5) + 1);
        self.pack_bytes.push(100);
        self.pack_footer_bytes.push(10);
        self.pack_footer.push(is_inline.then(|| b"footer".to_vec()));
        self.pack_body.push(is_inline.then(|| vec![id[1]; usize::from(id[2]) * 100]));
        self.pack_id.push(id);
    }
}

struct Database {
    runtime: tokio::runtime::Runtime,
    connection: PgConnection,
}

impl Database {
    fn connect(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connection = runtime.block_on(PgConnection::connect(url)).expect("the server runs");
        Self { runtime, connection }
    }

    /// Creates or updates the tables, by the first migrations only.
    fn migrate(&mut self, count: usize) {
        let all = sqlx::migrate!();
        let migrations = Cow::Owned(all.iter().take(count).cloned().collect());
        let first = Migrator { migrations, ..Migrator::DEFAULT };
        self.runtime.block_on(first.run(&mut self.connection)).expect("tables");
    }

    fn run(&mut self, statement: &str) {
        let query = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        self.runtime.block_on(query.execute(&mut self.connection)).expect("done");
    }

    fn read(&mut self, query: &str) -> Value {
        let query = format!("SELECT coalesce(json_agg(to_json(t)), '[]')::text FROM ({query}) t");
        let query = sqlx::query(AssertSqlSafe(query));
        let row = self.runtime.block_on(query.fetch_one(&mut self.connection)).expect("rows");
        serde_json::from_str(row.get(0)).expect("JSON")
    }

    /// Creates a project that the node has joined.
    fn create_project(&mut self, name: &str) -> i64 {
        self.run(&format!(
            "INSERT INTO projects (name) VALUES ('{name}');
             INSERT INTO nodes VALUES (decode(repeat('07', 16), 'hex'), {GENERATION}, 'infinity') ON CONFLICT DO NOTHING;
             SELECT join_project(project, decode(repeat('07', 16), 'hex'), {GENERATION}) FROM projects WHERE name = '{name}'"
        ));
        self.read(&format!("SELECT project FROM projects WHERE name = '{name}'"))[0]["project"]
            .as_i64()
            .expect("a number")
    }

    fn transact(&mut self, function: &str, project: i64, number: i64, batch: &Batch) -> Result<Value, String> {
        self.transact_as(GENERATION, function, project, number, batch)
    }

    fn transact_as(
        &mut self,
        generation: i64,
        function: &str,
        project: i64,
        number: i64,
        batch: &Batch,
    ) -> Result<Value, String> {
        let arguments: Vec<_> = (1..=21).map(|at| format!("${at}")).collect();
        let statement = format!("SELECT {function}({})", arguments.join(", "));
        let query = sqlx::query_scalar(AssertSqlSafe(statement)).bind(project).bind(&NODE[..]).bind(generation);
        let query = query.bind(false).bind(number).bind(i32::try_from(batch.records.len()).expect("few"));
        let query = query.bind(&batch.scopes).bind(&batch.requests).bind(&batch.records).bind(&batch.ref_tx);
        let query = query.bind(&batch.ref_name).bind(&batch.ref_old).bind(&batch.ref_set).bind(&batch.ref_new);
        let query = query.bind(&batch.pack_tx).bind(&batch.pack_id).bind(&batch.pack_objects).bind(&batch.pack_bytes);
        let query = query.bind(&batch.pack_footer_bytes).bind(&batch.pack_footer).bind(&batch.pack_body);
        let reply: String =
            self.runtime.block_on(query.fetch_one(&mut self.connection)).map_err(|why| why.to_string())?;
        Ok(serde_json::from_str(&reply).expect("JSON"))
    }

    /// Returns all rows of a project without its number.
    fn rows(&mut self, project: i64) -> Vec<Value> {
        let queries = [
            "SELECT next_operation, next_number, next_change, epoch FROM projects WHERE project = $",
            "SELECT name, value, last_move FROM refs WHERE project = $ ORDER BY name",
            "SELECT seq, record, previous FROM operations WHERE project = $ ORDER BY seq",
            "SELECT scope, request, seq FROM requests WHERE project = $ ORDER BY scope",
            "SELECT first_number, id, state, objects, bytes, footer_bytes, footer, epoch, change FROM packs WHERE project = $ ORDER BY 1",
            "SELECT id, body FROM tails WHERE project = $ ORDER BY id",
            "SELECT id FROM uploads WHERE project = $ ORDER BY id",
            "SELECT batch FROM writers WHERE project = $",
        ];
        queries.iter().map(|query| self.read(&query.replace('$', &project.to_string()))).collect()
    }

    /// Returns the bytes of a reference.
    fn value(&mut self, project: i64, name: &str) -> Option<Bytes> {
        let query =
            sqlx::query_scalar("SELECT value FROM refs WHERE project = $1 AND name = $2").bind(project).bind(name);
        self.runtime.block_on(query.fetch_optional(&mut self.connection)).expect("read")
    }

    /// Returns a batch whose transactions concern different references and requests.
    fn random_batch(&mut self, random: &mut SplitMix64, projects: [i64; 2]) -> Batch {
        let mut batch = Batch::default();
        let (mut names, mut scopes): (Vec<_>, Vec<_>) = ((0..NAMES).collect(), (0..NAMES).collect());
        for transaction in 1..=i32::try_from(1 + random.below(5)).expect("few") {
            let scope = once_in(random, 3).then(|| scopes.swap_remove(random.below(scopes.len() as u64) as usize));
            batch.scopes.push(scope.map(|scope| vec![scope as u8]));
            batch.requests.push(scope.map(|_| vec![random.below(2) as u8]));
            let has_record = !once_in(random, 6);
            batch.records.push(has_record.then(|| random.next_u64().to_le_bytes().to_vec()));
            let first = batch.ref_tx.len();
            for _ in 0..random.below(3) {
                if names.is_empty() {
                    break;
                }
                let name = format!("name {}", names.swap_remove(random.below(names.len() as u64) as usize));
                let now = self.value(projects[0], &name);
                batch.ref_old.push(if once_in(random, 5) { Some(b"another".to_vec()) } else { now });
                batch.ref_name.push(name);
                batch.ref_tx.push(transaction);
                batch.ref_set.push(0);
                batch.ref_new.push((!once_in(random, 4)).then(|| random.next_u64().to_le_bytes().to_vec()));
            }
            // Positions among the changes descend, to be seen; those that are only compared have none.
            let mut position = 0;
            for at in (first..batch.ref_tx.len()).rev() {
                if has_record && !once_in(random, 4) {
                    position += 1;
                    batch.ref_set[at] = position;
                } else {
                    batch.ref_new[at] = None;
                }
            }
            for _ in 0..random.below(3) {
                let (id, is_inline) = (random.next_u64().to_le_bytes().repeat(2), once_in(random, 2));
                if !is_inline {
                    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
                    for project in projects {
                        self.run(&format!("INSERT INTO uploads VALUES ({project}, '\\x{digits}', '', 1)"));
                    }
                }
                batch.add_pack(if is_inline { transaction } else { 0 }, id, is_inline);
            }
        }
        batch
    }
}

/// Returns true once in so many times.
fn once_in(random: &mut SplitMix64, times: u64) -> bool {
    random.below(times) == 0
}

#[test]
fn small_and_large_batches_have_the_same_outcome() {
    let Some(url) = postgres::shared() else { return };
    let mut database = Database::connect(&url);
    database.migrate(usize::MAX);
    for seed in 0..SEEDS {
        let mut random = SplitMix64::new(seed);
        let projects = ["rows", "sets"].map(|kind| database.create_project(&format!("{kind} {seed}")));
        for number in 1..=BATCHES {
            let batch = database.random_batch(&mut random, projects);
            let [rows, sets] =
                [("transact_in_order", projects[0]), ("transact", projects[1])].map(|(function, project)| {
                    let reply = database.transact(function, project, number, &batch).expect("executed");
                    let again = database.transact(function, project, number, &batch).expect("the stored reply");
                    assert_eq!(reply, again, "seed {seed}, {function}");
                    let late = database.transact(function, project, number - 1, &batch).expect_err("it is late");
                    assert!(late.contains("came after"), "{late}");
                    reply
                });
            assert_eq!(rows["replies"], sets["replies"], "seed {seed}, batch {number}");
            assert_eq!(rows["epoch"], sets["epoch"]);
            assert_eq!(rows["packs"].as_array().map(Vec::len), sets["packs"].as_array().map(Vec::len));
        }
        let [rows, sets] = projects.map(|project| database.rows(project));
        assert_eq!(without_numbers(rows), without_numbers(sets), "seed {seed}");
    }
}

/// Removes the numbers of packs, which are given in another order; their ranges must not overlap.
fn without_numbers(mut tables: Vec<Value>) -> Vec<Value> {
    let packs = tables[4].as_array_mut().expect("rows");
    let mut end = 0;
    for pack in packs.iter_mut() {
        let first = pack["first_number"].as_i64().expect("a number");
        assert_eq!(first, end, "numbers without gaps");
        end = first + pack["objects"].as_i64().expect("a number");
        pack["first_number"].take();
        pack["change"].take();
    }
    packs.sort_by_key(|pack| pack["id"].to_string());
    tables
}

#[test]
fn transactions_of_one_batch_on_one_reference_see_each_other() {
    let Some(url) = postgres::shared() else { return };
    let mut database = Database::connect(&url);
    database.migrate(usize::MAX);
    for function in ["transact", "transact_in_order"] {
        let project = database.create_project(&format!("one reference {function}"));
        let batch = Batch::default().moving("a", None, "1").moving("a", Some("1"), "2").moving("a", Some("1"), "3");
        let mut batch = batch.moving("b", None, "4");
        batch.add_pack(3, vec![1; 16], true);
        batch.add_pack(4, vec![2; 16], true);
        let reply = database.transact(function, project, 1, &batch).expect("executed");
        let expected = json!([
            {"done": 1, "previous": [0]}, {"done": 2, "previous": [1]}, {"moved": [["a", "32"]]}, {"done": 3, "previous": [0]},
        ]);
        assert_eq!(reply["replies"], expected, "{function}");
        assert_eq!(reply["packs"], json!([[2, 0, 1, 1]]), "the pack of a refused transaction is not registered");
        let after = database.rows(project);
        assert_eq!(after[0], json!([{"next_operation": 4, "next_number": 3, "next_change": 2, "epoch": 1}]));
        assert_eq!(database.value(project, "a").as_deref(), Some(&b"2"[..]));
        // A node of another generation is refused, and nothing is numbered.
        let batch = Batch::default().moving("c", None, "5");
        let fenced = database.transact_as(GENERATION + 1, function, project, 2, &batch);
        assert!(fenced.expect_err("refused").contains("fenced"));
        assert_eq!(database.rows(project), after);
    }
}

#[test]
fn the_end_of_an_import_is_sent_again_when_its_answer_was_lost() {
    let Some(url) = postgres::shared() else { return };
    let mut database = Database::connect(&url);
    database.migrate(usize::MAX);
    let project = database.create_project("imported");
    let finish = |next: i64, value: &str| {
        format!(
            "SELECT finish_import({project}, decode(repeat('07', 16), 'hex'), {GENERATION}, 1, {next},
               ARRAY['a', 'b'], ARRAY['{value}', 'two']::bytea[], ARRAY[1, 2]::bigint[])"
        )
    };
    database.run(&finish(3, "one"));
    let after = database.rows(project);
    database.run(&finish(3, "one"));
    assert_eq!(database.rows(project), after);
    for another in [finish(4, "one"), finish(3, "another")] {
        let query = sqlx::raw_sql(AssertSqlSafe(another));
        let refused = database.runtime.block_on(query.execute(&mut database.connection));
        let error = refused.expect_err("the project has a history");
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("AM006"), "{error}");
    }
    assert_eq!(database.rows(project), after);
}

/// The number of migrations before the first one that changes tables which have rows.
const OLD_MIGRATIONS: usize = 7;

#[test]
fn a_database_of_an_earlier_version_is_updated_and_goes_on() {
    let Some(server) = postgres::own() else { return };
    let mut database = Database::connect(&server.url());
    database.migrate(OLD_MIGRATIONS);
    let project = database.create_project("old");
    let name = RefName::new("head/main").expect("a valid name");
    let value = |text: &str| RefValue::noting(text.to_owned());
    let draft = OperationDraft::default();
    let record = Operation { sequence: 0, draft, changes: Vec::new() }.encode();
    let mut batch = Batch::default().moving(name.as_str(), None, "");
    batch.ref_new[0] = Some(value("old").encode());
    batch.records[0] = Some(record);
    database.transact("transact", project, 1, &batch).expect("executed");

    let options = CloudOptions::new(server.url(), FaultyBucket::new() as Arc<_>, "old");
    let cloud = Cloud::open(&options).expect("the tables are updated");
    assert_eq!(cloud.read_ref(&name).expect("read"), Some(value("old")));
    let committed = cloud.transact(Transaction {
        objects: Vec::new(),
        expect: vec![(name.clone(), Some(value("old")))],
        set: vec![(name.clone(), Some(value("new")))],
        operation: Some(OperationDraft::default()),
        durability: Durability::Buffered,
    });
    let operation = committed.expect("committed").operation.expect("it has an operation");
    assert_eq!((operation.sequence, operation.changes[0].previous), (2, 1));
    // A node of the earlier version that still runs calls the function that it knows.
    let mut late = Batch::default().moving(name.as_str(), None, "");
    late.ref_old[0] = Some(value("new").encode());
    late.ref_new[0] = Some(value("by an old node").encode());
    late.records[0].clone_from(&batch.records[0]);
    let reply = database.transact("transact", project, 2, &late).expect("executed");
    assert_eq!(reply["replies"], json!([{"done": 3, "previous": [2]}]));
    assert_eq!(cloud.read_ref(&name).expect("read"), Some(value("by an old node")));
}
