//! Splits arguments of the command line into revisions and paths.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use amalgam_proto::{Reason, v1};
use tonic::codegen::Bytes;

use crate::attached::{AttachedDirectory, path_behind_revision};
use crate::connect::Client;
use crate::error::CliError;
use crate::session::{Session, current_workspace, revision_state};

/// Fetches the snapshot that a revision names.
pub async fn snapshot(
    client: &mut Client,
    place: Option<&AttachedDirectory>,
    revision: &str,
) -> Result<v1::Snapshot, CliError> {
    let request = v1::GetSnapshotRequest { revision: revision.to_owned(), workspace: current_workspace(place) };
    let found = client.snapshots.get_snapshot(request).await?.into_inner();
    found.snapshot.ok_or_else(|| crate::session::missing_field("snapshot"))
}

/// Two revisions written as `A..B`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The revision before the dots; `@` if there is none.
    pub from: String,
    /// The revision after the dots; `@` if there is none.
    pub to: String,
}

impl Range {
    /// Reads a range; nothing if there are no two dots in it.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once("..")?;
        let side = |text: &str| if text.is_empty() { "@".to_owned() } else { text.to_owned() };
        Some(Self { from: side(from), to: side(to) })
    }
}

/// Revisions and paths of a command line.
#[derive(Debug, Default)]
pub struct RevisionsAndPaths {
    /// Single revisions.
    pub revisions: Vec<String>,
    /// Ranges of revisions.
    pub ranges: Vec<Range>,
    /// Paths in the tree.
    pub paths: Vec<Bytes>,
    /// The first argument that was taken for a path, but is neither on the disk nor in the last snapshot, with the reason why it is
    /// no revision. Arguments after `--` are not checked.
    pub doubtful: Option<(String, CliError)>,
}

impl RevisionsAndPaths {
    /// Fails if an argument is neither a revision nor an existing path.
    pub fn require_known(self) -> Result<Self, CliError> {
        match self.doubtful {
            Some((word, error)) => Err(neither_error(&word, &error)),
            None => Ok(self),
        }
    }
}

/// Returns the error for a word that is neither a revision nor a path.
pub fn neither_error(word: &str, error: &CliError) -> CliError {
    let message = format!("`{word}` is neither a path nor a revision: {}", error.message);
    CliError::new(error.exit, &error.reason, message)
}

/// Which arguments can be revisions.
#[derive(Clone, Copy, Debug)]
pub struct RevisionLimits {
    /// Most revisions; the arguments after them are paths.
    pub revisions_max: usize,
    /// Whether ranges such as `A..B` are accepted, too.
    pub ranges: bool,
}

/// Splits arguments into revisions and paths. Arguments behind `--` are paths, and then all before it are revisions.
pub async fn split_revisions_and_paths(
    session: &mut Session,
    place: Option<&AttachedDirectory>,
    words: &[OsString],
    behind_dashes: &[OsString],
    wanted: RevisionLimits,
) -> Result<RevisionsAndPaths, CliError> {
    if words.iter().chain(behind_dashes).any(|word| word.is_empty()) {
        return Err(CliError::usage("an empty argument is neither a revision nor a path"));
    }
    let mut client = session.client().await?;
    let mut found = RevisionsAndPaths::default();
    let mut rest = words;
    while let [word, behind @ ..] = rest {
        let count = found.revisions.len() + 2 * found.ranges.len();
        if count >= wanted.revisions_max {
            break;
        }
        let all_are = !behind_dashes.is_empty();
        match meaning(session, &mut client, place, word, wanted.ranges, all_are).await? {
            WordKind::Revision(revision) => found.revisions.push(revision),
            WordKind::Range(range) => found.ranges.push(range),
            WordKind::Path(Some(error)) if all_are => return Err(error),
            WordKind::Path(doubt) => {
                found.doubtful = doubt.map(|error| (word.to_string_lossy().into_owned(), error));
                break;
            }
        }
        rest = behind;
    }
    if !behind_dashes.is_empty() && !rest.is_empty() {
        return Err(CliError::usage(format!("`{}` is one revision too many", rest[0].to_string_lossy())));
    }
    let paths = rest.iter().chain(behind_dashes);
    found.paths = paths.map(|path| tree_path(session, place, path)).collect::<Result<_, _>>()?;
    Ok(found)
}

/// Splits words into at most `revisions_max` revisions and the paths that follow them.
pub async fn revisions_and_paths(
    session: &mut Session,
    place: Option<&AttachedDirectory>,
    words: &[OsString],
    behind_dashes: &[OsString],
    revisions_max: usize,
) -> Result<(Vec<String>, Vec<Bytes>), CliError> {
    let wanted = RevisionLimits { revisions_max, ranges: false };
    let found = split_revisions_and_paths(session, place, words, behind_dashes, wanted).await?;
    Ok((found.revisions, found.paths))
}

/// Splits `REV:PATH` into the revision and the path; `REV` defaults to `@`. Returns `None` if there is no colon outside of braces.
pub fn revision_and_path(
    session: &Session,
    place: Option<&AttachedDirectory>,
    word: &OsStr,
) -> Result<Option<(String, Bytes)>, CliError> {
    let bytes = word.as_bytes();
    let Some(colon) = colon(bytes) else { return Ok(None) };
    let name = text_of(OsStr::from_bytes(&bytes[..colon]))?;
    let name = if name.is_empty() { "@" } else { name };
    let path = path_behind_revision(place, &session.cwd, OsStr::from_bytes(&bytes[colon + 1..]))?;
    Ok(Some((name.to_owned(), path)))
}

/// Returns the position of the colon between revision and path: the first one outside of braces.
fn colon(bytes: &[u8]) -> Option<usize> {
    let mut is_inside = false;
    bytes.iter().position(|byte| {
        is_inside = (is_inside || *byte == b'{') && *byte != b'}';
        *byte == b':' && !is_inside
    })
}

/// Resolves a word to a path in the tree. Outside of attached directories, the word is relative to the root of the tree.
pub fn tree_path(session: &Session, place: Option<&AttachedDirectory>, word: &OsStr) -> Result<Bytes, CliError> {
    match place {
        Some(place) => place.tree_path(&session.cwd, word),
        None => path_behind_revision(None, &session.cwd, word),
    }
}

/// Returns a word as text, or an error that it is not a revision if it is not UTF-8.
pub fn text_of(word: &OsStr) -> Result<&str, CliError> {
    word.to_str().ok_or_else(|| CliError::usage(format!("`{}` is not a revision", word.to_string_lossy())))
}

/// The kind of an argument.
enum WordKind {
    Revision(String),
    Range(Range),
    /// A path; if it does not exist, with the reason why it is no revision.
    Path(Option<CliError>),
}

/// Finds out what an argument is. One before `--` (`is_before_dashes`) is no path, so that it cannot be ambiguous.
async fn meaning(
    session: &Session,
    client: &mut Client,
    place: Option<&AttachedDirectory>,
    word: &OsStr,
    ranges: bool,
    is_before_dashes: bool,
) -> Result<WordKind, CliError> {
    let Some(text) = word.to_str() else { return Ok(WordKind::Path(None)) };
    let is_on_disk = !is_before_dashes && session.cwd.join(word).symlink_metadata().is_ok();
    let error = match snapshot(client, place, text).await {
        Ok(_) if is_before_dashes => return Ok(WordKind::Revision(text.to_owned())),
        Ok(_) if is_on_disk || is_in_head(session, client, place, word).await => {
            return Err(CliError::usage(format!("`{text}` is a revision and a path"))
                .hint("put -- before paths; NAME@ is the head of a workspace"));
        }
        Ok(_) => return Ok(WordKind::Revision(text.to_owned())),
        Err(error) if error.is(Reason::NotFound) || error.is(Reason::Invalid) => error,
        Err(error) => return Err(error),
    };
    if is_on_disk {
        return Ok(WordKind::Path(None));
    }
    if let Some(range) = Range::parse(text).filter(|_| ranges && !text.contains('/')) {
        for side in [&range.from, &range.to] {
            snapshot(client, place, side).await?;
        }
        return Ok(WordKind::Range(range));
    }
    // An argument with `@` or `~` is a revision, not the path of a deleted file.
    if is_before_dashes || text.contains('@') || text.contains('~') {
        return Err(error);
    }
    let is_there = is_in_head(session, client, place, word).await;
    Ok(WordKind::Path(Some(error).filter(|_| !is_there)))
}

/// Returns whether the head of the workspace has a path; `false` if that cannot be determined.
async fn is_in_head(session: &Session, client: &mut Client, place: Option<&AttachedDirectory>, word: &OsStr) -> bool {
    let Some(place) = place.filter(|place| !place.workspace.head.is_empty()) else { return false };
    let Ok(path) = place.tree_path(&session.cwd, word) else { return false };
    let request = v1::ListEntriesRequest {
        state: Some(revision_state("@")),
        workspace: current_workspace(Some(place)),
        path,
        recursive: false,
    };
    match client.snapshots.list_entries(request).await {
        Ok(entries) => entries.into_inner().message().await.is_ok(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_two_sides() {
        let range = |from: &str, to: &str| Some(Range { from: from.to_owned(), to: to.to_owned() });
        assert_eq!(Range::parse("a..b~2"), range("a", "b~2"));
        assert_eq!(Range::parse("v1.."), range("v1", "@"));
        assert_eq!(Range::parse("..v1"), range("@", "v1"));
        assert_eq!(Range::parse("v1.0"), None);
    }

    #[test]
    fn the_colon_of_a_time_is_not_that_of_a_path() {
        assert_eq!(colon(b"@{14:00}:a"), Some(8));
        assert_eq!(colon(b"@{op:7}"), None);
        assert_eq!(colon(b"main:src/a:b"), Some(4));
    }
}
