//! Serves an empty workspace of memory by NFS, for trials with other clients: `serve DIRECTORY ADDRESS [--not-durable]`. The directory is for
//! the journal. Ends with the end of its input.
#![expect(clippy::print_stdout, reason = "it is a command")]

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use amalgam_engine::object::Owner;
use amalgam_engine::{Store, Time, WorkingTree};
use amalgam_nfs::{
    Credentials, ExportSpec, Exports, MountLines, Server, ServerOptions, export_path, listen_or_any_port,
};
use amalgam_view::{View, ViewOptions};

#[expect(clippy::disallowed_methods, reason = "files have the time that it is")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, address, options @ ..] = &arguments[..] else {
        return Err("usage: serve DIRECTORY ADDRESS [--not-durable] [--trusted]".into());
    };
    let has = |option: &str| options.iter().any(|given| given == option);
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let view_options = ViewOptions::new(Owner { uid, gid }, now);
    let (view, recovered) = View::open(WorkingTree::new(&Store::in_memory()), Path::new(directory), view_options)?;
    view.keep_handles()?;
    let exports = Exports::new([7; 32]);
    let mut spec = ExportSpec::new(export_path("demo", "main"), (uid, gid));
    spec.durable = !has("--not-durable");
    if has("--trusted") {
        spec.credentials = Credentials::Trusted { squash_root: false };
    }
    exports.add(spec.clone(), Arc::new(view.clone()))?;
    let mut server_options = ServerOptions::new(now);
    server_options.reply_log = Some(Path::new(directory).join("replies"));
    let server = Server::start(listen_or_any_port(address.parse()?)?, Arc::new(exports), &server_options)?;
    println!("{} edits recovered", recovered.edits);
    println!("{}", MountLines::new(server.address(), &spec).mount("/mnt"));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for (operation, count) in server.statistics().operations.iter().filter(|(_, count)| *count > 0) {
        println!("{operation} {count}");
    }
    server.stop(Duration::from_secs(5));
    view.close()?;
    Ok(())
}
