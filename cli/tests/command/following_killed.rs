//! Followers and agents at work while the process that holds the store is killed: no edit is lost, nothing is overwritten by force, and
//! the counts of each update add up.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::scratch::Scratch;

/// So many rounds where nobody says otherwise in this variable.
const ROUNDS: usize = 6;
const ROUNDS_VARIABLE: &str = "AMALGAM_FOLLOW_ROUNDS";
const SEED_VARIABLE: &str = "AMALGAM_SEED";
const FOLLOWERS: usize = 2;
/// A command that met so many kills one after another would have met something else.
const TRIES_MAX: usize = 50;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

fn lines(text: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(text).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Ends the process that holds the store as a crash would; false if there was none to be found.
fn kill(scratch: &Scratch) -> bool {
    let told = lines(&scratch.output("amalgam doctor --json").stdout);
    let id = told.iter().find_map(|line| line.get("process_id")?.as_i64());
    let id = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    id.is_some_and(|id| kill_process(id, Signal::KILL).is_ok())
}

/// Runs a command until it succeeds: kills interrupt it. Returns its lines.
fn insist(scratch: &Scratch, line: &str, accepted: &[i32]) -> Vec<Value> {
    let mut said = String::new();
    for _ in 0..TRIES_MAX {
        let done = scratch.output(line);
        if done.status.code().is_some_and(|code| accepted.contains(&code)) {
            return lines(&done.stdout);
        }
        said = format!("{:?}: {}", done.status, String::from_utf8_lossy(&done.stderr));
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{line}: {said}");
}

#[test]
fn no_edit_is_lost_and_none_is_overwritten_though_the_store_is_killed() {
    let rounds = number(ROUNDS_VARIABLE).map_or(ROUNDS, |rounds| rounds as usize);
    let seed = number(SEED_VARIABLE).unwrap_or_else(|| RandomState::new().hash_one(0_u8) >> 16);
    println!("{ROUNDS_VARIABLE}={rounds} {SEED_VARIABLE}={seed}");
    let scratch = Scratch::new();
    scratch.run("seq 100 > shared; amalgam init -q --workspace main");
    for follower in 0..FOLLOWERS {
        scratch.run(&format!("amalgam fork -q follower-{follower} --dir ../follower-{follower} > /dev/null"));
        scratch.run(&format!("amalgam follow -q main -w follower-{follower} --every 1s"));
    }
    let (is_over, kills) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = seed | 1;
            while !is_over.load(Ordering::Relaxed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                std::thread::sleep(Duration::from_millis(100 + (state >> 33) % 600));
                if kill(&scratch) {
                    kills.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for round in 0..rounds {
            // The source changes its own half of the shared file and adds a file.
            let source = scratch.project();
            std::fs::write(source.join(format!("source-{round}")), format!("{round}\n")).expect("written");
            let shared = std::fs::read_to_string(source.join("shared")).expect("read");
            let edited = shared.lines().enumerate().map(|(at, line)| match at {
                at if at == 50 + round % 50 => format!("source {round}\n"),
                _ => format!("{line}\n"),
            });
            std::fs::write(source.join("shared"), edited.collect::<String>()).expect("written");
            insist(&scratch, "amalgam commit --json -m source", &[0]);
            for follower in 0..FOLLOWERS {
                let place = scratch.path().join(format!("follower-{follower}"));
                std::fs::write(place.join(format!("own-{round}")), format!("{follower} {round}\n")).expect("written");
                let told = insist(&scratch, &format!("amalgam update --json follower-{follower}"), &[0]);
                let update = told.iter().find(|line| line["type"] == "update").expect("an update");
                let count = |name: &str| update[name].as_u64().unwrap_or_else(|| panic!("{name}: {update}"));
                assert_eq!(count("synced") + count("skipped") + count("conflicts"), count("total"), "{update}");
                assert_eq!(count("conflicts"), 0, "each has lines of its own: {update}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{} kills", kills.load(Ordering::Relaxed));
    for follower in 0..FOLLOWERS {
        insist(&scratch, &format!("amalgam update --json follower-{follower}"), &[0]);
        let place = scratch.path().join(format!("follower-{follower}"));
        let read =
            |name: &str| std::fs::read_to_string(place.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for round in 0..rounds {
            assert_eq!(read(&format!("own-{round}")), format!("{follower} {round}\n"), "an edit of the agent");
            assert_eq!(read(&format!("source-{round}")), format!("{round}\n"), "a file of the source");
        }
        let shared = read("shared");
        assert_eq!(shared, std::fs::read_to_string(scratch.project().join("shared")).expect("read"));
        // Everything is in the head, too.
        insist(&scratch, &format!("cd ../follower-{follower} && amalgam commit --json"), &[0]);
        let own = scratch.run(&format!("amalgam cat follower-{follower}:own-0"));
        assert_eq!(own, format!("{follower} 0\n"));
    }
}
