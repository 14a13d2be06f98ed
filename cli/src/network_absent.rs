//! Stands in for the network in a build without that feature: a server that does not start, and no REST beside the socket of a store.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use amalgam_server::serve::Calls;
use amalgam_server::{Home, NfsListen, Service};

use crate::error::CliError;
use crate::logging::LogOptions;
use crate::serve_settings::ServerSettings;

/// No listener.
pub struct RestListener;

impl RestListener {
    /// Starts nothing.
    pub fn of_store(_: &Service, _: &Arc<Calls>, _: &Home, _: &Path) -> io::Result<Self> {
        Ok(Self)
    }

    /// Stops nothing.
    pub async fn end(self) {}
}

/// Fails, and says what to do.
pub fn serve(
    _: &ServerSettings,
    _: SocketAddr,
    _: Option<NfsListen>,
    _: &Path,
    _: &LogOptions,
) -> Result<(), CliError> {
    Err(CliError::without_network("serve --listen"))
}
