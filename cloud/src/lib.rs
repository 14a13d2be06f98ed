//! The store of many nodes: references, operations and locks in PostgreSQL, contents in packs in an S3 bucket, and on each node an
//! index in memory and bounded caches of bytes, in memory and on disk.
//!
//! [`Cloud`] implements the engine's backend traits, so that everything above runs unchanged. PostgreSQL is the only arbiter: a
//! transaction is one call of a function there, which locks its project, refuses an expelled node, compares references and numbers
//! operations. The bucket holds immutable packs under names that are never used again, written by plain puts before the call that
//! names them. `docs/design/0023-cloud.md` has the reasons.
//!
//! The cost: every read of a reference is a round trip, and a node holds about 120 bytes of memory for each object of an open project.

mod answer;
mod backend;
mod bucket;
mod calls;
mod cluster;
mod commit;
mod database;
mod fetch;
mod fold_leases;
mod heartbeat;
mod hints;
mod identity;
mod idle;
mod index;
mod inspect;
mod live_trees;
mod migrate;
mod node;
mod pack;
mod prepared;
mod read_ahead;
mod reclaim;
mod records;
mod refresh;
mod restore;
mod rounds;
mod sweep;
mod upload;

pub use bucket::open_bucket;
pub use calls::{CacheCounts, CloudCalls};
pub use cluster::Cluster;
pub use migrate::{Migrated, WatchMigration, migrate_from_cloud, migrate_to_cloud};
pub use node::{Cloud, CloudOptions};
