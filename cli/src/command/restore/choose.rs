//! `amalgam restore --patch`: asks for each hunk whether to restore it.

use std::io::{self, BufRead as _, Write as _};

use amalgam_proto::v1;
use tonic::codegen::Bytes;

use super::hunks::{Hunk, apply, parse};
use crate::attached::AttachedDirectory;
use crate::command::diff::{named, patch_style};
use crate::connect::Client;
use crate::error::CliError;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace, directory_state, revision_state};
use crate::text;

/// Larger files are restored as a whole or not at all.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of files in parts that go into one restore.
const CONTENTS_BYTES_MAX: usize = 3 << 20;

const HELP: &str = "\
y - restore this hunk
n - leave this hunk as it is
a - restore this hunk and all that follow in this file
d - leave this hunk and all that follow in this file
q - leave this hunk and everything that follows
? - print this";

/// The paths and hunks that the user chose to restore.
#[derive(Default)]
pub struct Choice {
    /// All chosen files, whole or in parts.
    pub paths: Vec<Bytes>,
    /// Files of which only some hunks are restored, with their new contents.
    pub contents: Vec<v1::FileContents>,
}

/// The answer of the user to one question.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    AllOfFile,
    NoneOfFile,
    Quit,
}

/// Asks for every change between the directory and a revision.
pub async fn choose(
    session: &mut Session,
    client: &mut Client,
    place: &AttachedDirectory,
    name: &str,
    paths: &[Bytes],
    with_git: bool,
) -> Result<Choice, CliError> {
    let request = v1::DiffStatesRequest {
        before: Some(directory_state(place)),
        after: Some(revision_state(name)),
        workspace: current_workspace(Some(place)),
        paths: paths.to_vec(),
        times: false,
        renames: false,
        without_git: !with_git,
    };
    let mut stream = client.snapshots.diff_states(request).await?.into_inner();
    let mut changes = Vec::new();
    while let Some(part) = stream.message().await? {
        changes.extend(part.changes);
    }
    let mut choice = Choice::default();
    for change in &changes {
        // A directory that was chosen is restored with everything in it, which follows it in the order of paths.
        if choice.paths.last().is_some_and(|chosen| is_below(&change.path, chosen)) {
            continue;
        }
        let answered = match is_text(change) {
            true => ask_hunks(session, client, place, name, change, &mut choice).await?,
            false => ask_whole(session, change, &mut choice).await?,
        };
        if answered == Answer::Quit {
            break;
        }
    }
    if choice.contents.iter().map(|file| file.data.len()).sum::<usize>() > CONTENTS_BYTES_MAX {
        return Err(
            CliError::refused("too many large files; nothing was changed").hint("choose hunks of fewer files at once")
        );
    }
    Ok(choice)
}

/// Returns whether a path lies in a directory. The empty path is the directory that contains all others.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns whether a change modified a regular file that is small enough, on both sides, to be shown hunk by hunk.
fn is_text(change: &v1::Change) -> bool {
    let is_file = |entry: &Option<v1::Entry>| {
        entry.as_ref().is_some_and(|entry| entry.kind() == v1::EntryKind::File && entry.size <= FILE_BYTES_MAX)
    };
    change.kind() == v1::ChangeKind::Modified && is_file(&change.before) && is_file(&change.after)
}

async fn ask_whole(session: &mut Session, change: &v1::Change, choice: &mut Choice) -> Result<Answer, CliError> {
    let what = match change.kind() {
        v1::ChangeKind::Added => "bring back",
        v1::ChangeKind::Removed => "remove",
        _ => "restore",
    };
    // An added directory is restored with its files, so there is no question about it.
    let is_directory =
        |entry: &Option<v1::Entry>| entry.as_ref().is_some_and(|entry| entry.kind() == v1::EntryKind::Directory);
    if change.kind() == v1::ChangeKind::Added && is_directory(&change.after) {
        return Ok(Answer::No);
    }
    let inside = match is_directory(&change.before) || is_directory(&change.after) {
        true => " with everything in it",
        false => "",
    };
    session.output.say(named(change))?;
    let answer = ask(session, &format!("{what} {}{inside}", text::path(&change.path))).await?;
    if matches!(answer, Answer::Yes | Answer::AllOfFile) {
        choice.paths.push(change.path.clone());
    }
    Ok(answer)
}

async fn ask_hunks(
    session: &mut Session,
    client: &mut Client,
    place: &AttachedDirectory,
    name: &str,
    change: &v1::Change,
    choice: &mut Choice,
) -> Result<Answer, CliError> {
    let patch = patch(client, place, name, &change.path).await?;
    let hunks = parse(&patch);
    if hunks.is_empty() {
        return ask_whole(session, change, choice).await;
    }
    session.output.say(paint(style::TITLE, text::path(&change.path)))?;
    let mut chosen: Vec<&Hunk> = Vec::new();
    let mut answer = Answer::No;
    for (number, hunk) in hunks.iter().enumerate() {
        if answer != Answer::AllOfFile {
            for line in std::iter::once(&hunk.header).chain(&hunk.lines) {
                session.output.raw_styled(patch_style(line), line)?;
                if !line.ends_with(b"\n") {
                    session.output.say("")?;
                }
            }
            answer = ask(session, &format!("({}/{}) restore this hunk", number + 1, hunks.len())).await?;
        }
        match answer {
            Answer::Yes | Answer::AllOfFile => chosen.push(hunk),
            Answer::No => {}
            Answer::NoneOfFile | Answer::Quit => break,
        }
    }
    if chosen.len() < hunks.len() && !chosen.is_empty() {
        let now = read(client, place, &change.path).await?;
        let data = apply(&now, &chosen).ok_or_else(|| {
            let message = format!("{} changed meanwhile; nothing was restored", text::path(&change.path));
            CliError::refused(message).hint("run the command again")
        })?;
        choice.contents.push(v1::FileContents { path: change.path.clone(), data: data.into() });
    }
    if !chosen.is_empty() {
        choice.paths.push(change.path.clone());
    }
    Ok(answer)
}

async fn patch(client: &mut Client, place: &AttachedDirectory, name: &str, path: &Bytes) -> Result<Vec<u8>, CliError> {
    let request = v1::GetPatchRequest {
        before: Some(directory_state(place)),
        after: Some(revision_state(name)),
        workspace: current_workspace(Some(place)),
        paths: vec![path.clone()],
        context_lines: None,
        without_git: false,
    };
    let mut stream = client.snapshots.get_patch(request).await?.into_inner();
    let mut patch = Vec::new();
    while let Some(part) = stream.message().await? {
        patch.extend_from_slice(&part.data);
    }
    Ok(patch)
}

async fn read(client: &mut Client, place: &AttachedDirectory, path: &Bytes) -> Result<Vec<u8>, CliError> {
    let request = v1::ReadFileRequest {
        state: Some(directory_state(place)),
        workspace: current_workspace(Some(place)),
        path: path.clone(),
        offset: 0,
        length: 0,
    };
    let mut stream = client.snapshots.read_file(request).await?.into_inner();
    let mut text = Vec::new();
    while let Some(part) = stream.message().await? {
        text.extend_from_slice(&part.data);
    }
    Ok(text)
}

/// Asks until the user gives a valid answer. The end of the input counts as "quit".
async fn ask(session: &mut Session, question: &str) -> Result<Answer, CliError> {
    loop {
        session.output.flush()?;
        write!(io::stderr(), "{question} [y,n,a,d,q,?]? ")?;
        let read = || {
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).map(|_| line)
        };
        let line = tokio::task::spawn_blocking(read).await.expect("reading a line does not panic")?;
        match line.trim() {
            "y" => return Ok(Answer::Yes),
            "n" => return Ok(Answer::No),
            "a" => return Ok(Answer::AllOfFile),
            "d" => return Ok(Answer::NoneOfFile),
            "q" => return Ok(Answer::Quit),
            _ if line.is_empty() => return Ok(Answer::Quit),
            _ => session.output.remark(HELP)?,
        }
    }
}
