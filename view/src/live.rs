//! What a workspace does that an ordinary file system does not: freeze while it is in use, go to another state, close and
//! come back.

use amalgam_engine::backend::Durability;
use amalgam_engine::work::Stat;
use amalgam_engine::workspace::{Change, Committed, JournalPlace, WorkspaceName, Workspaces};
use amalgam_engine::{Act, Commit, Expect, Landed, RefName, RootId, SnapshotId, TreePath, WorkingTree};
use tracing::debug;

use crate::attributes::Kind;
use crate::error::{Error, Result};
use crate::exchange::{Differing, Exchange};
use crate::journal::{Edit, Journal};
use crate::notice::Notice;
use crate::view::{Live, View};

/// A journal that is shorter is not worth a checkpoint.
const GARBAGE_BYTES_MIN: u64 = 1 << 20;

/// Files that stand for conflicts again, as somebody found who looked at a fork of the tree.
pub struct Folding {
    /// What was looked at.
    pub seen: WorkingTree,
    /// The tree that has conflicts in their place.
    pub root: RootId,
    /// Where.
    pub paths: Vec<TreePath>,
}

/// A state of the view, on its way to the store.
pub struct Committing {
    /// The tree as it was.
    pub tree: WorkingTree,
    /// Where in the journal it ends.
    place: JournalPlace,
}

/// What going to another state came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// How many paths became something else.
    pub changed: usize,
}

/// A state of a view, known by where its journal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(Option<(u64, u64)>);

impl Live {
    fn moment(&self) -> Moment {
        Moment(self.journal.as_ref().map(Journal::place))
    }
}

impl View {
    /// A fork of the tree as it is now, in constant time.
    pub fn fork(&self) -> WorkingTree {
        self.shared.live.read().tree.fork()
    }

    /// The snapshot that the next commit follows.
    pub fn base(&self) -> Option<SnapshotId> {
        self.shared.live.read().tree.base()
    }

    /// Whether nothing was changed since then.
    pub fn is_clean(&self) -> bool {
        self.shared.live.read().is_clean()
    }

    /// Commits what the view holds at this moment. Writers go on meanwhile; what they do is not part of it.
    pub fn commit(
        &self,
        workspaces: &Workspaces,
        name: &WorkspaceName,
        change: &Change,
        act: &Act,
        action: &str,
    ) -> Result<Committed> {
        self.commit_folded(workspaces, name, change, act, action, None)
            .inspect_err(|error| debug!(workspace = %name, "commit of a view failed: {error}"))
    }

    /// The same, with conflicts in the place of files that stand for them, where these are still what they were when somebody looked.
    pub fn commit_folded(
        &self,
        workspaces: &Workspaces,
        name: &WorkspaceName,
        change: &Change,
        act: &Act,
        action: &str,
        folding: Option<&Folding>,
    ) -> Result<Committed> {
        let _one = self.shared.freezing.lock();
        let done_before = act.request.as_ref().map(|request| workspaces.store().find_request(request)).transpose()?;
        let committing = self.begin_commit(folding)?;
        let change = Change { journaled: Some(committing.place), ..change.clone() };
        let (committed, landed) = workspaces.commit_fork(name, &committing.tree, &change, act, action)?;
        if done_before.flatten().is_some() {
            // What it committed then is not what is here now: everything stays as it is, in the tree and in the journal.
            return Ok(committed);
        }
        let is_new = landed.is_some();
        self.end_commit(&committing, committed.snapshot, landed)?;
        let is_durable = act.durability == Durability::Durable;
        let is_long = self.shared.live.read().journal.as_ref().is_some_and(Journal::is_long);
        if is_durable || is_long {
            if !(is_durable && is_new) {
                // What this commit came to may be an earlier one, and on no disk yet.
                workspaces.store().sync()?;
            }
            self.move_base()?;
        }
        Ok(committed)
    }

    /// The state of this moment, and a journal that begins with it.
    fn begin_commit(&self, folding: Option<&Folding>) -> Result<Committing> {
        let mut live = self.shared.live.write();
        if let Some(folding) = folding {
            self.fold(&mut live, folding)?;
        }
        let place = live.journal.as_mut().ok_or(Error::ReadOnly)?.turn()?;
        Ok(Committing { tree: live.tree.fork(), place })
    }

    /// Puts conflicts in the place of files that stand for them. The journal need not know: a file is folded again by the next commit.
    fn fold(&self, live: &mut Live, folding: &Folding) -> Result<()> {
        for path in &folding.paths {
            let (seen, now) = (folding.seen.stat(path)?, live.tree.stat(path)?);
            let alike = |one: &Stat, other: &Stat| {
                let told = |stat: &Stat| (stat.kind, stat.mode, stat.mtime, stat.size, stat.links);
                told(one) == told(other)
            };
            if !seen.zip(now).is_some_and(|(seen, now)| now.kind == Kind::File && now.links == 1 && alike(&seen, &now))
            {
                continue;
            }
            live.tree.take_over(path, folding.root)?;
            live.forget_seen(path);
            if let Some(ino) = live.known(path) {
                // It shows the same bytes as before.
                self.shared.watchers.tell(None, || Notice::Attributes(ino));
            }
        }
        Ok(())
    }

    /// That state is a snapshot now: only what was edited since stays dirty, and only that in the journal.
    fn end_commit(&self, committing: &Committing, snapshot: SnapshotId, landed: Option<Landed>) -> Result<()> {
        let mut live = self.shared.live.write();
        if let Some(landed) = landed {
            live.tree.settle(landed)?;
        }
        let Some(journal) = live.journal.as_mut() else { return Ok(()) };
        let told = journal.append(&Edit::Landed { snapshot }, self.now(), &[]);
        journal.landed(committing.place, Some(snapshot), Some(snapshot));
        match told {
            // The commit is done, and says itself where in the journal it was taken.
            Err(error) if error.is_full() => {
                debug!("no room for the journal's record of a commit");
                Ok(())
            }
            told => told.map(drop),
        }
    }

    /// Moves the journal's base to where it can be, without holding the view still. What it names must be on disk: a base that
    /// is not in the store after a power cut would lose what a sync had acknowledged before.
    fn move_base(&self) -> Result<()> {
        let moving = self.shared.live.write().journal.as_mut().and_then(Journal::take_move);
        let Some((directory, base)) = moving else { return Ok(()) };
        if let Err(error) = base.write(&directory) {
            if !error.is_full() {
                return Err(error);
            }
            // Once it is written, what was written before it makes room.
            self.shared.live.write().journal.iter_mut().for_each(Journal::release_room);
            base.write(&directory)?;
        }
        if let Some(journal) = self.shared.live.write().journal.as_mut() {
            journal.moved(&base);
        }
        base.remove_earlier(&directory)
    }

    /// Writes the tree to the store without committing it, under a name of its own, so that the journal can begin anew.
    pub fn checkpoint(&self, reference: &RefName, act: &Act) -> Result<()> {
        let _one = self.shared.freezing.lock();
        let committing = self.begin_commit(None)?;
        let head = committing.tree.base();
        let store = committing.tree.store().clone();
        let stands = store.read_ref(reference)?.and_then(|value| value.target);
        let stands = stands.map(|target| SnapshotId::from_bytes(target.hash));
        let commit = Commit::new(reference, "uncommitted work of a view")
            .by(act.actor.clone(), act.time)
            .expecting(stands.map_or(Expect::Absent, Expect::At));
        let landed = committing.tree.freeze().commit(commit)?;
        let state = landed.done.snapshot;
        let mut live = self.shared.live.write();
        live.tree.settle(landed)?;
        // The next commit follows what it would have followed.
        live.tree.rebase(head);
        if let Some(journal) = live.journal.as_mut() {
            journal.landed(committing.place, Some(state), head);
        }
        drop(live);
        self.move_base()
    }

    /// How many bytes the journal has that a recovery would read; 0 of a view that refuses changes.
    pub fn journal_bytes(&self) -> u64 {
        self.shared.live.read().journal.as_ref().map_or(0, Journal::bytes)
    }

    /// Gives back the room that the journal has set aside for later edits, but for those that free room. Returns whether there was any.
    pub fn release_ahead(&self) -> bool {
        self.shared.live.write().journal.as_mut().is_some_and(Journal::release_ahead)
    }

    /// Whether so much was written that a checkpoint is due.
    pub fn is_checkpoint_due(&self) -> bool {
        let live = self.shared.live.read();
        live.journal.as_ref().is_some_and(|journal| journal.bytes() > self.shared.options.checkpoint_bytes)
    }

    /// Whether most of the journal is of files that were removed or written anew since: a checkpoint would make room.
    pub fn is_mostly_garbage(&self) -> Result<bool> {
        let (tree, bytes) = {
            let live = self.shared.live.read();
            (live.tree.fork(), live.journal.as_ref().map_or(0, Journal::bytes))
        };
        if bytes < GARBAGE_BYTES_MIN {
            return Ok(false);
        }
        let mut needed_bytes = 0;
        for path in tree.edited() {
            let edited = tree.stat(&path)?.filter(|stat| stat.entry.is_none());
            needed_bytes += edited.map_or(0, |stat| stat.size);
        }
        Ok(needed_bytes < bytes / 2)
    }

    /// Goes to another state while in use. Files whose bytes differ become other inodes, and whoever holds the old ones goes
    /// on with them; directories keep theirs. Returns the tree as it was just before.
    ///
    /// `head` is the snapshot that the next commit follows; until [`settled_at`](Self::settled_at) says that what was
    /// there before is safe, the journal can still bring it back.
    pub fn go_to(&self, state: SnapshotId, head: Option<SnapshotId>) -> Result<(WorkingTree, Restored)> {
        self.go_from(&mut self.shared.live.write(), state, head)
    }

    /// The same, unless something was changed since a moment; nothing then.
    pub fn go_to_unless_changed(
        &self,
        since: Moment,
        state: SnapshotId,
        head: Option<SnapshotId>,
    ) -> Result<Option<(WorkingTree, Restored)>> {
        let mut live = self.shared.live.write();
        match live.moment() == since {
            true => self.go_from(&mut live, state, head).map(Some),
            false => Ok(None),
        }
    }

    /// The state that the view is in now: another one after each change.
    pub fn moment(&self) -> Moment {
        self.shared.live.read().moment()
    }

    fn go_from(&self, live: &mut Live, state: SnapshotId, head: Option<SnapshotId>) -> Result<(WorkingTree, Restored)> {
        live.demand_writable()?;
        let before = live.tree.fork();
        let now = self.now();
        let mut after = WorkingTree::open(before.store(), state)?;
        let differing = Differing::between(&before, &after)?;
        let restored = Restored { changed: differing.len() };
        let exchange = Exchange::new(self, live, &after, differing)?;
        // From here on nothing may fail: the journal has it.
        live.journal.as_mut().ok_or(Error::ReadOnly)?.depart(state, head, now)?;
        after.rebase(head);
        exchange.apply(self, live);
        live.tree = after;
        live.inodes.all_changed();
        Ok((before, restored))
    }

    /// Shows another snapshot in a view that refuses changes, while it is in use.
    pub fn show(&self, snapshot: SnapshotId) -> Result<Restored> {
        let mut live = self.shared.live.write();
        let live = &mut *live;
        if live.journal.is_some() {
            return Err(Error::Invalid("a view with changes of its own goes to a snapshot by a restore"));
        }
        let before = live.tree.fork();
        let after = WorkingTree::open(before.store(), snapshot)?;
        let differing = Differing::between(&before, &after)?;
        let restored = Restored { changed: differing.len() };
        Exchange::new(self, live, &after, differing)?.apply(self, live);
        live.tree = after;
        live.inodes.all_changed();
        Ok(restored)
    }

    /// What the view went away from is kept elsewhere now. `head` has the tree that it went to, and is what the next commit
    /// follows.
    pub fn settled_at(&self, head: SnapshotId) -> Result<()> {
        let _one = self.shared.freezing.lock();
        let mut live = self.shared.live.write();
        live.tree.rebase(Some(head));
        let clean = live.tree.is_clean();
        let Some(journal) = live.journal.as_mut() else { return Ok(()) };
        journal.append(&Edit::Landed { snapshot: head }, self.now(), &[])?;
        if !clean {
            return Ok(());
        }
        let place = journal.turn()?;
        journal.landed(place, Some(head), Some(head));
        let store = live.tree.store().clone();
        drop(live);
        store.sync()?;
        self.move_base()
    }

    /// Ends the view: everything is on disk, and the next one shows the same numbers and times. Without uncommitted work
    /// nothing is left of the journal. One that has failed is let go of as it is: the next view has what is on disk. After an
    /// error the view goes on.
    pub fn close(&self) -> Result<()> {
        if self.has_failed() {
            self.shared.live.write().journal = None;
            return Ok(());
        }
        self.sync()?;
        let _one = self.shared.freezing.lock();
        if !self.is_read_only() {
            // What was committed may not be on disk yet, and from now on no journal has it.
            let store = self.shared.live.read().tree.store().clone();
            store.sync()?;
            self.move_base()?;
        }
        let _sync = self.shared.syncing.lock();
        let live = &mut *self.shared.live.write();
        let Some(journal) = &live.journal else { return Ok(()) };
        // Somebody may have written since; from now on nobody does.
        let unsynced = journal.unsynced()?;
        let is_needed = !journal.is_at_head() || !(live.is_clean() || journal.is_empty());
        let synced = unsynced.sync();
        live.end_sync(&unsynced, synced)?;
        if let (false, Some(journal)) = (is_needed, &live.journal) {
            journal.remove()?;
        }
        if let Some(mut journal) = live.journal.take() {
            journal.release_room();
            // Without it the next view takes numbers and times from the tree, as after a crash.
            Journal::remember(journal.directory(), &live.inodes).ok();
        }
        Ok(())
    }
}

impl Live {
    fn is_clean(&self) -> bool {
        self.tree.is_clean() && self.journal.as_ref().is_none_or(Journal::is_at_head)
    }
}
