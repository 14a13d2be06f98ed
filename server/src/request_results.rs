//! The results of requests with an id that record no operation, so that a retry returns the first result and does nothing.
//!
//! Requests that record an operation are recognised by the log of the store. These are kept in memory: the newest of them, until the
//! process ends or the store is closed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use amalgam_engine::RequestId;
use amalgam_proto::Reason;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;

use crate::error::{Error, Result};

/// The most results that are kept.
const RESULTS_MAX: usize = 4_096;
/// The most bytes of results that are kept.
const RESULT_BYTES_MAX: usize = 64 << 20;

/// A request as its caller knows it: the caller, the method, the id.
type Key = (String, &'static str, String);

/// The results of a store's requests that record no operation. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestResults {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    by_key: HashMap<Key, Entry>,
    /// The requests that are done, the oldest first.
    done: VecDeque<Key>,
    bytes: usize,
}

#[derive(Debug)]
enum Entry {
    Running,
    /// The request with its arguments, and its result.
    Done(RequestId, Bytes),
}

/// The state of a request that arrives.
enum Claim {
    /// The request is new, and the caller carries it out.
    First(Running),
    Running,
    Done(RequestId, Bytes),
}

/// A request that is being carried out. If it is dropped without a result, it counts as never made.
struct Running {
    results: RequestResults,
    key: Key,
}

impl Running {
    fn done(self, request: RequestId, result: Bytes) {
        let kept = &mut *self.results.kept.lock();
        kept.bytes += result.len();
        kept.by_key.insert(self.key.clone(), Entry::Done(request, result));
        kept.done.push_back(self.key.clone());
        while kept.done.len() > RESULTS_MAX || kept.bytes > RESULT_BYTES_MAX {
            let Some(oldest) = kept.done.pop_front() else { break };
            if let Some(Entry::Done(_, result)) = kept.by_key.remove(&oldest) {
                kept.bytes -= result.len();
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let kept = &mut *self.results.kept.lock();
        if matches!(kept.by_key.get(&self.key), Some(Entry::Running)) {
            kept.by_key.remove(&self.key);
        }
    }
}

impl RequestResults {
    /// Returns whether a request was carried out, with these or other arguments.
    pub(crate) fn is_done(&self, caller: &str, method: &'static str, id: &str) -> bool {
        let key = (caller.to_owned(), method, id.to_owned());
        matches!(self.kept.lock().by_key.get(&key), Some(Entry::Done(..)))
    }

    fn claim(&self, key: Key) -> Claim {
        let kept = &mut *self.kept.lock();
        match kept.by_key.get(&key) {
            Some(Entry::Running) => Claim::Running,
            Some(Entry::Done(request, result)) => Claim::Done(request.clone(), result.clone()),
            None => {
                kept.by_key.insert(key.clone(), Entry::Running);
                Claim::First(Running { results: self.clone(), key })
            }
        }
    }
}

impl RequestResults {
    /// Carries out a request that records no operation, once: a retry with the same id returns the first result. One that failed is
    /// carried out again.
    pub(crate) fn once<T: Message + Default>(
        &self,
        actor: &str,
        method: &'static str,
        id: &str,
        arguments: impl FnOnce() -> Vec<u8>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if id.is_empty() {
            return work();
        }
        crate::call_log::record_request_id(id);
        let wrong = |why| Error::new(Reason::Invalid, format!("request_id: {why}"));
        let request = RequestId::scoped(actor, method, id, &arguments()).map_err(wrong)?;
        match self.claim((actor.to_owned(), method, id.to_owned())) {
            Claim::First(running) => {
                let result = work()?;
                running.done(request, result.encode_to_vec().into());
                Ok(result)
            }
            Claim::Done(first, result) if first == request => {
                Ok(T::decode(result).expect("the bytes are those of this method's result"))
            }
            Claim::Done(..) => {
                let message = format!("request id {id:?} was used for a call of {method} with other arguments");
                Err(Error::new(Reason::RequestReused, message))
            }
            Claim::Running => {
                let message =
                    format!("the first request with the id {id:?} still runs; GetRequest tells when it is done");
                Err(Error::new(Reason::Busy, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;
    use amalgam_proto::v1;

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    fn opened() -> (tempfile::TempDir, Service) {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        (around, service)
    }

    fn pause(id: &str, paused: bool) -> v1::PauseCollectionRequest {
        v1::PauseCollectionRequest { paused, request_id: id.to_owned(), ..Default::default() }
    }

    #[test]
    fn a_retry_returns_the_first_result_and_other_arguments_are_refused() {
        let (_around, service) = opened();
        let context = &service.context;
        let mut done = 0;
        let mut call = |actor: &str, request: &v1::PauseCollectionRequest| {
            context.once(actor, request, || {
                done += 1;
                Ok(v1::ConfirmClockResponse { counted_seconds: done })
            })
        };
        assert_eq!(call("ann", &pause("1", true)).expect("done").counted_seconds, 1);
        assert_eq!(call("ann", &pause("1", true)).expect("replayed").counted_seconds, 1);
        assert_eq!(call("bob", &pause("1", true)).expect("another caller").counted_seconds, 2);
        assert_eq!(call("ann", &pause("1", false)).expect_err("reused").reason(), Reason::RequestReused);
        assert_eq!(call("ann", &pause("", true)).expect("no id").counted_seconds, 3);
        assert_eq!(call("ann", &pause("", true)).expect("no id").counted_seconds, 4);
        assert!(context.results.is_done("ann", "PauseCollection", "1"));
        assert!(!context.results.is_done("ann", "PauseCollection", "2"));
    }

    #[test]
    fn a_request_that_failed_is_carried_out_again_and_one_that_runs_is_busy() {
        let (_around, service) = opened();
        let context = &service.context;
        let request = pause("1", true);
        let failed = context.once("ann", &request, || -> Result<v1::PauseCollectionResponse> {
            let again = context.once("ann", &request, || Ok(v1::PauseCollectionResponse {}));
            assert_eq!(again.expect_err("it runs").reason(), Reason::Busy);
            Err(Error::new(Reason::NotFound, "gone"))
        });
        assert_eq!(failed.expect_err("failed").reason(), Reason::NotFound);
        context.once("ann", &request, || Ok(v1::PauseCollectionResponse {})).expect("carried out");
    }

    #[test]
    fn the_oldest_results_are_forgotten() {
        let (_around, service) = opened();
        let context = &service.context;
        for number in 0..=RESULTS_MAX {
            let request = pause(&number.to_string(), true);
            context.once("ann", &request, || Ok(v1::PauseCollectionResponse {})).expect("done");
        }
        assert!(!context.results.is_done("ann", "PauseCollection", "0"));
        assert!(context.results.is_done("ann", "PauseCollection", "1"));
        assert_eq!(context.results.kept.lock().by_key.len(), RESULTS_MAX);
    }
}
