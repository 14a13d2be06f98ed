//! Operations as values: how they are done to a working tree, and how random ones are made.
//!
//! The universe of names is small on purpose, so that collisions, replacements and moves into oneself are common.
//! Strategies are boxed: unboxed they would nest to more than a thread's stack.

use std::fmt;

use amalgam_engine::object::{Device, Owner};
use amalgam_engine::work::{RenameMode, Special};
use amalgam_engine::{Error, Time, WorkingTree};
use proptest::prelude::*;

use super::{Answer, Refusal};

/// Bytes that print readably.
#[derive(Clone, PartialEq, Eq)]
pub struct Raw(pub Vec<u8>);

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&str> for Raw {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// Bytes by their recipe: zeros for seed 0, otherwise what looks random and follows from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Which bytes.
    pub seed: u64,
    /// How many.
    pub length: usize,
}

impl Fill {
    /// The bytes themselves.
    pub fn bytes(&self) -> Vec<u8> {
        if self.seed == 0 {
            return vec![0; self.length];
        }
        amalgam_engine::SplitMix64::new(self.seed).bytes(self.length)
    }
}

/// An operation of a working tree.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the calls of `WorkingTree`")]
pub enum Op {
    Create { path: Raw, mode: u32 },
    Write { path: Raw, fill: Fill },
    WriteAt { path: Raw, offset: u64, fill: Fill },
    Append { path: Raw, fill: Fill },
    Truncate { path: Raw, size: u64 },
    PunchHole { path: Raw, start: u64, end: u64 },
    CreateDirectory { path: Raw, mode: u32 },
    CreateDirectories { path: Raw },
    Symlink { path: Raw, target: Raw },
    CreateSpecial { path: Raw, special: Special, mode: u32 },
    Link { existing: Raw, new: Raw },
    Remove { path: Raw },
    RemoveDirectory { path: Raw },
    RemoveAll { path: Raw },
    Rename { from: Raw, to: Raw, mode: RenameMode },
    SetMode { path: Raw, mode: u32 },
    SetMtime { path: Raw, mtime: Time },
    SetOwner { path: Raw, owner: Option<Owner> },
    SetXattr { path: Raw, name: Raw, value: Fill },
    RemoveXattr { path: Raw, name: Raw },
    SetState { key: String, json: String },
    RemoveState { key: String },
    SetNow { now: Time },
}

/// Does an operation to a working tree. An error that no model foresees is a panic with its words.
pub fn perform(tree: &mut WorkingTree, op: &Op) -> Answer {
    try_perform(tree, op).unwrap_or_else(|error| panic!("{op:?}: {error}"))
}

/// Does an operation to a working tree whose store may fail. The outer error is one that no model foresees.
pub fn try_perform(tree: &mut WorkingTree, op: &Op) -> Result<Answer, Error> {
    let done = |result: Result<(), Error>| result.map(|()| 0);
    let result = match op {
        Op::Create { path, mode } => done(tree.create(&path.0, *mode)),
        Op::Write { path, fill } => done(tree.write(&path.0, &fill.bytes())),
        Op::WriteAt { path, offset, fill } => done(tree.write_at(&path.0, *offset, &fill.bytes())),
        Op::Append { path, fill } => tree.append(&path.0, &fill.bytes()),
        Op::Truncate { path, size } => done(tree.truncate(&path.0, *size)),
        Op::PunchHole { path, start, end } => done(tree.punch_hole(&path.0, *start..*end)),
        Op::CreateDirectory { path, mode } => done(tree.create_directory(&path.0, *mode)),
        Op::CreateDirectories { path } => done(tree.create_directories(&path.0)),
        Op::Symlink { path, target } => done(tree.symlink(&path.0, &target.0)),
        Op::CreateSpecial { path, special, mode } => done(tree.create_special(&path.0, *special, *mode)),
        Op::Link { existing, new } => done(tree.link(&existing.0, &new.0)),
        Op::Remove { path } => done(tree.remove(&path.0)),
        Op::RemoveDirectory { path } => done(tree.remove_directory(&path.0)),
        Op::RemoveAll { path } => done(tree.remove_all(&path.0)),
        Op::Rename { from, to, mode } => done(tree.rename(&from.0, &to.0, *mode)),
        Op::SetMode { path, mode } => done(tree.set_mode(&path.0, *mode)),
        Op::SetMtime { path, mtime } => done(tree.set_mtime(&path.0, *mtime)),
        Op::SetOwner { path, owner } => done(tree.set_owner(&path.0, *owner)),
        Op::SetXattr { path, name, value } => done(tree.set_xattr(&path.0, &name.0, &value.bytes())),
        Op::RemoveXattr { path, name } => tree.remove_xattr(&path.0, &name.0).map(u64::from),
        Op::SetState { key, json } => done(tree.set_state(key, json)),
        Op::RemoveState { key } => tree.remove_state(key).map(u64::from),
        Op::SetNow { now } => {
            tree.set_now(*now);
            Ok(0)
        }
    };
    match result {
        Ok(number) => Ok(Ok(number)),
        Err(error) => Refusal::of(&error).map(Err).ok_or(error),
    }
}

/// The keys that random operations give state values.
pub const STATE_KEYS: [&str; 4] = ["k", "key/two", "ключ", "z"];

fn name() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![
        4 => Just(&b"a"[..]),
        4 => Just(&b"b"[..]),
        2 => Just(&b"c-"[..]),
        1 => Just(&b"\xff\xfe"[..]),
    ]
}

fn joined(names: &[&[u8]]) -> Raw {
    Raw(names.join(&b'/'))
}

fn valid_path() -> BoxedStrategy<Raw> {
    prop_oneof![
        6 => name().prop_map(|one| joined(&[one])),
        6 => (name(), name()).prop_map(|(one, two)| joined(&[one, two])),
        2 => (name(), name(), name()).prop_map(|(one, two, three)| joined(&[one, two, three])),
    ]
    .boxed()
}

fn path() -> BoxedStrategy<Raw> {
    let invalid = prop::sample::select(vec!["a//b", "/a", "a/", "..", "a/./b", ".", "a\0b", "a/../b"]);
    prop_oneof![
        120 => valid_path(),
        2 => Just(Raw(Vec::new())),
        1 => invalid.prop_map(Raw::from),
        1 => Just(Raw(vec![b'x'; 256])),
    ]
    .boxed()
}

fn mode() -> impl Strategy<Value = u32> {
    prop_oneof![30 => prop::sample::select(vec![0o644, 0o755, 0o600, 0, 0o7777]), 1 => Just(0o10000)]
}

fn time() -> BoxedStrategy<Time> {
    prop_oneof![(-5_i64..5).prop_map(Time), any::<i64>().prop_map(Time)].boxed()
}

fn seed() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 3 => 1_u64..4]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![12 => 0_usize..300, 2 => 65_533_usize..65_540, 1 => 0_usize..150_000]
}

fn fill() -> BoxedStrategy<Fill> {
    (seed(), length()).prop_map(|(seed, length)| Fill { seed, length }).boxed()
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![10 => 0_u64..400, 3 => 0_u64..200_000, 1 => 65_530_u64..65_540]
}

fn far_offset() -> BoxedStrategy<u64> {
    prop_oneof![25 => offset(), 1 => Just(u64::MAX), 1 => Just(i64::MAX as u64 + 1)].boxed()
}

fn special() -> impl Strategy<Value = Special> {
    let device = Device { major: 1, minor: 3 };
    prop::sample::select(vec![
        Special::Fifo,
        Special::Socket,
        Special::CharDevice(device),
        Special::BlockDevice(device),
    ])
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        2 => Just(RenameMode::Exchange),
    ]
}

fn xattr_name() -> BoxedStrategy<Raw> {
    let names = vec!["user.a", "user.b", "user.c", "", "user.\0"];
    prop_oneof![
        8 => prop::sample::select(names).prop_map(Raw::from),
        1 => Just(Raw(vec![b'n'; 256])),
    ]
    .boxed()
}

fn xattr_value() -> BoxedStrategy<Fill> {
    let length = prop_oneof![8 => 0_usize..40, 2 => 500_usize..2_000, 1 => Just(65_537_usize)];
    (seed(), length).prop_map(|(seed, length)| Fill { seed, length }).boxed()
}

fn owner() -> impl Strategy<Value = Option<Owner>> {
    prop::sample::select(vec![None, Some(Owner { uid: 0, gid: 0 }), Some(Owner { uid: 1_000, gid: u32::MAX })])
}

fn target() -> BoxedStrategy<Raw> {
    prop_oneof![
        6 => prop::sample::select(vec!["a", "../b", "/etc/passwd", "", "x\0"]).prop_map(Raw::from),
        1 => Just(Raw(vec![b't'; 4_095])),
        1 => Just(Raw(vec![b't'; 4_096])),
    ]
    .boxed()
}

fn json() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["1", "null", "{\"b\": [1, 2]}", "\"текст\"", "{", "", "01"]).prop_map(str::to_owned)
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![10 => prop::sample::select(&STATE_KEYS[..]).prop_map(str::to_owned), 1 => Just(String::new())]
}

fn file_edit() -> BoxedStrategy<Op> {
    prop_oneof![
        3 => (path(), fill()).prop_map(|(path, fill)| Op::Write { path, fill }),
        2 => (path(), far_offset(), fill()).prop_map(|(path, offset, fill)| Op::WriteAt { path, offset, fill }),
        1 => (path(), fill()).prop_map(|(path, fill)| Op::Append { path, fill }),
        1 => (path(), offset()).prop_map(|(path, size)| Op::Truncate { path, size }),
        1 => (path(), offset(), far_offset()).prop_map(|(path, start, end)| Op::PunchHole { path, start, end }),
    ]
    .boxed()
}

fn tree_edit() -> BoxedStrategy<Op> {
    prop_oneof![
        2 => (path(), mode()).prop_map(|(path, mode)| Op::Create { path, mode }),
        4 => (path(), mode()).prop_map(|(path, mode)| Op::CreateDirectory { path, mode }),
        2 => path().prop_map(|path| Op::CreateDirectories { path }),
        1 => (path(), target()).prop_map(|(path, target)| Op::Symlink { path, target }),
        1 => (path(), special(), mode()).prop_map(|(path, special, mode)| Op::CreateSpecial { path, special, mode }),
        1 => path().prop_map(|path| Op::Remove { path }),
        1 => path().prop_map(|path| Op::RemoveDirectory { path }),
        1 => path().prop_map(|path| Op::RemoveAll { path }),
        5 => (path(), path(), rename_mode()).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
    ]
    .boxed()
}

fn attribute_edit() -> BoxedStrategy<Op> {
    prop_oneof![
        2 => (path(), mode()).prop_map(|(path, mode)| Op::SetMode { path, mode }),
        1 => (path(), time()).prop_map(|(path, mtime)| Op::SetMtime { path, mtime }),
        1 => (path(), owner()).prop_map(|(path, owner)| Op::SetOwner { path, owner }),
        2 => (path(), xattr_name(), xattr_value()).prop_map(|(path, name, value)| Op::SetXattr { path, name, value }),
        1 => (path(), xattr_name()).prop_map(|(path, name)| Op::RemoveXattr { path, name }),
        1 => (key(), json()).prop_map(|(key, json)| Op::SetState { key, json }),
        1 => key().prop_map(|key| Op::RemoveState { key }),
        2 => time().prop_map(|now| Op::SetNow { now }),
    ]
    .boxed()
}

/// Any operation but a hard link.
pub fn edit_unlinked() -> BoxedStrategy<Op> {
    prop_oneof![4 => file_edit(), 6 => tree_edit(), 2 => attribute_edit()].boxed()
}

/// Any operation.
pub fn op() -> BoxedStrategy<Op> {
    prop_oneof![
        6 => edit_unlinked(),
        1 => (path(), path()).prop_map(|(existing, new)| Op::Link { existing, new }),
    ]
    .boxed()
}

/// A run of operations of some strategy.
pub fn ops<S: Strategy<Value = Op>>(
    op: S,
    count: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op, count)
}

/// As many cases as `PROPTEST_CASES` says, or else `few`. A failure prints what made it; nothing is written beside the tests.
pub fn cases(few: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
