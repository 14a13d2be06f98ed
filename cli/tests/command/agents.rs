//! Five agents in five forks of one project who change the same places of a text, a JSON, a YAML and a lock file, a Markdown page and
//! a binary: whoever is merged with whom, and whatever is done in between, nobody's version is absent without a decision that
//! names it.

use crate::scratch::Scratch;

const AGENTS: [&str; 5] = ["ada", "ben", "cyd", "dot", "eli"];
const TEXTS: [&str; 5] = ["notes.txt", "config.json", "service.yaml", "Cargo.lock", "README.md"];
const BINARY: &str = "logo.bin";

/// A project and a fork of it for each agent. All dispute one place of each file; in the texts each also changes a place of their own.
fn project() -> Scratch {
    let scratch = Scratch::new();
    scratch.run(
        "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; echo between; done > notes.txt
         printf '{\n  \"name\": \"x\",\n  \"port\": 1,\n  \"ada\": 0,\n  \"ben\": 0,\n  \"cyd\": 0,\n  \"dot\": 0,\n  \"eli\": 0\n}\n' > config.json
         printf 'name: x\nport: 1\nada: 0\nben: 0\ncyd: 0\ndot: 0\neli: 0\n' > service.yaml
         for p in ada ben cyd dot eli shared; do printf '[[package]]\nname = \"%s\"\nversion = \"1.0.0\"\n\n' $p; done > Cargo.lock
         printf '# Title\n\nShared paragraph.\n\n' > README.md
         for a in ada ben cyd dot eli; do printf '## About %s\n\nNothing yet.\n\n' $a; done >> README.md
         printf '\\0logo\n' > logo.bin
         amalgam init --workspace main -q && amalgam fork -q ada ben cyd dot eli --dir '../{name}'",
    );
    for (at, agent) in AGENTS.iter().enumerate() {
        let own = 2 * at + 1;
        scratch.run(&format!(
            "cd ../{agent} && sed -i 's/^line 9/line 9 by {agent}/; {own}s/$/ only {agent}/' notes.txt &&
             sed -i 's/\"port\": 1/\"port\": \"by {agent}\"/; s/\"{agent}\": 0/\"{agent}\": \"only {agent}\"/' config.json &&
             sed -i 's/port: 1/port: by {agent}/; s/{agent}: 0/{agent}: only {agent}/' service.yaml &&
             sed -i '/name = \"shared\"/,/version/s/1.0.0/2.0.0 by {agent}/; /name = \"{agent}\"/,/version/s/1.0.0/3 only {agent}/' Cargo.lock &&
             sed -i 's/^Shared paragraph/Shared paragraph by {agent}/; /About {agent}/,/Nothing/s/Nothing yet/only {agent}/' README.md &&
             printf '\\0logo by {agent}\n' > logo.bin && AMALGAM_AUTHOR={agent} amalgam commit -q -m {agent}"
        ));
    }
    scratch
}

fn said(scratch: &Scratch, line: &str) -> String {
    let done = scratch.output(&format!("{{ {line}; }} 2>&1"));
    String::from_utf8(done.stdout).expect("text")
}

/// Fails where what an agent did to a file is neither in it nor among the versions of its conflict.
fn nobody_is_missing(scratch: &Scratch, workspace: &str, agents: &[&str]) {
    let conflicts = scratch.run(&format!("cd ../{workspace} && amalgam conflicts"));
    for file in TEXTS {
        let shown = scratch.run(&format!("cat ../{workspace}/{file}"));
        for agent in agents {
            assert!(shown.contains(&format!("by {agent}")), "{agent} in {file} of {workspace}:\n{shown}");
            assert!(shown.contains(&format!("only {agent}")), "{agent} alone in {file} of {workspace}:\n{shown}");
        }
        if agents.len() > 1 {
            assert!(conflicts.contains(&format!("! {file}  contents")), "{file} in {conflicts}");
            for agent in &agents[1..] {
                assert!(shown.contains(&format!(" {agent} (")), "the name of {agent} in {file}:\n{shown}");
            }
            // What nobody disputes is merged, and stands outside of the markers.
            let last = agents[agents.len() - 1];
            if file.ends_with(".json") || file.ends_with(".yaml") {
                let disputed = shown.lines().skip_while(|line| !line.starts_with("<<<<<<<"));
                let disputed = disputed.take_while(|line| !line.starts_with(">>>>>>>")).collect::<Vec<_>>().join("\n");
                assert!(!disputed.contains(&format!("only {last}")), "{file}:\n{shown}");
            }
        }
    }
    for agent in agents {
        let show = format!("cd ../{workspace} && amalgam conflicts show {BINARY} --version {agent}");
        let bytes = match agents.len() {
            1 => scratch.run(&format!("cat ../{workspace}/{BINARY}")),
            _ => scratch.run(&show),
        };
        assert!(bytes.contains(&format!("by {agent}")), "{agent} in {BINARY} of {workspace}");
    }
}

#[test]
fn every_pair_of_agents_finds_both_versions_in_every_file() {
    let scratch = project();
    for (at, first) in AGENTS.iter().enumerate() {
        for second in &AGENTS[at + 1..] {
            let both = format!("{first}-{second}");
            scratch.run(&format!("amalgam fork -q {both} --dir ../{both} && amalgam merge -q {first} --into {both}"));
            let told = said(&scratch, &format!("amalgam merge {second} --into {both}"));
            assert!(told.contains("with 6 conflicts left"), "{both}: {told}");
            nobody_is_missing(&scratch, &both, &[first, second]);
        }
    }
}

#[test]
fn five_agents_one_after_another_are_all_there_after_each_merge_and_each_edit() {
    let scratch = project();
    scratch.run("amalgam fork -q all --dir ../all");
    for (at, agent) in AGENTS.iter().enumerate() {
        let told = said(&scratch, &format!("amalgam merge {agent} --into all"));
        assert_eq!(told.contains("with 6 conflicts left"), at > 0, "{told}");
        nobody_is_missing(&scratch, "all", &AGENTS[..=at]);
        // An edit elsewhere in the files decides nothing.
        let told = said(&scratch, "cd ../all && sed -i 's/^line 8/& edited/' notes.txt && amalgam commit");
        assert!(!told.contains("resolved"), "{told}");
        nobody_is_missing(&scratch, "all", &AGENTS[..=at]);
    }
    assert_eq!(scratch.run("cat ../all/notes.txt").matches("line 8 edited").count(), 1);
    let status = scratch.run("cd ../all && amalgam status");
    assert!(status.contains("6 conflicts") && status.contains("nothing changed"), "{status}");
    // A directory that is written anew shows the same, also after the process has ended.
    scratch.run("amalgam stop --force; amalgam checkout -q all@ ../again --workspace again");
    nobody_is_missing(&scratch, "again", &AGENTS);
}

#[test]
fn five_agents_at_once_are_six_conflicts_with_five_versions_each() {
    let scratch = project();
    scratch.run("amalgam fork -q all --dir ../all");
    let told = said(&scratch, "amalgam merge ada ben cyd dot eli --into all --dry-run");
    assert!(told.contains(", with 6 conflicts;"), "{told}");
    let told = said(&scratch, "amalgam merge ada ben cyd dot eli --into all --json");
    let line: serde_json::Value = serde_json::from_str(told.lines().last().expect("a line")).expect("JSON");
    assert_eq!((line["conflict_files"].as_u64(), line["conflicts"].as_array().map(Vec::len)), (Some(6), Some(6)));
    nobody_is_missing(&scratch, "all", &AGENTS);
    let log = scratch.run("cd ../all && amalgam log -n 1");
    assert!(log.contains("[6 conflicts]"), "{log}");
}

#[test]
fn decisions_name_versions_and_blame_goes_through_them() {
    let scratch = project();
    scratch.run("amalgam fork -q all --dir ../all");
    for agent in AGENTS {
        said(&scratch, &format!("amalgam merge {agent} --into all"));
    }
    let here = |line: &str| said(&scratch, &format!("cd ../all && {line}"));
    // By the name of an agent, by a word, by an edit of the region, and all that is left at once.
    assert!(here("amalgam conflicts take cyd notes.txt").contains("5 files left"));
    assert!(scratch.run("cat ../all/notes.txt").contains("line 9 by cyd"));
    assert!(here("amalgam conflicts resolve logo.bin --side dot").contains("4 files left"));
    assert_eq!(scratch.run("tr -d '\\0' < ../all/logo.bin"), "logo by dot\n");
    let wrong = here("amalgam conflicts take nobody config.json");
    assert!(wrong.contains("config.json has no version nobody; it has ours (all), base, side-2 (ben)"), "{wrong}");
    let told = here(
        "sed -i '/^<<<<<<</,/^>>>>>>>/c\\Shared paragraph by everybody.' README.md && AMALGAM_AUTHOR=resolver amalgam commit",
    );
    assert!(told.contains("resolved: README.md"), "{told}");
    assert!(here("amalgam conflicts take theirs --all").contains("none is left"));
    assert!(scratch.run("cat ../all/service.yaml").contains("port: by eli"));
    // Each line belongs to whoever wrote it, also behind a resolution.
    let blame = scratch.run("cd ../all && amalgam blame README.md");
    let author = |line: &str| {
        let found = blame.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("{line} in {blame}"));
        found.split_whitespace().nth(1).expect("an author").to_owned()
    };
    for agent in AGENTS {
        assert_eq!(author(&format!("only {agent}")), agent, "{blame}");
    }
    assert_eq!(author("by everybody"), "resolver");
    assert_eq!(author("# Title"), "ann");
    let blame = scratch.run("cd ../all && amalgam blame notes.txt");
    assert!(blame.lines().any(|line| line.contains("line 9 by cyd") && line.contains(" cyd ")), "{blame}");
}

#[test]
fn what_was_undone_is_asked_again_and_drops_nobody() {
    let scratch = project();
    scratch.run("amalgam fork -q all --dir ../all");
    let merge = |agent: &str| said(&scratch, &format!("amalgam merge {agent} --into all"));
    AGENTS[..4].iter().for_each(|agent| drop(merge(agent)));
    said(&scratch, "cd ../all && amalgam conflicts take ours --all");
    scratch.run("cd ../all && amalgam undo -q && amalgam undo -q");
    nobody_is_missing(&scratch, "all", &AGENTS[..3]);
    let told = merge("dot");
    assert!(told.contains("with 6 conflicts left") && !told.contains("remembered"), "{told}");
    nobody_is_missing(&scratch, "all", &AGENTS[..4]);
    merge("eli");
    nobody_is_missing(&scratch, "all", &AGENTS);
}

#[test]
fn the_queue_shows_both_texts_and_takes_the_same_words() {
    let scratch = project();
    scratch.run("amalgam complete -q ada");
    for agent in &AGENTS[1..] {
        let told = said(&scratch, &format!("amalgam complete {agent}"));
        assert!(told.contains("waits for a person"), "{told}");
    }
    let id = |agent: &str| {
        let list = scratch.run("amalgam review");
        let line = list.lines().find(|line| line.contains(agent)).unwrap_or_else(|| panic!("{agent} in {list}"));
        line.split_whitespace().next().expect("an id").to_owned()
    };
    let shown = scratch.run(&format!("amalgam review show {}", id("ben")));
    for part in ["<<<<<<< main (ours)", ">>>>>>> ben (theirs)", "\"port\": \"by ada\"", "\"port\": \"by ben\""] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let told = said(&scratch, &format!("amalgam review take {} nobody", id("ben")));
    assert!(told.contains("ours (main), theirs (ben) or base"), "{told}");
    // By the word, by the option, by the name, by the base.
    assert!(said(&scratch, &format!("amalgam review take {} ben --dry-run", id("ben"))).contains("would change"));
    assert!(said(&scratch, &format!("amalgam review take {} --theirs", id("ben"))).contains("merged into main"));
    assert!(scratch.run("amalgam show main@:notes.txt").contains("line 9 by ben"));
    // Accepted with its conflicts, each is one version more, and everything is there.
    said(&scratch, &format!("amalgam review accept {}", id("cyd")));
    said(&scratch, &format!("amalgam review accept {}", id("dot")));
    let notes = scratch.run("amalgam show main@:notes.txt");
    for part in ["main (ours)", "cyd (side-2)", "dot (theirs)", "by ben", "by cyd", "by dot", "only cyd", "only dot"] {
        assert!(notes.contains(part), "{part} in {notes}");
    }
    assert!(said(&scratch, &format!("amalgam review take {} base", id("eli"))).contains("merged into main"));
    assert!(scratch.run("amalgam show main@:config.json").contains("\"port\": 1,"));
}
