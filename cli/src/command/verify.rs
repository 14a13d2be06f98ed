//! `amalgam verify`: checks all stored objects.

use amalgam_proto::v1;
use amalgam_server::Home;
use clap::Args;
use serde_json::json;

use crate::connect::running;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// Check the store for damage
#[derive(Debug, Args)]
#[command(after_help = "\
The command checks the structure of all snapshots; with --read-data, the contents of all files, too. It exits with 1 if
something is damaged.

Examples:
  amalgam verify
  amalgam verify --read-data
  amalgam verify --repair")]
pub struct Verify {
    /// Read and hash the contents of all files, too
    #[arg(long)]
    read_data: bool,
    /// Repair damage where possible, and quarantine the rest
    #[arg(long)]
    repair: bool,
}

impl Verify {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if self.repair {
            recover(session).await?;
        }
        let mut client = session.client().await?;
        let request = v1::VerifyStoreRequest { read_data: self.read_data, repair: self.repair, ..Default::default() };
        let result = drive(&session.output, client.store.verify_store(request)).await?;
        let output = &mut session.output;
        output.emit(&lines::line(
            "verify",
            json!({
                "clean": result.clean,
                "objects": result.objects,
                "bytes": result.bytes,
                "unreachable": result.unreachable,
                "thinned": result.thinned,
                "purged": result.purged,
                "problems": result.problems.len(),
                "repaired": result.repaired,
            }),
        ))?;
        for problem in &result.problems {
            output.emit(&lines::line(
                "verify_problem",
                json!({"subject": problem.subject, "message": problem.message, "places": problem.places}),
            ))?;
            let subject = paint(style::FAILURE, text::printable(&problem.subject));
            output.say(format!("{subject}: {}", text::printable(&problem.message)))?;
            problem.places.iter().try_for_each(|place| output.say(format!("    in {}", text::printable(place))))?;
        }
        result.repaired.iter().try_for_each(|done| output.say(format!("repaired: {}", text::printable(done))))?;
        let seen = format!("{}, {}", text::plural(result.objects, "object"), text::bytes(result.bytes));
        if result.purged > 0 {
            output.done(format!("{} purged on purpose", text::plural(result.purged, "object")))?;
        }
        if result.clean {
            let contents =
                if self.read_data { "contents included" } else { "contents not read; --read-data reads them" };
            output.done(format!("{}: {seen}; {contents}", paint(style::GOOD, "all is well")))?;
            return Ok(Exit::OK);
        }
        let damaged = text::plural(result.problems.len() as u64, "problem");
        output.say(format!("{} among {seen}", paint(style::FAILURE, damaged)))?;
        if !self.repair {
            output.remark("`amalgam verify --repair` repairs what can be repaired")?;
        }
        Ok(Exit::ERROR)
    }
}

/// Repairs a store that cannot be opened, unless a process has it open.
async fn recover(session: &mut Session) -> Result<(), CliError> {
    if session.server().is_some() || running(&session.connect).await.is_some() {
        return Ok(());
    }
    let home = Home::new(session.home());
    for line in home.recover().map_err(|failure| CliError::from(amalgam_proto::Failure::from(failure).into_status()))? {
        session.output.say(format!("repaired: {}", text::printable(&line)))?;
    }
    Ok(())
}
