//! Files that are at another path in one tree than in another, with the same contents.

use amalgam_engine::object::Node;
use amalgam_engine::{Change, DiffOptions, Entry, RootId, What, diff_with_renames, list_directory};
use amalgam_materializer::Rename;

use super::States;
use crate::error::Result;

/// The name of a Git repository inside a working directory.
const GIT: &[u8] = b".git";

impl States {
    /// Returns the files that were renamed between two trees, one by one. Files in `.git` are left out.
    pub(crate) fn renamed_files(&self, before: Option<RootId>, after: Option<RootId>) -> Result<Vec<Rename>> {
        let options = DiffOptions { without_git: true, ..DiffOptions::default() };
        let (mut open, mut renamed) = (Vec::new(), Vec::new());
        for change in diff_with_renames(&self.context.store, before, after, options)? {
            if let (What::Renamed { from }, Some(entry)) = (change.what, change.after) {
                open.push((Rename { from, to: change.path }, entry));
            }
        }
        while let Some((moved, entry)) = open.pop() {
            // All files of a directory that was renamed as a whole.
            let Node::Directory(contents) = entry.node else {
                renamed.push(moved);
                continue;
            };
            for item in list_directory(&self.context.store, contents)? {
                let (name, entry) = item?;
                if name.as_bytes() == GIT {
                    continue;
                }
                open.push((Rename { from: moved.from.join(&name), to: moved.to.join(&name) }, entry));
            }
        }
        renamed.sort_by(|a, b| a.to.cmp(&b.to));
        Ok(renamed)
    }
}

/// Returns whether a change adds or removes a directory.
pub(crate) fn is_directory(change: &Change) -> bool {
    let is_directory = |entry: &Entry| matches!(entry.node, Node::Directory(_));
    match (&change.before, &change.after) {
        (Some(entry), None) | (None, Some(entry)) => is_directory(entry),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;
    use amalgam_engine::work::RenameMode;
    use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};

    use crate::home::Home;
    use crate::service::Service;
    use crate::states::States;

    #[test]
    fn files_in_git_are_left_out_when_a_directory_around_it_was_renamed() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(1), &[]).expect("opened");
        let (context, name) = (&service.context, WorkspaceName::new("main").expect("a name"));
        let act = context.act("ann");
        context.workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
        let mut tree = context.workspaces.open(&name).expect("open");
        tree.create_directories("old/.git").expect("made");
        tree.write("old/file", b"text").expect("written");
        tree.write("old/.git/config", b"settings").expect("written");
        context.workspaces.commit(&name, &mut tree, &Change::new("before"), &act).expect("committed");
        let before = context.head(&name).expect("a head");
        let mut tree = context.workspaces.open(&name).expect("open");
        tree.rename("old", "new", RenameMode::Replace).expect("renamed");
        context.workspaces.commit(&name, &mut tree, &Change::new("after"), &act).expect("committed");
        let after = context.head(&name).expect("a head");
        let states = States::new(context, &service.rules, &service.conflicts);
        let root = |head| context.head_root(head).expect("a root");
        let renamed = states.renamed_files(root(before), root(after)).expect("compared");
        let renamed: Vec<_> = renamed.iter().map(|one| (one.from.to_string(), one.to.to_string())).collect();
        assert_eq!(renamed, [("old/file".to_owned(), "new/file".to_owned())]);
    }
}
