//! The store's lived time on disk: the file `LIVED` beside the database, written by the process that has the store open.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use amalgam_engine::{LivedTime, Result, Store, Time};

const FILE: &str = "LIVED";
/// So often, in nanoseconds, is it written while nothing happens. After a crash that much is a gap between two starts, which counts.
const SAVE_EVERY: i64 = 3_600 * 1_000_000_000;

/// Owns the lived time of a store, in memory and on disk.
pub struct LivedClock {
    file: PathBuf,
    lived: LivedTime,
    saved: Option<Time>,
}

impl LivedClock {
    /// That of the store in a directory, which was just opened: `wall` is what the clock says, `uptime` a monotonic one, in nanoseconds.
    /// Where the file is not there, or damaged, the newest operation says when the store was last in use.
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

    /// Looks at the clocks. Returns whether the wall clock jumped since they were last looked at.
    pub fn observe(&mut self, wall: Time, uptime: i64) -> bool {
        let jumped = self.lived.observe(wall, uptime);
        let is_due = self.saved.is_none_or(|saved| wall.0.saturating_sub(saved.0) >= SAVE_EVERY);
        if jumped || is_due {
            self.save();
        }
        jumped
    }

    /// A person says that the clock is right.
    pub fn confirm(&mut self) {
        self.lived.confirm();
        self.save();
    }

    /// The lived time as it was last looked at.
    pub fn lived(&self) -> &LivedTime {
        &self.lived
    }

    /// Writes it. Where that fails, as on a full disk, the next start counts less time, never more; so it is no reason to fail.
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
