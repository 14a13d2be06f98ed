//! Checks of the sources: layers of crates and modules, dependencies that must not exist, and small rules of style. Each check is a
//! function that reads the tree and returns complaints; a sample shows that it finds a violation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/guide.rs"]
mod guide;

/// The layer of each crate. No crate imports one of a higher layer.
const LAYERS: [(&str, u32); 21] = [
    ("amalgam-test-support", 0),
    ("amalgam-textdiff", 0),
    ("amalgam-policy", 0),
    ("amalgam-engine", 1),
    ("amalgam-view", 2),
    ("amalgam-materializer", 2),
    ("amalgam-merge", 2),
    ("amalgam-conflicts", 2),
    ("amalgam-sandbox", 2),
    ("amalgam-gc", 2),
    ("amalgam-transfer", 2),
    ("amalgam-exchange", 2),
    ("amalgam-proto", 2),
    ("amalgam-cloud", 2),
    ("amalgam-server", 3),
    ("amalgam-e2b", 3),
    ("amalgam-fuse", 3),
    ("amalgam-nfs", 3),
    ("amalgam-gateway", 4),
    ("amalgam-cli", 5),
    ("amalgam-agent", 5),
];
/// Crates outside of the layers: they may import everything, and nothing imports them.
const BESIDE: [&str; 2] = ["amalgam-tests", "amalgam-benches"];

/// The engine's modules from the ground up. Each uses only those before it.
const MODULES: [&str; 36] = [
    "progress",
    "split_mix",
    "time",
    "name",
    "id",
    "malformed",
    "object",
    "reference",
    "tombstone",
    "error",
    "limit",
    "changed_paths",
    "compress",
    "backend",
    "store",
    "merkle",
    "content",
    "directory",
    "work",
    "assemble",
    "diff",
    "insight",
    "commit",
    "admit",
    "operation",
    "lean",
    "conflict",
    "workspace",
    "revision",
    "history",
    "merge",
    "queue",
    "episode",
    "search",
    "verify",
    "purge",
];

const FILE_LINES_MAX: usize = 700;
const THIS_FILE: &str = "tests/tests/tidy.rs";

/// A tracked text file.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Its lines of code, with their numbers; comments are free to name what code may not use.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The complaints about lines of code that hold one of these.
    fn mentions<'a>(&'a self, words: &'a [&'a str], why: &'a str) -> impl Iterator<Item = String> + 'a {
        self.code().flat_map(move |(number, line)| {
            let found = words.iter().filter(move |word| line.contains(**word));
            found.map(move |word| format!("{}:{number}: `{word}`: {why}", self.path))
        })
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn output(command: &mut Command) -> Vec<u8> {
    let done = command.current_dir(repository()).output().expect("the command runs");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

fn sources() -> Vec<Source> {
    let listed = output(Command::new("git").args(["ls-files", "-z"]));
    let paths = String::from_utf8(listed).expect("paths are text");
    let read = |path: &str| {
        let text = std::fs::read_to_string(repository().join(path)).ok()?;
        Some(Source { path: path.to_owned(), text })
    };
    let sources: Vec<_> = paths.split('\0').filter(|path| !path.is_empty()).filter_map(read).collect();
    assert!(sources.len() > 50, "the whole tree is read");
    sources
}

fn sample(path: &str, text: &str) -> Vec<Source> {
    vec![Source { path: path.to_owned(), text: text.to_owned() }]
}

type Complaints = Vec<String>;

fn assert_none(complaints: &Complaints) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// What `cargo metadata` says about imports that point up.
fn arrows_up(metadata: &Value) -> Complaints {
    let layer = |name: &str| LAYERS.iter().find(|(package, _)| *package == name).map(|(_, layer)| *layer);
    let mut complaints = Complaints::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        if layer(name).is_none() && !BESIDE.contains(&name) {
            complaints.push(format!("{name} has no layer; add it in {THIS_FILE}"));
            continue;
        }
        let imports = package["dependencies"].as_array().expect("dependencies");
        for import in imports.iter().filter_map(|import| import["name"].as_str()) {
            match (layer(name), layer(import)) {
                _ if BESIDE.contains(&import) => {
                    complaints.push(format!("{name} imports {import}, which stands beside"))
                }
                (Some(here), Some(there)) if there > here => {
                    complaints.push(format!("{name} imports {import} from above"))
                }
                _ => {}
            }
        }
    }
    complaints
}

#[test]
fn no_crate_imports_one_of_a_higher_layer() {
    let metadata = output(Command::new(env!("CARGO")).args([
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
        "--locked",
    ]));
    let metadata: Value = serde_json::from_slice(&metadata).expect("JSON");
    assert_none(&arrows_up(&metadata));
    let bad = |name: &str, import: &str| {
        arrows_up(&serde_json::json!({"packages": [{"name": name, "dependencies": [{"name": import}]}]})).len()
    };
    assert_eq!(bad("amalgam-engine", "amalgam-view"), 1);
    assert_eq!(bad("amalgam-view", "amalgam-tests"), 1);
    assert_eq!(bad("amalgam-common", "bytes"), 1);
    assert_eq!(bad("amalgam-server", "amalgam-engine"), 0);
}

/// Modules of the engine that use one above them.
fn modules_up(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let Some(inside) = source.path.strip_prefix("engine/src/") else { continue };
        let module = inside.split(['/', '.']).next().expect("a path has a part");
        if module == "lib" {
            continue;
        }
        let Some(layer) = MODULES.iter().position(|name| *name == module) else {
            complaints.push(format!("{}: the module `{module}` has no layer; add it in {THIS_FILE}", source.path));
            continue;
        };
        for (number, line) in source.code() {
            let used = line
                .split("crate::")
                .skip(1)
                .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
            for used in used {
                match MODULES.iter().position(|name| *name == used) {
                    Some(above) if above > layer => {
                        complaints.push(format!("{}:{number}: `{module}` uses `{used}` from above", source.path));
                    }
                    Some(_) => {}
                    None => {
                        complaints.push(format!("{}:{number}: `crate::{used}` hides which module it is", source.path))
                    }
                }
            }
        }
    }
    complaints
}

#[test]
fn no_module_of_the_engine_uses_one_above_it() {
    assert_none(&modules_up(&sources()));
    let bad = |path: &str, text: &str| modules_up(&sample(path, text)).len();
    assert_eq!(bad("engine/src/store/cache.rs", "use crate::work::WorkingTree;"), 1);
    assert_eq!(bad("engine/src/id.rs", "fn f() -> crate::error::Result<()>"), 1);
    assert_eq!(bad("engine/src/id.rs", "use crate::Store;"), 1);
    assert_eq!(bad("engine/src/helper.rs", ""), 1);
    assert_eq!(bad("engine/src/work/edit.rs", "use crate::store::Store;\n// crate::commit says more"), 0);
}

/// The most files of each crate that may be in import circles. A ceiling may only fall. Two circles are natural, because a value
/// contains itself: an entry may be a conflict of entries, and a node of a document contains nodes.
const CIRCULAR_FILES_MAX: [(&str, usize); 17] = [
    ("cli", 0),
    ("cloud", 0),
    ("conflicts", 0),
    ("e2b", 0),
    ("engine", 2),
    ("exchange", 0),
    ("fuse", 0),
    ("gc", 0),
    ("materializer", 0),
    ("merge", 2),
    ("nfs", 0),
    ("policy", 0),
    ("proto", 0),
    ("server", 0),
    ("textdiff", 0),
    ("transfer", 0),
    ("view", 0),
];

/// Crates with more files in import circles than their ceilings allow.
fn circular_files(sources: &[Source], ceilings: &[(&str, usize)]) -> Complaints {
    let mut complaints = Complaints::new();
    for (name, most) in ceilings {
        let folder = format!("{name}/src/");
        let files = sources.iter().filter(|source| source.is_rust());
        let files = files.filter_map(|source| Some((source.path.strip_prefix(&folder)?, &*source.text)));
        let found = circles::Modules::read(files).circles();
        let count: usize = found.iter().map(Vec::len).sum();
        if count > *most {
            let listed: Vec<_> = found.iter().map(|circle| circle.join(", ")).collect();
            complaints.push(format!("{name}: {count} files in import circles, at most {most}: {}", listed.join(" | ")));
        }
    }
    complaints
}

#[test]
fn files_of_a_crate_do_not_import_each_other_in_circles() {
    assert_none(&circular_files(&sources(), &CIRCULAR_FILES_MAX));
    let found = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().flat_map(|(path, text)| sample(&format!("a/src/{path}.rs"), text)).collect();
        circular_files(&files, &[("a", 0)])
    };
    let lib = ("lib", "mod b;\nmod c;\npub use b::B;\n");
    assert_eq!(found(&[lib, ("b", "use crate::c::{self, C};"), ("c", "pub struct C;")]).len(), 0);
    assert_eq!(found(&[lib, ("b", "use super::c::C;"), ("c", "fn f(b: &crate::b::B) {}")]).len(), 1);
    assert_eq!(found(&[lib, ("b", "use crate::c::C;"), ("c", "use crate::B;")]).len(), 1, "through a re-export");
    assert_eq!(found(&[("b", "mod d;\nuse d::D;\nstruct B;"), ("b/d", "use super::B;")]).len(), 1, "parent and child");
    assert_eq!(found(&[("b", "mod d;\npub(crate) use d::D;"), ("b/d", "use super::B;")]).len(), 0, "a re-export");
    assert_eq!(
        found(&[lib, ("b", "// crate::c::C\nconst T: &str = \"crate::c\";"), ("c", "use crate::b::B;")]).len(),
        0
    );
    let tests = "#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}";
    assert_eq!(found(&[lib, ("b", tests), ("c", "use crate::b::B;")]).len(), 0, "tests are left out");
}

/// Files other than those that may, that know RocksDB.
fn knows_rocksdb(sources: &[Source]) -> Complaints {
    let others = sources.iter().filter(|source| source.is_rust() && !is_tidy(source));
    others
        .filter(|source| source.path != "engine/src/backend/rocks.rs")
        .filter(|source| !source.path.starts_with("engine/src/backend/rocks/"))
        .flat_map(|source| source.mentions(&["rocksdb::", "use rocksdb"], "only backend/rocks knows RocksDB"))
        .collect()
}

#[test]
fn only_one_module_uses_rocksdb() {
    let sources = sources();
    assert_none(&knows_rocksdb(&sources));
    assert!(
        sources
            .iter()
            .any(|source| source.path == "engine/src/backend/rocks.rs" && source.text.contains("use rocksdb"))
    );
    assert_eq!(knows_rocksdb(&sample("gc/src/lib.rs", "use rocksdb::DB;")).len(), 2);
}

const OUTSIDE: [&str; 16] = [
    "SystemTime::now",
    "Instant::now",
    "std::env",
    "env::var",
    "std::net",
    "std::process",
    "rand::",
    "use rand",
    "getrandom",
    "fastrand",
    "tokio",
    "async fn",
    ".await",
    "println!",
    "thread::sleep",
    "RandomState::new",
];

/// The engine's and the merge's uses of clock, chance, environment, network and other processes.
fn reaches_outside(sources: &[Source]) -> Complaints {
    let pure = ["engine/src/", "merge/src/", "textdiff/src/"];
    let is_pure = |source: &&Source| source.is_rust() && pure.iter().any(|start| source.path.starts_with(start));
    let engine = sources.iter().filter(is_pure);
    engine.flat_map(|source| source.mentions(&OUTSIDE, "time, ids and settings are arguments of the engine")).collect()
}

#[test]
fn the_engine_reads_no_clock_chance_environment_or_network() {
    assert_none(&reaches_outside(&sources()));
    for word in OUTSIDE {
        assert!(
            !reaches_outside(&sample("engine/src/work.rs", &format!("    let x = {word}();"))).is_empty(),
            "{word}"
        );
    }
    assert!(!reaches_outside(&sample("merge/src/take.rs", "    let now = Instant::now();")).is_empty());
    assert!(reaches_outside(&sample("engine/src/work.rs", "    /// No SystemTime::now here.")).is_empty());
}

fn knows_prost(sources: &[Source]) -> Complaints {
    let engine = sources.iter().filter(|source| source.is_rust() && source.path.starts_with("engine/src/"));
    engine
        .filter(|source| source.path != "engine/src/object/codec.rs")
        .flat_map(|source| {
            source.mentions(&["prost::", "use prost", "derive(Message"], "only object/codec.rs knows prost")
        })
        .collect()
}

#[test]
fn one_file_of_the_engine_knows_prost() {
    assert_none(&knows_prost(&sources()));
    assert!(!knows_prost(&sample("engine/src/object/root.rs", "use prost::Message;")).is_empty());
}

fn bad_file_names(sources: &[Source]) -> Complaints {
    let bad = ["mod", "util", "utils", "common", "helper", "helpers", "misc"];
    let is_bad = |path: &str| path.split('/').any(|part| bad.contains(&part.trim_end_matches(".rs")));
    let rust = sources.iter().filter(|source| source.is_rust());
    rust.filter(|source| is_bad(&source.path))
        .map(|source| format!("{}: a name that says nothing", source.path))
        .collect()
}

#[test]
fn files_are_named_for_what_they_hold() {
    assert_none(&bad_file_names(&sources()));
    for path in ["engine/src/work/mod.rs", "engine/src/util.rs", "tests/tests/common/setup.rs", "cli/src/helpers.rs"] {
        assert_eq!(bad_file_names(&sample(path, "")).len(), 1, "{path}");
    }
}

/// Macros and attributes that leave work undone, in code; words for it, in comments as well.
fn left_behind(sources: &[Source]) -> Complaints {
    let why = "nothing is left undone or ignored";
    let code = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore"];
    let rust = || sources.iter().filter(|source| source.is_rust() && !is_tidy(source));
    let mut complaints: Complaints = rust().flat_map(|source| source.mentions(&code, why)).collect();
    for source in rust() {
        for (number, line) in (1..).zip(source.text.lines()) {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = words.find(|word| ["TODO", "FIXME", "XXX"].contains(word)) {
                complaints.push(format!("{}:{number}: `{word}`: {why}", source.path));
            }
        }
    }
    complaints
}

/// Whether a file is part of these checks, whose samples hold what they look for.
fn is_tidy(source: &Source) -> bool {
    source.path == THIS_FILE || source.path.starts_with("tests/tests/tidy/")
}

#[test]
fn nothing_is_left_undone_or_ignored() {
    assert_none(&left_behind(&sources()));
    for text in [
        "todo!()",
        "    #[ignore = \"slow\"]",
        "dbg!(x);",
        "unimplemented!()",
        "let x = 1; // FIXME",
        "    // TODO",
        "/// TODO: say more.",
        "let x = 1; // XXX slow",
    ] {
        assert_eq!(left_behind(&sample("engine/src/work.rs", text)).len(), 1, "{text}");
    }
    assert_eq!(left_behind(&sample("engine/src/work.rs", "// see todo!(), and TODOS")).len(), 0);
}

fn too_long(sources: &[Source]) -> Complaints {
    let lines = |source: &Source| source.text.lines().count();
    let rust = sources.iter().filter(|source| source.is_rust() && lines(source) > FILE_LINES_MAX);
    rust.map(|source| format!("{}: {} lines; the most is {FILE_LINES_MAX}", source.path, lines(source))).collect()
}

#[test]
fn files_are_short_enough_to_read() {
    assert_none(&too_long(&sources()));
    assert_eq!(too_long(&sample("a.rs", &"\n".repeat(FILE_LINES_MAX + 1))).len(), 1);
    assert_eq!(too_long(&sample("a.rs", &"\n".repeat(FILE_LINES_MAX))).len(), 0);
}

/// Traces of one machine, or of how the code came to be.
fn traces(sources: &[Source]) -> Complaints {
    let words =
        ["/home/", "/root/", "/work/", "/tmp/wt", "/Users/", "issue #", "Issue #", "Co-authored-by", "as an AI"];
    let texts =
        sources.iter().filter(|source| source.path != THIS_FILE && !source.path.starts_with("tests/fuzz/corpus/"));
    // A path begins where a word does: `object/root/empty` is none of a machine's.
    let holds = |line: &str, word: &str| {
        let mut places = line.match_indices(word);
        places.any(|(at, _)| !word.starts_with('/') || !line[..at].ends_with(char::is_alphanumeric))
    };
    let in_lines = |source: &Source| -> Complaints {
        let mut complaints = Complaints::new();
        for (number, line) in (1..).zip(source.text.lines()) {
            let found = words.iter().filter(|word| holds(line, word));
            complaints.extend(
                found.map(|word| format!("{}:{number}: `{word}` belongs to a machine or a moment", source.path)),
            );
        }
        complaints
    };
    texts.flat_map(in_lines).collect()
}

#[test]
fn no_file_speaks_of_a_machine_or_a_moment() {
    assert_none(&traces(&sources()));
    assert_eq!(traces(&sample("README.md", "built in /home/ann/src")).len(), 1);
    assert_eq!(traces(&sample("engine/src/id.rs", "// see issue #12")).len(), 1);
    assert_eq!(traces(&sample("a.txt", "object/root/empty")).len(), 0);
}

fn without_doc(sources: &[Source]) -> Complaints {
    let rust = sources.iter().filter(|source| source.is_rust() && !source.text.starts_with("//! "));
    rust.map(|source| format!("{}: the first line says what the module is", source.path)).collect()
}

#[test]
fn every_module_says_what_it_is() {
    assert_none(&without_doc(&sources()));
    assert_eq!(without_doc(&sample("engine/src/id.rs", "use std::fmt;")).len(), 1);
}

fn badly_named_designs(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let mut numbers = BTreeMap::new();
    for source in sources {
        let Some(name) = source.path.strip_prefix("docs/design/") else { continue };
        let (number, rest) = name.split_at_checked(4).unwrap_or((name, ""));
        let title = rest.strip_prefix('-').and_then(|rest| rest.strip_suffix(".md")).unwrap_or("");
        let plain =
            !title.is_empty() && title.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !number.chars().all(|c| c.is_ascii_digit()) || !plain {
            complaints.push(format!("{}: a design is named 0001-what-it-is.md", source.path));
        }
        if !source.text.starts_with("# ") {
            complaints.push(format!("{}: it begins with its title", source.path));
        }
        if let Some(other) = numbers.insert(number.to_owned(), &source.path) {
            complaints.push(format!("{} and {other} have one number", source.path));
        }
    }
    complaints
}

#[test]
fn designs_are_numbered_and_named() {
    assert_none(&badly_named_designs(&sources()));
    for (path, text) in
        [("docs/design/1-store.md", "# T"), ("docs/design/0001-Store.md", "# T"), ("docs/design/0001-store.md", "T")]
    {
        assert_eq!(badly_named_designs(&sample(path, text)).len(), 1, "{path}");
    }
    let twice: Vec<_> =
        ["a", "b"].iter().flat_map(|name| sample(&format!("docs/design/0001-{name}.md"), "# T")).collect();
    assert_eq!(badly_named_designs(&twice).len(), 1);
}

/// The names of the functions with a `#[test]` or `#[tokio::test]` attribute.
fn tests_in(source: &Source) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    source.code().filter_map(move |(_, line)| {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        }
        if line.is_empty() || line.starts_with("#[") {
            return None;
        }
        let function = line.trim_start_matches("async ").strip_prefix("fn ")?;
        std::mem::take(&mut is_test).then(|| function.split(['(', '<']).next().unwrap_or(""))
    })
}

/// The tests that a promise names: words like functions in brackets that name a file, for example (`a.rs`: `names_are_bytes`).
fn promised_tests(promise: &str) -> Vec<&str> {
    let is_function = |word: &&str| {
        word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut tests = Vec::new();
    let mut is_after_file = false;
    for (at, part) in promise.split('`').enumerate() {
        match at % 2 {
            1 if part.ends_with(".rs") => is_after_file = true,
            1 => tests.extend(Some(part).filter(is_function).filter(|_| is_after_file)),
            // Calls such as `refused(..)` are inside of backticks: a bracket out here ends the list.
            _ => is_after_file &= !part.contains(')'),
        }
    }
    tests
}

/// Tests that a page of promises names and nobody has, and promises that name no test.
fn unkept_promises(page: &Source, sources: &[Source]) -> Complaints {
    let rust = sources.iter().filter(|source| source.is_rust());
    let tests: BTreeSet<&str> = rust.flat_map(tests_in).collect();
    let mut complaints = Complaints::new();
    for promise in page.text.split("\n- ").skip(1) {
        let promise = promise.split("\n\n").next().expect("a part");
        let promised = promised_tests(promise);
        for test in promised.iter().filter(|test| !tests.contains(**test)) {
            complaints.push(format!("{}: `{test}` is no test anywhere", page.path));
        }
        if promised.is_empty() {
            let start: String = promise.chars().take(60).collect();
            complaints.push(format!("{}: \"{start}…\" names no test", page.path));
        }
    }
    complaints
}

#[test]
fn every_promise_names_its_test() {
    let sources = sources();
    for page in sources.iter().filter(|source| source.path == "docs/SEMANTICS.md") {
        assert_none(&unkept_promises(page, &sources));
    }
    let text = "#[test]\nfn names_are_bytes() {}\n\nfn a_helper() {}\n\n#[tokio::test]\nasync fn calls_end() {}";
    let tests = sample("tests/tests/a.rs", text);
    let page = |text: &str| unkept_promises(&sample("docs/SEMANTICS.md", text)[0], &tests).len();
    assert_eq!(page("# P\n\n- Names are bytes. (`a.rs`: `names_are_bytes`)\n"), 0);
    assert_eq!(page("# P\n\n- `read_at` ends. (`a.rs`: every `f(..)`, `calls_end`)\n"), 0);
    assert_eq!(page("# P\n\n- Names are text. (`a.rs`: `names_are_text`)\n"), 1);
    assert_eq!(page("# P\n\n- Names are bytes. (`a.rs`: `a_helper`)\n"), 1, "a function that is no test");
    assert_eq!(page("# P\n\n- Names are bytes. (`a.rs`)\n"), 1, "a file alone");
    assert_eq!(page("# P\n\n- Names are bytes.\n"), 1);
}

/// Links between pages that lead nowhere. A design may name one that is still being written.
fn broken_links(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let is_page = |path: &str| path.ends_with(".md") && !path.starts_with("docs/design/");
    for source in sources.iter().filter(|source| is_page(&source.path)) {
        let folder = Path::new(&source.path).parent().expect("a folder");
        for target in source.text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_local = !target.is_empty() && !target.contains("://") && !target.contains(char::is_whitespace);
            if is_local && !repository().join(folder).join(target).exists() {
                complaints.push(format!("{}: {target} is not there", source.path));
            }
        }
    }
    complaints
}

#[test]
fn links_between_pages_lead_somewhere() {
    assert_none(&broken_links(&sources()));
    assert_eq!(broken_links(&sample("docs/FORMAT.md", "see [this](NOWHERE.md#part)")).len(), 1);
    assert_eq!(
        broken_links(&sample("docs/FORMAT.md", "see [this](../README.md) and [that](https://example.org)")).len(),
        0
    );
}

/// Phrases that hide the actor or the subject of a sentence; the style of this project names both.
const VAGUE_PHRASES: [&str; 14] = [
    "anybody",
    "everybody",
    "it is looked",
    "nobody",
    "somebody",
    "the same for",
    "what has",
    "what is",
    "what it",
    "what they",
    "what was",
    "what were",
    "whatever",
    "whoever",
];

/// The most vague phrases in 10,000 words of comments, for each crate. A ceiling may only fall.
const VAGUE_MAX: [(&str, usize); 19] = [
    ("agent/src/", 0),
    ("cli/src/", 2),
    ("cloud/src/", 0),
    ("conflicts/src/", 0),
    ("e2b/src/", 0),
    ("engine/src/", 1),
    ("exchange/src/", 0),
    ("fuse/src/", 0),
    ("gateway/src/", 1),
    ("gc/src/", 0),
    ("materializer/src/", 0),
    ("merge/src/", 0),
    ("nfs/src/", 3),
    ("policy/src/", 0),
    ("sandbox/src/", 0),
    ("server/src/", 2),
    ("textdiff/src/", 0),
    ("transfer/src/", 0),
    ("view/src/", 0),
];

/// Counts the words of a file's comments, and the vague phrases among them.
fn vague_phrases(source: &Source) -> (usize, usize) {
    let comments = source.text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
    let (mut words, mut vague) = (0, 0);
    for comment in comments {
        let text = comment.trim_start_matches(['/', '!']).to_lowercase();
        let letters: String = text.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
        let plain = format!(" {} ", letters.split_whitespace().collect::<Vec<_>>().join(" "));
        words += plain.split_whitespace().count();
        vague += VAGUE_PHRASES.iter().map(|phrase| plain.matches(&format!(" {phrase} ")).count()).sum::<usize>();
    }
    (words, vague)
}

fn too_vague(sources: &[Source], ceilings: &[(&str, usize)]) -> Complaints {
    let mut complaints = Complaints::new();
    for (folder, most) in ceilings {
        let counted =
            sources.iter().filter(|source| source.is_rust() && source.path.starts_with(folder)).map(vague_phrases);
        let (words, vague) = counted.fold((0, 0), |(words, vague), (more, phrases)| (words + more, vague + phrases));
        let share = (vague * 10_000).div_ceil(words.max(1));
        if share > *most {
            complaints.push(format!(
                "{folder}: {share} vague phrases in 10,000 words of comments, at most {most} are allowed"
            ));
        }
    }
    complaints
}

#[test]
fn comments_name_actor_and_subject() {
    assert_none(&too_vague(&sources(), &VAGUE_MAX));
    let found = |text: &str| too_vague(&sample("engine/src/lib.rs", text), &[("engine/", 0)]).len();
    assert_eq!(found("/// Whoever asks is told what is there."), 1);
    assert_eq!(found("let whoever = 1; // fine: no comment line"), 0);
    assert_eq!(found("/// Returns the head of a workspace."), 0);
}
