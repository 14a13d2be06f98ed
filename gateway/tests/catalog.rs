//! The catalog on a real file: what was answered is there after it is opened again, and malformed rows are errors.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use amalgam_engine::Time;
use amalgam_gateway::{Catalog, CatalogError, KeyText, NewKey, ProjectName, Scope, Scopes};

const NOW: Time = Time(1_700_000_000_000_000_000);

fn name(text: &str) -> ProjectName {
    ProjectName::new(text).unwrap()
}

fn reader(projects: &[&str]) -> NewKey {
    NewKey {
        agent: "ann".to_owned(),
        scopes: Scopes::default().with(Scope::Read),
        projects: projects.iter().map(|text| name(text)).collect(),
        expires: Some(Time(NOW.0 + 1_000_000)),
    }
}

#[tokio::test]
async fn projects_and_keys_survive_a_reopening() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("catalog.db");
    let catalog = Catalog::open(&path).await.unwrap();
    let project = catalog.create_project(&name("one"), NOW).await.unwrap();
    let (text, record) = catalog.create_key(&reader(&["one", "two"]), NOW).await.unwrap();
    catalog.close().await;

    let catalog = Catalog::open(&path).await.unwrap();
    assert_eq!(catalog.project(&name("one")).await.unwrap(), project);
    let found = catalog.key(KeyText::parse(&text.reveal()).unwrap().id()).await.unwrap();
    assert_eq!(found, record);
    assert!(found.secret_hash.matches(&text.secret_hash()));
    assert!(found.reaches(&name("one")) && !found.reaches(&name("three")));
    assert!(!found.is_expired(NOW) && found.is_expired(Time(NOW.0 + 1_000_000)));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let bytes = std::fs::read(&path).unwrap();
    let secret = text.reveal().rsplit_once('_').unwrap().1.to_owned();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "the secret is not stored");
}

#[tokio::test]
async fn a_taken_name_is_refused_and_a_deleted_project_comes_back() {
    let home = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&home.path().join("catalog.db")).await.unwrap();
    catalog.create_project(&name("one"), NOW).await.unwrap();
    let again = catalog.create_project(&name("one"), NOW).await;
    assert!(matches!(again, Err(CatalogError::ProjectExists(_))), "{again:?}");
    catalog.delete_project(&name("one"), NOW).await.unwrap();
    assert!(catalog.list_projects(None, 10, false).await.unwrap().is_empty());
    let again = catalog.create_project(&name("one"), NOW).await;
    assert!(matches!(again, Err(CatalogError::ProjectExists(_))), "a deleted project keeps its name: {again:?}");
    assert_eq!(catalog.undelete_project(&name("one")).await.unwrap().deleted, None);
    let missing = catalog.delete_project(&name("two"), NOW).await;
    assert!(matches!(missing, Err(CatalogError::NoProject(_))), "{missing:?}");
}

#[tokio::test]
async fn a_hundred_creations_of_one_name_make_one_project() {
    let home = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&home.path().join("catalog.db")).await.unwrap();
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let catalog = catalog.clone();
            tokio::spawn(async move { catalog.create_project(&name("one"), NOW).await.is_ok() })
        })
        .collect();
    let mut made = 0;
    for call in calls {
        made += u32::from(call.await.unwrap());
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn pages_of_projects_are_in_order_and_complete() {
    let home = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&home.path().join("catalog.db")).await.unwrap();
    for number in (0..25).rev() {
        catalog.create_project(&name(&format!("p{number:02}")), NOW).await.unwrap();
    }
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = catalog.list_projects(after.as_ref(), 10, false).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        seen.extend(page.into_iter().map(|project| project.name.to_string()));
    }
    assert_eq!(seen, (0..25).map(|number| format!("p{number:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_revocation_is_final_and_keeps_its_first_time() {
    let home = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&home.path().join("catalog.db")).await.unwrap();
    let (text, _) = catalog.create_key(&reader(&[]), NOW).await.unwrap();
    catalog.revoke_key(text.id(), NOW).await.unwrap();
    let again = catalog.revoke_key(text.id(), Time(NOW.0 + 1_000_000)).await.unwrap();
    assert_eq!(again.revoked, Some(NOW));
    let stored = catalog.store_key(&text, &reader(&[]), NOW).await.unwrap();
    assert_eq!(stored.revoked, Some(NOW), "storing a revoked key again does not bring it back");
    assert_eq!(catalog.list_keys().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_file_that_is_no_catalog_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("catalog.db");
    std::fs::write(&path, "this is not a database, and it is longer than a header of one, which has a hundred bytes")
        .unwrap();
    assert!(Catalog::open(&path).await.is_err());
    let directory = Catalog::open(home.path()).await;
    assert!(directory.is_err());
}
