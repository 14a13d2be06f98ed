//! Decisions of policies, and complaints about their texts.

use std::sync::Arc;

use amalgam_policy::{Act, Guard, Level, OnRefused, Policy};
use proptest::prelude::*;

fn policy(text: &str) -> Arc<Policy> {
    Arc::new(Policy::read(text).unwrap_or_else(|bad| panic!("{bad}")))
}

#[track_caller]
fn check(text: &str, cases: &[(&str, &str, &str)]) {
    let policy = policy(text);
    for (agent, path, level) in cases {
        assert_eq!(policy.agent(agent).decide(path.as_bytes()).level.word(), *level, "{agent} {path}");
    }
}

#[test]
fn the_last_matching_rule_decides_and_the_default_is_none() {
    check(
        r#"
        [[rule]]
        paths = ["**"]
        level = "R"
        [[rule]]
        agents = ["ann"]
        paths = ["src/**"]
        level = "RW"
        [[rule]]
        paths = ["src/vendor"]
        level = "RA"
        "#,
        &[
            ("ann", "README", "R"),
            ("ann", "src/main.rs", "RW"),
            ("ann", "src/vendor/deep/x", "RA"),
            ("bob", "src/main.rs", "R"),
            ("bob", "src/vendor", "RA"),
        ],
    );
    check("", &[("ann", "anything", "none")]);
    check("default = \"RW-\"", &[("ann", "anything", "RW-")]);
}

#[test]
fn groups_and_patterns_select_agents() {
    check(
        r#"
        default = "R"
        reviewers = ["@leads"]
        [groups]
        writers = ["ann", "bot-*"]
        leads = ["lea"]
        [[rule]]
        agents = ["@writers", "ci"]
        paths = ["src"]
        level = "RW"
        "#,
        &[("ann", "src/a", "RW"), ("bot-7", "src/a", "RW"), ("ci", "src/a", "RW"), ("robot", "src/a", "R")],
    );
    let policy = policy("reviewers = [\"lea\", \"rev-*\"]");
    assert!(policy.is_reviewer("lea") && policy.is_reviewer("rev-2") && !policy.is_reviewer("ann"));
}

#[test]
fn twins_by_case_or_unicode_form_get_the_lesser_level() {
    check(
        "default = \"RW\"\n[[rule]]\npaths = [\"secrets\", \"caf\u{e9}\"]\nlevel = \"none\"",
        &[
            ("ann", "secrets/key", "none"),
            ("ann", "Secrets/key", "none"),
            ("ann", "SECRETS", "none"),
            ("ann", "cafe\u{301}/menu", "none"),
            ("ann", "CAF\u{c9}", "none"),
            ("ann", "secret", "RW"),
        ],
    );
    check(
        "default = \"none\"\n[[rule]]\npaths = [\"src\"]\nlevel = \"RW\"",
        &[("ann", "src/a", "RW"), ("ann", "SRC/a", "none")],
    );
}

#[test]
fn twins_by_unicode_form_get_the_lesser_level_beside_names_that_are_not_utf8() {
    let policy = policy("default = \"RW\"\n[[rule]]\npaths = [\"caf\u{e9}\"]\nlevel = \"none\"");
    let agent = policy.agent("ann");
    for name in ["caf\u{e9}", "cafe\u{301}", "CAF\u{c9}"] {
        for path in [[name.as_bytes(), &b"/\xff"[..]].concat(), [&b"\xff/"[..], name.as_bytes()].concat()] {
            assert_eq!(agent.decide(&path).level, Level::Hidden, "{}", path.escape_ascii());
        }
    }
    assert_eq!(agent.decide(b"\xff/tea").level, Level::Full);
}

#[test]
fn a_directory_is_visible_if_something_below_it_may_be() {
    let policy = policy(
        "[[rule]]\npaths = [\"a/b/open/**\"]\nlevel = \"R\"\n[[rule]]\npaths = [\"a/b/open/shut\"]\nlevel = \"none\"",
    );
    let guard = Guard::new(vec![Arc::new(policy.agent("ann"))]);
    let visible = |path: &str| guard.is_visible(path.as_bytes(), true);
    assert!(visible("") && visible("a") && visible("a/b") && visible("a/b/open") && visible("a/b/open/deep"));
    assert!(!visible("a/c") && !visible("z") && !visible("a/b/open/shut") && !visible("a/b/open/shut/below"));
    assert!(!guard.is_visible(b"a/b", false), "a file there would be hidden");
}

#[test]
fn each_agent_of_a_guard_must_have_the_right() {
    let policy = policy(
        "default = \"R\"\n[[rule]]\nagents = [\"ann\"]\npaths = [\"a\"]\nlevel = \"RW\"\n[[rule]]\nagents = [\"bob\"]\npaths = [\"b\"]\nlevel = \"RW\"",
    );
    let both = Guard::new(vec![Arc::new(policy.agent("ann")), Arc::new(policy.agent("bob"))]);
    assert_eq!((both.level(b"a/x"), both.level(b"b/x")), (Level::Read, Level::Read));
    let refusal = both.refusal(b"a/x", Act::Change).expect("refused");
    assert_eq!((refusal.agent.as_str(), refusal.line), ("bob", None));
    assert_eq!(refusal.to_string(), "bob may not change a/x: the policy's default gives R");
    assert!(Guard::default().refusal(b"a", Act::Remove).is_none());
}

#[test]
fn a_rule_that_hides_a_path_is_not_named() {
    let policy = policy("default = \"RW\"\n[[rule]]\npaths = [\"plans-for-ann\"]\nlevel = \"none\"");
    let guard = Guard::new(vec![Arc::new(policy.agent("ann"))]);
    let told = guard.refusal(b"plans-for-ann/x", Act::Add).expect("refused").to_string();
    assert_eq!(told, "ann may not add plans-for-ann/x");
}

#[test]
fn complaints_name_the_place_and_the_allowed_values() {
    for (text, line, part) in [
        ("default = \"rw\"", 1, "must be \"none\""),
        ("on_refused = \"half\"", 1, "\"review\" or \"partial\""),
        ("rules = 1", 1, "unknown"),
        ("[[rule]]\nlevel = \"R\"", 1, "needs `paths`"),
        ("[[rule]]\npaths = [\"a\"]", 1, "needs `level`"),
        ("[[rule]]\npaths = []\nlevel = \"R\"", 2, "at least one"),
        ("[[rule]]\npaths = [\"a\"]\nlevel = \"R\"\nagent = [\"x\"]", 4, "unknown in a rule"),
        ("[[rule]]\npaths = [\"a\"]\nlevel = \"R\"\nagents = [\"@x\"]", 4, "no group"),
        ("[[rule]]\npaths = [\"a/../b\"]\nlevel = \"R\"", 2, "no `..`"),
        ("[[rule]]\npaths = [\"[\"]\nlevel = \"R\"", 2, "paths"),
        ("default", 1, ""),
    ] {
        let bad = Policy::read(text).expect_err(text);
        let found = &bad.complaints[0];
        assert_eq!(found.line, line, "{text}: {found}");
        assert!(found.what.contains(part), "{text}: {found}");
    }
    assert_eq!(policy("on_refused = \"partial\"").on_refused, OnRefused::Partial);
}

fn level_word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(Level::ALL.map(Level::word).to_vec())
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "A", "c.md"])
}

proptest! {
    /// A visible path has only visible directories above it, and below a directory that is called uniform all levels are its own.
    #[test]
    fn directories_of_visible_paths_are_visible(
        default in level_word(),
        rules in prop::collection::vec((prop::collection::vec(name(), 1..3), any::<bool>(), level_word()), 0..6),
        path in prop::collection::vec(name(), 1..4),
    ) {
        let mut text = format!("default = \"{default}\"\n");
        for (names, below, level) in &rules {
            let end = if *below { "/**" } else { "" };
            text += &format!("[[rule]]\npaths = [\"{}{end}\"]\nlevel = \"{level}\"\n", names.join("/"));
        }
        let policy = policy(&text);
        let guard = Guard::new(vec![Arc::new(policy.agent("ann"))]);
        let whole = path.join("/");
        for depth in 1..path.len() {
            let above = path[..depth].join("/");
            if guard.is_visible(whole.as_bytes(), false) {
                prop_assert!(guard.is_visible(above.as_bytes(), true), "{above} above {whole}\n{text}");
            }
            if guard.is_uniform_below(above.as_bytes()) {
                prop_assert_eq!(guard.level(above.as_bytes()), guard.level(whole.as_bytes()), "{} {}\n{}", above, whole, text);
            }
        }
        let agent = policy.agent("ann");
        prop_assert_eq!(agent.decide(whole.as_bytes()), agent.decide_uncached(whole.as_bytes()));
        prop_assert_eq!(agent.decide(whole.as_bytes()), agent.decide_uncached(whole.as_bytes()));
    }
}
