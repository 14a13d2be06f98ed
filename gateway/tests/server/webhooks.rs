//! Webhooks: events arrive signed and in order, failures are retried, a restart loses none, and private addresses are not called.

use std::time::Duration;

use amalgam_gateway::WebhookOptions;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Method;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::receiver::{Received, Receiver};
use crate::running::{Running, Setup};

fn setup() -> Setup {
    let allow = vec!["127.0.0.0/8".parse().unwrap()];
    let first_delay = Duration::from_millis(10);
    let webhooks = WebhookOptions { allow, first_delay, timeout: Duration::from_secs(2), ..WebhookOptions::default() };
    Setup { webhooks, ..Setup::default() }
}

/// Makes one call as an admin.
async fn call(server: &Running, key: &str, method: Method, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    answer.json()
}

/// Makes a webhook. Returns its id and its secret.
async fn create(server: &Running, key: &str, fields: Value) -> (String, String) {
    let made = call(server, key, Method::POST, "/webhooks", fields).await;
    let id = made["webhook"]["name"].as_str().unwrap().strip_prefix("webhooks/").unwrap().to_owned();
    (id, made["secret"].as_str().unwrap().to_owned())
}

async fn workspace(server: &Running, key: &str, name: &str) {
    call(server, key, Method::POST, "/workspaces", json!({"workspaceId": name})).await;
}

/// The deliveries of a webhook once none is pending, newest first.
async fn finished(server: &Running, key: &str, id: &str) -> Vec<Value> {
    let waiting = async {
        loop {
            let listed = call(server, key, Method::GET, &format!("/webhooks/{id}/deliveries"), Value::Null).await;
            let deliveries = listed["deliveries"].as_array().unwrap().clone();
            if deliveries.iter().all(|delivery| delivery["state"] != "DELIVERY_STATE_PENDING") && !deliveries.is_empty()
            {
                return deliveries;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("deliveries end")
}

fn mac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

/// Checks both signatures as a receiver does.
fn check_signatures(received: &Received, secret: &str) {
    let signed = format!("{}.{}.", received.header("webhook-id"), received.header("webhook-timestamp"));
    let signed = [signed.as_bytes(), &received.body].concat();
    let key = data_encoding::BASE64.decode(secret.strip_prefix("whsec_").unwrap().as_bytes()).unwrap();
    let standard = format!("v1,{}", data_encoding::BASE64.encode(&mac(&key, &signed)));
    assert_eq!(received.header("webhook-signature"), standard);
    let simple = format!("sha256={}", data_encoding::HEXLOWER.encode(&mac(secret.as_bytes(), &received.body)));
    assert_eq!(received.header("x-webhook-signature"), simple);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_signed_in_order_and_filtered() {
    let (receiver, mut server) = (Receiver::start().await, Running::with(setup()).await);
    let key = server.key("admin", &[], false).await;
    workspace(&server, &key, "before").await;
    let fields = json!({"url": receiver.url(), "kinds": ["workspace.created"], "workspaces": ["workspaces/agents/*"]});
    let (id, secret) = create(&server, &key, fields).await;
    for name in ["main", "agents/ann", "agents/bob", "other"] {
        workspace(&server, &key, name).await;
    }
    let received = receiver.wait_for(2).await;
    let names: Vec<_> = received.iter().map(|one| one.json()["data"]["workspaces"][0].clone()).collect();
    assert_eq!(names, ["workspaces/agents/ann", "workspaces/agents/bob"]);
    for one in &received {
        check_signatures(one, &secret);
        let body = one.json();
        assert_eq!((one.path.as_str(), one.header("content-type").as_str()), ("/hook?x=1", "application/json"));
        assert_eq!(
            (&body["type"], &body["event"], one.header("x-webhook-event").as_str()),
            (&"workspace.created".into(), &"workspace.created".into(), "workspace.created")
        );
        assert_eq!((&body["data"]["project"], &body["data"]["actor"]), (&"default".into(), &"ann".into()));
        assert!(
            one.header("webhook-id").starts_with("evt-default-") && body["timestamp"].as_str().unwrap().ends_with('Z')
        );
    }
    let listed = call(&server, &key, Method::GET, "/webhooks", Value::Null).await;
    assert!(!listed.to_string().contains(&secret), "a secret is shown once");
    let deleted = server.rest(Method::DELETE, &format!("/api/v1/webhooks/{id}"), &[("x-api-key", &key)], "").await;
    assert_eq!(deleted.status, 200);
    let gone = server.rest(Method::GET, &format!("/api/v1/webhooks/{id}"), &[("x-api-key", &key)], "").await;
    assert_eq!(gone.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_delivery_is_tried_again_with_the_same_id_and_then_given_up() {
    let (receiver, mut server) = (Receiver::start().await, Running::with(setup()).await);
    let key = server.key("admin", &[], false).await;
    let (id, _) = create(&server, &key, json!({"url": receiver.url()})).await;
    receiver.answer([Some(500), Some(302), Some(200)]);
    workspace(&server, &key, "one").await;
    let received = receiver.wait_for(3).await;
    let ids: Vec<_> = received.iter().map(|one| one.header("webhook-id")).collect();
    assert!(ids.iter().all(|one| *one == ids[0]), "{ids:?}");
    let done = finished(&server, &key, &id).await;
    assert_eq!((&done[0]["state"], &done[0]["attempts"]), (&"DELIVERY_STATE_DELIVERED".into(), &3.into()));
    receiver.answer([Some(500); 4]);
    workspace(&server, &key, "two").await;
    workspace(&server, &key, "three").await;
    // Four tries of the second event, then the third one goes on.
    receiver.wait_for(3 + 4 + 1).await;
    let done = finished(&server, &key, &id).await;
    let states: Vec<_> = done.iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["DELIVERY_STATE_DELIVERED", "DELIVERY_STATE_FAILED", "DELIVERY_STATE_DELIVERED"]);
    assert_eq!((&done[1]["attempts"], &done[1]["status"]), (&4.into(), &500.into()));
    let (number, before) = (done[1]["number"].as_i64().unwrap(), receiver.received().len());
    call(&server, &key, Method::POST, &format!("/webhooks/{id}/deliveries/{number}/replay"), json!({})).await;
    let replayed = receiver.wait_for(before + 1).await.pop().unwrap();
    assert_eq!(replayed.json()["data"]["workspaces"][0], "workspaces/two");
    let done = finished(&server, &key, &id).await;
    assert_eq!(done[1]["state"], "DELIVERY_STATE_DELIVERED");
    let failed = call(&server, &key, Method::GET, &format!("/webhooks/{id}/deliveries?failed=true"), Value::Null).await;
    assert_eq!(failed["deliveries"].as_array().unwrap().len(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_loses_no_event() {
    let receiver = Receiver::start().await;
    let (address, url) = (receiver.address, receiver.url());
    let patient = || {
        let setup = setup();
        // It still waits for a retry when the server stops.
        Setup { webhooks: WebhookOptions { first_delay: Duration::from_secs(3_600), ..setup.webhooks }, ..setup }
    };
    let mut server = Running::with(patient()).await;
    let key = server.key("admin", &[], false).await;
    let (id, _) = create(&server, &key, json!({"url": url})).await;
    receiver.answer([Some(503)]);
    workspace(&server, &key, "one").await;
    workspace(&server, &key, "two").await;
    receiver.wait_for(1).await;
    drop(receiver);
    server.stop().await;
    let receiver = Receiver::at(address).await;
    let server = server.restart(setup()).await;
    // The retry is due in an hour; another process brings it forward.
    let id = id.parse().unwrap();
    server.catalog.replay_delivery(&id, 1, crate::running::now()).await.unwrap();
    let received = receiver.wait_for(2).await;
    let names: Vec<_> = received.iter().map(|one| one.json()["data"]["workspaces"][0].clone()).collect();
    assert_eq!(names, ["workspaces/one", "workspaces/two"]);
    let mut server = server;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_not_called_unless_allowed() {
    let receiver = Receiver::start().await;
    let first_delay = Duration::from_millis(1);
    let strict = WebhookOptions { first_delay, retries: 1, ..WebhookOptions::default() };
    let mut server = Running::with(Setup { webhooks: strict, ..Setup::default() }).await;
    let key = server.key("admin", &[], false).await;
    let port = receiver.address.port();
    // By number, by a name that leads there, and in disguise.
    for url in [receiver.url(), format!("http://localhost:{port}/"), format!("http://[::ffff:127.0.0.1]:{port}/")] {
        let (id, _) = create(&server, &key, json!({"url": url})).await;
        call(&server, &key, Method::POST, &format!("/webhooks/{id}/test"), json!({})).await;
        let done = finished(&server, &key, &id).await;
        assert_eq!(done[0]["state"], "DELIVERY_STATE_FAILED", "{url}");
        assert!(done[0]["error"].as_str().unwrap().contains("no public address"), "{url}: {}", done[0]);
    }
    assert!(receiver.received().is_empty());
    for bad in [
        json!({"url": "file:///etc/passwd"}),
        json!({"url": "http://a:b@c/"}),
        json!({"url": "http://a/", "kinds": ["x"]}),
    ] {
        let refused = server.rest(Method::POST, "/api/v1/webhooks", &[("x-api-key", &key)], bad.to_string()).await;
        assert_eq!(refused.status, 400, "{bad}: {:?}", refused.bytes);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_is_delivered_and_a_receiver_that_hangs_is_cut_off() {
    let receiver = Receiver::start().await;
    let hasty = setup();
    let webhooks = WebhookOptions { timeout: Duration::from_millis(100), retries: 0, ..hasty.webhooks };
    let mut server = Running::with(Setup { webhooks, ..hasty }).await;
    let key = server.key("admin", &[], false).await;
    let (id, secret) = create(&server, &key, json!({"url": receiver.url(), "kinds": ["label.*"]})).await;
    call(&server, &key, Method::POST, &format!("/webhooks/{id}/test"), json!({})).await;
    let received = receiver.wait_for(1).await;
    check_signatures(&received[0], &secret);
    assert_eq!(received[0].json()["type"], "webhook.test");
    assert_eq!(finished(&server, &key, &id).await[0]["state"], "DELIVERY_STATE_DELIVERED");
    receiver.answer([None]);
    call(&server, &key, Method::POST, &format!("/webhooks/{id}/test"), json!({})).await;
    let done = finished(&server, &key, &id).await;
    assert_eq!(done[0]["state"], "DELIVERY_STATE_FAILED");
    assert!(done[0]["error"].as_str().unwrap().contains("did not answer within"), "{}", done[0]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_overlaps_arrive_with_their_paths() {
    let (receiver, mut server) = (Receiver::start().await, Running::with(setup()).await);
    let key = server.key("admin,read,write,merge", &[], false).await;
    let bob = server.key_of("bob", "read,write", &[], false).await;
    workspace(&server, &key, "main").await;
    let write = |path: &str| json!({"edits": [{"write": {"path": path, "text": path, "createParents": true}}]});
    call(&server, &key, Method::POST, "/workspaces/main/commit-edits", write("fixed/file")).await;
    let policy = "default = \"RW\"\n[[rule]]\nagents = [\"bob\"]\npaths = [\"fixed\"]\nlevel = \"R\"\n";
    call(&server, &key, Method::PUT, "/policy", json!({"text": policy})).await;
    create(&server, &key, json!({"url": receiver.url(), "kinds": ["policy.refused", "overlap.began"]})).await;
    let forks = json!({"workspaceIds": ["one", "two"]});
    call(&server, &bob, Method::POST, "/workspaces/main/fork", forks).await;
    let path = "/api/v1/workspaces/one/edits";
    let refused = server.rest(Method::POST, path, &[("x-api-key", &bob)], write("fixed/file").to_string()).await;
    assert_eq!(refused.status, 403, "{:?}", refused.bytes);
    let data = receiver.wait_for(1).await[0].json()["data"].clone();
    assert_eq!((&data["agent"], &data["paths"]), (&json!("bob"), &json!(["fixed/file"])), "{data}");
    assert!(data["detail"].as_str().unwrap().contains("the rule on line 2"), "{data}");
    for workspace in ["one", "two"] {
        call(&server, &bob, Method::POST, &format!("/workspaces/{workspace}/commit-edits"), write("free")).await;
    }
    let data = receiver.wait_for(2).await[1].json()["data"].clone();
    assert_eq!(
        (&data["paths"], &data["workspaces"]),
        (&json!(["free"]), &json!(["workspaces/one", "workspaces/two"])),
        "{data}"
    );
    server.stop().await;
}
