//! Imports and received streams: the room that they need, what they do to a directory, and the collection that waits for them.

use std::io::Write as _;
use std::process::Stdio;

use crate::merging::said;
use crate::scratch::Scratch;

#[test]
fn a_commit_after_an_import_moved_the_head_is_refused_and_the_edits_stay() {
    let scratch = Scratch::new();
    scratch.run(
        "echo mine > a; amalgam init -q; mkdir ../io; echo theirs > ../io/a; tar -cf ../io.tar -C ../io a; \
         amalgam fork -q sent; amalgam import tar ../io.tar --onto sent@ -w sent -q; \
         amalgam send sent@ -o ../sent.stream -q",
    );
    scratch.run("echo uncommitted >> a; amalgam import tar ../io.tar --onto project@ -w project -q");
    let told = said(&scratch, "amalgam commit -m x; echo ended $?");
    assert!(told.contains("was moved to") && told.contains("`amalgam restore @`"), "{told}");
    assert!(told.ends_with("ended 6\n"), "{told}");
    assert_eq!(scratch.run("cat a"), "mine\nuncommitted\n");
    // What the refusal names loses nothing.
    scratch.run("amalgam restore @");
    assert_eq!(scratch.run("cat a"), "theirs\n");
    scratch.run("amalgam undo");
    assert_eq!(scratch.run("cat a"), "mine\nuncommitted\n");
}

#[test]
fn an_import_and_a_received_stream_need_room_and_nothing_is_visible_without() {
    let scratch = Scratch::new();
    scratch.run(
        "echo a > a; amalgam init -q; mkdir ../big; head -c 150000000 /dev/urandom > ../big/r; tar -cf ../big.tar -C ../big r; \
         AMALGAM_STORE=../other amalgam import tar ../big.tar -w big -q; \
         AMALGAM_STORE=../other amalgam send big@ -o ../big.stream -q; AMALGAM_STORE=../other amalgam stop -q",
    );
    // No collection of its own is in the way of those below.
    scratch.run("amalgam gc --pause -q");
    let before = scratch.run("amalgam ws --json; amalgam label --json");
    // The limit is reached while they write.
    scratch.run("amalgam config set store.budget 20MB");
    for line in ["amalgam import tar ../big.tar -w big", "amalgam receive ../big.stream"] {
        let told = said(&scratch, &format!("{line}; echo ended $?"));
        assert!(told.contains("of a budget of 20.0 MB") && told.ends_with("ended 13\n"), "{line}: {told}");
        assert_eq!(scratch.run("amalgam ws --json; amalgam label --json"), before, "{line}");
        scratch.run("amalgam gc --grace none");
    }
    // It is reached before they begin.
    scratch.run("amalgam config set store.budget 1kB");
    for line in ["amalgam import tar ../big.tar -w big", "amalgam receive ../big.stream"] {
        let told = said(&scratch, &format!("{line}; echo ended $?"));
        assert!(told.contains("of a budget of 1.0 kB") && told.ends_with("ended 13\n"), "{line}: {told}");
    }
    assert_eq!(scratch.run("amalgam ws --json; amalgam label --json"), before);
    scratch.run("amalgam config unset store.budget; amalgam import tar ../big.tar -w big; amalgam verify");
}

#[test]
fn a_dry_run_of_an_import_needs_room_for_the_directories_that_it_stores() {
    let scratch = Scratch::new();
    scratch.run(
        "echo a > a; amalgam init -q; python3 -c 'import os, tarfile\n\
         archive = tarfile.open(\"../links.tar\", \"w\")\n\
         for number in range(20000): link = tarfile.TarInfo(str(number)); link.type = tarfile.SYMTYPE; \
         link.linkname = os.urandom(2000).hex(); archive.addfile(link)\n\
         archive.close()'",
    );
    // No collection of its own is in the way of the dry run.
    scratch.run("amalgam gc --pause -q; amalgam config set store.budget 20MB");
    let before = scratch.run("amalgam ws --json");
    let told = said(&scratch, "amalgam import tar ../links.tar -w x --dry-run; echo ended $?");
    assert!(told.contains("of a budget of 20.0 MB") && told.ends_with("ended 13\n"), "{told}");
    scratch.run("amalgam config unset store.budget; amalgam import tar ../links.tar -w x --dry-run");
    assert_eq!(scratch.run("amalgam ws --json"), before);
}

#[test]
fn a_collection_says_that_objects_wait_for_a_running_import() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; head -c 2000000 /dev/urandom > ../r; tar -cf ../r.tar -C .. r");
    let mut import = scratch.shell("amalgam import tar - -w stall").stdin(Stdio::piped()).spawn().expect("a shell");
    let mut input = import.stdin.take().expect("a pipe");
    let archive = std::fs::read(scratch.path().join("r.tar")).expect("an archive");
    input.write_all(&archive[..1_000_000]).expect("sent");
    input.flush().expect("sent");
    // Until the process has begun to read, the objects of a removed workspace are freed.
    let waits = |number: usize| {
        scratch.run(&format!(
            "mkdir ../g{number}; cd ../g{number}; head -c 100000 /dev/urandom > r; amalgam init -q; amalgam ws rm g{number} -q"
        ));
        scratch.run("amalgam gc --grace none --json").contains("\"waiting_since\":\"20")
    };
    assert!((0..100).any(waits), "the import does not hold the collection back");
    let told = scratch.run("amalgam gc --grace none");
    assert!(told.contains(" wait for a running import or receive (since "), "{told}");
    input.write_all(&archive[1_000_000..]).expect("sent");
    drop(input);
    assert!(import.wait().expect("it ends").success());
    let told = scratch.run("amalgam gc --grace none --json");
    assert!(told.contains("\"waiting_since\":null") && !told.contains("\"freed\":{\"bytes\":0,"), "{told}");
}

#[test]
fn a_line_of_the_log_names_the_first_labels_of_many() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; for n in 1 2 3 4 5 6 7 8; do amalgam label -q l$n; done");
    let told = scratch.run("amalgam log -n 1");
    assert!(told.contains("l1, l2, l3, l4, l5, +3 more)") && !told.contains("l6"), "{told}");
    assert!(scratch.run("amalgam log -n 1 --json").contains("\"l8\""));
    assert!(scratch.run("amalgam fork -q f; amalgam ws show f").contains("Target:    project\n"));
    scratch.run("amalgam export tar -o ../a.tar -q; amalgam import tar ../a.tar -w in -q");
    let log = scratch.run("amalgam op log -n 4");
    assert!(log.contains("foreign ") && log.split_whitespace().all(|word| word.len() < 60), "{log}");
}

#[test]
fn a_restore_that_could_do_nothing_does_not_say_that_all_is_well() {
    let scratch = Scratch::new();
    scratch.run("mkdir -p a/b; echo 1 > a/b/f; amalgam init -q; rm -r a; ln -s /elsewhere a");
    let told = said(&scratch, "amalgam restore a/b/f; echo ended $?");
    assert!(told.contains("skipped") && told.contains("ended 3") && !told.contains("nothing to do"), "{told}");
    let told = said(&scratch, "amalgam restore ''; echo ended $?");
    assert!(told.contains("an empty argument is neither a revision nor a path") && told.contains("ended 2"), "{told}");
}
