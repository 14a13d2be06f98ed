//! Translates tool calls into command lines of this program.

use super::arguments::Arguments;

/// The default number of snapshots of a history.
const HISTORY_LIMIT: u64 = 20;

type Words = Vec<String>;

fn owned(words: &[&str]) -> Words {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Adds `NAME=VALUE` if there is a value. In this form the value cannot be taken for another option.
fn option(words: &mut Words, name: &str, value: Option<&str>) {
    words.extend(value.map(|value| format!("{name}={value}")));
}

/// Adds a positional argument. Refuses one that begins with `-`.
fn positional(words: &mut Words, value: Option<&str>) -> Result<(), String> {
    match value {
        Some(value) if value.starts_with('-') => Err(format!("`{value}`: it must not begin with -")),
        value => {
            words.extend(value.map(str::to_owned));
            Ok(())
        }
    }
}

fn paths(words: &mut Words, paths: &[&str]) {
    if !paths.is_empty() {
        words.push("--".to_owned());
        words.extend(owned(paths));
    }
}

/// Returns the command line of `commit`.
pub fn snapshot(arguments: &Arguments<'_>) -> Result<Words, String> {
    let mut words = owned(&["commit"]);
    option(&mut words, "--message", arguments.text("message")?);
    option(&mut words, "--label", arguments.text("label")?);
    option(&mut words, "--workspace", arguments.text("workspace")?);
    Ok(words)
}

/// Returns the command line of `log`.
pub fn history(arguments: &Arguments<'_>) -> Result<Words, String> {
    let mut words = owned(&["log", "--oneline"]);
    words.push(format!("--limit={}", arguments.number("limit")?.unwrap_or(HISTORY_LIMIT)));
    words.extend(arguments.flag("all")?.then(|| "--all".to_owned()));
    positional(&mut words, arguments.text("revision")?)?;
    paths(&mut words, &arguments.text("path")?.into_iter().collect::<Vec<_>>());
    Ok(words)
}

/// Returns the command line of `diff`.
pub fn diff(arguments: &Arguments<'_>) -> Result<Words, String> {
    let form = match arguments.text("form")?.unwrap_or("patch") {
        "patch" => "--patch",
        "stat" => "--stat",
        "names" => "--name-status",
        "insight" => "--insight",
        other => return Err(format!("form `{other}`: it is patch, stat, names or insight")),
    };
    let mut words = owned(&["diff", form]);
    let (from, to) = (arguments.text("from")?, arguments.text("to")?);
    if from.is_none() && to.is_some() {
        return Err("`to` needs `from`".to_owned());
    }
    positional(&mut words, from)?;
    positional(&mut words, to)?;
    paths(&mut words, &arguments.texts("paths")?);
    Ok(words)
}

/// Returns the command line of `restore`, without `--dry-run`.
pub fn restore(arguments: &Arguments<'_>) -> Result<Words, String> {
    let mut words = owned(&["restore"]);
    option(&mut words, "--workspace", arguments.text("workspace")?);
    positional(&mut words, arguments.text("revision")?)?;
    paths(&mut words, &arguments.texts("paths")?);
    Ok(words)
}

/// Returns the command line of `fork`.
pub fn fork(arguments: &Arguments<'_>) -> Result<Words, String> {
    let mut words = owned(&["fork"]);
    option(&mut words, "--from", arguments.text("from")?);
    let (names, count) = (arguments.texts("names")?, arguments.number("count")?);
    match (names.is_empty(), count) {
        (false, Some(_)) => return Err("give names or a count, not both".to_owned()),
        (true, count) => words.push(format!("--number={}", count.unwrap_or(1))),
        (false, None) => names.into_iter().try_for_each(|name| positional(&mut words, Some(name)))?,
    }
    Ok(words)
}

/// Returns the command line of `merge`.
pub fn merge(arguments: &Arguments<'_>) -> Result<Words, String> {
    let mut words = owned(&["merge"]);
    option(&mut words, "--into", arguments.text("into")?);
    option(&mut words, "--message", arguments.text("message")?);
    words.extend(arguments.flag("dry_run")?.then(|| "--dry-run".to_owned()));
    arguments.texts("sources")?.into_iter().try_for_each(|name| positional(&mut words, Some(name)))?;
    Ok(words)
}

/// Returns the command line of `conflicts`.
pub fn conflicts(arguments: &Arguments<'_>) -> Result<Words, String> {
    let (path, version, take) = (arguments.text("path")?, arguments.text("version")?, arguments.text("take")?);
    let mut words = owned(&["conflicts"]);
    match (path, take) {
        (path, Some(take)) => {
            words.push("take".to_owned());
            words.extend(path.is_none().then(|| "--all".to_owned()));
            positional(&mut words, Some(take))?;
            positional(&mut words, path)?;
        }
        (Some(path), None) => {
            words.push("show".to_owned());
            option(&mut words, "--version", version);
            positional(&mut words, Some(path))?;
        }
        (None, None) => words.push("list".to_owned()),
    }
    Ok(words)
}

/// Returns the command line of `run`.
pub fn run(arguments: &Arguments<'_>) -> Result<Words, String> {
    let mut words = owned(&["run"]);
    option(&mut words, "--in", arguments.text("workspace")?);
    option(&mut words, "--message", arguments.text("message")?);
    words.extend(owned(&["--", "sh", "-c", arguments.text("command")?.unwrap_or_default()]));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    type Maker = fn(&Arguments<'_>) -> Result<Words, String>;

    fn line(make: Maker, values: &Value) -> Result<String, String> {
        let values = values.as_object().expect("an object");
        let names: Vec<_> = values.keys().map(String::as_str).collect();
        make(&Arguments::new(values, &names, &[])?).map(|words| words.join(" "))
    }

    #[test]
    fn calls_become_command_lines() {
        let cases: [(Maker, Value, &str); 11] = [
            (snapshot, json!({"message": "-x", "label": "l"}), "commit --message=-x --label=l"),
            (history, json!({"path": "a"}), "log --oneline --limit=20 -- a"),
            (history, json!({"revision": "main@", "limit": 3, "all": true}), "log --oneline --limit=3 --all main@"),
            (diff, json!({}), "diff --patch"),
            (diff, json!({"from": "@~", "to": "@", "paths": ["-a"], "form": "stat"}), "diff --stat @~ @ -- -a"),
            (restore, json!({"revision": "@~", "paths": ["a"]}), "restore @~ -- a"),
            (fork, json!({"count": 2, "from": "main"}), "fork --from=main --number=2"),
            (fork, json!({"names": ["a", "b"]}), "fork a b"),
            (merge, json!({"sources": ["a"], "dry_run": true}), "merge --dry-run a"),
            (conflicts, json!({"take": "ours"}), "conflicts take --all ours"),
            (run, json!({"command": "make test", "workspace": "w"}), "run --in=w -- sh -c make test"),
        ];
        for (make, values, expected) in cases {
            assert_eq!(line(make, &values).as_deref(), Ok(expected), "{values}");
        }
    }

    #[test]
    fn a_word_cannot_become_an_option() {
        let cases: [(Maker, Value); 4] = [
            (restore, json!({"revision": "--set-id"})),
            (diff, json!({"from": "--exit-code"})),
            (fork, json!({"names": ["--dir=/"]})),
            (merge, json!({"sources": ["--ff-only"]})),
        ];
        for (make, values) in cases {
            assert!(line(make, &values).is_err_and(|message| message.contains("must not begin with -")), "{values}");
        }
        assert!(line(diff, &json!({"to": "@"})).is_err());
        assert!(line(fork, &json!({"names": ["a"], "count": 2})).is_err());
    }
}
