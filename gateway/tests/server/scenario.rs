//! The shared scenario of the SDKs, told in Rust. The test of the Python SDK tells it together with the other SDKs.

#[path = "../../examples/scenario/story.rs"]
mod story;

use http::Method;
use serde_json::json;

use crate::running::Running;
use story::Teller;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scenario_is_told_twice_in_one_workspace() {
    let mut server = Running::start().await;
    let key = server.key("merge", &[], false).await;
    let headers = [("x-api-key", key.as_str())];
    let body = json!({"workspaceId": "main"}).to_string();
    assert_eq!(server.rest(Method::POST, "/api/v1/workspaces", &headers, body).await.status, 200);
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdks/scenario/scenario.yaml");
    let scenario = std::fs::read_to_string(file).unwrap();
    let teller = Teller::new(server.channel().await, &key).unwrap();
    for who in ["one", "two"] {
        teller.tell(&scenario, "main", who).await.unwrap();
    }
    let listed = server.rest(Method::GET, "/api/v1/workspaces/main/list?path=by", &headers, "").await.json();
    let paths: Vec<_> = listed["files"].as_array().unwrap().iter().map(|file| file["path"].clone()).collect();
    assert_eq!(paths, ["by/one-fork.txt", "by/one.txt", "by/two-fork.txt", "by/two.txt"], "{listed}");
    // A step that does not hold is an error that names it.
    let wrong = "- {\"do\": \"read\", \"path\": \"by/one.txt\", \"text\": \"three\\n\"}";
    let failed = teller.tell(wrong, "main", "three").await.unwrap_err();
    assert!(failed.contains("\"do\": \"read\"") && failed.contains("two"), "{failed}");
    drop(teller);
    server.stop().await;
}
