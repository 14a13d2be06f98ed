//! Browsers: gRPC-Web on the same port, and the page that shows the API.

use bytes::{Buf as _, Bytes};
use http::Method;
use prost::Message as _;

use amalgam_proto::v1;

use crate::running::Running;

/// A message as it is in a gRPC stream.
fn framed(message: &impl prost::Message) -> Bytes {
    let bytes = message.encode_to_vec();
    [&[0][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes].concat().into()
}

/// The frames of a body: the flag and the bytes of each.
fn frames(mut body: Bytes) -> Vec<(u8, Bytes)> {
    let mut frames = Vec::new();
    while body.has_remaining() {
        let (flag, length) = (body.get_u8(), body.get_u32() as usize);
        frames.push((flag, body.split_to(length)));
    }
    frames
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_calls_by_grpc_web_with_a_key() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let path = "/amalgam.v1.WorkspaceService/CreateWorkspace";
    let request = v1::CreateWorkspaceRequest { workspace_id: "main".to_owned(), ..Default::default() };
    let headers = [("content-type", "application/grpc-web+proto"), ("x-api-key", key.as_str())];
    let answer = server.rest(Method::POST, path, &headers, framed(&request)).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["content-type"]),
        (200, &"application/grpc-web+proto".parse().unwrap())
    );
    let frames = frames(answer.bytes);
    let made = v1::CreateWorkspaceResponse::decode(frames[0].1.clone()).unwrap();
    assert_eq!(made.workspace.unwrap().name, "workspaces/main");
    let (flag, trailers) = frames.last().unwrap();
    assert!(*flag == 0x80 && String::from_utf8_lossy(trailers).contains("grpc-status:0"), "{trailers:?}");
    let refused = server.rest(Method::POST, path, &headers[..1], framed(&request)).await;
    let told = refused.headers.get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
    let told = told.unwrap_or_else(|| String::from_utf8_lossy(&refused.bytes).into_owned());
    assert!(told.contains("16"), "no key: {told}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_loads_nothing_from_elsewhere() {
    let mut server = Running::start().await;
    let page = server.rest(Method::GET, "/docs", &[], "").await;
    assert_eq!(page.status, 200);
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let text = String::from_utf8_lossy(&page.bytes).into_owned();
    let mut files = 0;
    for part in text.split("src=\"").skip(1).chain(text.split("href=\"").skip(1)) {
        let path = part.split('"').next().unwrap();
        let file = server.rest(Method::GET, path, &[], "").await;
        assert_eq!(file.status, 200, "{path}");
        assert!(!String::from_utf8_lossy(&file.bytes).contains("https://") || path.ends_with("openapi.json"), "{path}");
        files += 1;
    }
    assert_eq!(files, 3, "{text}");
    server.stop().await;
}

#[test]
fn the_checked_in_document_is_that_of_the_code() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let made = serde_json::to_string_pretty(amalgam_gateway::openapi()).unwrap() + "\n";
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "docs/openapi.json is not current; UPDATE_OPENAPI=1 cargo test -p amalgam-gateway --test server writes it"
    );
}
