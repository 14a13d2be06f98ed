//! Words on the command line that are revisions or paths, told apart.

use std::ffi::{OsStr, OsString};

use amalgam_proto::{Reason, v1};
use tonic::codegen::Bytes;

use crate::connect::Client;
use crate::error::CliError;
use crate::place::Place;
use crate::session::{Session, here};

/// The snapshot that a revision names.
pub async fn snapshot(client: &mut Client, place: Option<&Place>, revision: &str) -> Result<v1::Snapshot, CliError> {
    let request = v1::GetSnapshotRequest { revision: revision.to_owned(), workspace: here(place) };
    let found = client.snapshots.get_snapshot(request).await?.into_inner();
    found.snapshot.ok_or_else(|| crate::session::incomplete("snapshot"))
}

/// The revisions among the first words, at most `revisions_max` of them; the words behind them are paths. Words behind `--`
/// are paths in any case, and then all before it are revisions.
pub async fn revisions_and_paths(
    session: &mut Session,
    place: Option<&Place>,
    words: &[OsString],
    behind_dashes: &[OsString],
    revisions_max: usize,
) -> Result<(Vec<String>, Vec<Bytes>), CliError> {
    let mut client = session.client().await?;
    let mut revisions = Vec::new();
    let mut rest = words;
    while let [word, behind @ ..] = rest {
        let all_are = !behind_dashes.is_empty();
        if revisions.len() == revisions_max || !(all_are || is_revision(session, &mut client, place, word).await?) {
            break;
        }
        revisions.push(text_of(word)?.to_owned());
        rest = behind;
    }
    if !behind_dashes.is_empty() && !rest.is_empty() {
        return Err(CliError::usage(format!("`{}` is one revision too many", rest[0].to_string_lossy())));
    }
    let paths = rest.iter().chain(behind_dashes);
    let paths = paths.map(|path| tree_path(session, place, path)).collect::<Result<_, _>>()?;
    Ok((revisions, paths))
}

/// The path in the tree that a word means. Outside of any directory it is taken as it is.
pub fn tree_path(session: &Session, place: Option<&Place>, word: &OsStr) -> Result<Bytes, CliError> {
    match place {
        Some(place) => place.tree_path(&session.cwd, word),
        None => crate::place::path_behind_revision(None, &session.cwd, word),
    }
}

/// A word that must be text.
pub fn text_of(word: &OsStr) -> Result<&str, CliError> {
    word.to_str().ok_or_else(|| CliError::usage(format!("`{}` is no revision", word.to_string_lossy())))
}

async fn is_revision(
    session: &Session,
    client: &mut Client,
    place: Option<&Place>,
    word: &OsStr,
) -> Result<bool, CliError> {
    let Some(text) = word.to_str() else { return Ok(false) };
    let is_path = session.cwd.join(word).symlink_metadata().is_ok();
    match snapshot(client, place, text).await {
        Ok(_) if is_path => Err(CliError::usage(format!("`{text}` is a revision and a path"))
            .hint("put -- before paths, or write ./ before the path")),
        Ok(_) => Ok(true),
        Err(error) if error.is(Reason::NotFound) || error.is(Reason::Invalid) => {
            // What can be nothing but a revision is not taken for the path of a deleted file.
            if !is_path && (text.contains('@') || text.contains('~')) { Err(error) } else { Ok(false) }
        }
        Err(error) => Err(error),
    }
}
