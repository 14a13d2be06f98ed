//! The threads that work on an open store in the background: collection, upkeep of views, the merge queue, publishing, followers,
//! the radar, exports.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::error;

use crate::call_log::warn_problem;
use crate::calls::Calls;
use crate::service::Service;

/// How long the end of the process waits for the threads. One of them may wait for a file system that does not answer.
const THREADS_END_WITHIN: Duration = Duration::from_secs(60);

/// The background threads of one store.
pub(crate) struct Background {
    keeper: JoinHandle<()>,
    others: [JoinHandle<()>; 6],
}

impl Background {
    /// Starts the threads. Collections wait until no call has run for a while.
    pub(crate) fn start(service: &Service, calls: &Arc<Calls>) -> Self {
        let collector = {
            let (service, calls) = (service.clone(), Arc::clone(calls));
            std::thread::spawn(move || {
                service.collections.keep_collecting(&|| calls.idle_for(), &|problem| error!("{problem}"));
            })
        };
        let keeper = {
            let service = service.clone();
            std::thread::spawn(move || {
                let warn = |problem: &str| warn_problem(problem, "a mount could not be kept up to date");
                service.views.maintain_in_background(&warn);
            })
        };
        let folder = {
            let service = service.clone();
            std::thread::spawn(move || service.merging.keep_folding())
        };
        let publisher = {
            let service = service.clone();
            std::thread::spawn(move || {
                let warn = |problem: &str| warn_problem(problem, "the result of a scheduled publish was not saved");
                service.merging.keep_publishing(&warn);
            })
        };
        let follower = {
            let service = service.clone();
            std::thread::spawn(move || service.followers.keep_following())
        };
        let radar = {
            let service = service.clone();
            std::thread::spawn(move || service.radar.keep_watching())
        };
        service.exports.resume();
        let releaser = {
            let service = service.clone();
            std::thread::spawn(move || service.exports.keep_releasing())
        };
        Self { keeper, others: [collector, folder, publisher, follower, radar, releaser] }
    }

    /// Ends exports, unmounts everything, closes all views, and ends the threads, which then release the store.
    pub(crate) async fn end(self, service: &Service) {
        let (views, exports) = (service.views.clone(), service.exports.clone());
        let ended = tokio::task::spawn_blocking(move || {
            // Before the views: an NFS client whose call finds its view closed would get an error instead of retrying.
            exports.end();
            views.end_mounting()
        })
        .await;
        ended.unwrap_or_default().iter().for_each(|problem| warn_problem(problem, "a mount could not be ended"));
        let keeper = self.keeper;
        let _ = tokio::task::spawn_blocking(move || keeper.join()).await;
        service.collections.end_collecting();
        service.merging.cancel_tests();
        service.merging.end_folding();
        service.publishing.end_publishing();
        service.followers.end_following();
        service.radar.end_watching();
        let others = self.others;
        let joined = tokio::task::spawn_blocking(move || others.map(JoinHandle::join));
        if tokio::time::timeout(THREADS_END_WITHIN, joined).await.is_err() {
            warn_problem(
                "it waits for a file system or for a process",
                "a background thread did not end, and is left behind",
            );
        }
    }
}
