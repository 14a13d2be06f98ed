//! Runs a whole attempt in one call: update, fork, sandbox, command, diff, merge, clean-up.

use amalgam_proto::v1::run_on_fork_response::Event as Told;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::{Command, CommandSpec, Stream};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::warn;

use super::Sandboxes;
use super::creation::{Owner, Plan, check_secrets};
use super::home::Keep;
use super::messages::Event;
use super::service::command_spec;
use super::streams::command_stream;
use super::workspace::StoreCalls;

/// Maximum number of messages that are queued for a slow client.
const QUEUE: usize = 8;
/// Maximum number of changes that a result lists.
const CHANGES_MAX: usize = 1_000;
/// The default template of a sandbox.
const TEMPLATE_DEFAULT: &str = "host";
const SIGKILL: i32 = 9;

type Answers = ReceiverStream<Result<v1::RunOnForkResponse, Status>>;

/// Sends stages and output of a run to the caller.
struct Teller {
    send: mpsc::Sender<Result<v1::RunOnForkResponse, Status>>,
    fork: String,
    sandbox_id: String,
}

impl Teller {
    /// Sends an event to the caller. A caller that has disconnected is ignored.
    async fn tell(&self, event: Told) {
        let _ = self.send.send(Ok(v1::RunOnForkResponse { event: Some(event) })).await;
    }

    async fn stage(&self, stage: &str) {
        let (workspace, sandbox_id) = (self.fork.clone(), self.sandbox_id.clone());
        self.tell(Told::Stage(v1::RunStage { stage: stage.to_owned(), workspace, sandbox_id })).await;
    }
}

/// The result of a command that has ended.
struct Ran {
    exit_code: i32,
    is_timed_out: bool,
}

impl Sandboxes {
    /// Runs a command on a fork of a workspace, and merges the fork. If the caller disconnects, the run is ended and cleaned up.
    pub(super) fn begin_round(&self, owner: Owner, request: v1::RunOnForkRequest) -> Result<Answers, Status> {
        self.parts()?;
        let plan = plan_of(&request)?;
        let (send, receive) = mpsc::channel(QUEUE);
        let sandboxes = self.clone();
        tokio::spawn(async move {
            let mut teller = Teller { send, fork: String::new(), sandbox_id: String::new() };
            match sandboxes.round(&owner, request, plan, &mut teller).await {
                Ok(result) => teller.tell(Told::Result(result)).await,
                Err(status) => drop(teller.send.send(Err(status)).await),
            }
        });
        Ok(ReceiverStream::new(receive))
    }

    async fn round(
        &self,
        owner: &Owner,
        request: v1::RunOnForkRequest,
        plan: v1::CreateSandboxRequest,
        teller: &mut Teller,
    ) -> Result<v1::RunOnForkResult, Status> {
        let calls = self.calls_of(owner).await?;
        let target = calls.find(&request.from).await?;
        teller.stage("update").await;
        calls.update(&target).await?;
        teller.stage("fork").await;
        let (fork, base) = calls.fork_to_merge(&target).await?;
        teller.fork.clone_from(&fork);
        let plan = v1::CreateSandboxRequest { workspace: fork.clone(), ..plan };
        let ran = self.run_in(owner, &request, plan, teller).await;
        let finished = match &ran {
            Ok(ran) => self.finish(&calls, &request, ran, &target, (&fork, &base), teller).await,
            Err(status) => Err(status.clone()),
        };
        let is_ended = finished.as_ref().is_ok_and(|result| result.merged);
        let waits = finished.as_ref().is_ok_and(|result| result.merge.as_ref().is_some_and(waits_for_decision));
        let is_kept = !is_ended && (request.keep || waits);
        if !is_ended && !is_kept {
            teller.stage("clean").await;
            if let Err(status) = calls.delete(&fork).await {
                warn!(workspace = fork, %status, "the fork of a run was not deleted");
            }
        }
        finished.map(|result| v1::RunOnForkResult { kept: is_kept, ..result })
    }

    /// Runs the command in a new sandbox, and deletes the sandbox. Its changes are then in a snapshot of the fork.
    async fn run_in(
        &self,
        owner: &Owner,
        request: &v1::RunOnForkRequest,
        plan: v1::CreateSandboxRequest,
        teller: &mut Teller,
    ) -> Result<Ran, Status> {
        teller.stage("sandbox").await;
        let record = self.start(owner, Plan::of_request(plan)?).await?;
        teller.sandbox_id.clone_from(&record.id);
        teller.stage("run").await;
        let ran = self.run_to_end(owner, &record.id, request, teller).await;
        teller.stage("end").await;
        let ended = self.delete(&owner.project, &record.id, Keep::Workspace).await;
        teller.sandbox_id.clear();
        let ran = ran?;
        ended.map(|()| ran)
    }

    async fn run_to_end(
        &self,
        owner: &Owner,
        id: &str,
        request: &v1::RunOnForkRequest,
        teller: &Teller,
    ) -> Result<Ran, Status> {
        let living = self.running(&owner.project, id).await?;
        let (command, cwd, envs) = (request.command.clone(), request.cwd.clone(), request.envs.clone());
        let spec = CommandSpec {
            stdin: request.stdin.clone(),
            secrets: check_secrets(request.secrets.clone())?,
            ..command_spec(&living, command, cwd, envs, request.timeout)?
        };
        let command = self.start_command(id, &living, spec).await?;
        let mut first = Event::of_stream(Stream::Stdout, &command.id, self.now());
        first.kind = "started";
        let mut events: ReceiverStream<Result<v1::StreamCommandResponse, Status>> =
            command_stream(command.clone(), Some(first), 0, request.binary, self.inner.now);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = teller.send.closed() => {
                    let _ = living.link.kill_command(&command.id, SIGKILL).await;
                    let message = "the caller went away; nothing was merged";
                    return Err(Failure::new(Reason::Cancelled, message).into_status());
                }
            };
            match event {
                Some(event) => teller.tell(Told::Output(event?)).await,
                None => return ended(&command),
            }
        }
    }

    /// Lists the changes of the command, and merges them if it succeeded.
    async fn finish(
        &self,
        calls: &StoreCalls,
        request: &v1::RunOnForkRequest,
        ran: &Ran,
        target: &str,
        (fork, base): (&str, &str),
        teller: &Teller,
    ) -> Result<v1::RunOnForkResult, Status> {
        teller.stage("detect").await;
        let snapshot = calls.head(fork).await?;
        let (changes, more) = calls.changes(base, &snapshot, CHANGES_MAX).await?;
        let mut result = v1::RunOnForkResult {
            exit_code: ran.exit_code,
            timed_out: ran.is_timed_out,
            workspace: fork.to_owned(),
            snapshot,
            changes,
            changes_more: more,
            ..v1::RunOnForkResult::default()
        };
        let is_good = ran.exit_code == 0 && !ran.is_timed_out;
        if !is_good || request.no_merge || teller.send.is_closed() {
            return Ok(result);
        }
        teller.stage("merge").await;
        let message = if request.message.is_empty() { &request.command } else { &request.message };
        let (merge, is_ended) = calls.complete(fork, target, message, &request.on_refused).await?;
        (result.merge, result.merged) = (merge, is_ended);
        Ok(result)
    }
}

/// Returns the request for the sandbox of a run. Everything is checked before the workspace is forked.
fn plan_of(request: &v1::RunOnForkRequest) -> Result<v1::CreateSandboxRequest, Status> {
    let invalid = |why: &str| Failure::new(Reason::Invalid, why).into_status();
    if request.from.is_empty() {
        return Err(invalid("from: name the workspace to fork"));
    }
    let mut plan = request.sandbox.clone().unwrap_or_default();
    if !plan.workspace.is_empty() || !plan.from.is_empty() || plan.read_only {
        return Err(invalid("sandbox: it gets the fork; workspace, from and read_only must not be set"));
    }
    if plan.template.is_empty() {
        plan.template = TEMPLATE_DEFAULT.to_owned();
    }
    Plan::of_request(plan.clone())?;
    check_secrets(request.secrets.clone())?;
    Ok(plan)
}

fn ended(command: &Command) -> Result<Ran, Status> {
    let end = command.end().ok_or_else(|| Status::internal("a command has no end"))?;
    match end.error {
        Some(error) => Err(Failure::new(Reason::CommandFailed, error).with("commandId", &*command.id).into_status()),
        None => Ok(Ran { exit_code: end.exit_code, is_timed_out: end.is_timed_out }),
    }
}

/// Returns whether a merge still needs its workspace: it waits for a review or for its turn, or was refused.
fn waits_for_decision(merge: &v1::Merge) -> bool {
    matches!(merge.how(), v1::MergeHow::Review | v1::MergeHow::Waiting | v1::MergeHow::Refused)
}
