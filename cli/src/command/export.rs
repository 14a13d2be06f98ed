//! `amalgam export`: exports snapshots in the formats of other programs.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;

use amalgam_proto::v1::export_tree_request::Target as To;
use amalgam_proto::{Reason, v1};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tonic::codegen::Bytes;

use super::import::{Compression, counts_line, notices, parse_history, words};
use super::pipe::Target;
use super::revisions::Range;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::{drive, drive_pieces};
use crate::session::{Session, current_workspace};
use crate::text;

/// Export a snapshot as an archive, a container image, an overlay directory or git commits, or a workspace over NFS
#[derive(Debug, Args)]
#[command(after_help = "\
The command reports what the target format cannot store. A tar archive stores nearly everything; git stores neither
empty directories nor times. To give PATHs, give REV before them; @ is the last snapshot.

Examples:
  amalgam export tar -o snapshot.tar.zst
  amalgam export tar main@ src docs | ssh HOST tar -x
  amalgam export zip v1 -o v1.zip
  amalgam export git main@ --to ../project.git --branch agent
  amalgam export git v1..main@ --to ../project.git --branch since-v1
  amalgam export overlay work@ --base base@ --to /srv/upper
  amalgam export nfs work              `amalgam exports` and `unexport` list and end such exports
  amalgam export oci work@ --base base@ --name app:v2 -o app.tar
                                   for `docker load -i app.tar`")]
pub struct Export {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Export a tar archive
    Tar(Tar),
    /// Export a zip archive
    Zip(Zip),
    /// Export commits to a branch of a git repository
    Git(Git),
    /// Export an OCI image, which container engines can load
    Oci(Oci),
    /// Export the changes since another snapshot as the upper directory of an overlay mount
    Overlay(Overlay),
    Nfs(super::export_nfs::ExportNfs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam export tar -o snapshot.tar.zst
  amalgam export tar main@ src docs | ssh HOST tar -x")]
struct Tar {
    /// The snapshot
    #[arg(value_name = "REV", default_value = "@")]
    revision: String,
    /// Paths from the root of the snapshot, with everything below them [default: everything]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE|-", default_value = "-")]
    output: OsString,
    /// How to compress the archive [default: by the extension of FILE: .gz, .zst, .xz; otherwise none]
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,
    /// Print what would be written, write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam export zip v1 -o v1.zip")]
struct Zip {
    /// The snapshot
    #[arg(value_name = "REV", default_value = "@")]
    revision: String,
    /// Paths from the root of the snapshot, with everything below them [default: everything]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE|-", default_value = "-")]
    output: OsString,
    /// Print what would be written, write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam export git --to ../project.git --branch agent
  amalgam export git v1..main@ --to ../project.git --branch since-v1 --push origin")]
struct Git {
    /// The snapshot, with its history; A..B leaves out A and its history
    #[arg(value_name = "REV|A..B", default_value = "@")]
    revision: String,
    /// The repository; created as a bare one if it does not exist
    #[arg(long, value_name = "REPO")]
    to: OsString,
    /// The branch to move; it must not be checked out
    #[arg(long, value_name = "NAME")]
    branch: String,
    /// How many snapshots to export along each line of history, or `all`
    #[arg(long, value_name = "N|all", default_value = "all", value_parser = parse_history)]
    history: u64,
    /// Name and address that git records for an author: `AUTHOR=Name <address>`; repeatable
    #[arg(long, value_name = "AUTHOR=WHO")]
    identity: Vec<String>,
    /// Push the branch to this remote of the repository afterwards, with `git push`; not with --dry-run
    #[arg(long, value_name = "REMOTE")]
    push: Option<String>,
    /// Print what would be written, write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam export oci work@ --base base@ --name app:v2 -o app.tar")]
struct Oci {
    /// The snapshot of the top layer
    #[arg(value_name = "REV", default_value = "@")]
    revision: String,
    /// The snapshot of a lower layer, the lowest first; each layer holds the difference to the one below; repeatable
    #[arg(long, value_name = "REV")]
    base: Vec<String>,
    /// Name and tag of the image
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,
    /// The tar archive to write [default: standard output]
    #[arg(short, long, value_name = "FILE|-", conflicts_with = "dir")]
    output: Option<OsString>,
    /// Write an image layout into a new directory instead
    #[arg(long, value_name = "DIR")]
    dir: Option<OsString>,
    /// How to compress the layers [default: gzip]
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,
    /// Print what would be written, write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam export overlay work@ --base base@ --to /srv/upper")]
struct Overlay {
    /// The snapshot
    #[arg(value_name = "REV", default_value = "@")]
    revision: String,
    /// The snapshot of the lower layers [default: none; everything is written]
    #[arg(long, value_name = "REV")]
    base: Option<String>,
    /// The directory to write; it must be new or empty
    #[arg(long, value_name = "DIR")]
    to: OsString,
    /// The form of whiteouts (deletions): `device` for an upper or lower directory, `xattr` for a lower directory without devices,
    /// `aufs` for files whose names begin with `.wh.`
    #[arg(long, value_name = "FORM", default_value = "device")]
    whiteouts: Whiteouts,
    /// Set set-user-ID and set-group-ID bits and capabilities, and make devices; they are left out otherwise
    #[arg(long)]
    set_id: bool,
    /// Print what would be written, write nothing
    #[arg(long)]
    dry_run: bool,
}

/// The form of whiteouts.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Whiteouts {
    Device,
    Xattr,
    Aufs,
}

impl Overlay {
    async fn run(self, session: &mut Session) -> Outcome {
        let whiteouts = match self.whiteouts {
            Whiteouts::Device => v1::WhiteoutForm::Device,
            Whiteouts::Xattr => v1::WhiteoutForm::Xattr,
            Whiteouts::Aufs => v1::WhiteoutForm::Aufs,
        };
        let target = v1::OverlayTarget {
            directory: host_bytes(session, &self.to),
            base: self.base.unwrap_or_default(),
            whiteouts: whiteouts.into(),
            set_id: self.set_id,
        };
        let request = v1::ExportTreeRequest {
            revision: self.revision,
            target: Some(To::Overlay(target)),
            dry_run: self.dry_run,
            ..Default::default()
        };
        on_host(session, request).await
    }
}

impl Export {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.what {
            What::Tar(tar) => {
                let by_ending = compression_of(&tar.output);
                let compression = tar.compression.or(by_ending).map_or(0, Compression::number);
                let request = v1::ExportTreeRequest {
                    revision: tar.revision,
                    target: Some(To::Tar(v1::TarTarget { compression })),
                    paths: bytes_of(&tar.paths),
                    dry_run: tar.dry_run,
                    ..Default::default()
                };
                archive_of(session, request, &tar.output).await
            }
            What::Zip(zip) => {
                let request = v1::ExportTreeRequest {
                    revision: zip.revision,
                    target: Some(To::Zip(v1::ZipTarget {})),
                    paths: bytes_of(&zip.paths),
                    dry_run: zip.dry_run,
                    ..Default::default()
                };
                archive_of(session, request, &zip.output).await
            }
            What::Git(git) => git.run(session).await,
            What::Overlay(overlay) => overlay.run(session).await,
            What::Nfs(nfs) => Box::pin(nfs.run(session)).await,
            What::Oci(oci) => {
                let directory = oci.dir.as_deref().map(|dir| host_bytes(session, dir)).unwrap_or_default();
                let target = v1::OciTarget {
                    directory,
                    bases: oci.base,
                    name: oci.name.unwrap_or_default(),
                    compression: oci.compression.map_or(0, Compression::number),
                };
                let request = v1::ExportTreeRequest {
                    revision: oci.revision,
                    target: Some(To::Oci(target)),
                    dry_run: oci.dry_run,
                    ..Default::default()
                };
                match oci.dir {
                    Some(_) => on_host(session, request).await,
                    None => archive(session, request, &oci.output.unwrap_or_else(|| "-".into())).await,
                }
            }
        }
    }
}

impl Git {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut identities = HashMap::new();
        for identity in &self.identity {
            let (author, who) = identity.split_once('=').ok_or_else(|| {
                CliError::usage(format!("`{identity}` maps no author"))
                    .hint("write --identity 'ann=Ann <ann@example.org>'")
            })?;
            identities.insert(author.to_owned(), who.to_owned());
        }
        let path = host_bytes(session, &self.to);
        let (since, revision) = match Range::parse(&self.revision) {
            Some(range) => (range.from, range.to),
            None => (String::new(), self.revision),
        };
        let target = v1::GitTarget { path, branch: self.branch.clone(), history: self.history, identities, since };
        let request = v1::ExportTreeRequest {
            revision,
            target: Some(To::Git(target)),
            dry_run: self.dry_run,
            ..Default::default()
        };
        let exit = on_host(session, request).await?;
        let Some(remote) = self.push else { return Ok(exit) };
        if self.dry_run {
            session.output.done(format!("would push {} to {remote}", self.branch))?;
            return Ok(exit);
        }
        let mut push = tokio::process::Command::new("git");
        push.arg("-C").arg(session.host_path(&self.to)).args(["push", "--", &remote, &self.branch]);
        push.stdout(std::process::Stdio::null()).kill_on_drop(true);
        let status = push.status().await.map_err(|error| CliError::machine("git", &error))?;
        match status.success() {
            true => Ok(exit),
            false => Err(CliError::refused(format!("the branch is exported, but git could not push it to {remote}"))),
        }
    }
}

fn host_bytes(session: &Session, path: &OsStr) -> Bytes {
    Bytes::copy_from_slice(session.host_path(path).as_os_str().as_bytes())
}

fn bytes_of(paths: &[OsString]) -> Vec<Bytes> {
    let bytes = |path: &OsString| {
        let path = path.as_bytes();
        Bytes::copy_from_slice(path.strip_suffix(b"/").unwrap_or(path))
    };
    paths.iter().map(bytes).collect()
}

/// Returns the compression for the extension of a file name, or `None` for another extension.
fn compression_of(file: &OsStr) -> Option<Compression> {
    let name = file.to_string_lossy();
    let ending = name.rsplit('.').next()?;
    match ending {
        "gz" | "tgz" => Some(Compression::Gzip),
        "zst" | "tzst" => Some(Compression::Zstd),
        "xz" | "txz" => Some(Compression::Xz),
        _ => None,
    }
}

/// Writes an archive. If the user gave a path in place of the revision, or an absolute path, the error says so.
async fn archive_of(session: &mut Session, request: v1::ExportTreeRequest, output: &OsStr) -> Outcome {
    if let Some(path) = request.paths.iter().find(|path| path.starts_with(b"/")) {
        let message = format!("`{}` is absolute, and paths start at the root of the snapshot", text::path(path));
        return Err(CliError::usage(message).hint("leave out the leading slash; the output file is -o FILE"));
    }
    let word = request.revision.clone();
    let is_path = request.paths.is_empty() && session.cwd.join(&word).symlink_metadata().is_ok();
    archive(session, request, output).await.map_err(|error| {
        match is_path && (error.is(Reason::NotFound) || error.is(Reason::Invalid)) {
            true => CliError::new(error.exit, &error.reason, format!("`{word}` is a path, not a revision"))
                .hint(format!("give the revision before paths: @ {word}")),
            false => error,
        }
    })
}

/// Writes the archive that the server sends to a file or to standard output.
async fn archive(session: &mut Session, mut request: v1::ExportTreeRequest, output: &OsStr) -> Outcome {
    let (is_piped, dry_run) = (output == "-", request.dry_run);
    if is_piped && !dry_run && io::stdout().is_terminal() {
        return Err(CliError::usage("an archive is not written to a terminal").hint("pass -o FILE, or pipe it"));
    }
    if is_piped && !dry_run && session.output.is_json() {
        return Err(
            CliError::usage("the archive takes standard output, where JSON lines would go").hint("pass -o FILE")
        );
    }
    request.workspace = current_workspace(session.attached_directory_if_any().await?.as_ref());
    let mut client = session.client().await?;
    if dry_run {
        let done = drive(&session.output, client.exchange.export_tree(request)).await?;
        return report(session, &done, true, false);
    }
    let file = if is_piped { output.to_owned() } else { session.host_path(output).into_os_string() };
    let (pieces, target) = Target::open(&file)?;
    let done = drive_pieces(session.output.shows_progress(), client.exchange.export_tree(request), &pieces).await;
    drop(pieces);
    let finished = target.finish(done.is_ok()).await;
    match (done, finished) {
        (Err(Some(error)), _) | (_, Err(error)) => Err(error),
        (Err(None), Ok(())) => Err(CliError::refused("the archive could not be written")),
        (Ok(done), Ok(())) => report(session, &done, false, is_piped),
    }
}

/// Exports to a repository or a directory of the host.
async fn on_host(session: &mut Session, mut request: v1::ExportTreeRequest) -> Outcome {
    request.workspace = current_workspace(session.attached_directory_if_any().await?.as_ref());
    let dry_run = request.dry_run;
    let mut client = session.client().await?;
    let done = drive(&session.output, client.exchange.export_tree(request)).await?;
    report(session, &done, dry_run, false)
}

fn report(session: &mut Session, done: &v1::ExportResult, dry_run: bool, is_piped: bool) -> Outcome {
    let counts = done.report.clone().unwrap_or_default();
    let mut line = counts_line("exported", &counts);
    line["id"] = json!(done.id);
    line["reused"] = json!(done.reused);
    line["dry_run"] = json!(dry_run);
    session.output.emit(&line)?;
    let word = if dry_run { "would export" } else { "exported" };
    let id = if done.id.is_empty() { String::new() } else { format!(" as {}", done.id) };
    let words = format!("{word} {}{id}", words(&counts));
    match is_piped {
        true => session.output.remark(words)?,
        false => session.output.done(words)?,
    }
    notices(&mut session.output, &counts)?;
    Ok(Exit::OK)
}
