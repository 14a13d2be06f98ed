//! The duplicate request cache: answers retransmitted calls with the original reply. Without it, a retransmitted REMOVE would fail with
//! NFS3ERR_NOENT.
//!
//! The key of a call is the address of the client, the xid, and a hash of the first bytes. A retransmission of a call in progress waits for
//! its reply. The cache limits clients and replies per client, and drops the oldest first. Replies of changes also go to a log, so that
//! the cache survives a crash of the server: see [`ReplyLog`].

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use amalgam_engine::Time;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::reply_log::{CallKey, LoggedReply, ReplyLog};

/// Replies per client.
const ANSWERS_MAX: usize = 1_024;
/// Number of clients.
const CLIENTS_MAX: usize = 256;
/// Longest cached reply. Replies of changes are shorter.
const ANSWER_BYTES_MAX: usize = 1_024;
/// Number of bytes of a call that the hash covers.
const HASHED_BYTES: usize = 1_024;

/// `None` while the call is in progress; empty if the reply is not cached.
type Answer = watch::Receiver<Option<Bytes>>;

#[derive(Default)]
pub(crate) struct ReplyCache {
    clients: Mutex<Clients>,
    /// `None` if the cache is in memory only.
    log: Option<Mutex<ReplyLog>>,
}

#[derive(Default)]
struct Clients {
    by_address: HashMap<IpAddr, Client>,
    order: VecDeque<IpAddr>,
}

#[derive(Default)]
struct Client {
    answers: HashMap<CallKey, Answer>,
    order: VecDeque<CallKey>,
}

/// Result of a lookup.
pub(crate) enum Lookup {
    /// A new call. The caller must complete the entry.
    New(Pending),
    /// A retransmission.
    Retransmission(Answer),
}

/// A call in progress. Dropping it without a reply removes the entry.
pub(crate) struct Pending {
    answer: watch::Sender<Option<Bytes>>,
    client: IpAddr,
    key: CallKey,
    /// The logged reply.
    logged: Option<Vec<u8>>,
}

impl Clients {
    fn client(&mut self, address: IpAddr) -> &mut Client {
        let Self { by_address, order } = self;
        if !by_address.contains_key(&address) {
            order.push_back(address);
            if order.len() > CLIENTS_MAX
                && let Some(oldest) = order.pop_front()
            {
                by_address.remove(&oldest);
            }
        }
        by_address.entry(address).or_default()
    }
}

impl Client {
    fn remember(&mut self, key: CallKey, answer: Answer) {
        if self.answers.insert(key, answer).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > ANSWERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }
}

fn cacheable(answer: &[u8]) -> Bytes {
    if answer.len() <= ANSWER_BYTES_MAX { Bytes::copy_from_slice(answer) } else { Bytes::new() }
}

impl ReplyCache {
    /// Creates a cache that starts with logged replies.
    pub(crate) fn with_log(log: ReplyLog, found: Vec<LoggedReply>) -> Self {
        let cache = Self { clients: Mutex::default(), log: Some(Mutex::new(log)) };
        let mut clients = cache.clients.lock();
        for LoggedReply { client, key, answer } in found {
            clients.client(client).remember(key, watch::channel(Some(cacheable(&answer))).1);
        }
        drop(clients);
        cache
    }

    /// Looks a call up, and adds an entry if it is new.
    pub(crate) fn lookup(&self, client: IpAddr, xid: u32, record: &[u8]) -> Lookup {
        let hash = blake3::hash(&record[..record.len().min(HASHED_BYTES)]);
        let mut short = [0; 16];
        short.copy_from_slice(&hash.as_bytes()[..16]);
        let key = CallKey { xid, bytes: record.len(), hash: short };
        let mut clients = self.clients.lock();
        let known = clients.client(client);
        if let Some(answer) = known.answers.get(&key) {
            let is_given_up = answer.has_changed().is_err() && answer.borrow().is_none();
            if !is_given_up {
                return Lookup::Retransmission(answer.clone());
            }
        }
        let (answer, receiver) = watch::channel(None);
        known.remember(key, receiver);
        Lookup::New(Pending { answer, client, key, logged: None })
    }

    /// Logs the reply of a change before it is sent.
    pub(crate) fn log_reply(&self, pending: &mut Pending, answer: &[u8], now: Time) {
        if let Some(log) = &self.log {
            log.lock().append(now, pending.client, &pending.key, answer);
            pending.logged = Some(answer.to_vec());
        }
    }

    /// Completes an entry.
    pub(crate) fn complete(&self, pending: &Pending, answer: &[u8], now: Time) {
        if let (Some(log), Some(logged)) = (&self.log, &pending.logged)
            && logged != answer
        {
            // The sync failed after the reply was logged. The later record wins.
            log.lock().append(now, pending.client, &pending.key, answer);
        }
        pending.answer.send_replace(Some(cacheable(answer)));
    }
}

/// Waits for the reply of the original call. Returns `None` if the reply is not cached.
pub(crate) async fn wait(mut answer: Answer) -> Option<Bytes> {
    let found = answer.wait_for(Option::is_some).await.ok()?.clone();
    found.filter(|answer| !answer.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn new(cache: &ReplyCache, xid: u32, record: &[u8]) -> Option<Pending> {
        match cache.lookup(CLIENT, xid, record) {
            Lookup::New(pending) => Some(pending),
            Lookup::Retransmission(_) => None,
        }
    }

    #[test]
    fn an_answer_is_given_again_to_the_same_call_only() {
        let cache = ReplyCache::default();
        let pending = new(&cache, 1, b"remove a").expect("new");
        cache.complete(&pending, b"done", Time::EPOCH);
        let Lookup::Retransmission(answer) = cache.lookup(CLIENT, 1, b"remove a") else { panic!("it came before") };
        assert_eq!(answer.borrow().as_deref(), Some(&b"done"[..]));
        assert!(new(&cache, 2, b"remove a").is_some(), "another number");
        assert!(new(&cache, 1, b"remove b").is_some(), "other arguments");
        let elsewhere = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
        assert!(matches!(cache.lookup(elsewhere, 1, b"remove a"), Lookup::New(_)), "another client");
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
            let pending = new(&cache, xid, b"x").expect("new");
            cache.complete(&pending, &[0; 2 * ANSWER_BYTES_MAX], Time::EPOCH);
        }
        for client in 0..1_000_u32 {
            cache.lookup(IpAddr::V4(client.into()), 1, b"x");
        }
        let clients = cache.clients.lock();
        assert!(clients.by_address.len() <= CLIENTS_MAX && clients.order.len() <= CLIENTS_MAX);
        assert!(clients.by_address.values().all(|client| client.answers.len() <= ANSWERS_MAX));
    }
}
