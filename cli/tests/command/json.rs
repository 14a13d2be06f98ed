//! Every line of JSON is what its schema says, and every schema is met by some command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::sandboxing::can_sandbox;
use crate::scratch::Scratch;

/// What only a damaged store, a misfortune or a large machine would print.
/// `sandbox_port` needs a server with an address.
const NOT_SEEN: [&str; 5] = ["migration", "problem", "sandbox_port", "verify_problem", "patch_omission"];

const STORY: &[&str] = &[
    "amalgam status --json",
    "printf 'one\\ntwo\\n' > a; mkdir d; echo x > d/x; ln -s a link; mkdir skip; echo s > skip/s",
    "amalgam init --json --exclude skip",
    "amalgam status --json",
    "echo three >> a; mv d/x d/y; printf 'odd' > \"$(printf 'odd\\377')\"",
    "amalgam status --json",
    "amalgam diff --json",
    "amalgam diff --json --stat",
    "amalgam diff --json --insight --patch",
    "amalgam commit --json -m more --label works",
    "amalgam commit --json",
    "amalgam log --json --all",
    "amalgam show --json",
    "amalgam show --json @:",
    "amalgam show --json @:a",
    "amalgam log --json -1 --stat; amalgam log --json -1 --name-only",
    "amalgam ls --json; amalgam cat --json a; amalgam grep --json three; amalgam find --json 'x*'",
    "git init -q inner && amalgam commit -q && touch inner/.git/new && amalgam diff --json && rm -r inner && amalgam commit -q",
    "rm a",
    "amalgam restore --json --dry-run a",
    "amalgam restore --json a",
    "amalgam undo --json",
    "amalgam redo --json",
    "amalgam op log --json",
    "amalgam op show 1 --json",
    "amalgam fork --json idea",
    "amalgam fork --json -n 2 --dir ../try-{n}",
    "amalgam ws --json",
    "amalgam ws show --json",
    "amalgam ws rename --json idea thought",
    "cd ../try-1 && amalgam ws detach --json",
    "amalgam ws rm project-2 --dir --yes --json",
    "amalgam ws undelete project-2 --json",
    "amalgam checkout --json works ../works --workspace works",
    "amalgam run --json -- touch ran",
    "amalgam watch --json --background",
    "amalgam watch --json --stop",
    "mkdir ../bin; printf '#!/bin/sh\\nexit 0\\n' > ../bin/systemctl; chmod +x ../bin/systemctl",
    "PATH=$PWD/../bin:$PATH XDG_CONFIG_HOME=$PWD/../config amalgam watch --json --background --at-login",
    "PATH=$PWD/../bin:$PATH XDG_CONFIG_HOME=$PWD/../config amalgam watch --json --stop",
    "amalgam ws rm --json --ended",
    "rm -rf ../works; amalgam checkout --json works",
    "amalgam explore --json -n 2 -- sh -c 'echo $AMALGAM_ATTEMPT > attempt'",
    "echo 1 > n; amalgam commit -q; touch bug; amalgam commit -q; echo 2 > n; amalgam commit -q; echo 3 > n; amalgam commit -q",
    "amalgam bisect run --json --good @~3 --bad @ -- test ! -e bug",
    "mkdir -p keep/skip; echo t > keep/t; echo s > keep/skip/s; amalgam commit -q",
    "amalgam restore @~ --json; test $? = 3; rm -r keep",
    "amalgam blame --json a",
    "amalgam label --json",
    "amalgam label --json gone @~",
    "amalgam label --json gone --delete",
    "amalgam du --json",
    "amalgam du --json project; amalgam du --json @~; amalgam du --json project --growth -n 3",
    "amalgam send --json --all -o ../all.stream",
    "amalgam receive --json ../all.stream --under again",
    "amalgam receive --json --have",
    "amalgam export --json tar -o ../out.tar; amalgam import --json tar ../out.tar --dry-run; amalgam import --json tar ../out.tar -w packed",
    "amalgam export --json git packed@ --to ../out.git --branch main; amalgam import --json git ../out.git --history all",
    "amalgam backup --json ../backup",
    "AMALGAM_STORE=../second amalgam restore-backup --json ../backup; AMALGAM_STORE=../second amalgam stop --json",
    "amalgam fork -q left right > /dev/null; for w in left right; do amalgam checkout -q $w@ ../$w --workspace $w; done",
    "echo l > ../left/met; echo r > ../right/met; echo own > ../left/own",
    "for w in left right; do (cd ../$w && amalgam commit -q); done; amalgam radar --json; timeout 5 amalgam radar --json --watch; test $? = 124",
    "amalgam follow --json project -w right --every 1h --dry-run; amalgam follow --json project -w right --every 1h",
    "amalgam update --json right; amalgam ws show --json right; amalgam unfollow --json right",
    "amalgam merge --json left --dry-run",
    "amalgam publish --json left",
    "amalgam publish --json left --every 1h --dry-run; amalgam publish --json left --manual --dry-run",
    "amalgam publish --json left --every 1h --on-commit; amalgam ws show --json left; amalgam publish --json left --manual",
    "cd ../right && amalgam complete --json; test $? = 5",
    "amalgam review --json",
    "amalgam review show --json $(amalgam review --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')",
    "amalgam review reject --dry-run --json $(amalgam review --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')",
    "amalgam review reject --json $(amalgam review --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')",
    "echo more > ../left/more; amalgam merge --json left; amalgam undo -q",
    "echo yet > ../left/yet; amalgam publish -q left; amalgam undo -q; amalgam queue --json",
    "for verb in release withdraw; do amalgam queue $verb --dry-run --json $(amalgam queue --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p'); done",
    "amalgam queue withdraw --json $(amalgam queue --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')",
    "amalgam rules show --json --built-in; amalgam rules explain --json a.json",
    "mkdir .amalgam; printf '[[rule]]\\npath = \"lock\"\\nway = \"regenerate\"\\ncommand = \"make lock\"\\n' > .amalgam/rules.toml; amalgam commit -q",
    "amalgam rules commands --json; amalgam rules approve --json --yes",
    "amalgam rules revoke --json $(amalgam rules commands --json | sed -n 's/.*\"hash\":\"\\([0-9a-f]*\\)\".*/\\1/p')",
    "rm -r .amalgam; amalgam commit -q",
    "echo 'way = 1' > ../bad.toml; amalgam rules check --json ../bad.toml; test $? = 1",
    "printf 'default = \"RW\"\\n' > ../policy.toml; amalgam policy test --json ../policy.toml --agent ann a; amalgam policy set --json ../policy.toml",
    "amalgam policy --json; amalgam policy explain --json ann a; amalgam policy log --json; amalgam policy set --json --none",
    "echo 'default = 1' > ../bad.toml; amalgam policy test --json ../bad.toml; test $? = 1",
    "echo held > one; echo held > two; echo secret > key; amalgam commit -q",
    "amalgam purge --json key --yes -m 'a key'",
    "amalgam purge --json one --dry-run; test $? = 1",
    "amalgam purge --json --list",
    "amalgam purge --json --yes --forget $(amalgam purge --json --list | sed -n 's/.*\"object\":\"\\([^\"]*\\)\".*/\\1/p')",
    "echo secret > key; amalgam commit -q; amalgam purge --json key --yes",
    "amalgam du --json --exact project",
    "amalgam du --json --exact @~2",
    "amalgam gc --json --dry-run",
    "amalgam gc --json --plan",
    "amalgam gc --json",
    "amalgam gc --json --confirm-clock",
    "amalgam gc --json --pause",
    "amalgam config set workspace.quota $(amalgam status --json | sed -n '/\"type\":\"status\"/s/.*\"bytes\":\\([0-9]*\\).*/\\1/p') > /dev/null; amalgam status --json",
    "amalgam config unset workspace.quota > /dev/null",
    "amalgam receive --json ../clash.stream && amalgam checkout --json clash@ ../clash --workspace clash",
    "cd ../clash && amalgam status --json && amalgam conflicts --json && amalgam conflicts show text --json",
    "cd ../clash && amalgam conflicts resolve text --theirs --json && amalgam conflicts remembered --json",
    "cd ../clash && amalgam conflicts resolve image --ours --dry-run --json && amalgam conflicts resolve image --edit --dry-run --json",
    "cd ../clash && amalgam conflicts forget --all --dry-run --json && amalgam conflicts forget --all --json",
    "amalgam export nfs --json --create served; amalgam export nfs --json served@v1; test $? = 1",
    "amalgam export nfs --json project --follow --secret; amalgam exports --json; amalgam unexport --json --all",
    "amalgam verify --json --read-data",
    "amalgam config --json",
    "amalgam doctor --json",
    "amalgam key create ann --json --scope write --expires 90d --project demo; amalgam key ls --json; amalgam key generate --json",
    "amalgam key revoke --json $(amalgam key ls --json | sed 's/.*\"id\":\"\\([a-z2-7]*\\)\".*/\\1/')",
    "amalgam key create ann --scope merge --data ../data -q > ../key; \
     amalgam serve --data ../data --listen 127.0.0.1:0 > /dev/null 2> ../serve.log & echo $! > ../serve.pid; \
     until grep -q listening ../serve.log; do sleep 0.02; done",
    "amalgam login --json $(sed -n 's/^listening on //p' ../serve.log) --name there < ../key; amalgam context --json",
    "amalgam push --json packed && amalgam pull --json packed",
    "amalgam label --json shipped packed@ && amalgam remote add --json there --sync manual --workspace packed && amalgam remote sync --json && amalgam remote status --json \
     && amalgam remote ls --json && amalgam remote rm --json origin",
    "printf 'id = AKIAABCDEFGHIJKLMNOP\\n' > ../creds; tar -cf ../creds.tar -C .. creds; amalgam import tar -q ../creds.tar -w leaky; \
     amalgam push --json leaky; test $? = 1",
    "amalgam backup --json ../server-backup --data ../data",
    "kill $(cat ../serve.pid)",
    "amalgam mcp init --json cursor; amalgam hooks install --json claude; amalgam hooks install --json claude --remove; amalgam connection --json",
    "amalgam webhook create --json http://localhost:9/ --kind label.*; amalgam webhook ls --json",
    "amalgam webhook test --json --no-wait $(amalgam webhook ls --json | sed 's/.*\"id\":\"\\([a-z2-7]*\\)\".*/\\1/')",
    "amalgam webhook rm --json $(amalgam webhook ls --json | sed 's/.*\"id\":\"\\([a-z2-7]*\\)\".*/\\1/')",
    "amalgam stop --json; amalgam logs --json -n 3",
];

/// What follows where something can be mounted.
const MOUNTED: &[&str] = &[
    // What was purged is still in the directory; it is looked at again, and left out.
    "touch key; amalgam fork --json --from project mounted --mount ../mounted --backend fuse --explain; test $? = 3",
    "cd ../mounted && echo more > more && amalgam status --json && amalgam commit --json",
    "amalgam mounts --json",
    "amalgam mount --json @~ ../before",
    "amalgam mount --json mounted ../follow --follow",
    "amalgam umount --json ../before; amalgam umount --json mounted",
    "amalgam mount --json mounted ../mounted; amalgam umount --json ../mounted",
];

/// What follows where sandboxes can be started.
const SANDBOXED: &[&str] = &[
    "amalgam sandbox create --json --name try && amalgam sandbox ls --json && amalgam sandbox fork try --name copy --json",
    "amalgam exec try --json -- sh -c 'echo out; echo err >&2; printf \"\\377\"'; amalgam ps try --all --json",
    "amalgam attach --json try $(amalgam exec try --detach --json -- true | sed 's/.*\"command_id\":\"\\([^\"]*\\)\".*/\\1/')",
    "amalgam exec try --detach --json -- true; amalgam sandbox stats try --json; amalgam sandbox logs try --json",
    "amalgam sandbox run --json --from project -- touch made; amalgam sandbox templates --json",
    "amalgam sandbox extend try 1m --json; amalgam sandbox rm --json try copy",
];

/// And what only they print.
const OF_SANDBOXES: [&str; 10] = [
    "command_ended",
    "command_output",
    "command_started",
    "sandbox",
    "sandbox_command",
    "sandbox_deleted",
    "sandbox_log",
    "sandbox_run",
    "sandbox_stats",
    "sandbox_template",
];

/// And what only mounts print.
const OF_MOUNTS: [&str; 3] = ["backend", "mount", "umount"];

fn schemas() -> BTreeMap<String, Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    let files = std::fs::read_dir(folder).expect("schemas").map(|file| file.expect("a file").path());
    let read = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON"))
    };
    files.map(read).collect()
}

/// What is wrong with a value by its schema. Stricter than a program that reads should be: fields that no schema names are
/// wrong, too.
fn wrong(value: &Value, schema: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(constant) = schema.get("const")
        && value != constant
    {
        found.push(format!("{at}: {value} is not {constant}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = |allowed: &Value| allowed == kind || (allowed == "number" && kind == "integer");
    match &schema["type"] {
        Value::Array(kinds) if !kinds.iter().any(fits) => found.push(format!("{at}: {kind} is none of {kinds:?}")),
        Value::String(_) if !fits(&schema["type"]) => found.push(format!("{at}: {kind} is no {}", schema["type"])),
        _ => {}
    }
    if let (Some(words), Value::String(_)) = (schema["enum"].as_array(), value)
        && !words.contains(value)
    {
        found.push(format!("{at}: {value} is none of {words:?}"));
    }
    if let (Value::String(text), Some("^[0-9a-f]{64}$")) = (value, schema["pattern"].as_str())
        && (text.len() != 64 || !text.chars().all(|c| c.is_ascii_hexdigit()))
    {
        found.push(format!("{at}: {text} is no id"));
    }
    if let (Value::String(text), Some("date-time")) = (value, schema["format"].as_str())
        && !(text.ends_with('Z') && text.contains('T'))
    {
        found.push(format!("{at}: {text} is no time in UTC"));
    }
    if let Value::Array(items) = value {
        found.extend(items.iter().flat_map(|item| wrong(item, &schema["items"], &format!("{at}[]"))));
    }
    if let Value::Object(fields) = value {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(required.filter(|key| !fields.contains_key(*key)).map(|key| format!("{at}: no {key}")));
        for (key, field) in fields {
            match (schema["properties"].get(key), schema.get("additionalProperties")) {
                (Some(schema), _) | (None, Some(schema)) => found.extend(wrong(field, schema, &format!("{at}.{key}"))),
                (None, None) => found.push(format!("{at}: nobody described {key}")),
            }
        }
    }
    found
}

#[test]
fn every_line_is_what_its_schema_says() {
    let schemas = schemas();
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("clash.stream"), crate::conflicts::stream()).expect("written");
    let mut seen = BTreeSet::new();
    let mounted = if crate::scratch::can_mount() { MOUNTED } else { &[] };
    let sandboxed = if can_sandbox() { SANDBOXED } else { &[] };
    let (last, story) = STORY.split_last().expect("a story");
    for (number, line) in story.iter().chain(mounted).chain(sandboxed).chain([last]).enumerate() {
        let done = scratch.output(line);
        // There is no store before the story begins.
        let is_failure = number == 0;
        let said = [&done.stdout[..], &done.stderr].concat();
        assert_eq!(done.status.success(), !is_failure, "{line}: {}", String::from_utf8_lossy(&said));
        let printed = if is_failure { done.stderr } else { done.stdout };
        for text in String::from_utf8(printed).expect("text").lines() {
            let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
            let kind = value["type"].as_str().expect("a type").to_owned();
            let schema = schemas.get(&kind).unwrap_or_else(|| panic!("{line}: {kind} has no schema"));
            assert_eq!(wrong(&value, schema, &kind), Vec::<String>::new(), "{line}: {text}");
            seen.insert(kind);
        }
    }
    let unseen: Vec<_> = schemas.keys().filter(|kind| !seen.contains(*kind)).map(String::as_str).collect();
    let mut expected = NOT_SEEN.to_vec();
    expected.extend(OF_MOUNTS.iter().filter(|_| mounted.is_empty()));
    expected.extend(OF_SANDBOXES.iter().filter(|_| sandboxed.is_empty()));
    expected.sort_unstable();
    assert_eq!(unseen, expected);
}

#[test]
fn every_type_is_on_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/JSON.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for (kind, schema) in schemas() {
        let section = page.split("\n## ").find(|section| section.starts_with(&format!("{kind}\n")));
        let section = section.unwrap_or_else(|| panic!("{kind} is not on the page"));
        let fields = schema["properties"].as_object().expect("fields").keys();
        for field in fields.filter(|field| *field != "type" && !field.ends_with("_base64")) {
            assert!(section.contains(&format!("| `{field}` |")), "{kind}.{field} is not on the page");
        }
    }
}

#[test]
fn the_check_finds_what_is_wrong() {
    let schema = serde_json::json!({
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"enum": ["x"]}},
    });
    let count = |value: Value| wrong(&value, &schema, "").len();
    assert_eq!(count(serde_json::json!({"a": 1, "b": "x"})), 0);
    assert_eq!(count(serde_json::json!({"a": null})), 0);
    assert_eq!(count(serde_json::json!({"a": "1", "b": "y"})), 2);
    assert_eq!(count(serde_json::json!({"c": 1})), 2);
}
