//! The tools: their names, descriptions, schemas and annotations.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// The effect of a tool on files and workspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Changes nothing.
    Read,
    /// Adds something, and changes nothing that is there.
    Add,
    /// Changes files or workspaces. `undo` takes it back.
    Change,
    /// Runs a command, which can do anything.
    Run,
}

/// A tool.
pub struct ToolSpec {
    /// Its name.
    pub name: &'static str,
    /// Its title for people.
    title: &'static str,
    /// Its effect on files and workspaces.
    pub effect: Effect,
    /// The description for a model.
    description: &'static str,
    /// Required arguments.
    pub required: &'static [&'static str],
    /// Arguments: name, type, description.
    arguments: &'static [(&'static str, Kind, &'static str)],
}

/// The type of an argument.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Texts,
    Flag,
    Number,
    OneOf(&'static [&'static str]),
}

/// The names of all tools.
pub const TOOL_NAMES: [&str; 12] =
    ["status", "snapshot", "history", "diff", "restore", "fork", "merge", "conflicts", "run", "read", "edit", "search"];

const REVISION: &str = "Snapshot: @ (latest), @~2, an id, a label, NAME@ (workspace), @{10 minutes ago}";
const WORKSPACE: &str = "Workspace; default: that of the current directory";

#[rustfmt::skip]
const TOOLS: [ToolSpec; 12] = [
    ToolSpec { name: "status", title: "Uncommitted changes", effect: Effect::Read,
        description: "Show what changed in the current directory since its last snapshot, and which workspace it belongs to.",
        required: &[], arguments: &[("workspaces", Kind::Flag, "Also list all workspaces")] },
    ToolSpec { name: "snapshot", title: "Take a snapshot", effect: Effect::Add,
        description: "Save the whole directory as a snapshot, before a risky step or after a good one. Cheap; nothing is lost by it.",
        required: &["message"], arguments: &[
            ("message", Kind::Text, "Why"), ("label", Kind::Text, "A name to find it by"), ("workspace", Kind::Text, WORKSPACE)] },
    ToolSpec { name: "history", title: "List snapshots", effect: Effect::Read,
        description: "List snapshots, newest first, with ids, times and messages.",
        required: &[], arguments: &[
            ("revision", Kind::Text, "Where to begin; default @"), ("path", Kind::Text, "Only those that changed this path"),
            ("limit", Kind::Number, "Default 20"), ("all", Kind::Flag, "Of all workspaces")] },
    ToolSpec { name: "diff", title: "Compare two states", effect: Effect::Read,
        description: "Compare two snapshots, or a snapshot with the files as they are now. By default: what changed since the last snapshot.",
        required: &[], arguments: &[
            ("from", Kind::Text, REVISION), ("to", Kind::Text, "Second snapshot; default: the files now"),
            ("paths", Kind::Texts, "Only these"),
            ("form", Kind::OneOf(&["patch", "stat", "names", "insight"]), "insight: languages, risks. Default patch")] },
    ToolSpec { name: "restore", title: "Go back to a snapshot", effect: Effect::Change,
        description: "Bring files back to a snapshot. First call without `plan`: it only shows what would change and returns a plan id. \
                      Call again with that `plan` to do it. Uncommitted changes are saved first.",
        required: &["revision"], arguments: &[
            ("revision", Kind::Text, REVISION), ("paths", Kind::Texts, "Only these; default everything"),
            ("plan", Kind::Text, "Id from the dry run"), ("workspace", Kind::Text, WORKSPACE)] },
    ToolSpec { name: "fork", title: "Fork a workspace", effect: Effect::Add,
        description: "Create independent workspaces that begin at the current state, to try alternatives. Use their names with `run`, `read`, \
                      `edit`, `diff` (NAME@) and `merge`.",
        required: &[], arguments: &[
            ("names", Kind::Texts, "Names"), ("count", Kind::Number, "How many, instead of names; default 1"), ("from", Kind::Text, WORKSPACE)] },
    ToolSpec { name: "merge", title: "Merge workspaces", effect: Effect::Change,
        description: "Merge the snapshots of workspaces into another one. Conflicts are stored in the target and listed; see `conflicts`.",
        required: &["sources"], arguments: &[
            ("sources", Kind::Texts, "Workspaces to merge"), ("into", Kind::Text, WORKSPACE), ("message", Kind::Text, ""),
            ("dry_run", Kind::Flag, "Only say what would happen")] },
    ToolSpec { name: "conflicts", title: "List and resolve conflicts", effect: Effect::Change,
        description: "List conflicts; with `path` show one with markers; with `take` resolve by a version.",
        required: &[], arguments: &[
            ("path", Kind::Text, "The conflict"), ("version", Kind::Text, "Show this version: ours, theirs, base"),
            ("take", Kind::Text, "Resolve with: ours, theirs, base, union, or a workspace; without path: all")] },
    ToolSpec { name: "run", title: "Run a command", effect: Effect::Run,
        description: "Run a shell command with a snapshot before and after it; in another workspace, in a private mount of its files.",
        required: &["command"], arguments: &[
            ("command", Kind::Text, "For sh -c"), ("workspace", Kind::Text, "Run there; default: in the current directory"),
            ("message", Kind::Text, "Message of the snapshot"), ("timeout_seconds", Kind::Number, "Default 600")] },
    ToolSpec { name: "read", title: "Read a file", effect: Effect::Read,
        description: "Read a text file of any workspace, as it is now or in any snapshot. A directory is listed.",
        required: &["path"], arguments: &[
            ("path", Kind::Text, "From the root of the workspace"), ("revision", Kind::Text, REVISION), ("workspace", Kind::Text, WORKSPACE),
            ("offset", Kind::Number, "First line, from 1"), ("limit", Kind::Number, "Lines; default 2000")] },
    ToolSpec { name: "edit", title: "Edit a file", effect: Effect::Change,
        description: "Replace a text that a file has exactly once, or write a whole file (without `old`).",
        required: &["path", "new"], arguments: &[
            ("path", Kind::Text, "From the root of the workspace"), ("old", Kind::Text, "Exact text to replace"), ("new", Kind::Text, "New text"),
            ("replace_all", Kind::Flag, "All places"), ("workspace", Kind::Text, WORKSPACE)] },
    ToolSpec { name: "search", title: "Search files", effect: Effect::Read,
        description: "Search the files of any workspace or snapshot by a regular expression.",
        required: &["pattern"], arguments: &[
            ("pattern", Kind::Text, "Regular expression"), ("fixed", Kind::Flag, "Plain text instead"), ("ignore_case", Kind::Flag, ""),
            ("paths", Kind::Texts, "Only below these"), ("globs", Kind::Texts, "Only files like *.py"), ("revision", Kind::Text, REVISION),
            ("workspace", Kind::Text, WORKSPACE), ("limit", Kind::Number, "Default 100")] },
];

/// The tools that a server offers.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Only tools that change nothing.
    pub is_read_only: bool,
    /// Names of the offered tools; empty for all.
    pub names: Vec<String>,
    /// Whether commands can be run.
    pub has_run: bool,
}

impl Selection {
    /// Returns the descriptions of the offered tools.
    pub fn tools(&self) -> Vec<Tool> {
        TOOLS.iter().filter(|tool| self.has(tool)).map(|tool| tool.describe(self.is_read_only)).collect()
    }

    /// Finds a tool that is offered.
    pub fn find(&self, name: &str) -> Option<&'static ToolSpec> {
        TOOLS.iter().find(|tool| tool.name == name && self.has(tool))
    }

    fn has(&self, tool: &ToolSpec) -> bool {
        let is_named = self.names.is_empty() || self.names.iter().any(|name| name == tool.name);
        let is_possible = self.has_run || tool.effect != Effect::Run;
        is_named && is_possible && (!self.is_read_only || tool.effect == Effect::Read || tool.name == "conflicts")
    }
}

impl ToolSpec {
    /// Returns the names of the tool's arguments.
    pub fn argument_names(&self, is_read_only: bool) -> Vec<&'static str> {
        self.arguments(is_read_only).map(|(name, ..)| *name).collect()
    }

    /// Returns the arguments of the tool. A read-only server offers `conflicts` without `take`, which only reads.
    fn arguments(&self, is_read_only: bool) -> impl Iterator<Item = &'static (&'static str, Kind, &'static str)> {
        self.arguments.iter().filter(move |(name, ..)| !(is_read_only && *name == "take"))
    }

    fn describe(&self, is_read_only: bool) -> Tool {
        let properties: serde_json::Map<String, Value> = self
            .arguments(is_read_only)
            .map(|(name, kind, description)| ((*name).to_owned(), kind.schema(description)))
            .collect();
        let mut schema = JsonObject::new();
        schema.insert("type".to_owned(), "object".into());
        schema.insert("properties".to_owned(), properties.into());
        if !self.required.is_empty() {
            schema.insert("required".to_owned(), self.required.into());
        }
        let effect = if is_read_only { Effect::Read } else { self.effect };
        let annotations = ToolAnnotations::with_title(self.title).open_world(effect == Effect::Run);
        let annotations = match effect {
            Effect::Read => annotations.read_only(true),
            _ => annotations.read_only(false).destructive(matches!(effect, Effect::Change | Effect::Run)),
        };
        let mut tool = Tool::new(self.name, self.description, Arc::new(schema));
        tool.annotations = Some(annotations);
        tool
    }
}

impl Kind {
    fn schema(self, description: &str) -> Value {
        let mut schema = match self {
            Self::Text => json!({"type": "string"}),
            Self::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Number => json!({"type": "integer", "minimum": 0}),
            Self::OneOf(words) => json!({"type": "string", "enum": words}),
        };
        if !description.is_empty() {
            schema["description"] = description.into();
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_table_and_required_arguments_exist() {
        assert_eq!(TOOLS.map(|tool| tool.name), TOOL_NAMES);
        for tool in &TOOLS {
            let names = tool.argument_names(false);
            assert!(tool.required.iter().all(|name| names.contains(name)), "{}", tool.name);
        }
    }

    #[test]
    fn a_server_without_sandboxes_has_no_tool_that_runs_commands() {
        let tools = Selection { is_read_only: false, names: Vec::new(), has_run: false }.tools();
        assert_eq!(tools.len(), TOOLS.len() - 1);
        assert!(tools.iter().all(|tool| tool.name != "run"));
    }

    #[test]
    fn a_read_only_server_has_no_tool_that_changes_anything() {
        let tools = Selection { is_read_only: true, names: Vec::new(), has_run: true }.tools();
        let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["status", "history", "diff", "conflicts", "read", "search"]);
        for tool in &tools {
            let annotations = tool.annotations.as_ref().expect("annotations");
            assert_eq!(annotations.read_only_hint, Some(true), "{}", tool.name);
            assert!(!tool.input_schema["properties"].as_object().is_some_and(|fields| fields.contains_key("take")));
        }
    }
}
