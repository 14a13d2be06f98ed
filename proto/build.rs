//! Compiles the .proto files without any tool beside cargo.

use std::error::Error;

const FILES: [&str; 12] = [
    "amalgam/v1/common.proto",
    "amalgam/v1/workspaces.proto",
    "amalgam/v1/operations.proto",
    "amalgam/v1/snapshots.proto",
    "amalgam/v1/directories.proto",
    "amalgam/v1/store.proto",
    "amalgam/v1/transfer.proto",
    "amalgam/v1/collection.proto",
    "amalgam/v1/conflicts.proto",
    "amalgam/v1/mounts.proto",
    "amalgam/v1/merges.proto",
    "amalgam/v1/exchange.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["."])?;
    let sorted = ".amalgam.v1.CaptureDirectoryRequest.metadata";
    // Sorted, so that equal requests are equal bytes.
    tonic_prost_build::configure().bytes(".").btree_map(sorted).compile_fds(files)?;
    Ok(())
}
