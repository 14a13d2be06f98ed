//! Calls about sandboxes, and the words that name sandboxes, variables and times on the command line.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use amalgam_proto::{Failure, v1};
use amalgam_server::retention::Span;
use tonic::{Code, Status};

use crate::connect::CallerChannel;
use crate::error::CliError;
use crate::exit::Exit;
use crate::session::Session;

/// The start of every id of a sandbox.
const ID_START: &str = "sbx-";
/// The number of characters behind [`ID_START`].
const ID_CHARACTERS: usize = 16;
/// Most sandboxes in one answer when a name is looked up.
const PAGE_SIZE: i32 = 100;

/// The calls to the sandbox service of a server or of the local store.
pub struct SandboxCalls {
    /// The client of the service.
    pub client: SandboxServiceClient<CallerChannel>,
}

impl SandboxCalls {
    /// Connects to the server, or to the process of the local store.
    pub async fn connect(session: &mut Session) -> Result<Self, CliError> {
        Ok(Self { client: session.sandbox_client().await?.sandboxes })
    }

    /// Returns the id of a sandbox, given its id or its name.
    pub async fn id(&mut self, word: &str) -> Result<String, CliError> {
        if is_id(word) {
            return Ok(word.to_owned());
        }
        let mut named = self.with_name(word, "running").await?.into_iter();
        match (named.next(), named.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => {
                let message = format!("several running sandboxes are called `{word}`");
                Err(CliError::new(Exit::ERROR, "AMBIGUOUS", message).hint("`amalgam sandbox ls` shows their ids"))
            }
            // An id in another form; the server refuses an unknown one.
            (None, _) if word.starts_with(ID_START) => Ok(word.to_owned()),
            (None, _) => {
                let message = format!("no running sandbox is called `{word}`");
                let error = CliError::new(Exit::ERROR, "SANDBOX_NOT_FOUND", message);
                Err(error.hint("`amalgam sandbox ls` lists sandboxes, an id begins with sbx-"))
            }
        }
    }

    /// Returns the ids of the sandboxes with a name that are in a state, or in any state if `state` is empty.
    pub async fn with_name(&mut self, name: &str, state: &str) -> Result<BTreeSet<String>, CliError> {
        let listed = self.list(name, state).await?;
        Ok(listed.into_iter().filter(|sandbox| sandbox.name == name).map(|sandbox| sandbox.id).collect())
    }

    /// Returns all sandboxes whose names begin with a prefix and that are in a state, or in any state if `state` is empty.
    pub async fn list(&mut self, name_prefix: &str, state: &str) -> Result<Vec<v1::Sandbox>, CliError> {
        let (mut found, mut ids) = (Vec::new(), BTreeSet::new());
        let mut page = 1;
        loop {
            let request = v1::ListSandboxesRequest {
                page,
                limit: PAGE_SIZE,
                state: state.to_owned(),
                name_prefix: name_prefix.to_owned(),
            };
            let listed = self.client.list_sandboxes(request).await.map_err(failure)?.into_inner();
            let is_last = i64::from(page) * i64::from(PAGE_SIZE) >= listed.total || listed.items.is_empty();
            // A sandbox that is created meanwhile moves another one to the next page.
            found.extend(listed.items.into_iter().filter(|sandbox| ids.insert(sandbox.id.clone())));
            if is_last {
                return Ok(found);
            }
            page += 1;
        }
    }

    /// Deletes a sandbox. Returns its last state.
    pub async fn remove(&mut self, word: &str, keep_workspace: bool) -> Result<v1::Sandbox, CliError> {
        let id = self.id(word).await?;
        let found = self.client.get_sandbox(v1::GetSandboxRequest { id: id.clone() }).await.map_err(failure)?;
        let request = v1::DeleteSandboxRequest { id, keep_workspace };
        self.client.delete_sandbox(request).await.map_err(failure)?;
        Ok(found.into_inner().sandbox.unwrap_or_default())
    }
}

/// Returns whether a word has the form of the ids that servers give to sandboxes. A name can begin in the same way.
fn is_id(word: &str) -> bool {
    let is_character = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    word.strip_prefix(ID_START).is_some_and(|rest| rest.len() == ID_CHARACTERS && rest.bytes().all(is_character))
}

/// Converts the status of a failed sandbox call to an error. A process without sandboxes answers "unimplemented" and gives no reason.
pub fn failure(status: Status) -> CliError {
    if status.code() == Code::Unimplemented && Failure::of_status(&status).is_none() {
        let message = "this process of the store has no sandboxes";
        let error = CliError::new(Exit::ERROR, "UNSUPPORTED", message);
        return error.hint("if `amalgam serve --listen` serves the store, name its address with --server");
    }
    let error = CliError::from(status);
    match error.reason.as_str() {
        "SANDBOX_NOT_FOUND" => error.hint("`amalgam sandbox ls` lists sandboxes"),
        "COMMAND_NOT_FOUND" | "PTY_NOT_FOUND" => error.hint("`amalgam ps` lists commands"),
        "SANDBOX_LIMIT_EXCEEDED" => error.hint("`amalgam sandbox rm` ends sandboxes"),
        "TEMPLATE_NOT_FOUND" => error.hint("`amalgam sandbox templates` lists templates"),
        "LIMIT_NOT_ENFORCED" => error.hint("--best-effort starts the sandbox without the limit"),
        _ => error,
    }
}

/// Reads a time such as `90s`, `30m` or `1h`.
pub fn duration(option: &str, text: &str) -> Result<Duration, CliError> {
    let span: Span = text.parse().map_err(|why| CliError::usage(format!("{option}: {why}")))?;
    let found = span.duration().filter(|duration| !duration.is_zero());
    found.ok_or_else(|| CliError::usage(format!("{option}: write a time such as 90s, 30m or 1h")))
}

/// Reads environment variables: `NAME=VALUE`, or `NAME` for the value that this program has.
pub fn variables(words: &[String]) -> Result<HashMap<String, String>, CliError> {
    let one = |word: &String| match word.split_once('=') {
        Some(("", _)) => Err(CliError::usage(format!("-e {word}: a variable has a name"))),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(word) {
            Ok(value) => Ok((word.clone(), value)),
            Err(_) => Err(CliError::usage(format!("-e {word}: the environment has no {word}"))
                .hint("write -e NAME=VALUE, or set the variable before")),
        },
    };
    words.iter().map(one).collect()
}

/// Reads secrets: `NAME` for the variable of this program, `NAME=@FILE` for the contents of a file. A value is not taken from the
/// command line, which other users of this machine can read.
pub fn secrets(words: &[String], directory: &Path) -> Result<HashMap<String, String>, CliError> {
    let one = |word: &String| -> Result<(String, String), CliError> {
        let hint = "write --secret NAME for a variable of the environment, or --secret NAME=@FILE";
        let (name, value) = match word.split_once('=') {
            Some((name, file)) => {
                let file = file.strip_prefix('@').ok_or_else(|| {
                    CliError::usage(format!("--secret {name}: the command line is no place for a secret")).hint(hint)
                })?;
                let path = directory.join(file);
                let text = std::fs::read_to_string(&path).map_err(|error| CliError::machine(path.display(), &error))?;
                (name, text.strip_suffix('\n').map_or(text.clone(), str::to_owned))
            }
            None => {
                let missing = |_| CliError::usage(format!("--secret {word}: the environment has no {word}")).hint(hint);
                (word.as_str(), std::env::var(word).map_err(missing)?)
            }
        };
        Ok((name.to_owned(), value))
    };
    words.iter().map(one).collect()
}

/// Returns the working directory in the sandbox: a relative path is below `/workspace`, an empty one selects the default.
pub fn working_directory(given: &str) -> String {
    match given {
        "" => String::new(),
        absolute if absolute.starts_with('/') => absolute.to_owned(),
        below => format!("/workspace/{below}"),
    }
}

/// Quotes words into a shell command line that executes exactly these words.
pub fn command_line(words: &[std::ffi::OsString]) -> Result<String, CliError> {
    let quoted: Result<Vec<_>, CliError> = words
        .iter()
        .map(|word| -> Result<String, CliError> {
            let text = word.to_str().ok_or_else(|| CliError::usage("a word of the command is not UTF-8"))?;
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
            match !text.is_empty() && text.chars().all(is_plain) && !text.contains('=') {
                true => Ok(text.to_owned()),
                false => Ok(format!("'{}'", text.replace('\'', r"'\''"))),
            }
        })
        .collect();
    // `exec` replaces the shell by the command, so that the command gets signals directly.
    Ok(format!("exec {}", quoted?.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_begins_as_ids_do_is_no_id() {
        assert!(is_id("sbx-abcdefghij234567"));
        for name in ["sbx-try", "sbx-", "sbx-abcdefghij23456", "sbx-abcdefghij2345678", "sbx-ABCDEFGHIJ234567", "try"] {
            assert!(!is_id(name), "{name}");
        }
    }

    #[test]
    fn words_reach_the_command_as_they_are() {
        let line = |words: &[&str]| command_line(&words.iter().map(Into::into).collect::<Vec<_>>()).expect("a line");
        assert_eq!(line(&["ls", "-la", "src/main.rs"]), "exec ls -la src/main.rs");
        assert_eq!(line(&["echo", "", "a b", "$HOME", "it's"]), r"exec echo '' 'a b' '$HOME' 'it'\''s'");
        assert_eq!(line(&["A=1"]), "exec 'A=1'", "a command of that name, not a variable");
        let mut shell = std::process::Command::new("sh");
        let said =
            shell.args(["-c", &line(&["printf", "%s|", "a\nb", "'\"\\", "*"])]).output().expect("a shell").stdout;
        assert_eq!(String::from_utf8_lossy(&said), "a\nb|'\"\\|*|");
    }

    #[test]
    fn variables_and_secrets_are_read_and_values_of_secrets_are_refused() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let read = variables(&words(&["A=1", "B=x=y", "C="])).expect("variables");
        assert_eq!((read["A"].as_str(), read["B"].as_str(), read["C"].as_str()), ("1", "x=y", ""));
        assert!(variables(&words(&["=x"])).is_err() && variables(&words(&["NOT_SET_ANYWHERE"])).is_err());
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("key"), "hush\n").expect("written");
        let read = secrets(&words(&["KEY=@key"]), directory.path()).expect("a secret");
        assert_eq!(read["KEY"], "hush");
        let refused = secrets(&words(&["KEY=hush"]), directory.path()).expect_err("in the process list");
        assert!(!refused.to_string().contains("hush"), "{refused}");
    }

    #[test]
    fn times_are_read_and_none_is_refused() {
        assert_eq!(duration("--timeout", "90s").expect("a time"), Duration::from_secs(90));
        for text in ["", "none", "forever", "5", "x"] {
            assert!(duration("--timeout", text).is_err(), "{text}");
        }
    }
}
