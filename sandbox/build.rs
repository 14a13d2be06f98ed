//! Compiles the messages of agents without any tool beside cargo.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILE: &str = "amalgam/agent/v1/agent.proto";
    println!("cargo:rerun-if-changed=../proto/{FILE}");
    let files = protox::compile([FILE], ["../proto"])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").compile_fds(files)?;
    Ok(())
}
