//! The settings of a store's user: `config.toml` in the store's home. Every key is listed here with what it does.
//!
//! Comments and order that a person gave the file survive a change by `amalgam config`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Value, value};

use crate::error::CliError;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number.
    Number,
    /// Texts.
    List,
}

/// A key that is known.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What holds without it.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// All keys.
pub const KEYS: [Key; 5] = [
    Key {
        name: "author",
        kind: Kind::Text,
        default: "your login name",
        doc: "who takes snapshots, as the log shows it; AMALGAM_AUTHOR wins",
    },
    Key {
        name: "color",
        kind: Kind::Choice(&["auto", "always", "never"]),
        default: "auto",
        doc: "when to colour; --color and NO_COLOR win",
    },
    Key {
        name: "exclude",
        kind: Kind::List,
        default: "nothing",
        doc: "patterns that `init` leaves out of every new directory",
    },
    Key {
        name: "idle_seconds",
        kind: Kind::Number,
        default: "600",
        doc: "after so long without a call the background process ends",
    },
    Key {
        name: "pager",
        kind: Kind::Text,
        default: "less -FRX",
        doc: "what long output is shown with; AMALGAM_PAGER wins, PAGER comes after",
    },
];

/// The settings.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    document: DocumentMut,
}

impl Config {
    /// Reads the settings of a home; none if there is no file.
    pub fn load(home: &Path) -> Result<Self, CliError> {
        let path = home.join("config.toml");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(CliError::machine(path.display(), &error)),
        };
        let wrong = |error| CliError::refused(format!("{}: {error}", path.display())).hint("correct the file");
        let document = text.parse::<DocumentMut>().map_err(wrong)?;
        for (name, _) in document.iter() {
            known(name).map_err(|error| error.hint(format!("take it out of {}", path.display())))?;
        }
        Ok(Self { path, document })
    }

    /// Where they lie.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.document.get(name)?.as_str()
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.document.get(name)?.as_integer().and_then(|number| u64::try_from(number).ok())
    }

    /// Texts.
    pub fn list(&self, name: &str) -> Vec<String> {
        let array = self.document.get(name).and_then(Item::as_array);
        array.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// What a key is set to, as a person would write it; nothing if it is not set.
    pub fn shown(&self, key: &Key) -> Option<String> {
        let item = self.document.get(key.name)?;
        Some(match key.kind {
            Kind::List => self.list(key.name).join(" "),
            _ => item.as_str().map_or_else(|| item.to_string().trim().to_owned(), str::to_owned),
        })
    }

    /// Sets a key.
    pub fn set(&mut self, name: &str, words: &[String]) -> Result<(), CliError> {
        let key = known(name)?;
        let one = || match words {
            [word] => Ok(word.as_str()),
            _ => Err(CliError::usage(format!("`{name}` takes one value"))),
        };
        let item = match key.kind {
            Kind::Text => value(one()?),
            Kind::Choice(choices) => match one()? {
                word if choices.contains(&word) => value(word),
                word => {
                    return Err(CliError::usage(format!("`{name}` is one of {}, not `{word}`", choices.join(", "))));
                }
            },
            Kind::Number => {
                let wrong = |_| CliError::usage(format!("`{name}` is a whole number"));
                value(i64::from(one()?.parse::<u32>().map_err(wrong)?))
            }
            Kind::List => value(words.iter().map(String::as_str).collect::<Array>()),
        };
        self.document[name] = item;
        Ok(())
    }

    /// Takes a key away. Says whether it was set.
    pub fn unset(&mut self, name: &str) -> Result<bool, CliError> {
        known(name)?;
        Ok(self.document.remove(name).is_some())
    }

    /// Writes the file: apart, then moved into place.
    pub fn save(&self) -> Result<(), CliError> {
        let failed = |error: io::Error| CliError::machine(self.path.display(), &error);
        if let Some(home) = self.path.parent() {
            fs::create_dir_all(home).map_err(failed)?;
        }
        let apart = self.path.with_extension("toml.new");
        fs::write(&apart, self.document.to_string()).map_err(failed)?;
        fs::rename(&apart, &self.path).map_err(failed)
    }
}

/// The key of this name; an error that lists them all if there is none.
pub fn known(name: &str) -> Result<&'static Key, CliError> {
    KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        CliError::usage(format!("`{name}` is no setting; there are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config { path: PathBuf::new(), document: text.parse().expect("TOML") }
    }

    #[test]
    fn a_change_keeps_comments() {
        let mut config = config("# mine\npager = \"less\" # always\n");
        config.set("idle_seconds", &["30".to_owned()]).expect("a number");
        config.set("exclude", &["*.o".to_owned(), "target".to_owned()]).expect("a list");
        let text = config.document.to_string();
        assert_eq!(text, "# mine\npager = \"less\" # always\nidle_seconds = 30\nexclude = [\"*.o\", \"target\"]\n");
        assert_eq!(config.list("exclude"), ["*.o", "target"]);
        assert!(config.unset("exclude").expect("known"));
        assert!(!config.unset("exclude").expect("known"));
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_refused() {
        let mut config = config("");
        let error = config.set("colour", &["auto".to_owned()]).expect_err("unknown");
        assert_eq!(error.to_string(), "`colour` is no setting; there are author, color, exclude, idle_seconds, pager");
        assert!(config.set("color", &["red".to_owned()]).is_err());
        assert!(config.set("idle_seconds", &["-1".to_owned()]).is_err());
        assert!(config.set("pager", &[]).is_err());
    }
}
