//! Runs a program of the user to resolve a conflict: an editor on the file with markers, or a three-way merge tool.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tokio::process::Command;

use crate::error::CliError;
use crate::namespace::TOKEN_VARIABLE;

/// Shell command that opens the file with markers in the user's editor.
const EDITOR: &str = "${VISUAL:-${EDITOR:-vi}} \"$MERGED\"";
const NAMES: [&str; 4] = ["MERGED", "BASE", "LOCAL", "REMOTE"];

/// The versions of one conflict, as files in a temporary directory.
pub(super) struct Files {
    place: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    /// Writes the files of the conflict: with markers, base, ours and theirs. Keeps the extension, so that tools know the language.
    pub(super) fn write(path: &[u8], versions: &[Vec<u8>]) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| CliError::machine("could not write the versions", &error);
        let place = tempfile::Builder::new().prefix("amalgam-conflict-").tempdir().map_err(failed)?;
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut paths = Vec::new();
        for (word, bytes) in NAMES.iter().zip(versions) {
            let mut full = format!("{word}.").into_bytes();
            full.extend_from_slice(&name[name.len().saturating_sub(200)..]);
            let path = place.path().join(OsStr::from_bytes(&full));
            std::fs::write(&path, bytes).map_err(failed)?;
            paths.push(path);
        }
        Ok(Self { place, paths })
    }

    fn merged(&self) -> &Path {
        &self.paths[0]
    }

    /// Reads the result of the program. Refuses it if the program failed, changed nothing or left markers. A changed file that is
    /// refused is kept, and the error names its path.
    pub(super) fn take(self, status: ExitStatus, before: &[u8]) -> Result<Vec<u8>, CliError> {
        let bytes =
            std::fs::read(self.merged()).map_err(|error| CliError::machine("could not read the result", &error));
        let why = match &bytes {
            Err(_) => return bytes,
            Ok(_) if !status.success() => format!("the program failed ({status})"),
            Ok(bytes) if bytes == before => "nothing was changed".to_owned(),
            Ok(bytes) if has_markers(bytes) => "there are markers left".to_owned(),
            Ok(_) => return bytes,
        };
        let is_worth_keeping = bytes.is_ok_and(|bytes| bytes != before);
        let error = CliError::refused(format!("{why}, so it stays a conflict"));
        if !is_worth_keeping {
            return Err(error);
        }
        let path = self.merged().to_owned();
        let _ = self.place.keep();
        Err(error.hint(format!("what was written is in {}; `--file` takes it when it is done", path.display())))
    }
}

/// Runs a shell command on the files, or the user's editor if there is no command.
pub(super) async fn run(files: &Files, command: Option<&str>) -> Result<ExitStatus, CliError> {
    let mut child = Command::new("sh");
    child.arg("-c").arg(command.unwrap_or(EDITOR));
    child.env_remove(TOKEN_VARIABLE).envs(NAMES.iter().zip(&files.paths));
    child.status().await.map_err(|error| CliError::machine("could not start a shell", &error))
}

/// Returns whether any line is a conflict marker of Amalgam: `<`, `|`, `=` or `>` at least seven times, then a tag `[amalgam ...]`.
fn has_markers(bytes: &[u8]) -> bool {
    bytes.split(|byte| *byte == b'\n').any(|line| {
        let Some(sign) = line.first().filter(|sign| b"<|=>".contains(sign)) else { return false };
        let run = line.iter().take_while(|byte| *byte == sign).count();
        run >= 7 && line[run..].windows(9).any(|part| part == b"[amalgam ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_of_ours_are_seen() {
        assert!(has_markers(b"a\n<<<<<<< ours [amalgam 1f0c9a24 1/2]\nb\n"));
        assert!(has_markers(b"a\n======= bob (side-2) [amalgam 1f0c9a24 1/2]\nb\n"));
        assert!(!has_markers(b"a\n<<<<<<< HEAD\nb\n"));
        assert!(!has_markers(b"<<<<<< ours [amalgam 1f0c9a24 1/2]\n"));
    }
}
