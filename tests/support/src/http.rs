//! A small HTTP/1.1 server on loopback for tests and benchmarks: one thread and one request for each connection.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const HEADER_BYTES_MAX: u64 = 64 << 10;
const COPY_BYTES: usize = 256 << 10;

/// A request.
pub struct Request {
    /// `GET`, for example.
    pub method: String,
    /// The path, as it was sent.
    pub path: String,
    /// What stands behind the `?`; empty when there is none.
    pub query: String,
    /// The headers, by name in small letters.
    pub headers: HashMap<String, String>,
    /// The body. It fails when the client goes away in the middle.
    pub body: Box<dyn Read + Send>,
}

/// An answer.
pub struct Response {
    /// The status, 200 for example.
    pub status: u16,
    /// Headers besides those of the connection.
    pub headers: Vec<(String, String)>,
    /// The body, sent while it is read. It is dropped when the client goes away.
    pub body: Box<dyn Read + Send>,
}

impl Response {
    /// An answer with a text.
    pub fn text(status: u16, text: &str) -> Self {
        Self { status, headers: Vec::new(), body: Box::new(io::Cursor::new(text.as_bytes().to_vec())) }
    }
}

/// A server, which ends with the value.
pub struct HttpServer {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts a server on a free port of the loopback address.
    pub fn start(handler: impl Fn(Request) -> Response + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (stopped, handler) = (Arc::clone(&is_stopped), Arc::new(handler));
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let handler = Arc::clone(&handler);
                if let Ok(stream) = stream {
                    // A client that goes away is its own matter.
                    std::thread::spawn(move || drop(answer(stream, &*handler)));
                }
            }
        });
        Ok(Self { address, is_stopped, accepting: Some(accepting) })
    }

    /// The address of a path, as a URL.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn answer(mut stream: TcpStream, handler: &(dyn Fn(Request) -> Response + Send + Sync)) -> io::Result<()> {
    let request = read_request(&stream)?;
    if request.headers.get("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let Response { status, headers, mut body } = handler(request);
    let mut head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        // A body that fails cuts the connection, so that the client knows.
        let bytes = body.read(&mut buffer)?;
        stream.write_all(format!("{bytes:x}\r\n").as_bytes())?;
        stream.write_all(&buffer[..bytes])?;
        stream.write_all(b"\r\n")?;
        if bytes == 0 {
            return stream.flush();
        }
    }
}

fn read_request(stream: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut lines = Vec::new();
    let mut left = HEADER_BYTES_MAX;
    loop {
        let mut line = String::new();
        let bytes = (&mut reader).take(left).read_line(&mut line)?;
        left -= bytes as u64;
        match line.strip_suffix("\r\n") {
            Some("") => break,
            Some(line) => lines.push(line.to_owned()),
            None => return Err(invalid("the head is cut off or too long")),
        }
    }
    let mut words = lines.first().map(|line| line.split(' ')).ok_or_else(|| invalid("there is no request"))?;
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let headers = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
    let headers: HashMap<_, _> =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let length = headers.get("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let body: Box<dyn Read + Send> = match headers.get("transfer-encoding") {
        Some(value) if value.eq_ignore_ascii_case("chunked") => {
            Box::new(ChunkedBody { reader, left: 0, is_ended: false })
        }
        _ => Box::new(reader.take(length)),
    };
    Ok(Request { method, path, query, headers, body })
}

/// A body in chunks, each with its length before it.
struct ChunkedBody<R> {
    reader: R,
    left: u64,
    is_ended: bool,
}

impl<R: BufRead> Read for ChunkedBody<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_ended || buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            let mut line = String::new();
            (&mut self.reader).take(64).read_line(&mut line)?;
            self.left = u64::from_str_radix(line.trim(), 16).map_err(|_| invalid("a chunk has no length"))?;
            if self.left == 0 {
                self.is_ended = true;
                return Ok(0);
            }
        }
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let bytes = self.reader.read(&mut buffer[..wanted])?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= bytes as u64;
        if self.left == 0 {
            self.reader.read_exact(&mut [0; 2])?;
        }
        Ok(bytes)
    }
}
