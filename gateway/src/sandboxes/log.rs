//! The log of a sandbox: one line for each thing that happened to it, in a file.

use std::io::Write as _;

use amalgam_engine::Time;
use amalgam_proto::{instant, timestamp, v1};
use tonic::Status;

use super::Sandboxes;

/// The log file in the directory of a sandbox.
pub(super) const FILE: &str = "sandbox.log";
const TAIL_DEFAULT: usize = 100;
const TAIL_MAX: usize = 10_000;
/// Size in bytes above which no more lines are added to a log.
const LOG_BYTES_MAX: u64 = 4 << 20;

impl Sandboxes {
    /// Appends a line to the log of a sandbox, unless the log is full.
    pub(super) fn note(&self, id: &str, what: &str) {
        let Ok(directory) = self.directory(id) else { return };
        let path = directory.join(FILE);
        if std::fs::metadata(&path).is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
            return;
        }
        let line = format!("{} {}\n", timestamp(self.now()), what.escape_debug());
        // The directory is gone when the sandbox was deleted meanwhile.
        if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// Reads the last lines of the log of a sandbox.
    pub(super) fn read_log(&self, request: &v1::GetSandboxLogsRequest) -> Result<v1::GetSandboxLogsResponse, Status> {
        let path = self.directory(&request.id)?.join(FILE);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let tail = match usize::try_from(request.tail) {
            Ok(0) | Err(_) => TAIL_DEFAULT,
            Ok(tail) => tail.min(TAIL_MAX),
        };
        let (since, until) = (request.since.as_ref().map(instant), request.until.as_ref().map(instant));
        let (logs, truncated) = last_lines(&text, tail, since, until);
        Ok(v1::GetSandboxLogsResponse { logs, truncated })
    }
}

/// Returns the last `tail` lines of a log between two times, and whether lines before them were left out.
fn last_lines(text: &str, tail: usize, since: Option<Time>, until: Option<Time>) -> (String, bool) {
    let is_meant = |line: &&str| {
        let time = line.split(' ').next().and_then(|time| time.parse::<prost_types::Timestamp>().ok());
        let time = time.as_ref().map(instant);
        since.is_none_or(|since| time.is_some_and(|time| time >= since))
            && until.is_none_or(|until| time.is_some_and(|time| time <= until))
    };
    let lines: Vec<_> = text.lines().filter(is_meant).collect();
    let skipped = lines.len().saturating_sub(tail);
    let logs: String = lines[skipped..].iter().flat_map(|line| [*line, "\n"]).collect();
    (logs, skipped > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_chosen_by_time_and_number() {
        let second = 1_000_000_000;
        let text: String = (1..=4).map(|at| format!("{} line {at}\n", timestamp(Time(at * second)))).collect();
        let all = last_lines(&text, 10, None, None);
        assert_eq!((all.0.as_str(), all.1), (text.as_str(), false));
        let (last, is_cut) = last_lines(&text, 1, None, None);
        assert!(last.ends_with("line 4\n") && last.lines().count() == 1 && is_cut);
        let (middle, is_cut) = last_lines(&text, 10, Some(Time(2 * second)), Some(Time(3 * second)));
        assert!(middle.contains("line 2") && middle.contains("line 3") && middle.lines().count() == 2 && !is_cut);
    }
}
