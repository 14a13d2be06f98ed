//! Lived time on disk: the file `LIVED` beside the database, written by the process that has the store open. Lived time
//! counts the time during which the store was in use, without jumps of the wall clock.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use amalgam_engine::{LivedTime, Result, Store, Time};

const FILE: &str = "LIVED";
/// Interval of writing in nanoseconds. After a crash, up to this much counts as a gap between two starts.
const SAVE_EVERY: i64 = 3_600 * 1_000_000_000;

/// Owns the lived time of a store, in memory and on disk.
pub struct LivedClock {
    file: PathBuf,
    lived: LivedTime,
    saved: Option<Time>,
}

impl LivedClock {
    /// Opens the lived time of the store in `directory`. `wall` is the wall clock, `uptime` a monotonic clock in nanoseconds.
    /// If the file is missing or damaged, the time of the newest operation is taken as the last use.
    pub fn open(directory: &Path, store: &Store, wall: Time, uptime: i64) -> Result<Self> {
        let file = directory.join(FILE);
        let read = fs::read(&file).ok().and_then(|bytes| LivedTime::decode(&bytes));
        let mut lived = match read {
            Some(lived) => lived,
            None => LivedTime::since(newest_operation(store)?, wall),
        };
        lived.start(wall, uptime);
        Ok(Self { file, lived, saved: None })
    }

    /// Updates the lived time from the clocks. Returns whether the wall clock jumped since the last call.
    pub fn observe(&mut self, wall: Time, uptime: i64) -> bool {
        let jumped = self.lived.observe(wall, uptime);
        let is_due = self.saved.is_none_or(|saved| wall.0.saturating_sub(saved.0) >= SAVE_EVERY);
        if jumped || is_due {
            self.save();
        }
        jumped
    }

    /// Accepts the current wall clock as correct, after a user confirmed it.
    pub fn confirm(&mut self) {
        self.lived.confirm();
        self.save();
    }

    /// Returns the lived time of the last observation.
    pub fn lived(&self) -> &LivedTime {
        &self.lived
    }

    /// Writes the file. A failure, for example on a full disk, is ignored: the next start then counts less time, never more.
    pub fn save(&mut self) {
        let new = self.file.with_extension("new");
        let written = fs::File::create(&new).and_then(|mut file| {
            file.write_all(&self.lived.encode())?;
            file.sync_data()?;
            fs::rename(&new, &self.file)
        });
        match written {
            Ok(()) => self.saved = self.lived.seen(),
            Err(_) => drop(fs::remove_file(&new)),
        }
    }
}

fn newest_operation(store: &Store) -> Result<Option<Time>> {
    let last = store.last_operation()?;
    let newest = match last {
        0 => None,
        last => store.list_operations(last - 1, 1)?.pop(),
    };
    Ok(newest.map(|operation| operation.draft.time))
}
