//! A store that moves to PostgreSQL and a bucket and back has the same history.

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_cloud::{Cloud, CloudOptions, Migrated, migrate_from_cloud, migrate_to_cloud, open_bucket};
use amalgam_engine::backend::{Backend as _, Family, Inspect, Memory};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};
use amalgam_engine::{
    OperationContext, SplitMix64, Store, StoreOptions, Time, VerifyOptions, Workspaces, operation, verify,
};
use amalgam_test_support::postgres;

/// Writes a store with some history: workspaces, requests, an undo.
fn fill(store: &Store) {
    let workspaces = Workspaces::of(store);
    let name = WorkspaceName::new("main").expect("a name");
    let act = OperationContext::new("ann", Time(1));
    workspaces.create(&name, &NewWorkspace::default(), &act).expect("create");
    for number in 0..20_u64 {
        let length = if number % 5 == 0 { 300_000 } else { 900 };
        let mut tree = workspaces.open(&name).expect("open");
        tree.write(&*format!("file {number}"), &SplitMix64::new(number).bytes(length)).expect("write");
        workspaces.commit(&name, &mut tree, &Change::new(format!("change {number}")), &act).expect("commit");
    }
    operation::undo(store, &name.reference(), &act).expect("undo");
}

/// All rows that make up a history.
fn records(store: &dyn Inspect) -> Vec<(Family, bytes::Bytes, bytes::Bytes)> {
    let mut all = Vec::new();
    for family in [Family::Refs, Family::Operations, Family::Requests, Family::Tombstones] {
        let page = store.rows(family, &[], None, usize::MAX).expect("rows");
        all.extend(page.rows.into_iter().map(|(key, value)| (family, key, value)));
    }
    all
}

#[test]
fn a_store_that_moves_to_the_cloud_and_back_has_the_same_history() {
    let Some(url) = postgres::shared() else { return };
    let local = Arc::new(Memory::default());
    fill(&Store::new(Arc::clone(&local) as Arc<dyn Inspect>, &StoreOptions::default()));
    let before = records(&*local);

    let options = CloudOptions::new(url, open_bucket("memory:").expect("memory"), "migrated");
    let cloud = Arc::new(Cloud::open(&options).expect("open"));
    let mut last = (0, 0);
    let moved = migrate_to_cloud(&*local, &cloud, &mut |done, total| last = (done, total)).expect("migrate");
    assert_eq!(last, (moved.objects, moved.objects));
    assert_eq!(moved.copied, moved.objects);
    assert_eq!(records(&*local), before, "the source is untouched");
    assert_eq!(records(&*cloud), before);
    let store = Store::new(Arc::clone(&cloud) as Arc<dyn Inspect>, &StoreOptions::default());
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("verify");
    assert!(report.is_clean(), "{report:?}");
    assert!(migrate_to_cloud(&*local, &cloud, &mut |_, _| {}).is_err(), "it has a history now");

    let back = Arc::new(Memory::default());
    let returned = migrate_from_cloud(&cloud, &*back, &mut |_, _| {}).expect("migrate");
    assert_eq!(returned, moved);
    assert_eq!(records(&*back), before);
    let store = Store::new(Arc::clone(&back) as Arc<dyn Inspect>, &StoreOptions::default());
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("verify");
    assert!(report.is_clean(), "{report:?}");
    assert!(migrate_from_cloud(&cloud, &*back, &mut |_, _| {}).is_err(), "it has references now");
    // Commits go on with the next number.
    let last = back.last_operation().expect("last");
    assert_eq!(cloud.last_operation().expect("last"), last);
}

#[test]
fn an_interrupted_migration_copies_the_rest() {
    let Some(url) = postgres::shared() else { return };
    let local = Arc::new(Memory::default());
    fill(&Store::new(Arc::clone(&local) as Arc<dyn Inspect>, &StoreOptions::default()));
    let options = CloudOptions::new(url, open_bucket("memory:").expect("memory"), "interrupted");
    let cloud = Cloud::open(&options).expect("open");
    // A part of the objects arrived before.
    let ids: Vec<_> =
        amalgam_engine::backend::Sweep::scan(&*local, None, 10).expect("scan").iter().map(|row| row.id).collect();
    let bytes = local.get_many(&ids).expect("get");
    let objects = ids
        .iter()
        .zip(bytes)
        .map(|(id, bytes)| amalgam_engine::backend::StoredObject { id: *id, bytes: bytes.expect("it was scanned") });
    cloud.put_ahead(objects.collect()).expect("put");
    let Migrated { objects, copied, .. } = migrate_to_cloud(&*local, &cloud, &mut |_, _| {}).expect("migrate");
    assert_eq!(copied, objects - 10);
    assert_eq!(records(&cloud), records(&*local));
}
