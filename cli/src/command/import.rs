//! `amalgam import`: imports trees and histories of other programs.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};

use amalgam_proto::v1;
use amalgam_proto::v1::import_options::Source;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Bytes;

use super::pipe;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::Session;
use crate::text;

/// Import archives, git repositories, container images and overlay directories
#[derive(Debug, Args)]
#[command(after_help = "\
An import creates a workspace, or moves an existing one forward if the imported history continues it: an archive with
--onto NAME@, or new commits of the same git branch. The snapshots become visible at the end, all at
once; an import that fails or is interrupted changes no workspace. Imported files count as foreign: checkouts leave out
set-user-ID and set-group-ID bits, capabilities and devices unless --set-id is given.

Examples:
  amalgam import tar linux.tar.xz
  curl URL | amalgam import tar - -w linux
  amalgam import git ~/src/project --history all
  amalgam import git https://host/project.git --ref v1.0 -w project
  amalgam import oci image.tar -w base
  amalgam import docker debian:12 -w debian
  amalgam import overlay /var/lib/sandbox/upper --onto base@ -w base
  amalgam import zip photos.zip --dry-run")]
pub struct Import {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Import a tar archive, uncompressed or compressed with gzip, zstd or xz
    Tar(Tar),
    /// Import a zip archive
    Zip(Zip),
    /// Import a commit of a git repository, with or without its history
    Git(Git),
    /// Import a container image: an OCI image layout, a tar archive of one, or an archive of `docker save`
    Oci(Oci),
    /// Import a container image of a Docker engine on this machine
    Docker(Docker),
    /// Import the upper directory of an overlay mount, as a change of a snapshot
    Overlay(Overlay),
}

/// Options of every import.
#[derive(Debug, Args)]
struct Common {
    /// The workspace to import into [default: named after the source]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Read and check everything, change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The compression of an archive.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    /// Returns the number of the compression in the protocol.
    pub fn number(self) -> i32 {
        match self {
            Self::None => v1::ArchiveCompression::None.into(),
            Self::Gzip => v1::ArchiveCompression::Gzip.into(),
            Self::Zstd => v1::ArchiveCompression::Zstd.into(),
            Self::Xz => v1::ArchiveCompression::Xz.into(),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam import tar linux.tar.xz
  curl URL | amalgam import tar - -w linux")]
struct Tar {
    /// The archive; - is standard input
    #[arg(value_name = "FILE|-")]
    file: OsString,
    /// Extract over the files of this snapshot, which becomes the parent [default: no files, no parent]
    #[arg(long, value_name = "REV")]
    onto: Option<String>,
    /// How the archive is compressed [default: detected from its first bytes]
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,
    /// Do not record the owners of files
    #[arg(long)]
    no_owners: bool,
    /// The message of the snapshot [default: import SOURCE]
    #[arg(short, long)]
    message: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam import zip photos.zip --dry-run")]
struct Zip {
    /// The archive; - is standard input
    #[arg(value_name = "FILE|-")]
    file: OsString,
    /// Extract over the files of this snapshot, which becomes the parent [default: no files, no parent]
    #[arg(long, value_name = "REV")]
    onto: Option<String>,
    /// The message of the snapshot [default: import SOURCE]
    #[arg(short, long)]
    message: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam import git ~/src/project --history all
  amalgam import git https://host/project.git --ref v1.0 -w project")]
struct Git {
    /// A work tree, a bare repository, or a URL that git can clone
    #[arg(value_name = "PATH|URL")]
    repository: OsString,
    /// A branch, a tag, another reference or a full commit id [default: HEAD]
    #[arg(long = "ref", value_name = "REF")]
    reference: Option<String>,
    /// How many commits to import along each line of history, or `all`
    #[arg(long, value_name = "N|all", default_value = "1", value_parser = parse_history)]
    history: u64,
    /// Import the files of submodules, too; for a local repository, of those that git has initialised there
    #[arg(long)]
    submodules: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam import docker debian:12 -w debian")]
struct Docker {
    /// Name, name and tag, or id of the image
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The Unix socket of the engine [default: that of $DOCKER_HOST, or the usual ones]
    #[arg(long, value_name = "PATH")]
    socket: Option<OsString>,
    /// The platform of the image, such as linux/arm64 [default: that of this machine]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam import oci image.tar -w base")]
struct Oci {
    /// The image layout or archive
    #[arg(value_name = "DIR|FILE")]
    image: OsString,
    /// The name of the image, if there are several
    #[arg(long)]
    tag: Option<String>,
    /// The platform of the image, such as linux/arm64 [default: that of this machine]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam import overlay /var/lib/sandbox/upper --onto base@ -w base")]
struct Overlay {
    /// The upper directory
    #[arg(value_name = "DIR")]
    upper: OsString,
    /// The snapshot that is the lower layer
    #[arg(long, value_name = "REV")]
    onto: Option<String>,
    /// Treat empty files whose names begin with `.wh.` as whiteouts (deletions), too, as AUFS does
    #[arg(long)]
    aufs: bool,
    /// The message of the snapshot [default: import SOURCE]
    #[arg(short, long)]
    message: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Parses a number of commits. Returns 0 for `all`.
pub fn parse_history(text: &str) -> Result<u64, String> {
    match text.parse() {
        _ if text == "all" => Ok(0),
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a number from 1 on, or `all`".to_owned()),
    }
}

impl Import {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.what {
            What::Tar(tar) => tar.run(session).await,
            What::Zip(zip) => zip.run(session).await,
            What::Git(git) => git.run(session).await,
            What::Oci(oci) => {
                let path = host_bytes(session, &oci.image);
                let (tag, platform) = (oci.tag.unwrap_or_default(), oci.platform.unwrap_or_default());
                let source = Source::Oci(v1::OciSource { path, tag, platform });
                import(session, source, &oci.image, &oci.common, None, None).await
            }
            What::Docker(docker) => docker.run(session).await,
            What::Overlay(overlay) => {
                let path = host_bytes(session, &overlay.upper);
                let source = Source::Overlay(v1::OverlaySource { path, aufs: overlay.aufs });
                let Overlay { upper, onto, message, common, .. } = overlay;
                import(session, source, &upper, &common, onto, message).await
            }
        }
    }
}

impl Docker {
    async fn run(self, session: &mut Session) -> Outcome {
        let socket = match &self.socket {
            Some(socket) => session.host_path(socket),
            None => docker_socket(|name| std::env::var_os(name))?,
        };
        let socket = Bytes::copy_from_slice(socket.as_os_str().as_bytes());
        let (image, platform) = (self.image.clone(), self.platform.unwrap_or_default());
        let source = Source::Docker(v1::DockerSource { socket, image, platform });
        import(session, source, OsStr::new(image_name(&self.image)), &self.common, None, None).await
    }
}

/// Returns the last part of the name of an image without tag and digest, for example `debian` of `host:5000/team/debian:12`; of an
/// id the first digits.
fn image_name(image: &str) -> &str {
    const DIGITS: usize = 12;
    if let Some(id) = image.strip_prefix("sha256:").filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return id.get(..DIGITS).unwrap_or(id);
    }
    let last = image.split('@').next().unwrap_or(image).rsplit('/').next().unwrap_or(image);
    last.split(':').next().unwrap_or(last)
}

/// Returns the socket of the Docker engine: the one in `DOCKER_HOST`, or that of root, or that of the user if only that exists.
fn docker_socket(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, CliError> {
    if let Some(host) = variable("DOCKER_HOST").filter(|host| !host.is_empty()) {
        let path = host.as_bytes().strip_prefix(b"unix://").ok_or_else(|| {
            CliError::usage(format!("DOCKER_HOST is {}, and only Unix sockets are read", host.to_string_lossy()))
                .hint("save the image by `docker save -o FILE`, then `amalgam import oci FILE`")
        })?;
        return Ok(PathBuf::from(OsStr::from_bytes(path)));
    }
    let of_root = PathBuf::from("/var/run/docker.sock");
    let of_user = variable("XDG_RUNTIME_DIR").map(|directory| Path::new(&directory).join("docker.sock"));
    Ok(of_user.filter(|path| path.exists() && !of_root.exists()).unwrap_or(of_root))
}

impl Tar {
    async fn run(self, session: &mut Session) -> Outcome {
        refuse_terminal(&self.file)?;
        let path = if self.file == "-" { self.file.clone() } else { session.host_path(&self.file).into_os_string() };
        let from = pipe::source(&path)?;
        let compression = self.compression.map_or(0, Compression::number);
        let source = Source::Tar(v1::TarSource { compression, drop_owners: self.no_owners });
        let options = options(source, &self.file, &self.common, self.onto, self.message)?;
        let (pieces, reading) = pipe::pieces(from);
        let imported = call(session, options, Some(pieces)).await;
        // To the server a failed read looks like a truncated archive, so the read error is reported first.
        if reading.is_finished() {
            let read = reading.await.expect("reading does not panic");
            read.map_err(|error| CliError::machine(self.file.to_string_lossy(), &error))?;
        }
        report(&mut session.output, &imported?, self.common.dry_run)
    }
}

impl Zip {
    async fn run(self, session: &mut Session) -> Outcome {
        refuse_terminal(&self.file)?;
        // The directory of an archive is at its end: standard input goes to a file first.
        let kept = match self.file == "-" {
            true => Some(tokio::task::spawn_blocking(spool).await.expect("copying does not panic")?),
            false => None,
        };
        let path = kept.as_ref().map_or_else(|| session.host_path(&self.file), |file| file.path().to_owned());
        let source = Source::Zip(v1::ZipSource { path: Bytes::copy_from_slice(path.as_os_str().as_bytes()) });
        import(session, source, &self.file, &self.common, self.onto, self.message).await
    }
}

/// Copies standard input into a temporary file.
fn spool() -> Result<tempfile::NamedTempFile, CliError> {
    let failed = |error: io::Error| CliError::machine("a temporary file", &error);
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    io::copy(&mut io::stdin(), &mut file).and_then(|_| file.flush()).map_err(failed)?;
    Ok(file)
}

impl Git {
    async fn run(self, session: &mut Session) -> Outcome {
        let local = session.host_path(&self.repository);
        let cloned = match local.exists() {
            true => None,
            false => {
                let is_quiet = session.output.is_json();
                let wanted = CloneOptions { history: self.history, submodules: self.submodules, is_quiet };
                Some(clone(&self.repository, self.reference.as_deref(), wanted).await?)
            }
        };
        let path = cloned.as_ref().map_or(local, |(_, path)| path.clone());
        let reference = self.reference.unwrap_or_default();
        // A clone of one branch or tag has it as its HEAD.
        let is_head = cloned.is_some() && !is_commit_id(&reference);
        let reference = if is_head { String::new() } else { reference };
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        let source = Source::Git(v1::GitSource { path, reference, history: self.history, submodules: self.submodules });
        import(session, source, &self.repository, &self.common, None, None).await
    }
}

struct CloneOptions {
    /// Maximum number of commits along each line of history; 0 for all.
    history: u64,
    submodules: bool,
    is_quiet: bool,
}

/// Returns whether a reference is the full id of a commit.
fn is_commit_id(reference: &str) -> bool {
    matches!(reference.len(), 40 | 64) && reference.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Clones a repository by the user's own git, with its credentials. All branches and tags are cloned if the reference is a commit id.
async fn clone(
    url: &OsStr,
    reference: Option<&str>,
    wanted: CloneOptions,
) -> Result<(tempfile::TempDir, PathBuf), CliError> {
    let shown = url.to_string_lossy().into_owned();
    if !shown.contains("://") && !shown.contains(':') {
        return Err(
            CliError::usage(format!("{shown} is not there")).hint("name a repository, or a URL that git can clone")
        );
    }
    let folder = tempfile::tempdir().map_err(|error| CliError::machine("a temporary directory", &error))?;
    let path = folder.path().join("clone.git");
    let commit = reference.filter(|reference| is_commit_id(reference));
    if commit.is_some() && wanted.submodules {
        let message = "--submodules with a commit id needs a repository on this machine";
        return Err(CliError::usage(message).hint("clone it, check the commit out, and import that directory"));
    }
    let mut git = Program::new("git");
    git.arg("clone").stdin(Stdio::null()).stdout(Stdio::null());
    // Only a clone with a work tree fetches submodules.
    git.arg(if wanted.submodules { "--recurse-submodules" } else { "--bare" });
    if wanted.is_quiet {
        git.arg("--quiet");
    }
    match (commit, reference) {
        // Git clones branches and tags only: the commit may be anywhere in the history.
        (Some(_), _) => {}
        (None, reference) => {
            git.arg("--single-branch");
            if wanted.history > 0 {
                git.arg(format!("--depth={}", wanted.history));
            }
            if let Some(reference) = reference {
                git.args(["--branch", reference]);
            }
        }
    }
    git.arg("--").arg(url).arg(&path);
    let status = tokio::process::Command::from(git).kill_on_drop(true).status().await;
    let status = status.map_err(|error| CliError::machine("git", &error))?;
    match status.success() {
        true => Ok((folder, path)),
        false => Err(CliError::refused(format!("git could not clone {shown}"))),
    }
}

fn refuse_terminal(file: &OsStr) -> Result<(), CliError> {
    match file == "-" && io::stdin().is_terminal() {
        true => Err(CliError::usage("an archive is not read from a terminal").hint("name a file, or pipe one")),
        false => Ok(()),
    }
}

fn host_bytes(session: &Session, path: &OsStr) -> Bytes {
    Bytes::copy_from_slice(session.host_path(path).as_os_str().as_bytes())
}

fn options(
    source: Source,
    named: &OsStr,
    common: &Common,
    onto: Option<String>,
    message: Option<String>,
) -> Result<v1::ImportOptions, CliError> {
    let workspace_id = match &common.workspace {
        Some(name) => name.clone(),
        None => {
            name_of(named).ok_or_else(|| CliError::usage("the workspace needs a name").hint("pass --workspace NAME"))?
        }
    };
    let message = message.unwrap_or_else(|| format!("import {}", Path::new(named).display()));
    let (onto, dry_run) = (onto.unwrap_or_default(), common.dry_run);
    Ok(v1::ImportOptions { source: Some(source), workspace_id, onto, dry_run, message, ..Default::default() })
}

/// Derives the name of a workspace from a file, a directory or a URL. Returns `None` if no usable character is left.
fn name_of(source: &OsStr) -> Option<String> {
    let text = source.to_string_lossy();
    let last = text.trim_end_matches('/').rsplit(['/', ':']).next()?;
    let stem = [".tar.gz", ".tar.xz", ".tar.zst", ".tgz", ".txz", ".tzst", ".tar", ".zip", ".git"]
        .iter()
        .find_map(|ending| last.strip_suffix(ending))
        .unwrap_or(last);
    let plain: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let plain = plain.trim_matches(['-', '.']).to_owned();
    (!plain.is_empty()).then_some(plain)
}

async fn import(
    session: &mut Session,
    source: Source,
    named: &OsStr,
    common: &Common,
    onto: Option<String>,
    message: Option<String>,
) -> Outcome {
    let options = options(source, named, common, onto, message)?;
    let imported = call(session, options, None).await?;
    report(&mut session.output, &imported, common.dry_run)
}

async fn call(
    session: &mut Session,
    options: v1::ImportOptions,
    pieces: Option<tokio::sync::mpsc::Receiver<Bytes>>,
) -> Result<v1::ImportResult, CliError> {
    use v1::import_tree_request::Event;
    let mut client = session.client_of_new_store().await?;
    session.interrupts.say("nothing was imported");
    let message = |event| v1::ImportTreeRequest { event: Some(event) };
    let first = tokio_stream::once(message(Event::Options(options)));
    match pieces {
        Some(pieces) => {
            let data = ReceiverStream::new(pieces).map(move |piece| message(Event::Data(piece)));
            drive(&session.output, client.exchange.import_tree(first.chain(data))).await
        }
        None => drive(&session.output, client.exchange.import_tree(first)).await,
    }
}

fn report(output: &mut Output, imported: &v1::ImportResult, dry_run: bool) -> Outcome {
    let counts = imported.report.clone().unwrap_or_default();
    let workspace = imported.workspace.strip_prefix("workspaces/").unwrap_or(&imported.workspace);
    let mut line = counts_line("imported", &counts);
    line["workspace"] = json!(workspace);
    line["snapshot"] = json!(text::id(&imported.snapshot));
    line["created"] = json!(imported.created);
    line["dry_run"] = json!(dry_run);
    output.emit(&line)?;
    let word = if dry_run { "would import" } else { "imported" };
    output.done(format!("{word} {}", words(&counts)))?;
    if !dry_run {
        let what = if imported.created { "new workspace" } else { "workspace" };
        output.done(format!(
            "{what} {} at {}",
            paint(style::WORKSPACE, text::printable(workspace)),
            text::short(&imported.snapshot)
        ))?;
    }
    notices(output, &counts)?;
    if imported.created {
        output.remark(format!("`amalgam checkout {workspace}@ DIR --workspace {workspace}` gets its files"))?;
    }
    Ok(Exit::OK)
}

/// Returns the JSON line of the counts, of the type `kind`.
pub fn counts_line(kind: &str, counts: &v1::ExchangeReport) -> Value {
    let notice =
        |notice: &v1::ExchangeNotice| json!({"what": notice.what, "count": notice.count, "examples": notice.examples});
    let fields = json!({
        "files": counts.files,
        "directories": counts.directories,
        "symlinks": counts.symlinks,
        "hard_links": counts.hard_links,
        "specials": counts.specials,
        "removed": counts.removed,
        "bytes": counts.bytes,
        "snapshots": counts.snapshots,
        "notices": counts.notices.iter().map(notice).collect::<Vec<_>>(),
    });
    lines::line(kind, fields)
}

/// Describes the counts: files, bytes and, if there are several, snapshots.
pub fn words(counts: &v1::ExchangeReport) -> String {
    let files = format!("{} ({})", text::plural(counts.files, "file"), text::bytes(counts.bytes));
    match counts.snapshots {
        0 | 1 => files,
        snapshots => format!("{}, {files}", text::plural(snapshots, "snapshot")),
    }
}

/// Prints conversions and omissions.
pub fn notices(output: &mut Output, counts: &v1::ExchangeReport) -> Result<(), CliError> {
    for notice in &counts.notices {
        let example = notice.examples.first().filter(|example| !example.is_empty());
        let example = example.map_or_else(String::new, |example| format!(", for example {}", text::printable(example)));
        output.remark(format!("{} ({}{example})", notice.what, text::count(notice.count)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_named_after_their_sources() {
        for (source, name) in [
            ("linux-6.1.tar.xz", Some("linux-6.1")),
            ("/a/b/project.git/", Some("project")),
            ("https://host/x/project.git", Some("project")),
            ("git@host:project", Some("project")),
            ("some dir", Some("some-dir")),
            ("-", None),
            ("/", None),
        ] {
            assert_eq!(name_of(OsStr::new(source)).as_deref(), name, "{source}");
        }
        for image in ["debian", "debian:12", "host:5000/team/debian:12", "host/debian@sha256:0123"] {
            assert_eq!(image_name(image), "debian", "{image}");
        }
        assert_eq!(image_name(&format!("sha256:{}", "0123456789abcdef".repeat(4))), "0123456789ab");
        assert_eq!(image_name("sha256:12"), "12");
    }

    #[test]
    fn the_socket_of_the_engine_is_found_as_docker_finds_it() {
        let with = |name: &'static str, value: &'static str| {
            docker_socket(move |asked| (asked == name).then(|| OsString::from(value)))
        };
        assert_eq!(with("DOCKER_HOST", "unix:///run/d.sock").expect("a path"), PathBuf::from("/run/d.sock"));
        assert!(with("DOCKER_HOST", "tcp://host:2375").is_err());
        assert_eq!(with("XDG_RUNTIME_DIR", "/nowhere").expect("a path"), PathBuf::from("/var/run/docker.sock"));
    }
}
