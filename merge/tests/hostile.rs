//! Input that wants to do harm: mutated documents, and ones that are made to take long.

use std::path::Path;
use std::time::{Duration, Instant};

use amalgam_merge::{MergeSettings, MergeStrategy, Outcome, Rules, Sides, merge, merge_with_fallback};
use serde_json::Value;

/// What a test machine with other work may take for something that should take a fraction of it.
const PATIENCE: Duration = Duration::from_secs(20);

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    const PIECES: [&[u8]; 22] = [
        b"{", b"}", b"[", b"]", b",", b":", b"\"", b"'", b"\n", b"  ", b"- ", b"#", b"\\", b"\\ud800", b"\"\"\"",
        b"&a ", b"|\n", b"\t", b"\r", b"\xff", b"= ", b"---\n",
    ];
    let at = random.below(bytes.len() + 1);
    let end = (at + random.below(8)).min(bytes.len());
    match random.below(4) {
        0 => drop(bytes.drain(at..end)),
        1 => {
            let piece = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        _ => {
            let piece = PIECES[random.below(PIECES.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

#[test]
fn mutated_documents_do_no_harm() {
    let mut random = Random(0x5eed);
    let (mut merges, mut by_structure) = (0, 0);
    for name in ["json", "jsonc", "yaml", "toml", "crdt"] {
        let cases =
            std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)).expect("cases");
        let mut cases: Vec<_> = cases.map(|entry| entry.expect("an entry").path()).collect();
        cases.sort();
        let strategy = MergeStrategy::named(name).expect("a way");
        for case in cases {
            let read = |name: &str| std::fs::read(case.join(name)).unwrap_or_default();
            let versions = [read("base"), read("ours"), read("theirs")];
            for _ in 0..60 {
                let mut mutated = versions.clone();
                for _ in 0..1 + random.below(3) {
                    let version = random.below(3);
                    mutate(&mut random, &mut mutated[version]);
                }
                let [base, ours, theirs] = &mutated;
                let sides = Sides { base: Some(base), ours, theirs };
                let done = merge_with_fallback(&strategy, &sides, &MergeSettings::default());
                merges += 1;
                by_structure += usize::from(done.strategy == name);
                if let (Outcome::Merged(result), "json" | "crdt") = (&done.outcome, done.strategy) {
                    let is_json = |bytes: &[u8]| {
                        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
                        serde_json::from_slice::<Value>(bytes).is_ok() || is_too_much_for_serde(bytes)
                    };
                    if is_json(base) && is_json(ours) && is_json(theirs) {
                        assert!(is_json(result), "{}: {}", case.display(), String::from_utf8_lossy(result));
                    }
                }
            }
        }
    }
    assert!(merges > 9_000 && by_structure > merges / 10, "{by_structure} of {merges} by structure");
}

/// Numbers beyond a double and halves of surrogate pairs are JSON, and not to this reader.
fn is_too_much_for_serde(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains("e400") || text.contains("e401") || text.contains("\\u")
}

#[track_caller]
fn quick(strategy: &str, base: &[u8], ours: &[u8], theirs: &[u8]) -> Outcome {
    let start = Instant::now();
    let sides = Sides { base: Some(base), ours, theirs };
    let done = merge_with_fallback(&MergeStrategy::named(strategy).expect("a way"), &sides, &MergeSettings::default());
    assert!(start.elapsed() < PATIENCE, "{strategy} took {:?}", start.elapsed());
    done.outcome
}

#[test]
fn a_million_equal_lines_stay_fast() {
    let lines = |count: usize, at: usize, line: &str| {
        let mut text = "same\n".repeat(at);
        text.push_str(line);
        text.push_str(&"same\n".repeat(count - at));
        text.into_bytes()
    };
    let base = "same\n".repeat(200_000).into_bytes();
    let (ours, theirs) = (lines(200_000, 50_000, "ours\n"), lines(200_000, 150_000, "theirs\n"));
    assert!(matches!(quick("text", &base, &ours, &theirs), Outcome::Merged(_) | Outcome::Conflicted(_)));
    let shorter = "same\n".repeat(100_000).into_bytes();
    let _ = quick("text", &base, &shorter, &theirs);
    // Alternating lines that all come often, every other one changed.
    let often =
        |odd: &str| (0..150_000).map(|at| format!("{}\n{odd}{}\n", at % 70, at % 90)).collect::<String>().into_bytes();
    let _ = quick("text", &often("a"), &often("b"), &often("c"));
    let _ = quick("union", &often("a"), &often("b"), &often("c"));
}

#[test]
fn deep_and_wide_documents_end_soon() {
    let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes();
    let _ = quick("json", &deep("1"), &deep("2"), &deep("3"));
    let _ = quick("crdt", &deep("1"), &deep("2"), &deep("3"));
    let toml = |inner: &str| format!("a = {}{inner}{}\n", "[".repeat(50_000), "]".repeat(50_000)).into_bytes();
    let _ = quick("toml", &toml("1"), &toml("2"), &toml("3"));
    let yaml = |inner: &str| format!("a: {}{inner}{}\n", "[".repeat(50_000), "]".repeat(50_000)).into_bytes();
    let _ = quick("yaml", &yaml("1"), &yaml("2"), &yaml("3"));
    let steps = |inner: &str| {
        (0..3_000).map(|at| format!("{}a:\n", " ".repeat(at))).collect::<String>() + &" ".repeat(3_000) + inner
    };
    let _ = quick("yaml", steps("b: 1\n").as_bytes(), steps("b: 2\n").as_bytes(), steps("b: 3\n").as_bytes());

    let wide = |of: usize, step: usize| {
        let numbers: Vec<_> = (0..200_000).map(|at| (at / step % of).to_string()).collect();
        format!("[{}]", numbers.join(",")).into_bytes()
    };
    for strategy in ["json", "jsonc", "crdt"] {
        let _ = quick(strategy, &wide(3, 1), &wide(5, 1), &wide(7, 1));
        let _ = quick(strategy, &wide(1_000_000, 1), &wide(1_000_000, 2), &wide(1_000_000, 3));
    }
    let fields = |value: usize| {
        let fields: Vec<_> = (0..60_000).map(|at| format!("\"k{at}\":{}", at % value)).collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    };
    for strategy in ["json", "jsonc", "crdt"] {
        let _ = quick(strategy, &fields(1), &fields(2), &fields(3));
    }
    let text = |of: usize| {
        serde_json::json!({ "$text": "ab c".repeat(100_000 + of) + &"xy".repeat(of) }).to_string().into_bytes()
    };
    let _ = quick("crdt", &text(0), &text(1_000), &text(2_000));
    let keys = |value: usize| (0..30_000).map(|at| format!("k{at}: {}\n", at % value)).collect::<String>().into_bytes();
    let _ = quick("yaml", &keys(1), &keys(2), &keys(3));
    let keys =
        |value: usize| (0..30_000).map(|at| format!("k{at} = {}\n", at % value)).collect::<String>().into_bytes();
    let _ = quick("toml", &keys(1), &keys(2), &keys(3));
}

#[test]
fn what_is_too_large_is_refused_at_once() {
    let large = vec![b'x'; 17 << 20];
    let sides = Sides { base: Some(b"a"), ours: &large, theirs: b"b" };
    for strategy in ["text", "union", "json", "jsonc", "yaml", "toml", "crdt"] {
        let start = Instant::now();
        let outcome = merge(&MergeStrategy::named(strategy).expect("a way"), &sides, &MergeSettings::default());
        assert!(matches!(outcome, Outcome::Unable(amalgam_merge::UnableReason::TooLarge { .. })), "{strategy}");
        assert!(start.elapsed() < Duration::from_secs(1), "{strategy}");
    }
}

#[test]
fn mutated_rules_are_refused_or_taken_and_nothing_else() {
    let sample = "[[rule]]\npath = [\"a/**\", \"*.b\"]\nway = \"json\"\nkeys = [\"id\"]\n\n[[group]]\nname = \"g\"\npaths = [\"x\"]\n";
    let mut random = Random(0xfeed);
    for _ in 0..3_000 {
        let mut bytes = sample.as_bytes().to_vec();
        for _ in 0..1 + random.below(3) {
            mutate(&mut random, &mut bytes);
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if let Err(bad) = Rules::read(&text, "rules") {
            assert!(bad.complaints.iter().all(|complaint| complaint.line >= 1 && !complaint.what.is_empty()), "{text}");
        }
    }
}
