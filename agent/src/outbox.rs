//! Output on its way to the server, kept until the server acknowledges it. Commands wait while too many bytes are unacknowledged.

use std::collections::VecDeque;

use amalgam_sandbox::agent_v1::ConnectRequest;
use amalgam_sandbox::agent_v1::connect_request::Payload;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Limit on unacknowledged bytes until the server sends its own.
const BYTES_MAX_DEFAULT: usize = 1 << 20;
/// Approximate memory that a message takes beside its bytes of output.
const MESSAGE_BYTES: usize = 256;

/// Output that the server may not have yet.
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Notified when there is room again.
    room: Notify,
    /// Notified when there is a message to send.
    more: Notify,
}

struct State {
    /// The number of the last output.
    last: u64,
    /// The number of the last output that was given to the present connection.
    sent: u64,
    /// Messages with the bytes that each counts.
    waiting: VecDeque<(ConnectRequest, usize)>,
    /// The sum of the bytes of all messages.
    bytes: usize,
    bytes_max: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        let state = State { last: 0, sent: 0, waiting: VecDeque::new(), bytes: 0, bytes_max: BYTES_MAX_DEFAULT };
        Self { state: Mutex::new(state), room: Notify::new(), more: Notify::new() }
    }
}

impl Outbox {
    /// Waits until there is room for more output.
    pub(crate) async fn room(&self) {
        loop {
            let told = self.room.notified();
            {
                let state = self.state.lock();
                if state.bytes < state.bytes_max {
                    return;
                }
            }
            told.await;
        }
    }

    /// Returns whether the unacknowledged output has reached its limit, so that commands have to wait.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.bytes >= state.bytes_max
    }

    /// Adds a message that holds `bytes` bytes of output. The message itself counts, too, so that many small ones have a limit.
    pub(crate) fn push(&self, payload: Payload, bytes: usize) {
        let bytes = bytes + MESSAGE_BYTES;
        let mut state = self.state.lock();
        state.last += 1;
        let message = ConnectRequest { sandbox_id: String::new(), payload: Some(payload), sequence: state.last };
        state.waiting.push_back((message, bytes));
        state.bytes += bytes;
        drop(state);
        self.more.notify_one();
    }

    /// Drops the messages up to `sequence`, which the server has received.
    pub(crate) fn acknowledge(&self, sequence: u64) {
        let mut state = self.state.lock();
        while state.waiting.front().is_some_and(|(message, _)| message.sequence <= sequence) {
            if let Some((_, bytes)) = state.waiting.pop_front() {
                state.bytes -= bytes;
            }
        }
        drop(state);
        self.room.notify_waiters();
    }

    /// Begins a connection to a server that has received all messages up to `sequence`.
    pub(crate) fn rewind(&self, sequence: u64, bytes_max: usize) {
        self.acknowledge(sequence);
        let mut state = self.state.lock();
        state.sent = state.waiting.front().map_or(state.last, |(message, _)| message.sequence - 1);
        state.bytes_max = bytes_max;
        drop(state);
        self.more.notify_one();
    }

    /// Waits for the next message that was not yet given to the present connection, and returns it.
    pub(crate) async fn next(&self) -> ConnectRequest {
        loop {
            let told = self.more.notified();
            {
                let mut state = self.state.lock();
                let first = state.waiting.front().map_or(u64::MAX, |(message, _)| message.sequence);
                let index = (state.sent + 1).checked_sub(first).and_then(|index| usize::try_from(index).ok());
                if let Some((message, _)) = index.and_then(|index| state.waiting.get(index)) {
                    let message = message.clone();
                    state.sent = message.sequence;
                    return message;
                }
            }
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_sandbox::agent_v1::Heartbeat;

    use super::*;

    #[tokio::test]
    async fn what_was_not_acknowledged_is_sent_again_and_nothing_else() {
        let outbox = Outbox::default();
        for _ in 0..4 {
            outbox.push(Payload::Heartbeat(Heartbeat::default()), 10);
        }
        for sequence in 1..=4 {
            assert_eq!(outbox.next().await.sequence, sequence);
        }
        outbox.acknowledge(1);
        outbox.rewind(2, 25 + 2 * MESSAGE_BYTES);
        assert_eq!(outbox.next().await.sequence, 3);
        assert!(!outbox.is_full());
        outbox.push(Payload::Heartbeat(Heartbeat::default()), 10);
        assert!(outbox.is_full());
        assert_eq!(outbox.next().await.sequence, 4);
        assert_eq!(outbox.next().await.sequence, 5);
        outbox.acknowledge(5);
        outbox.room().await;
    }
    #[tokio::test]
    async fn many_small_messages_fill_the_outbox() {
        let outbox = Outbox::default();
        outbox.rewind(0, 4 << 20);
        for _ in 0..20_000 {
            outbox.push(Payload::Heartbeat(Heartbeat::default()), 1);
        }
        assert!(outbox.is_full());
        outbox.acknowledge(20_000);
        assert!(!outbox.is_full());
    }
}
