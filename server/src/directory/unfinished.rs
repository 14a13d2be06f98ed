//! Notes of checkouts into new directories that are not complete, so that the same command can be run again.
//!
//! A checkout whose client was killed, or whose process died, leaves a half-written directory, which the next checkout would refuse
//! because it is not empty. The note names this directory and the tree that was being written. The next checkout removes the files
//! of the first one and starts again. Files that did not come from that tree belong to the user: then nothing is removed, and the
//! checkout is refused.

use std::fs;
use std::path::{Path, PathBuf};

use amalgam_engine::content::{hole_at, read_at};
use amalgam_engine::object::Node;
use amalgam_engine::{Change, DiffOptions, Entry, RootId, Store, TreePath, What, WorkingTree, diff_roots};
use amalgam_materializer::{
    CaptureOptions, CheckoutOptions, HostDir, Identity, Index, KnownContents, Progress, Rules, Scope, Staging, Times,
    capture, checkout,
};
use amalgam_proto::Reason;
use serde::{Deserialize, Serialize};

use super::Directories;
use crate::error::{Error, Result};

/// The most bytes of a file that are compared at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A checkout that was begun.
#[derive(Serialize, Deserialize)]
struct Note {
    /// The tree that was being written, in hex.
    root: String,
    /// The part that all its temporary names contain.
    token: String,
}

/// The note of a running checkout. It is removed when the checkout succeeds.
pub(super) struct Begun(PathBuf);

impl Begun {
    /// Removes the note: the checkout is complete.
    pub(super) fn finish(self) {
        // If the note stays, the next checkout into an unattached directory empties it, but only if all its files came from the
        // tree.
        let _ = fs::remove_file(self.0);
    }
}

impl Directories {
    /// Writes the note that a tree is about to be written into an empty directory.
    pub(super) fn begin_checkout(&self, host: &HostDir, root: RootId, staging: &Staging<'_>) -> Result<Begun> {
        let file = self.unfinished_file(host.identity());
        let note = Note { root: root.to_string(), token: staging.token() };
        let bytes = serde_json::to_vec(&note).expect("a note is plain data");
        fs::write(&file, &bytes).map_err(Error::io("note that a checkout has begun"))?;
        Ok(Begun(file))
    }

    /// Removes the files that an incomplete checkout left at a path, so that another one can start there.
    pub(super) fn clean_unfinished(&self, path: &Path) -> Result<()> {
        let Ok(host) = HostDir::open(path) else { return Ok(()) };
        let file = self.unfinished_file(host.identity());
        let Some(note) = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok()) else {
            return Ok(());
        };
        if Staging::is_running(&note.token) {
            let message = format!("{} is being written by another checkout; wait until it ends", path.display());
            return Err(Error::new(Reason::Busy, message));
        }
        self.let_go_of_unfinished(host.identity())?;
        let is_whole = self.context.registry.all().iter().any(|record| record.identity() == host.identity());
        let root = RootId::from_hex(&note.root).filter(|root| self.context.store.hold(*root).is_ok());
        if let (Some(root), false) = (root, is_whole) {
            self.remove_written(&host, root, &note.token)?;
        }
        let _ = fs::remove_file(file);
        Ok(())
    }

    /// Detaches a directory whose first checkout was interrupted by the end of the process.
    fn let_go_of_unfinished(&self, identity: Identity) -> Result<()> {
        let _turn = self.context.registry.turn();
        let records = self.context.registry.all();
        let unfinished = records
            .iter()
            .find(|record| record.identity() == identity && record.snapshot().is_none() && record.aim.is_some());
        unfinished.map_or(Ok(()), |record| self.forget_directory(&record.id))
    }

    /// Empties a directory in which everything came from a tree. Refuses one that holds anything else.
    fn remove_written(&self, host: &HostDir, root: RootId, token: &str) -> Result<()> {
        let (store, progress) = (&self.context.store, Progress::default());
        // Files that ignore rules leave out belong to the user, too.
        let (rules, known) = (Rules::everything(), KnownContents::default());
        let mut index = Index::new(host.identity());
        let job = CaptureOptions {
            rules: &rules,
            scope: Scope::All,
            known: &known,
            now: self.context.now(),
            progress: &progress,
        };
        let captured = capture(store, host, &mut index, &job)?;
        let refused = |path: &TreePath| {
            let message = format!(
                "{} holds {path}, which did not come from the checkout that was interrupted there; move it away and run the command \
                 again, or name a new directory",
                host.path().display()
            );
            Error::new(Reason::AlreadyExists, message)
        };
        for change in diff_roots(store, Some(root), Some(captured.root), DiffOptions::default())? {
            let change = change?;
            if !is_written(store, &change, token)? {
                return Err(refused(&change.path));
            }
        }
        let session = store.session();
        let empty = WorkingTree::new(store).freeze().write(&session)?;
        session.write_all_ahead()?;
        let _pin = store.hold(empty)?;
        let job = CheckoutOptions {
            keep_git: false,
            rules: None,
            leave_git_file: false,
            withholds: false,
            paths: None,
            times: Times::Exact,
            source: None,
            pool: None,
            progress: &progress,
        };
        let done = checkout(store, host, &index, empty, &job)?;
        match done.notices.iter().find(|notice| notice.why.is_failure()) {
            Some(notice) => Err(refused(&notice.path)),
            None => Ok(()),
        }
    }

    fn unfinished_file(&self, identity: Identity) -> PathBuf {
        let Identity { device, inode, birth } = identity;
        self.context.registry.unfinished_file(&format!("{device:x}-{inode:x}-{birth:x}"))
    }
}

/// Returns whether a difference from the tree that was being written is an incomplete part of the checkout.
pub(super) fn is_written(store: &Store, change: &Change, token: &str) -> Result<bool> {
    match (&change.what, &change.before, &change.after) {
        (What::Removed | What::Metadata, _, _) => Ok(true),
        (What::Added, _, _) => Ok(change
            .path
            .names()
            .next_back()
            .is_some_and(|name| !token.is_empty() && Staging::has_token(&name, token))),
        (What::Modified, Some(whole), Some(part)) => is_beginning(store, whole, part),
        _ => Ok(false),
    }
}

/// Returns whether a file is a proper prefix of another one.
fn is_beginning(store: &Store, whole: &Entry, part: &Entry) -> Result<bool> {
    let (Node::File { size, content }, Node::File { size: length, content: there }) = (&whole.node, &part.node) else {
        return Ok(false);
    };
    if length >= size {
        return Ok(false);
    }
    let mut offset = 0;
    while offset < *length {
        // A file may have a hole of many exabytes.
        let hole = hole_at(store, content, *size, offset)?.min(hole_at(store, there, *length, offset)?);
        if hole > 0 {
            offset += hole;
            continue;
        }
        let block = usize::try_from(length - offset).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let (mut expected, mut found) = (vec![0; block], vec![0; block]);
        read_at(store, content, *size, offset, &mut expected)?;
        read_at(store, there, *length, offset, &mut found)?;
        if expected != found {
            return Ok(false);
        }
        offset += block as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use amalgam_engine::{RefMove, Time};

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    #[test]
    fn a_directory_with_ignored_files_of_the_user_is_not_emptied() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let store = &service.context.store;
        let mut tree = WorkingTree::new(store);
        let session = store.session();
        let path = around.path().join("main");
        fs::create_dir_all(path.join("build")).expect("made");
        for (name, text) in [(".amalgamignore", "build\n"), ("a", "text\n")] {
            tree.write(name, text.as_bytes()).expect("written");
            fs::write(path.join(name), text).expect("written");
        }
        let root = tree.freeze().write(&session).expect("written");
        session.commit(root, RefMove::default()).expect("committed");
        let host = HostDir::open(&path).expect("opened");
        // The process died before it removed the note.
        let staging = Staging::new();
        service.directories.begin_checkout(&host, root, &staging).expect("begun");
        drop(staging);
        fs::write(path.join("build/out"), "of the user").expect("written");
        let refused = service.directories.clean_unfinished(&path).expect_err("a file of the user is there");
        assert_eq!(refused.reason(), Reason::AlreadyExists, "{refused}");
        assert!(path.join("a").exists() && path.join("build/out").exists());

        fs::remove_dir_all(path.join("build")).expect("removed");
        service.directories.clean_unfinished(&path).expect("everything came from the checkout");
        assert_eq!(fs::read_dir(&path).expect("read").count(), 0);
    }
}
