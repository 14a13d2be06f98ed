//! Events: the operations of the log as subscribers see them, and the filters of subscribers.
//!
//! An operation is one event. The log is the only copy: each read makes the events of the operations again.

use std::collections::VecDeque;
use std::sync::Arc;

use amalgam_engine::Error as EngineError;
use amalgam_engine::operation;
use amalgam_proto::{Reason, v1};

use crate::call_log::restricted_agent;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::feed::Following;
use crate::messages::operation_message;
use crate::notices::{Listening, Notice, OVERLAP_BEGAN, OVERLAP_ENDED, POLICY_REFUSED, has_notice};

/// The start of a request for the oldest events that the log has.
const FIRST: &str = "first";
/// The most names in one event.
const NAMES_MAX: usize = 100;
/// The most operations that a subscriber's filters leave out before it gets a message with its position.
const LEFT_OUT_MAX: u64 = 1_000;

/// All kinds of events, with their meaning.
pub const EVENT_KINDS: &[(&str, &str)] = &[
    ("workspace.created", "a workspace was created"),
    ("workspace.forked", "workspaces were forked from another one"),
    ("workspace.committed", "a workspace has a new snapshot"),
    ("workspace.merged", "the changes of a workspace were merged into another one"),
    ("workspace.restored", "a workspace went back to an older tree"),
    ("workspace.resolved", "conflicts of a workspace were resolved"),
    ("workspace.imported", "files or a history were imported into a workspace"),
    ("workspace.renamed", "a workspace has another name"),
    ("workspace.followed", "a workspace follows a source, or does not any more"),
    ("workspace.updated", "the agent, the project, the target or the uncommitted tree of a workspace was recorded"),
    ("workspace.deleted", "a workspace was deleted"),
    ("workspace.undeleted", "a deleted workspace was brought back"),
    ("label.changed", "a label was set, moved or removed"),
    ("snapshot.annotated", "a note or a reward of a snapshot was set"),
    ("operation.undone", "an operation was undone"),
    ("operation.redone", "an operation was redone"),
    ("queue.changed", "the merge queue changed: an entry came, was withdrawn or was finished"),
    ("review.changed", "a merge waits for a person, or a person decided"),
    ("episode.changed", "an episode began, got steps, was finished or dropped"),
    (
        "overlap.began",
        "a workspace changed a path that another open workspace had changed; only while a subscriber names this kind",
    ),
    ("overlap.ended", "a workspace left an overlap; only while a subscriber names this kind"),
    ("policy.refused", "the policy refused an act of an agent; the same act once a minute"),
    ("store.received", "snapshots of another store were received"),
    ("store.purged", "contents were purged"),
    ("store.changed", "records of the store changed that belong to no workspace"),
    ("sandbox.starting", "a sandbox is being started; this kind and those below are sent to webhooks only"),
    ("sandbox.created", "a sandbox can be used"),
    ("sandbox.running", "a sandbox runs"),
    ("sandbox.expiring", "a sandbox ends in five minutes"),
    ("sandbox.expired", "a sandbox has ended because its time was up"),
    ("sandbox.deleted", "a sandbox was deleted"),
    ("sandbox.error", "a sandbox did not start, or its processes are gone"),
    ("agent.connected", "the agent of a sandbox has connected"),
    ("agent.disconnected", "the agent of a sandbox is not connected any more"),
];

/// Returns the kind of an operation.
fn kind_of(operation: &v1::Operation) -> &'static str {
    match operation.action.as_str() {
        "create" => "workspace.created",
        "fork" => "workspace.forked",
        "commit" | "capture" | "edit" => "workspace.committed",
        "merge" | "regenerate" => "workspace.merged",
        "restore" => "workspace.restored",
        "resolve" => "workspace.resolved",
        "import" => "workspace.imported",
        "rename" => "workspace.renamed",
        "delete" => "workspace.deleted",
        "undelete" => "workspace.undeleted",
        "label" => "label.changed",
        "note" | "reward" => "snapshot.annotated",
        "undo" => "operation.undone",
        "redo" => "operation.redone",
        "follow" | "unfollow" => "workspace.followed",
        OVERLAP_BEGAN => OVERLAP_BEGAN,
        OVERLAP_ENDED => OVERLAP_ENDED,
        POLICY_REFUSED => POLICY_REFUSED,
        "receive" => "store.received",
        "purge" => "store.purged",
        _ => kind_of_references(&operation.changes),
    }
}

/// Returns the kind of an operation whose action does not determine it, by the references that it moved.
fn kind_of_references(changes: &[v1::ReferenceChange]) -> &'static str {
    let has = |prefix: &str| changes.iter().any(|change| change.reference.starts_with(prefix));
    match () {
        () if has("workspace/") => "workspace.updated",
        () if has("label/") => "label.changed",
        () if has("review/") => "review.changed",
        () if has("queue/") => "queue.changed",
        () if has("episode/") || has("step/") => "episode.changed",
        () => "store.changed",
    }
}

/// Returns the event of an operation.
fn event_of(operation: &v1::Operation) -> v1::Event {
    let named = |prefix: &str, form: &str| {
        let names = operation.changes.iter().filter_map(|change| change.reference.strip_prefix(prefix));
        names.take(NAMES_MAX).map(|name| format!("{form}/{name}")).collect::<Vec<_>>()
    };
    let head = operation.changes.iter().find(|change| change.reference.starts_with("workspace/"));
    v1::Event {
        position: operation.sequence.to_string(),
        kind: kind_of(operation).to_owned(),
        workspaces: named("workspace/", "workspaces"),
        snapshot: head.map(|change| change.after.clone()).unwrap_or_default(),
        actor: operation.actor.clone(),
        time: operation.time,
        labels: named("label/", "labels"),
        operation: None,
        ..v1::Event::default()
    }
}

/// Returns the event of an operation, with the note of its reference if it is a notice. Leaves out paths that are hidden from the
/// agent.
fn event_for(context: &Context, operation: &v1::Operation, agent: Option<&str>) -> Result<v1::Event> {
    let mut event = event_of(operation);
    if !has_notice(&operation.action) {
        return Ok(event);
    }
    let notice = match operation::operation(&context.store, operation.sequence) {
        Ok(found) => Notice::of_operation(&found),
        Err(EngineError::Trimmed { .. } | EngineError::Absent { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let guard = context.permissions.guard(&[agent.unwrap_or_default()])?;
    let is_shown = |path: &String| guard.is_visible(path.as_bytes(), false);
    match notice {
        Some(Notice::Overlap(note)) => {
            event.workspaces = note.workspaces.iter().map(|name| format!("workspaces/{name}")).collect();
            event.paths = Some(note.path).filter(is_shown).into_iter().collect();
        }
        Some(Notice::Refusal(note)) => {
            let more = match note.left_out {
                0 => String::new(),
                count => format!("; {count} refusals before it were left out"),
            };
            event.detail = match is_shown(&note.path) {
                true => format!("{} {}: {} gives {}{more}", note.act, note.path, note.rule, note.level),
                false => format!("{}{more}", note.act),
            };
            event.paths = Some(note.path).filter(is_shown).into_iter().collect();
            event.agent = note.agent;
        }
        None => {}
    }
    Ok(event)
}

/// A word, or a prefix of words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

impl Pattern {
    fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self { text: prefix.to_owned(), is_prefix: true },
            None => Self { text: text.to_owned(), is_prefix: false },
        }
    }

    fn fits(&self, text: &str) -> bool {
        if self.is_prefix { text.starts_with(&self.text) } else { text == self.text }
    }
}

/// The events that a subscriber wants.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    workspaces: Vec<Pattern>,
    kinds: Vec<Pattern>,
}

impl EventFilter {
    /// Parses the filters of a request: workspaces as `workspaces/{workspace}`, kinds as in [`EVENT_KINDS`]; both may end with `*`.
    ///
    /// # Errors
    /// A workspace is named without `workspaces/`, or there is no such kind.
    pub fn new(workspaces: &[String], kinds: &[String]) -> Result<Self> {
        if let Some(wrong) = workspaces.iter().find(|name| !name.starts_with("workspaces/")) {
            let message = format!("workspaces: `{}` does not start with workspaces/", wrong.escape_debug());
            return Err(Error::new(Reason::Invalid, message));
        }
        let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text)).collect::<Vec<_>>();
        let (workspaces, kinds) = (patterns(workspaces), patterns(kinds));
        let is_unknown = |pattern: &&Pattern| !EVENT_KINDS.iter().any(|(kind, _)| pattern.fits(kind));
        if let Some(wrong) = kinds.iter().find(is_unknown) {
            let known: Vec<_> = EVENT_KINDS.iter().map(|(kind, _)| *kind).collect();
            let message = format!("kinds: there is no `{}`; there are {}", wrong.text.escape_debug(), known.join(", "));
            return Err(Error::new(Reason::Invalid, message));
        }
        Ok(Self { workspaces, kinds })
    }

    /// Returns whether a subscriber wants an event that is no operation, by its kind and its workspace.
    pub fn wants_named(&self, kind: &str, workspace: &str) -> bool {
        let has = |patterns: &[Pattern], text: &str| patterns.is_empty() || patterns.iter().any(|one| one.fits(text));
        has(&self.kinds, kind) && has(&self.workspaces, workspace)
    }

    /// Returns whether a subscriber wants the event of an operation.
    fn wants(&self, operation: &v1::Operation) -> bool {
        if !self.kinds.is_empty() && !self.kinds.iter().any(|kind| kind.fits(kind_of(operation))) {
            return false;
        }
        // An operation that is too large to show all its changes may have moved any workspace.
        if self.workspaces.is_empty() || operation.changes_left_out > 0 {
            return true;
        }
        // The workspaces of a notice are in the note of its reference.
        if has_notice(&operation.action) {
            return true;
        }
        let mut names = operation.changes.iter().filter_map(|change| change.reference.strip_prefix("workspace/"));
        names.any(|name| self.workspaces.iter().any(|pattern| pattern.fits(&format!("workspaces/{name}"))))
    }
}

impl EventFilter {
    /// Returns whether the subscriber asks for overlaps by name, so that the radar must record them.
    fn names_overlaps(&self) -> bool {
        self.kinds.iter().any(|kind| kind.text.starts_with("overlap.") || kind.text == "overlap")
    }

    /// Returns whether a subscriber wants a notice about the workspaces of an event.
    fn wants_notice(&self, event: &v1::Event) -> bool {
        let is_wanted = |name: &String| self.workspaces.iter().any(|pattern| pattern.fits(name));
        self.workspaces.is_empty() || event.workspaces.iter().any(is_wanted)
    }
}

/// A subscription to the events of a store, from a position on.
pub struct EventStream {
    context: Arc<Context>,
    following: Following,
    filter: EventFilter,
    has_operations: bool,
    ready: VecDeque<v1::Operation>,
    position: u64,
    /// The position in the last message to the subscriber; `None` before the first message.
    told: Option<u64>,
    /// The agent of the subscriber, if the policy applies to it.
    agent: Option<String>,
    /// Keeps the radar active for a subscriber that asks for overlaps.
    _listening: Option<Listening>,
}

impl EventStream {
    /// Opens a stream after a position: empty for new events, `first` for the oldest that the log has.
    ///
    /// # Errors
    /// The position is malformed, or the log does not have it: [`Reason::OutOfRange`].
    pub(crate) fn open(context: &Arc<Context>, after: &str, filter: EventFilter, has_operations: bool) -> Result<Self> {
        let store = &context.store;
        let (first, last) = (store.first_operation()?, store.last_operation()?);
        let position = match after {
            "" => last,
            FIRST => first - 1,
            text => text.parse().map_err(|_| Error::new(Reason::Invalid, "after: not a position of an event"))?,
        };
        if position.saturating_add(1) < first || position > last {
            return Err(out_of_range(context, position));
        }
        let following = context.operations.follow(store, position);
        let listening = filter.names_overlaps().then(|| context.overlap_listeners.listen());
        Ok(Self {
            context: Arc::clone(context),
            following,
            filter,
            has_operations,
            ready: VecDeque::new(),
            position,
            told: None,
            agent: restricted_agent(),
            _listening: listening,
        })
    }

    /// Returns the position up to which all events were returned.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next message as soon as there is one. The first tells the position. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The log was trimmed beyond the position, or cannot be read.
    pub async fn next(&mut self) -> Result<v1::SubscribeResponse> {
        if self.told.is_none() {
            return Ok(self.message(None));
        }
        loop {
            while let Some(operation) = self.ready.pop_front() {
                self.position = operation.sequence;
                if self.filter.wants(&operation) {
                    let event = event_for(&self.context, &operation, self.agent.as_deref())?;
                    if !has_notice(&operation.action) || self.filter.wants_notice(&event) {
                        let operation = self.has_operations.then_some(operation);
                        return Ok(self.message(Some(v1::Event { operation, ..event })));
                    }
                }
                if self.told.is_some_and(|told| self.position - told >= LEFT_OUT_MAX) {
                    return Ok(self.message(None));
                }
            }
            let next = self.following.next().await.map_err(|failure| self.trimmed(failure))?;
            self.ready.extend(next);
        }
    }

    fn message(&mut self, event: Option<v1::Event>) -> v1::SubscribeResponse {
        self.told = Some(self.position);
        v1::SubscribeResponse { position: self.position.to_string(), event }
    }

    fn trimmed(&self, failure: Error) -> Error {
        match failure {
            Error::Engine(EngineError::Trimmed { .. }) => out_of_range(&self.context, self.position),
            failure => failure,
        }
    }
}

/// Returns the event at a position; `None` if the log does not have this operation any more.
pub(crate) fn event_at(context: &Context, position: u64) -> Result<Option<v1::Event>> {
    match operation::operation(&context.store, position) {
        Ok(found) => event_for(context, &operation_message(&found), None).map(Some),
        Err(EngineError::Trimmed { .. } | EngineError::Absent { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the error for a position that the log does not have, with the positions that it has.
pub(crate) fn out_of_range(context: &Context, position: u64) -> Error {
    let (first, last) = match (context.store.first_operation(), context.store.last_operation()) {
        (Ok(first), Ok(last)) => (first - 1, last),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let message = format!(
        "the log has no events directly after position {position}: it begins after {first} and ends at {last}. To resync, note {last}, read \
         the workspaces again (ListWorkspaces), then subscribe after {last}"
    );
    Error::new(Reason::OutOfRange, message).with("first", first.to_string()).with("last", last.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: &str, references: &[&str]) -> v1::Operation {
        let change = |name: &&str| v1::ReferenceChange { reference: (*name).to_owned(), ..Default::default() };
        v1::Operation {
            action: action.to_owned(),
            changes: references.iter().map(change).collect(),
            ..Default::default()
        }
    }

    fn filter(workspaces: &[&str], kinds: &[&str]) -> Result<EventFilter> {
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        EventFilter::new(&texts(workspaces), &texts(kinds))
    }

    #[test]
    fn the_largest_position_is_out_of_range() {
        let around = tempfile::tempdir().expect("a directory");
        let home = crate::home::Home::new(around.path().join("home"));
        let service = crate::service::Service::open(&home, || amalgam_engine::Time(5), &[]).expect("opened");
        let opened = EventStream::open(&service.context, &u64::MAX.to_string(), EventFilter::default(), false);
        assert_eq!(opened.err().expect("refused").reason(), Reason::OutOfRange);
    }

    #[test]
    fn every_kind_is_listed() {
        for (action, references) in [
            ("create", &["workspace/a"][..]),
            ("aim", &["workspace/a"]),
            ("queue", &["queue/main/1"]),
            ("reject", &["review/main/1"]),
            ("record", &["step/e/1"]),
            ("lean", &["lean/1"]),
            ("reward", &["reward/1"]),
            ("follow", &["workspace/a"]),
            ("overlap.began", &["overlap/1"]),
            ("overlap.ended", &["overlap/1"]),
            ("policy.refused", &["refused/1"]),
        ] {
            let kind = kind_of(&operation(action, references));
            assert!(EVENT_KINDS.iter().any(|(known, _)| *known == kind), "{kind}");
        }
    }

    #[test]
    fn filters_pass_what_both_of_them_name() {
        let commit = operation("commit", &["workspace/agents/ann", "label/v1"]);
        for (workspaces, kinds, is_wanted) in [
            (&[][..], &[][..], true),
            (&["workspaces/agents/ann"], &[], true),
            (&["workspaces/agents/*"], &["workspace.*"], true),
            (&["workspaces/agents"], &[], false),
            (&["workspaces/bob", "workspaces/agents/ann"], &["label.changed"], false),
            (&[], &["label.changed", "workspace.committed"], true),
        ] {
            let filter = filter(workspaces, kinds).expect("a filter");
            assert_eq!(filter.wants(&commit), is_wanted, "{workspaces:?} {kinds:?}");
        }
        let label = operation("label", &["label/v1"]);
        assert!(!filter(&["workspaces/*"], &[]).expect("a filter").wants(&label), "it moved no workspace");
        let large = v1::Operation { changes_left_out: 7, ..operation("fork", &["workspace/a"]) };
        assert!(filter(&["workspaces/z"], &[]).expect("a filter").wants(&large), "it may be among the others");
        assert!(filter(&["main"], &[]).is_err() && filter(&[], &["workspace.exploded"]).is_err());
    }
}
