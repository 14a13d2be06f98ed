//! Compiles the .proto files without any tool beside cargo.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message as _;

const FILES: [&str; 26] = [
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
    "amalgam/v1/exports.proto",
    "amalgam/v1/merges.proto",
    "amalgam/v1/exchange.proto",
    "amalgam/v1/projects.proto",
    "amalgam/v1/keys.proto",
    "amalgam/v1/files.proto",
    "amalgam/v1/states.proto",
    "amalgam/v1/episodes.proto",
    "amalgam/v1/requests.proto",
    "amalgam/v1/events.proto",
    "amalgam/v1/webhooks.proto",
    "amalgam/v1/policy.proto",
    "amalgam/v1/following.proto",
    "amalgam/v1/radar.proto",
    "amalgam/v1/sandboxes.proto",
    "amalgam/v1/system.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["."])?;
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), files.encode_to_vec())?;
    // Sorted, so that equal requests are equal bytes.
    let sorted = [
        ".amalgam.v1.CaptureDirectoryRequest.metadata",
        ".amalgam.v1.CommitEditsRequest.metadata",
        ".amalgam.v1.CommitWorkspaceRequest.metadata",
        ".amalgam.v1.AttributesEdit.set_xattrs",
        ".amalgam.v1.BeginEpisodeRequest.metadata",
        ".amalgam.v1.RecordStepRequest.metadata",
    ];
    let compiler =
        sorted.iter().fold(tonic_prost_build::configure().bytes("."), |compiler, map| compiler.btree_map(map));
    compiler.compile_fds(files)?;
    Ok(())
}
