//! Tests of the settings and of their file.

use super::*;

fn config(text: &str) -> Config {
    Config { path: PathBuf::new(), document: text.parse().expect("TOML") }
}

#[test]
fn a_change_keeps_comments() {
    let mut config = config("# mine\npager = \"less\" # always\n");
    set(&mut config, "idle-seconds", &["30"]).expect("a number");
    set(&mut config, "exclude", &["*.o", "target"]).expect("a list");
    let text = config.document.to_string();
    assert_eq!(text, "# mine\npager = \"less\" # always\nidle-seconds = 30\nexclude = [\"*.o\", \"target\"]\n");
    assert_eq!(config.list("exclude"), ["*.o", "target"]);
    let exclude = find_key("exclude").expect("known");
    assert!(config.unset(&exclude));
    assert!(!config.unset(&exclude));
}

#[test]
fn processes_that_save_at_once_share_no_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().expect("a directory");
    // Another process may be writing to a file with a fixed name.
    let foreign = home.path().join("config.toml.new");
    fs::write(&foreign, "theirs").expect("written");
    let path = home.path().join(CONFIG_FILE);
    let mode = || fs::metadata(&path).expect("there").permissions().mode() & 0o777;
    let save = |number: u32| {
        let text = format!("idle-seconds = {number}\n# {}\n", "x".repeat(10_000));
        Config { path: path.clone(), document: text.parse().expect("TOML") }.save().expect("saved");
    };
    save(0);
    assert_eq!((mode(), fs::read_to_string(&foreign).expect("read").as_str()), (0o600, "theirs"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    std::thread::scope(|scope| {
        for number in 1..=8 {
            scope.spawn(move || (0..5).for_each(|_| save(number)));
        }
    });
    let saved = Config::load(home.path()).expect("a whole file");
    assert!(matches!(saved.number("idle-seconds"), Some(1..=8)));
    assert_eq!((mode(), fs::read_dir(home.path()).expect("read").count()), (0o640, 2), "nothing else is left");
}

fn set(config: &mut Config, name: &str, words: &[&str]) -> Result<(), CliError> {
    let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
    config.set(&find_key(name)?, &words)
}

#[test]
fn an_underscore_in_a_key_is_a_hyphen() {
    let mut config = config("idle_seconds = 30 # short\nmerge_tool = \"meld\"\n[store]\nfree_floor = \"1GB\"\n");
    assert_eq!((config.number("idle-seconds"), config.text("merge-tool")), (Some(30), Some("meld")));
    assert_eq!(config.settings().expect("settings").floor_bytes, Some(1_000_000_000));
    assert_eq!(find_key("idle_seconds").expect("known").name(), "idle-seconds");
    set(&mut config, "idle-seconds", &["40"]).expect("a number");
    set(&mut config, "gc.keep_operations", &["10d"]).expect("a time");
    assert!(config.document.to_string().starts_with("idle_seconds = 40"), "{}", config.document);
    assert!(config.document.to_string().contains("gc.keep-operations = \"10d\""), "{}", config.document);
    assert!(config.unset(&find_key("merge-tool").expect("known")));
    assert_eq!(config.text("merge-tool"), None);
    assert_eq!(super::tests::config("log.max_size = \"2kB\"").log_bytes_max().expect("a size"), Some(2_000));
}

#[test]
fn unknown_keys_and_wrong_values_are_refused() {
    let mut config = config("");
    let error = set(&mut config, "colour", &["auto"]).expect_err("unknown");
    assert!(error.to_string().starts_with("`colour` is no setting; there are author, color, commands.environment, "));
    assert!(set(&mut config, "color", &["red"]).is_err());
    assert!(set(&mut config, "idle-seconds", &["-1"]).is_err());
    assert!(set(&mut config, "pager", &[]).is_err());
    let error = set(&mut config, "retention.automatic.daily", &["soon"]).expect_err("no time");
    assert!(error.to_string().starts_with("`retention.automatic.daily`: `soon` is not a time"), "{error}");
    let error = set(&mut config, "store.budget", &["much"]).expect_err("no size");
    assert!(error.to_string().starts_with("`store.budget`: `much` is no size"), "{error}");
    assert!(set(&mut config, "workspace.main.store.budget", &["1GB"]).is_err());
    let error = set(&mut config, "mount.local", &["target", "target/debug"]).expect_err("one in the other");
    assert!(error.to_string().starts_with("`mount.local`: target/debug lies in target"), "{error}");
    assert_eq!(config.document.to_string(), "");
}

#[test]
fn settings_of_one_workspace_begin_with_those_of_all() {
    let mut config = config("");
    for (name, word) in [
        ("workspace.try/1.x.retention.automatic.last", "3"),
        ("workspace.try/1.x.quota", "2 MiB"),
        ("retention.automatic.all", "2h"),
        ("gc.grace", "none"),
        ("store.budget", "500MB"),
    ] {
        set(&mut config, name, &[word]).expect(name);
        assert_eq!(config.shown(&find_key(name).expect(name)).as_deref(), Some(word));
    }
    let read = super::tests::config(&config.document.to_string());
    let settings = read.settings().expect("settings");
    assert_eq!((settings.grace, settings.budget_bytes), (Span::NONE, Some(500_000_000)));
    assert_eq!(settings.quotas_bytes["try/1.x"], 2 << 20);
    let own = settings.policies.of("try/1.x").automatic;
    assert_eq!((own.last, own.all, own.hourly), (3, Span::hours(2), Span::hours(24)));
    assert_eq!(settings.policies.of("main").automatic.last, 0);
    assert_eq!(read.of_workspaces().len(), 2);
    let local = super::tests::config("[mount]\nlocal = [\"a b\", \"c/d\"]").settings().expect("settings").local;
    assert_eq!(local.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a b", "c/d"]);
    for wrong in ["mount.local = \"target\"", "mount.local = [\"/target\"]"] {
        assert!(super::tests::config(wrong).settings().is_err(), "{wrong}");
    }
    let wrong = super::tests::config("retention.automatic.all = \"soon\"").settings().expect_err("wrong");
    assert!(wrong.to_string().starts_with("setting `retention.automatic.all`: `soon` is not a time"), "{wrong}");
}
