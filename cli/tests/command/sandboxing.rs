//! Sandboxes by commands: on a server, and beside the store of this machine.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::scratch::{Scratch, can_mount};
use crate::served::{Served, key};

/// Whether sandboxes can be started here; says so if not. Builds the agent, because cargo builds no program of another package for a test.
pub fn can_sandbox() -> bool {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        if std::env::var_os("AMALGAM_AGENT_BUILT").is_some() {
            return;
        }
        let program = Path::new(env!("CARGO_BIN_EXE_amalgam"));
        let target = program.parent().and_then(Path::parent).expect("target/debug/amalgam");
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "amalgam-agent", "--target-dir"]).arg(target);
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(built.expect("cargo").success(), "the agent is built");
    });
    let tried = Command::new("bwrap").args(["--unshare-all", "--ro-bind", "/", "/", "true"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success()) && can_mount();
    amalgam_test_support::has_or_skip("bwrap", can, "bubblewrap is not installed, or user namespaces are forbidden")
}

/// A server with the workspace `main` of one file, to which the user has logged in and which commands use.
fn logged_in() -> (Scratch, Served) {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,run");
    let server = Served::start(&scratch);
    scratch.run(&format!("echo {key} | amalgam login {} --name dev --use -q", server.url));
    scratch.run("mkdir src; echo one > src/a; tar -cf ../a.tar -C src .; amalgam import tar -q ../a.tar -w main");
    (scratch, server)
}

/// The standard output and the exit code of a command.
fn outcome(scratch: &Scratch, line: &str) -> (String, Option<i32>) {
    let done = scratch.output(line);
    (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.code())
}

#[track_caller]
fn fails(scratch: &Scratch, line: &str, code: i32) -> String {
    let done = scratch.output(line);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    said
}

#[test]
fn a_command_in_a_sandbox_has_the_input_output_and_exit_code_of_one_here() {
    if !can_sandbox() {
        return;
    }
    let (scratch, server) = logged_in();
    let run = |line: &str| scratch.run(line);
    let id = run("amalgam sandbox create -q --from main --name try -e COLOUR=blue").trim().to_owned();
    assert!(id.starts_with("sbx-"), "{id}");
    assert_eq!(run("amalgam exec try -- cat a"), "one\n");
    let done = scratch.output("amalgam exec try -e SIZE=big -- sh -c 'echo $COLOUR $SIZE; echo wrong >&2; exit 7'");
    assert_eq!(
        (&done.stdout[..], &done.stderr[..], done.status.code()),
        (&b"blue big\n"[..], &b"wrong\n"[..], Some(7))
    );
    // Words stay words, and bytes stay bytes.
    assert_eq!(run("amalgam exec try -- printf '%s|' 'a b' '$HOME' \"it's\""), "a b|$HOME|it's|");
    let sums =
        run("head -c 3000000 /dev/urandom > ../bytes; sha256sum < ../bytes; amalgam exec try -- sha256sum < ../bytes");
    let sums: Vec<_> = sums.lines().collect();
    assert_eq!(sums[0], sums[1]);
    run("amalgam exec try -- head -c 2000000 /dev/zero > ../zeros; test $(wc -c < ../zeros) = 2000000");
    run("amalgam exec try -- mkdir deep; test $(amalgam exec try --cwd deep -- pwd) = /workspace/deep");
    assert_eq!(outcome(&scratch, "amalgam exec try --timeout 1s -- sleep 60 2>/dev/null").1, Some(137));
    assert_eq!(outcome(&scratch, "amalgam exec try -- nothing-of-this-name 2>/dev/null").1, Some(127));
    let said = run("TOKEN=hush amalgam exec try --secret TOKEN -- sh -c 'cat $TOKEN_FILE; env | grep -c hush'; true");
    assert_eq!(said, "hush0\n");
    assert!(!fails(&scratch, "amalgam exec try --secret TOKEN=hush -- true", 2).contains("hush"));
    // A fork has what is in no snapshot, and nothing of what its origin does later.
    run("amalgam exec try -- sh -c 'echo two > b'");
    let copy = run("amalgam sandbox fork try --name copy").trim().to_owned();
    run("amalgam exec copy -- rm b");
    assert_eq!(run("amalgam exec try -- cat b"), "two\n");
    // A name can begin as ids do.
    run("amalgam sandbox fork try --name sbx-copy && amalgam exec sbx-copy -- cat b && amalgam sandbox rm sbx-copy");
    let listed = run("amalgam sandbox ls");
    assert!(listed.contains(&id) && listed.contains(&copy) && listed.contains("expires in"), "{listed}");
    assert!(run("amalgam sandbox stats try").contains("processes"));
    assert!(run("amalgam sandbox logs try").contains("running"));
    assert!(run("amalgam sandbox extend try 10m").contains("expires at"));
    assert!(fails(&scratch, "amalgam sandbox extend try 2h", 1).contains("seconds: 1 to 3600"));
    run(&format!("amalgam sandbox rm {copy} && amalgam sandbox rm try --keep-workspace"));
    assert!(fails(&scratch, &format!("amalgam exec {id} -- true"), 1).contains("amalgam sandbox ls"));
    assert!(fails(&scratch, "amalgam exec try -- true", 1).contains("no running sandbox"));
    let workspace = run("amalgam ws --json").lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["name"].as_str().filter(|name| name.starts_with("sandboxes/")).map(str::to_owned)
    });
    let workspace = workspace.expect("the workspace that was kept");
    assert_eq!(run(&format!("amalgam cat {workspace}:b")), "two\n");
    server.stop();
}

#[test]
fn commands_go_on_without_a_reader_and_are_followed_later() {
    if !can_sandbox() {
        return;
    }
    let (scratch, server) = logged_in();
    let run = |line: &str| scratch.run(line);
    run("amalgam sandbox create -q --name try");
    let id =
        run("amalgam exec try --detach -- sh -c 'echo first; until test -e go; do sleep 0.1; done; echo last; exit 5'");
    let id = id.trim();
    let listed = run("amalgam ps");
    assert!(listed.contains(id) && listed.contains("running"), "{listed}");
    let following = scratch.shell(&format!("amalgam attach try {id}")).stdout(Stdio::piped()).spawn().expect("started");
    run("amalgam exec try -- touch go");
    let followed = following.wait_with_output().expect("ended");
    assert_eq!((&followed.stdout[..], followed.status.code()), (&b"first\nlast\n"[..], Some(5)));
    let (again, code) = outcome(&scratch, &format!("amalgam attach try {id} --offset 6"));
    assert_eq!((again.as_str(), code), ("last\n", Some(5)));
    assert!(run("amalgam ps try --all").contains("exit 5"));
    assert!(fails(&scratch, "amalgam attach try cmd-none", 1).contains("amalgam ps"));
    // Ctrl-C is for the command.
    let line = "amalgam exec try -- sh -c 'trap \"echo caught; exit 9\" INT; echo ready; while :; do sleep 0.1; done'";
    let mut child = scratch.shell(&format!("exec {line}")).stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("its output")));
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).expect("an id")).expect("an id");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    assert_eq!(lines.next().expect("a line").expect("text"), "caught");
    assert_eq!(child.wait().expect("ended").code(), Some(9));
    server.stop();
}

#[test]
fn commands_and_their_output_outlive_a_server_that_is_killed() {
    if !can_sandbox() {
        return;
    }
    if !amalgam_test_support::has_or_skip(
        "root",
        rustix::process::geteuid().is_root(),
        "only root can make a mount shared",
    ) {
        return;
    }
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,run");
    let first = Served::start(&scratch);
    let port = first.url.rsplit(':').next().expect("a port").to_owned();
    scratch.run(&format!("echo {key} | amalgam login {} --name dev --use -q", first.url));
    let run = |line: &str| scratch.run(line);
    let id = run("amalgam sandbox create -q --name try -e COLOUR=blue").trim().to_owned();
    let lost = run("amalgam sandbox create -q --name lost").trim().to_owned();
    run("amalgam exec try -- sh -c 'echo kept > note'");
    let ended = run("amalgam exec try --detach -- sh -c 'echo done; exit 4'").trim().to_owned();
    assert_eq!(outcome(&scratch, &format!("amalgam attach try {ended}")).1, Some(4));
    let script = "i=0; while test $i -lt 300; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 3";
    // Waits for a file that is made after the restart, then writes. Its current directory is that of the mount that ends.
    let writer = "until test -e /workspace/go; do sleep 0.1; done; echo written > /workspace/late";
    let writer = run(&format!("amalgam exec try --detach -- sh -c '{writer}'")).trim().to_owned();
    let following = scratch
        .shell(&format!("exec amalgam exec try --no-stdin -- sh -c '{script}'"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let detached = run(&format!("amalgam exec try --detach -- sh -c '{script}'")).trim().to_owned();
    // Killed in the middle; the processes of one sandbox are killed, too.
    std::thread::sleep(std::time::Duration::from_secs(1));
    drop(first);
    run("for p in /proc/[0-9]*; do \
           if tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -qx SANDBOX_ID=LOST; then kill -9 ${p#/proc/}; fi; done"
        .replace("LOST", &lost)
        .as_str());
    let second = Served::at(&scratch, &format!("127.0.0.1:{port}"));
    let all: String = (1..=300).map(|number| format!("line {number}\n")).collect();
    let followed = following.wait_with_output().expect("ended");
    assert_eq!((String::from_utf8_lossy(&followed.stdout).as_ref(), followed.status.code()), (all.as_str(), Some(3)));
    let (again, code) = outcome(&scratch, &format!("amalgam attach try {detached}"));
    assert_eq!((again.as_str(), code), (all.as_str(), Some(3)));
    assert_eq!(outcome(&scratch, &format!("amalgam attach try {ended}")), ("done\n".to_owned(), Some(4)));
    assert_eq!(run("amalgam exec try -- sh -c 'cat note; echo $COLOUR; echo more > note'"), "kept\nblue\n");
    assert_eq!(run("amalgam exec try -- cat note"), "more\n");
    run("amalgam exec try -- touch go");
    assert_eq!(outcome(&scratch, &format!("amalgam attach try {writer}")).1, Some(0), "it still writes");
    assert_eq!(run("amalgam exec try -- cat late"), "written\n");
    let listed = run("amalgam sandbox ls");
    let line_of = |id: &str| listed.lines().find(|line| line.starts_with(id)).unwrap_or_default().to_owned();
    assert!(line_of(&id).contains("  running  ") && line_of(&lost).contains("  error  "), "{listed}");
    assert!(run("amalgam sandbox logs try").contains("took the sandbox over"));
    second.stop();
}

#[test]
fn a_shell_has_a_terminal_of_this_size_and_leaves_the_settings_of_this_one() {
    if !can_sandbox() {
        return;
    }
    let has_script = std::process::Command::new("script").arg("--version").output().is_ok();
    if !amalgam_test_support::has_or_skip("script", has_script, "the program script is not installed (bsdutils)") {
        return;
    }
    let (scratch, server) = logged_in();
    scratch.run("amalgam sandbox create -q --name try");
    let line = "stty rows 33 cols 101; stty -g > ../before; amalgam shell try --shell /bin/sh; echo code $?; stty -g > ../after";
    std::fs::write(scratch.path().join("session"), line).expect("written");
    let mut child = scratch
        .shell("exec script -qec 'sh ../session' /dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut keys = child.stdin.take().expect("its input");
    let mut screen = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut seen = String::new();
    // The shell shows a prompt when it reads keys.
    read_until(&mut screen, &mut seen, "$ ");
    keys.write_all(b"stty size; echo a$((1+1))b\n").expect("typed");
    read_until(&mut screen, &mut seen, "a2b");
    assert!(seen.contains("33 101"), "{seen}");
    keys.write_all(b"exit 6\n").expect("typed");
    read_until(&mut screen, &mut seen, "code 6");
    drop(keys);
    child.wait().expect("ended");
    let settings = |name: &str| std::fs::read_to_string(scratch.path().join(name)).expect("written");
    assert_eq!(settings("before"), settings("after"));
    assert!(fails(&scratch, "amalgam shell try < /dev/null", 2).contains("amalgam exec"));
    server.stop();
}

fn read_until(from: &mut impl std::io::Read, seen: &mut String, wanted: &str) {
    let mut byte = [0];
    while !seen.contains(wanted) {
        assert_eq!(from.read(&mut byte).expect("read"), 1, "the end came before {wanted}: {seen}");
        seen.push(char::from(byte[0]));
    }
}

#[test]
fn the_store_of_this_machine_has_sandboxes_of_its_own() {
    if !can_sandbox() {
        return;
    }
    let scratch = Scratch::new();
    let run = |line: &str| scratch.run(line);
    run("echo one > a; amalgam init -q");
    run("amalgam sandbox create -q --from project --name try");
    assert_eq!(run("amalgam exec try -- sh -c 'cat a; echo two > a'"), "one\n");
    run("amalgam sandbox rm try --keep-workspace");
    assert_eq!(run("cat a"), "one\n", "the directory is not the workspace of the sandbox");
    assert!(fails(&scratch, "amalgam --in-process sandbox ls", 2).contains("--in-process"));
    run("amalgam sandbox ls && amalgam stop");
}

#[test]
fn a_server_without_sandboxes_says_so_and_does_everything_else() {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,run");
    let server = Served::with(&scratch, "--data ../data --sandbox-runtimes none");
    scratch.run(&format!("echo {key} | amalgam login {} --name dev --use -q", server.url));
    scratch.run("mkdir src; echo one > src/a; tar -cf ../a.tar -C src .; amalgam import tar -q ../a.tar -w main");
    let refused = fails(&scratch, "amalgam sandbox create --from main", 1);
    assert!(refused.contains("this server has no sandboxes") && refused.contains("sandbox-runtimes"), "{refused}");
    scratch.run(
        "amalgam fork -q --from main try && tar -cf ../b.tar src && amalgam import tar -q ../b.tar -w try --onto try@",
    );
    scratch.run("amalgam complete -q try");
    assert_eq!(scratch.run("amalgam cat main:src/a"), "one\n");
    server.stop();
    let wrong = fails(&scratch, "amalgam serve --listen 127.0.0.1:0 --data ../data --sandbox-runtimes none,local", 2);
    assert!(wrong.contains("stands alone"), "{wrong}");
}

#[test]
fn one_command_forks_runs_merges_and_cleans_up() {
    if !can_sandbox() {
        return;
    }
    let (scratch, server) = logged_in();
    let run = |line: &str| scratch.run(line);
    run("amalgam sandbox run --from main -- sh -c 'cat a; echo two > b; rm a'");
    assert_eq!(run("amalgam cat main:b"), "two\n");
    assert!(fails(&scratch, "amalgam cat main:a", 1).contains("a"), "it was removed");
    assert_eq!(outcome(&scratch, "amalgam sandbox run -q --from main -- sh -c 'echo bad > b; exit 8'").1, Some(8));
    assert_eq!(run("amalgam cat main:b"), "two\n", "a command that fails is not merged");
    assert_eq!(outcome(&scratch, "echo in | amalgam sandbox run -q --from main -- sh -c 'cat > c'").1, Some(0));
    assert_eq!(run("amalgam cat main:c"), "in\n");
    // Both sides change one line: a person decides, and the work is kept.
    let conflict =
        "amalgam sandbox run --from main -- sh -c 'until test -e go; do sleep 0.1; done; echo mine > b; rm go'";
    let waiting = scratch.shell(conflict).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    let id = loop {
        let listed = run("amalgam sandbox ls --state running");
        if let Some(id) = listed.split_whitespace().next() {
            break id.to_owned();
        }
    };
    run("amalgam sandbox run -q --from main -- sh -c 'echo theirs > b'");
    run(&format!("amalgam exec {id} -- touch go"));
    assert_eq!(waiting.wait_with_output().expect("ended").status.code(), Some(5));
    assert!(run("amalgam review --json").contains("main-run-"));
    assert_eq!(run("amalgam sandbox ls --json"), "", "no sandbox is left");
    let left = run("amalgam ws --json");
    assert!(left.contains("main-run-"), "the work that waits is kept: {left}");
    server.stop();
}

#[test]
fn a_snapshot_is_a_template() {
    if !can_sandbox() {
        return;
    }
    let (scratch, server) = logged_in();
    let run = |line: &str| scratch.run(line);
    // A root directory of a few programs, and the libraries that they and the agent need.
    run(
        "set -e; agent=$(dirname $(command -v amalgam))/amalgam-agent; mkdir -p ../image/bin ../image/etc; echo mini > ../image/etc/name; \
         for f in /bin/sh /bin/cat /bin/ls; do cp $f ../image/bin; done; \
         for l in $(ldd /bin/sh /bin/cat /bin/ls $agent | grep -o '/[^ :)]*\\.so[^ ]*' | sort -u); do \
           mkdir -p ../image$(dirname $l); cp -L $l ../image$l; done; \
         tar -cf ../image.tar -C ../image .; amalgam import tar -q ../image.tar -w images/mini; \
         amalgam label -q templates/mini images/mini@",
    );
    let listed = run("amalgam sandbox templates");
    assert!(listed.contains("host  ") && listed.contains("mini  "), "{listed}");
    run("amalgam sandbox create -q --template mini --from main --name small");
    assert_eq!(run("amalgam exec small -- sh -c 'cat /etc/name a'"), "mini\none\n");
    assert_ne!(outcome(&scratch, "amalgam exec small -- ls /usr/bin 2>/dev/null").1, Some(0), "nothing of the host");
    assert_ne!(outcome(&scratch, "amalgam exec small -- sh -c 'echo x > /etc/name' 2>/dev/null").1, Some(0));
    run("amalgam sandbox create -q --template snapshot:images/mini@ --name other");
    assert_eq!(run("amalgam exec other -- cat /etc/name"), "mini\n");
    run("amalgam sandbox fork other --name copy -q && amalgam exec copy -- cat /etc/name");
    for wrong in ["none", "snapshot:none", "''"] {
        let said = fails(&scratch, &format!("amalgam sandbox create --template {wrong}"), 1);
        assert!(said.contains("amalgam sandbox templates"), "{wrong}: {said}");
    }
    run("amalgam sandbox rm small other copy -q");
    server.stop();
}

#[test]
fn attempts_of_explore_run_in_sandboxes_and_leave_none_behind() {
    if !can_sandbox() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo 5 > n; amalgam init --workspace main");
    let attempt =
        "echo $(( $(cat n) * AMALGAM_ATTEMPT )) > result; id -u; echo x > ~/y; exit $(( AMALGAM_ATTEMPT / 3 ))";
    let said = scratch
        .run(&format!("amalgam explore -n 3 --jobs 2 --sandbox --score 'cat result' --json -- sh -c '{attempt}'"));
    let attempts: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter(|line| line["type"] == "attempt")
        .collect();
    let found: Vec<_> = attempts.iter().map(|one| (one["exit_code"].clone(), one["score"].clone())).collect();
    assert_eq!(found, [(0.into(), 5.0.into()), (0.into(), 10.0.into()), (1.into(), Value::Null)], "{said}");
    assert!(attempts[1]["best"] == true && attempts[1]["added"] == 1, "{said}");
    assert_eq!(scratch.run("cat result"), "10\n");
    let left = "amalgam sandbox ls -q; amalgam ws --json | grep -c try; true";
    assert_eq!(scratch.run(left), "0\n");
    // An interrupted one ends its sandboxes.
    let line = "exec amalgam explore -n 1 --sandbox=host -- sleep 1000";
    let child = scratch.shell(line).stderr(Stdio::piped()).spawn().expect("started");
    crate::watching::until("its sandbox runs", || scratch.run("amalgam sandbox ls").contains("running"));
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    let done = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("its forks were removed"), "{said}");
    assert_eq!(scratch.run(left), "0\n");
}
