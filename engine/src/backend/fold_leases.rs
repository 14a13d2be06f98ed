//! Leases of the targets of the merge queue in a store that several processes have open.

use crate::error::Result;

/// Leases that make one process fold a target of the merge queue at a time, so that an entry's test and the commands of rules run in one
/// process only.
///
/// A lease lives as long as its process: it needs no renewal during a long test. A process that is silent for longer than its own lease
/// of the store loses both, and every later write of it is refused.
pub trait FoldLeases: Send + Sync + 'static {
    /// Takes the lease of a target. Returns `false` while another live process has it, and `true` if this process has it already.
    fn take_fold_lease(&self, target: &str) -> Result<bool>;

    /// Gives the lease of a target back, if this process still has it.
    fn release_fold_lease(&self, target: &str) -> Result<()>;
}
