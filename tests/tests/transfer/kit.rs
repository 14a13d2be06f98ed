//! What the suites of transfers share.

use std::collections::BTreeMap;

use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{OperationContext, Store, Time};
use amalgam_tests::harness::all_refs;
use amalgam_transfer::{
    Have, Progress, ReceiveOptions, ReceiveReport, Result, Selection, SendOptions, SendReport, receive, send,
};

pub(crate) fn by() -> OperationContext {
    OperationContext::new("bob", Time(9))
}

pub(crate) fn send_all(store: &Store, have: &Have) -> (Vec<u8>, SendReport) {
    let mut stream = Vec::new();
    let selection = Selection::everything(store).expect("everything");
    let sent = send(store, &selection, &SendOptions::since(have), &mut stream, &Progress::default()).expect("send");
    assert_eq!(sent.bytes, stream.len() as u64);
    (stream, sent)
}

pub(crate) fn take(store: &Store, stream: &[u8]) -> Result<ReceiveReport> {
    take_by(store, stream, &ReceiveOptions::default())
}

pub(crate) fn take_by(store: &Store, stream: &[u8], options: &ReceiveOptions) -> Result<ReceiveReport> {
    receive(store, stream, options, &by(), &Progress::default())
}

/// The references of a store, but for the marks that say what came from elsewhere.
pub(crate) fn refs(store: &Store) -> BTreeMap<RefName, RefValue> {
    let refs = all_refs(store).expect("references").into_iter();
    refs.filter(|(name, _)| !name.as_str().starts_with("foreign/")).collect()
}

/// The references of a store that a stream takes along.
pub(crate) fn sent_refs(store: &Store) -> BTreeMap<RefName, RefValue> {
    let kinds = ["workspace/", "label/", "note/", "reward/", "episode/", "step/"];
    refs(store).into_iter().filter(|(name, _)| kinds.iter().any(|kind| name.as_str().starts_with(kind))).collect()
}
