//! Syncs shared by all that wait for one: whoever asks while a sync is under way is served by the next one, together with all others
//! who asked meanwhile.

use std::sync::Arc;

use amalgam_view::View;
use tokio::sync::watch;

/// Puts the changes of a view on disk, in turns.
pub(crate) struct Syncer {
    view: View,
    state: parking_lot::Mutex<State>,
    /// The last turn that is done.
    done: watch::Sender<Done>,
}

#[derive(Default)]
struct State {
    /// The turn that is under way, or was last.
    begun: u64,
    is_busy: bool,
    /// Whether somebody waits for the turn after it.
    is_wanted: bool,
}

#[derive(Clone, Copy, Default)]
struct Done {
    turn: u64,
    /// The first turn that failed. A journal that could not be synced never can be again.
    failed: Option<u64>,
}

impl Syncer {
    pub(crate) fn new(view: View) -> Arc<Self> {
        Arc::new(Self { view, state: parking_lot::Mutex::default(), done: watch::channel(Done::default()).0 })
    }

    /// Returns once everything that was changed before the call is on disk; false when it could not be put there.
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
