//! Control groups that the server may divide: a delegated one of version 2, or those of version 1 where the server runs as root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::limits::{Limits, Means};

const ROOT: &str = "/sys/fs/cgroup";
/// The period over which CPU time is divided.
const CPU_PERIOD_MICROSECONDS: u64 = 100_000;
/// The file with the processes of a group.
const PROCESSES: &str = "cgroup.procs";

/// The groups below which the server makes one for each sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cgroups {
    /// A group of version 2 whose children have controllers.
    unified: Option<PathBuf>,
    /// Groups of version 1 and their controllers.
    separate: Vec<(&'static str, PathBuf)>,
    controllers: Vec<&'static str>,
}

const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

impl Cgroups {
    /// Finds the groups that this process may divide.
    pub(crate) fn find() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let unified = own.lines().find_map(|line| line.strip_prefix("0::")).and_then(find_unified);
        if let Some((path, controllers)) = unified {
            return Self { unified: Some(path), separate: Vec::new(), controllers };
        }
        let mut separate = Vec::new();
        for controller in CONTROLLERS {
            let path = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let names = fields.next()?;
                names.split(',').any(|name| name == controller).then(|| fields.next())?
            });
            let Some(path) = path else { continue };
            let group = Path::new(ROOT).join(controller).join(path.trim_start_matches('/'));
            if is_writable(&group) {
                separate.push((controller, group));
            }
        }
        let controllers = separate.iter().map(|(controller, _)| *controller).collect();
        Self { unified: None, separate, controllers }
    }

    /// Returns which limits the control groups and resource limits can enforce.
    pub(crate) fn means(&self, is_root: bool) -> Means {
        let has = |controller| self.controllers.contains(&controller);
        Means { cpu_cgroup: has("cpu"), memory_cgroup: has("memory"), pids_cgroup: has("pids"), pids_rlimit: !is_root }
    }

    /// Returns the directories of a sandbox's control groups, each with its controller; `None` for a group of version 2.
    fn directories(&self, id: &str) -> Vec<(Option<&'static str>, PathBuf)> {
        let name = format!("amalgam-{id}");
        let unified = self.unified.iter().map(|path| (None, path.join(&name)));
        let separate = self.separate.iter().map(|(controller, path)| (Some(*controller), path.join(&name)));
        unified.chain(separate).collect()
    }

    /// Makes the groups of a sandbox, with its limits. Returns the files that take the ids of processes.
    pub(crate) fn create(&self, id: &str, limits: &Limits) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for (controller, directory) in self.directories(id) {
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            for (file, value) in settings(controller, &self.controllers, limits) {
                fs::write(directory.join(file), value)?;
            }
            files.push(directory.join(PROCESSES));
        }
        Ok(files)
    }

    /// Removes the groups of a sandbox. A group with processes stays.
    pub(crate) fn remove(&self, id: &str) {
        for (_, directory) in self.directories(id) {
            // Its last process may not be reaped yet; an empty group costs little.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Returns the files of a control group that set its limits, each with its content.
fn settings(controller: Option<&str>, all: &[&str], limits: &Limits) -> Vec<(&'static str, String)> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "CPUs are few and not negative")]
    let quota = (limits.cpus * CPU_PERIOD_MICROSECONDS as f64) as u64;
    let mut settings = Vec::new();
    let is_unified = controller.is_none();
    let has = |name: &str| controller == Some(name) || (is_unified && all.contains(&name));
    if has("pids") {
        settings.push(("pids.max", limits.pids.to_string()));
    }
    if has("memory") {
        let file = if is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        settings.push((file, limits.memory_bytes.to_string()));
    }
    if has("cpu") {
        if is_unified {
            settings.push(("cpu.max", format!("{quota} {CPU_PERIOD_MICROSECONDS}")));
        } else {
            settings.push(("cpu.cfs_period_us", CPU_PERIOD_MICROSECONDS.to_string()));
            settings.push(("cpu.cfs_quota_us", quota.to_string()));
        }
    }
    settings
}

/// Finds the parent group of this process's own group and enables controllers for its children. Returns `None` if the parent group
/// was not delegated, or no controller could be enabled.
fn find_unified(own: &str) -> Option<(PathBuf, Vec<&'static str>)> {
    let own = Path::new(ROOT).join(own.trim_start_matches('/'));
    let above = own.parent().filter(|above| above.starts_with(ROOT))?.to_owned();
    let control = above.join("cgroup.subtree_control");
    if !is_writable(&above) {
        return None;
    }
    for controller in CONTROLLERS {
        // Refused for a controller that the group itself does not have.
        let _ = fs::write(&control, format!("+{controller}"));
    }
    let enabled = fs::read_to_string(&control).ok()?;
    let controllers: Vec<_> =
        CONTROLLERS.into_iter().filter(|name| enabled.split_whitespace().any(|word| word == *name)).collect();
    (!controllers.is_empty()).then_some((above, controllers))
}

fn is_writable(group: &Path) -> bool {
    let file = fs::File::options().write(true).open(group.join(PROCESSES));
    file.is_ok() && rustix::fs::access(group, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_own_files() {
        let limits = Limits { cpus: 0.5, memory_bytes: 7, pids: 9, ..Limits::default() };
        let unified = settings(None, &["cpu", "pids"], &limits);
        assert_eq!(unified, [("pids.max", "9".to_owned()), ("cpu.max", "50000 100000".to_owned())]);
        let memory = settings(Some("memory"), &["memory"], &limits);
        assert_eq!(memory, [("memory.limit_in_bytes", "7".to_owned())]);
    }
}
