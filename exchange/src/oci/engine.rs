//! Imports an image from a Docker engine, by one request to its API on a Unix socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amalgam_engine::{Progress, Store};

use super::import::{OciImport, import_oci};
use crate::counting::CountingStream;
use crate::error::{CANCELLED_MESSAGE, Error, Result};
use crate::imported::Imported;

/// The socket of an engine that root runs.
pub const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// Interval at which a waiting read checks for a cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time without data after which a read from the engine fails. The engine collects the layers before it sends the first byte.
const STALL_MAX: Duration = Duration::from_secs(600);
const HEAD_BYTES_MAX: u64 = 64 << 10;
const MESSAGE_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 512;

/// An image of an engine.
#[derive(Clone, Debug)]
pub struct DockerImage {
    /// The socket of the engine.
    pub socket: PathBuf,
    /// Name, name and tag, or id of the image.
    pub image: String,
}

/// Imports an image that a Docker engine has. The engine's archive goes through a temporary file, because its layers are read in
/// an order of their own.
pub fn import_docker(store: &Store, from: &DockerImage, options: &OciImport, progress: &Progress) -> Result<Imported> {
    let temporary = |source| Error::host("write a temporary file", source);
    let mut archive = tempfile::NamedTempFile::new().map_err(temporary)?;
    save(from, archive.as_file_mut(), progress)?;
    import_oci(store, archive.path(), options, progress)
}

/// Writes the archive of an image, as `docker save` does.
fn save(from: &DockerImage, output: &mut impl Write, progress: &Progress) -> Result<()> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:@-".contains(&byte);
    if from.image.is_empty() || from.image.len() > NAME_BYTES_MAX || !from.image.bytes().all(is_name) {
        return Err(Error::Invalid { what: "image", why: format!("`{}` is no name of an image", from.image) });
    }
    let request = format!(
        "GET /images/get?names={} HTTP/1.1\r\nHost: docker\r\nUser-Agent: amalgam\r\nConnection: close\r\n\r\n",
        from.image.replace('/', "%2F").replace(':', "%3A").replace('@', "%40")
    );
    let no_engine = |source: io::Error| no_engine(&from.socket, &source);
    let mut stream = UnixStream::connect(&from.socket).map_err(no_engine)?;
    stream.set_read_timeout(Some(POLL_INTERVAL)).map_err(no_engine)?;
    stream.write_all(request.as_bytes()).map_err(no_engine)?;
    let mut reader = BufReader::with_capacity(256 << 10, PatientReader { stream, progress });
    let head = Head::read(&mut reader).map_err(failed)?;
    let mut body = head.body(&mut reader);
    if head.status != 200 {
        return Err(refusal(&from.image, head.status, &mut body));
    }
    let mut body = CountingStream { inner: body, progress };
    io::copy(&mut body, output).and_then(|_| output.flush()).map_err(failed)
}

fn no_engine(socket: &Path, error: &io::Error) -> Error {
    let why = format!(
        "none answers at {}: {error}; start it, name its socket, or save the image by `docker save` and import the file",
        socket.display()
    );
    Error::Invalid { what: "Docker engine", why }
}

fn failed(source: io::Error) -> Error {
    match source.to_string().as_str() {
        CANCELLED_MESSAGE => Error::Cancelled,
        _ => Error::host("get the image from the Docker engine", source),
    }
}

/// Converts a refusal of the engine to an error with the engine's message.
fn refusal(image: &str, status: u16, body: &mut impl Read) -> Error {
    let mut bytes = Vec::new();
    // A message that is cut off is still useful.
    drop(body.take(MESSAGE_BYTES_MAX).read_to_end(&mut bytes));
    let said = serde_json::from_slice::<serde_json::Value>(&bytes).ok();
    let said = said.and_then(|value| value.get("message")?.as_str().map(str::to_owned));
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(&bytes).trim().to_owned());
    match status {
        404 => Error::Invalid { what: "image", why: format!("the engine has no `{image}`: {said}") },
        _ => Error::Program { program: "the Docker engine", why: format!("status {status}: {said}") },
    }
}

/// A stream whose reads wait until something comes, the caller cancels, or the engine stalls.
struct PatientReader<'a> {
    stream: UnixStream,
    progress: &'a Progress,
}

impl Read for PatientReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            if self.progress.check().is_err() {
                return Err(io::Error::other(CANCELLED_MESSAGE));
            }
            match self.stream.read(buffer) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if start.elapsed() > STALL_MAX {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "it sends nothing"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its answer is no HTTP: {why}"))
}

/// The status of an answer and the length of its body.
struct Head {
    status: u16,
    is_chunked: bool,
    length: Option<u64>,
}

impl Head {
    fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut reader = reader.take(HEAD_BYTES_MAX);
        let mut line = || {
            let mut bytes = Vec::new();
            reader.read_until(b'\n', &mut bytes)?;
            let line = bytes.strip_suffix(b"\n").ok_or_else(|| invalid("the head is cut off or too long"))?;
            Ok::<_, io::Error>(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned())
        };
        let first = line()?;
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
        let mut head =
            Self { status: status.ok_or_else(|| invalid("it has no status"))?, is_chunked: false, length: None };
        loop {
            let line = line()?;
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid("a header has no value"))?;
            match name.to_ascii_lowercase().as_str() {
                "transfer-encoding" => head.is_chunked = value.trim().eq_ignore_ascii_case("chunked"),
                "content-length" => {
                    head.length = Some(value.trim().parse().map_err(|_| invalid("its length is no number"))?);
                }
                _ => {}
            }
        }
    }

    fn body<R: BufRead>(&self, reader: R) -> Body<R> {
        let left = if self.is_chunked { Some(0) } else { self.length };
        Body { reader, left, is_chunked: self.is_chunked, is_ended: left == Some(0) && !self.is_chunked }
    }
}

/// The body of an answer. One that ends too early is an error.
struct Body<R> {
    reader: R,
    /// Bytes left of the body, or of the chunk; `None` if the body ends with the stream.
    left: Option<u64>,
    is_chunked: bool,
    is_ended: bool,
}

impl<R: BufRead> Body<R> {
    /// Reads the length of the next chunk.
    fn next_chunk(&mut self) -> io::Result<()> {
        const LINE_BYTES_MAX: u64 = 1_024;
        let mut line = Vec::new();
        (&mut self.reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let digits = line.split(|byte| matches!(byte, b';' | b'\r' | b'\n')).next().unwrap_or_default();
        let length = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        let length = length.filter(|_| line.ends_with(b"\n"));
        self.left = Some(length.ok_or_else(|| invalid("a chunk has no length"))?);
        self.is_ended = length == Some(0);
        Ok(())
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_chunked && self.left == Some(0) && !self.is_ended {
            self.next_chunk()?;
        }
        if self.is_ended || buffer.is_empty() {
            return Ok(0);
        }
        let wanted =
            self.left.map_or(buffer.len(), |left| buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let bytes = self.reader.read(&mut buffer[..wanted])?;
        match &mut self.left {
            None => self.is_ended = bytes == 0,
            Some(_) if bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(left) => {
                *left -= bytes as u64;
                if *left == 0 && self.is_chunked {
                    self.reader.read_exact(&mut [0; 2])?;
                } else if *left == 0 {
                    self.is_ended = true;
                }
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(answer: &str) -> io::Result<(u16, String)> {
        let mut reader = answer.as_bytes();
        let head = Head::read(&mut reader)?;
        let mut body = String::new();
        head.body(reader).read_to_string(&mut body)?;
        Ok((head.status, body))
    }

    #[test]
    fn bodies_end_where_their_heads_say() {
        for (answer, body) in [
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na;x=y\r\n0123456789\r\n0\r\n\r\n",
                "abc0123456789",
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef", "abc"),
            ("HTTP/1.0 200 OK\r\n\r\nabcdef", "abcdef"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        ] {
            assert_eq!(check(answer).expect("an answer"), (200, body.to_owned()));
        }
    }

    #[test]
    fn answers_that_are_cut_off_or_malformed_are_errors() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nbroken\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
        ] {
            assert!(check(answer).is_err(), "{answer}");
        }
    }
}
