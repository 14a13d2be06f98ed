//! A thread with a small stack and an allocator that counts, so that "bounded" is something a test can see.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // A thread that is ending has no counters any more, and nobody to ask for them.
    let counted = NOW.try_with(|now| {
        now.set(now.get() + change);
        now.get()
    });
    if let Ok(now) = counted {
        PEAK.try_with(|peak| peak.set(peak.get().max(now))).ok();
    }
}

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait; this one only counts and hands on")]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

const STACK_BYTES: usize = 2 << 20;
const TIME_MAX: Duration = Duration::from_secs(60);

/// Runs a test on a stack of 2 MiB and fails when its thread had more than this much memory at once, or took a minute.
pub fn bounded<T: Send + 'static>(memory_bytes_max: usize, run: impl FnOnce() -> T + Send + 'static) -> T {
    let started = Instant::now();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let before = NOW.get();
        PEAK.set(before);
        let result = run();
        (result, (PEAK.get() - before).unsigned_abs())
    });
    let (result, used) = thread.expect("a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(used <= memory_bytes_max, "{used} bytes of memory, allowed were {memory_bytes_max}");
    assert!(started.elapsed() < TIME_MAX, "it took {:?}", started.elapsed());
    result
}

#[test]
fn the_limit_can_be_exceeded() {
    let over = std::panic::catch_unwind(|| bounded(1 << 20, || vec![1_u8; 2 << 20].len()));
    assert!(over.is_err());
    assert_eq!(bounded(4 << 20, || vec![1_u8; 2 << 20].len()), 2 << 20);
}
