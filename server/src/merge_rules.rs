//! The sources of merge rules: built in, of the store (`merge.toml` in its home), of the project, of one call. A later source in this
//! list takes precedence over an earlier one.
//!
//! A project's rules are a file in its tree, and apply as they are in the head of the workspace that is merged *into*. A change of the
//! rules does not decide how it is merged itself: it applies to later merges.

use std::path::PathBuf;
use std::sync::Arc;

use amalgam_engine::merge::{MergeHeads, merge_base};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{EntryKind, MergeOptions, OperationContext, SnapshotId, WorkingTree};
use amalgam_merge::Rules;
use amalgam_merge::rules::{Content, NoMatch, RuleLocation};
use amalgam_merge::trees::{RuleMerger, merge_units};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use crate::call_log::hides_host_paths;
use crate::context::Context;
use crate::error::{Error, Result};

/// The file of a store's rules.
const FILE: &str = "merge.toml";
/// The file of a project's rules, in its tree.
pub(crate) const PROJECT_FILE: &str = ".amalgam/rules.toml";
/// The largest file of rules that is read.
const RULES_BYTES_MAX: u64 = 1 << 20;
/// The source name of rules that come with a call.
const CALL: &str = "this call";

/// Reads the merge rules of the store and of projects.
#[derive(Clone)]
pub(crate) struct MergeRules {
    context: Arc<Context>,
}

impl MergeRules {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context) }
    }

    fn rules_path(&self) -> PathBuf {
        self.context.home.path().join(FILE)
    }

    /// Returns the path of the store's own rules for the caller of the running call: only the file name on the network, whose
    /// callers get no path of the host.
    fn shown_path(&self) -> PathBuf {
        if hides_host_paths() { PathBuf::from(FILE) } else { self.rules_path() }
    }

    /// Reads the text of the store's own rules; empty if there is no file.
    pub(crate) fn rules_text(&self) -> Result<String> {
        let path = self.rules_path();
        let action = format!("read {}", path.display());
        match std::fs::metadata(&path) {
            Ok(found) if found.len() > RULES_BYTES_MAX => {
                let message = format!("{} has more than {RULES_BYTES_MAX} bytes", self.shown_path().display());
                return Err(Error::new(Reason::Invalid, message));
            }
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
            _ => {}
        }
        std::fs::read_to_string(&path).map_err(Error::io(action))
    }

    /// Reads the text of a project's rules from a snapshot; empty without a snapshot or a file. Also returns the source name for
    /// messages.
    fn project_text(&self, head: Option<SnapshotId>, of: &WorkspaceName) -> Result<(String, String)> {
        let source = format!("{PROJECT_FILE} of {of}");
        let refused = |why: &str| Err(Error::new(Reason::Invalid, format!("{source} {why}")));
        let Some(head) = head else { return Ok((String::new(), source)) };
        let tree = WorkingTree::open(&self.context.store, head)?;
        let Some(stat) = tree.stat(PROJECT_FILE)? else { return Ok((String::new(), source)) };
        match stat.kind {
            EntryKind::File if stat.size <= RULES_BYTES_MAX => {}
            EntryKind::File => return refused(&format!("has more than {RULES_BYTES_MAX} bytes")),
            EntryKind::Conflict => return refused("is a conflict: resolve it there first, with `amalgam conflicts`"),
            _ => return refused("is no file: put the rules into one, or remove it"),
        }
        match String::from_utf8(tree.read(PROJECT_FILE)?) {
            Ok(text) => Ok((text, source)),
            Err(_) => refused("is not UTF-8"),
        }
    }

    /// Returns the error in a project's rules in a snapshot, or `None`. Such rules would block every later merge.
    pub(crate) fn complaint_about(&self, snapshot: SnapshotId, of: &WorkspaceName) -> Option<String> {
        let read = |(text, source): (String, String)| Ok(Rules::read(&text, &source)?);
        self.project_text(Some(snapshot), of).and_then(read).err().map(|failure| failure.to_string())
    }

    /// Returns all rules for a merge into a workspace: built-in rules, and those of the store, the project and the call. Fails if
    /// some cannot be read, rather than merge without them.
    pub(crate) fn merge_rules(
        &self,
        target: Option<&WorkspaceName>,
        call: Option<&v1::CallRules>,
    ) -> Result<Arc<Rules>> {
        let text = self.rules_text()?;
        let name = self.shown_path().display().to_string();
        let mut rules = Rules::built_in();
        if !text.is_empty() {
            rules = rules.with_layer(Rules::read(&text, &name)?);
        }
        if let Some(target) = target {
            let head = self.context.workspaces.get(target)?.head;
            let (text, source) = self.project_text(head, target)?;
            rules = rules.with_layer(Rules::read(&text, &source)?);
        }
        let ways = call.map(|call| call.ways.as_slice()).unwrap_or_default();
        if !ways.is_empty() {
            let text: String = ways.iter().map(rule_text).collect();
            rules = rules.with_layer(Rules::read(&text, CALL)?);
        }
        Ok(Arc::new(rules))
    }

    /// Returns the options of a merge. The groups of the rules become units, which are merged as a whole.
    pub(crate) fn merge_options(
        &self,
        heads: &MergeHeads,
        rules: &Rules,
        contents: &RuleMerger,
        act: &OperationContext,
    ) -> Result<MergeOptions> {
        let moves = self.context.permissions.moves()?;
        let mut options = MergeOptions { time: act.time, moves, ..MergeOptions::default() };
        if !rules.has_groups() {
            return Ok(options);
        }
        let store = &self.context.store;
        let Some(ours) = heads.target else { return Ok(options) };
        let our_root = store.snapshot(ours)?.root;
        // The bases are pinned until the units are known.
        let mut bases = Vec::with_capacity(heads.sources.len());
        let mut merges = Vec::with_capacity(heads.sources.len());
        for (_, theirs) in &heads.sources {
            let base = merge_base(&self.context.history, &[ours], *theirs, contents, &options)?;
            merges.push((base.root, [our_root, store.snapshot(*theirs)?.root]));
            bases.push(base);
        }
        options.units = merge_units(rules, store, &merges)?;
        Ok(options)
    }

    /// Returns whether rules of this source are those of the store, which only its user can write.
    pub(crate) fn is_own_source(&self, source: &str) -> bool {
        // The source of a project's rules, and that of a call's, have other words.
        source == FILE || source == self.rules_path().display().to_string()
    }

    /// Returns the commands in the project rules of a workspace's head, with their locations; empty without a workspace.
    pub(crate) fn project_commands(&self, workspace: &str) -> Result<Vec<(String, RuleLocation)>> {
        let Some(name) = self.context.here(workspace)? else { return Ok(Vec::new()) };
        let head = self.context.workspaces.get(&name)?.head;
        let (text, source) = self.project_text(head, &name)?;
        let rules = Rules::read(&text, &source)?;
        Ok(rules.commands().map(|(command, place)| (command.to_owned(), place.clone())).collect())
    }

    pub(crate) fn get_rules(&self, request: &v1::GetRulesRequest) -> Result<v1::GetRulesResponse> {
        use std::os::unix::ffi::OsStrExt as _;
        let (project, project_source) = match self.context.here(&request.workspace)? {
            Some(name) => {
                let head = self.context.workspaces.get(&name)?.head;
                self.project_text(head, &name)?
            }
            None => Default::default(),
        };
        Ok(v1::GetRulesResponse {
            text: self.rules_text()?,
            path: Bytes::copy_from_slice(self.shown_path().as_os_str().as_bytes()),
            built_in: Rules::BUILT_IN.to_owned(),
            project,
            project_source,
        })
    }

    pub(crate) fn explain_rules(&self, request: &v1::ExplainRulesRequest) -> Result<v1::ExplainRulesResponse> {
        let rules = self.merge_rules(self.context.here(&request.workspace)?.as_ref(), request.rules.as_ref())?;
        let content = if request.binary { Content::Binary } else { Content::Text };
        let found = rules.explain(&request.path, content);
        let found = found.ok_or_else(|| Error::new(Reason::NotFound, "no rule matches this path"))?;
        Ok(v1::ExplainRulesResponse {
            way: found.strategy.name().to_owned(),
            what: found.strategy.description().to_owned(),
            source: found.location.source.clone(),
            line: found.location.line as u32,
            pattern: found.pattern.to_owned(),
            groups: rules.groups_of(&request.path).map(|group| group.name.clone()).collect(),
            tried: found.tried.iter().map(|(place, why)| tried_message(place, *why)).collect(),
        })
    }
}

fn tried_message(place: &amalgam_merge::rules::RuleLocation, why: NoMatch) -> v1::TriedRule {
    v1::TriedRule { source: place.source.clone(), line: place.line as u32, other_content: why == NoMatch::Content }
}

/// Checks the text of rules, and returns the complaints.
pub(crate) fn check_rules(request: &v1::CheckRulesRequest) -> v1::CheckRulesResponse {
    let complaints = match Rules::read(&request.text, &request.source) {
        Ok(_) => Vec::new(),
        Err(bad) => bad.complaints,
    };
    let complaint = |one: amalgam_merge::rules::Complaint| v1::RuleComplaint {
        line: one.line as u32,
        column: one.column as u32,
        message: one.what,
    };
    v1::CheckRulesResponse { complaints: complaints.into_iter().map(complaint).collect() }
}

/// Formats a rule of a call as TOML.
fn rule_text(rule: &v1::PathWay) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!("[[rule]]\npath = {}\nway = {}\n", quoted(&rule.path), quoted(&rule.way))
}
