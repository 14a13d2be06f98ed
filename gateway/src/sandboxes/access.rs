//! How a sandbox accesses the files of its workspace and its home: by a FUSE mount, or by a checkout into a real directory.

use std::fs::File;
use std::io;
use std::str::FromStr;

use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::{Enforced, Limits, SandboxError};
use tonic::Status;
use tracing::info;

use super::runtimes::Choice;
use super::{SandboxOptions, sandbox_status};
use crate::catalog::SandboxRecord;

const DEVICE: &str = "/dev/fuse";
/// The program that mounts for users without `CAP_SYS_ADMIN`.
const HELPER: &str = "fusermount3";
const SETTINGS: &str = "/etc/fuse.conf";
/// The number of the capability that mounting needs.
const CAP_SYS_ADMIN: u32 = 21;

/// The operator's setting for the access of sandboxes to their files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessSetting {
    /// A mount where the machine permits it, otherwise a checkout.
    #[default]
    Auto,
    /// Always a mount.
    Fuse,
    /// Always a checkout.
    Checkout,
}

impl FromStr for AccessSetting {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "auto" => Ok(Self::Auto),
            "fuse" => Ok(Self::Fuse),
            "checkout" => Ok(Self::Checkout),
            _ => Err(format!("`{}` is neither auto, fuse nor checkout", word.escape_debug())),
        }
    }
}

/// How a sandbox accesses its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The server mounts workspace and home.
    Fuse,
    /// Workspace and home are real directories, which the server captures.
    Checkout,
}

impl Access {
    /// Returns the word of the access in the API.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Checkout => "checkout",
        }
    }

    /// Returns a text for the API that says how much a fork of a running sandbox costs.
    pub(super) fn fork_cost(self) -> &'static str {
        match self {
            Self::Fuse => "nothing is copied; the cost does not depend on the size of the workspace",
            Self::Checkout => "changed files are read, and all files of the workspace and the home are written again",
        }
    }

    /// Returns the access in the record of a sandbox.
    pub(super) fn of_record(record: &SandboxRecord) -> Self {
        match record.config["provider"].as_str() {
            Some("checkout") => Self::Checkout,
            _ => Self::Fuse,
        }
    }

    /// Chooses the access of a new sandbox.
    pub(super) fn choose(options: &SandboxOptions, choice: &Choice<'_>, is_read_only: bool) -> Result<Self, Status> {
        let has_root = choice.root.is_some();
        match options.workspace_access {
            AccessSetting::Fuse => Ok(Self::Fuse),
            // The root directory of such a template is a mount, too.
            AccessSetting::Auto if has_root => Ok(Self::Fuse),
            AccessSetting::Auto => {
                let is_mounted_later = !is_read_only && choice.slot.carries_mounts(options);
                let needs_others = choice.slot.runtime.mount_access(is_mounted_later).allows_others;
                Ok(match FuseSupport::of_this_process().problem(needs_others) {
                    None => Self::Fuse,
                    Some(problem) => {
                        info!(problem, "a sandbox gets a checkout, because this server cannot mount for it");
                        Self::Checkout
                    }
                })
            }
            AccessSetting::Checkout if has_root => {
                let message = "a template that is a snapshot needs a mount, and this server gives sandboxes checkouts only \
                               (workspace-access)";
                Err(Failure::new(Reason::Unsupported, message).into_status())
            }
            AccessSetting::Checkout => Ok(Self::Checkout),
        }
    }

    /// Corrects the disk limit for a checkout, whose size nothing limits. Refuses an explicit limit, unless best effort is enough.
    pub(super) fn enforce_disk(self, limits: &Limits, enforced: &mut [Enforced]) -> Result<(), Status> {
        if self == Self::Fuse {
            return Ok(());
        }
        if limits.asked.contains(&"disk") && !limits.is_best_effort {
            let why = "the sandbox works in a checkout, whose size nothing limits (workspace-access)".to_owned();
            return Err(sandbox_status(&SandboxError::NotEnforced { limit: "disk", why }));
        }
        enforced.iter_mut().filter(|one| one.limit == "disk").for_each(|one| one.by = "none");
        Ok(())
    }
}

/// The parts of FUSE support that this machine and this process have.
struct FuseSupport {
    /// Why the device cannot be opened.
    device_error: Option<io::Error>,
    /// Whether this process may mount by itself.
    can_mount: bool,
    /// Whether the program that mounts for users is installed.
    has_helper: bool,
    /// Whether `no_new_privs` keeps programs that this process starts from gaining rights by their set-user-ID bit, which the
    /// helper needs.
    no_new_privileges: bool,
    /// Whether users may let other users access their mounts.
    allows_others: bool,
}

impl FuseSupport {
    fn of_this_process() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let settings = std::fs::read_to_string(SETTINGS).unwrap_or_default();
        Self {
            device_error: File::options().read(true).write(true).open(DEVICE).err(),
            can_mount: has_capability(&status, CAP_SYS_ADMIN),
            has_helper: std::env::split_paths(&path).any(|directory| directory.join(HELPER).is_file()),
            no_new_privileges: has_no_new_privileges(&status),
            allows_others: settings.lines().any(|line| line.trim() == "user_allow_other"),
        }
    }

    /// Returns why a mount is not possible, or `None` if it is. `needs_others` says whether processes of other users have to access
    /// it.
    fn problem(&self, needs_others: bool) -> Option<String> {
        if let Some(error) = &self.device_error {
            return Some(format!("{DEVICE} cannot be opened: {error}"));
        }
        if self.can_mount {
            return None;
        }
        if !self.has_helper {
            return Some(format!("{HELPER} is not installed"));
        }
        if self.no_new_privileges {
            return Some(format!(
                "{HELPER} cannot mount for a process with `no_new_privs` (NoNewPrivileges in systemd)"
            ));
        }
        (needs_others && !self.allows_others).then(|| format!("{SETTINGS} does not have `user_allow_other`"))
    }
}

/// Returns whether the text of `/proc/PID/status` has a capability in the effective set.
fn has_capability(status: &str, number: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| (bits >> number) & 1 == 1)
}

/// Returns whether the text of `/proc/PID/status` says that the process and its children cannot gain privileges.
fn has_no_new_privileges(status: &str) -> bool {
    status.lines().find_map(|line| line.strip_prefix("NoNewPrivs:")).is_some_and(|value| value.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_word() {
        assert_eq!("auto".parse(), Ok(AccessSetting::Auto));
        assert_eq!("checkout".parse(), Ok(AccessSetting::Checkout));
        let wrong = "nfs\n".parse::<AccessSetting>().expect_err("it is none");
        assert_eq!(wrong, "`nfs\\n` is neither auto, fuse nor checkout");
    }

    #[test]
    fn a_mount_is_possible_with_the_device_and_a_way_to_mount() {
        let user = || FuseSupport {
            device_error: None,
            can_mount: false,
            has_helper: true,
            no_new_privileges: false,
            allows_others: false,
        };
        assert_eq!(user().problem(false), None);
        assert_eq!(user().problem(true).as_deref(), Some("/etc/fuse.conf does not have `user_allow_other`"));
        assert_eq!(FuseSupport { allows_others: true, ..user() }.problem(true), None);
        let bare = || FuseSupport { has_helper: false, ..user() };
        assert_eq!(bare().problem(false).as_deref(), Some("fusermount3 is not installed"));
        assert_eq!(FuseSupport { can_mount: true, ..bare() }.problem(true), None, "root needs neither");
        let restricted = || FuseSupport { no_new_privileges: true, ..user() };
        assert!(restricted().problem(false).is_some_and(|problem| problem.contains("no_new_privs")));
        assert_eq!(FuseSupport { can_mount: true, ..restricted() }.problem(false), None, "root needs no helper");
        let missing = Some(io::Error::from(io::ErrorKind::NotFound));
        let problem = FuseSupport { device_error: missing, can_mount: true, ..user() }.problem(false);
        assert!(problem.is_some_and(|problem| problem.starts_with("/dev/fuse cannot be opened")));
    }

    #[test]
    fn a_capability_is_read_from_the_status_of_a_process() {
        let status = |bits: &str| format!("Name:\tx\nCapPrm:\t0000000000200000\nCapEff:\t{bits}\n");
        assert!(has_capability(&status("000001ffffffffff"), CAP_SYS_ADMIN));
        assert!(has_capability(&status("0000000000200000"), CAP_SYS_ADMIN));
        assert!(!has_capability(&status("00000000a80425fb"), CAP_SYS_ADMIN));
        assert!(!has_capability("", CAP_SYS_ADMIN));
    }

    #[test]
    fn no_new_privileges_is_read_from_the_status_of_a_process() {
        assert!(has_no_new_privileges("Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t0\n"));
        assert!(!has_no_new_privileges("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t1\n"));
        assert!(!has_no_new_privileges(""));
    }

    #[test]
    fn a_disk_limit_that_was_asked_for_is_refused_with_a_checkout() {
        let disk = || [Enforced { limit: "disk", value: "1".to_owned(), by: "quota" }];
        let (mut with_mount, mut with_checkout) = (disk(), disk());
        let asked = Limits { asked: vec!["disk"], ..Limits::default() };
        Access::Fuse.enforce_disk(&asked, &mut with_mount).expect("enforced");
        assert_eq!(with_mount[0].by, "quota");
        let refused = Access::Checkout.enforce_disk(&asked, &mut with_checkout).expect_err("not enforced");
        assert_eq!(Failure::of_status(&refused).map(|failure| failure.reason), Some(Reason::LimitNotEnforced));
        let best_effort = Limits { is_best_effort: true, ..asked };
        Access::Checkout.enforce_disk(&best_effort, &mut with_checkout).expect("as far as possible");
        assert_eq!(with_checkout[0].by, "none");
    }
}
