//! The system calls that no process of a sandbox may make.
//!
//! A list of refused calls, not of allowed ones: programs of the user come from anywhere, and namespaces and missing capabilities
//! refuse most already. The list takes parts of the kernel away that had many holes and that programs in a sandbox do not need.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Refused as not permitted: modules, other kernels, the clock, devices, mounts, namespaces, keys, tracing of the kernel, io_uring.
const REFUSED: [i64; 47] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];
/// Flags of `clone` that make namespaces.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];
/// The request of `ioctl` that puts input into a terminal.
const TIOCSTI: u64 = 0x5412;
/// Bit in the numbers of system calls of the x32 ABI.
#[cfg(target_arch = "x86_64")]
const OTHER_FORM: i64 = 0x4000_0000;

/// Writes the filters to files in memory for bubblewrap. They have no path, and a child process inherits their descriptors.
pub(crate) fn filter_files() -> io::Result<Vec<OwnedFd>> {
    filters().map_err(io::Error::other)?.iter().map(file_of).collect()
}

/// Builds the two filters. The kernel applies both; the first refuses calls with EPERM, the second with ENOSYS.
fn filters() -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.into_iter().map(|call| (call, Vec::new())).collect();
    let masked = |flag: libc::c_int| {
        let flag = u64::from(flag.unsigned_abs());
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        SeccompRule::new(vec![condition])
    };
    refused.insert(libc::SYS_clone, NAMESPACE_FLAGS.into_iter().map(masked).collect::<Result<_, _>>()?);
    // Input that a command puts into the terminal of another process.
    let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, TIOCSTI)?;
    refused.insert(libc::SYS_ioctl, vec![SeccompRule::new(vec![condition])?]);
    // Its flags are in memory, where a filter cannot look. The C library uses `clone` where this call does not exist.
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    [(refused, libc::EPERM), (missing, libc::ENOSYS)].into_iter().map(|(rules, error)| program(rules, error)).collect()
}

fn program(
    #[allow(unused_mut, reason = "only x86-64 has a second form")] mut rules: BTreeMap<i64, Vec<SeccompRule>>,
    error: libc::c_int,
) -> Result<BpfProgram, seccompiler::BackendError> {
    #[cfg(target_arch = "x86_64")]
    rules.append(&mut rules.iter().map(|(call, rules)| (call | OTHER_FORM, rules.clone())).collect());
    let refuse = SeccompAction::Errno(error.unsigned_abs());
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?.try_into()
}

/// Writes a program to a file in memory, in the format of the kernel, and rewinds the file.
fn file_of(program: &BpfProgram) -> io::Result<OwnedFd> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for step in program {
        bytes.extend_from_slice(&step.code.to_ne_bytes());
        bytes.extend_from_slice(&[step.jt, step.jf]);
        bytes.extend_from_slice(&step.k.to_ne_bytes());
    }
    let mut file = std::fs::File::from(rustix::fs::memfd_create("seccomp", MemfdFlags::empty())?);
    file.write_all(&bytes)?;
    io::Seek::rewind(&mut file)?;
    let file = OwnedFd::from(file);
    rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_made_for_this_machine_and_fit_the_kernel() {
        let programs = filters().expect("filters");
        assert_eq!(programs.len(), 2);
        // The kernel takes no longer programs.
        assert!(programs.iter().all(|program| !program.is_empty() && program.len() <= 4_096));
        let once: std::collections::BTreeSet<_> = REFUSED.into_iter().collect();
        assert_eq!(once.len(), REFUSED.len(), "each once");
    }
}
