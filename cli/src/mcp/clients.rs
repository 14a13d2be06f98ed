//! The configuration files of MCP clients: where a server is entered, and how it is taken out again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item, Table, value};

use crate::error::CliError;
use crate::json_file::{JsonFile, Node, pretty, write_whole};

/// The name of the server in the configuration.
const NAME: &str = "amalgam";
/// The table of servers in the configuration of Codex.
const CODEX_SERVERS: &str = "mcp_servers";

/// A program that uses MCP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum McpClient {
    /// Claude Code: `.mcp.json` of the project
    Claude,
    /// Cursor: `.cursor/mcp.json` of the project
    Cursor,
    /// Codex: `~/.codex/config.toml`
    Codex,
    /// VS Code: `.vscode/mcp.json` of the project
    Vscode,
}

/// The command line of the server in the configuration.
#[derive(Clone, Debug)]
pub struct ServerCommand {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl McpClient {
    /// Returns the path of the client's configuration file, in the project or in the home of the user.
    pub fn file(self, project: &Path, home: &Path) -> PathBuf {
        match self {
            Self::Claude => project.join(".mcp.json"),
            Self::Cursor => project.join(".cursor/mcp.json"),
            Self::Vscode => project.join(".vscode/mcp.json"),
            Self::Codex => home.join(".codex/config.toml"),
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::Codex => CODEX_SERVERS,
            _ => "mcpServers",
        }
    }

    fn entry(self, command: &ServerCommand) -> Value {
        let mut entry = json!({"command": command.program, "args": command.arguments});
        if self == Self::Vscode {
            entry["type"] = "stdio".into();
        }
        entry
    }

    /// Returns the text that the user can paste into the configuration.
    pub fn snippet(self, command: &ServerCommand) -> String {
        match self {
            Self::Codex => {
                let mut document = DocumentMut::new();
                set_codex(&mut document, command);
                document.to_string().trim_end().to_owned()
            }
            _ => pretty(&json!({self.key(): {NAME: self.entry(command)}}).into()),
        }
    }

    /// Adds the server to a configuration file, or replaces its entry.
    pub fn add(self, file: &Path, command: &ServerCommand) -> Result<(), CliError> {
        if self == Self::Codex {
            let mut document = load_toml(file)?;
            set_codex(&mut document, command);
            return write_whole(file, &document.to_string());
        }
        let mut found = JsonFile::load(file)?;
        let servers = found.root.entry(self.key(), Node::object);
        servers.ok_or_else(|| not_an_object(file, self.key()))?.set(NAME, self.entry(command).into());
        found.save()
    }

    /// Removes the server from a configuration file. Returns whether it was there.
    pub fn remove(self, file: &Path) -> Result<bool, CliError> {
        if self == Self::Codex {
            let mut document = load_toml(file)?;
            let servers = document.get_mut(CODEX_SERVERS).and_then(Item::as_table_like_mut);
            let Some(servers) = servers.filter(|servers| servers.contains_key(NAME)) else { return Ok(false) };
            servers.remove(NAME);
            if servers.is_empty() {
                document.remove(CODEX_SERVERS);
            }
            write_whole(file, &document.to_string())?;
            return Ok(true);
        }
        let mut found = JsonFile::load(file)?;
        let Some(servers) = found.root.get_mut(self.key()) else { return Ok(false) };
        let was_there = servers.remove(NAME);
        if servers.is_empty() {
            found.root.remove(self.key());
        }
        if was_there {
            found.save()?;
        }
        Ok(was_there)
    }
}

fn not_an_object(file: &Path, key: &str) -> CliError {
    CliError::refused(format!("{}: `{key}` is no JSON object", file.display()))
}

fn load_toml(file: &Path) -> Result<DocumentMut, CliError> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(CliError::machine(file.display(), &error)),
    };
    text.parse().map_err(|error| CliError::refused(format!("{}: {error}", file.display())))
}

fn set_codex(document: &mut DocumentMut, command: &ServerCommand) {
    let servers = document.entry(CODEX_SERVERS).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let mut entry = Table::new();
    entry["command"] = value(&command.program);
    entry["args"] = value(command.arguments.iter().collect::<toml_edit::Array>());
    if let Some(servers) = servers.as_table_like_mut() {
        servers.insert(NAME, Item::Table(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> ServerCommand {
        ServerCommand { program: "amalgam".to_owned(), arguments: vec!["mcp".to_owned()] }
    }

    #[test]
    fn entries_are_added_once_and_removed_without_a_trace() {
        let directory = tempfile::tempdir().expect("a directory");
        for client in McpClient::value_variants() {
            let file = client.file(directory.path(), directory.path());
            client.add(&file, &command()).expect("it is added");
            let first = fs::read_to_string(&file).expect("a file");
            client.add(&file, &command()).expect("it is added again");
            assert_eq!(fs::read_to_string(&file).expect("a file"), first, "{client:?}");
            assert_eq!(first.trim_end(), client.snippet(&command()), "{client:?}");
            assert!(client.remove(&file).expect("it is removed"));
            assert!(!client.remove(&file).expect("it is gone"));
            assert!(fs::read_to_string(&file).is_ok_and(|text| text.is_empty()) || !file.exists(), "{client:?}");
        }
    }

    #[test]
    fn other_servers_and_comments_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let (json, toml) = (directory.path().join("mcp.json"), directory.path().join("config.toml"));
        let (old_json, old_toml) = (
            "{\n  \"other\": 1,\n  \"mcpServers\": {\n    \"b\": {\n      \"command\": \"b\"\n    }\n  }\n}\n",
            "# mine\nmodel = \"m\"\n\n[mcp_servers.b]\ncommand = \"b\"\n",
        );
        fs::write(&json, old_json).expect("a file");
        fs::write(&toml, old_toml).expect("a file");
        for (client, file, old) in [(McpClient::Cursor, &json, old_json), (McpClient::Codex, &toml, old_toml)] {
            client.add(file, &command()).expect("it is added");
            assert!(fs::read_to_string(file).is_ok_and(|text| text.contains("amalgam") && text != old));
            client.remove(file).expect("it is removed");
            assert_eq!(fs::read_to_string(file).expect("a file"), old);
        }
    }
}
