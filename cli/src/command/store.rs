//! `amalgam store migrate`: copies a whole store into a cluster, or out of one.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_cloud::{Cloud, CloudOptions, Migrated, migrate_from_cloud, migrate_to_cloud, open_bucket};
use amalgam_engine::backend::{Inspect, Rocks, RocksOptions};
use amalgam_engine::{Store, StoreOptions, VerifyOptions, verify};
use amalgam_gateway::{Catalog, CatalogError, ProjectName};
use amalgam_server::Home;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::connect::now;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::network::{catalog_error, make_private};
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// The beginning of the name of a project in a cluster.
const CLUSTER_PREFIX: &str = "cluster:";

/// Copy whole stores
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam store migrate /srv/amalgam/projects/demo cluster:demo")]
pub struct StoreCommand {
    #[command(subcommand)]
    verb: StoreVerb,
}

#[derive(Debug, Subcommand)]
enum StoreVerb {
    Migrate(Migrate),
}

/// Copy a store into an empty project of a cluster, or out of one
///
/// Objects, references, the operation log with its numbers, request ids and tombstones are copied and verified. The source is only
/// read. A migration that was interrupted is started again and copies the rest.
#[derive(Debug, Args)]
#[command(after_help = "\
A store is a directory with the file store/AMALGAM, such as projects/NAME of `amalgam serve --data`, or
cluster:PROJECT. No server or background process may have it open.

Examples:
  amalgam store migrate /srv/amalgam/projects/demo cluster:demo --cluster postgres://db/amalgam --bucket s3://amalgam
  amalgam store migrate cluster:demo /srv/copy")]
struct Migrate {
    /// The store to copy
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The empty store to copy into; it is made if it does not exist
    #[arg(value_name = "TARGET")]
    target: String,
    /// The database of the cluster
    #[arg(long, value_name = "URL", env = "AMALGAM_CLUSTER", hide_env_values = true)]
    cluster: String,
    /// The bucket of the cluster
    #[arg(long, value_name = "URL", env = "AMALGAM_BUCKET", hide_env_values = true)]
    bucket: String,
}

/// The direction of a migration, with its source and its target.
enum Route {
    ToCluster { home: PathBuf, project: ProjectName },
    FromCluster { project: ProjectName, home: PathBuf },
}

impl StoreCommand {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let StoreVerb::Migrate(migrate) = self.verb;
        migrate.run(session).await
    }
}

impl Migrate {
    fn route(&self) -> Result<Route, CliError> {
        let project = |name: &str| ProjectName::new(name).map_err(CliError::usage);
        match (self.source.strip_prefix(CLUSTER_PREFIX), self.target.strip_prefix(CLUSTER_PREFIX)) {
            (None, Some(name)) => Ok(Route::ToCluster { home: PathBuf::from(&self.source), project: project(name)? }),
            (Some(name), None) => Ok(Route::FromCluster { project: project(name)?, home: PathBuf::from(&self.target) }),
            _ => Err(CliError::usage("one of the two stores must be a directory and the other cluster:PROJECT")),
        }
    }

    async fn run(self, session: &mut Session) -> Outcome {
        let route = self.route()?;
        let to_project = match &route {
            Route::ToCluster { project, .. } => Some(project.clone()),
            Route::FromCluster { .. } => None,
        };
        let (cluster, bucket) = (self.cluster.clone(), self.bucket);
        let done = tokio::task::spawn_blocking(move || migrate(&route, &cluster, &bucket)).await;
        let panicked = |error: tokio::task::JoinError| CliError::machine("the migration", &io::Error::other(error));
        let Migrated { objects, copied, copied_bytes, references, operations } = done.map_err(panicked)??;
        if let Some(project) = to_project {
            // Last: a server shows the project when it is complete.
            let catalog = Catalog::connect(&self.cluster).await.map_err(catalog_error)?;
            match catalog.create_project(&project, now()).await {
                Ok(_) | Err(CatalogError::ProjectExists(_)) => {}
                Err(error) => return Err(catalog_error(error)),
            }
            catalog.close().await;
        }
        let fields = json!({
            "objects": objects,
            "copied": copied,
            "copied_bytes": copied_bytes,
            "references": references,
            "operations": operations,
        });
        session.output.emit(&lines::line("migration", fields))?;
        let (objects, operations) = (text::plural(objects, "object"), text::plural(operations, "operation"));
        let copied = text::bytes(copied_bytes);
        session.output.done(format!("{objects} and {operations} are in {}: {copied} copied, verified", self.target))?;
        Ok(Exit::OK)
    }
}

fn migrate(route: &Route, cluster: &str, bucket: &str) -> Result<Migrated, CliError> {
    let failed = |error: amalgam_engine::Error| CliError::new(Exit::ERROR, "FAULT", error.to_string());
    let open_project = |project: &ProjectName| {
        let options = CloudOptions::new(cluster, open_bucket(bucket)?, project.as_str());
        Cloud::open(&options).map(Arc::new)
    };
    // A migration is one call without a progress stream, so progress goes to the log.
    let mut watch = |done: u64, total: u64| tracing::info!(done, total, "objects copied");
    let (migrated, target) = match route {
        Route::ToCluster { home, project } => {
            if !Home::new(home).exists() {
                return Err(CliError::refused(format!("{} is not the directory of a store", home.display())));
            }
            refuse_uncommitted(home)?;
            let source = open_directory(home)?;
            let target = open_project(project).map_err(failed)?;
            (migrate_to_cloud(&*source, &target, &mut watch).map_err(failed)?, target as Arc<dyn Inspect>)
        }
        Route::FromCluster { project, home } => {
            let source = open_project(project).map_err(failed)?;
            let uncommitted = source.uncommitted_workspaces().map_err(failed)?;
            if let Some(workspace) = uncommitted.first() {
                let message = format!("workspace {workspace} of project {project} has changes that are in no snapshot");
                return Err(CliError::refused(message).hint("commit them, and wait until no call uses the workspace"));
            }
            make_private(&home.join("store")).map_err(|error| CliError::machine(home.display(), &error))?;
            let target = open_directory(home)?;
            (migrate_from_cloud(&source, &*target, &mut watch).map_err(failed)?, target as Arc<dyn Inspect>)
        }
    };
    let store = Store::new(target, &StoreOptions::default());
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).map_err(failed)?;
    match report.is_clean() {
        true => Ok(migrated),
        false => Err(CliError::new(Exit::ERROR, "CORRUPT", "the copy has damaged objects; the source is unchanged")
            .hint("`amalgam verify --read-data` on the source shows whether they are damaged there")),
    }
}

fn open_directory(home: &Path) -> Result<Arc<Rocks>, CliError> {
    let opened = Rocks::open(&Home::new(home).store_path(), &RocksOptions::default());
    opened.map(Arc::new).map_err(|error| {
        let message = format!("{}: {error}", home.display());
        CliError::new(Exit::ERROR, "FAULT", message).hint("stop the server or the background process that has it open")
    })
}

/// Refuses a store with journals of live trees, which have edits that are in no snapshot.
fn refuse_uncommitted(home: &Path) -> Result<(), CliError> {
    let views = Home::new(home).views_path();
    let Ok(entries) = std::fs::read_dir(&views) else { return Ok(()) };
    match entries.flatten().any(|entry| entry.path().join("base").exists()) {
        true => Err(CliError::refused("the store has changes of live trees that are in no snapshot")
            .hint("commit them through the server or the mount, and stop it")),
        false => Ok(()),
    }
}
