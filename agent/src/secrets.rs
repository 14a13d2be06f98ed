//! Secrets of a command: files in memory, which are removed when the command ends.
//!
//! They are no environment variables, because those are in `/proc` and in lists of processes.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file system in memory that the runtime has mounted.
const DIRECTORY: &str = "/run/amalgam/secrets";
/// Added to the name of a secret for the variable with its path.
const SUFFIX: &str = "_FILE";

/// The files of one command. They are removed when this is dropped.
pub(crate) struct Secrets {
    directory: Option<PathBuf>,
    names: Vec<String>,
}

impl Secrets {
    /// Writes the secrets of a command.
    pub(crate) fn write(id: &str, secrets: &HashMap<String, String>) -> io::Result<Self> {
        Self::write_below(Path::new(DIRECTORY), id, secrets)
    }

    fn write_below(root: &Path, id: &str, secrets: &HashMap<String, String>) -> io::Result<Self> {
        if secrets.is_empty() {
            return Ok(Self { directory: None, names: Vec::new() });
        }
        let directory = root.join(id);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let written = Self { directory: Some(directory.clone()), names: secrets.keys().cloned().collect() };
        for (name, value) in secrets {
            let mut file = File::options().write(true).create_new(true).mode(0o400).open(directory.join(name))?;
            file.write_all(value.as_bytes())?;
        }
        Ok(written)
    }

    /// Returns the environment variables that hold the paths of the secret files, for example `TOKEN_FILE` for the secret `TOKEN`.
    pub(crate) fn variables(&self) -> Vec<(String, PathBuf)> {
        let of = |directory: &PathBuf| {
            self.names.iter().map(|name| (format!("{name}{SUFFIX}"), directory.join(name))).collect()
        };
        self.directory.as_ref().map(of).unwrap_or_default()
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            // They end with the sandbox otherwise.
            let _ = fs::remove_dir_all(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_the_secrets_until_the_command_ends() {
        let root = std::env::temp_dir().join(format!("amalgam-secrets-{}", std::process::id()));
        fs::create_dir(&root).expect("made");
        let given = HashMap::from([("TOKEN".to_owned(), "hush".to_owned())]);
        let secrets = Secrets::write_below(&root, "cmd-1", &given).expect("written");
        let variables = secrets.variables();
        assert_eq!(variables[0].0, "TOKEN_FILE");
        assert_eq!(fs::read_to_string(&variables[0].1).expect("read"), "hush");
        drop(secrets);
        assert!(!root.join("cmd-1").exists());
        assert!(Secrets::write_below(&root, "cmd-2", &HashMap::new()).expect("none").variables().is_empty());
        fs::remove_dir(&root).expect("empty");
    }
}
