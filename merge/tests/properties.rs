//! What holds for all versions, whatever they are: made-up documents and edits against small models of what must come out.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_merge::markers::{EditState, read_edit};
use amalgam_merge::{
    Clash, ConflictSide, ConflictVersions, MergeReport, MergeSettings, MergeStrategy, Options, Outcome, Sides, merge,
    merge_with_fallback, render_conflict,
};
use proptest::prelude::*;
use serde_json::Value;

fn strategy(name: &str) -> MergeStrategy {
    MergeStrategy::named(name).expect("a way")
}

fn done(name: &str, base: &str, ours: &str, theirs: &str) -> MergeReport {
    let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
    merge_with_fallback(&strategy(name), &sides, &MergeSettings::default())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text stays text")
}

/// Bytes of any kind, and often nearly the same.
fn versions() -> impl Strategy<Value = [Vec<u8>; 3]> {
    let piece = prop_oneof![
        Just(b"a\n".to_vec()),
        Just(b"}\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"{\"a\": [1,".to_vec()),
        Just(b"- a: b\n".to_vec()),
        Just(b"[x]\ny = 1\n".to_vec()),
        Just(b"<<<<<<< a\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    let side = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    prop::array::uniform3(side)
}

/// So many cases, and no file of failures: what fails becomes a case of its own.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn nothing_makes_a_way_panic_and_equal_versions_never_conflict([base, ours, theirs] in versions()) {
        for name in MergeStrategy::names() {
            let setting = MergeSettings::default();
            for base in [None, Some(base.as_slice())] {
                let sides = Sides { base, ours: &ours, theirs: &theirs };
                let one = merge_with_fallback(&strategy(name), &sides, &setting);
                prop_assert_eq!(&one, &merge_with_fallback(&strategy(name), &sides, &setting), "{} is a function", name);
                let same = Sides { base, ours: &ours, theirs: &ours };
                prop_assert_eq!(merge(&strategy(name), &same, &setting), Outcome::Merged(ours.clone()));
            }
            let unchanged = Sides { base: Some(&base), ours: &base, theirs: &theirs };
            prop_assert_eq!(merge(&strategy(name), &unchanged, &setting), Outcome::Merged(theirs.clone()));
            prop_assert_eq!(merge(&strategy(name), &unchanged.swapped(), &setting), Outcome::Merged(theirs.clone()));
        }
    }

    #[test]
    fn lines_merge_the_same_with_the_sides_exchanged([base, ours, theirs] in versions()) {
        let sides = Sides { base: Some(&base), ours: &ours, theirs: &theirs };
        let (one, other) = (merge(&strategy("text"), &sides, &MergeSettings::default()), merge(&strategy("text"), &sides.swapped(), &MergeSettings::default()));
        match (one, other) {
            (Outcome::Conflicted(one), Outcome::Conflicted(other)) => {
                let turned = |clash: &Clash| match clash {
                    Clash::Lines { base, ours, theirs } => Clash::Lines { base: *base, ours: *theirs, theirs: *ours },
                    Clash::Path(path) => Clash::Path(path.clone()),
                };
                prop_assert_eq!(one.clashes, other.clashes.iter().map(turned).collect::<Vec<_>>());
            }
            (Outcome::Unable(_), Outcome::Unable(_)) => {}
            (one, other) => prop_assert_eq!(one, other),
        }
    }

    #[test]
    fn a_conflict_in_a_file_is_found_again_until_its_markers_are_gone([base, ours, theirs] in versions()) {
        let sides = Sides { base: Some(&base), ours: &ours, theirs: &theirs };
        let Outcome::Conflicted(conflicted) = merge(&strategy("text"), &sides, &MergeSettings::default()) else { return Ok(()) };
        let rendered = conflicted.rendered;
        prop_assert_eq!(read_edit(&rendered.bytes, &rendered), EditState::Untouched);
        for version in [&base, &ours, &theirs] {
            prop_assert_eq!(read_edit(version, &rendered), EditState::Resolved, "no version is taken for a conflict");
        }
        let mut longer = rendered.bytes.clone();
        longer.extend_from_slice(b"\nmore\n");
        prop_assert_eq!(read_edit(&longer, &rendered), EditState::StillHas(rendered.regions));
        prop_assert_eq!(rendered.regions, conflicted.clashes.len());
    }
}

/// Documents of several sides: which of the keys each one changed.
fn many_sides() -> impl Strategy<Value = Vec<BTreeSet<usize>>> {
    prop::collection::vec(prop::collection::btree_set(0..9_usize, 0..5), 3..6)
}

proptest! {
    #![proptest_config(cases(200))]

    /// What one side changed is merged and stands outside of the markers; what several did stands between them, each version.
    #[test]
    fn many_sides_of_a_document_are_shown_at_what_they_dispute(sides in many_sides()) {
        let changed_by = |key: usize| sides.iter().filter(|side| side.contains(&key)).count();
        prop_assume!((0..9).any(|key| changed_by(key) > 1));
        for (strategy, open, is, comma, close) in
            [("json", "{\n", ": ", ",", "}\n"), ("yaml", "", ": ", "", ""), ("toml", "", " = ", "", "")]
        {
            let document = |value: &dyn Fn(usize) -> String| {
                let line = |key: usize| {
                    let name = if strategy == "json" { format!("\"k{key}\"") } else { format!("k{key}") };
                    let comma = if key < 8 { comma } else { "" };
                    // The last one is a list without names, to which sides add something.
                    let value = if key < 8 { format!("\"{}\"", value(key)) } else { format!("[1, \"{}\"]", value(key)) };
                    format!("{name}{is}{value}{comma}\n")
                };
                format!("{open}{}{close}", (0..9).map(line).collect::<String>())
            };
            let base = document(&|key| format!("base{key}"));
            let texts: Vec<_> = sides.iter().enumerate().map(|(at, side)| {
                document(&|key| if side.contains(&key) { format!("side{at}-{key}.") } else { format!("base{key}") })
            }).collect();
            let versions = ConflictVersions {
                added: texts.iter().map(|text| ConflictSide { label: "side-1".to_owned(), bytes: Some(text.as_bytes()) }).collect(),
                removed: vec![Some(base.as_bytes()); sides.len() - 1],
            };
            let rendered = render_conflict(&versions, Some(&self::strategy(strategy)), &MergeSettings::default()).expect("texts that differ");
            let shown = text(&rendered.bytes);
            let (mut inside, mut outside, mut is_inside) = (String::new(), String::new(), false);
            let mut is_base = false;
            for line in shown.lines() {
                is_inside |= line.starts_with("<<<<<<<");
                is_base = line.starts_with("|||||||") || (is_base && !line.starts_with("======="));
                let is_of_a_side = line.contains("\"side") && !line.starts_with("|||||||");
                prop_assert!(!(is_base && is_of_a_side), "{strategy}: a side as the base in\n{shown}");
                (if is_inside { &mut inside } else { &mut outside }).push_str(&format!("{line}\n"));
                is_inside &= !line.starts_with(">>>>>>>");
            }
            for (at, side) in sides.iter().enumerate() {
                for key in side {
                    let value = format!("side{at}-{key}.");
                    let (place, other) = if changed_by(*key) > 1 { (&inside, &outside) } else { (&outside, &inside) };
                    prop_assert!(place.contains(&value) && !other.contains(&value), "{strategy}: {value} in\n{shown}");
                }
            }
        }
    }
}

/// A nested map of numbers: what documents are made of here.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Leaf(u8),
    Map(BTreeMap<String, Tree>),
}

fn map(depth: u32) -> BoxedStrategy<Tree> {
    let value = match depth {
        0 => (0..3_u8).prop_map(Tree::Leaf).boxed(),
        _ => prop_oneof![2 => (0..3_u8).prop_map(Tree::Leaf), 1 => map(depth - 1)].boxed(),
    };
    let key = (0..6_u8).prop_map(|key| format!("k{key}"));
    prop::collection::btree_map(key, value, 1..5).prop_map(Tree::Map).boxed()
}

/// What must come out, and at which paths not.
fn model(
    base: Option<&Tree>,
    ours: Option<&Tree>,
    theirs: Option<&Tree>,
    path: &str,
    clashes: &mut BTreeSet<String>,
) -> Option<Tree> {
    if ours == theirs || base == theirs {
        return ours.cloned();
    }
    if base == ours {
        return theirs.cloned();
    }
    let (Some(Tree::Map(mine)), Some(Tree::Map(other))) = (ours, theirs) else {
        clashes.insert(path.to_owned());
        return None;
    };
    let was = match base {
        Some(Tree::Map(was)) => was.clone(),
        _ => BTreeMap::new(),
    };
    let keys: BTreeSet<_> = mine.keys().chain(other.keys()).collect();
    let merged = keys.into_iter().filter_map(|key| {
        let value = model(was.get(key), mine.get(key), other.get(key), &format!("{path}/{key}"), clashes)?;
        Some((key.clone(), value))
    });
    Some(Tree::Map(merged.collect()))
}

fn json(tree: &Tree, indent: usize) -> String {
    match tree {
        Tree::Leaf(number) => number.to_string(),
        Tree::Map(map) if map.is_empty() => "{}".to_owned(),
        Tree::Map(map) => {
            let blanks = "  ".repeat(indent + 1);
            let fields: Vec<_> =
                map.iter().map(|(key, value)| format!("{blanks}\"{key}\": {}", json(value, indent + 1))).collect();
            format!("{{\n{}\n{}}}", fields.join(",\n"), "  ".repeat(indent))
        }
    }
}

/// The same as YAML, with a comment above each key.
fn yaml(tree: &Tree, path: &str, out: &mut String) {
    let Tree::Map(map) = tree else { return };
    let blanks = "  ".repeat(path.matches('/').count());
    for (key, value) in map {
        out.push_str(&format!("{blanks}# about {path}{key}\n{blanks}{key}:"));
        match value {
            Tree::Leaf(number) => out.push_str(&format!(" {number}\n")),
            Tree::Map(_) => {
                out.push('\n');
                yaml(value, &format!("{path}{key}/"), out);
            }
        }
    }
}

/// The keys and values of such a document, by their paths; each with its comment above it.
fn read_yaml(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut path: Vec<String> = Vec::new();
    let mut comment = String::new();
    for line in text.lines() {
        let content = line.trim_start();
        let depth = (line.len() - content.len()) / 2;
        if content.starts_with('#') {
            comment = content.to_owned();
            continue;
        }
        let (key, value) = content.split_once(':').expect("a key");
        path.truncate(depth);
        path.push(key.to_owned());
        assert_eq!(comment, format!("# about {}", path.join("/")), "{text}");
        assert!(found.insert(path.join("/"), value.trim().to_owned()).is_none(), "{text}");
        comment.clear();
    }
    found
}

fn toml(tree: &Tree) -> String {
    let Tree::Map(map) = tree else { return String::new() };
    let mut out = String::new();
    let leaves = |map: &BTreeMap<String, Tree>, path: &str, out: &mut String| {
        for (key, value) in map {
            if let Tree::Leaf(number) = value {
                out.push_str(&format!("# about {path}{key}\n{key} = {number} # at {path}{key}\n"));
            }
        }
    };
    leaves(map, "", &mut out);
    for (key, value) in map {
        if let Tree::Map(inner) = value {
            out.push_str(&format!("\n# section {key}\n[{key}]\n"));
            leaves(inner, &format!("{key}."), &mut out);
        }
    }
    out
}

/// Whether there is an empty map in it.
fn has_empty(tree: &Tree) -> bool {
    match tree {
        Tree::Leaf(_) => false,
        Tree::Map(map) => map.is_empty() || map.values().any(has_empty),
    }
}

fn value(tree: &Tree) -> Value {
    serde_json::from_str(&json(tree, 0)).expect("JSON")
}

fn paths(outcome: &Outcome) -> BTreeSet<String> {
    let Outcome::Conflicted(conflicted) = outcome else { return BTreeSet::new() };
    let path = |clash: &Clash| match clash {
        Clash::Path(path) => path.clone(),
        Clash::Lines { .. } => "lines".to_owned(),
    };
    conflicted.clashes.iter().map(path).collect()
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn json_merges_as_the_model_says(base in map(2), ours in map(2), theirs in map(2)) {
        let mut clashes = BTreeSet::new();
        let expected = model(Some(&base), Some(&ours), Some(&theirs), "", &mut clashes);
        // The same meaning in another layout, so that no version is equal to another by its bytes.
        let ours_text = json(&ours, 0) + "\n\n";
        let merged = done("json", &json(&base, 0), &ours_text, &(json(&theirs, 0) + "\n"));
        prop_assert_eq!(merged.strategy, "json");
        match &merged.outcome {
            Outcome::Merged(bytes) => {
                prop_assert!(clashes.is_empty(), "{:?}", clashes);
                let result: Value = serde_json::from_slice(bytes).expect("the result is JSON");
                prop_assert_eq!(Some(result), expected.as_ref().map(value));
            }
            outcome => prop_assert_eq!(paths(outcome), clashes),
        }
        let mirror = done("json", &json(&base, 0), &(json(&theirs, 0) + "\n"), &ours_text);
        prop_assert_eq!(paths(&merged.outcome), paths(&mirror.outcome));
        if let (Outcome::Merged(one), Outcome::Merged(other)) = (&merged.outcome, &mirror.outcome) {
            prop_assert_eq!(text(one).trim_end().to_owned(), text(other).trim_end().to_owned());
        }
    }

    #[test]
    fn yaml_merges_as_the_model_says_and_keeps_its_comments(base in map(2), ours in map(2), theirs in map(2)) {
        let print = |tree: &Tree| {
            let mut out = String::new();
            yaml(tree, "", &mut out);
            out
        };
        let mut clashes = BTreeSet::new();
        let expected = model(Some(&base), Some(&ours), Some(&theirs), "", &mut clashes);
        let merged = done("yaml", &print(&base), &print(&ours), &print(&theirs));
        // A map of which nothing is left has no text of its own.
        let is_emptied = expected.as_ref().is_some_and(has_empty);
        prop_assert!(merged.strategy == "yaml" || is_emptied, "{:?}", merged.failed_attempts);
        match &merged.outcome {
            _ if merged.strategy == "text" => {}
            Outcome::Merged(bytes) => {
                prop_assert!(clashes.is_empty(), "{:?}", clashes);
                prop_assert_eq!(read_yaml(&text(bytes)), read_yaml(&print(&expected.expect("no clash"))));
            }
            outcome => prop_assert_eq!(paths(outcome), clashes),
        }
    }

    #[test]
    fn toml_merges_as_the_model_says_and_keeps_its_comments(base in map(1), ours in map(1), theirs in map(1)) {
        let mut clashes = BTreeSet::new();
        let expected = model(Some(&base), Some(&ours), Some(&theirs), "", &mut clashes);
        let merged = done("toml", &toml(&base), &toml(&ours), &toml(&theirs));
        let kinds = |tree: &Tree| match tree {
            Tree::Map(map) => map.iter().map(|(key, value)| (key.clone(), matches!(value, Tree::Map(_)))).collect(),
            Tree::Leaf(_) => BTreeMap::new(),
        };
        let all: BTreeSet<_> = [&base, &ours, &theirs].iter().flat_map(|tree| kinds(tree)).collect();
        // A key that is a section elsewhere is the one thing that structure leaves to lines here.
        let is_spelled_twice = all.iter().any(|(key, is_map)| all.contains(&(key.clone(), !is_map)));
        prop_assert!(merged.strategy == "toml" || is_spelled_twice, "{:?}", merged.failed_attempts);
        match &merged.outcome {
            _ if merged.strategy == "text" => {}
            Outcome::Merged(bytes) => {
                prop_assert!(clashes.is_empty(), "{:?}", clashes);
                let sorted = |text: &str| {
                    let mut lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
                    lines.sort();
                    lines
                };
                prop_assert_eq!(sorted(&text(bytes)), sorted(&toml(&expected.expect("no clash"))));
            }
            outcome => prop_assert_eq!(paths(outcome).len(), clashes.len()),
        }
    }

    #[test]
    fn what_nobody_touched_stays_byte_for_byte(
        blanks in prop::collection::vec("[ \n\t]{0,3}", 8),
        changes in prop::collection::vec((0..8_usize, any::<bool>(), 0..9_u8), 0..6),
    ) {
        let print = |values: &[String]| {
            let fields: Vec<_> = values.iter().enumerate().map(|(at, value)| format!("{}\"k{at}\"{}:{value}", blanks[at], blanks[7 - at])).collect();
            format!("{{{}{}}}", fields.join(","), blanks[0])
        };
        let base: Vec<String> = (0..8).map(|at| format!("{}[1.0,{}-0, \"\\u00e9\",{{\"x\" :1e400}}]", blanks[at], blanks[(at * 3) % 8])).collect();
        let (mut ours, mut theirs) = (base.clone(), base.clone());
        for (at, is_ours, number) in changes {
            let side = if is_ours { &mut ours } else { &mut theirs };
            side[at] = number.to_string();
        }
        let merged = done("json", &print(&base), &print(&ours), &print(&theirs));
        prop_assert_eq!(merged.strategy, "json");
        let pick = |at: usize| if ours[at] == base[at] { &theirs[at] } else { &ours[at] };
        let is_clean = (0..8).all(|at| ours[at] == theirs[at] || ours[at] == base[at] || theirs[at] == base[at]);
        match merged.outcome {
            Outcome::Merged(bytes) => {
                prop_assert!(is_clean);
                let expected: Vec<String> = (0..8).map(|at| pick(at).clone()).collect();
                prop_assert_eq!(text(&bytes), print(&expected));
            }
            outcome => prop_assert!(!is_clean, "{:?}", outcome),
        }
    }
}

/// JSON of any kind, with lists, counters and texts.
fn document() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..5_i64).prop_map(Value::from),
        "[ab ]{0,4}".prop_map(Value::from),
        (0..9_i64).prop_map(|count| serde_json::json!({ "$counter": count })),
        "[ab ]{0,6}".prop_map(|text| serde_json::json!({ "$text": text })),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..5)
                .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
    .boxed()
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn documents_without_conflicts_do_not_care_which_side_is_ours(base in document(), ours in document(), theirs in document()) {
        let [base, ours, theirs] = [base, ours, theirs].map(|value| value.to_string());
        let one = done("crdt", &base, &ours, &theirs);
        prop_assert_eq!(&one, &done("crdt", &base, &theirs, &ours));
        prop_assert_eq!(one.strategy, "crdt");
        let Outcome::Merged(bytes) = one.outcome else { panic!("it never conflicts") };
        serde_json::from_slice::<Value>(&bytes).expect("the result is JSON");
        // What was merged already changes nothing any more.
        let again = done("crdt", &text(&bytes), &text(&bytes), &theirs);
        prop_assert_eq!(again.outcome, Outcome::Merged(theirs.into_bytes()));
    }

    #[test]
    fn lists_and_fields_of_any_json_merge_without_harm(base in document(), ours in document(), theirs in document(), both in any::<bool>()) {
        let mut strategy = strategy("json");
        strategy.options = Options { lists: if both { amalgam_merge::Lists::Both } else { amalgam_merge::Lists::Conflict }, ..Options::default() };
        let print = |value: &Value| serde_json::to_string_pretty(value).expect("JSON");
        let [base, ours, theirs] = [print(&base), print(&ours), print(&theirs)];
        let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
        let (one, other) = (merge(&strategy, &sides, &MergeSettings::default()), merge(&strategy, &sides.swapped(), &MergeSettings::default()));
        match (&one, &other) {
            (Outcome::Merged(one), Outcome::Merged(other)) => {
                let [one, other] = [one, other].map(|bytes| serde_json::from_slice::<Value>(bytes).expect("JSON"));
                prop_assert_eq!(one, other);
            }
            (Outcome::Conflicted(one), Outcome::Conflicted(other)) => prop_assert_eq!(one.clashes.len(), other.clashes.len()),
            _ => prop_assert!(false, "{:?} {:?}", one, other),
        }
    }
}
