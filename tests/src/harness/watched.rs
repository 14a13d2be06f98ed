//! A child process that a test is going to kill: it tells what it does line by line, and ends when nobody listens any more.

use std::io::{Read as _, Write as _};

use rustix::process::{Signal, getpid, kill_process};

/// Ends this process as soon as its standard input does: whoever started it holds the other end.
pub fn end_with_input() {
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        end();
    });
}

/// One line, one write: a kill leaves no half of one.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        end();
    }
}

/// At once: an orderly exit would take down what RocksDB's threads, still at work, stand on.
fn end() {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
}
