//! `amalgam fork`: creates workspaces from the state of another one, with directories if asked for.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::backend::{Backend, BackendArgs, Purpose};
use super::capture::{SnapshotInfo, capture, report_notices};
use super::checkout::{Target, checkout};
use super::mount::{MountArgs, mount_or_else};
use super::workspaces::{workspace, workspaces};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, workspace_name};
use crate::text;

/// Create workspaces that start from the current state of this one
#[derive(Debug, Args)]
#[command(after_help = "\
Uncommitted changes of the directory are captured first, so a fork starts with the files that you see. In the template
of --dir and --mount, {name} stands for the name of the workspace and {n} for its number. --allow-other, --writeback,
--threads, --local, --backend, --for and --explain apply only with --mount.

Examples:
  amalgam fork idea                    a workspace, no files yet
  amalgam fork -n 3 --dir ../try-{n}   three workspaces with a directory each
  amalgam fork parser --dir ../{name}
  amalgam fork -n 3 --mount ../try-{n}
                                       three mounts; directories where FUSE does not work")]
pub struct Fork {
    /// Names of the new workspaces [default: WORKSPACE-1, WORKSPACE-2, ...]
    names: Vec<String>,
    /// Number of forks, at most 1000 [default: 1]
    #[arg(short = 'n', long = "number", value_name = "N", conflicts_with = "names",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    number: Option<u32>,
    /// Write the files into new directories, named by this template
    #[arg(long, value_name = "TEMPLATE")]
    dir: Option<String>,
    /// Mount the forks at new directories, named by this template; write the files where mounting is not possible
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "dir")]
    mount: Option<String>,
    #[command(flatten)]
    options: MountArgs,
    #[command(flatten)]
    backend: BackendArgs,
    /// Fork this workspace [default: the one of this directory]
    #[arg(long, value_name = "WORKSPACE")]
    from: Option<String>,
    /// The agent that works in the forks; the policy of the project applies to it [default: that of the forked workspace]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

impl Fork {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        self.refuse_without_effect()?;
        if self.dir.is_some() || self.mount.is_some() {
            session.refuse_server("--dir and --mount", "leave them out, and clone the fork")?;
        }
        let mut client = session.client().await?;
        let source = source(session, &mut client, self.from.as_deref()).await?;
        let mut exit = Exit::OK;
        let mut counts = None;
        if let Some(directory) = &source.directory {
            let result =
                capture(&session.output, &mut client, directory, SnapshotInfo::message("before a fork")).await?;
            exit = exit.or(report_notices(&mut session.output, &result.notices)?);
            if let Some(snapshot) = result.snapshot.as_ref().filter(|_| result.changed) {
                let changes = text::plural(result.added + result.modified + result.removed, "uncommitted change");
                let id = paint(style::ID, text::short(&snapshot.name));
                session.output.remark(format!("{changes} committed as {id} \"before a fork\""))?;
            }
            counts = result.counts;
        }
        let names = match self.names {
            names if names.is_empty() => {
                free_names(&mut client, &source.workspace, self.number.unwrap_or(1) as usize).await?
            }
            names => different(names)?,
        };
        let way = match &self.mount {
            Some(_) => {
                let chosen = self.backend.choose(session.home(), Purpose::Shared)?;
                self.backend.say(session, chosen.word(), &chosen.why)?;
                if chosen.backend == Backend::Checkout {
                    self.options.refuse_local(&format!("files are written to the disk: {}", chosen.why))?;
                    if chosen.is_fallback {
                        say_copies(&mut session.output, &chosen.why, names.len(), counts.as_ref())?;
                    }
                }
                (chosen.backend == Backend::Fuse).then_some((&self.options, &self.backend))
            }
            None => {
                self.options.refuse_local("without --mount nothing is mounted")?;
                None
            }
        };
        let template = self.dir.as_ref().or(self.mount.as_ref());
        let option = if self.dir.is_some() { "--dir" } else { "--mount" };
        let paths = match template {
            Some(template) => Some(paths(session, option, template, &names)?),
            None => None,
        };
        if self.dir.is_some() {
            session.interrupts.say(
                "`amalgam ws` lists the forks; `amalgam checkout FORK@ DIR -w FORK` writes the files of one, and `amalgam ws rm FORK` \
                 removes it",
            );
        }
        fork(&mut client, &source.workspace, &names, self.agent.as_deref()).await?;
        let mut copies = Copies::default();
        for (at, name) in names.iter().enumerate() {
            let target = paths.as_ref().map(|paths| paths[at].as_path());
            exit = exit.or(fill(&mut session.output, &mut client, &source, name, target, way, &mut copies).await?);
        }
        if self.mount.is_some() && copies.number > 0 && self.backend.backend != Backend::Checkout {
            session.output.remark(copies.words())?;
        }
        if let (None, Some(server)) = (template, session.server()) {
            let project = if server.url.project.is_some() { "" } else { "/PROJECT" };
            let url = server.url.clone();
            session.output.remark(format!("`amalgam clone {url}{project}/{} DIR` gets its files", names[0]))?;
        } else if template.is_none() {
            session
                .output
                .remark(format!("no files yet: `amalgam mount {0} DIR` shows them, `amalgam checkout {0}@ DIR --workspace {0}` writes them", names[0]))?;
        }
        Ok(exit)
    }
}

impl Fork {
    /// Refuses options that have no effect beside the others.
    fn refuse_without_effect(&self) -> Result<(), CliError> {
        let is_written = self.mount.is_none() || self.backend.backend == Backend::Checkout;
        // --local has a message of its own.
        let mount_option = self.options.given().filter(|option| is_written && *option != "--local");
        match (mount_option, self.backend.given()) {
            (Some(option), _) if self.mount.is_some() => {
                Err(CliError::usage(format!("{option} works only in a mount, and --backend checkout mounts nothing"))
                    .hint("leave out one of them"))
            }
            (Some(option), _) | (None, Some(option)) if self.mount.is_none() => {
                Err(CliError::usage(format!("{option} works only with --mount"))
                    .hint("add --mount TEMPLATE, or leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// The full copies that were written for forks.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    number: u64,
    files: u64,
    bytes: u64,
    reflinked: u64,
}

impl Copies {
    fn words(&self) -> String {
        let cloned = match self.reflinked {
            0 => String::new(),
            number => format!(", {} of them cloned at no cost", text::count(number)),
        };
        let copies =
            if self.number == 1 { "1 full copy" } else { &format!("{} full copies", text::count(self.number)) };
        format!("{copies} written: {}, {}{cloned}", text::plural(self.files, "path"), text::bytes(self.bytes))
    }
}

/// Prints that files are copied because nothing can be mounted: the reason, the number of copies and, if known, their size.
pub fn say_copies(output: &mut Output, why: &str, number: usize, counts: Option<&v1::Counts>) -> Result<(), CliError> {
    let copies = if number == 1 { "a full copy is".to_owned() } else { format!("{number} full copies are") };
    let size = match counts {
        Some(counts) => {
            let files = text::plural(counts.files + counts.symlinks + counts.others, "file");
            let each = if number == 1 { "" } else { " each" };
            format!(", {files} and {}{each}", text::bytes(counts.bytes))
        }
        None => String::new(),
    };
    output.remark(format!("{why}; {copies} written instead{size}"))
}

/// Returns the names unchanged, or refuses them if one is given twice.
fn different(names: Vec<String>) -> Result<Vec<String>, CliError> {
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(CliError::usage(format!("`{twice}` is named twice"))),
        None => Ok(names),
    }
}

/// The source of a fork.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the workspace, without `workspaces/`.
    pub workspace: String,
    /// The resource name of its directory or live tree, if it has one.
    pub directory: Option<String>,
}

async fn source(session: &mut Session, client: &mut Client, from: Option<&str>) -> Result<Source, CliError> {
    let Some(from) = from else {
        let place = session.attached_directory().await?;
        let workspace = place.workspace_id().to_owned();
        return Ok(Source { workspace, directory: Some(place.directory.name) });
    };
    let found = workspace(client, &workspace_name(from)).await?;
    let live = Some(found.live).filter(|live| !live.is_empty());
    let directory = found.directories.into_iter().next().map(|directory| directory.name).or(live);
    Ok(Source { workspace: from.to_owned(), directory })
}

/// Returns the first names `WORKSPACE-1`, `WORKSPACE-2` and so on that are not taken.
pub async fn free_names(client: &mut Client, workspace: &str, number: usize) -> Result<Vec<String>, CliError> {
    let start = format!("{workspace}-");
    let taken = workspaces(client, &start).await?;
    let taken: HashSet<_> = taken.iter().map(|workspace| text::id(&workspace.name)).collect();
    let names = (1_u64..).map(|number| format!("{start}{number}")).filter(|name| !taken.contains(name.as_str()));
    Ok(names.take(number).collect())
}

/// Forks a workspace: creates all of the named workspaces, or none. Without `agent` they keep the agent of the forked workspace.
pub async fn fork(
    client: &mut Client,
    workspace: &str,
    names: &[String],
    agent: Option<&str>,
) -> Result<Vec<v1::Workspace>, CliError> {
    let request = v1::ForkWorkspaceRequest {
        name: workspace_name(workspace),
        workspace_ids: names.to_vec(),
        agent: agent.map(str::to_owned),
        ..Default::default()
    };
    Ok(client.workspaces.fork_workspace(request).await?.into_inner().workspaces)
}

/// Returns the directory of each fork by the template of an option. Refuses equal paths, and directories that are not empty.
fn paths(session: &Session, option: &str, template: &str, names: &[String]) -> Result<Vec<PathBuf>, CliError> {
    let paths: Vec<_> = (1..).zip(names).map(|(n, name)| session.host_path(&expanded(template, name, n))).collect();
    let different: HashSet<_> = paths.iter().collect();
    if different.len() < paths.len() {
        let hint = format!("put {{n}} or {{name}} into it: {option} {template}-{{n}}");
        return Err(CliError::usage(format!("`{template}` gives several forks one directory")).hint(hint));
    }
    match paths.iter().find(|path| !is_free(path)) {
        Some(path) => Err(CliError::refused(format!("{} exists and is not empty", path.display()))
            .hint("name another directory; nothing was forked")),
        None => Ok(paths),
    }
}

fn is_free(path: &Path) -> bool {
    path.symlink_metadata().is_err() || path.read_dir().is_ok_and(|mut names| names.next().is_none())
}

fn expanded(template: &str, name: &str, number: usize) -> OsString {
    OsString::from(template.replace("{name}", name).replace("{n}", &number.to_string()))
}

async fn fill(
    output: &mut Output,
    client: &mut Client,
    source: &Source,
    name: &str,
    path: Option<&Path>,
    mounted: Option<(&MountArgs, &BackendArgs)>,
    copies: &mut Copies,
) -> Outcome {
    let Some(path) = path else {
        output.emit(&lines::line("fork", json!({"workspace": name, "from": source.workspace, "path": null})))?;
        output.done(paint(style::WORKSPACE, name))?;
        return Ok(Exit::OK);
    };
    let mount = match mounted {
        Some((options, or_else)) => mount_or_else(output, client, name, path, options, or_else).await?,
        None => None,
    };
    if let Some(mount) = mount {
        let line = lines::line("fork", json!({"workspace": name, "from": source.workspace}));
        output.emit(&lines::with_path(line, &mount.path))?;
        output.done(format!("{}  {}", paint(style::WORKSPACE, name), text::path(&mount.path)))?;
        return Ok(Exit::OK);
    }
    let target = Target {
        path,
        revision: &format!("{name}@"),
        workspace: "",
        attach: name,
        source: source.directory.as_deref().unwrap_or_default(),
        conflicts: "",
        read_only: false,
        set_id: false,
    };
    let result = checkout(output, client, &target).await?;
    copies.number += 1;
    copies.files += result.written;
    copies.bytes += result.bytes;
    copies.reflinked += result.reflinked;
    let directory = result.directory.unwrap_or_default();
    let line = lines::line("fork", json!({"workspace": name, "from": source.workspace}));
    output.emit(&lines::with_path(line, &directory.path))?;
    output.done(format!("{}  {}", paint(style::WORKSPACE, name), text::path(&directory.path)))?;
    report_notices(output, &result.notices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_names_the_fork_and_its_number() {
        assert_eq!(expanded("../{name}", "main-2", 2), "../main-2");
        assert_eq!(expanded("try-{n}/{name}", "a", 7), "try-7/a");
        assert_eq!(expanded("plain", "a", 1), "plain");
    }
}
