//! Answers that are given again: a client that lost its connection sends a call once more, and a removal that was done must not be
//! answered with "no such file" then.
//!
//! A call is known by the client's address, its number and its first bytes. Answers of calls that are under way are waited for. Each
//! client has room for so many answers, and so many clients are known; the oldest go first.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Answers that are kept for one client.
const ANSWERS_MAX: usize = 1_024;
/// Clients that answers are kept for.
const CLIENTS_MAX: usize = 256;
/// Longer answers are not kept: those of calls that change something are short.
const ANSWER_BYTES_MAX: usize = 1_024;
/// So many bytes of a call tell it from another one.
const HASHED_BYTES: usize = 1_024;

/// Nothing while the call is under way; an empty answer when it was given up.
type Answer = watch::Receiver<Option<Bytes>>;

#[derive(Default)]
pub(crate) struct ReplyCache {
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    by_address: HashMap<IpAddr, Client>,
    order: VecDeque<IpAddr>,
}

#[derive(Default)]
struct Client {
    answers: HashMap<Key, Answer>,
    order: VecDeque<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    xid: u32,
    bytes: usize,
    hash: [u8; 16],
}

/// What is known of a call.
pub(crate) enum Seen {
    /// It is new: whoever has this says what the answer is.
    New(Pending),
    /// It was answered, or will be.
    Before(Answer),
}

/// A call that is under way. Dropped without an answer, the call is as if it had never come.
pub(crate) struct Pending {
    answer: watch::Sender<Option<Bytes>>,
}

impl Pending {
    pub(crate) fn answered(self, answer: &[u8]) {
        let kept = if answer.len() <= ANSWER_BYTES_MAX { Bytes::copy_from_slice(answer) } else { Bytes::new() };
        self.answer.send_replace(Some(kept));
    }
}

impl ReplyCache {
    /// Looks a call up, and remembers it if it is new.
    pub(crate) fn look(&self, client: IpAddr, xid: u32, record: &[u8]) -> Seen {
        let hash = blake3::hash(&record[..record.len().min(HASHED_BYTES)]);
        let mut short = [0; 16];
        short.copy_from_slice(&hash.as_bytes()[..16]);
        let key = Key { xid, bytes: record.len(), hash: short };
        let mut clients = self.clients.lock();
        let Clients { by_address, order } = &mut *clients;
        if !by_address.contains_key(&client) {
            order.push_back(client);
            if order.len() > CLIENTS_MAX
                && let Some(oldest) = order.pop_front()
            {
                by_address.remove(&oldest);
            }
        }
        let Client { answers, order } = by_address.entry(client).or_default();
        if let Some(answer) = answers.get(&key) {
            let is_given_up = answer.has_changed().is_err() && answer.borrow().is_none();
            if !is_given_up {
                return Seen::Before(answer.clone());
            }
        }
        let (sender, receiver) = watch::channel(None);
        if answers.insert(key, receiver).is_none() {
            order.push_back(key);
        }
        if order.len() > ANSWERS_MAX
            && let Some(oldest) = order.pop_front()
        {
            answers.remove(&oldest);
        }
        Seen::New(Pending { answer: sender })
    }
}

/// Waits for the answer of a call that came before. Nothing when there is none to be given again.
pub(crate) async fn wait(mut answer: Answer) -> Option<Bytes> {
    let found = answer.wait_for(Option::is_some).await.ok()?.clone();
    found.filter(|answer| !answer.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn new(cache: &ReplyCache, xid: u32, record: &[u8]) -> Option<Pending> {
        match cache.look(CLIENT, xid, record) {
            Seen::New(pending) => Some(pending),
            Seen::Before(_) => None,
        }
    }

    #[test]
    fn an_answer_is_given_again_to_the_same_call_only() {
        let cache = ReplyCache::default();
        new(&cache, 1, b"remove a").expect("new").answered(b"done");
        let Seen::Before(answer) = cache.look(CLIENT, 1, b"remove a") else { panic!("it came before") };
        assert_eq!(answer.borrow().as_deref(), Some(&b"done"[..]));
        assert!(new(&cache, 2, b"remove a").is_some(), "another number");
        assert!(new(&cache, 1, b"remove b").is_some(), "other arguments");
        let elsewhere = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
        assert!(matches!(cache.look(elsewhere, 1, b"remove a"), Seen::New(_)), "another client");
    }

    #[test]
    fn a_call_under_way_is_known_and_one_that_was_given_up_is_not() {
        let cache = ReplyCache::default();
        let pending = new(&cache, 1, b"x").expect("new");
        assert!(new(&cache, 1, b"x").is_none());
        drop(pending);
        assert!(new(&cache, 1, b"x").is_some());
    }

    #[test]
    fn memory_is_bounded_for_each_client_and_in_all() {
        let cache = ReplyCache::default();
        for xid in 0..5_000 {
            new(&cache, xid, b"x").expect("new").answered(&[0; 2 * ANSWER_BYTES_MAX]);
        }
        for client in 0..1_000_u32 {
            cache.look(IpAddr::V4(client.into()), 1, b"x");
        }
        let clients = cache.clients.lock();
        assert!(clients.by_address.len() <= CLIENTS_MAX && clients.order.len() <= CLIENTS_MAX);
        assert!(clients.by_address.values().all(|client| client.answers.len() <= ANSWERS_MAX));
    }
}
