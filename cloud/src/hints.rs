//! Hints between nodes: a node that commits tells the others the number of its operation by NOTIFY, and a collector when it begins and ends.
//!
//! A hint only wakes; readers take operations from the log. So a lost hint costs the time until the next look at the log. Hints are
//! sent apart from commits, because commits with NOTIFY wait for each other in PostgreSQL, and many at once become one statement.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use amalgam_engine::OperationWaker;
use parking_lot::Mutex;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgListener, PgPool};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::database::Database;
use crate::rounds::Answer;

/// The channel of hints. A message is the number of a project and that of its newest operation.
const CHANNEL: &str = "amalgam_operations";
/// Delay before a connection that failed is made again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Time between two statements of hints. Many commits in a row are one hint, so that their nodes and PostgreSQL do not spend more time on
/// hints than on commits.
const SEND_INTERVAL: Duration = Duration::from_millis(3);

/// The message of a collection that begins or ends, instead of a number.
const COLLECTION: &str = "c";

/// The functions that answer collections, by project.
type Answers = Arc<Mutex<HashMap<i64, Vec<Weak<Answer>>>>>;

/// A message to other processes.
enum Hint {
    /// A project has a new operation.
    Operation(i64, u64),
    /// A collection of a project has begun or ended.
    Collection(i64),
    /// No more hints are sent after those before this one.
    End,
}

/// The stores that hints wake, by project.
type Wakers = Arc<Mutex<HashMap<i64, Vec<(u64, OperationWaker)>>>>;

/// Sends hints of this process, and wakes its stores when other processes send some.
#[derive(Clone)]
pub(crate) struct Hints {
    sender: UnboundedSender<Hint>,
    wakers: Wakers,
    answers: Answers,
}

/// The tasks of hints.
pub(crate) struct HintTasks {
    sending: JoinHandle<()>,
    listening: JoinHandle<()>,
}

impl HintTasks {
    /// Waits for the sending task, which must have been asked to end, and stops the listening one.
    pub(crate) async fn stop(self) {
        self.sending.await.ok();
        self.listening.abort();
        self.listening.await.ok();
    }
}

/// A store's registration, which ends when this is dropped.
pub(crate) struct Registration {
    wakers: Wakers,
    project: i64,
    key: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut wakers = self.wakers.lock();
        if let Some(of_project) = wakers.get_mut(&self.project) {
            of_project.retain(|(key, _)| *key != self.key);
            if of_project.is_empty() {
                wakers.remove(&self.project);
            }
        }
    }
}

impl Hints {
    /// Starts to send and to listen. Also returns the tasks that do it, which end before their runtime does: a task that waits for a time
    /// panics on a runtime that shuts down.
    pub(crate) fn start(database: &Database, handle: &Handle) -> (Self, HintTasks) {
        let (sender, receiver) = unbounded_channel();
        let wakers = Wakers::default();
        let sending = handle.spawn(send(database.clone(), receiver));
        let answers = Answers::default();
        let listening = handle.spawn(listen(database.pool.clone(), Arc::clone(&wakers), Arc::clone(&answers)));
        (Self { sender, wakers, answers }, HintTasks { sending, listening })
    }

    /// Notifies other processes of an operation.
    pub(crate) fn tell(&self, project: i64, sequence: u64) {
        // Fails when the process ends.
        let _ = self.sender.send(Hint::Operation(project, sequence));
    }

    /// Notifies other processes that a collection has begun or ended.
    pub(crate) fn tell_collection(&self, project: i64) {
        let _ = self.sender.send(Hint::Collection(project));
    }

    /// Calls a function when another process announces a collection of the project, for as long as the caller keeps the function.
    pub(crate) fn register_answer(&self, project: i64, answer: &Arc<Answer>) {
        let mut answers = self.answers.lock();
        let of_project = answers.entry(project).or_default();
        of_project.retain(|answer| answer.strong_count() > 0);
        of_project.push(Arc::downgrade(answer));
    }

    /// Ends the task that sends, after the hints until now.
    pub(crate) fn end(&self) {
        self.sender.send(Hint::End).ok();
    }

    /// Wakes a store whenever another process announces an operation of its project.
    pub(crate) fn register(&self, project: i64, waker: OperationWaker) -> Registration {
        let mut wakers = self.wakers.lock();
        let of_project = wakers.entry(project).or_default();
        let key = of_project.last().map_or(0, |(last, _)| last + 1);
        of_project.push((key, waker));
        Registration { wakers: Arc::clone(&self.wakers), project, key }
    }
}

/// Sends hints. The first one is sent at once; those that arrive within the interval after it are sent together, one for each project.
async fn send(database: Database, mut receiver: UnboundedReceiver<Hint>) {
    let mut next_send = tokio::time::Instant::now();
    while let Some(first) = receiver.recv().await {
        tokio::time::sleep_until(next_send).await;
        let (mut newest, mut collections, mut is_last) = (HashMap::<i64, u64>::new(), HashSet::new(), false);
        let mut next = Some(first);
        while let Some(hint) = next {
            match hint {
                Hint::Operation(project, sequence) => {
                    let known = newest.entry(project).or_default();
                    *known = sequence.max(*known);
                }
                Hint::Collection(project) => drop(collections.insert(project)),
                Hint::End => is_last = true,
            }
            next = receiver.try_recv().ok();
        }
        let mut statements = String::new();
        for project in collections {
            statements.push_str(&format!("NOTIFY {CHANNEL}, '{project}:{COLLECTION}';"));
        }
        for (project, sequence) in newest {
            statements.push_str(&format!("NOTIFY {CHANNEL}, '{project}:{sequence}';"));
        }
        if !statements.is_empty() {
            // Safe: a constant and two numbers.
            let query = sqlx::raw_sql(AssertSqlSafe(statements));
            if let Err(error) = database.once(|connection| Box::pin(query.execute(connection))).await {
                tracing::debug!(%error, "a hint was not sent");
            }
        }
        if is_last {
            return;
        }
        next_send = tokio::time::Instant::now() + SEND_INTERVAL;
    }
}

/// Wakes stores by the hints of other processes, for ever.
async fn listen(pool: PgPool, wakers: Wakers, answers: Answers) {
    while !pool.is_closed() {
        if let Err(error) = listen_once(&pool, &wakers, &answers).await {
            tracing::debug!(%error, "hints of other nodes are not heard");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn listen_once(pool: &PgPool, wakers: &Wakers, answers: &Answers) -> sqlx::Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    loop {
        let message = listener.try_recv().await?;
        let parts = message.as_ref().and_then(|message| message.payload().split_once(':'));
        let project = parts.and_then(|(project, _)| project.parse::<i64>().ok());
        if message.is_none() || parts.is_some_and(|(_, what)| what == COLLECTION) {
            let answering: Vec<_> = {
                let answers = answers.lock();
                let meant = answers.iter().filter(|(of, _)| message.is_none() || project == Some(**of));
                meant.flat_map(|(_, of_project)| of_project.iter().filter_map(Weak::upgrade)).collect()
            };
            answering.iter().for_each(|answer| answer());
        }
        let woken: Vec<OperationWaker> = {
            let wakers = wakers.lock();
            // Without a message the connection was lost, and hints with it.
            let is_meant = |of: &i64| message.is_none() || project == Some(*of);
            let meant = wakers.iter().filter(|(of, _)| is_meant(of));
            meant.flat_map(|(_, of_project)| of_project.iter().map(|(_, waker)| waker.clone())).collect()
        };
        // Waking takes a lock that a waiting thread holds while it asks PostgreSQL: not on a thread that drives connections.
        tokio::task::spawn_blocking(move || woken.iter().for_each(OperationWaker::wake));
    }
}
