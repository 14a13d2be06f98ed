//! The servers that the user has logged in to: `contexts.toml` in the user's configuration directory, readable by the user alone.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use toml_edit::{DocumentMut, Item, Table, value};

use crate::error::CliError;
use crate::remote::{ClientCertificate, Server, ServerKey, ServerUrl};

/// The name that stands for the store of this machine.
pub const LOCAL: &str = "local";
/// The environment variable with the key of a server.
pub const KEY_VARIABLE: &str = "AMALGAM_API_KEY";
/// The environment variable with the file of authorities that a server's certificate is checked with.
const CA_VARIABLE: &str = "AMALGAM_CA";
const CURRENT: &str = "current";
const CONTEXTS: &str = "contexts";

/// The servers that the user has logged in to, by name.
#[derive(Debug)]
pub struct Contexts {
    /// `None` if the user has no configuration directory.
    path: Option<PathBuf>,
    document: DocumentMut,
}

impl Contexts {
    /// Reads the file of the user; no contexts if there is none.
    pub fn load() -> Result<Self, CliError> {
        let Some(path) = file() else { return Ok(Self { path: None, document: DocumentMut::new() }) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(CliError::machine(path.display(), &error)),
        };
        if !text.is_empty() && fs::metadata(&path).is_ok_and(|found| found.mode() & 0o077 != 0) {
            let message = format!("other users can read {}, which holds keys", path.display());
            return Err(CliError::refused(message).hint(format!("`chmod 600 {}`", path.display())));
        }
        let wrong = |error| CliError::refused(format!("{}: {error}", path.display())).hint("correct the file");
        let document = text.parse::<DocumentMut>().map_err(wrong)?;
        Ok(Self { path: Some(path), document })
    }

    /// Returns the names of all contexts, in the order of the file.
    pub fn names(&self) -> Vec<String> {
        let contexts = self.document.get(CONTEXTS).and_then(Item::as_table_like);
        contexts.map_or(Vec::new(), |contexts| contexts.iter().map(|(name, _)| name.to_owned()).collect())
    }

    /// Finds the server of a context, or returns `None` if there is no such context.
    pub fn find(&self, name: &str) -> Result<Option<Server>, CliError> {
        let found = self.document.get(CONTEXTS).and_then(|contexts| contexts.get(name));
        let Some(context) = found.and_then(Item::as_table_like) else { return Ok(None) };
        let text = |key: &str| context.get(key).and_then(Item::as_str);
        let url = text("url").ok_or_else(|| CliError::refused(format!("context `{name}` has no url")))?;
        Ok(Some(Server {
            url: ServerUrl::parse(url)?,
            key: text("key").and_then(ServerKey::new),
            authorities: text("ca").map(PathBuf::from),
            client: text("client-cert").zip(text("client-key")).map(|(certificate, key)| ClientCertificate {
                certificate: PathBuf::from(certificate),
                key: PathBuf::from(key),
            }),
        }))
    }

    /// Returns the server of a context, or an error that lists all contexts if there is no such one.
    pub fn get(&self, name: &str) -> Result<Server, CliError> {
        self.find(name)?.ok_or_else(|| {
            let error = CliError::usage(format!("there is no context `{name}`"));
            match self.names().as_slice() {
                [] => error.hint("`amalgam login URL` makes one"),
                names => error.hint(format!("there are: {}, {LOCAL}", names.join(", "))),
            }
        })
    }

    /// Resolves a URL or the name of a context to a server; `local` is `None`. The key and the CA file of the environment override
    /// the stored ones.
    pub fn resolve(&self, word: &str) -> Result<Option<Server>, CliError> {
        match word {
            LOCAL => Ok(None),
            url if url.contains("://") => self.at(ServerUrl::parse(url)?).map(Some),
            name => Ok(Some(with_environment(self.get(name)?))),
        }
    }

    /// Returns the server at a URL, with the key and the certificates that are stored for its host.
    pub fn at(&self, url: ServerUrl) -> Result<Server, CliError> {
        let server = match self.known(&url)? {
            Some(known) => Server { url, ..known },
            None => Server { url, key: None, authorities: None, client: None },
        };
        Ok(with_environment(server))
    }

    /// Finds the first context with the same origin as a URL, for any project.
    fn known(&self, url: &ServerUrl) -> Result<Option<Server>, CliError> {
        for name in self.names() {
            if let Some(server) = self.find(&name)?.filter(|server| server.url.origin() == url.origin()) {
                return Ok(Some(server));
            }
        }
        Ok(None)
    }

    /// Returns the name of the context that commands use, or `None` for the store of this machine.
    pub fn current(&self) -> Option<&str> {
        self.document.get(CURRENT).and_then(Item::as_str).filter(|name| *name != LOCAL)
    }

    /// Makes commands use a context, or the store of this machine if the name is `None`.
    pub fn set_current(&mut self, name: Option<&str>) {
        match name {
            Some(name) => self.document[CURRENT] = value(name),
            None => drop(self.document.remove(CURRENT)),
        }
    }

    /// Stores a server under a name, in place of another one of that name.
    pub fn put(&mut self, name: &str, server: &Server) {
        let mut context = Table::new();
        context["url"] = value(server.url.to_string());
        if let Some(key) = &server.key {
            context["key"] = value(key.reveal());
        }
        if let Some(path) = &server.authorities {
            context["ca"] = value(path.display().to_string());
        }
        if let Some(client) = &server.client {
            context["client-cert"] = value(client.certificate.display().to_string());
            context["client-key"] = value(client.key.display().to_string());
        }
        let contexts = self.document.entry(CONTEXTS).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        contexts[name] = Item::Table(context);
    }

    /// Removes a context and its key. Returns whether it existed.
    pub fn remove(&mut self, name: &str) -> bool {
        let contexts = self.document.get_mut(CONTEXTS).and_then(Item::as_table_like_mut);
        let was_there = contexts.is_some_and(|contexts| contexts.remove(name).is_some());
        if was_there && self.current() == Some(name) {
            self.set_current(None);
        }
        was_there
    }

    /// Writes the file in one step, readable by the user alone.
    pub fn save(&self) -> Result<(), CliError> {
        let path = self.path.as_ref().ok_or_else(|| {
            CliError::usage("neither XDG_CONFIG_HOME nor HOME is set").hint("contexts are stored there")
        })?;
        let failed = |error: io::Error| CliError::machine(path.display(), &error);
        let parent = path.parent().expect("the file lies in a directory");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        let new = parent.join(format!("contexts.{}.new", std::process::id()));
        let write = || {
            let mut file: File = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(self.document.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        write().map_err(|error| {
            // An error of this removal is ignored, in favour of the first one.
            let _ = fs::remove_file(&new);
            failed(error)
        })
    }
}

/// Replaces the key and the CA file of a server by those of the environment, if they are set.
fn with_environment(server: Server) -> Server {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    Server {
        key: set(KEY_VARIABLE).as_deref().and_then(ServerKey::new).or(server.key),
        authorities: set(CA_VARIABLE).map(PathBuf::from).or(server.authorities),
        ..server
    }
}

/// Returns the path of the contexts file in the user's configuration directory, or `None` if there is no such directory.
fn file() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = set("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(directory.join("amalgam/contexts.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Contexts {
        Contexts { path: None, document: DocumentMut::new() }
    }

    fn server(url: &str) -> Server {
        let url = ServerUrl::parse(url).expect("a URL");
        let client = ClientCertificate { certificate: PathBuf::from("c.pem"), key: PathBuf::from("k.pem") };
        let authorities = Some(PathBuf::from("ca.pem"));
        Server { url, key: ServerKey::new("am_a_b"), authorities, client: Some(client) }
    }

    #[test]
    fn a_context_is_found_by_its_name_and_its_host() {
        let mut contexts = empty();
        contexts.put("state.example.com:8443", &server("https://state.example.com:8443/demo"));
        contexts.put("dev", &server("http://127.0.0.1:8080"));
        assert_eq!(contexts.names(), ["state.example.com:8443", "dev"]);
        assert_eq!(contexts.get("dev").expect("there"), server("http://127.0.0.1:8080"));
        let other = ServerUrl::parse("https://state.example.com:8443/other").expect("a URL");
        let known = contexts.known(&other).expect("read").expect("known");
        assert_eq!(known.key, ServerKey::new("am_a_b"));
        assert!(contexts.get("prod").expect_err("unknown").to_string().contains("dev"));
    }

    #[test]
    fn a_removed_context_is_not_the_current_one() {
        let mut contexts = empty();
        contexts.put("dev", &server("http://127.0.0.1:8080"));
        contexts.set_current(Some("dev"));
        assert_eq!(contexts.current(), Some("dev"));
        assert!(contexts.remove("dev") && !contexts.remove("dev"));
        assert_eq!(contexts.current(), None);
    }
}
