//! What exports forbid, and what is refused for them.

use amalgam_nfs::client::types::nfsstat3;

use crate::kit::{connect, export, json};
use crate::scratch::Scratch;

#[track_caller]
fn refused(scratch: &Scratch, line: &str, words: &str) {
    let done = scratch.output(line);
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && told.contains(words), "{line}: {told}");
}

#[test]
fn an_exported_workspace_keeps_its_one_live_tree() {
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base; amalgam fork try");
    refused(&scratch, "amalgam export nfs base", "export the fork");
    let exported = export(&scratch, "try");
    refused(&scratch, "amalgam export nfs try --read-only", "is exported already");
    let first = "`amalgam unexport try` first";
    refused(&scratch, "amalgam ws rm try --yes", first);
    refused(&scratch, "amalgam checkout try ../try --workspace try", first);
    let (mut client, root) = exported.mounted();
    client.create(&root, "f").expect("created");
    // A workspace of another name keeps its export, with the same path.
    scratch.run("amalgam ws rename try tried");
    client.create(&root, "g").expect("created");
    assert_eq!(
        scratch.run("amalgam commit -q -w tried > /dev/null; amalgam ls tried | awk '{print $NF}'"),
        "a\nf\ng\n"
    );
    refused(&scratch, "amalgam purge a --yes", "1 export is in use");
    scratch.run("amalgam unexport tried && amalgam ws rm tried --yes");
    refused(&scratch, "amalgam unexport tried", "is not exported");
}

#[test]
fn a_secret_is_needed_to_mount_and_is_listed_to_nobody() {
    let scratch = Scratch::new();
    let exported = export(&scratch, "--create work --secret");
    let mut client = connect(exported.address);
    assert!(client.root(&exported.path).expect("answered").is_err());
    assert!(client.root(&exported.mount_path).expect("answered").is_ok());
    let mount = exported.line["mount_command"].as_str().expect("a line");
    assert!(mount.contains(&format!("127.0.0.1:{} ", exported.mount_path)), "{mount}");
    assert!(scratch.run("amalgam exports").contains(mount), "the user of the store sees it");
    let kubernetes = exported.line["kubernetes_volume"].as_str().expect("a volume");
    assert!(kubernetes.contains(&format!("path: {}\n", exported.mount_path)), "{kubernetes}");
    let docker = exported.line["docker_command"].as_str().expect("a line");
    assert!(docker.ends_with(&format!("--opt device=:{} amalgam-default-work", exported.mount_path)), "{docker}");
}

#[test]
fn a_read_only_export_shows_the_live_tree_and_takes_no_changes() {
    let scratch = Scratch::new();
    let exported = export(&scratch, "--create work --read-only");
    let (mut client, root) = exported.mounted();
    assert_eq!(client.create(&root, "f").expect_err("refused").status(), Some(nfsstat3::NFS3ERR_ROFS));
    assert!(exported.line["mount_command"].as_str().expect("a line").contains(",ro "));
}

#[test]
fn other_machines_are_not_let_in_by_accident() {
    let scratch = Scratch::new();
    scratch.run("amalgam init --workspace base && amalgam stop");
    refused(&scratch, "amalgam serve --nfs 0.0.0.0:0", "--nfs-allow CIDR");
    refused(&scratch, "amalgam serve --nfs-allow 10.0.0.0/8", "--nfs");
    refused(&scratch, "amalgam serve --nfs somewhere", "127.0.0.1:2049");
    refused(&scratch, "amalgam export nfs --create work --allow everybody", "no address or network");
    scratch.run("amalgam stop");
    refused(&scratch, "amalgam --in-process export nfs --create work", "needs the background process");
    assert_eq!(export(&scratch, "--create work").line["allow"], serde_json::json!(["127.0.0.0/8", "::1/128"]));
    refused(&scratch, "amalgam export nfs --create more --port 1", "exports are served at port");
}

#[test]
fn where_nfs_cannot_be_mounted_the_line_to_run_is_printed() {
    let scratch = Scratch::new();
    let checks = json(&scratch.run("amalgam init --workspace base > /dev/null; amalgam doctor --json"));
    let client = checks.iter().find(|line| line["subject"] == "nfs_client").expect("doctor looks at the NFS client");
    if client["grade"] == "ok" {
        return;
    }
    let done = scratch.output("amalgam mount --backend nfs --create work ../work");
    let words = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success(), "{words}");
    let line = export_line(&scratch);
    let at = scratch.path().join("work");
    assert!(words.contains(&line.replace(" /mnt", &format!(" {}", at.display()))), "{words}");
    refused(&scratch, "amalgam mount --backend nfs work ../work --writeback", "only with --backend fuse");
}

#[test]
fn a_mount_uses_no_export_that_would_make_it_read_only() {
    let scratch = Scratch::new();
    export(&scratch, "--create work --read-only");
    let line = "amalgam mount --backend nfs work ../work";
    refused(&scratch, line, "/default/work is exported already, but read-only");
    refused(&scratch, line, "`amalgam unexport /default/work`");
}

/// The line that mounts the only export.
fn export_line(scratch: &Scratch) -> String {
    let exports = crate::kit::Exported::listed(scratch);
    assert_eq!(exports.len(), 1);
    exports[0].line["mount_command"].as_str().expect("a line").to_owned()
}
