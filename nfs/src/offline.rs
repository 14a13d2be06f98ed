//! Answers calls without a connection, for fuzzing: the decoder, the dispatch and the procedures, without limits on time and memory.

use std::net::SocketAddr;
use std::sync::Arc;

use amalgam_engine::Time;
use bytes::BytesMut;

use crate::dispatch::{Blocking, Counters, Dispatcher, Outcome};
use crate::export::Exports;
use crate::mount::Mounts;
use crate::procedures::Answer;
use crate::reply_cache::ReplyCache;
use crate::rpc::Records;

/// A server without a socket.
pub struct OfflineServer {
    dispatcher: Dispatcher,
    peer: SocketAddr,
}

impl OfflineServer {
    /// Creates a server for calls of one client.
    pub fn new(exports: Arc<Exports>, peer: SocketAddr, clock: fn() -> Time) -> Self {
        let dispatcher = Dispatcher {
            exports,
            cache: ReplyCache::default(),
            mounts: Mounts::default(),
            counters: Counters::default(),
            verifier: [0; 8],
            on_mount: None,
            clock,
        };
        Self { dispatcher, peer }
    }

    /// Answers the complete records in a byte stream, up to the first one for which a server closes the connection. Returns the replies.
    pub fn answer(&self, input: &[u8]) -> Vec<Vec<u8>> {
        let (mut records, mut input, mut replies) = (Records::default(), BytesMut::from(input), Vec::new());
        while let Ok(Some(record)) = records.next(&mut input) {
            let (answer, pending) = match self.dispatcher.answer(self.peer, &record, Blocking::Allowed) {
                Outcome::Answer(answer, pending) => (answer, pending),
                Outcome::Replay(answer) => {
                    replies.extend(answer.borrow().as_ref().map(|reply| reply.to_vec()));
                    continue;
                }
                Outcome::Wait | Outcome::CutOff => break,
            };
            let reply = match answer {
                Answer::Now(reply) | Answer::Synced { done: reply, .. } => reply,
                Answer::Later { work, .. } => work(),
            };
            self.dispatcher.settle(pending.as_ref(), &reply);
            replies.push(reply);
        }
        replies
    }
}
