//! The commands, one file each: arguments and code.

#[cfg(not(feature = "network"))]
mod absent;
mod attach;
mod backend;
mod backup;
mod bisect;
mod blame;
mod capture;
mod cat;
mod checkout;
mod clone;
mod command_output;
mod commit;
mod completions;
mod config;
mod conflicts;
mod connection;
mod context;
mod delete_directory;
mod diff;
mod doctor;
mod du;
mod enter;
mod exec;
mod explore;
mod export;
mod export_nfs;
mod exports;
mod find;
mod follow;
mod fork;
mod gc;
mod grep;
mod help;
mod hooks;
mod import;
mod init;
mod isolated_command;
#[cfg(feature = "network")]
mod key;
mod label;
mod log;
mod login;
mod logs;
#[cfg(feature = "network")]
mod mcp;
mod merge;
mod mount;
mod mount_nfs;
mod mounts;
mod op;
mod pipe;
mod policy;
mod ps;
mod publish;
mod pull;
mod purge;
mod push;
mod queue;
mod radar;
mod receive;
mod remote;
mod remote_copy;
mod restore;
mod revert;
mod review;
mod revisions;
mod rules;
mod run;
mod sandbox;
mod sandbox_calls;
mod send;
mod serve;
#[cfg(feature = "network")]
mod server_backup;
mod shell;
mod show;
mod status;
#[cfg(feature = "network")]
mod store;
mod supervise;
mod umount;
mod unexport;
mod verify;
mod watch;
#[cfg(feature = "network")]
mod webhook;
mod work_folders;
mod workspace_arg;
mod workspaces;
mod ws;

pub use work_folders::{FolderLogs, REMOVE_ENDED, UncommittedChanges, clean_up};

use std::env;

use amalgam_proto::Reason;
use clap::Subcommand;

use crate::error::Outcome;
use crate::session::Session;
#[cfg(not(feature = "network"))]
use absent::{key, mcp, server_backup, store, webhook};

/// Defines the enum of all commands, and a function that builds a single one.
macro_rules! commands {
    ($($(#[$attribute:meta])* $word:literal => $name:ident($arguments:ty),)*) => {
        /// A command of the program.
        #[derive(Debug, Subcommand)]
        #[command(subcommand_value_name = "COMMAND")]
        pub enum Command {
            $($(#[$attribute])* #[command(name = $word)] $name($arguments),)*
        }

        /// Returns the definition of one command. Defining all of them takes longer than most command lines take to parse.
        pub fn definition_of(word: &str) -> Option<clap::Command> {
            match word {
                $($word => Some(<$arguments as clap::Args>::augment_args(clap::Command::new($word))),)*
                _ => None,
            }
        }
    };
}

commands! {
    "init" => Init(init::Init),
    "status" => Status(status::Status),
    "commit" => Commit(commit::Commit),
    "log" => Log(log::Log),
    "logs" => Logs(logs::Logs),
    "diff" => Diff(diff::Diff),
    "show" => Show(show::Show),
    "ls" => Ls(cat::Ls),
    "cat" => Cat(cat::Cat),
    "grep" => Grep(grep::Grep),
    "find" => Find(find::Find),
    "restore" => Restore(restore::Restore),
    "undo" => Undo(revert::Undo),
    "redo" => Redo(revert::Redo),
    "op" => Op(op::Op),
    "fork" => Fork(fork::Fork),
    "ws" => Ws(ws::Ws),
    "checkout" => Checkout(checkout::Checkout),
    "mount" => Mount(mount::Mount),
    "umount" => Umount(umount::Umount),
    "mounts" => Mounts(mounts::Mounts),
    "exports" => Exports(exports::Exports),
    "unexport" => Unexport(unexport::Unexport),
    "run" => Run(run::Run),
    "watch" => Watch(watch::Watch),
    "merge" => Merge(merge::Merge),
    "complete" => Complete(publish::Complete),
    "publish" => Publish(publish::Publish),
    "follow" => Follow(follow::Follow),
    "unfollow" => Unfollow(follow::Unfollow),
    "update" => Update(follow::Update),
    "radar" => Radar(radar::Radar),
    "queue" => Queue(queue::Queue),
    "review" => Review(review::Review),
    "rules" => Rules(rules::Rules),
    "policy" => Policy(policy::Policy),
    "explore" => Explore(explore::Explore),
    "bisect" => Bisect(bisect::Bisect),
    "blame" => Blame(blame::Blame),
    "label" => Label(label::Label),
    "conflicts" => Conflicts(conflicts::Conflicts),
    "du" => Du(du::Du),
    "gc" => Gc(gc::Gc),
    "verify" => Verify(verify::Verify),
    "send" => Send(send::Send),
    "receive" => Receive(receive::Receive),
    "import" => Import(import::Import),
    "export" => Export(export::Export),
    "backup" => Backup(backup::Backup),
    "restore-backup" => RestoreBackup(backup::RestoreBackup),
    "purge" => Purge(purge::Purge),
    "config" => Config(config::ConfigCommand),
    "doctor" => Doctor(doctor::Doctor),
    "completions" => Completions(completions::Completions),
    "help" => Help(help::Help),
    #[command(hide = true)]
    "man" => Man(completions::Man),
    "stop" => Stop(serve::Stop),
    #[command(hide = true)]
    "enter" => Enter(enter::Enter),
    #[command(hide = true)]
    "connection" => Connection(connection::Connection),
    "serve" => Serve(Box<serve::Serve>),
    "key" => Key(key::Key),
    "login" => Login(login::Login),
    "push" => Push(push::Push),
    "pull" => Pull(pull::Pull),
    "clone" => Clone(clone::Clone),
    "context" => Context(context::Context),
    "remote" => Remote(remote::Remote),
    "mcp" => Mcp(mcp::Mcp),
    "hooks" => Hooks(hooks::Hooks),
    "webhook" => Webhook(webhook::Webhook),
    "sandbox" => Sandbox(sandbox::Sandbox),
    "exec" => Exec(exec::Exec),
    "shell" => Shell(shell::Shell),
    "ps" => Ps(ps::Ps),
    "attach" => Attach(attach::Attach),
    "store" => Store(store::StoreCommand),
    #[command(hide = true)]
    "supervise" => Supervise(supervise::Supervise),
}

/// The place that a command works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The store of this machine, or the server that is named instead.
    AnyStore,
    /// Directories, mounts, processes or files of this machine; `instead` says what to do with a server.
    ThisMachine { name: &'static str, instead: &'static str },
    /// The store of this machine and a server.
    Both,
    /// No store, or one that the command chooses by itself: a server that is named makes no difference.
    Neither,
}

/// Hint for commands that need a directory of this machine, when a server is named.
const CLONE: &str = "`amalgam clone URL/PROJECT/WORKSPACE DIR` gets a directory to work in";
/// Hint for commands that act on the machine of the store, when a server is named.
const ON_SERVER: &str = "run it on the machine of the server";

impl Command {
    /// Returns the place that the command works on.
    pub fn subject(&self) -> Subject {
        let here = |name, instead| Subject::ThisMachine { name, instead };
        match self {
            Self::Init(_) => here("init", CLONE),
            Self::Status(status) if status.names_workspace() => Subject::AnyStore,
            Self::Status(_) => here("status", "name a workspace with -w, or clone it"),
            Self::Checkout(_) => here("checkout", CLONE),
            Self::Mount(_) => here("mount", CLONE),
            Self::Umount(_) => here("umount", CLONE),
            Self::Mounts(_) => here("mounts", CLONE),
            Self::Run(_) => here("run", CLONE),
            Self::Watch(_) => here("watch", CLONE),
            Self::Explore(_) => here("explore", CLONE),
            Self::Bisect(_) => here("bisect", CLONE),
            Self::Exports(_) => here("exports", ON_SERVER),
            Self::Unexport(_) => here("unexport", ON_SERVER),
            Self::Backup(backup) if backup.is_of_server() => Subject::Neither,
            Self::RestoreBackup(restore) if restore.is_of_server() => Subject::Neither,
            Self::Backup(_) => here("backup", ON_SERVER),
            Self::RestoreBackup(_) => here("restore-backup", ON_SERVER),
            Self::Logs(_) if has_server_option() => here("logs", ON_SERVER),
            Self::Config(_) if has_server_option() => here("config", ON_SERVER),
            Self::Doctor(_) if has_server_option() => here("doctor", ON_SERVER),
            Self::Stop(_) if has_server_option() => here("stop", ON_SERVER),
            Self::Key(_) if has_server_option() => here("key", ON_SERVER),
            Self::Webhook(_) if has_server_option() => here("webhook", ON_SERVER),
            Self::Commit(_)
            | Self::Log(_)
            | Self::Diff(_)
            | Self::Show(_)
            | Self::Ls(_)
            | Self::Cat(_)
            | Self::Grep(_)
            | Self::Find(_)
            | Self::Restore(_)
            | Self::Undo(_)
            | Self::Redo(_)
            | Self::Op(_)
            | Self::Fork(_)
            | Self::Ws(_)
            | Self::Merge(_)
            | Self::Complete(_)
            | Self::Publish(_)
            | Self::Follow(_)
            | Self::Unfollow(_)
            | Self::Update(_)
            | Self::Radar(_)
            | Self::Queue(_)
            | Self::Review(_)
            | Self::Rules(_)
            | Self::Policy(_)
            | Self::Blame(_)
            | Self::Label(_)
            | Self::Conflicts(_)
            | Self::Mcp(_)
            | Self::Du(_)
            | Self::Gc(_)
            | Self::Verify(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Import(_)
            | Self::Export(_)
            | Self::Purge(_)
            | Self::Sandbox(_)
            | Self::Exec(_)
            | Self::Shell(_)
            | Self::Ps(_)
            | Self::Attach(_) => Subject::AnyStore,
            Self::Push(_) | Self::Pull(_) | Self::Clone(_) => Subject::Both,
            Self::Remote(_) => Subject::Neither,
            Self::Logs(_)
            | Self::Config(_)
            | Self::Doctor(_)
            | Self::Completions(_)
            | Self::Help(_)
            | Self::Man(_)
            | Self::Stop(_)
            | Self::Enter(_)
            | Self::Serve(_)
            | Self::Key(_)
            | Self::Webhook(_)
            | Self::Store(_)
            | Self::Login(_)
            | Self::Context(_)
            | Self::Connection(_)
            | Self::Hooks(_)
            | Self::Supervise(_) => Subject::Neither,
        }
    }

    /// Runs the command. Futures of commands differ widely in size, so each is boxed.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self {
            Self::Init(init) => Box::pin(init.run(session)).await,
            Self::Status(status) => Box::pin(status.run(session)).await,
            Self::Commit(commit) => name_w_option(Box::pin(commit.run(session)).await, session, "commit"),
            Self::Log(log) => Box::pin(log.run(session)).await,
            Self::Logs(logs) => Box::pin(logs.run(session)).await,
            Self::Diff(diff) => Box::pin(diff.run(session)).await,
            Self::Show(show) => Box::pin(show.run(session)).await,
            Self::Ls(ls) => Box::pin(ls.run(session)).await,
            Self::Cat(cat) => Box::pin(cat.run(session)).await,
            Self::Grep(grep) => Box::pin(grep.run(session)).await,
            Self::Find(find) => Box::pin(find.run(session)).await,
            Self::Restore(restore) => name_w_option(Box::pin(restore.run(session)).await, session, "restore"),
            Self::Undo(undo) => name_w_option(Box::pin(undo.run(session)).await, session, "undo"),
            Self::Redo(redo) => name_w_option(Box::pin(redo.run(session)).await, session, "redo"),
            Self::Op(op) => Box::pin(op.run(session)).await,
            Self::Fork(fork) => Box::pin(fork.run(session)).await,
            Self::Ws(ws) => Box::pin(ws.run(session)).await,
            Self::Checkout(checkout) => Box::pin(checkout.run(session)).await,
            Self::Mount(mount) => Box::pin(mount.run(session)).await,
            Self::Umount(umount) => Box::pin(umount.run(session)).await,
            Self::Mounts(mounts) => Box::pin(mounts.run(session)).await,
            Self::Exports(exports) => Box::pin(exports.run(session)).await,
            Self::Unexport(unexport) => Box::pin(unexport.run(session)).await,
            Self::Run(run) => Box::pin(run.run(session)).await,
            Self::Watch(watch) => Box::pin(watch.run(session)).await,
            Self::Merge(merge) => Box::pin(merge.run(session)).await,
            Self::Complete(complete) => Box::pin(complete.run(session)).await,
            Self::Publish(publish) => Box::pin(publish.run(session)).await,
            Self::Follow(follow) => Box::pin(follow.run(session)).await,
            Self::Unfollow(unfollow) => Box::pin(unfollow.run(session)).await,
            Self::Update(update) => Box::pin(update.run(session)).await,
            Self::Radar(radar) => Box::pin(radar.run(session)).await,
            Self::Queue(queue) => Box::pin(queue.run(session)).await,
            Self::Review(review) => Box::pin(review.run(session)).await,
            Self::Rules(rules) => Box::pin(rules.run(session)).await,
            Self::Policy(policy) => Box::pin(policy.run(session)).await,
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
            Self::Key(key) => Box::pin(key.run(session)).await,
            Self::Push(push) => Box::pin(push.run(session)).await,
            Self::Pull(pull) => Box::pin(pull.run(session)).await,
            Self::Clone(clone) => Box::pin(clone.run(session)).await,
            Self::Login(login) => Box::pin(login.run(session)).await,
            Self::Context(context) => context.run(session),
            Self::Remote(remote) => Box::pin(remote.run(session)).await,
            Self::Connection(connection) => Box::pin(connection.run(session)).await,
            Self::Mcp(mcp) => Box::pin(mcp.run(session)).await,
            Self::Hooks(hooks) => Box::pin(hooks.run(session)).await,
            Self::Webhook(webhook) => Box::pin(webhook.run(session)).await,
            Self::Sandbox(sandbox) => Box::pin(sandbox.run(session)).await,
            Self::Exec(exec) => Box::pin(exec.run(session)).await,
            Self::Shell(shell) => Box::pin(shell.run(session)).await,
            Self::Ps(ps) => Box::pin(ps.run(session)).await,
            Self::Attach(attach) => Box::pin(attach.run(session)).await,
            Self::Store(store) => Box::pin(store.run(session)).await,
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

/// Returns whether the command line has the option `--server`. AMALGAM_SERVER and a current context
/// do not count: commands about the store of this machine must work beside them.
fn has_server_option() -> bool {
    let is_option =
        |word: &str| word == "--server" || word.strip_prefix("--server=").is_some_and(|name| !name.is_empty());
    env::args_os().take_while(|word| word != "--").any(|word| word.to_str().is_some_and(is_option))
}

/// Names the option `-w` in the error of a command that found no directory because it works on a server.
fn name_w_option(outcome: Outcome, session: &Session, name: &str) -> Outcome {
    outcome.map_err(|error| match session.server().is_some() && error.is(Reason::NoDirectory) {
        true => error.hint(format!("name a workspace, as in `amalgam {name} -w NAME`")),
        false => error,
    })
}
