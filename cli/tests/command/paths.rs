//! Where the files of a workspace are as a directory: a path of the host on the Unix socket, the mount command of NFS over the network.

use std::path::PathBuf;

use serde_json::Value;

use crate::scratch::Scratch;
use crate::served::Served;

/// The socket for REST of the background process.
fn rest_socket(scratch: &Scratch) -> PathBuf {
    let mut open = vec![scratch.path().join("runtime")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).expect("listed").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rest") {
                return path;
            }
        }
    }
    panic!("no socket for REST");
}

fn get(scratch: &Scratch, options: &str, url: &str) -> Value {
    let text = scratch.run(&format!("curl -sS {options} {url}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_workspace_has_a_host_path_on_the_unix_socket_and_a_mount_line_over_the_network() {
    let scratch = Scratch::new();
    scratch.run("echo one > a && amalgam init --workspace main && amalgam fork --from main try && amalgam fork --from main bare");
    scratch.run("amalgam export nfs try");
    let socket = format!("--unix-socket {}", rest_socket(&scratch).display());
    let path = |workspace: &str| format!("http://localhost/api/v1/workspaces/{workspace}/path");
    let main = get(&scratch, &socket, &path("main"));
    assert_eq!(main["path"], scratch.project().to_str().expect("text"), "{main}");
    assert_eq!((&main["mount"], main["paths"].as_array().map(Vec::len)), (&"".into(), Some(1)));
    let exported = get(&scratch, &socket, &path("try"));
    assert!(exported["mount"].as_str().is_some_and(|line| line.starts_with("mount -t nfs ")), "{exported}");
    assert_eq!(get(&scratch, &socket, &path("bare"))["error"]["name"], "NOT_FOUND");
    // Over the network there is no path of the host, and the mount line is for those who may write.
    scratch.run("amalgam stop --force");
    let key = |scope: &str| scratch.run(&format!("amalgam key create ann --scope {scope} -q")).trim().to_owned();
    let (writer, reader) = (key("write"), key("read"));
    let server = Served::with(&scratch, "");
    let url = |workspace: &str| format!("{}/api/v1/workspaces/{workspace}/path", server.url);
    let with = |key: &str| format!("-H 'X-API-Key: {key}'");
    assert_eq!(get(&scratch, &with(&writer), &url("main"))["error"]["name"], "NOT_FOUND");
    let exported = get(&scratch, &with(&writer), &url("try"));
    assert_eq!((&exported["path"], &exported["paths"]), (&"".into(), &Value::Array(Vec::new())), "{exported}");
    let line = exported["mount"].as_str().expect("a line");
    assert!(line.starts_with("mount -t nfs ") && line.contains("/default/try"), "{line}");
    assert_eq!(get(&scratch, &with(&reader), &url("try"))["error"]["name"], "FORBIDDEN");
    drop(server);
}
