//! `amalgam connection`: starts the process of the store, and says where it listens. SDKs call it.

use clap::Args;
use serde_json::json;

use amalgam_server::Home;

use crate::connect::rest_socket;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;

/// Start the process of the store, and print the Unix sockets where it listens
#[derive(Debug, Args)]
pub struct Connection {}

impl Connection {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if !cfg!(feature = "network") {
            return Err(CliError::without_network("connection"));
        }
        session.client_of_new_store().await?;
        let missing = || CliError::refused("the process of the store did not say where it listens");
        let socket = Home::new(session.home()).listening_at().ok_or_else(missing)?;
        session.rest_client().await?;
        let rest = rest_socket(&socket);
        let shown = rest.display().to_string();
        session.output.emit(&lines::line(
            "connection",
            json!({"socket": socket.display().to_string(), "rest": shown, "store": session.home().display().to_string()}),
        ))?;
        session.output.say(shown)?;
        Ok(Exit::OK)
    }
}
