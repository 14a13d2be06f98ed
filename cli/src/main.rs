//! The `amalgam` command.

mod connect;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let [_, _, home, command, _, socket] = &arguments[..]
        && command == "serve"
    {
        let home = amalgam_server::Home::new(PathBuf::from(home));
        std::process::exit(serve::run(&home, socket.as_ref(), Duration::from_secs(600)));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let options = connect::ConnectOptions {
        home: std::env::var_os("AMALGAM_STORE").expect("a store").into(),
        actor: "me".to_owned(),
        in_process: arguments.len() > 1,
        create: true,
    };
    runtime.block_on(async {
        let mut client = connect::connect(&options).await.expect("a way");
        let told = client.store.get_store(amalgam_proto::v1::GetStoreRequest {}).await;
        say_error(&format!("{told:?} {}", connect::running(&options).await.is_some()));
    });
}

/// Tells a person what went wrong.
pub fn say_error(message: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "error: {message}");
}
