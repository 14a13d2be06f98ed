//! Sandboxes whose workspace and home are checkouts: real directories that are captured.

use std::path::Path;
use std::time::Duration;

use amalgam_gateway::{AccessSetting, SandboxOptions};
use http::Method;
use serde_json::{Value, json};

use crate::running::Setup;
use crate::site::{Site, WITHIN, agent};

/// Gives sandboxes checkouts, and looks for expired ones often.
pub fn by_checkout(options: &mut SandboxOptions) {
    options.workspace_access = AccessSetting::Checkout;
    options.expiry_interval = Duration::from_millis(100);
}

impl Site {
    /// Runs a command that has to succeed. Returns its output.
    pub async fn said(&self, id: &str, command: &str) -> String {
        let done = self.run(id, command).await;
        assert_eq!(done["exitCode"], 0, "{command}: {done}");
        done["stdout"].as_str().unwrap().to_owned()
    }

    /// Forks a sandbox once. Returns the id of the copy.
    pub async fn copy_of(&self, id: &str) -> String {
        let forked = self.call(Method::POST, &format!("/sandboxes/{id}/fork"), json!({})).await;
        assert_eq!(forked.status, 200, "{:?}", forked.bytes);
        forked.json()["sandboxes"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Deletes a sandbox and keeps its workspace.
    pub async fn end(&self, id: &str) {
        let ended = self.call(Method::DELETE, &format!("/sandboxes/{id}?keep_workspace=true"), Value::Null).await;
        assert_eq!(ended.status, 200, "{:?}", ended.bytes);
    }

    pub async fn workspace_of(&self, id: &str) -> String {
        self.get(id).await["workspace"].as_str().unwrap().to_owned()
    }
}

/// Fails unless nothing of a sandbox is left on the disk.
fn assert_gone(site: &Site, id: &str) {
    let directory = site.server.home.path().join("sandboxes").join(id);
    assert!(!directory.exists(), "{:?}", std::fs::read_dir(&directory).map(Iterator::count));
}

/// Makes every file system call of the tests below that a checkout has to carry over.
const SET_UP: &str = "echo kept > note; mkdir -p deep/er; echo low > deep/er/file; ln -s note link; chmod 700 deep; mkfifo pipe; \
                      echo '*' > .amalgamignore; echo ignored > built.o; echo home > ~/note; echo temporary > /sandbox/.tmp/note";
const SHOW: &str = "cat note deep/er/file link built.o ~/note /sandbox/.tmp/note; stat -c %a deep; test -p pipe";
const SHOWN: &str = "kept\nlow\nkept\nignored\nhome\ntemporary\n700\n";

/// A sandbox works in a checkout, is forked, expires, is started again and is deleted. No file is lost on the way.
pub async fn assert_life_in_a_checkout(site: &Site, template: &Value) {
    let with = |more: Value| {
        let mut body = template.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let refused = site.call(Method::POST, "/sandboxes", with(json!({"resources": {"disk": "1g"}}))).await;
    assert_eq!(refused.json()["error"]["name"], "LIMIT_NOT_ENFORCED", "{:?}", refused.bytes);
    let id = site.create(with(json!({"envs": {"COLOUR": "blue"}}))).await;
    let sandbox = site.get(&id).await;
    assert_eq!(sandbox["provider"], "checkout", "{sandbox}");
    assert!(sandbox["forkCost"].as_str().unwrap().contains("written again"), "{sandbox}");
    let disk = sandbox["limits"].as_array().unwrap().iter().find(|one| one["limit"] == "disk").unwrap().clone();
    assert_eq!(disk["enforcedBy"], "none", "{disk}");
    let stats = site.call(Method::GET, &format!("/sandboxes/{id}/stats"), Value::Null).await.json();
    assert!(stats["disk"]["limit"].as_i64().unwrap_or(0) == 0, "{stats}");
    let workspace = site.workspace_of(&id).await;
    site.said(&id, SET_UP).await;
    assert_eq!(site.said(&id, SHOW).await, SHOWN);
    // The API shows what is in the directory now, and edits by call reach the sandbox.
    assert_eq!(&site.read(&workspace, "note").await.bytes[..], b"kept\n");
    let name = workspace.strip_prefix("workspaces/").unwrap().replace('/', "%2F");
    let edits = json!({"message": "edit", "edits": [{"write": {"path": "edited", "text": "by call\n"}}]});
    let edited = site.call(Method::POST, &format!("/workspaces/{name}/commit-edits"), edits).await;
    assert_eq!(edited.status, 200, "{:?}", edited.bytes);
    assert_eq!(site.said(&id, "cat edited; rm edited").await, "by call\n");
    let live = site.call(Method::PUT, &format!("/workspaces/{name}/files/note"), json!("live")).await;
    assert!(live.status.is_client_error(), "{:?}", live.bytes);
    let copy = site.copy_of(&id).await;
    assert_eq!(site.get(&copy).await["provider"], "checkout");
    assert_eq!(site.said(&copy, SHOW).await, SHOWN);
    site.said(&copy, "echo changed > note; rm ~/note; echo more > built.o").await;
    assert_eq!(site.said(&id, SHOW).await, SHOWN, "each has its own");
    let of_copy = site.workspace_of(&copy).await;
    site.end(&copy).await;
    assert_eq!(&site.read(&of_copy, "note").await.bytes[..], b"changed\n");
    assert_eq!(&site.read(&of_copy, "built.o").await.bytes[..], b"more\n", "no pattern leaves it out");
    assert_gone(site, &copy);
    // It expires, and is started again with everything.
    let set = site.call(Method::POST, &format!("/sandboxes/{id}/timeout"), json!({"seconds": 0})).await;
    assert_eq!(set.status, 200, "{:?}", set.bytes);
    site.reach(&id, "stopped").await;
    let directory = site.server.home.path().join("sandboxes").join(&id);
    assert!(!directory.join("workspace/note").exists(), "its files are in the store");
    assert_eq!(&site.read(&workspace, "note").await.bytes[..], b"kept\n");
    let resumed = site.call(Method::POST, &format!("/sandboxes/{id}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200, "{:?}", resumed.bytes);
    assert_eq!(site.said(&id, SHOW).await, SHOWN);
    assert_eq!(site.said(&id, "echo $COLOUR").await, "blue\n");
    // Another sandbox in the same workspace has the files and the home.
    site.end(&id).await;
    assert_gone(site, &id);
    let next = site.create(with(json!({"workspace": workspace, "readOnly": true}))).await;
    assert_eq!(site.said(&next, "cat note ~/note; ! touch x 2> /dev/null").await, "kept\nhome\n");
    let deleted = site.call(Method::DELETE, &format!("/sandboxes/{next}"), Value::Null).await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert_gone(site, &next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_in_a_checkout_forks_expires_and_starts_again_without_a_loss() {
    let mut site = Site::start_with(by_checkout).await;
    assert_life_in_a_checkout(&site, &json!({"template": "host"})).await;
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkouts_and_mounts_follow_each_other_in_one_workspace() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    assert_eq!(site.get(&id).await["provider"], "fuse");
    assert!(site.get(&id).await["forkCost"].as_str().unwrap().contains("nothing is copied"));
    let workspace = site.workspace_of(&id).await;
    site.said(&id, "echo mounted > note; echo mounted > ~/note").await;
    site.end(&id).await;
    for (access, provider, text) in
        [(AccessSetting::Checkout, "checkout", "mounted"), (AccessSetting::Fuse, "fuse", "checked out")]
    {
        let mut options = SandboxOptions::new(site.server.home.path().join("sandboxes"), agent());
        options.workspace_access = access;
        site.server = site.server.restart(Setup { sandboxes: Some(options), ..Setup::default() }).await;
        let id = site.create(json!({"template": "host", "workspace": workspace})).await;
        assert_eq!(site.get(&id).await["provider"], provider);
        assert_eq!(site.said(&id, "cat note ~/note").await, format!("{text}\n{text}\n"));
        site.said(&id, "echo checked out > note; echo checked out > ~/note").await;
        site.end(&id).await;
    }
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_puts_checkouts_away_and_the_next_one_has_their_files() {
    let mut site = Site::start_with(by_checkout).await;
    let id = site.create(json!({"template": "host"})).await;
    site.said(&id, "echo kept > note; echo kept > ~/note").await;
    let mut options = SandboxOptions::new(site.server.home.path().join("sandboxes"), agent());
    by_checkout(&mut options);
    site.server = site.server.restart(Setup { sandboxes: Some(options), ..Setup::default() }).await;
    assert!(!site.server.home.path().join("sandboxes").join(&id).join("workspace/note").exists());
    let resumed = site.call(Method::POST, &format!("/sandboxes/{id}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200, "{:?}", resumed.bytes);
    assert_eq!(site.said(&id, "cat note ~/note").await, "kept\nkept\n");
    site.server.stop().await;
}

/// Swaps directories, files, links and pipes as fast as it can until a file appears.
fn swapping(canary: &Path) -> String {
    let canary = canary.display();
    format!(
        "import os, sys
def link(name, to):
    os.symlink(to, name + '.new'); os.rename(name + '.new', name)
os.makedirs('real/sub', exist_ok=True)
for name in ('real/file', 'real/sub/file', 'x'):
    open(name, 'w').write('mine')
rounds = 0
while not os.path.exists('/tmp/stop'):
    rounds += 1
    try:
        os.rename('real', 'away'); os.symlink('{canary}', 'real'); os.unlink('real'); os.rename('away', 'real')
        link('x', '{canary}/secret'); os.unlink('x'); os.mkfifo('x'); os.unlink('x'); open('x', 'w').write('mine')
        os.rename('real/sub', 'real/away'); os.symlink('{canary}', 'real/sub'); os.unlink('real/sub'); os.rename('real/away', 'real/sub')
    except OSError: pass
print(rounds)"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_in_a_checkout_lead_the_server_neither_to_read_nor_to_write_outside() {
    let mut site = Site::start_with(by_checkout).await;
    let canary = site.server.home.path().join("canary");
    std::fs::create_dir(&canary).unwrap();
    for name in ["secret", "file"] {
        std::fs::write(canary.join(name), "canary of the host").unwrap();
    }
    let listed = || {
        let mut names: Vec<_> = std::fs::read_dir(&canary).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let id = site.create(json!({"template": "host"})).await;
    let workspace = site.workspace_of(&id).await;
    let fixed = format!(
        "ln -s {0} up; ln -s {0}/secret out; ln -s / root; ln -s ../../../../../../../..{0}/secret climb; ln -s loop loop; mkfifo fifo; \
         ln {0}/secret hard 2> /dev/null; mknod dev b 8 0 2> /dev/null; true",
        canary.display()
    );
    site.said(&id, &fixed).await;
    let path = format!("/sandboxes/{id}/process/stream");
    let body = json!({"command": "python3 -", "stdin": swapping(&canary), "timeout": 60_000});
    let work = async {
        let is_foreign = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("canary of the host");
        for round in 0..12 {
            for path in
                ["x", "real/file", "real/sub/file", "real/secret", "real/sub/secret", "out", "up/secret", "climb"]
            {
                let read =
                    tokio::time::timeout(WITHIN, site.read(&workspace, path)).await.expect("no pipe is waited for");
                assert!(!is_foreign(&read.bytes), "{path}: {:?}", read.bytes);
            }
            if round == 6 {
                let copy = site.copy_of(&id).await;
                // The copy may have a pipe without a writer: opening it would block.
                let show = "for file in real/* real/sub/* x; do test -p $file || cat $file; done 2> /dev/null; true";
                let seen = site.said(&copy, show).await;
                assert!(!is_foreign(seen.as_bytes()), "{seen}");
                site.end(&copy).await;
            }
        }
        site.said(&id, "touch /tmp/stop").await;
    };
    let (swapped, ()) = tokio::join!(site.call(Method::POST, &path, body), work);
    assert_eq!(swapped.status, 200, "{:?}", swapped.bytes);
    site.said(
        &id,
        &format!("cd ~ && rm -rf .cache; ln -s {} .cache; ln -s {} .tmp2", canary.display(), canary.display()),
    )
    .await;
    site.end(&id).await;
    assert_gone(&site, &id);
    assert_eq!(listed(), ["file", "secret"]);
    for name in ["secret", "file"] {
        assert_eq!(std::fs::read_to_string(canary.join(name)).unwrap(), "canary of the host");
    }
    // A merge or an edit that writes through those links would write outside, too.
    let next = site.create(json!({"template": "host", "workspace": workspace})).await;
    assert_eq!(site.said(&next, "readlink up; cat x").await, format!("{}\nmine", canary.display()));
    site.said(&next, "cd ~ && rm -rf .tmp && ln -s / .tmp").await;
    let deleted = site.call(Method::DELETE, &format!("/sandboxes/{next}"), Value::Null).await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert_eq!(listed(), ["file", "secret"]);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_captured_stay_and_the_next_sandbox_has_them() {
    let mut site = Site::start_with(by_checkout).await;
    let id = site.create(json!({"template": "host"})).await;
    let workspace = site.workspace_of(&id).await;
    // Deeper than any path of a tree.
    let deep = "python3 -c 'import os\nfor i in range(3000):\n  os.mkdir(\"d\"); os.chdir(\"d\")\nopen(\"bottom\", \"w\").write(\"x\")'";
    site.said(&id, &format!("echo kept > note; mkdir nest; (cd nest && {deep})")).await;
    site.end(&id).await;
    assert!(site.server.home.path().join("sandboxes").join(&id).join("workspace/nest").exists(), "it is kept");
    assert_eq!(&site.read(&workspace, "note").await.bytes[..], b"kept\n");
    let next = site.create(json!({"template": "host", "workspace": workspace})).await;
    assert_eq!(site.said(&next, "cat note; ls nest; rm -rf nest; echo more > note").await, "kept\nd\n");
    site.end(&next).await;
    assert_gone(&site, &next);
    assert_eq!(&site.read(&workspace, "note").await.bytes[..], b"more\n");
    // With its workspace all of it is deleted.
    let last = site.create(json!({"template": "host"})).await;
    site.said(&last, &format!("mkdir nest; cd nest && {deep}")).await;
    let deleted = site.call(Method::DELETE, &format!("/sandboxes/{last}"), Value::Null).await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert_gone(&site, &last);
    site.server.stop().await;
}
