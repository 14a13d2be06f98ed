//! A server of the real command, on a port of its own, with a data directory in a scratch place.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use crate::scratch::Scratch;

/// A running `amalgam serve`. It is killed when this is dropped.
pub struct Served {
    child: Child,
    /// `http://127.0.0.1:PORT`, or `https://`.
    pub url: String,
}

impl Served {
    /// Serves the directory `data` of the scratch place.
    pub fn start(scratch: &Scratch) -> Self {
        Self::with(scratch, "--data ../data")
    }

    /// Serves the directory `data` of the scratch place at an address.
    pub fn at(scratch: &Scratch, address: &str) -> Self {
        Self::listening(scratch, "", address, "--data ../data")
    }

    /// Serves with these options.
    pub fn with(scratch: &Scratch, options: &str) -> Self {
        Self::prefixed(scratch, "", options)
    }

    /// Serves with these options, started by a command such as `setpriv`.
    pub fn prefixed(scratch: &Scratch, starter: &str, options: &str) -> Self {
        Self::listening(scratch, starter, "127.0.0.1:0", options)
    }

    fn listening(scratch: &Scratch, starter: &str, address: &str, options: &str) -> Self {
        let mut command = scratch.shell(&format!("exec {starter} amalgam serve --listen {address} {options}"));
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a server");
        let mut lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
        let mut said = String::new();
        let url = loop {
            let Some(Ok(line)) = lines.next() else { panic!("the server ended: {said}") };
            if let Some(url) = line.strip_prefix("listening on ") {
                break url.to_owned();
            }
            said.push_str(&line);
        };
        // A full pipe would stop the server.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// Asks the server to end, and waits until it has.
    pub fn stop(mut self) {
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("an id");
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("asked");
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A key for the server of `data`.
pub fn key(scratch: &Scratch, scope: &str) -> String {
    scratch.run(&format!("amalgam key create ann --scope {scope} --data ../data -q")).trim().to_owned()
}
