//! The processes that e2b clients started, by sandbox and number.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

use parking_lot::Mutex;

use crate::refusal::Refusal;
use crate::wire::process as wire;

/// Limit on ended processes of a sandbox that are remembered.
const ENDED_MAX: usize = 64;
/// Limit on sandboxes without a running process that are remembered.
const IDLE_SANDBOXES_MAX: usize = 1_024;

/// A process in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The id of a command.
    Command(String),
    /// The id of a terminal.
    Terminal(String),
}

/// A process that runs or has ended.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) kind: Kind,
    config: wire::ProcessConfig,
    tag: Option<String>,
    has_stdin: AtomicBool,
    /// The offset behind the last output that a client got.
    read_to: AtomicI64,
    /// The signal that a client sent; 0 for none.
    signal: AtomicI32,
    end: Mutex<Option<wire::ProcessEvent>>,
}

impl Process {
    pub(crate) fn new(pid: u32, kind: Kind, config: wire::ProcessConfig, tag: Option<String>, has_stdin: bool) -> Self {
        let (read_to, signal, end) = Default::default();
        Self { pid, kind, config, tag, has_stdin: AtomicBool::new(has_stdin), read_to, signal, end }
    }

    pub(crate) fn info(&self) -> wire::ProcessInfo {
        wire::ProcessInfo { config: Some(self.config.clone()), pid: self.pid, tag: self.tag.clone() }
    }

    pub(crate) fn has_stdin(&self) -> bool {
        self.has_stdin.load(Ordering::Relaxed)
    }

    pub(crate) fn read_to(&self) -> i64 {
        self.read_to.load(Ordering::Relaxed)
    }

    pub(crate) fn was_read_to(&self, offset: i64) {
        self.read_to.fetch_max(offset, Ordering::Relaxed);
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    pub(crate) fn set_signal(&self, signal: i32) {
        self.signal.store(signal, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) -> Option<wire::ProcessEvent> {
        self.end.lock().clone()
    }

    /// Records the end of the process, unless one is recorded already.
    pub(crate) fn set_end(&self, end: wire::ProcessEvent) {
        self.end.lock().get_or_insert(end);
    }
}

/// All processes.
#[derive(Default)]
pub(crate) struct Processes {
    of_sandbox: Mutex<HashMap<String, Vec<Arc<Process>>>>,
}

impl Processes {
    /// Adds a process, and forgets old ones that have ended.
    pub(crate) fn add(&self, sandbox: &str, process: Arc<Process>) {
        let mut all = self.of_sandbox.lock();
        if all.len() > IDLE_SANDBOXES_MAX {
            all.retain(|_, processes| processes.iter().any(|process| process.end().is_none()));
        }
        let processes = all.entry(sandbox.to_owned()).or_default();
        // A number that was used again is that of the new process.
        processes.retain(|other| other.pid != process.pid);
        let mut surplus = processes.iter().filter(|other| other.end().is_some()).count().saturating_sub(ENDED_MAX);
        processes.retain(|other| {
            let is_old = surplus > 0 && other.end().is_some();
            surplus -= usize::from(is_old);
            !is_old
        });
        processes.push(process);
    }

    /// Returns the running processes of a sandbox.
    pub(crate) fn running(&self, sandbox: &str) -> Vec<Arc<Process>> {
        let all = self.of_sandbox.lock();
        let found = all.get(sandbox).map(Vec::as_slice).unwrap_or_default();
        found.iter().filter(|process| process.end().is_none()).cloned().collect()
    }

    /// Finds a running process by its pid or tag.
    pub(crate) fn find(
        &self,
        sandbox: &str,
        selector: Option<&wire::ProcessSelector>,
    ) -> Result<Arc<Process>, Refusal> {
        let found = self.find_any(sandbox, selector)?;
        match found.end() {
            None => Ok(found),
            Some(_) => Err(Refusal::not_found(format!("process {} has ended", found.pid))),
        }
    }

    /// Finds a process by its pid or tag, running or ended. Of several the newest counts.
    pub(crate) fn find_any(
        &self,
        sandbox: &str,
        selector: Option<&wire::ProcessSelector>,
    ) -> Result<Arc<Process>, Refusal> {
        use wire::process_selector::Selector;
        let selector = selector.and_then(|selector| selector.selector.as_ref());
        let selector = selector.ok_or_else(|| Refusal::invalid("process: a pid or a tag"))?;
        let all = self.of_sandbox.lock();
        let processes = all.get(sandbox).map(Vec::as_slice).unwrap_or_default();
        let is_it = |process: &&Arc<Process>| match selector {
            Selector::Pid(pid) => process.pid == *pid,
            Selector::Tag(tag) => process.tag.as_ref() == Some(tag),
        };
        let missing = || match selector {
            Selector::Pid(pid) => Refusal::not_found(format!("process with pid {pid} not found")),
            Selector::Tag(tag) => Refusal::not_found(format!("process with tag {} not found", tag.escape_debug())),
        };
        processes.iter().rev().find(is_it).cloned().ok_or_else(missing)
    }

    /// Forgets the processes of a sandbox that is gone.
    pub(crate) fn forget(&self, sandbox: &str) {
        self.of_sandbox.lock().remove(sandbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, tag: Option<&str>) -> Arc<Process> {
        let kind = Kind::Command(format!("cmd-{pid}"));
        Arc::new(Process::new(pid, kind, wire::ProcessConfig::default(), tag.map(str::to_owned), true))
    }

    fn by_pid(pid: u32) -> wire::ProcessSelector {
        wire::ProcessSelector { selector: Some(wire::process_selector::Selector::Pid(pid)) }
    }

    #[test]
    fn processes_are_found_by_number_or_tag_in_their_sandbox_only() {
        let all = Processes::default();
        all.add("a", process(7, Some("server")));
        assert_eq!(all.find("a", Some(&by_pid(7))).expect("there").pid, 7);
        let tag = wire::process_selector::Selector::Tag("server".to_owned());
        assert_eq!(all.find("a", Some(&wire::ProcessSelector { selector: Some(tag) })).expect("there").pid, 7);
        for (sandbox, pid) in [("b", 7), ("a", 8)] {
            let refused = all.find(sandbox, Some(&by_pid(pid))).err().expect("not there");
            assert_eq!(refused.code, tonic::Code::NotFound);
        }
        assert_eq!(all.find("a", None).err().expect("no selector").code, tonic::Code::InvalidArgument);
    }

    #[test]
    fn ended_processes_are_kept_for_a_while_and_not_listed() {
        let all = Processes::default();
        for pid in 1..=200 {
            let one = process(pid, None);
            one.set_end(wire::ProcessEvent::default());
            all.add("a", one);
        }
        assert!(all.running("a").is_empty());
        assert!(all.find("a", Some(&by_pid(200))).is_err());
        assert!(all.find_any("a", Some(&by_pid(200))).is_ok());
        assert!(all.find_any("a", Some(&by_pid(1))).is_err());
        all.forget("a");
        assert!(all.find_any("a", Some(&by_pid(200))).is_err());
    }
}
