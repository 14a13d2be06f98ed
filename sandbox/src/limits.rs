//! Limits of a sandbox, and what enforces each.

use crate::error::{Result, SandboxError};

/// The limits of a sandbox. A limit that the caller asked for is enforced, or the sandbox is not started.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// CPUs; 0.5 is half of one.
    pub cpus: f64,
    /// Memory of all processes together.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// The bytes that the workspace may hold beside its last snapshot, and those that the home may hold.
    pub disk_bytes: u64,
    /// The names of the limits that the caller asked for.
    pub asked: Vec<&'static str>,
    /// Start the sandbox without limits that nothing enforces.
    pub is_best_effort: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpus: 2.0,
            memory_bytes: 2 << 30,
            pids: 1_024,
            disk_bytes: 10 << 30,
            asked: Vec::new(),
            is_best_effort: false,
        }
    }
}

/// A limit and what enforces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforced {
    /// `cpu`, `memory`, `pids`, `disk` or `landlock`.
    pub limit: &'static str,
    /// The value. For `landlock` the version of its interface, or why it is not used.
    pub value: String,
    /// `cgroup`, `rlimit`, `quota`, `kernel` or `none`.
    pub by: &'static str,
}

impl Enforced {
    /// Reports which version of Landlock restricts writes, or why none does.
    pub(crate) fn landlock(version: std::result::Result<&i32, &str>) -> Self {
        match version {
            Ok(version) => Self { limit: "landlock", value: format!("ABI {version}"), by: "kernel" },
            Err(why) => Self { limit: "landlock", value: why.to_owned(), by: "none" },
        }
    }
}

/// The means that can enforce limits on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) cpu_cgroup: bool,
    pub(crate) memory_cgroup: bool,
    pub(crate) pids_cgroup: bool,
    /// The kernel counts processes of this user; root's are not counted.
    pub(crate) pids_rlimit: bool,
}

impl Limits {
    /// Returns what enforces each limit.
    ///
    /// # Errors
    /// [`SandboxError::NotEnforced`] for a limit that was asked for and that nothing enforces.
    pub(crate) fn enforce(&self, means: Means) -> Result<Vec<Enforced>> {
        let by_cgroup = |has: bool| if has { "cgroup" } else { "none" };
        let pids = if means.pids_rlimit && !means.pids_cgroup { "rlimit" } else { by_cgroup(means.pids_cgroup) };
        let enforced = vec![
            Enforced { limit: "cpu", value: self.cpus.to_string(), by: by_cgroup(means.cpu_cgroup) },
            Enforced { limit: "memory", value: self.memory_bytes.to_string(), by: by_cgroup(means.memory_cgroup) },
            Enforced { limit: "pids", value: self.pids.to_string(), by: pids },
            // The server mounts workspace and home with this quota.
            Enforced { limit: "disk", value: self.disk_bytes.to_string(), by: "quota" },
        ];
        let lacking = enforced.iter().find(|one| one.by == "none" && self.asked.contains(&one.limit));
        match lacking {
            Some(one) if !self.is_best_effort => {
                let why = match one.limit {
                    "pids" => "the server runs as root, whose processes the kernel does not count, and has no cgroup",
                    _ => "the server has no delegated cgroup (systemd: Delegate=yes and DelegateSubgroup=server)",
                };
                Err(SandboxError::NotEnforced { limit: one.limit, why: why.to_owned() })
            }
            _ => Ok(enforced),
        }
    }
}

/// Reads a size: `512m`, `2g`, `1073741824`.
///
/// # Errors
/// Names the fault in the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{}` is no size; write 512m or 2g for example", text.escape_debug());
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (digits, shift) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 10),
        Some(b'm') => (&lower[..lower.len() - 1], 20),
        Some(b'g') => (&lower[..lower.len() - 1], 30),
        Some(b't') => (&lower[..lower.len() - 1], 40),
        _ => (lower, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    if bytes == 0 { Err(wrong()) } else { Ok(bytes) }
}

/// Reads a number of CPUs: `2`, `0.5`.
///
/// # Errors
/// Names the fault in the text.
pub fn parse_cpus(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|number| (0.01..=1_024.0).contains(number));
    number.ok_or_else(|| format!("`{}` is no number of CPUs; write 2 or 0.5 for example", text.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_cpus_are_read_as_people_write_them() {
        for (text, bytes) in [("512m", 512 << 20), ("2g", 2 << 30), ("2GiB", 2 << 30), ("1024", 1_024), ("4KB", 4_096)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "g", "-1g", "1.5g", "0", "99999999999t", "2 x", "\u{e4}"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(parse_cpus("0.5"), Ok(0.5));
        for text in ["", "0", "-1", "NaN", "inf", "two"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_that_was_asked_for_is_enforced_or_refused() {
        let none = Means::default();
        let asked = Limits { asked: vec!["memory"], ..Limits::default() };
        assert!(matches!(asked.enforce(none), Err(SandboxError::NotEnforced { limit: "memory", .. })));
        assert!(asked.enforce(Means { memory_cgroup: true, ..none }).is_ok());
        let best = Limits { is_best_effort: true, ..asked };
        let by: Vec<_> = best.enforce(none).expect("started without it").iter().map(|one| one.by).collect();
        assert_eq!(by, ["none", "none", "none", "quota"]);
        let defaults = Limits::default().enforce(Means { pids_rlimit: true, ..none }).expect("nothing was asked for");
        assert_eq!(defaults[2].by, "rlimit");
    }
}
