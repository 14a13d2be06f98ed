//! The settings of a store's user: `config.toml` in the store's home. [`KEYS`] lists every key with its meaning.
//!
//! Comments and order that a person gave the file survive a change by `amalgam config`.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use amalgam_server::retention::Span;
use amalgam_server::{Settings, local_paths};
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

use crate::error::CliError;

/// The name of the file in the store's home.
pub const CONFIG_FILE: &str = "config.toml";

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number.
    Number,
    /// A list of texts.
    List,
    /// A duration: `24h`, `30d`, `none`, `forever`.
    Span,
    /// A size: `500MB`, `20GiB`.
    Size,
}

/// A known key.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// The default, in words.
    pub default: &'static str,
    /// The description for `amalgam config`.
    pub doc: &'static str,
}

/// All keys. Those that start with [`FOR_WORKSPACES`], [`QUOTA`], [`GIT`] and [`SERVER`] can also be set for one workspace.
pub const KEYS: [Key; 28] = [
    Key {
        name: "author",
        kind: Kind::Text,
        default: "your login name",
        doc: "author of snapshots in the log; AMALGAM_AUTHOR overrides it",
    },
    Key {
        name: "color",
        kind: Kind::Choice(&["auto", "always", "never"]),
        default: "auto",
        doc: "when to use colour; --color and NO_COLOR override it",
    },
    Key {
        name: ENVIRONMENT,
        kind: Kind::List,
        default: "nothing",
        doc: "names of variables that tests of the queue get beside PATH, HOME, LANG and the like: `CI`, `DATABASE_URL`",
    },
    Key {
        name: TOOLCHAIN,
        kind: Kind::List,
        default: "nothing",
        doc: "directories outside /usr that commands of rules can read and run programs from; others are hidden from them",
    },
    Key {
        name: "exclude",
        kind: Kind::List,
        default: "nothing",
        doc: "ignore patterns that `init` sets for every new directory",
    },
    Key {
        name: "gc.grace",
        kind: Kind::Span,
        default: "24h",
        doc: "how long collections keep data that undo and undelete need",
    },
    Key {
        name: "gc.keep-operations",
        kind: Kind::Span,
        default: "30d",
        doc: "how long the operation log keeps operations",
    },
    Key {
        name: "gc.keep-operations-max",
        kind: Kind::Number,
        default: "20000",
        doc: "most operations that the log keeps; those within gc.grace always stay",
    },
    Key {
        name: "idle-seconds",
        kind: Kind::Number,
        default: "600",
        doc: "seconds without a call after which the background process ends",
    },
    Key {
        name: LOG_SIZE,
        kind: Kind::Size,
        default: "4 MiB",
        doc: "size at which the log of the background process is rotated; four older files are kept",
    },
    Key {
        name: "merge-tool",
        kind: Kind::Text,
        default: "none",
        doc: "command that `conflicts resolve --tool` runs; it reads the files $BASE, $LOCAL and $REMOTE and writes $MERGED",
    },
    Key {
        name: LOCAL,
        kind: Kind::List,
        default: "nothing",
        doc: "directories that mounts keep on the local disk and out of snapshots, such as `target` or `web/node_modules`",
    },
    Key {
        name: "pager",
        kind: Kind::Text,
        default: "less -FRX",
        doc: "command that shows long output; AMALGAM_PAGER overrides it, PAGER is used if neither is set",
    },
    Key {
        name: "retention.automatic.last",
        kind: Kind::Number,
        default: "0",
        doc: "number of newest automatic snapshots of a workspace that are always kept",
    },
    Key {
        name: "retention.automatic.all",
        kind: Kind::Span,
        default: "1h",
        doc: "how long all automatic snapshots are kept",
    },
    Key {
        name: "retention.automatic.hourly",
        kind: Kind::Span,
        default: "24h",
        doc: "how long the newest automatic snapshot of each hour is kept",
    },
    Key {
        name: "retention.automatic.daily",
        kind: Kind::Span,
        default: "30d",
        doc: "how long the newest automatic snapshot of each day is kept",
    },
    Key {
        name: "retention.automatic.weekly",
        kind: Kind::Span,
        default: "none",
        doc: "how long the newest automatic snapshot of each week is kept",
    },
    Key {
        name: "retention.people.last",
        kind: Kind::Number,
        default: "0",
        doc: "number of newest snapshots taken by people that are always kept",
    },
    Key {
        name: "retention.people.all",
        kind: Kind::Span,
        default: "forever",
        doc: "how long all snapshots taken by people are kept",
    },
    Key {
        name: "retention.people.hourly",
        kind: Kind::Span,
        default: "none",
        doc: "how long the newest snapshot of each hour is kept, of those taken by people",
    },
    Key {
        name: "retention.people.daily",
        kind: Kind::Span,
        default: "none",
        doc: "how long the newest snapshot of each day is kept, of those taken by people",
    },
    Key {
        name: "retention.people.weekly",
        kind: Kind::Span,
        default: "none",
        doc: "how long the newest snapshot of each week is kept, of those taken by people",
    },
    Key {
        name: "store.budget",
        kind: Kind::Size,
        default: "no limit",
        doc: "most bytes that the store may use; commits warn at 90 % and are refused above it",
    },
    Key {
        name: "store.free-floor",
        kind: Kind::Size,
        default: "1 GiB or a hundredth of the disk",
        doc: "free space on the store's disk below which commits are refused",
    },
    Key {
        name: "workspace.git",
        kind: Kind::Choice(&["leave", "include"]),
        default: "leave",
        doc: "whether restore, undo and redo leave .git alone or include it; --with-git overrides it",
    },
    Key {
        name: "workspace.quota",
        kind: Kind::Size,
        default: "no limit",
        doc: "most bytes that a workspace may add to the store, its history included",
    },
    Key {
        name: SERVER,
        kind: Kind::Text,
        default: "the current context",
        doc: "server that `push` and `pull` use: https://HOST[:PORT]/PROJECT, or the name of a context; `clone` sets it",
    },
];

/// Prefix of keys that can be set for one workspace.
const FOR_WORKSPACES: &str = "retention.";
const QUOTA: &str = "workspace.quota";
const GIT: &str = "workspace.git";
const SERVER: &str = "workspace.server";
const LOG_SIZE: &str = "log.max-size";
const LOCAL: &str = "mount.local";
const ENVIRONMENT: &str = "commands.environment";
const TOOLCHAIN: &str = "commands.toolchain";

/// A key, set for all workspaces or for one.
#[derive(Clone, Debug)]
pub struct NamedKey {
    /// The key.
    pub key: &'static Key,
    /// The workspace that the setting applies to; `None` for all.
    pub workspace: Option<String>,
}

impl NamedKey {
    /// Returns the name of the key as the command line takes it.
    pub fn name(&self) -> String {
        match &self.workspace {
            Some(workspace) => format!("workspace.{workspace}.{}", of_workspace(self.key)),
            None => self.key.name.to_owned(),
        }
    }

    /// Returns the path of the key in the file.
    fn path(&self) -> Vec<Part<'_>> {
        let word = |text| Part { text, is_workspace: false };
        match &self.workspace {
            Some(workspace) => {
                let workspace = Part { text: workspace.as_str(), is_workspace: true };
                let key = of_workspace(self.key).split('.').map(word);
                [word("workspace"), workspace].into_iter().chain(key).collect()
            }
            None => self.key.name.split('.').map(word).collect(),
        }
    }
}

/// A part of a key's path in the file.
#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    text: &'a str,
    /// Whether this part is the name of a workspace, which has only one spelling.
    is_workspace: bool,
}

impl Part<'_> {
    /// Returns the spelling of this part in a table: files of older versions have `merge_tool` for `merge-tool`.
    fn spelled_in(&self, table: &dyn TableLike) -> String {
        let older = self.text.replace('-', "_");
        let is_older = !self.is_workspace && !table.contains_key(self.text) && table.contains_key(&older);
        if is_older { older } else { self.text.to_owned() }
    }
}

/// Finds the value at a path.
fn find<'d, 'p>(document: &'d Item, path: impl IntoIterator<Item = Part<'p>>) -> Option<&'d Item> {
    path.into_iter().try_fold(document, |item, part| {
        let table = item.as_table_like()?;
        table.get(&part.spelled_in(table))
    })
}

/// Returns the part of a key's name that follows `workspace.NAME.`.
fn of_workspace(key: &Key) -> &'static str {
    match key.name {
        QUOTA => "quota",
        GIT => "git",
        SERVER => "server",
        name => name,
    }
}

/// The settings file.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    document: DocumentMut,
}

impl Config {
    /// Reads the settings of a home; none if there is no file.
    pub fn load(home: &Path) -> Result<Self, CliError> {
        let path = home.join(CONFIG_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(CliError::machine(path.display(), &error)),
        };
        let wrong = |error| CliError::refused(format!("{}: {error}", path.display())).hint("correct the file");
        let document = text.parse::<DocumentMut>().map_err(wrong)?;
        let config = Self { path, document };
        for (path, _) in config.leaves() {
            let out = |error: CliError| error.hint(format!("take it out of {}", config.path.display()));
            of_path(&path).map_err(out)?;
        }
        Ok(config)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the value of a key as text, or `None` if it is not set or is not text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.item(name)?.as_str()
    }

    /// Returns the value of a key as a number, or `None` if it is not set or is not a number from 0.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.item(name)?.as_integer().and_then(|number| u64::try_from(number).ok())
    }

    /// Returns the values of a list, or an empty list if it is not set.
    pub fn list(&self, name: &str) -> Vec<String> {
        let array = self.item(name).and_then(Item::as_array);
        array.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Returns the names of variables that the user adds to the environment of tests.
    pub fn command_environment(&self) -> Vec<String> {
        self.list(ENVIRONMENT)
    }

    /// Returns the size at which the log is rotated, or `None` if it is not set.
    pub fn log_bytes_max(&self) -> Result<Option<u64>, CliError> {
        let wrong = |why| CliError::refused(format!("setting `{LOG_SIZE}`: {why}"));
        self.item(LOG_SIZE).map(|item| size(&plain(item)).map_err(wrong)).transpose()
    }

    /// Returns the value that a key has for all workspaces, or `None` if it is not set.
    fn item(&self, name: &str) -> Option<&Item> {
        let path = name.split('.').map(|part| Part { text: part, is_workspace: false });
        find(self.document.as_item(), path)
    }

    /// Returns the value of a key as a user would write it, if it is set.
    pub fn shown(&self, named: &NamedKey) -> Option<String> {
        Some(plain(find(self.document.as_item(), named.path())?))
    }

    /// Returns all keys that are set for a single workspace.
    pub fn of_workspaces(&self) -> Vec<NamedKey> {
        let found = self.leaves().into_iter().filter_map(|(path, _)| of_path(&path).ok());
        found.filter(|named| named.workspace.is_some()).collect()
    }

    /// Sets a key. The values must fit the type of the key.
    pub fn set(&mut self, named: &NamedKey, words: &[String]) -> Result<(), CliError> {
        let name = named.name();
        let one = || match words {
            [word] => Ok(word.as_str()),
            _ => Err(CliError::usage(format!("`{name}` takes one value"))),
        };
        let item = match named.key.kind {
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
            Kind::Span => {
                one()?.parse::<Span>().map_err(|why| CliError::usage(format!("`{name}`: {why}")))?;
                value(one()?)
            }
            Kind::Size => {
                size(one()?).map_err(|why| CliError::usage(format!("`{name}`: {why}")))?;
                value(one()?)
            }
            Kind::List if named.key.name == LOCAL => {
                local_paths(words).map_err(|why| CliError::usage(format!("`{name}`: {why}")))?;
                value(words.iter().map(String::as_str).collect::<Array>())
            }
            Kind::List if named.key.name == TOOLCHAIN => {
                toolchain(words).map_err(|why| CliError::usage(format!("`{name}`: {why}")))?;
                value(words.iter().map(String::as_str).collect::<Array>())
            }
            Kind::List => value(words.iter().map(String::as_str).collect::<Array>()),
        };
        let path = named.path();
        let (last, above) = path.split_last().expect("a key has a name");
        let mut table: &mut dyn TableLike = self.document.as_table_mut();
        for part in above {
            let part = part.spelled_in(table);
            let dotted = || {
                let mut table = Table::new();
                table.set_dotted(true);
                Item::Table(table)
            };
            let taken = || CliError::usage(format!("`{part}` in the file is no table, so `{name}` cannot be set"));
            table = table.entry(&part).or_insert_with(dotted).as_table_like_mut().ok_or_else(taken)?;
        }
        table.insert(&last.spelled_in(table), item);
        Ok(())
    }

    /// Removes a key. Returns whether it was set.
    pub fn unset(&mut self, named: &NamedKey) -> bool {
        let path = named.path();
        let (last, above) = path.split_last().expect("a key has a name");
        let mut table: &mut dyn TableLike = self.document.as_table_mut();
        for part in above {
            let part = part.spelled_in(table);
            let Some(next) = table.get_mut(&part).and_then(Item::as_table_like_mut) else { return false };
            table = next;
        }
        table.remove(&last.spelled_in(table)).is_some()
    }

    /// Returns the settings for the service. An error names the key.
    pub fn settings(&self) -> Result<Settings, CliError> {
        let mut settings = Settings::default();
        let mut leaves = Vec::new();
        for (path, item) in self.leaves() {
            let named = of_path(&path)?;
            if named.key.name == LOCAL {
                let wrong = |why: String| CliError::refused(format!("setting `{LOCAL}`: {why}"));
                let words =
                    item.as_array().ok_or_else(|| wrong("it is a list of paths, as in [\"target\"]".to_owned()))?;
                settings.local = local_paths(words.iter().filter_map(Value::as_str)).map_err(wrong)?;
            }
            leaves.push((named, plain(item)));
        }
        settings.commands.toolchain = toolchain(&self.list(TOOLCHAIN))
            .map_err(|why| CliError::refused(format!("setting `{TOOLCHAIN}`: {why}")))?;
        // Settings for all workspaces come first: those of one workspace start from them.
        leaves.sort_by_key(|(named, _)| named.workspace.is_some());
        for (named, text) in &leaves {
            apply(&mut settings, named, text)
                .map_err(|why| CliError::refused(format!("setting `{}`: {why}", named.name())))?;
        }
        Ok(settings)
    }

    /// Returns all values with their paths.
    fn leaves(&self) -> Vec<(Vec<String>, &Item)> {
        let mut found = Vec::new();
        let mut open = vec![(Vec::new(), self.document.as_item())];
        while let Some((path, item)) = open.pop() {
            match item.as_table_like() {
                Some(table) => {
                    let below = table.iter().map(|(name, item)| {
                        let mut path: Vec<String> = path.clone();
                        path.push(name.to_owned());
                        (path, item)
                    });
                    open.extend(below.collect::<Vec<_>>().into_iter().rev());
                }
                None => found.push((path, item)),
            }
        }
        found
    }

    /// Reads the file again, changes it and writes it, under a lock on its directory: changes by several processes at the same time
    /// are all kept. An error of `change` leaves the file as it is.
    pub fn update(&mut self, change: impl FnOnce(&mut Self) -> Result<(), CliError>) -> Result<(), CliError> {
        let failed = |error: io::Error| CliError::machine(self.path.display(), &error);
        let home = self.path.parent().expect("the file lies in a directory").to_owned();
        create_home(&home).map_err(failed)?;
        let directory = fs::File::open(&home).map_err(failed)?;
        // Some network file systems cannot lock directories; there the change is made without a lock.
        let _ = retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive));
        *self = Self::load(&home)?;
        change(self)?;
        self.save()
    }

    /// Writes the file in one step: writes and syncs a temporary file with a name of its own, and renames it. A file that is there
    /// keeps its mode; a new one is for the user alone.
    fn save(&self) -> Result<(), CliError> {
        let failed = |error: io::Error| CliError::machine(self.path.display(), &error);
        let home = self.path.parent().expect("the file lies in a directory");
        create_home(home).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(home).map_err(failed)?;
        file.write_all(self.document.to_string().as_bytes()).map_err(failed)?;
        if let Ok(found) = fs::metadata(&self.path) {
            file.as_file().set_permissions(found.permissions()).map_err(failed)?;
        }
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&self.path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

/// Creates the store's home, for the user alone, if it does not exist.
fn create_home(home: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home)
}

fn plain(item: &Item) -> String {
    match item.as_array() {
        Some(array) => array.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        None => item.as_str().map_or_else(|| item.to_string().trim().to_owned(), str::to_owned),
    }
}

fn apply(settings: &mut Settings, named: &NamedKey, text: &str) -> Result<(), String> {
    match (named.key.name, &named.workspace) {
        ("gc.grace", _) => settings.grace = text.parse()?,
        ("gc.keep-operations", _) => settings.log.keep = text.parse()?,
        ("gc.keep-operations-max", _) => {
            settings.log.operations_max = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
        }
        ("store.budget", _) => settings.budget_bytes = Some(size(text)?),
        ("store.free-floor", _) => settings.floor_bytes = Some(size(text)?),
        (QUOTA, None) => settings.quota_bytes = Some(size(text)?),
        (QUOTA, Some(workspace)) => {
            settings.quotas_bytes.insert(workspace.clone(), size(text)?);
        }
        (GIT, None) => settings.include_git = text == "include",
        (GIT, Some(workspace)) => {
            settings.include_git_of.insert(workspace.clone(), text == "include");
        }
        (name, workspace) => {
            let Some(rest) = name.strip_prefix(FOR_WORKSPACES) else { return Ok(()) };
            let policies = &mut settings.policies;
            let default = policies.default;
            let policy = match workspace {
                Some(workspace) => policies.workspaces.entry(workspace.clone()).or_insert(default),
                None => &mut policies.default,
            };
            policy.set(rest, text)?;
        }
    }
    Ok(())
}

/// Parses the directories that commands of rules can read. An error says in words why one is invalid.
fn toolchain(words: &[String]) -> Result<Vec<PathBuf>, String> {
    let directory = |word: &String| {
        let path = PathBuf::from(word);
        match path.is_absolute() && path.parent().is_some() {
            true => Ok(path),
            false => Err(format!("`{word}` must be the absolute path of a directory below /")),
        }
    };
    words.iter().map(directory).collect()
}

/// Parses a size such as `500MB`, `20 GiB` or `1000000` into bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size: write 500MB, 20GiB or a number of bytes");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim_start() {
        "" | "B" => 1,
        "kB" | "K" => 1_000,
        "MB" | "M" => 1_000_000,
        "GB" | "G" => 1_000_000_000,
        "TB" | "T" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(wrong()),
    };
    text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)
}

/// Finds the key with this name. The error for an unknown name lists all keys.
pub fn find_key(name: &str) -> Result<NamedKey, CliError> {
    let plain = name.replace('_', "-");
    if let Some(key) = KEYS.iter().find(|key| key.name == plain) {
        return Ok(NamedKey { key, workspace: None });
    }
    let own =
        KEYS.iter().filter(|key| [QUOTA, GIT, SERVER].contains(&key.name) || key.name.starts_with(FOR_WORKSPACES));
    let found = own.into_iter().find_map(|key| {
        let workspace = name.strip_prefix("workspace.")?.strip_suffix(of_workspace(key))?.strip_suffix('.')?;
        (!workspace.is_empty()).then(|| NamedKey { key, workspace: Some(workspace.to_owned()) })
    });
    found.ok_or_else(|| {
        let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        CliError::usage(format!("`{name}` is no setting; there are {}", names.join(", ")))
    })
}

/// Returns the key at a path of the file.
fn of_path(path: &[String]) -> Result<NamedKey, CliError> {
    match path {
        // A workspace's name may have dots; in the file it is one part.
        [first, workspace, rest @ ..] if first == "workspace" && !rest.is_empty() => {
            let named = find_key(&format!("workspace.x.{}", rest.join(".")));
            let named =
                named.map_err(|_| find_key(&path.join(".")).err().unwrap_or_else(|| CliError::usage("no setting")))?;
            Ok(NamedKey { workspace: Some(workspace.clone()), ..named })
        }
        _ => find_key(&path.join(".")),
    }
}

#[cfg(test)]
mod tests;
