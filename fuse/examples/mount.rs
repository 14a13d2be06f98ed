//! Mounts a workspace of a store until it is unmounted: `mount STORE WORKSPACE DIRECTORY`.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::path::Path;
use std::time::{Duration, SystemTime};

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Store, Time};
use amalgam_fuse::{Mount, MountOptions};
use amalgam_view::{View, ViewOptions};

#[expect(clippy::disallowed_methods, reason = "a program that uses the engine reads the clock for it")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, store, workspace, directory] = &arguments[..] else {
        return Err("give a store, a workspace and a directory".into());
    };
    let home = Path::new(store);
    std::fs::create_dir_all(home)?;
    let store = Store::open(home.join("store"))?;
    let workspaces = Workspaces::of(&store);
    let name = WorkspaceName::new(workspace)?;
    if workspaces.find(&name)?.is_none() {
        workspaces.create(&name, &NewWorkspace::default(), &OperationContext::new("example", now()))?;
    }
    let owner = Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
    let mut options = ViewOptions::new(owner, now);
    options.journaled_commit = workspaces.get(&name)?.journaled;
    let (view, recovered) = View::open(workspaces.open(&name)?, &home.join("views").join(workspace), options)?;
    println!("{recovered:?}");
    let allow_other = rustix::process::getuid().is_root();
    let threads = std::env::var("THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let options = MountOptions { allow_other, threads, ..MountOptions::default() };
    let mount = Mount::at(&view, Path::new(directory), &options)?;
    println!("mounted");
    while !mount.has_ended() {
        std::thread::sleep(Duration::from_millis(200));
        if std::env::var_os("AMALGAM_COMMIT").is_some() {
            view.commit(&workspaces, &name, &Change::new("now"), &OperationContext::new("example", now()), "commit")?;
        }
    }
    view.close()?;
    Ok(())
}
