//! One model, all doors: the same operations through the working tree, the view, FUSE and NFS are accepted and refused alike and end
//! in the same tree, but for times.
//!
//! A door takes operations as values and says which tree they ended in. Another one (the API) joins by an implementation
//! and a line in a list.

mod door;
mod fuse;
mod host;
mod nfs;
mod permissions;
mod tree;
mod view;

use amalgam_engine::object::{EntryKind, Owner};
use amalgam_engine::{TreePath, WorkingTree};
use amalgam_tests::harness::mounting::can_mount;
use amalgam_tests::model::{Op, cases, op, ops};
use proptest::prelude::*;

use door::Door;

/// The largest size or offset that is tried: beyond it is a matter of limits, not of doors.
const OFFSET_MAX: u64 = 1 << 24;

/// An operation as every door can be asked for it; nothing for what some have no words for: states of a tree, names that no
/// path can have, attributes that a kernel keeps from some kinds of files.
fn for_all_doors(op: &Op, now: &WorkingTree) -> Option<Op> {
    let mut op = op.clone();
    let paths: Vec<&[u8]> = match &op {
        Op::SetState { .. } | Op::RemoveState { .. } | Op::SetNow { .. } => return None,
        Op::Link { existing, new } => vec![&existing.0, &new.0],
        Op::Rename { from, to, .. } => vec![&from.0, &to.0],
        Op::Create { path, .. }
        | Op::Write { path, .. }
        | Op::WriteAt { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::PunchHole { path, .. }
        | Op::CreateDirectory { path, .. }
        | Op::CreateDirectories { path }
        | Op::Symlink { path, .. }
        | Op::CreateSpecial { path, .. }
        | Op::Remove { path }
        | Op::RemoveDirectory { path }
        | Op::RemoveAll { path }
        | Op::SetMode { path, .. }
        | Op::SetMtime { path, .. }
        | Op::SetOwner { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. } => vec![&path.0],
    };
    if !paths.iter().all(|path| !path.is_empty() && TreePath::new(*path).is_ok()) {
        return None;
    }
    let kind = |path: &[u8]| now.stat(path).ok().flatten().map(|stat| stat.kind);
    match &mut op {
        Op::Create { mode, .. } | Op::CreateDirectory { mode, .. } | Op::CreateSpecial { mode, .. } => {
            // A file system gives what is made in a set-group-ID directory its group; a working tree knows no such rule.
            return (*mode <= 0o7777 && *mode & 0o2000 == 0).then_some(op);
        }
        Op::SetMode { path, mode } => {
            return (*mode <= 0o7777 && *mode & 0o2000 == 0 && kind(&path.0) != Some(EntryKind::Symlink)).then_some(op);
        }
        Op::WriteAt { offset, .. } | Op::Truncate { size: offset, .. } if *offset > OFFSET_MAX => return None,
        Op::Symlink { target, .. } if target.0.is_empty() || target.0.contains(&0) || target.0.len() > 4_095 => {
            return None;
        }
        Op::SetOwner { owner, .. } => {
            // The view's own owner is stored as none, and the last number means nobody in a call to the kernel.
            *owner = owner.filter(|owner| owner.uid != 0).map(|owner| Owner { gid: owner.gid.min(1_001), ..owner });
        }
        Op::SetXattr { path, name, value } => {
            let takes = matches!(kind(&path.0), None | Some(EntryKind::File | EntryKind::Directory));
            return (takes && name.0.starts_with(b"user.") && !name.0.contains(&0) && value.length <= 65_536)
                .then_some(op);
        }
        Op::RemoveXattr { path, name } => {
            let takes = matches!(kind(&path.0), None | Some(EntryKind::File | EntryKind::Directory));
            return (takes && name.0.starts_with(b"user.") && !name.0.contains(&0)).then_some(op);
        }
        _ => {}
    }
    Some(op)
}

/// Tells one story through the tree and every other door.
fn tell(story: &[Vec<Op>], others: &mut [Box<dyn Door>]) {
    let mut tree = tree::TreeDoor::new();
    for (number, ops) in story.iter().enumerate() {
        for op in ops {
            let Some(op) = for_all_doors(op, &tree.tree()) else { continue };
            let expected = tree.perform(&op);
            for door in others.iter_mut() {
                let answer = door.perform(&op);
                assert_eq!(answer.is_ok(), expected.is_ok(), "{}: {op:?}: {answer:?}, not {expected:?}", door.name());
            }
        }
        // Between batches everything is committed; the last batch is compared as it is.
        if number + 1 < story.len() {
            tree.commit();
            others.iter_mut().for_each(|door| door.commit());
        }
        let expected = door::bare(&tree.tree());
        for door in others.iter_mut() {
            let ours = door.tree();
            if door::bare(&ours) != expected {
                door::explain(&tree.tree(), &ours, door.name());
            }
        }
    }
    others.iter_mut().for_each(|door| door.end());
}

fn story() -> impl Strategy<Value = Vec<Vec<Op>>> {
    prop::collection::vec(ops(op(), 1..40), 1..4)
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_tree_and_the_view_end_in_the_same_tree(story in story()) {
        tell(&story, &mut [Box::new(view::ViewDoor::new())]);
    }
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn every_door_ends_in_the_same_tree(story in story()) {
        if can_mount() {
            tell(&story, &mut [Box::new(view::ViewDoor::new()), Box::new(fuse::FuseDoor::new())]);
        }
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn the_tree_and_nfs_end_in_the_same_tree(story in story()) {
        tell(&story, &mut [Box::new(nfs::NfsDoor::new())]);
    }
}
