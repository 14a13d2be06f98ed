//! Tests of a link without an agent: the tests register as one.

use std::collections::HashMap;
use std::path::Path;

use super::*;

const SANDBOX: &str = "sbx-one";

/// Returns the options of a link in a directory, which forget the secrets that the agent gets.
fn options(directory: &Path, secret: &Secret) -> LinkOptions {
    LinkOptions {
        sandbox_id: SANDBOX.to_owned(),
        socket: directory.join("agent.sock"),
        owner: None,
        credential: secret.hash(),
        save_credential: Box::new(|_credential| {}),
        heartbeat: Duration::from_secs(30),
        orphaned_after: Duration::from_secs(60),
        spool: directory.join("output"),
        on_outgoing: None,
        now_ms: || 0,
    }
}

/// Registers with a secret, for the sandbox that the message and the registration in it name.
fn register(link: &Link, orders: &Orders, (outer, inner): (&str, &str), secret: &str) -> Result<u64, Status> {
    let (sandbox_id, secret) = (inner.to_owned(), secret.to_owned());
    let request = wire::RegisterRequest { sandbox_id, secret, ..wire::RegisterRequest::default() };
    let payload = Some(Payload::Register(request));
    let sandbox_id = outer.to_owned();
    link.register(&wire::ConnectRequest { sandbox_id, payload, ..wire::ConnectRequest::default() }, orders)
}

#[tokio::test]
async fn another_sandbox_and_a_replayed_secret_do_not_register() {
    let directory = tempfile::tempdir().expect("made");
    let secret = Secret::generate().expect("random");
    let saved = Arc::new(Mutex::new(Vec::new()));
    let save = Arc::clone(&saved);
    let link = Link::listen(LinkOptions {
        save_credential: Box::new(move |credential| save.lock().push(credential)),
        ..options(directory.path(), &secret)
    })
    .expect("listens");
    let (orders, mut told) = mpsc::channel(4);
    let register = |outer: &str, inner: &str, secret: &str| register(&link, &orders, (outer, inner), secret);
    for (outer, inner) in [("sbx-two", "sbx-two"), ("sbx-two", SANDBOX), (SANDBOX, "sbx-two"), ("", "")] {
        assert!(register(outer, inner, secret.reveal()).is_err(), "{outer} {inner}");
    }
    assert!(register(SANDBOX, SANDBOX, "guessed").is_err());
    assert!(!link.is_connected() && told.try_recv().is_err());
    assert!(register(SANDBOX, SANDBOX, secret.reveal()).is_ok());
    let first = told.try_recv().expect("an answer").expect("good");
    let Some(Order::RegisterResponse(response)) = first.payload else { panic!("{first:?}") };
    assert!(saved.lock().is_empty(), "the agent may not have the next secret");
    // The agent used its next secret, so it has it: the first one is worth nothing.
    assert!(register(SANDBOX, SANDBOX, &response.resume_token).is_ok());
    assert_eq!(*saved.lock(), [SecretHash::of(&response.resume_token)], "the next server admits the agent");
    assert!(register(SANDBOX, SANDBOX, secret.reveal()).is_err());
    link.close("the test ends");
    assert!(register(SANDBOX, SANDBOX, &response.resume_token).is_err());
}

#[tokio::test]
async fn a_command_that_is_started_before_the_agent_registers_is_not_lost() {
    let directory = tempfile::tempdir().expect("made");
    let secret = Secret::generate().expect("random");
    let link = Link::listen(options(directory.path(), &secret)).expect("listens");
    let starting = tokio::spawn({
        let link = link.clone();
        async move { link.start_command(CommandSpec::default()).await }
    });
    // The call waits for the agent.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (orders, mut told) = mpsc::channel(4);
    assert!(register(&link, &orders, (SANDBOX, SANDBOX), secret.reveal()).is_ok());
    link.inner.connected.send_replace(true);
    let command = starting.await.expect("ended").expect("started");
    let sent: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).flatten().filter_map(|sent| sent.payload).collect();
    assert!(matches!(&sent[..], [Order::RegisterResponse(_), Order::RunCommand(_)]), "{sent:?}");
    tokio::time::sleep(MISSING_AFTER * 3).await;
    assert_eq!(command.end(), None);
    link.close("the test ends");
}

#[tokio::test]
async fn refused_and_unsent_commands_and_terminals_leave_no_files() {
    const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
    let directory = tempfile::tempdir().expect("made");
    let secret = Secret::generate().expect("random");
    let link = Link::listen(options(directory.path(), &secret)).expect("listens");
    let files = || std::fs::read_dir(directory.path().join("output")).expect("a directory").count();
    let open = || {
        let shell = (String::new(), Vec::new());
        link.open_terminal(SIZE, shell, String::new(), HashMap::new(), Secrets::default())
    };
    // Without an agent.
    assert!(matches!(open().await, Err(SandboxError::NotConnected)));
    assert!(matches!(link.start_command(CommandSpec::default()).await, Err(SandboxError::NotConnected)));
    assert_eq!(files(), 0);
    // With an agent that takes as many terminals as it may, and no more.
    let (orders, mut told) = mpsc::channel(TERMINALS_MAX + 1);
    assert!(register(&link, &orders, (SANDBOX, SANDBOX), secret.reveal()).is_ok());
    link.inner.connected.send_replace(true);
    for _ in 0..TERMINALS_MAX {
        open().await.expect("opened");
    }
    let files_open = files();
    assert!(matches!(open().await, Err(SandboxError::TooManyTerminals(TERMINALS_MAX))));
    assert_eq!(files(), files_open);
    // The connection breaks before the order is sent.
    told.close();
    assert!(matches!(link.start_command(CommandSpec::default()).await, Err(SandboxError::NotConnected)));
    let first = link.inner.state.lock().terminals.pop_first().expect("a terminal").0;
    link.inner.spool.remove(&first);
    let files_open = files();
    assert!(matches!(open().await, Err(SandboxError::NotConnected)));
    assert_eq!(files(), files_open);
    link.close("the test ends");
    // The next server finds the open terminals, and no others.
    let next = Link::listen(options(directory.path(), &secret)).expect("listens");
    assert_eq!(next.inner.state.lock().terminals.len(), TERMINALS_MAX - 1);
    assert!(next.commands().is_empty());
    next.close("the test ends");
}
