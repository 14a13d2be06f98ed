//! `amalgam doctor`: checks the store and this machine for problems.

mod finding;
mod machine;
mod mounting;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;
use crate::version::LONG_VERSION;
use finding::{Finding, Grade};

/// Check the store and this machine for problems
#[derive(Debug, Args)]
#[command(after_help = "\
The command exits with 1 if something does not work at all.

Examples:
  amalgam doctor
  amalgam doctor --json")]
pub struct Doctor {}

impl Doctor {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut findings = vec![Finding::fine("version", format!("amalgam {LONG_VERSION}"))];
        findings.extend(store(session).await?);
        findings.extend(machine::of_store(session.home()));
        findings.push(directory(session).await);
        findings.push(machine::file_system("directory_file_system", &session.cwd));
        findings.extend(machine::limits());
        findings.extend(mounting::findings());
        findings.extend(leftovers(session));
        let mut exit = Exit::OK;
        for finding in &findings {
            if finding.grade == Grade::Failure {
                exit = Exit::ERROR;
            }
            say(session, finding)?;
        }
        Ok(exit)
    }
}

fn say(session: &mut Session, finding: &Finding) -> Result<(), CliError> {
    let (word, style) = match finding.grade {
        Grade::Fine => ("ok", style::GOOD),
        Grade::Note => ("note", style::FAINT),
        Grade::Warning => ("warn", style::WARNING),
        Grade::Failure => ("fail", style::FAILURE),
    };
    session.output.emit(&lines::line(
        "check",
        json!({
            "subject": finding.subject,
            "grade": word,
            "message": finding.message,
            "advice": finding.advice,
        }),
    ))?;
    let subject = finding.subject.replace('_', " ");
    session.output.say(format!("{}  {subject}: {}", paint(style, format!("{word:4}")), finding.message))?;
    match &finding.advice {
        Some(advice) => session.output.say(format!("      {advice}")),
        None => Ok(()),
    }
}

/// Checks the store and, if it runs, its background process.
async fn store(session: &mut Session) -> Result<Vec<Finding>, CliError> {
    let home = session.home().display().to_string();
    if !session.has_store() {
        return Ok(vec![Finding::warning("store", format!("none at {home}"), "`amalgam init` creates one")]);
    }
    let mut findings = vec![Finding::fine("store", home)];
    let Some(mut client) = session.client_if_running().await else {
        findings.push(Finding::note("process", "not running; the next command starts it"));
        return Ok(findings);
    };
    findings.push(match client.store.get_store(v1::GetStoreRequest {}).await {
        Ok(answer) => {
            let store = answer.into_inner();
            session.output.emit(&lines::line(
                "process",
                json!({
                    "process_id": store.process_id,
                    "version": store.version,
                    "start_time": lines::time(store.start_time.as_ref()),
                    "watched": store.watched,
                    "calls": store.calls,
                }),
            ))?;
            let since = text::ago(text::timestamp(store.start_time.as_ref()), session.now);
            let message = format!(
                "version {}, process id {}, started {since}, {} watched",
                store.version,
                store.process_id,
                text::plural(u64::from(store.watched), "directory"),
            );
            if store.version == env!("CARGO_PKG_VERSION") {
                Finding::fine("process", message)
            } else {
                Finding::warning("process", message, "`amalgam stop`; the next command starts one of this version")
            }
        }
        Err(status) => Finding::failure("process", CliError::from(status).message, "`amalgam stop --force` ends it"),
    });
    findings.extend(watches(&mut client).await);
    findings.extend(nfs_exports(&mut client).await);
    if let Ok(answer) = client.collections.get_collection(v1::GetCollectionRequest {}).await {
        let state = answer.into_inner();
        super::gc::emit_state(&mut session.output, &state)?;
        let words = super::gc::state_words(&state, session.now);
        findings.push(match state.warnings.first() {
            Some(warning) => Finding::warning("collection", warning.clone(), format!("`amalgam gc` collects; {words}")),
            None if state.paused => Finding::warning("collection", words, "`amalgam gc --resume` resumes it"),
            None => Finding::fine("collection", words),
        });
    }
    Ok(findings)
}

/// Warns about directories that are not watched though they should be.
async fn watches(client: &mut Client) -> Vec<Finding> {
    let all = super::watch::directories(client).await.unwrap_or_default();
    let unwatched = all.into_iter().filter(|directory| !directory.watch_problem.is_empty());
    let finding = |directory: v1::Directory| {
        let message =
            format!("{} is not watched: {}", text::path(&directory.path), text::printable(&directory.watch_problem));
        Finding::warning("watch", message, "`amalgam watch --stop` there gives it up")
    };
    unwatched.map(finding).collect()
}

/// Warns about NFS exports that cannot be served. Without such problems, counts the exports; returns nothing if none is served.
async fn nfs_exports(client: &mut Client) -> Vec<Finding> {
    let Ok(listed) = super::exports::exports(client).await else { return Vec::new() };
    let problems = listed.problems.iter().map(|problem| {
        Finding::warning("nfs_exports", text::printable(problem), "`amalgam exports` lists what is served, and where")
    });
    let problems: Vec<_> = problems.collect();
    if !problems.is_empty() || listed.address.is_empty() {
        return problems;
    }
    let (exports, clients) =
        (text::plural(listed.exports.len() as u64, "export"), text::plural(u64::from(listed.connections), "client"));
    vec![Finding::fine("nfs_exports", format!("{exports} served at {}, {clients} connected", listed.address))]
}

/// Warns about leftovers of killed commands. Returns `None` if there are none.
fn leftovers(session: &Session) -> Option<Finding> {
    let words = super::work_folders::abandoned_words(session.home())?;
    Some(Finding::warning("leftovers", words, format!("`{}` removes them", super::work_folders::REMOVE_ENDED)))
}

async fn directory(session: &mut Session) -> Finding {
    if !session.has_store() {
        return Finding::note("directory", "no directory is protected yet");
    }
    match session.attached_directory_if_any().await {
        Ok(Some(place)) if place.directory.problem.is_empty() => {
            let path = text::path(&place.directory.path).into_owned();
            Finding::fine("directory", format!("{path} belongs to {}", place.workspace_id()))
        }
        Ok(Some(place)) => Finding::failure(
            "directory",
            text::printable(&place.directory.problem),
            format!("`amalgam checkout {}` writes it again", place.workspace_id()),
        ),
        Ok(None) => Finding::note("directory", "not protected; `amalgam init` protects it"),
        Err(error) => Finding::failure("directory", error.to_string(), "see above"),
    }
}
