//! Which texts are state values. The answer comes from a crate; this holds it to what the format says.

use amalgam_engine::object::check;
use amalgam_engine::{ObjectKind, Store, WorkingTree};

use super::raw::{bytes, fields, object};

fn is_value(json: &str) -> bool {
    let item = bytes(2, fields(&[bytes(1, "key"), bytes(2, json)]));
    let accepted = check(ObjectKind::State, &object(ObjectKind::State, &[item])).is_ok();
    let mut tree = WorkingTree::new(&Store::in_memory());
    assert_eq!(tree.set_state("key", json).is_ok(), accepted, "{json}: the same answer from both sides");
    accepted
}

#[test]
fn json_as_the_format_has_it() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    for json in [
        "null",
        " [1, -0, 1.5e300, 123456789012345678901234567890] ",
        "{\"a\": 1, \"a\": 2}",
        "\"\\ud83d\\ude00 ä\"",
        "1e-999",
        &nested(127),
    ] {
        assert!(is_value(json), "{json}");
    }
    for json in [
        "",
        " ",
        "nul",
        "{a: 1}",
        "[1,]",
        "'a'",
        "01",
        "+1",
        ".5",
        "NaN",
        "1 2",
        "// no\n1",
        "\"\t\"",
        "\"\\ud83d\"",
        "1e999",
        "\u{feff}1",
        &nested(128),
    ] {
        assert!(!is_value(json), "{json}");
    }
}
