//! Single promises of undo, redo, restore and status.

use std::fs;
use std::path::Path;

use crate::scratch::{Scratch, can_mount};
use crate::{Copy, assert_same, say, shell};

/// A repository with one commit, protected.
fn repository(scratch: &Scratch) {
    let place = scratch.project();
    shell(
        scratch,
        &place,
        "git init -q . && echo a >a && git add a && git commit -qm a && amalgam init --workspace main",
    );
}

fn read(scratch: &Scratch, name: &str) -> String {
    fs::read_to_string(scratch.project().join(name)).unwrap_or_default()
}

#[test]
fn undo_and_redo_work_when_git_touched_its_index() {
    let scratch = Scratch::new();
    let place = scratch.project();
    repository(&scratch);
    shell(&scratch, &place, "echo b >a && amalgam commit -m 'git moved' && git add a");
    let git = Copy::of(&place).git;
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert!(code == 0 && said.contains("undid commit ") && said.contains("\"git moved\""), "{said}");
    assert!(said.contains("in .git left alone (--with-git includes it)"), "{said}");
    assert_eq!(read(&scratch, "a"), "a\n");
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert!(code == 1 && said.contains("nothing to undo in main"), "{said}");
    assert_same(&Copy::of(&place).git, &git, "of .git");
    for _ in 0..2 {
        shell(&scratch, &place, "amalgam redo");
        assert_eq!(read(&scratch, "a"), "b\n");
        shell(&scratch, &place, "git update-index -q --refresh || true; amalgam undo");
        assert_eq!(read(&scratch, "a"), "a\n");
    }
}

#[test]
fn git_is_undone_and_redone_when_asked_for() {
    let scratch = Scratch::new();
    let place = scratch.project();
    repository(&scratch);
    shell(&scratch, &place, "echo b >a && git commit -qam b && amalgam commit -m b");
    let before = Copy::of(&place);
    let (said, _) = say(&scratch, &place, "amalgam run -- git reset -q --hard HEAD~");
    assert!(said.contains("`amalgam undo --with-git` takes it back, .git included"), "{said}");
    let after = Copy::of(&place);
    shell(&scratch, &place, "amalgam undo --with-git");
    assert_eq!(Copy::of(&place), before);
    shell(&scratch, &place, "amalgam redo --with-git");
    assert_eq!(Copy::of(&place), after);
    // An undo that left .git alone is redone with it.
    shell(&scratch, &place, "amalgam undo");
    assert_eq!(Copy::of(&place).git, after.git);
    assert_eq!(read(&scratch, "a"), "b\n");
    shell(&scratch, &place, "amalgam redo --with-git && amalgam undo --with-git");
    assert_eq!(Copy::of(&place), before);
    // The setting does without the option.
    shell(&scratch, &place, "amalgam redo --with-git && amalgam config set workspace.main.git include && amalgam undo");
    assert_eq!(Copy::of(&place), before);
}

#[test]
fn a_restore_of_a_path_changes_that_path_alone() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo a >a; echo b >b; echo c >c; amalgam init");
    let head = shell(&scratch, &place, "amalgam log -n 1 --json");
    shell(&scratch, &place, "rm a b; echo junk >c; amalgam restore a");
    assert_eq!(
        (read(&scratch, "a"), read(&scratch, "b"), read(&scratch, "c")),
        ("a\n".into(), "".into(), "junk\n".into())
    );
    let (said, code) = say(&scratch, &place, "amalgam status --exit-code");
    assert!(code == 4 && said.contains("M c") && said.contains("D b") && !said.contains("D a"), "{said}");
    assert_eq!(shell(&scratch, &place, "amalgam log -n 1 --json"), head, "the head moved");
    shell(&scratch, &place, "amalgam restore b");
    assert_eq!(read(&scratch, "b"), "b\n");
    shell(&scratch, &place, "amalgam restore c");
    assert_eq!(read(&scratch, "c"), "c\n");
    assert_eq!(say(&scratch, &place, "amalgam status --exit-code").1, 0);
    // Each restore is a step, and so are the edits before them.
    for (c, b, a) in [("junk\n", "b\n", "a\n"), ("junk\n", "", "a\n"), ("junk\n", "", ""), ("c\n", "b\n", "a\n")] {
        shell(&scratch, &place, "amalgam undo");
        assert_eq!(
            (read(&scratch, "c").as_str(), read(&scratch, "b").as_str(), read(&scratch, "a").as_str()),
            (c, b, a)
        );
    }
}

#[test]
fn a_removed_repository_is_restored_by_its_name() {
    let scratch = Scratch::new();
    let place = scratch.project();
    repository(&scratch);
    let before = Copy::of(&place);
    fs::remove_dir_all(place.join(".git")).expect("it is there");
    shell(&scratch, &place, "amalgam restore .git");
    assert_eq!(Copy::of(&place), before);
    shell(&scratch, &place, "git status --short && amalgam undo");
    assert!(!place.join(".git").exists(), "the restore is undone");
    shell(&scratch, &place, "amalgam redo");
    assert_eq!(Copy::of(&place), before);
}

#[test]
fn undo_takes_back_a_deleted_label_and_a_rename() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo a >a; amalgam init --workspace one; echo b >a; amalgam commit --label good");
    shell(&scratch, &place, "amalgam label good --delete");
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert!(code == 0 && said.contains("undid deletion of label good"), "{said}");
    assert!(shell(&scratch, &place, "amalgam label").contains("good"));
    assert_eq!(read(&scratch, "a"), "b\n");
    shell(&scratch, &place, "amalgam ws rename one two");
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert!(code == 0 && said.contains("undid rename of one to two"), "{said}");
    assert!(say(&scratch, &place, "amalgam status").0.contains("workspace one"));
    let (said, code) = say(&scratch, &place, "amalgam redo");
    assert!(code == 0 && said.contains("redid rename of one to two"), "{said}");
    shell(&scratch, &place, "amalgam undo && amalgam undo");
    assert_eq!(read(&scratch, "a"), "a\n");
}

#[test]
fn redo_after_an_edit_names_a_way_that_works() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo a >a; amalgam init; echo b >a; amalgam commit; amalgam undo; echo mine >m");
    let (said, code) = say(&scratch, &place, "amalgam redo");
    assert!(code == 1 && said.contains("changed since the undo"), "{said}");
    let hint = said.split('`').find(|part| part.starts_with("amalgam restore ")).expect("a command").to_owned();
    shell(&scratch, &place, &hint);
    assert_eq!((read(&scratch, "a").as_str(), place.join("m").exists()), ("b\n", false));
    shell(&scratch, &place, "amalgam undo");
    assert_eq!((read(&scratch, "a").as_str(), read(&scratch, "m").as_str()), ("a\n", "mine\n"));
}

#[test]
fn redo_of_uncommitted_edits_after_another_edit_names_the_snapshot_that_has_them() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo 1 >a; echo k >k; amalgam init; echo precious >a; amalgam undo; echo built >k");
    let (said, code) = say(&scratch, &place, "amalgam redo");
    assert!(code == 1 && said.contains("changed since the undo"), "{said}");
    let hint = said.split('`').find(|part| part.starts_with("amalgam restore ")).expect("a command").to_owned();
    shell(&scratch, &place, &hint);
    assert_eq!((read(&scratch, "a").as_str(), read(&scratch, "k").as_str()), ("precious\n", "k\n"));
    shell(&scratch, &place, "amalgam undo");
    assert_eq!((read(&scratch, "a").as_str(), read(&scratch, "k").as_str()), ("1\n", "built\n"));
}

#[test]
fn redo_follows_an_undo_that_skipped_a_path() {
    let scratch = Scratch::new();
    let place = scratch.project();
    // The undo cannot put the file back, because the directory in its place holds an ignored file.
    shell(&scratch, &place, "echo '*.o' >.amalgamignore; echo 1 >a; echo 1 >x; amalgam init");
    shell(&scratch, &place, "echo precious >a; rm x; mkdir x; echo y >x/y; echo o >x/z.o");
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert!(code == 3 && read(&scratch, "a") == "1\n", "{code}: {said}");
    shell(&scratch, &place, "amalgam redo");
    assert_eq!((read(&scratch, "a").as_str(), read(&scratch, "x/y").as_str()), ("precious\n", "y\n"));
}

#[test]
fn an_undo_that_can_write_no_file_leaves_the_head() {
    if !rustix::process::geteuid().is_root() {
        return amalgam_test_support::skip("root", "only root can make a directory read-only by a mount");
    }
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo 1 >a; amalgam init; echo 2 >a; amalgam commit -m two");
    shell(&scratch, &scratch.path(), "mount --bind project project && mount -o remount,ro,bind project");
    let undone = [say(&scratch, &place, "amalgam undo"), say(&scratch, &place, "amalgam undo")];
    shell(&scratch, &scratch.path(), "umount project");
    for (said, code) in undone {
        assert!(code == 1 && said.contains("Read-only file system"), "{code}: {said}");
    }
    let (said, _) = say(&scratch, &place, "amalgam log -n1; amalgam status");
    assert!(said.contains("two"), "{said}");
    shell(&scratch, &place, "amalgam undo");
    assert_eq!(read(&scratch, "a"), "1\n");
}

#[test]
fn what_rules_leave_out_stays_on_the_disk_through_undo_and_redo() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "mkdir big; echo x >big/x; echo a >a; amalgam init; echo /big/ >.amalgamignore");
    let (said, _) = say(&scratch, &place, "amalgam status -v");
    assert!(!said.contains("D big"), "{said}");
    assert!(said.contains("no longer covered"), "{said}");
    for line in [
        "amalgam undo",
        "amalgam redo",
        "amalgam commit",
        "amalgam undo",
        "amalgam undo",
        "amalgam redo",
        "amalgam redo",
    ] {
        let (said, code) = say(&scratch, &place, line);
        assert_eq!(code, 0, "{line}: {said}");
        assert_eq!(read(&scratch, "big/x"), "x\n", "after {line}");
    }
    // Something that was covered only for a time stays, too.
    shell(&scratch, &place, "echo later >big/later; rm .amalgamignore; amalgam commit; amalgam undo");
    assert_eq!(read(&scratch, "big/later"), "later\n");
}

#[test]
fn redo_leaves_edits_alone_that_its_rules_exclude() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "mkdir big; echo 1 >big/x; echo 1 >x.log; echo a >a; amalgam init");
    shell(&scratch, &place, "printf '*.log\n/big/\n' >.amalgamignore; amalgam commit; echo 2 >x.log; echo 2 >big/x");
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("2 paths are left as they are on the disk"), "{said}");
    let (said, code) = say(&scratch, &place, "amalgam redo");
    assert_eq!(code, 0, "{said}");
    assert_eq!(["x.log", "big/x"].map(|path| read(&scratch, path)), ["2\n", "2\n"]);
    let (said, _) = say(&scratch, &place, "amalgam status");
    assert!(said.contains("nothing changed"), "{said}");
    // An edit of a file that the rules do not exclude is still in the way.
    shell(&scratch, &place, "amalgam undo; echo mine >.amalgamignore");
    let (said, code) = say(&scratch, &place, "amalgam redo");
    assert!(code == 1 && said.contains("changed since the undo"), "{code}: {said}");
}

#[test]
fn undo_reaches_a_merge_that_brought_a_path_which_the_directory_ignores() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo a >a; amalgam init; amalgam fork -q try --dir ../try");
    shell(&scratch, &place, "echo x >.amalgamignore; amalgam commit -m rules; echo mine >x");
    shell(&scratch, &place, "cd ../try; echo m >x; echo b >a; amalgam commit -m theirs; cd -; amalgam merge try");
    let (said, code) = say(&scratch, &place, "amalgam status --exit-code");
    assert_eq!(code, 0, "{said}");
    for (line, a) in
        [("undo", "a\n"), ("redo", "b\n"), ("undo", "a\n"), ("undo", "a\n"), ("redo", "a\n"), ("redo", "b\n")]
    {
        let (said, code) = say(&scratch, &place, &format!("amalgam {line}"));
        assert_eq!((code, read(&scratch, "a").as_str()), (0, a), "{line}: {said}");
        assert_eq!(read(&scratch, "x"), "mine\n");
    }
    // A restore of the head changes nothing, one of another snapshot takes the ignored path from the workspace, too.
    let listed = || shell(&scratch, &place, "amalgam ls @ | grep -c ' x$' || true");
    shell(&scratch, &place, "amalgam restore @");
    assert_eq!(listed(), "1\n");
    shell(&scratch, &place, "echo b >a; amalgam restore @~; cat x");
    assert_eq!((listed().as_str(), read(&scratch, "x").as_str()), ("0\n", "mine\n"));
    shell(&scratch, &place, "amalgam undo");
    assert_eq!((listed().as_str(), read(&scratch, "a").as_str()), ("1\n", "b\n"));
    // Edits are a step before the merge.
    shell(&scratch, &place, "echo c >a; amalgam undo");
    assert_eq!(read(&scratch, "a"), "b\n");
    shell(&scratch, &place, "amalgam undo");
    assert_eq!(read(&scratch, "a"), "a\n");
}

#[test]
fn a_restore_of_a_snapshot_that_differs_in_an_ignored_path_only_is_recorded() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo a >a; amalgam init; amalgam fork -q try --dir ../try");
    shell(&scratch, &place, "echo x >.amalgamignore; amalgam commit -m rules");
    shell(&scratch, &place, "cd ../try; echo m >x; amalgam commit -m theirs; cd -; amalgam merge try");
    let listed = || shell(&scratch, &place, "amalgam ls @ | grep -c ' x$' || true");
    assert_eq!(listed(), "1\n");
    for (line, count) in [("restore @~", "0\n"), ("undo", "1\n"), ("redo", "0\n")] {
        shell(&scratch, &place, &format!("amalgam {line}"));
        assert_eq!(listed(), count, "after {line}");
    }
}

#[test]
fn undo_of_a_completed_merge_works_although_the_name_is_used_again() {
    for again in ["amalgam fork -q try", "amalgam ws undelete try", "amalgam fork -q try; amalgam ws rm -q try"] {
        let scratch = Scratch::new();
        let place = scratch.project();
        shell(&scratch, &place, "echo a >a; amalgam init; amalgam fork -q try --dir ../try");
        shell(&scratch, &place, "cd ../try; echo b >a; amalgam commit -q; amalgam complete -q");
        assert_eq!(read(&scratch, "a"), "b\n");
        shell(&scratch, &place, "amalgam commit -q");
        shell(&scratch, &place, again);
        let heads = shell(&scratch, &place, "amalgam ws --json | grep -o '\"name\":\"[a-z]*\"' | sort");
        for _ in 0..2 {
            let mut said = String::new();
            // The new times after the merge are a step of their own.
            while read(&scratch, "a") != "a\n" {
                let (more, code) = say(&scratch, &place, "amalgam undo");
                assert_eq!(code, 0, "{again}: {more}");
                said = more;
            }
            assert!(
                said.contains("workspace try was changed or made again since, and stays as it is"),
                "{again}: {said}"
            );
            assert_eq!(shell(&scratch, &place, "amalgam ws --json | grep -o '\"name\":\"[a-z]*\"' | sort"), heads);
            shell(&scratch, &place, "amalgam redo");
            assert_eq!(read(&scratch, "a"), "b\n", "{again}");
        }
        scratch.run("amalgam verify");
    }
}

#[test]
fn redo_works_although_git_wrote_its_index_beside_a_watch() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "git init -q . && echo a >a && git add a && git commit -qm first && amalgam init -q");
    shell(&scratch, &place, "amalgam watch --background --quiet-for 100ms -q; echo b >a; git add a");
    let snapshots = |count: usize| {
        let lines = || shell(&scratch, &place, "amalgam log --oneline").lines().count();
        (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            lines() == count
        })
    };
    assert!(snapshots(2), "the watch takes a snapshot");
    shell(&scratch, &place, "amalgam undo");
    assert_eq!(read(&scratch, "a"), "a\n");
    shell(&scratch, &place, "git status -s; git add -A; sleep 1");
    assert!(snapshots(1), "what Git writes is no step");
    shell(&scratch, &place, "amalgam redo");
    assert_eq!(read(&scratch, "a"), "b\n");
    // It is in the next snapshot.
    shell(&scratch, &place, "amalgam undo; sleep 1; git add -A; echo new >new");
    assert!(snapshots(2), "another change is a step");
    shell(&scratch, &place, "amalgam watch --stop");
    let (said, _) = say(&scratch, &place, "amalgam status");
    assert!(said.contains("nothing changed") && !said.contains(".git"), "{said}");
}

#[test]
fn a_restore_of_a_directory_says_that_it_leaves_a_repository_in_it_alone() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "git init -q sub && echo x >sub/x && amalgam init -q && rm -rf sub");
    for _ in 0..2 {
        let (said, code) = say(&scratch, &place, "amalgam restore sub");
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("in .git left alone (--with-git includes it)"), "{said}");
        assert_eq!(read(&scratch, "sub/x"), "x\n");
    }
    let (said, _) = say(&scratch, &place, "amalgam restore --with-git sub; git -C sub status");
    assert!(!said.contains("left alone") && said.contains("No commits yet"), "{said}");
    let (said, _) = say(&scratch, &place, "amalgam restore sub");
    assert!(!said.contains(".git"), "{said}");
}

#[test]
fn a_word_before_dashes_is_a_revision_although_a_path_has_its_name() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(
        &scratch,
        &place,
        "mkdir docs; echo 1 >x; echo 1 >v1; amalgam init -q; amalgam label v1; amalgam fork -q docs",
    );
    for revision in ["v1", "docs"] {
        shell(&scratch, &place, &format!("echo 2 >x; amalgam restore {revision} -- x"));
        assert_eq!(read(&scratch, "x"), "1\n");
        let (said, code) = say(&scratch, &place, &format!("amalgam restore {revision} x"));
        assert!(code == 2 && said.contains("put -- before paths"), "{code}: {said}");
    }
    let (said, code) = say(&scratch, &place, "amalgam diff x -- v1");
    assert!(code != 0 && said.contains("no snapshot x"), "{code}: {said}");
}

#[test]
fn a_restore_that_skips_an_ignored_path_says_so() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "mkdir big; echo x >big/x; echo a >a; amalgam init; echo /big/ >.amalgamignore");
    shell(&scratch, &place, "amalgam commit; echo y >big/x");
    for named in ["big", "big/x"] {
        let (said, code) = say(&scratch, &place, &format!("amalgam restore @~ -- {named}"));
        assert_eq!(code, 3, "{said}");
        assert!(said.contains("nothing was changed") && said.contains("skipped big: "), "{said}");
        assert!(said.contains("ignore rules exclude it"), "{said}");
    }
    assert_eq!(read(&scratch, "big/x"), "y\n");
    // Ignored paths that are not named are no failure.
    let (said, code) = say(&scratch, &place, "amalgam restore @~");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("big is left as it is on the disk, because ignore rules exclude it"), "{said}");
    assert_eq!(read(&scratch, "big/x"), "y\n");
}

#[test]
fn a_restore_that_changes_no_file_is_no_step_although_git_changed_its_own() {
    let scratch = Scratch::new();
    repository(&scratch);
    restore_what_git_reset(&scratch, &scratch.project());
}

#[test]
fn a_restore_in_a_mount_that_changes_no_file_is_no_step_although_git_changed_its_own() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    repository(&scratch);
    scratch.run("amalgam fork try --mount ../try --backend fuse");
    restore_what_git_reset(&scratch, &scratch.path().join("try"));
}

/// Removes files and lets Git or the shell bring the files of the head back. A restore of the head then has nothing to do.
fn restore_what_git_reset(scratch: &Scratch, place: &Path) {
    shell(scratch, place, "echo one >b; amalgam restore @; amalgam undo; git add -A; rm b");
    let (said, code) = say(scratch, place, "amalgam restore @");
    assert!(code == 0 && said.contains("nothing to do"), "{said}");
    // The removal is undone, not the restore that had nothing to do.
    let (said, code) = say(scratch, place, "amalgam undo");
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_to_string(place.join("b")).expect("it is there"), "one\n", "{said}");
    // An edit that is done again, taken back by Git, is recorded once more and undone alone.
    shell(scratch, place, "rm b; amalgam commit -m step; rm a; amalgam undo; amalgam redo; git stash -q");
    let (said, code) = say(scratch, place, "amalgam restore @");
    assert!(code == 0 && said.contains("nothing to do"), "{said}");
    shell(scratch, place, "amalgam undo; test ! -e a; amalgam undo; cat a");
}

#[test]
fn a_dry_run_counts_what_the_restore_writes() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(
        &scratch,
        &place,
        "mkdir -p d/e; echo a >d/e/a; echo b >d/b; chmod 644 d/b; amalgam init; rm -r d; echo n >n",
    );
    let (plan, _) = say(&scratch, &place, "amalgam restore @ --dry-run");
    let (done, _) = say(&scratch, &place, "amalgam restore @");
    assert!(plan.contains("2 paths to write (4 B), 1 path to remove"), "{plan}");
    assert!(done.contains("2 paths written (4 B), 1 path removed"), "{done}");
}

#[test]
fn automatic_snapshots_of_git_alone_are_no_steps() {
    let scratch = Scratch::new();
    let place = scratch.project();
    repository(&scratch);
    shell(&scratch, &place, "echo b >a && amalgam commit -m b && amalgam watch --background --quiet-for 100ms");
    shell(&scratch, &place, "git add a");
    let began = std::time::Instant::now();
    while !shell(&scratch, &place, "amalgam log -n 1 --json").contains("automatic") {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "no snapshot was taken");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    shell(&scratch, &place, "amalgam watch --stop && amalgam undo");
    assert_eq!(read(&scratch, "a"), "a\n", "the snapshot of .git alone was a step");
    shell(&scratch, &place, "amalgam redo");
    assert_eq!(read(&scratch, "a"), "b\n");
}

#[test]
fn a_mount_leaves_git_alone_as_a_directory_does() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    repository(&scratch);
    scratch.run("amalgam fork try --mount ../try --backend fuse");
    let place = scratch.path().join("try");
    shell(&scratch, &place, "echo b >a && amalgam commit -m b && git commit -qam b");
    let git = Copy::of(&place).git;
    let (said, code) = say(&scratch, &place, "amalgam undo");
    assert!(code == 0 && said.contains("in .git left alone"), "{said}");
    assert_eq!(fs::read_to_string(place.join("a")).expect("it is there"), "a\n");
    assert_same(&Copy::of(&place).git, &git, "of .git");
    // It survives the process.
    scratch.run("cd / && amalgam umount try && amalgam stop");
    scratch.run("amalgam mount try ../try");
    assert_same(&Copy::of(&place).git, &git, "of .git, mounted again");
    shell(&scratch, &place, "amalgam redo");
    assert_eq!(fs::read_to_string(place.join("a")).expect("it is there"), "b\n");
    shell(&scratch, &place, "amalgam undo --with-git");
    assert_ne!(Copy::of(&place).git, git, "what Git did since the commit is undone");
    assert_eq!(fs::read_to_string(place.join("a")).expect("it is there"), "b\n");
}

#[test]
fn ignored_files_stay_through_a_merge_even_if_the_rules_match_their_own_file() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(
        &scratch,
        &place,
        "mkdir data; echo code >main.c; echo SECRET=1 >.env; echo big >data/model.bin; amalgam init",
    );
    shell(&scratch, &place, "amalgam fork fork --dir ../fork");
    let fork = scratch.path().join("fork");
    shell(&scratch, &fork, "printf 'data/\\n.*\\n' >.amalgamignore; echo better >main.c; amalgam commit -m x");
    let (listed, _) = say(&scratch, &fork, "amalgam ls @");
    assert!(listed.contains(".amalgamignore"), "{listed}");
    let workspace = shell(&scratch, &place, "amalgam merge fork");
    assert_eq!(read(&scratch, "main.c"), "better\n", "{workspace}");
    assert_eq!((read(&scratch, ".env").as_str(), read(&scratch, "data/model.bin").as_str()), ("SECRET=1\n", "big\n"));
}

#[test]
fn hard_links_are_whole_after_a_restore_of_paths_and_after_undo_beside_git() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(
        &scratch,
        &project,
        "git init -q . && mkdir d && echo old >d/a && ln d/a d/b && ln d/a c && ln .git/config .git/link",
    );
    shell(&scratch, &project, "amalgam init --workspace main");
    let mut places = vec![project];
    if can_mount() {
        scratch.run("amalgam fork try --mount ../try --backend fuse");
        places.push(scratch.path().join("try"));
    }
    for place in &places {
        let links = |name: &str| shell(&scratch, place, &format!("stat -c %h {name}")).trim().to_owned();
        // An editor replaces one name by a new file.
        shell(&scratch, place, "rm d/a && echo new >d/a && amalgam restore @ -- d c");
        assert_eq!((links("d/a"), links("c")), ("3".to_owned(), "3".to_owned()), "{}", place.display());
        let (said, code) = say(&scratch, place, "cat d/a && amalgam status --exit-code");
        assert!(code == 0 && said.starts_with("old\n"), "{said}");
        shell(&scratch, place, "echo more >new && git add new && amalgam undo");
        assert_eq!((links(".git/config"), links(".git/link")), ("2".to_owned(), "2".to_owned()));
    }
    scratch.run("cd / && (amalgam umount try || true) && amalgam verify --read-data");
}

#[test]
fn a_restored_name_of_a_hard_linked_file_leaves_its_other_names() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo old >a && ln a b && ln a c && chmod 644 a");
    shell(&scratch, &project, "amalgam init --workspace main");
    let mut places = vec![project];
    if can_mount() {
        scratch.run("amalgam fork try --mount ../try --backend fuse");
        places.push(scratch.path().join("try"));
    }
    for place in &places {
        let modes = || shell(&scratch, place, "stat -c %a a b c").replace('\n', " ");
        shell(&scratch, place, "chmod 600 a && amalgam restore @ -- a");
        assert_eq!(modes(), "644 600 600 ", "{}", place.display());
        shell(&scratch, place, "amalgam undo");
        assert_eq!(modes(), "600 600 600 ", "{}", place.display());
        shell(&scratch, place, "amalgam restore @ -- a b");
        assert_eq!(modes(), "644 644 600 ", "{}", place.display());
        shell(&scratch, place, "amalgam restore @ -- a b c");
        assert_eq!(modes(), "644 644 644 ", "{}", place.display());
        assert_eq!(shell(&scratch, place, "stat -c %h a b c"), "3\n3\n3\n", "{}", place.display());
    }
    scratch.run("cd / && (amalgam umount try || true) && amalgam verify --read-data");
}

#[test]
fn a_merge_that_is_done_again_shows_the_same_names_on_its_markers() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo base >a && amalgam init --workspace main && amalgam fork ben --dir ../ben");
    shell(&scratch, &scratch.path().join("ben"), "echo theirs >a && amalgam commit");
    shell(&scratch, &project, "echo mine >a && amalgam commit && (amalgam merge ben || true)");
    let shown = shell(&scratch, &project, "cat a");
    assert!(shown.contains("< main (ours)") && shown.contains("> ben (theirs)"), "{shown}");
    // The process that showed the conflict knows its names.
    shell(&scratch, &project, "amalgam undo && amalgam stop && amalgam redo");
    assert_eq!(shell(&scratch, &project, "cat a"), shown);
    scratch.run("amalgam verify");
}

#[test]
fn a_restored_version_of_a_conflict_is_a_resolution_for_status_too() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo base >a && amalgam init --workspace main && amalgam fork ben --dir ../ben");
    let ben = scratch.path().join("ben");
    shell(&scratch, &ben, "rm a && amalgam commit");
    shell(&scratch, &project, "echo mine >a && amalgam commit && (amalgam merge ben || true)");
    // The conflict is shown by the bytes of one version, and that version is restored.
    shell(&scratch, &project, "amalgam undo && amalgam redo && amalgam restore @~ -- a");
    assert_eq!(shell(&scratch, &project, "amalgam conflicts --json"), "");
    let status = shell(&scratch, &project, "amalgam status --exit-code || [ $? = 4 ]");
    assert!(status.contains("M a") && !status.contains("conflict"), "{status}");
}

#[test]
fn forks_that_each_commit_with_git_merge_without_conflicts_in_git() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "git init -q -b main . && echo base >base && git add base && git commit -qm base");
    shell(&scratch, &project, "amalgam init --workspace main");
    let mut doors = vec!["--dir"];
    if can_mount() {
        doors.push("--backend fuse --mount");
    }
    for (number, door) in doors.into_iter().enumerate() {
        let names = ["ann", "ben"].map(|name| format!("{name}{number}"));
        let places = names.clone().map(|name| scratch.path().join(name));
        for (name, place) in names.iter().zip(&places) {
            shell(&scratch, &project, &format!("amalgam fork {name} {door} ../{name}"));
            shell(
                &scratch,
                place,
                &format!("echo {name} >{name} && git add {name} && git commit -qm {name} && amalgam commit"),
            );
        }
        // One packs its repository, which removes what the other one changed.
        shell(&scratch, &places[1], "git gc -q && amalgam commit");
        let (said, code) = say(&scratch, &places[0], &format!("amalgam merge {}", names[1]));
        assert_eq!(code, 0, "{door}: {said}");
        let (said, code) =
            say(&scratch, &places[0], "amalgam status --exit-code; amalgam conflicts; git fsck --strict");
        assert!(code == 0 && said.contains("no conflicts"), "{door}: {said}");
        let (said, _) = say(&scratch, &places[0], "git log --format=%s; ls; git status --short");
        let expected = format!("{0}\nbase\n{0}\nbase\n{1}\n?? {1}\n", names[0], names[1]);
        assert_eq!(said, expected, "{door}: the files of both, and the repository of the target");
        // The merged snapshot has a whole repository, too.
        let (said, code) = say(
            &scratch,
            &places[0],
            "amalgam checkout @ ../out && cd ../out && git fsck && git log --format=%s; rm -rf ../out",
        );
        assert!(code == 0 && said.ends_with(&format!("{}\nbase\n", names[0])), "{door}: {said}");
    }
    scratch.run("cd / && (amalgam umount --all || true) && amalgam verify");
}

#[test]
fn undo_redo_and_restore_say_which_conflicts_are_left_in_a_directory_and_in_a_mount() {
    for is_mounted in [false, true] {
        if is_mounted && !can_mount() {
            return;
        }
        let scratch = Scratch::new();
        let place = scratch.project();
        shell(&scratch, &place, "echo base >a && amalgam init --workspace main && amalgam fork other --dir ../other");
        let (fork, place) = match is_mounted {
            true => ("amalgam fork try --mount ../try --backend fuse", scratch.path().join("try")),
            false => ("amalgam fork try --dir ../try", scratch.path().join("try")),
        };
        scratch.run(fork);
        shell(&scratch, &scratch.path().join("other"), "echo other >a && amalgam commit -q");
        shell(&scratch, &place, "echo mine >a && amalgam commit -q");
        let (said, code) = say(&scratch, &place, "amalgam merge other --into try");
        assert!(code == 5 && said.contains("1 conflict left"), "{said}");
        shell(&scratch, &place, "echo both >a && amalgam commit -q");
        let left = "1 conflict; `amalgam conflicts` lists them";
        for (line, is_left) in [("undo", true), ("redo", false), ("undo", true), ("redo", false), ("restore @~", true)]
        {
            let (said, code) = say(&scratch, &place, &format!("amalgam {line}"));
            assert!(code == 0 && said.contains(left) == is_left, "mounted: {is_mounted}, {line}: {said}");
            let (status, code) = say(&scratch, &place, "amalgam status --exit-code");
            assert_eq!(code == 5, is_left, "mounted: {is_mounted}, {line}: {status}");
        }
        scratch.run("cd / && (amalgam umount --all || true) && amalgam stop");
    }
}
