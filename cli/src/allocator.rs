//! The allocator of the program.

/// jemalloc returns free pages anywhere to the kernel. The C library's allocator returns only those at the ends of its arenas, so
/// the process would keep the memory of a large mount.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Starts the thread that returns free memory to the kernel. Without it, jemalloc does so only while other threads allocate. A
/// failure is harmless.
pub fn return_memory_in_background() {
    #[cfg(feature = "jemalloc")]
    let _ = tikv_jemalloc_ctl::background_thread::write(true);
}
