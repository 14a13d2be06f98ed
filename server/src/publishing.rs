//! The plans by which workspaces are published by themselves, kept beside the store in `publishing.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_proto::v1;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::home::replace_file;
use crate::host_path::reason_for_caller;

/// The beginning of the resource names of reviews.
pub(crate) const REVIEWS: &str = "reviews/";
pub(crate) const SECOND_NANOSECONDS: i64 = 1_000_000_000;

/// How long a publish that failed waits before it is tried again.
pub(crate) const RETRY_DELAY_NANOSECONDS: i64 = 60 * SECOND_NANOSECONDS;

/// Keeps the plans by which workspaces are published without a request for each time.
#[derive(Clone)]
pub(crate) struct Publishing {
    context: Arc<Context>,
    pub(crate) inner: Arc<Plans>,
}

/// The plans of all workspaces, and the file that keeps them.
pub(crate) struct Plans {
    file: PathBuf,
    pub(crate) plans: Mutex<BTreeMap<String, Plan>>,
    /// Whether the last write of the file failed, so that it may differ from the plans.
    is_unwritten: AtomicBool,
    pub(crate) ending: Mutex<bool>,
    pub(crate) changed: Condvar,
}

/// How a workspace is published, and the result of the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Plan {
    /// 0 without an interval.
    pub(crate) every_seconds: u32,
    pub(crate) on_commit: bool,
    /// The quiet time after writes; 0 without publishing on writes.
    pub(crate) quiet_milliseconds: u32,
    /// Empty for what the workspace is merged into anyway.
    pub(crate) target: String,
    pub(crate) message: String,
    pub(crate) test: Vec<String>,
    pub(crate) test_seconds: u32,
    /// The actor that asked for it.
    pub(crate) actor: String,
    /// The head that was tried last.
    pub(crate) tried: String,
    /// When it was last looked at, in this life of the process.
    #[serde(skip)]
    pub(crate) looked: i64,
    /// Not before this moment, after something failed.
    pub(crate) not_before: i64,
    pub(crate) last: Option<Last>,
}

/// The last time that a workspace was published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Last {
    pub(crate) time: i64,
    #[serde(rename = "how")]
    pub(crate) outcome: PublishOutcome,
    /// Why it was not merged, if it was not.
    pub(crate) reason: String,
}

impl Last {
    /// Returns the reason for the caller of the running call. That of a failure may have a path of the host.
    fn into_reason(self) -> String {
        if self.outcome == PublishOutcome::Failed { reason_for_caller(self.reason) } else { self.reason }
    }
}

/// The outcome of publishing a workspace. The words are those of the wire and of `publishing.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PublishOutcome {
    /// The changes are in the target.
    Merged,
    /// The target had the changes already.
    Already,
    /// The changes wait for a person.
    Review,
    /// The merge failed, or its test could not be started.
    Failed,
}

impl PublishOutcome {
    fn word(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Already => "already",
            Self::Review => "review",
            Self::Failed => "failed",
        }
    }
}

impl Plan {
    /// Returns whether a workspace with this head is to be published now.
    pub(crate) fn is_due(&self, head: &str, now: Time) -> bool {
        if !self.may_try(now) {
            return false;
        }
        let since = now.0.saturating_sub(self.looked(now));
        let by_time = self.every_seconds > 0 && since >= i64::from(self.every_seconds) * SECOND_NANOSECONDS;
        by_time || ((self.on_commit || self.quiet_milliseconds > 0) && head != self.tried)
    }

    /// Returns how long the files must be quiet after a write before they are published; `None` without publishing on writes.
    pub(crate) fn quiet(&self) -> Option<Duration> {
        (self.quiet_milliseconds > 0).then(|| Duration::from_millis(self.quiet_milliseconds.into()))
    }

    /// Returns the next time at which publishing is due without a commit or a write: by the interval, or as a retry.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        let by_time = (self.every_seconds > 0)
            .then(|| self.looked(now).saturating_add(i64::from(self.every_seconds) * SECOND_NANOSECONDS));
        let retry = (!self.may_try(now)).then_some(self.not_before);
        by_time.into_iter().chain(retry).min().map(|time| Time(time.max(retry.unwrap_or(0))))
    }

    /// Returns whether the delay after a failure is over. A moment further ahead than the delay is from before the clock was
    /// set back, and delays nothing.
    pub(crate) fn may_try(&self, now: Time) -> bool {
        !(1..=RETRY_DELAY_NANOSECONDS).contains(&self.not_before.saturating_sub(now.0))
    }

    /// Returns when the plan was last looked at; 0 if that was before the clock was set back.
    fn looked(&self, now: Time) -> i64 {
        if self.looked > now.0 { 0 } else { self.looked }
    }
}

impl Publishing {
    /// Reads the plans of a home. Also returns the problem of their file, which is set aside if it cannot be read.
    pub(crate) fn open(context: &Arc<Context>) -> Result<(Self, Option<String>)> {
        let file = context.home.path().join("publishing.json");
        let failed = || Error::io(format!("read {}", file.display()));
        let mut problem = None;
        let plans = match std::fs::read(&file) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(plans) => plans,
                Err(error) => {
                    let aside = file.with_extension("unreadable");
                    std::fs::rename(&file, &aside).map_err(failed())?;
                    problem = Some(format!("nothing is published by itself: {}: {error}", aside.display()));
                    BTreeMap::new()
                }
            },
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(failed()(source)),
        };
        let inner = Plans {
            file,
            plans: Mutex::new(plans),
            is_unwritten: AtomicBool::new(false),
            ending: Mutex::new(false),
            changed: Condvar::new(),
        };
        Ok((Self { context: Arc::clone(context), inner: Arc::new(inner) }, problem))
    }
}

impl Plans {
    /// Changes the plans, and writes them if they differ. Plans that cannot be written stay as they were.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Plan>) -> T) -> Result<T> {
        let mut plans = self.plans.lock();
        let mut changed = plans.clone();
        let done = change(&mut changed);
        self.write(&plans, &changed)?;
        *plans = changed;
        Ok(done)
    }

    /// Records a change in the plans: the result of a publish, or that a workspace was renamed or removed. The change counts even if it
    /// cannot be written, so that no publish is repeated; the next change writes it.
    pub(crate) fn record(&self, record: impl FnOnce(&mut BTreeMap<String, Plan>)) -> Result<()> {
        let mut plans = self.plans.lock();
        let before = plans.clone();
        record(&mut plans);
        self.write(&before, &plans)
    }

    /// Writes changed plans, or plans whose last write failed.
    fn write(&self, before: &BTreeMap<String, Plan>, after: &BTreeMap<String, Plan>) -> Result<()> {
        let text = |plans: &BTreeMap<String, Plan>| serde_json::to_vec_pretty(plans).expect("plans are plain values");
        let bytes = text(after);
        if bytes == text(before) && !self.is_unwritten.load(Ordering::Relaxed) {
            return Ok(());
        }
        let written = replace_file(&self.file, &bytes);
        self.is_unwritten.store(written.is_err(), Ordering::Relaxed);
        written.map_err(Error::io(format!("write {}", self.file.display())))
    }

    /// Returns whether a plan needs a running process: by an interval, or because it waits for writes.
    fn needs_process(&self) -> bool {
        self.plans.lock().values().any(|plan| plan.every_seconds > 0 || plan.quiet_milliseconds > 0)
    }
}

impl Publishing {
    /// Returns the message of a workspace's publishing plan, or `None` if it has no plan.
    pub(crate) fn publishing_message(&self, workspace: &Workspace) -> Result<Option<v1::Publishing>> {
        let plan = self.inner.plans.lock().get(workspace.name.as_str()).cloned();
        plan.map(|plan| self.plan_message(workspace, plan)).transpose()
    }

    pub(crate) fn plan_message(&self, workspace: &Workspace, plan: Plan) -> Result<v1::Publishing> {
        let target = self.context.target_of(&workspace.name, &plan.target).ok();
        let review = target.as_ref().map(|target| self.waiting(&workspace.name, target)).transpose()?.flatten();
        Ok(v1::Publishing {
            every_seconds: plan.every_seconds,
            on_commit: plan.on_commit,
            on_write: plan.quiet_milliseconds > 0,
            quiet_milliseconds: plan.quiet_milliseconds,
            target: target.as_ref().map(amalgam_proto::workspace_name).unwrap_or_default(),
            last_time: plan.last.as_ref().map(|last| amalgam_proto::timestamp(Time(last.time))),
            last_how: plan.last.as_ref().map(|last| last.outcome.word().to_owned()).unwrap_or_default(),
            reason: plan.last.map(Last::into_reason).unwrap_or_default(),
            review: review.unwrap_or_default(),
        })
    }

    /// Returns the name of the open review of a workspace's changes for a target, or `None`.
    pub(crate) fn waiting(&self, source: &WorkspaceName, target: &WorkspaceName) -> Result<Option<String>> {
        let reviews = self.context.queue.reviews(Some(target))?;
        let found = reviews.into_iter().find(|review| review.entry.source == *source);
        Ok(found.map(|review| format!("{}{}", REVIEWS, review.entry.id)))
    }

    /// Ends the thread that publishes.
    pub(crate) fn end_publishing(&self) {
        let publishing = &self.inner;
        *publishing.ending.lock() = true;
        publishing.changed.notify_one();
    }

    /// Returns whether a plan publishes by interval or on writes, so that the process must keep running.
    pub(crate) fn is_publishing(&self) -> bool {
        self.inner.needs_process()
    }

    /// Returns when the next plan is due without a commit or a write, or `None`.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        self.inner.plans.lock().values().filter_map(|plan| plan.next_due(now)).min()
    }

    /// Removes the plan of a workspace that was removed.
    pub(crate) fn forget_plan(&self, workspace: &WorkspaceName) -> Result<()> {
        self.inner.record(|plans| drop(plans.remove(workspace.as_str())))
    }

    /// Removes the plan of a workspace that an undo took away, unless it has another name now.
    pub(crate) fn forget_ended_plan(&self, workspace: &WorkspaceName) -> Result<()> {
        let _turn = self.context.registry.turn();
        match self.context.workspaces.find(workspace)? {
            Some(_) => Ok(()),
            None => self.forget_plan(workspace),
        }
    }

    /// Moves the plan of a workspace to its new name.
    pub(crate) fn rename_plan(&self, from: &WorkspaceName, to: &WorkspaceName) -> Result<()> {
        self.inner.record(|plans| {
            if let Some(plan) = plans.remove(from.as_str()) {
                plans.insert(to.to_string(), plan);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    #[test]
    fn plans_are_written_by_the_next_change_after_a_failed_write() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let open = || Service::open(&home, || Time(1), &[]).expect("opened").publishing;
        let publishing = open();
        let plans = &publishing.inner;
        let plan = Plan { every_seconds: 30, ..Plan::default() };
        plans.change(|plans| plans.insert("try".to_owned(), plan)).expect("written");
        let obstacle = home.path().join("publishing.tmp");
        std::fs::create_dir(&obstacle).expect("made");
        let remove = |plans: &mut BTreeMap<String, Plan>| drop(plans.remove("try"));
        plans.change(remove).expect_err("it cannot be written");
        assert!(plans.plans.lock().contains_key("try"), "a change that failed is not in force");
        let record =
            |plans: &mut BTreeMap<String, Plan>| "head".clone_into(&mut plans.get_mut("try").expect("it").tried);
        plans.record(record).expect_err("it cannot be written");
        assert_eq!(plans.plans.lock()["try"].tried, "head", "a publish is not repeated");
        std::fs::remove_dir(&obstacle).expect("removed");
        plans.record(|_| ()).expect("written");
        drop(publishing);
        let publishing = open();
        assert_eq!(publishing.inner.plans.lock()["try"].tried, "head");
        publishing.inner.change(remove).expect("written");
        drop(publishing);
        assert!(open().inner.plans.lock().is_empty());
    }
}
