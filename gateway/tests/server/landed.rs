//! Other versions: clients of the landed API, and stores of a version to come.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::Method;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor};
use serde_json::{Value, json};
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

use crate::running::{Running, Setup, empty_call};

/// The API as it landed last (`make landed`): what clients in the field were generated from.
static LANDED: &[u8] = include_bytes!("../../../proto/landed.binpb");

/// A client that knows only the landed descriptors.
struct OldClient<'a> {
    server: &'a Running,
    pool: DescriptorPool,
    key: String,
}

impl OldClient<'_> {
    /// Calls a method with fields as JSON, and returns the answer as JSON, both by the landed descriptors.
    async fn call(&self, service: &str, method: &str, fields: Value) -> Value {
        let found = self.pool.get_service_by_name(&format!("amalgam.v1.{service}")).expect("a service");
        let method = found.methods().find(|found| found.name() == method).expect("a method");
        let message = DynamicMessage::deserialize(method.input(), fields).expect("a message").encode_to_vec();
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).unwrap());
        body.put_slice(&message);
        let path = format!("amalgam.v1.{service}/{}", method.name());
        let mut request = empty_call(&path, &[("x-api-key", &self.key)]);
        *request.body_mut() = Body::new(Full::new(body.freeze()));
        let mut channel = self.server.channel().await;
        let response = channel.ready().await.unwrap().call(request).await.unwrap();
        let refused =
            tonic::Status::from_header_map(response.headers()).filter(|status| status.code() != tonic::Code::Ok);
        assert!(refused.is_none(), "{path}: {refused:?}");
        let mut bytes: Bytes = response.into_body().collect().await.unwrap().to_bytes();
        bytes.advance(5);
        let answer = DynamicMessage::decode(method.output(), bytes).expect("the old client reads the answer");
        serde_json::to_value(&answer).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_landed_api_works_with_this_server() {
    let mut server = Running::start().await;
    let key = server.key("merge", &[], false).await;
    let pool = DescriptorPool::decode(LANDED).expect("the image of the landed API");
    let client = OldClient { server: &server, pool, key };
    client.call("WorkspaceService", "CreateWorkspace", json!({"workspaceId": "main", "requestId": "1"})).await;
    let write = |text: &str| json!({"write": {"path": "a", "text": text}});
    let commit = json!({"workspace": "workspaces/main", "edits": [write("one")], "requestId": "2"});
    let committed = client.call("FileService", "CommitEdits", commit.clone()).await;
    assert_eq!(client.call("FileService", "CommitEdits", commit).await, committed, "a retry");
    let fork = json!({"name": "workspaces/main", "workspaceIds": ["try"]});
    client.call("WorkspaceService", "ForkWorkspace", fork).await;
    let edit = json!({"workspace": "workspaces/try", "edits": [write("two")]});
    client.call("FileService", "ApplyEdits", edit).await;
    client.call("WorkspaceService", "CommitWorkspace", json!({"name": "workspaces/try", "message": "m"})).await;
    let merge = json!({"target": "workspaces/main", "sources": ["workspaces/try"]});
    let merged = client.call("MergeService", "MergeWorkspaces", merge).await;
    assert!(merged["merge"]["how"].as_str().is_some(), "{merged}");
    let found = client.call("WorkspaceService", "GetWorkspace", json!({"name": "workspaces/main"})).await;
    assert_eq!(found["workspace"]["name"], "workspaces/main");
    let listed = client.call("WorkspaceService", "ListWorkspaces", json!({})).await;
    assert_eq!(listed["workspaces"].as_array().unwrap().len(), 2);
    client.call("MergeService", "ListQueue", json!({})).await;
    client.call("StoreService", "MeasureStore", json!({})).await;
    server.stop().await;
}

/// What of a message a landed client relies on: numbers, kinds and labels of fields.
fn promises(message: &MessageDescriptor) -> Vec<(u32, String, String)> {
    let kind = |kind: Kind| match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(found) => found.full_name().to_owned(),
        other => format!("{other:?}"),
    };
    let promise = |field: prost_reflect::FieldDescriptor| {
        let name = format!("{} {:?}", field.json_name(), field.cardinality());
        (field.number(), name, kind(field.kind()))
    };
    message.fields().map(promise).collect()
}

#[test]
fn no_landed_method_field_or_enum_value_was_taken_away() {
    let (landed, now) =
        (DescriptorPool::decode(LANDED).unwrap(), DescriptorPool::decode(amalgam_proto::FILE_DESCRIPTOR_SET).unwrap());
    for service in landed.services().filter(|service| service.full_name().starts_with("amalgam.v1.")) {
        for method in service.methods() {
            let found = now.get_service_by_name(service.full_name()).and_then(|now| {
                now.methods().find(|found| {
                    let types = (found.input().full_name() == method.input().full_name())
                        && found.output().full_name() == method.output().full_name();
                    found.name() == method.name()
                        && types
                        && found.is_server_streaming() == method.is_server_streaming()
                        && found.is_client_streaming() == method.is_client_streaming()
                })
            });
            assert!(found.is_some(), "{}/{} has gone or has other types", service.full_name(), method.name());
        }
    }
    for message in landed.all_messages().filter(|message| message.package_name() == "amalgam.v1") {
        let found = now.get_message_by_name(message.full_name());
        let found = found.unwrap_or_else(|| panic!("{} has gone", message.full_name()));
        let fields = promises(&found);
        for promise in promises(&message) {
            assert!(fields.contains(&promise), "{}: {promise:?} has gone or is another", message.full_name());
        }
    }
    for kind in landed.all_enums().filter(|kind| kind.package_name() == "amalgam.v1") {
        let found = now.get_enum_by_name(kind.full_name()).unwrap_or_else(|| panic!("{} has gone", kind.full_name()));
        for value in kind.values() {
            let is_there = found.get_value(value.number()).is_some_and(|found| found.name() == value.name());
            assert!(is_there, "{} of {} has gone", value.name(), kind.full_name());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_format_is_refused_clearly_and_other_projects_go_on() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    for project in ["old", "new"] {
        let made =
            server.rest(Method::POST, "/api/v1/projects", &auth, json!({"projectId": project}).to_string()).await;
        assert_eq!(made.status, 200, "{:?}", made.bytes);
    }
    server.stop().await;
    let directory = server.home.path().join("projects");
    let header = directory.join("new/store/AMALGAM");
    let text = std::fs::read_to_string(&header).expect("the header of the store of `new`");
    let (before, number) = text.trim_end().rsplit_once("format ").expect("a format");
    let number: u32 = number.lines().next().unwrap().parse().expect("its number");
    let newer = text.replace(&format!("format {number}"), &format!("format {}", number + 5));
    assert_ne!(newer, text, "{before}");
    std::fs::write(&header, newer).unwrap();
    let mut server = server.restart(Setup::default()).await;
    let refused = server.rest(Method::GET, "/api/v1/projects/new/workspaces", &auth, "").await;
    assert_eq!(refused.status, 409, "{:?}", refused.bytes);
    let (error, message) = (&refused.json()["error"], refused.json()["error"]["message"].to_string());
    assert_eq!(error["details"]["reason"], "UNSUPPORTED");
    assert!(message.contains("newer version") && message.contains("upgrade"), "{message}");
    assert!(!message.contains(server.home.path().to_str().unwrap()), "no path of the host: {message}");
    let other = server.rest(Method::GET, "/api/v1/projects/old/workspaces", &auth, "").await;
    assert_eq!(other.status, 200, "{:?}", other.bytes);
    server.stop().await;
}
