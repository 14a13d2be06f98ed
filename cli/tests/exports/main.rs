//! Exports over NFS through the command: what clients see, what is kept, what comes back, what is refused.

mod killed;
mod kit;
mod refused;
#[path = "../command/scratch.rs"]
mod scratch;

use std::net::SocketAddr;
use std::time::Duration;

use amalgam_nfs::client::types::{nfs_fh3, nfsstat3};
use kit::{Exported, connect, export, free_port, json, mount_root, process, text_of, until};
use scratch::{Scratch, can_mount};

#[test]
fn nfs_clients_and_a_fuse_mount_show_one_live_tree() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("printf 'one\\n' > a; amalgam init --workspace base; amalgam fork try");
    let (mut client, root) = export(&scratch, "try").mounted();
    scratch.run("amalgam mount try ../try");
    let at = scratch.path().join("try");
    let file = client.lookup(&root, "a").expect("found");
    assert_eq!(text_of(&mut client, &file), "one\n");
    std::fs::write(at.join("a"), "by FUSE\n").expect("written");
    assert_eq!(text_of(&mut client, &file), "by FUSE\n");
    let made = client.create(&root, "b").expect("created");
    client.write(&made, 0, b"by NFS\n").expect("written");
    until("the mount shows what the client wrote", || {
        std::fs::read_to_string(at.join("b")).is_ok_and(|text| text == "by NFS\n")
    });
    scratch.run("cd ../try && amalgam commit -m both");
    assert_eq!(scratch.run("amalgam show try@:a && amalgam show try@:b"), "by FUSE\nby NFS\n");
    scratch.run("cd ../try && amalgam restore @~");
    // The old contents are an unlinked file now, which makes clients look the name up again.
    assert_eq!(client.get_attributes(&file).expect("kept for its users").nlink, 0);
    let file = client.lookup(&root, "a").expect("found");
    assert_eq!(text_of(&mut client, &file), "one\n", "a rollback is seen");
    assert_eq!(client.lookup(&root, "b").expect_err("gone").status(), Some(nfsstat3::NFS3ERR_NOENT));
    // The view stays while the export uses it, and serves the client.
    scratch.run("amalgam umount try");
    client.write(&file, 0, b"ONE").expect("written");
    assert_eq!(scratch.run("amalgam commit -w try > /dev/null && amalgam show try@:a"), "ONE\n");
}

#[test]
fn commits_and_rollbacks_of_an_exported_workspace_need_no_mount() {
    let scratch = Scratch::new();
    let exported = export(&scratch, "--create work");
    let (mut client, root) = exported.mounted();
    let file = client.create(&root, "f").expect("created");
    client.write(&file, 0, b"first").expect("written");
    let committed = json(&scratch.run("amalgam commit --json -w work -m first")).remove(0);
    assert_eq!(committed["changed"], true);
    client.write(&file, 0, b"other").expect("written");
    client.create(&root, "g").expect("created");
    scratch.run("amalgam commit -w work -m second");
    scratch.run("amalgam restore -w work @~");
    let file = client.lookup(&root, "f").expect("found");
    assert_eq!(text_of(&mut client, &file), "first");
    assert!(client.lookup(&root, "g").is_err());
    assert!(scratch.output("amalgam restore -w work @ f").status.code() == Some(2), "no paths");
    let nothing = scratch.output("amalgam fork --from work idle && amalgam commit -w idle");
    let words = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(words.contains("neither mounted nor exported"), "{words}");
}

#[test]
fn handles_stay_valid_after_restarts_and_become_stale_with_the_export() {
    let scratch = Scratch::new();
    let exported = export(&scratch, &format!("--create work --secret --port {}", free_port()));
    assert_ne!(exported.path, exported.mount_path);
    let (mut client, root) = exported.mounted();
    let directory = client.create_directory(&root, "d").expect("created");
    let file = client.create(&directory, "f").expect("created");
    client.write(&file, 0, b"kept").expect("written");
    client.commit_file(&file).expect("synced");
    let (before, port) = (process(&scratch), exported.address.port());
    scratch.run("amalgam stop --force");
    let again = Exported::listed(&scratch).remove(0);
    assert_ne!(process(&scratch), before);
    assert_eq!((again.mount_path.as_str(), again.address.port()), (exported.mount_path.as_str(), port));
    let mut client = connect(again.address);
    assert_eq!(text_of(&mut client, &file), "kept");
    client.rename_entry((&directory, "f"), (&root, "g")).expect("renamed");
    assert_eq!(mount_root(&mut client, &again), root);
    assert_eq!(client.lookup(&root, "g").expect("found"), file);
    // Uncommitted work stays without the export.
    scratch.run("amalgam commit -w work && amalgam export nfs --create other && amalgam unexport work");
    assert_eq!(client.get_attributes(&file).expect_err("ended").status(), Some(nfsstat3::NFS3ERR_STALE));
    assert_eq!(scratch.run("amalgam show work@:g"), "kept");
}

/// The contents of a name in a directory, for a client that has looked at nothing before.
fn named(address: SocketAddr, directory: &nfs_fh3, name: &str) -> String {
    let mut client = connect(address);
    let file = client.lookup(directory, name).expect("found");
    text_of(&mut client, &file)
}

#[test]
fn snapshots_are_read_only_and_heads_are_followed() {
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base; amalgam label v1");
    let fixed = export(&scratch, "base@v1");
    assert_eq!(fixed.path, "/default/base@v1");
    let following = export(&scratch, "base --follow");
    assert_eq!(following.path, "/default/base@");
    let (mut client, old) = fixed.mounted();
    let head = mount_root(&mut client, &following);
    let old_file = client.lookup(&old, "a").expect("found");
    let file = client.lookup(&head, "a").expect("found");
    for refused in [
        client.write(&old_file, 0, b"x").map(drop),
        client.write(&file, 0, b"x").map(drop),
        client.create(&head, "new").map(drop),
        client.remove_file(&old, "a"),
    ] {
        assert_eq!(refused.expect_err("refused").status(), Some(nfsstat3::NFS3ERR_ROFS));
    }
    scratch.run("echo two > a; amalgam commit");
    until("the new snapshot is shown", || named(following.address, &head, "a") == "two\n");
    assert_eq!(text_of(&mut client, &old_file), "one\n");
    scratch.run("amalgam stop --force");
    let address = Exported::listed(&scratch).remove(0).address;
    assert_eq!((named(address, &old, "a").as_str(), named(address, &head, "a").as_str()), ("one\n", "two\n"));
    assert_eq!(text_of(&mut connect(address), &old_file), "one\n");
    let by_id = scratch.run("amalgam log -1 --json | sed 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/'");
    let exported = export(&scratch, &format!("{} --read-only", by_id.trim()));
    assert_eq!(exported.path, format!("/default/@{}", &by_id.trim()[..16]));
}

#[test]
fn the_process_stays_while_something_is_exported() {
    let scratch = Scratch::new();
    scratch.run("amalgam init --workspace base && amalgam config set idle-seconds 1 && amalgam stop");
    let exported = export(&scratch, "--create work");
    let before = process(&scratch);
    std::thread::sleep(Duration::from_secs(3));
    let (mut client, root) = exported.mounted();
    client.create(&root, "f").expect("served");
    let refused = scratch.output("amalgam stop");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("1 NFS client is connected"), "{refused:?}");
    assert_eq!(process(&scratch), before);
    drop(client);
    scratch.run("amalgam unexport work");
    let gone = || !std::path::Path::new(&format!("/proc/{before}/fd")).exists();
    until("the idle process ends", gone);
}

#[test]
fn a_service_listens_where_it_is_told_and_prints_the_address() {
    use std::io::BufRead as _;
    let scratch = Scratch::new();
    scratch.run("amalgam init --workspace base && amalgam stop");
    let mut command = scratch.shell("exec amalgam serve --nfs 127.0.0.1:0");
    let mut serving = command.stdout(std::process::Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    std::io::BufReader::new(serving.stdout.take().expect("piped")).read_line(&mut line).expect("read");
    let address: std::net::SocketAddr = line.trim().rsplit(' ').next().expect("a word").parse().expect("an address");
    assert!(address.ip().is_loopback() && address.port() != 0);
    until("it listens for commands", || scratch.output("amalgam mounts").status.success());
    let exported = export(&scratch, "--create work");
    assert_eq!(exported.address, address);
    let (mut client, root) = exported.mounted();
    client.create(&root, "f").expect("served");
    let refused = scratch.output("amalgam export nfs --create more --allow 10.0.0.0/8");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("--nfs-allow 10.0.0.0/8"), "{words}");
    scratch.run("amalgam unexport --all");
    assert!(client.get_attributes(&root).is_err(), "it listens all the same");
    let pid = rustix::process::Pid::from_child(&serving);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("asked to end");
    assert!(serving.wait().expect("ended").success());
}
