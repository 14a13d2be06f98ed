//! A stream from anywhere, received into an empty store: no name is set unless all of it is sound.
#![no_main]

use amalgam_engine::{OperationContext, Store, Time};
use amalgam_transfer::stream::{Frame, StreamReader};
use amalgam_transfer::{Progress, ReceiveOptions, receive};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut reader = StreamReader::new(data);
    let whole = loop {
        match reader.next_frame() {
            Ok(Frame::End { .. }) => break true,
            Ok(_) => assert!(reader.bytes() <= data.len() as u64),
            Err(_) => break false,
        }
    };
    let store = Store::in_memory();
    let act = OperationContext::new("fuzz", Time(1));
    let received = receive(&store, data, &ReceiveOptions::default(), &act, &Progress::default());
    if received.is_err() {
        assert!(store.list_refs("", None, 1).expect("memory").is_empty(), "a refused stream set a name");
    } else {
        assert!(whole, "a stream without an end was taken");
    }
});
