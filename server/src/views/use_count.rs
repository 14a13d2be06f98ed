//! Counts the calls that use a live view, so that it is closed only while none does.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The calls that use a view.
pub(super) struct UseCount(Mutex<State>);

struct State {
    calls: u32,
    is_closing: bool,
    last: Instant,
}

impl UseCount {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { calls: 0, is_closing: false, last: Instant::now() }))
    }

    /// Counts a call. Returns false if the view is being closed.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.0.lock();
        state.calls += u32::from(!state.is_closing);
        !state.is_closing
    }

    /// Ends a call.
    pub(super) fn leave(&self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        state.last = Instant::now();
    }

    /// Returns whether a call uses the view.
    pub(super) fn is_used(&self) -> bool {
        self.0.lock().calls > 0
    }

    /// Returns for how long no call has used the view, or `None` while one does.
    pub(super) fn unused_for(&self) -> Option<Duration> {
        let state = self.0.lock();
        (state.calls == 0).then(|| state.last.elapsed())
    }

    /// Keeps calls out if none has used the view for `unused_for`. Returns whether calls are kept out.
    pub(super) fn begin_closing(&self, unused_for: Duration) -> bool {
        let mut state = self.0.lock();
        let may_close = state.calls == 0 && state.last.elapsed() >= unused_for;
        state.is_closing |= may_close;
        may_close
    }

    /// Lets calls in again, because the view could not be closed.
    pub(super) fn cancel_closing(&self) {
        self.0.lock().is_closing = false;
    }
}
