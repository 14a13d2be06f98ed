//! The commands, one file each: arguments and code.

mod backend;
mod backup;
mod bisect;
mod blame;
mod capture;
mod cat;
mod checkout;
mod commit;
mod completions;
mod config;
mod conflicts;
mod delete_directory;
mod diff;
mod doctor;
mod du;
mod enter;
mod explore;
mod export;
mod find;
mod fork;
mod gc;
mod grep;
mod help;
mod import;
mod init;
mod isolated_command;
mod label;
mod log;
mod logs;
mod merge;
mod mount;
mod mounts;
mod op;
mod pipe;
mod publish;
mod purge;
mod queue;
mod receive;
mod restore;
mod revert;
mod review;
mod revisions;
mod rules;
mod run;
mod send;
mod serve;
mod show;
mod status;
mod supervise;
mod umount;
mod verify;
mod watch;
mod work_folders;
mod workspaces;
mod ws;

pub use work_folders::{FolderLogs, REMOVE_ENDED, UncommittedChanges, clean_up};

use clap::Subcommand;

use crate::error::Outcome;
use crate::session::Session;

/// A command of the program.
#[derive(Debug, Subcommand)]
#[command(subcommand_value_name = "COMMAND")]
pub enum Command {
    Init(init::Init),
    Status(status::Status),
    Commit(commit::Commit),
    Log(log::Log),
    Logs(logs::Logs),
    Diff(diff::Diff),
    Show(show::Show),
    Ls(cat::Ls),
    Cat(cat::Cat),
    Grep(grep::Grep),
    Find(find::Find),
    Restore(restore::Restore),
    Undo(revert::Undo),
    Redo(revert::Redo),
    Op(op::Op),
    Fork(fork::Fork),
    Ws(ws::Ws),
    Checkout(checkout::Checkout),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Mounts(mounts::Mounts),
    Run(run::Run),
    Watch(watch::Watch),
    Merge(merge::Merge),
    Complete(publish::Complete),
    Publish(publish::Publish),
    Queue(queue::Queue),
    Review(review::Review),
    Rules(rules::Rules),
    Explore(explore::Explore),
    Bisect(bisect::Bisect),
    Blame(blame::Blame),
    Label(label::Label),
    Conflicts(conflicts::Conflicts),
    Du(du::Du),
    Gc(gc::Gc),
    Verify(verify::Verify),
    Send(send::Send),
    Receive(receive::Receive),
    Import(import::Import),
    Export(export::Export),
    Backup(backup::Backup),
    RestoreBackup(backup::RestoreBackup),
    Purge(purge::Purge),
    Config(config::ConfigCommand),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    Help(help::Help),
    #[command(hide = true)]
    Man(completions::Man),
    Stop(serve::Stop),
    #[command(hide = true)]
    Enter(enter::Enter),
    #[command(hide = true)]
    Serve(serve::Serve),
    #[command(hide = true)]
    Supervise(supervise::Supervise),
}

impl Command {
    /// Runs the command. Futures of commands differ widely in size, so each is boxed.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self {
            Self::Init(init) => Box::pin(init.run(session)).await,
            Self::Status(status) => Box::pin(status.run(session)).await,
            Self::Commit(commit) => Box::pin(commit.run(session)).await,
            Self::Log(log) => Box::pin(log.run(session)).await,
            Self::Logs(logs) => Box::pin(logs.run(session)).await,
            Self::Diff(diff) => Box::pin(diff.run(session)).await,
            Self::Show(show) => Box::pin(show.run(session)).await,
            Self::Ls(ls) => Box::pin(ls.run(session)).await,
            Self::Cat(cat) => Box::pin(cat.run(session)).await,
            Self::Grep(grep) => Box::pin(grep.run(session)).await,
            Self::Find(find) => Box::pin(find.run(session)).await,
            Self::Restore(restore) => Box::pin(restore.run(session)).await,
            Self::Undo(undo) => Box::pin(undo.run(session)).await,
            Self::Redo(redo) => Box::pin(redo.run(session)).await,
            Self::Op(op) => Box::pin(op.run(session)).await,
            Self::Fork(fork) => Box::pin(fork.run(session)).await,
            Self::Ws(ws) => Box::pin(ws.run(session)).await,
            Self::Checkout(checkout) => Box::pin(checkout.run(session)).await,
            Self::Mount(mount) => Box::pin(mount.run(session)).await,
            Self::Umount(umount) => Box::pin(umount.run(session)).await,
            Self::Mounts(mounts) => Box::pin(mounts.run(session)).await,
            Self::Run(run) => Box::pin(run.run(session)).await,
            Self::Watch(watch) => Box::pin(watch.run(session)).await,
            Self::Merge(merge) => Box::pin(merge.run(session)).await,
            Self::Complete(complete) => Box::pin(complete.run(session)).await,
            Self::Publish(publish) => Box::pin(publish.run(session)).await,
            Self::Queue(queue) => Box::pin(queue.run(session)).await,
            Self::Review(review) => Box::pin(review.run(session)).await,
            Self::Rules(rules) => Box::pin(rules.run(session)).await,
            Self::Explore(explore) => Box::pin(explore.run(session)).await,
            Self::Bisect(bisect) => Box::pin(bisect.run(session)).await,
            Self::Blame(blame) => Box::pin(blame.run(session)).await,
            Self::Label(label) => Box::pin(label.run(session)).await,
            Self::Conflicts(conflicts) => Box::pin(conflicts.run(session)).await,
            Self::Du(du) => Box::pin(du.run(session)).await,
            Self::Gc(gc) => Box::pin(gc.run(session)).await,
            Self::Verify(verify) => Box::pin(verify.run(session)).await,
            Self::Send(send) => Box::pin(send.run(session)).await,
            Self::Receive(receive) => Box::pin(receive.run(session)).await,
            Self::Import(import) => Box::pin(import.run(session)).await,
            Self::Export(export) => Box::pin(export.run(session)).await,
            Self::Backup(backup) => Box::pin(backup.run(session)).await,
            Self::RestoreBackup(restore) => Box::pin(restore.run(session)).await,
            Self::Purge(purge) => Box::pin(purge.run(session)).await,
            Self::Config(config) => config.run(session),
            Self::Doctor(doctor) => Box::pin(doctor.run(session)).await,
            Self::Stop(stop) => Box::pin(stop.run(session)).await,
            Self::Completions(_)
            | Self::Help(_)
            | Self::Man(_)
            | Self::Serve(_)
            | Self::Enter(_)
            | Self::Supervise(_) => {
                unreachable!("it runs without a runtime")
            }
        }
    }
}
