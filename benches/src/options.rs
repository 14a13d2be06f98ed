//! The command line that all benchmarks share.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Result;

/// What a benchmark was asked to do.
#[derive(Debug, Default)]
pub struct Options {
    /// Small sizes, to see that everything runs.
    pub quick: bool,
    /// Only figures whose name contains this.
    pub only: Option<String>,
    /// Where stores are made.
    pub dir: Option<PathBuf>,
    /// Draw curves into `docs`.
    pub svg: bool,
    /// Measure other programs too, where that takes long.
    pub peers: bool,
}

impl Options {
    /// Reads the arguments; nothing when help was asked for.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--svg" => options.svg = true,
                "--peers" => options.peers = true,
                "--only" => options.only = Some(value()?),
                "--dir" => options.dir = Some(value()?.into()),
                "--help" => return Ok(None),
                other => return Err(format!("unknown argument {other}; --help lists the known ones").into()),
            }
        }
        Ok(Some(options))
    }

    /// What the arguments mean.
    pub const HELP: &str = "\
  --quick   small sizes, to see that everything runs; claims nothing
  --only S  only figures whose name contains S
  --dir D   where stores are made (default: target/bench)
  --svg     draw curves into docs/
  --peers   measure other programs too, where that takes long";

    /// A directory for stores, gone with the value.
    pub fn scratch(&self) -> Result<TempDir> {
        let parent = self.dir.clone().unwrap_or_else(results);
        std::fs::create_dir_all(&parent)?;
        Ok(tempfile::Builder::new().prefix("stores-").tempdir_in(parent)?)
    }
}

/// The repository's own directory.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in the repository").to_owned()
}

/// Where results go.
pub fn results() -> PathBuf {
    repository().join("target/bench")
}
