//! Compiles the .proto files without any tool beside cargo.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message as _;

const FILES: [&str; 2] = ["process/process.proto", "filesystem/filesystem.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let files = protox::compile(FILES, ["proto"])?;
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), files.encode_to_vec())?;
    // Messages only: the services are answered over Connect, which no generated code speaks.
    let mut config = prost_build::Config::new();
    config.bytes(["."]).enable_type_names();
    Ok(config.compile_fds(files)?)
}
