//! The command over the network: logging in, contexts, and commands that work on a server.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::scratch::Scratch;
use crate::served::{Served, key};

/// A server with the workspace `main` of one file, to which the user has logged in and which commands use.
fn logged_in() -> (Scratch, Served) {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,admin");
    let server = Served::start(&scratch);
    scratch.run(&format!("echo {key} | amalgam login {} --name dev --use", server.url));
    (scratch, server)
}

/// What a command that fails prints.
#[track_caller]
fn fails(scratch: &Scratch, line: &str, code: i32) -> String {
    let done = scratch.output(line);
    let said = String::from_utf8(done.stderr).expect("text");
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    said
}

/// Writes a file into the live tree of a workspace, by REST.
fn write(scratch: &Scratch, server: &Served, key: &str, path: &str, text: &str) {
    let url = format!("{}/api/v1/workspaces/{path}", server.url);
    scratch.run(&format!(
        "printf '%s' '{text}' | curl -sS --fail-with-body -o /dev/null -X PUT -H 'X-API-Key: {key}' --data-binary @- {url}"
    ));
}

#[test]
fn commands_without_a_directory_work_on_a_server() {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,admin");
    let server = Served::start(&scratch);
    scratch.run(&format!("echo {key} | amalgam login {} --name dev --use", server.url));
    let run = |line: &str| scratch.run(line);
    run("amalgam ws create main");
    write(&scratch, &server, &key, "main/files/src/app.py", "print(1)\n");
    assert!(run("amalgam status -w main && amalgam status -w main --json").contains("src/app.py"));
    assert_eq!(scratch.output("amalgam status -w main --exit-code").status.code(), Some(4));
    assert!(run("amalgam commit -w main -m first --label v1").contains("main"));
    run("amalgam status -w main --exit-code");
    run("amalgam fork --from main try");
    write(&scratch, &server, &key, "try/files/src/app.py", "print(2)\n");
    run("amalgam commit -w try -m second");
    assert_eq!(run("amalgam cat main:src/app.py"), "print(1)\n");
    assert_eq!(run("amalgam show try:src/app.py"), "print(2)\n");
    assert!(run("amalgam ls main:").contains("src"));
    assert!(run("amalgam log try").contains("second"));
    assert!(run("amalgam diff main@ try@").contains("+print(2)"));
    assert!(run("amalgam grep -F 'print(2)' try").contains("src/app.py"));
    assert!(run("amalgam find --all 'app*'; true").contains("app.py"));
    run("amalgam blame try:src/app.py");
    assert!(run("amalgam label").contains("v1"));
    assert!(run("amalgam ws ls").contains("try"));
    run("amalgam merge try --into main");
    assert_eq!(run("amalgam cat main:src/app.py"), "print(2)\n");
    run("amalgam undo -w main");
    assert_eq!(run("amalgam cat main:src/app.py"), "print(1)\n");
    run("amalgam redo -w main");
    assert_eq!(run("amalgam cat main:src/app.py"), "print(2)\n");
    for side in ["one", "two"] {
        run(&format!("amalgam fork --from main {side}"));
        write(&scratch, &server, &key, &format!("{side}/files/src/app.py"), &format!("print('{side}')\n"));
        run(&format!("amalgam commit -w {side}"));
    }
    assert!(run("amalgam merge one two --into main || [ $? = 5 ]").contains("1 conflict left"));
    assert!(run("amalgam status -w main").contains("1 conflict at main@"));
    assert!(run("amalgam status -w main --json").contains("\"conflicts\":1"));
    assert_eq!(scratch.output("amalgam status -w main --exit-code").status.code(), Some(5));
    run("amalgam conflicts take theirs src/app.py -w main && amalgam status -w main --exit-code");
    let restored = run("amalgam restore -w main v1 2>&1");
    assert!(restored.contains("now at") && restored.contains("`amalgam undo -w main`"), "{restored}");
    assert!(run("amalgam commit -w main -m back 2>&1").contains("nothing to commit"));
    assert_eq!(run("amalgam cat main:src/app.py"), "print(1)\n");
    assert!(run("amalgam op log").contains("merge"));
    run("amalgam queue && amalgam review && amalgam conflicts list main@; true");
    assert!(run("amalgam du").contains(&server.url));
    run("amalgam gc --dry-run && amalgam gc && amalgam verify");
    run("amalgam ws rm try && amalgam ws undelete try && amalgam ws rename try tried && amalgam ws show tried");
    run("amalgam export tar main@ -o ../main.tar && tar tf ../main.tar | grep -q app.py");
    assert!(!scratch.path().join("store").exists(), "the store of this machine was not made");
    let log: Value =
        serde_json::from_str(run("amalgam op log --json -n 1").lines().next().expect("a line")).expect("JSON");
    assert_eq!(log["actor"], "ann", "the author is the key's agent");
}

#[test]
fn commands_about_this_machine_say_so_and_what_to_do() {
    let (scratch, server) = logged_in();
    for (line, words) in [
        ("amalgam init", "amalgam clone"),
        ("amalgam status", "name a workspace with -w"),
        ("amalgam mount main ../m", "amalgam clone"),
        ("amalgam run -- true", "amalgam clone"),
        ("amalgam backup ../b", "machine of the server"),
        ("amalgam fork --from main x --dir ../x", "clone the fork"),
        ("amalgam ws rm x --dir", "leave them out"),
        ("amalgam commit", "name a workspace, as in `amalgam commit -w NAME`"),
        ("amalgam undo", "name a workspace, as in `amalgam undo -w NAME`"),
        ("amalgam --server dev logs", "machine of the server"),
        ("amalgam --server dev config", "machine of the server"),
        ("amalgam --server=dev doctor", "machine of the server"),
        ("amalgam stop --server dev", "machine of the server"),
        ("amalgam key ls --server dev", "machine of the server"),
        ("amalgam ws attach x", "LOCAL_ONLY"),
    ] {
        let said = fails(&scratch, &line.replace("amalgam ", "amalgam --json "), 1);
        assert!(said.contains(words), "{line}: {said}");
    }
    assert!(fails(&scratch, "amalgam init", 1).contains(&server.url));
    // A server that is not named as an option does not keep commands about this machine from working.
    scratch.run("amalgam config && AMALGAM_SERVER=dev amalgam config && amalgam --server local config");
    // The store of this machine is one option away.
    scratch.run("amalgam --server local init && amalgam --server local status && amalgam --store ../store log");
}

#[test]
fn contexts_are_listed_chosen_and_forgotten_and_hide_their_keys() {
    let (scratch, server) = logged_in();
    let file = scratch.path().join("config/amalgam/contexts.toml");
    assert_eq!(std::fs::metadata(&file).expect("written").permissions().mode() & 0o777, 0o600);
    let listed = scratch.run("amalgam context && amalgam context ls --json");
    assert!(listed.contains("* dev") && listed.contains(&server.url) && !listed.contains("am_"), "{listed}");
    scratch.run("amalgam context use local");
    assert_eq!(fails(&scratch, "amalgam ws", 10).matches("there is no store").count(), 1);
    scratch.run("amalgam --server dev ws && AMALGAM_SERVER=dev amalgam ws");
    let other = format!("amalgam --server {}/other ws", server.url);
    assert!(fails(&scratch, &other, 1).contains("other"), "the key of the host is used, and there is no such project");
    scratch.run("amalgam context use dev && amalgam context rm dev");
    assert!(!std::fs::read_to_string(&file).expect("read").contains("am_"));
    assert!(fails(&scratch, "amalgam context use dev", 2).contains("amalgam login URL"));
    let said = fails(&scratch, &format!("amalgam --server {} ws", server.url), 1);
    assert!(said.contains("amalgam login URL") && !said.contains("Bearer"), "{said}");
    // Without a context, the environment holds the key.
    let key = key(&scratch, "read");
    scratch.run(&format!("AMALGAM_API_KEY={key} amalgam --server {} ws", server.url));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("changed");
    std::fs::write(&file, "current = 'local'\n").expect("written");
    assert!(fails(&scratch, "amalgam context", 1).contains("chmod 600"));
}

#[test]
fn a_login_is_checked_before_it_is_stored() {
    let scratch = Scratch::new();
    let key = key(&scratch, "read");
    let server = Served::start(&scratch);
    let wrong = format!("{}x", &key[..key.len() - 1]);
    let said = fails(&scratch, &format!("echo {wrong} | amalgam login {}", server.url), 1);
    assert!(said.contains("not valid") && !said.contains(&wrong), "{said}");
    assert!(fails(&scratch, &format!("amalgam login {} < /dev/null", server.url), 1).contains("amalgam key create"));
    assert!(!scratch.path().join("config/amalgam/contexts.toml").exists());
    assert!(fails(&scratch, &format!("echo {key} | amalgam login http://10.255.0.1:1"), 1).contains("no TLS"));
    assert!(fails(&scratch, "amalgam login ftp://a", 2).contains("no URL of a server"));
    assert!(fails(&scratch, "echo x | amalgam login http://127.0.0.1:1", 1).contains("cannot be reached"));
    scratch.run(&format!("amalgam login {} --key {key} -q", server.url));
    scratch.run(&format!("AMALGAM_API_KEY={key} amalgam login {} -q --name again < /dev/null", server.url));
    // The scopes of the key apply.
    let said = fails(&scratch, &format!("amalgam --server {} ws create x", server.url), 1);
    assert!(said.contains("scope `write`"), "{said}");
}

#[test]
fn a_server_with_tls_is_trusted_by_the_authority_that_is_named() {
    let scratch = Scratch::new();
    let made = scratch.output(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
         -keyout ../key.pem -out ../cert.pem",
    );
    if !amalgam_test_support::has_or_skip("openssl", made.status.success(), "openssl cannot make a certificate") {
        return;
    }
    let other = Scratch::new();
    key(&other, "read");
    let plain = Served::start(&other);
    let url = plain.url.replacen("http", "https", 1);
    let said = fails(&scratch, &format!("echo x | amalgam login {url} --ca ../cert.pem"), 1);
    assert!(said.contains("does not speak TLS") && said.contains(&format!("try {}", plain.url)), "{said}");
    let key = key(&scratch, "write");
    let server = Served::with(&scratch, "--data ../data --tls-cert ../cert.pem --tls-key ../key.pem");
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let said = fails(&scratch, &format!("echo {key} | amalgam login {}", server.url), 1);
    assert!(said.contains("certificate") && said.contains("--ca"), "{said}");
    scratch.run(&format!("echo {key} | amalgam login {} --ca ../cert.pem --use", server.url));
    scratch.run("amalgam ws create main && amalgam ws");
    scratch.run(&format!(
        "AMALGAM_API_KEY={key} AMALGAM_CA=../cert.pem XDG_CONFIG_HOME=/nowhere amalgam --server {} ws",
        server.url
    ));
}

#[test]
fn a_server_that_asks_for_a_client_certificate_gets_the_one_of_the_login() {
    let scratch = Scratch::new();
    let made = scratch.output(
        "set -e; cd ..; new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'; \
         $new -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem; \
         for name in localhost client; do \
           $new -subj /CN=$name -keyout $name.key -out $name.csr; printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\n' > ext; \
           openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out $name.pem; \
         done",
    );
    if !amalgam_test_support::has_or_skip("openssl", made.status.success(), "openssl cannot make certificates") {
        return;
    }
    let key = key(&scratch, "write");
    let server = Served::with(
        &scratch,
        "--data ../data --tls-cert ../localhost.pem --tls-key ../localhost.key --tls-client-ca ../ca.pem",
    );
    fails(&scratch, &format!("echo {key} | amalgam login {} --ca ../ca.pem", server.url), 1);
    let certificate = "--client-cert ../client.pem --client-key ../client.key";
    scratch.run(&format!("echo {key} | amalgam login {} --ca ../ca.pem {certificate} --use", server.url));
    scratch.run("amalgam ws create main && amalgam ws");
}
