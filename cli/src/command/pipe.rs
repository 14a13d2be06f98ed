//! Bytes of streams between files, pipes and calls. Files are read and written on threads of their own, so that Ctrl-C is heard
//! while the other end of a pipe is slow.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::codegen::Bytes;

use crate::error::CliError;

/// Most bytes of one read.
const PIECE_BYTES: usize = 256 << 10;
/// Most pieces in the queue between the thread and the call.
const QUEUE: usize = 16;

/// Opens the source of a stream; `-` is standard input.
pub fn source(path: &OsStr) -> Result<Box<dyn Read + Send>, CliError> {
    if path == "-" {
        return Ok(Box::new(io::stdin()));
    }
    let named = |error: io::Error| CliError::machine(path.to_string_lossy(), &error);
    Ok(Box::new(File::open(path).map_err(named)?))
}

/// Reads the input on a blocking thread, and returns the pieces and the task. Dropping the receiver stops the task.
pub fn pieces(mut from: Box<dyn Read + Send>) -> (mpsc::Receiver<Bytes>, JoinHandle<io::Result<()>>) {
    let (send, receive) = mpsc::channel(QUEUE);
    let reading = tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let length = match from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            piece.truncate(length);
            if length == 0 || send.blocking_send(Bytes::from(piece)).is_err() {
                return Ok(());
            }
        }
    });
    (receive, reading)
}

/// The target of a stream: a pipe, or a file that gets its name when it is complete.
pub struct Target {
    writing: JoinHandle<io::Result<()>>,
    unfinished: Option<Unfinished>,
    shown: String,
}

/// A temporary file, deleted when this is dropped unless it was moved into place.
struct Unfinished {
    path: PathBuf,
    name: PathBuf,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // It was moved into place, or is incomplete.
        let _ = fs::remove_file(&self.path);
    }
}

impl Target {
    /// Opens a target; `-` is standard output. Returns the sender of pieces and the target.
    pub fn open(name: &OsStr) -> Result<(mpsc::Sender<Bytes>, Self), CliError> {
        let failed = |error: io::Error| CliError::machine(name.to_string_lossy(), &error);
        // A named pipe or a device is opened and written directly.
        let is_plain = fs::metadata(name).map_or(true, |found| found.is_file());
        let (mut out, unfinished): (Box<dyn Write + Send>, _) = match name {
            name if name == "-" => (Box::new(io::stdout()), None),
            name if is_plain => {
                let mut path = OsString::from(name);
                path.push(format!(".{}.new", std::process::id()));
                let file = File::create_new(&path).map_err(failed)?;
                (Box::new(file), Some(Unfinished { path: path.into(), name: name.into() }))
            }
            name => (Box::new(File::options().write(true).open(name).map_err(failed)?), None),
        };
        let (send, mut receive) = mpsc::channel::<Bytes>(QUEUE);
        let writing = tokio::task::spawn_blocking(move || {
            while let Some(piece) = receive.blocking_recv() {
                out.write_all(&piece)?;
            }
            out.flush()
        });
        let shown = if name == "-" { "the output".to_owned() } else { name.to_string_lossy().into_owned() };
        Ok((send, Self { writing, unfinished, shown }))
    }

    /// Waits until all pieces are written. If the stream is complete, syncs the temporary file and renames it into place.
    pub async fn finish(self, is_whole: bool) -> Result<(), CliError> {
        let Self { writing, unfinished, shown } = self;
        let written = writing.await.expect("writing does not panic");
        written.map_err(|error| match error.kind() {
            // A reader must notice a stream that was cut off.
            io::ErrorKind::BrokenPipe => CliError::refused("the reader of the stream closed it before its end"),
            _ => CliError::machine(&shown, &error),
        })?;
        if let Some(unfinished) = unfinished.filter(|_| is_whole) {
            let failed = |error: io::Error| CliError::machine(&shown, &error);
            File::open(&unfinished.path).and_then(|file| file.sync_all()).map_err(failed)?;
            fs::rename(&unfinished.path, &unfinished.name).map_err(failed)?;
        }
        Ok(())
    }
}
