//! Limits of served repositories.

use std::time::Duration;

/// Limits of served repositories.
#[derive(Clone, Copy, Debug)]
pub struct GitServeLimits {
    /// Bytes that all repositories of the cache may take. Those that were not read for longest are removed.
    pub cache_bytes_max: u64,
    /// Processes of git that answer at a time.
    pub processes_max: usize,
    /// How long a request waits for one of them to end.
    pub wait_max: Duration,
    /// How long a process may run.
    pub run_max: Duration,
    /// Bytes of a request, decompressed.
    pub request_bytes_max: u64,
}

impl Default for GitServeLimits {
    fn default() -> Self {
        Self {
            cache_bytes_max: 8 << 30,
            processes_max: 8,
            wait_max: Duration::from_secs(30),
            run_max: Duration::from_secs(3_600),
            request_bytes_max: 64 << 20,
        }
    }
}
