//! Exports an episode as JSON lines: a header, then one line per step.

use std::io;

use serde_json::{Value, json};

use super::record::Step;
use super::{EpisodeName, Episodes};
use crate::error::{Error, Result};

/// The format version in the header.
const FORMAT: u32 = 1;
const ACTION: &str = "export the episode";

impl Episodes {
    /// Writes an episode as JSON lines while reading it, and returns the number of steps.
    ///
    /// The header has `episode`, `format` (1), `created`, `state` and `metadata`. A step has `step`, `parent` (or null), `depth`,
    /// `snapshot` (hex), `time`, `reward` (or null), `visits`, `total` and `metadata`. Times are nanoseconds since 1970.
    pub fn export(&self, episode: &EpisodeName, out: &mut dyn io::Write) -> Result<u64> {
        let found = self.get(episode)?;
        let header = json!({
            "episode": found.name.as_str(),
            "format": FORMAT,
            "created": found.created.0,
            "state": found.state.word(),
            "metadata": found.metadata,
        });
        write_line(out, &header)?;
        let mut steps = 0;
        self.each_step(episode, None, |step| {
            steps += 1;
            write_line(out, &line(&step)).map(|()| true)
        })?;
        out.flush().map_err(|source| Error::from_io(ACTION, &source))?;
        Ok(steps)
    }
}

fn line(step: &Step) -> Value {
    json!({
        "step": step.id.0,
        "parent": step.parent.map(|parent| parent.0),
        "depth": step.depth,
        "snapshot": step.snapshot.to_string(),
        "time": step.time.0,
        "reward": step.reward,
        "visits": step.visits,
        "total": step.total,
        "metadata": step.metadata,
    })
}

fn write_line(out: &mut dyn io::Write, line: &Value) -> Result<()> {
    writeln!(out, "{line}").map_err(|source| Error::from_io(ACTION, &source))
}
