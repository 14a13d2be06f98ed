//! All processes that a command started, found in `/proc`, and signals for all of them.
//!
//! A process belongs to a command if it is in its process group or session, descends from such a process, or has the command's id in
//! its environment. The last finds daemons that left group, session and parent behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The environment variable with the id of the command that a process belongs to.
pub(crate) const COMMAND_VARIABLE: &str = "AMALGAM_COMMAND_ID";
/// The most scans: a process may fork during one, and the next finds its child.
const ROUNDS_MAX: u32 = 400;
/// Delay between two scans.
const ROUND_DELAY: Duration = Duration::from_millis(5);

/// A process as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
}

/// Sends a signal once to all processes of a command.
pub(crate) fn signal(leader: Pid, id: &str, signal: Signal) {
    for pid in members(leader, id) {
        // It may have ended in this moment.
        let _ = kill_process(pid, signal);
    }
}

/// Kills all processes of a command. Returns when there are none.
pub(crate) async fn kill(leader: Pid, id: &str) {
    for _ in 0..ROUNDS_MAX {
        let found = members(leader, id);
        if found.is_empty() {
            return;
        }
        // A stopped process starts no others.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &found {
                let _ = kill_process(*pid, signal);
            }
        }
        tokio::time::sleep(ROUND_DELAY).await;
    }
}

fn members(leader: Pid, id: &str) -> Vec<Pid> {
    let leader = leader.as_raw_nonzero().get();
    let mark = format!("{COMMAND_VARIABLE}={id}");
    let all: Vec<_> = processes();
    let is_marked = |process: &Process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let seeds = all.iter().filter(|process| {
        process.pid == leader || process.group == leader || process.session == leader || is_marked(process)
    });
    let mut found: BTreeSet<i32> = seeds.map(|process| process.pid).collect();
    let parents: BTreeMap<i32, i32> = all.iter().map(|process| (process.pid, process.parent)).collect();
    loop {
        let before = found.len();
        found.extend(
            parents
                .iter()
                .filter(|(_, parent)| **parent != 1 && found.contains(parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            break;
        }
    }
    let own = i32::try_from(std::process::id()).unwrap_or(1);
    found.into_iter().filter(|pid| *pid != own).filter_map(Pid::from_raw).collect()
}

/// Lists all processes except zombies.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(fields.first()?, &"Z" | &"X") {
        return None;
    }
    let number = |index: usize| fields.get(index)?.parse().ok();
    Some(Process { pid, parent: number(1)?, group: number(2)?, session: number(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_hides_no_field_and_zombies_are_left_out() {
        let process = parse(7, "7 (a) b (c)) S 1 5 3 0 -1").expect("a process");
        assert_eq!(process, Process { pid: 7, parent: 1, group: 5, session: 3 });
        assert_eq!(parse(7, "7 (x) Z 1 5 3 0"), None);
        assert_eq!(parse(7, "nothing"), None);
    }
}
