//! The service: workspaces, snapshots, operations and real directories of one store.
