//! Tests of exports without the NFS client of a kernel.

use amalgam_nfs::client::Client;

use super::*;
use crate::home::Home;
use crate::service::Service;

#[test]
fn volume_names_are_accepted_by_docker_and_kubernetes() {
    for (path, expected) in [
        ("/default/main", "amalgam-default-main"),
        ("/P/agents%2Fone@v1.0", "amalgam-p-agents-2fone-v1-0"),
        ("/default/main@", "amalgam-default-main"),
    ] {
        assert_eq!(volume_name(path), expected);
    }
    let long = volume_name(&format!("/p/{}", "w-".repeat(60)));
    assert!(long.len() <= 63 && !long.ends_with('-'), "{long}");
}

#[test]
fn only_networks_of_other_machines_widen_the_address() {
    let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a network")).collect::<Vec<Network>>();
    for (ip, allow, expected) in [
        ("127.0.0.1", &["127.0.0.0/8", "::1"][..], None),
        ("127.0.0.1", &["127.0.0.0/8", "10.0.0.0/8"], Some("0.0.0.0")),
        ("127.0.0.1", &["10.0.0.0/8", "fd00::/8"], Some("::")),
        ("0.0.0.0", &["10.0.0.0/8"], None),
        ("0.0.0.0", &["fd00::/8"], Some("::")),
        ("::", &["10.0.0.0/8", "fd00::/8"], None),
    ] {
        let found = listener::widened(ip.parse().expect("an address"), &networks(allow));
        assert_eq!(found, expected.map(|text| text.parse().expect("an address")), "{ip} {allow:?}");
    }
}

#[test]
fn the_view_of_an_idle_export_is_closed_and_opened_again() {
    let around = tempfile::tempdir().expect("a directory");
    let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
    let name = amalgam_engine::workspace::WorkspaceName::new("work").expect("a name");
    let new = amalgam_engine::workspace::NewWorkspace::default();
    service.context.workspaces.create(&name, &new, &service.context.act("test")).expect("created");
    let request = v1::CreateExportRequest { workspace: "workspaces/work".to_owned(), ..Default::default() };
    assert_eq!(service.exports.create(&request).expect_err("no server").reason(), Reason::MountRefused);
    service.exports.resume();
    let export = service.exports.create(&request).expect("exported").export.expect("an export");
    let number = amalgam_proto::export_number(&export.name).expect("a number");
    let address = service.exports.inner.listener.lock().address().expect("it listens");
    let mut client = Client::connect(address).expect("connected");
    let root = client.root(&export.mount_path).expect("answered").expect("mounted");
    assert!(!service.views.is_export_open(number), "nothing was asked yet");
    let file = client.create(&root, "f").expect("created");
    client.write(&file, 0, b"bytes").expect("written");
    service.exports.release_idle();
    assert!(service.views.is_export_open(number), "it was used");
    service.exports.release_idle();
    assert!(!service.views.is_export_open(number), "it was idle");
    assert_eq!(client.read(&file, 0, 100).expect("the handle is still valid"), b"bytes");
    assert!(service.views.is_export_open(number));
    let counted = service.nfs_statistics().expect("it runs");
    assert!(counted.operations.contains(&("read", 1)) && counted.connections == 1 && counted.received_bytes > 0);
    service.exports.end();
    assert!(service.nfs_statistics().is_none());
    service.views.end_mounting();
}

#[test]
fn exports_that_are_served_are_no_problem_when_they_are_resumed() {
    let around = tempfile::tempdir().expect("a directory");
    let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
    let name = amalgam_engine::workspace::WorkspaceName::new("work").expect("a name");
    let new = amalgam_engine::workspace::NewWorkspace::default();
    service.context.workspaces.create(&name, &new, &service.context.act("test")).expect("created");
    service.exports.resume();
    let request = v1::CreateExportRequest { workspace: "workspaces/work".to_owned(), ..Default::default() };
    service.exports.create(&request).expect("exported");
    service.exports.resume();
    let listed = service.exports.list().expect("listed");
    assert_eq!((listed.exports.len(), listed.problems), (1, Vec::new()));
    service.exports.end();
    service.views.end_mounting();
}
