//! A collection that makes way. On a small machine it takes the processors that others commit with; so while somebody commits it rests after
//! each step for about as long as the step took, and goes on at full speed when nobody does.

use std::time::Duration;

use amalgam_engine::{Result, Store};

/// No rest is longer: a step that took long was waiting itself.
const REST_MAX: Duration = Duration::from_millis(250);

/// What a collection rests by. Asked at each of its steps, where the collector tells its progress.
pub struct Courtesy<'a> {
    store: &'a Store,
    clock: &'a (dyn Fn() -> Duration + Sync),
    sleep: &'a (dyn Fn(Duration) + Sync),
    /// The newest operation, and the time, at the end of the last rest.
    seen: (u64, Duration),
}

impl<'a> Courtesy<'a> {
    /// From now on. The clock counts from anywhere; the collector has none of its own.
    pub fn new(
        store: &'a Store,
        clock: &'a (dyn Fn() -> Duration + Sync),
        sleep: &'a (dyn Fn(Duration) + Sync),
    ) -> Result<Self> {
        Ok(Self { store, clock, sleep, seen: (store.last_operation()?, clock()) })
    }

    /// Rests if anybody committed since the last time, as long as it was since then.
    pub fn rest(&mut self) -> Result<()> {
        let (operation, time) = (self.store.last_operation()?, (self.clock)());
        if operation != self.seen.0 {
            (self.sleep)(time.saturating_sub(self.seen.1).min(REST_MAX));
        }
        self.seen = (operation, (self.clock)());
        Ok(())
    }
}
