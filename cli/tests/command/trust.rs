//! Whose store is opened, who can read it, and where its process is found.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::merging::said;
use crate::scratch::Scratch;

fn mode(scratch: &Scratch, path: &str) -> u32 {
    std::fs::metadata(scratch.path().join(path)).expect("it is there").permissions().mode() & 0o7777
}

/// A store whose settings name a command that leaves a trace.
fn armed() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q");
    scratch.run(&format!("amalgam config set pager 'touch {}/owned; cat'; amalgam stop -q", scratch.path().display()));
    scratch
}

#[test]
fn a_store_of_another_user_is_opened_only_when_it_was_declared_safe() {
    if !rustix::process::geteuid().is_root() {
        return amalgam_test_support::skip("root", "only root can give a store to another user");
    }
    let scratch = armed();
    // `script` gives the command a terminal, so that it starts the pager.
    let log = "script -qec 'amalgam log' /dev/null < /dev/null";
    scratch.run("chown -R 65534 ../store");
    let told = said(&scratch, &format!("amalgam log; echo $?; {log}"));
    assert!(told.contains("belongs to user 65534, not to you") && told.contains("\n1\n"), "{told}");
    assert!(told.contains("AMALGAM_SAFE_STORES="), "{told}");
    assert!(!scratch.path().join("owned").exists(), "its pager ran");
    let told = said(&scratch, "AMALGAM_SAFE_STORES=/nowhere:$AMALGAM_STORE amalgam log; echo $?");
    assert!(told.ends_with("\n0\n"), "{told}");
    scratch
        .run("AMALGAM_SAFE_STORES=$AMALGAM_STORE amalgam stop; chown -R 0 ../store; chown 65534 ../store/config.toml");
    let told = said(&scratch, "amalgam log; echo $?");
    assert!(told.contains("config.toml belongs to user 65534") && told.ends_with("\n1\n"), "{told}");
    scratch.run("chown 0 ../store/config.toml; amalgam log");
}

#[test]
fn a_store_that_others_can_write_to_is_not_opened() {
    let scratch = armed();
    for mode in ["0775", "0707"] {
        let told = said(&scratch, &format!("chmod {mode} ../store; amalgam log; echo $?"));
        assert!(
            told.contains(&format!("other users can write to {}", scratch.path().join("store").display())),
            "{told}"
        );
        assert!(told.contains("chmod go-w") && told.ends_with("\n1\n"), "{told}");
    }
    scratch.run("chmod go-w ../store; amalgam log");
}

#[test]
fn a_home_that_others_can_read_is_closed_and_that_is_told() {
    let scratch = Scratch::new();
    // Made before the store is.
    scratch.run("umask 022; mkdir ../store; echo secret > .env; chmod 600 .env; amalgam init -q");
    assert_eq!([mode(&scratch, "store"), mode(&scratch, "store/store")], [0o700; 2]);
    scratch.run("amalgam stop -q; chmod 0755 ../store ../store/store");
    let told = said(&scratch, "amalgam log");
    assert!(told.contains("was open to other users (mode 0755)"), "{told}");
    assert_eq!([mode(&scratch, "store"), mode(&scratch, "store/store")], [0o700; 2]);
    assert!(!said(&scratch, "amalgam log").contains("was open to other users"));
    scratch.run("umask 022; amalgam --store ../new config set author bob");
    assert_eq!([mode(&scratch, "new"), mode(&scratch, "new/config.toml")], [0o700, 0o600]);
}

#[test]
fn serving_at_a_file_leaves_it_alone() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; amalgam stop -q; echo precious > ../precious");
    let told = said(&scratch, "amalgam serve --socket ../precious; echo $?");
    assert!(told.contains("is no socket") && !told.ends_with("\n0\n"), "{told}");
    assert_eq!(scratch.run("cat ../precious"), "precious\n");
}

fn process(scratch: &Scratch, line: &str) -> i64 {
    let told = scratch.run(line);
    let mut lines = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    lines.find_map(|line| line.get("process_id")?.as_i64()).expect("it runs")
}

#[test]
fn a_command_with_another_runtime_directory_finds_the_process() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; mkdir -m 0700 ../elsewhere");
    let first = process(&scratch, "amalgam doctor --json");
    let begun = Instant::now();
    let second =
        process(&scratch, "export XDG_RUNTIME_DIR=$PWD/../elsewhere; amalgam log > /dev/null; amalgam doctor --json");
    assert_eq!(first, second);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    scratch.run("XDG_RUNTIME_DIR=$PWD/../elsewhere amalgam stop");
    assert!(!scratch.path().join("store/socket").exists(), "the record goes with the process");
    // A record that a killed process left is no obstacle.
    scratch.run("echo -n $PWD/../runtime/nothing.sock > ../store/socket; amalgam log");
}

#[test]
fn the_background_process_leads_a_session_of_its_own() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q");
    let id = process(&scratch, "amalgam doctor --json");
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
    let session = stat.rsplit_once(')').expect("a name").1.split_ascii_whitespace().nth(3).expect("a session");
    assert_eq!(session, id.to_string());
}

/// The control sequences of a terminal's output other than colours (`ESC [ digits ; ... m`).
fn control_sequences(shown: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = shown.get(at) {
        let rest = &shown[at..];
        at += 1;
        match byte {
            0x1b => {
                let parameters = rest.iter().skip(2).take_while(|byte| byte.is_ascii_digit() || **byte == b';').count();
                let is_colour = rest.get(1) == Some(&b'[') && matches!(rest.get(2 + parameters), Some(b'm'));
                if !is_colour {
                    found.push(String::from_utf8_lossy(&rest[..rest.len().min(40)]).into_owned());
                }
            }
            // `script` ends lines with carriage return and line feed.
            b'\r' if rest.get(1) == Some(&b'\n') => {}
            b'\n' | b'\t' => {}
            byte if byte < 0x20 || byte == 0x7f => {
                found.push(String::from_utf8_lossy(&rest[..rest.len().min(40)]).into_owned())
            }
            _ => {}
        }
    }
    found
}

/// On a terminal, no content, name, message or argument moves the cursor, sets the title or hides text.
#[test]
fn escape_sequences_of_others_do_not_reach_the_terminal() {
    let scratch = Scratch::new();
    let escapes = r"\033]0;owned\007\033[2J\033[31m\033[8mhidden\r\b";
    scratch.run(&format!(
        r#"printf 'a\n' > plain; amalgam init -q
        printf 'red {escapes}\n' > plain; printf x > "$(printf 'n\033[2Jame')"; printf x > "$(printf 'b\342\200\256txt.exe')"
        amalgam commit -qm "$(printf 'message {escapes}')"; amalgam label "v1" @ -q || true
        printf 'again {escapes}\n' >> plain"#
    ));
    let argument = r#""$(printf 'arg\033[2J')""#;
    for line in [
        "amalgam diff",
        "amalgam diff @~1 @",
        "amalgam show",
        "amalgam status",
        "amalgam status -v",
        "amalgam log -p",
        "amalgam log --oneline",
        "amalgam op log",
        "amalgam ls",
        "amalgam grep red",
        "amalgam find '*'",
        "amalgam blame plain",
        "amalgam undo --dry-run",
        &format!("amalgam show {argument}"),
        &format!("amalgam log -n {argument}"),
        &format!("amalgam ws rm --{argument}"),
        &format!("amalgam cat {argument}"),
        &format!("amalgam {argument}"),
        &format!("amalgam --{argument}"),
    ] {
        let quoted = line.replace('\'', r"'\''");
        let shown = scratch.output(&format!(
            "LC_ALL=C.UTF-8 TERM=xterm AMALGAM_PAGER=cat script -qec '{quoted}' /dev/null < /dev/null"
        ));
        assert!(!shown.stdout.is_empty(), "{line} printed nothing");
        let found = control_sequences(&shown.stdout);
        assert!(found.is_empty(), "{line}: {found:?}");
        let text = String::from_utf8_lossy(&shown.stdout);
        // Colours pass, so those of a file are looked for by their text.
        assert!(!text.contains("\u{1b}[8m") && !text.contains('\u{202e}'), "{line}: {text:?}");
    }
}
