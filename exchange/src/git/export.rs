//! Exports snapshots as git commits.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use amalgam_engine::content;
use amalgam_engine::object::{Content, DirectoryRef, Entry, Node, Snapshot};
use amalgam_engine::{Progress, SnapshotId, Store, Time, TreePath};

use super::claims::ClaimCheck;
use super::commit::{Commit, person};
use super::fast_import::{CommitRef, FastImport, git, quoted, run};
use super::git_entry::{GitEntry, contents, git_entry};
use super::history::GitHistory;
use super::keys::KEY_SUBMODULES;
use super::objects::{Oid, Repository, open_error};
use crate::error::{Error, Result};
use crate::paired::{PairedEntry, paired_entries};
use crate::report::Report;
use crate::tar::NOTE_STATE;
use crate::walk::{VisitedEntry, read_and_visit};

const READ_BYTES: u64 = 4 << 20;
/// The largest commit or tree of the target repository that is read, in bytes.
const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Blobs that are read together.
const BATCH_BLOBS: usize = 512;
/// The largest file of a mirror, in bytes. A file may be a hole of many exabytes, which git would write as zeros.
const MIRRORED_FILE_BYTES_MAX: u64 = 4 << 30;
/// Blobs that are remembered, so that equal ones are written once.
const REMEMBERED_MAX: usize = 1_000_000;
/// The list of snapshots and their commits, in the directory of the repository.
const EXPORTED: &str = "amalgam/exported";

const NOTE_SIGNED: &str = "commits with signatures or other extra headers were written without them";
const NOTE_DATE: &str = "times before 1970 became 1970";
const NOTE_PERSON: &str = "names that git does not accept were changed";
const NOTE_RANGE: &str = "snapshots before the range are not in the repository, and no commit rests on them";
const NOTE_CLAIM: &str = "snapshots whose metadata names a git commit with another tree became new commits";
const NOTE_OTHER_ID: &str = "commits that were imported from git got another id";

/// Maps names of authors to git identities.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Authors and their git identities: `Name <address>`.
    pub map: HashMap<String, String>,
    /// The part behind the `@` for authors without an address; `localhost` when empty.
    pub domain: String,
}

/// Options of an export.
#[derive(Clone, Debug)]
pub struct GitExport {
    /// The branch to move, without `refs/heads/`.
    pub branch: String,
    /// How far back the export goes.
    pub history: GitHistory,
    /// Leaves this snapshot and its history out. A commit rests on one of them only if the repository has it.
    pub since: Option<SnapshotId>,
    /// How author names become git identities.
    pub identity: Identity,
    /// Makes a bare repository where there is none.
    pub create: bool,
    /// Only this library writes the repository: the branch follows the snapshot wherever it moves, also to commits that do not
    /// continue it, no configuration and no hooks of the user apply, and files above 4 GiB are refused.
    pub is_mirror: bool,
    /// Counts what would be written, and writes nothing.
    pub dry_run: bool,
}

/// Result of an export.
#[derive(Clone, Debug)]
pub struct GitExportReport {
    /// The commit that the branch points at now, in hexadecimal digits; empty after a dry run.
    pub commit: String,
    /// Commits that were in the repository already.
    pub reused: u64,
    /// Counts, and notices about data that git cannot represent.
    pub report: Report,
}

/// Writes a snapshot and its history to a branch of a repository.
pub fn export_git(
    store: &Store,
    head: SnapshotId,
    repository: &Path,
    options: &GitExport,
    progress: &Progress,
) -> Result<GitExportReport> {
    let target = open(repository, options)?;
    let mut exporter = Exporter {
        store,
        known: target.as_ref().map(|target| target.exported()).transpose()?.unwrap_or_default(),
        claims: target.as_ref().map(|_| claim_check(store, repository)).transpose()?,
        confirmed: Vec::new(),
        written: HashMap::new(),
        blobs: HashMap::new(),
        next_mark: 1,
        options,
        report: Report::default(),
    };
    let (order, reused) = exporter.plan(head, target.as_ref(), progress)?;
    progress.snapshots_total.store(order.len() as u64, Ordering::Relaxed);
    if options.dry_run {
        let report = Report { snapshots: order.len() as u64, ..exporter.report };
        return Ok(GitExportReport { commit: String::new(), reused, report });
    }
    let target = target.expect("only a dry run goes without a repository");
    let mut import = FastImport::start(repository, options.is_mirror)?;
    for snapshot in &order {
        progress.check()?;
        exporter.commit(&mut import, *snapshot, progress)?;
        progress.snapshots.fetch_add(1, Ordering::Relaxed);
    }
    let tip = exporter.target(head).expect("the head was exported, or is known");
    import.write(format!("reset refs/heads/{}\nfrom {tip}\n\n", options.branch).as_bytes())?;
    let marks: HashMap<u64, Oid> = import.finish()?.into_iter().collect();
    let oid = |target: CommitRef| match target {
        CommitRef::Commit(oid) => Ok(oid),
        CommitRef::Mark(mark) => marks.get(&mark).copied().ok_or_else(|| Error::Program {
            program: "git fast-import",
            why: "it did not say which commit it wrote".to_owned(),
        }),
    };
    let mut new = Vec::new();
    for snapshot in &order {
        let commit = oid(exporter.target(*snapshot).expect("it was written"))?;
        let imported = Commit::of_snapshot(&*store.snapshot(*snapshot)?).map(|(oid, _)| oid);
        if imported.is_some_and(|imported| imported != commit) {
            exporter.report.note(NOTE_OTHER_ID, snapshot.to_string().as_bytes());
        }
        new.push((*snapshot, commit));
    }
    new.append(&mut exporter.confirmed);
    target.remember(&new)?;
    let mut report = exporter.report;
    report.snapshots = order.len() as u64;
    Ok(GitExportReport { commit: oid(tip)?.to_string(), reused, report })
}

/// Returns the check of claims against a repository that is written to.
fn claim_check<'a>(store: &'a Store, path: &Path) -> Result<ClaimCheck<'a>> {
    Ok(ClaimCheck::new(store, Repository::open(path, OBJECT_BYTES_MAX)?.reader()))
}

/// A repository that is written to.
struct TargetRepository {
    repository: gix::Repository,
}

fn open(path: &Path, options: &GitExport) -> Result<Option<TargetRepository>> {
    let branch = format!("refs/heads/{}", options.branch);
    let parent = path.parent().filter(|parent| parent.is_dir()).unwrap_or_else(|| Path::new("/"));
    run(git(parent).args(["check-ref-format", &branch])).map_err(|_| Error::Invalid {
        what: "branch",
        why: format!("`{}` is no name for a branch of git", options.branch),
    })?;
    if !path.exists() {
        if options.dry_run {
            return Ok(None);
        }
        if !options.create {
            let why = format!("{} is not there; make it by `git init`, or allow the export to", path.display());
            return Err(Error::Invalid { what: "git repository", why });
        }
        run(git(parent).args(["init", "--quiet", "--bare", "--initial-branch", &options.branch]).arg(
            std::path::absolute(path).map_err(|source| Error::host(format!("find {}", path.display()), source))?,
        ))?;
    }
    let repository = gix::open::Options::isolated().open(path).map_err(|error| open_error(path, &error))?;
    let repository = repository.to_thread_local();
    if options.branch == "HEAD" {
        return Err(Error::Invalid { what: "branch", why: "`HEAD` is no name for a branch".to_owned() });
    }
    let head = repository.head_name().ok().flatten();
    let is_head = !repository.is_bare() && head.is_some_and(|head| head.as_bstr() == branch.as_str());
    if is_head || is_in_worktree(&repository, &branch) {
        let why = format!(
            "`{}` is checked out in {} or in a worktree of it, whose files would not follow; export to another branch and merge it there",
            options.branch,
            path.display()
        );
        return Err(Error::Invalid { what: "branch", why });
    }
    Ok(Some(TargetRepository { repository }))
}

/// Returns whether a linked worktree of a repository has a branch checked out.
fn is_in_worktree(repository: &gix::Repository, branch: &str) -> bool {
    let Ok(worktrees) = std::fs::read_dir(repository.common_dir().join("worktrees")) else { return false };
    worktrees.flatten().any(|worktree| {
        let head = std::fs::read_to_string(worktree.path().join("HEAD")).unwrap_or_default();
        head.strip_prefix("ref: ").is_some_and(|name| name.trim_end() == branch)
    })
}

impl TargetRepository {
    fn list(&self) -> PathBuf {
        self.repository.common_dir().join(EXPORTED)
    }

    fn has(&self, oid: Oid) -> bool {
        self.repository.has_object(gix::ObjectId::from_bytes_or_panic(&oid.0))
    }

    /// Reads the list of snapshots that were exported before, with their commits. The commits may no longer be in the repository.
    fn exported(&self) -> Result<HashMap<SnapshotId, Oid>> {
        let text = match fs::read_to_string(self.list()) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(HashMap::new()),
            Err(source) => return Err(Error::host(format!("read {}", self.list().display()), source)),
        };
        let parse = |line: &str| {
            let (snapshot, commit) = line.split_once(' ')?;
            Some((SnapshotId::from_hex(snapshot)?, Oid::from_hex(commit.as_bytes())?))
        };
        Ok(text.lines().filter_map(parse).collect())
    }

    fn remember(&self, new: &[(SnapshotId, Oid)]) -> Result<()> {
        let failed = |source| Error::host(format!("write {}", self.list().display()), source);
        let list = self.list();
        fs::create_dir_all(list.parent().expect("it lies in a directory")).map_err(failed)?;
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&list).map_err(failed)?;
        let lines: String = new.iter().map(|(snapshot, commit)| format!("{snapshot} {commit}\n")).collect();
        file.write_all(lines.as_bytes()).map_err(failed)
    }
}

/// A difference between two trees, as git sees it.
enum Change {
    Remove,
    Set(GitEntry),
}

struct Exporter<'a> {
    store: &'a Store,
    known: HashMap<SnapshotId, Oid>,
    /// Checks which commits snapshots were imported from; `None` without a repository.
    claims: Option<ClaimCheck<'a>>,
    /// Imported snapshots whose commits the repository has.
    confirmed: Vec<(SnapshotId, Oid)>,
    /// The snapshots of this export.
    written: HashMap<SnapshotId, u64>,
    blobs: HashMap<(Content, u64), u64>,
    next_mark: u64,
    options: &'a GitExport,
    report: Report,
}

impl Exporter<'_> {
    fn target(&self, snapshot: SnapshotId) -> Option<CommitRef> {
        let mark = self.written.get(&snapshot).map(|mark| CommitRef::Mark(*mark));
        mark.or_else(|| self.known.get(&snapshot).map(|oid| CommitRef::Commit(*oid)))
    }

    /// Plans the export. Returns the snapshots to write, parents before children, and how many commits of the repository they build
    /// on.
    fn plan(
        &mut self,
        head: SnapshotId,
        target: Option<&TargetRepository>,
        progress: &Progress,
    ) -> Result<(Vec<SnapshotId>, u64)> {
        let left_out = self.left_out(progress)?;
        if left_out.contains(&head) {
            return Err(Error::Invalid {
                what: "range",
                why: "it has no snapshots: its end is in its start".to_owned(),
            });
        }
        let (mut order, mut done, mut reused) = (Vec::new(), HashSet::new(), HashSet::new());
        let depth_max = match self.options.history {
            GitHistory::All => u64::MAX,
            GitHistory::Last(commits) => commits.max(1),
        };
        let mut open = vec![(head, 0, 1)];
        while let Some((id, next, depth)) = open.pop() {
            if done.contains(&id) {
                continue;
            }
            if next == 0 {
                progress.check()?;
                self.find(id, target, progress)?;
            }
            if self.known.contains_key(&id) {
                reused.insert(id);
                continue;
            }
            let snapshot = self.store.snapshot(id)?;
            match snapshot.parents.get(next).filter(|_| depth < depth_max) {
                Some(parent) => {
                    open.push((id, next + 1, depth));
                    // Parents that retention removed are absent.
                    let is_there = self.store.snapshot(*parent).is_ok();
                    if is_there && left_out.contains(parent) {
                        self.find(*parent, target, progress)?;
                        if !self.known.contains_key(parent) {
                            self.report.note(NOTE_RANGE, parent.to_string().as_bytes());
                        }
                    } else if is_there {
                        open.push((*parent, 0, depth + 1));
                    }
                }
                None => {
                    // The walk did not visit parents beyond the depth; a commit keeps those that are in the repository.
                    snapshot.parents.iter().for_each(|parent| self.forget_missing(*parent, target));
                    done.insert(id);
                    order.push(id);
                }
            }
        }
        Ok((order, reused.len() as u64))
    }

    /// Returns the snapshots before the range: the start and its history.
    fn left_out(&self, progress: &Progress) -> Result<HashSet<SnapshotId>> {
        let (mut found, mut open) = (HashSet::new(), Vec::from_iter(self.options.since));
        while let Some(id) = open.pop() {
            progress.check()?;
            if found.insert(id)
                && let Ok(snapshot) = self.store.snapshot(id)
            {
                open.extend(&snapshot.parents);
            }
        }
        Ok(found)
    }

    /// Forgets a snapshot whose commit is not in the repository any more.
    fn forget_missing(&mut self, id: SnapshotId, target: Option<&TargetRepository>) {
        if self.known.get(&id).is_some_and(|oid| !target.is_some_and(|target| target.has(*oid))) {
            self.known.remove(&id);
        }
    }

    /// Adds a snapshot to the known ones if the repository has the commit that it was imported from. Its metadata names
    /// the commit, which counts only if the commit has the snapshot's tree.
    fn find(&mut self, id: SnapshotId, target: Option<&TargetRepository>, progress: &Progress) -> Result<()> {
        self.forget_missing(id, target);
        if let (Some(target), Some(claims)) = (target, &mut self.claims)
            && !self.known.contains_key(&id)
            && let snapshot = self.store.snapshot(id)?
            // The commit has a link where such a snapshot has files.
            && !snapshot.metadata.contains_key(KEY_SUBMODULES)
            && let Some((oid, _)) = Commit::of_snapshot(&snapshot)
            && target.has(oid)
        {
            if claims.has_tree_of(oid, snapshot.root, progress)? {
                self.known.insert(id, oid);
                self.confirmed.push((id, oid));
            } else {
                self.report.note(NOTE_CLAIM, id.to_string().as_bytes());
            }
        }
        Ok(())
    }

    fn mark(&mut self) -> u64 {
        self.next_mark += 1;
        self.next_mark - 1
    }

    fn commit(&mut self, import: &mut FastImport, id: SnapshotId, progress: &Progress) -> Result<()> {
        let snapshot = self.store.snapshot(id)?;
        let parents: Vec<_> =
            snapshot.parents.iter().filter_map(|parent| Some((*parent, self.target(*parent)?))).collect();
        let root = self.store.root(snapshot.root)?;
        if root.state.is_some() {
            self.report.note(NOTE_STATE, b"");
        }
        let before = match parents.first() {
            Some((parent, _)) => contents(&self.store.root(self.store.snapshot(*parent)?.root)?.directory),
            None => None,
        };
        let after = contents(&root.directory);
        self.write_blobs(import, before, after, progress)?;
        let mark = self.mark();
        let branch = &self.options.branch;
        if parents.is_empty() {
            import.write(format!("reset refs/heads/{branch}\n").as_bytes())?;
        }
        import.write(format!("commit refs/heads/{branch}\nmark :{mark}\n").as_bytes())?;
        self.write_words(import, id, &snapshot)?;
        for (at, (_, parent)) in parents.iter().enumerate() {
            let word = if at == 0 { "from" } else { "merge" };
            import.write(format!("{word} {parent}\n").as_bytes())?;
        }
        let mut notes = Report::default();
        let blobs = &self.blobs;
        changes(self.store, before, after, progress, &mut notes, &mut |path, change| {
            progress.add_items(1);
            progress.check()?;
            let path = quoted(path.as_bytes());
            let line = match change {
                Change::Remove => [b"D ", &path[..], b"\n"].concat(),
                Change::Set(GitEntry::Directory(_)) => return Ok(()),
                Change::Set(GitEntry::Gitlink(oid)) => [format!("M 160000 {oid} ").as_bytes(), &path, b"\n"].concat(),
                Change::Set(GitEntry::Symlink(target)) => {
                    let line = [b"M 120000 inline ", &path[..], b"\n"].concat();
                    let data = format!("data {}\n", target.len());
                    [&line[..], data.as_bytes(), &target, b"\n"].concat()
                }
                Change::Set(GitEntry::File { is_executable, size, content }) => {
                    let mode = if is_executable { "100755" } else { "100644" };
                    let blob = blobs.get(&(content, size)).expect("blobs are written before their commit");
                    [format!("M {mode} :{blob} ").as_bytes(), &path, b"\n"].concat()
                }
                Change::Set(GitEntry::OddSymlink { size, content }) => {
                    let blob = blobs.get(&(content, size)).expect("blobs are written before their commit");
                    [format!("M 120000 :{blob} ").as_bytes(), &path, b"\n"].concat()
                }
            };
            import.write(&line)
        })?;
        import.write(b"\n")?;
        self.report.add(&notes);
        self.written.insert(id, mark);
        Ok(())
    }

    /// Writes the blobs of a commit that were not written before.
    fn write_blobs(
        &mut self,
        import: &mut FastImport,
        before: Option<DirectoryRef>,
        after: Option<DirectoryRef>,
        progress: &Progress,
    ) -> Result<()> {
        if self.blobs.len() > REMEMBERED_MAX {
            self.blobs.clear();
        }
        let store = self.store;
        let mut batch = Vec::new();
        changes(store, before, after, progress, &mut Report::default(), &mut |path, change| {
            let (Change::Set(GitEntry::File { size, content, .. })
            | Change::Set(GitEntry::OddSymlink { size, content })) = change
            else {
                return Ok(());
            };
            if self.options.is_mirror && size > MIRRORED_FILE_BYTES_MAX {
                return Err(Error::TooLarge {
                    what: format!("{path}, a file of {size} bytes,"),
                    max: MIRRORED_FILE_BYTES_MAX,
                    hint: "git clients get no files above that; export the workspace as a tar archive",
                });
            }
            if !self.blobs.contains_key(&(content, size)) {
                let mark = self.mark();
                self.blobs.insert((content, size), mark);
                let entry = Entry::new(Node::File { size, content }, 0o644, Time::EPOCH);
                batch.push(VisitedEntry { path: path.clone(), entry, bytes: None });
            }
            if batch.len() >= BATCH_BLOBS {
                self.send_blobs(import, std::mem::take(&mut batch), progress)
            } else {
                Ok(())
            }
        })?;
        self.send_blobs(import, batch, progress)
    }

    fn send_blobs(&mut self, import: &mut FastImport, batch: Vec<VisitedEntry>, progress: &Progress) -> Result<()> {
        let store = self.store;
        read_and_visit(store, batch, &mut |step| {
            progress.check()?;
            let Node::File { size, content } = step.entry.node else { unreachable!("only files are sent") };
            let mark = self.blobs[&(content, size)];
            self.report.files += 1;
            self.report.bytes += size;
            progress.bytes.fetch_add(size, Ordering::Relaxed);
            import.write(format!("blob\nmark :{mark}\n").as_bytes())?;
            import.data(size)?;
            match step.bytes {
                Some(bytes) => import.write(&bytes)?,
                None => {
                    let mut done = 0;
                    while done < size {
                        progress.check()?;
                        let length = (size - done).min(READ_BYTES);
                        import.write(&content::read(store, &content, size, done, length)?)?;
                        done += length;
                    }
                }
            }
            import.write(b"\n")
        })
    }

    fn write_words(&mut self, import: &mut FastImport, id: SnapshotId, snapshot: &Snapshot) -> Result<()> {
        let (author, committer, encoding, message) = match Commit::of_snapshot(snapshot) {
            Some((_, commit)) => {
                if commit.has_more_headers {
                    self.report.note(NOTE_SIGNED, id.to_string().as_bytes());
                }
                let (author, committer) = (self.checked(commit.author), self.checked(commit.committer));
                (author, committer, commit.encoding, commit.message)
            }
            None => {
                let seconds = snapshot.time.0.div_euclid(1_000_000_000);
                if seconds < 0 {
                    self.report.note(NOTE_DATE, id.to_string().as_bytes());
                }
                let line =
                    format!("{} {} +0000", self.options.identity.of(&snapshot.author), seconds.max(0)).into_bytes();
                let mut message = snapshot.message.replace('\0', "").into_bytes();
                if !message.ends_with(b"\n") {
                    message.push(b'\n');
                }
                (line.clone(), line, None, message)
            }
        };
        for (key, value) in [("author", author), ("committer", committer)] {
            import.write(&[key.as_bytes(), b" ", &value[..], b"\n"].concat())?;
        }
        if let Some(encoding) = encoding {
            import.write(&[b"encoding ", &encoding[..], b"\n"].concat())?;
        }
        import.data(message.len() as u64)?;
        import.write(&message)?;
        import.write(b"\n")
    }

    /// Returns the line of an author or committer in a form that fast-import accepts. Notes a change of the name or the date.
    fn checked(&mut self, line: Vec<u8>) -> Vec<u8> {
        let (name, seconds) = person(&line);
        let fields: Vec<_> = line[name.len()..].split(|byte| *byte == b' ').filter(|field| !field.is_empty()).collect();
        let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        let is_time = match fields[..] {
            [seconds, [b'+' | b'-', zone @ ..]] => digits(seconds) && digits(zone),
            _ => false,
        };
        // A line break would begin another command of fast-import: the line is metadata, which anyone can have written.
        let is_name = name.iter().filter(|byte| **byte == b'<').count() == 1
            && name.ends_with(b">")
            && !name.iter().any(|byte| matches!(byte, b'\n' | 0));
        if is_time && is_name {
            return line;
        }
        self.report.note(if is_name { NOTE_DATE } else { NOTE_PERSON }, &line);
        let name = match is_name {
            true => name.to_vec(),
            false => self.options.identity.of(&String::from_utf8_lossy(name)).into_bytes(),
        };
        [&name[..], format!(" {} +0000", seconds.max(0)).as_bytes()].concat()
    }
}

impl Identity {
    /// Returns the git identity of an author.
    fn of(&self, author: &str) -> String {
        let said = self.map.get(author).map_or(author, String::as_str);
        let clean = |text: &str| text.replace(['<', '>', '\n', '\0'], "").trim().to_owned();
        if let Some((name, rest)) = said.split_once('<')
            && let Some(address) = rest.strip_suffix('>')
        {
            return format!("{} <{}>", clean(name), clean(address)).trim_start().to_owned();
        }
        let name = match clean(said) {
            name if name.is_empty() => "unknown".to_owned(),
            name => name,
        };
        let domain = if self.domain.is_empty() { "localhost" } else { &self.domain };
        format!("{name} <{}@{}>", name.replace(char::is_whitespace, "."), clean(domain))
    }
}

/// Calls `tell` with each difference between two directories that git can represent, and notes the others. Fails if there are more
/// paths than the store's limit.
fn changes(
    store: &Store,
    before: Option<DirectoryRef>,
    after: Option<DirectoryRef>,
    progress: &Progress,
    notes: &mut Report,
    tell: &mut impl FnMut(&TreePath, Change) -> Result<()>,
) -> Result<()> {
    let mut open = vec![(TreePath::root(), before, after)];
    let mut count = store.path_count();
    while let Some((above, before, after)) = open.pop() {
        progress.check()?;
        if before.map(|it| it.bare) == after.map(|it| it.bare) {
            continue;
        }
        for paired in paired_entries(store, before, after)? {
            let PairedEntry { name, before, after } = paired?;
            count.add(1)?;
            let path = above.join(&name);
            let was = match before {
                Some(entry) => git_entry(store, &path, &name, &entry, &mut Report::default())?,
                None => None,
            };
            let is = match after {
                Some(entry) => git_entry(store, &path, &name, &entry, notes)?,
                None => None,
            };
            match (was, is) {
                (None, None) => {}
                (Some(GitEntry::Directory(was)), Some(GitEntry::Directory(is))) => open.push((path, was, is)),
                (was, Some(GitEntry::Directory(is))) => {
                    if was.is_some() {
                        tell(&path, Change::Remove)?;
                    }
                    open.push((path, None, is));
                }
                (Some(was), Some(is)) if was == is => {}
                (Some(GitEntry::Directory(_)), Some(is)) => {
                    tell(&path, Change::Remove)?;
                    tell(&path, Change::Set(is))?;
                }
                (_, Some(is)) => tell(&path, Change::Set(is))?,
                (Some(_), None) => tell(&path, Change::Remove)?,
            }
        }
    }
    Ok(())
}
