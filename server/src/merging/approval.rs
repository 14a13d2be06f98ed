//! Commands of projects' rules that a person has approved: by the hash of their text, in the store's home. An approval is in no tree,
//! no stream and no backup.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{ChunkId, Time};
use amalgam_proto::{Reason, timestamp, v1};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Merging;
use crate::error::{Error, Result};
use crate::home::{Home, replace_file};

const FILE: &str = "approved-commands.json";
/// Keeps the hash of a command apart from that of a file with the same text.
const DOMAIN: &[u8] = b"amalgam rule command\0";
/// The number of digits of a hash in messages: 64 bits, for which no second command can be found on purpose.
const SHORT: usize = 16;

/// The approved commands, by the hash of their text.
pub(crate) struct Approvals {
    file: PathBuf,
    approved: Mutex<BTreeMap<String, Approval>>,
}

/// The approval of a command: its actor and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Approval {
    command: String,
    actor: String,
    time: i64,
}

/// Returns the hash of a command's text, which differs from the hash of a file with this text.
pub(super) fn hash_of(command: &str) -> String {
    ChunkId::of(&[DOMAIN, command.as_bytes()].concat()).to_string()
}

/// Returns why a command is not run, with the command line that approves it.
pub(super) fn refusal(command: &str, source: &str, target: &WorkspaceName) -> String {
    let hash = hash_of(command);
    format!(
        "the command `{command}` of {source} is not approved: `amalgam rules approve {} --into {target}` shows it, and lets it run",
        &hash[..SHORT]
    )
}

impl Approvals {
    /// Reads the approvals of a home. A file that cannot be read is an error: no approval is guessed.
    pub(crate) fn open(home: &Home) -> Result<Self> {
        let file = home.path().join(FILE);
        let action = format!("read {}", file.display());
        let approved = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let message = format!("{}: {error}; remove it, and approve commands again", file.display());
                Error::new(Reason::Invalid, message)
            })?,
            Err(source) if source.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(Error::io(action)(source)),
        };
        Ok(Self { file, approved: Mutex::new(approved) })
    }

    /// Returns whether exactly this command was approved.
    pub(super) fn is_approved(&self, command: &str) -> bool {
        // The text is compared, too, so that a wrong key in the file approves nothing.
        self.approved.lock().get(&hash_of(command)).is_some_and(|approval| approval.command == command)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Approval>)) -> Result<()> {
        let mut approved = self.approved.lock();
        let mut changed = approved.clone();
        change(&mut changed);
        let bytes = serde_json::to_vec_pretty(&changed).expect("approvals are plain values");
        replace_file(&self.file, &bytes).map_err(Error::io(format!("write {}", self.file.display())))?;
        *approved = changed;
        Ok(())
    }
}

impl Merging {
    /// Returns the commands of a project's rules, and then all approved commands that are in none of these rules.
    pub(crate) fn list_rule_commands(&self, workspace: &str) -> Result<Vec<v1::RuleCommand>> {
        let mut listed = Vec::new();
        let mut approved = self.inner.approvals.approved.lock().clone();
        for (command, place) in self.rules.project_commands(workspace)? {
            let hash = hash_of(&command);
            if listed.iter().any(|one: &v1::RuleCommand| one.hash == hash) {
                continue;
            }
            let approval = approved.remove(&hash);
            listed.push(message(hash, command, Some(place), approval));
        }
        listed.extend(approved.into_iter().map(|(hash, approval)| {
            let command = approval.command.clone();
            message(hash, command, None, Some(approval))
        }));
        Ok(listed)
    }

    /// Approves a command of a project's rules, by the whole hash of its text.
    pub(crate) fn approve_rule_command(
        &self,
        request: &v1::ApproveRuleCommandRequest,
        actor: &str,
    ) -> Result<v1::RuleCommand> {
        let listed = self.list_rule_commands(&request.workspace)?;
        let found = listed.into_iter().find(|one| one.hash == request.hash && !one.source.is_empty());
        let found = found.ok_or_else(|| {
            let message = format!("no rule of the project has a command with the hash {}", request.hash);
            Error::new(Reason::NotFound, message)
        })?;
        let Time(time) = self.context.now();
        let approval = Approval { command: found.command.clone(), actor: actor.to_owned(), time };
        self.inner.approvals.change(|approved| drop(approved.insert(found.hash.clone(), approval.clone())))?;
        Ok(v1::RuleCommand { approved: true, ..message(found.hash, found.command, None, Some(approval)) })
    }

    /// Takes an approval back, by the whole hash of the command's text.
    pub(crate) fn revoke_rule_command(&self, hash: &str) -> Result<()> {
        let approvals = &self.inner.approvals;
        if !approvals.approved.lock().contains_key(hash) {
            return Err(Error::new(Reason::NotFound, format!("no command with the hash {hash} is approved")));
        }
        approvals.change(|approved| drop(approved.remove(hash)))
    }
}

fn message(
    hash: String,
    command: String,
    place: Option<amalgam_merge::rules::RuleLocation>,
    approval: Option<Approval>,
) -> v1::RuleCommand {
    let (source, line) = place.map_or((String::new(), 0), |place| (place.source, place.line as u32));
    v1::RuleCommand {
        hash,
        command,
        source,
        line,
        approved: approval.is_some(),
        approver: approval.as_ref().map(|approval| approval.actor.clone()).unwrap_or_default(),
        approve_time: approval.map(|approval| timestamp(Time(approval.time))),
    }
}
