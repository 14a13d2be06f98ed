//! Stand-ins for the commands that need the feature `network`, in a build without it. Each fails and says what to do.

/// Defines modules with a command each.
macro_rules! absent {
    ($($module:ident: $name:ident = $word:literal,)*) => {
        $(pub mod $module {
            use std::ffi::OsString;

            use crate::error::{CliError, Outcome};
            use crate::output::{Output, OutputOptions, wants_json};
            use crate::session::Session;

            /// Not in this program, which was built without network
            #[derive(Debug, clap::Args)]
            pub struct $name {
                #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
                words: Vec<OsString>,
            }

            impl $name {
                /// Fails.
                pub async fn run(self, session: &mut Session) -> Outcome {
                    if wants_json(&self.words) {
                        session.output = Output::new(OutputOptions { json: true, ..OutputOptions::default() });
                    }
                    Err(CliError::without_network($word))
                }
            }
        })*
    };
}

absent! {
    key: Key = "key",
    mcp: Mcp = "mcp",
    store: StoreCommand = "store",
    webhook: Webhook = "webhook",
}

/// Backups of a server.
pub mod server_backup {
    use std::path::Path;

    use crate::error::{CliError, Outcome};
    use crate::session::Session;

    /// Fails.
    pub async fn back_up(_: &mut Session, _: &Path, _: &Path, _: bool) -> Outcome {
        Err(CliError::without_network("backup --data"))
    }

    /// Fails.
    pub async fn restore(_: &mut Session, _: &Path, _: &Path) -> Outcome {
        Err(CliError::without_network("restore-backup --data"))
    }
}
