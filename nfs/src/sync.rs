//! Group sync: callers that arrive while a sync is running share the next one.

use std::sync::Arc;

use amalgam_view::View;
use tokio::sync::watch;

/// Syncs a view in rounds.
pub(crate) struct Syncer {
    view: View,
    state: parking_lot::Mutex<State>,
    /// The last finished round.
    done: watch::Sender<Done>,
}

#[derive(Default)]
struct State {
    /// The running or last round.
    begun: u64,
    is_busy: bool,
    /// Whether a caller waits for the next round.
    is_wanted: bool,
}

#[derive(Clone, Copy, Default)]
struct Done {
    turn: u64,
    /// The first failed round. After a failed fsync the journal never becomes valid again.
    failed: Option<u64>,
}

impl Syncer {
    pub(crate) fn new(view: View) -> Arc<Self> {
        Arc::new(Self { view, state: parking_lot::Mutex::default(), done: watch::channel(Done::default()).0 })
    }

    /// Returns after everything changed before the call is on disk, or false if the sync failed.
    pub(crate) async fn sync(self: &Arc<Self>) -> bool {
        let mut done = self.done.subscribe();
        let (turn, begins) = {
            let mut state = self.state.lock();
            if state.is_busy {
                state.is_wanted = true;
                (state.begun + 1, false)
            } else {
                state.is_busy = true;
                state.begun += 1;
                (state.begun, true)
            }
        };
        if begins {
            let syncer = Arc::clone(self);
            tokio::task::spawn_blocking(move || syncer.take_turns(turn));
        }
        match done.wait_for(|done| done.turn >= turn).await {
            Ok(done) => done.failed.is_none_or(|failed| failed > turn),
            Err(_) => false,
        }
    }

    fn take_turns(&self, mut turn: u64) {
        loop {
            let synced = self.view.sync().and_then(|()| self.view.sync_handles()).is_ok();
            self.done.send_modify(|done| {
                done.turn = turn;
                if !synced {
                    done.failed.get_or_insert(turn);
                }
            });
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.is_wanted) {
                state.is_busy = false;
                return;
            }
            state.begun += 1;
            turn = state.begun;
        }
    }
}
