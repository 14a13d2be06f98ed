//! Reads rules from TOML. Errors state the location and the allowed values.

use std::fmt;
use std::ops::Range;

use toml_edit::{Document, Item, Key, TableLike};

use super::pattern::Pattern;
use super::rule::{Content, Group, Rule, RuleLocation, Rules};
use crate::job::{Lists, Options};
use crate::strategy::MergeStrategy;
use crate::structure::line_and_column;

const RULE_TABLE: &str = "rule";
const GROUP_TABLE: &str = "group";
/// The keys that every rule may have.
const COMMON_RULE_KEYS: [&str; 4] = ["path", "way", "type", "max_bytes"];
const GROUP_KEYS: [&str; 2] = ["name", "paths"];

/// An error in a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The name of the layer.
    pub source: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The byte in the line, counted from 1.
    pub column: usize,
    /// The problem and the allowed values.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}, column {}: {}", self.source, self.line, self.column, self.what)
    }
}

/// Rules that were rejected, with all their errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadRules {
    /// One error for each location.
    pub complaints: Vec<Complaint>,
}

impl fmt::Display for BadRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.complaints.iter().map(Complaint::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

pub(super) fn read(text: &str, source: &str) -> Result<Rules, BadRules> {
    let mut reader = Reader { text, source, complaints: Vec::new() };
    let rules = reader.document();
    match reader.complaints.is_empty() {
        true => Ok(rules),
        false => Err(BadRules { complaints: reader.complaints }),
    }
}

struct Reader<'a> {
    text: &'a str,
    source: &'a str,
    complaints: Vec<Complaint>,
}

impl Reader<'_> {
    fn complain(&mut self, span: Option<Range<usize>>, what: String) {
        let (line, column) = line_and_column(self.text.as_bytes(), span.map_or(0, |span| span.start));
        self.complaints.push(Complaint { source: self.source.to_owned(), line, column, what });
    }

    fn location(&self, span: Option<Range<usize>>) -> RuleLocation {
        let (line, _) = line_and_column(self.text.as_bytes(), span.map_or(0, |span| span.start));
        RuleLocation { source: self.source.to_owned(), line }
    }

    fn document(&mut self) -> Rules {
        let mut rules = Rules { rules: Vec::new(), groups: Vec::new() };
        let document = match Document::parse(self.text) {
            Ok(document) => document,
            Err(error) => {
                self.complain(error.span(), error.message().to_owned());
                return rules;
            }
        };
        for (name, item) in document.as_table() {
            let key = document.as_table().key(name);
            let tables = item.as_array_of_tables();
            match (name, tables) {
                (RULE_TABLE, Some(tables)) => {
                    for table in tables {
                        rules.rules.extend(self.rule(table, table.span()));
                    }
                }
                (GROUP_TABLE, Some(tables)) => {
                    for table in tables {
                        rules.groups.extend(self.group(table, table.span()));
                    }
                }
                (RULE_TABLE | GROUP_TABLE, None) => {
                    self.complain(span_of(key), format!("`{name}` must be written [[{name}]]"))
                }
                _ => self.complain(span_of(key), format!("`{name}`: unknown; use [[rule]] or [[group]]")),
            }
        }
        rules
    }

    fn rule(&mut self, table: &dyn TableLike, span: Option<Range<usize>>) -> Option<Rule> {
        let before = self.complaints.len();
        let location = self.location(span.clone());
        let paths = self.patterns(table, "path", span.clone());
        let strategy = self.strategy(table, span);
        let only_type = table.get("type").and_then(|item| match item.as_str() {
            Some("text") => Some(Content::Text),
            Some("binary") => Some(Content::Binary),
            _ => {
                self.complain(item.span(), format!("type = {}: must be \"text\" or \"binary\"", shown(item)));
                None
            }
        });
        let mut strategy = strategy?;
        for (name, _) in table.iter() {
            let takes = COMMON_RULE_KEYS.iter().chain(strategy.option_names()).copied();
            if !takes.clone().any(|known| known == name) {
                let known: Vec<_> = takes.collect();
                let what =
                    format!("`{name}` is not an option of the way {}; use {}", strategy.name(), known.join(", "));
                self.complain(span_of(table.key(name)), what);
            }
        }
        strategy.options = self.options(table);
        (self.complaints.len() == before).then_some(Rule { location, paths, only_type, strategy })
    }

    fn strategy(&mut self, table: &dyn TableLike, span: Option<Range<usize>>) -> Option<MergeStrategy> {
        let all = || MergeStrategy::names().collect::<Vec<_>>().join(", ");
        let Some(item) = table.get("way") else {
            self.complain(span, format!("a rule needs `way`: one of {}", all()));
            return None;
        };
        let strategy = item.as_str().and_then(MergeStrategy::named);
        if strategy.is_none() {
            self.complain(item.span(), format!("way = {}: unknown way; use one of {}", shown(item), all()));
        }
        strategy
    }

    fn options(&mut self, table: &dyn TableLike) -> Options {
        let mut options = Options::default();
        for (name, item) in table.iter() {
            match name {
                "keys" => options.keys = self.texts(name, item),
                "texts" => options.texts = self.texts(name, item),
                "agents" => options.agents = self.texts(name, item),
                "inputs" => options.inputs = self.texts(name, item),
                "command" => match item.as_str() {
                    Some(command) => options.command = command.to_owned(),
                    None => self.complain(item.span(), format!("command = {}: must be a string", shown(item))),
                },
                "lists" => match item.as_str() {
                    Some("conflict") => options.lists = Lists::Conflict,
                    Some("both") => options.lists = Lists::Both,
                    _ => {
                        self.complain(item.span(), format!("lists = {}: must be \"conflict\" or \"both\"", shown(item)))
                    }
                },
                "max_bytes" => match item.as_integer().and_then(|bytes| u64::try_from(bytes).ok()) {
                    Some(bytes) => options.bytes_max = Some(bytes),
                    None => {
                        self.complain(item.span(), format!("max_bytes = {}: must be a number of bytes", shown(item)))
                    }
                },
                _ => {}
            }
        }
        for path in options.texts.iter().filter(|path| !path.starts_with('/')) {
            self.complain(table.get("texts").and_then(Item::span), format!("`{path}`: must begin with /"));
        }
        options
    }

    fn group(&mut self, table: &dyn TableLike, span: Option<Range<usize>>) -> Option<Group> {
        let before = self.complaints.len();
        let location = self.location(span.clone());
        for (name, _) in table.iter().filter(|(name, _)| !GROUP_KEYS.contains(name)) {
            let what = format!("`{name}` is not an option of a group; use {}", GROUP_KEYS.join(", "));
            self.complain(span_of(table.key(name)), what);
        }
        let paths = self.patterns(table, "paths", span);
        let name = match table.get("name") {
            None => format!("the group of {}", location),
            Some(item) => item.as_str().map(str::to_owned).unwrap_or_else(|| {
                self.complain(item.span(), format!("name = {}: must be a string", shown(item)));
                String::new()
            }),
        };
        (self.complaints.len() == before).then_some(Group { location, name, paths })
    }

    fn patterns(&mut self, table: &dyn TableLike, name: &str, span: Option<Range<usize>>) -> Vec<Pattern> {
        let Some(item) = table.get(name) else {
            self.complain(span, format!("`{name}` is missing: give a pattern or a list of patterns"));
            return Vec::new();
        };
        let texts = match item.as_str() {
            Some(text) => vec![text.to_owned()],
            None => self.texts(name, item),
        };
        if texts.is_empty() {
            self.complain(item.span(), format!("`{name}`: give at least one pattern"));
        }
        let mut patterns = Vec::with_capacity(texts.len());
        for text in texts {
            match Pattern::new(&text) {
                Ok(pattern) => patterns.push(pattern),
                Err(what) => self.complain(item.span(), format!("{name} = \"{text}\": {what}")),
            }
        }
        patterns
    }

    /// Reads a list of strings.
    fn texts(&mut self, name: &str, item: &Item) -> Vec<String> {
        let texts = item
            .as_array()
            .and_then(|array| array.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
        texts.unwrap_or_else(|| {
            self.complain(item.span(), format!("{name} = {}: must be a list of strings", shown(item)));
            Vec::new()
        })
    }
}

fn span_of(key: Option<&Key>) -> Option<Range<usize>> {
    key.and_then(Key::span)
}

/// Returns a value in a form that fits on one line.
fn shown(item: &Item) -> String {
    match item.as_str() {
        Some(text) => format!("{text:?}"),
        None => format!("({})", item.type_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, expected: &[&str]) {
        let bad = read(text, "merge.toml").expect_err("it is wrong");
        let lines: Vec<_> = bad.complaints.iter().map(Complaint::to_string).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_what_may_stand_there() {
        let strategies =
            "text, union, json, jsonc, yaml, toml, crdt, last-writer, priority, ours, theirs, regenerate, review";
        refused(
            "[[rule]]\npath = \"a\"\nway = \"jsno\"\n",
            &[&format!("merge.toml, line 3, column 7: way = \"jsno\": unknown way; use one of {strategies}")],
        );
        refused(
            "\n[[rule]]\npath = \"a\"\n",
            &[&format!("merge.toml, line 2, column 1: a rule needs `way`: one of {strategies}")],
        );
        refused(
            "[[rule]]\nway = \"text\"\n",
            &["merge.toml, line 1, column 1: `path` is missing: give a pattern or a list of patterns"],
        );
        refused(
            "[[rule]]\npath = \"a\"\nway = \"text\"\n  keys = [\"id\"]\n",
            &["merge.toml, line 4, column 3: `keys` is not an option of the way text; use path, way, type, max_bytes"],
        );
        refused(
            "[[rule]]\npath = \"[a\"\nway = \"json\"\nkeys = \"id\"\nlists = \"all\"\nmax_bytes = -1\ntype = \"x\"\n",
            &[
                "merge.toml, line 2, column 8: path = \"[a\": unclosed character class; missing ']'",
                "merge.toml, line 7, column 8: type = \"x\": must be \"text\" or \"binary\"",
                "merge.toml, line 4, column 8: keys = \"id\": must be a list of strings",
                "merge.toml, line 5, column 9: lists = \"all\": must be \"conflict\" or \"both\"",
                "merge.toml, line 6, column 13: max_bytes = (integer): must be a number of bytes",
            ],
        );
        refused("[rule]\n", &["merge.toml, line 1, column 2: `rule` must be written [[rule]]"]);
        refused("rules = 1\n", &["merge.toml, line 1, column 1: `rules`: unknown; use [[rule]] or [[group]]"]);
        refused(
            "[[group]]\npaths = []\nname = 1\n",
            &[
                "merge.toml, line 2, column 9: `paths`: give at least one pattern",
                "merge.toml, line 3, column 8: name = (integer): must be a string",
            ],
        );
        refused(
            "[[rule]]\npath = \"a\"\nway = \"crdt\"\ntexts = [\"body\"]\n",
            &["merge.toml, line 4, column 9: `body`: must begin with /"],
        );
        assert_eq!(read("[[rule]\n", "merge.toml").expect_err("no TOML").complaints[0].line, 1);
    }

    #[test]
    fn every_option_reaches_its_way() {
        let text = "[[rule]]\npath = [\"a\", \"b/\"]\nway = \"json\"\nkeys = [\"uid\"]\nlists = \"both\"\nmax_bytes = 10\n\
                    [[rule]]\npath = \"c\"\nway = \"regenerate\"\ncommand = \"make c\"\ninputs = [\"d\"]\n\
                    [[rule]]\npath = \"e\"\nway = \"priority\"\nagents = [\"lead\"]\n";
        let rules = read(text, "merge.toml").expect("rules");
        let options: Vec<_> = rules.rules.iter().map(|rule| rule.strategy.options.clone()).collect();
        let keys = vec!["uid".to_owned()];
        assert_eq!(options[0], Options { keys, lists: Lists::Both, bytes_max: Some(10), ..Options::default() });
        assert_eq!((options[1].command.as_str(), options[1].inputs.as_slice()), ("make c", &["d".to_owned()][..]));
        assert_eq!(options[2].agents, ["lead"]);
    }
}
