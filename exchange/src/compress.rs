//! Compression of archives: detected by the first bytes when reading, chosen by the caller when writing.

use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzReader, XzWriter};

use crate::error::{Error, Result};

/// The most memory that the window of a compressed stream may ask for.
const WINDOW_BYTES_MAX: u64 = 256 << 20;
const BUFFER_BYTES: usize = 256 << 10;
const XZ_PRESET: u32 = 3;

/// Compression of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
}

impl Compression {
    /// Returns the compression for the extension of a file name: `.gz`, `.tgz`, `.zst`, `.tzst`, `.xz`, `.txz`. Others mean none.
    pub fn of_name(name: &str) -> Self {
        match name.rsplit('.').next().unwrap_or("").to_ascii_lowercase().as_str() {
            "gz" | "tgz" => Self::Gzip,
            "zst" | "tzst" => Self::Zstd,
            "xz" | "txz" => Self::Xz,
            _ => Self::None,
        }
    }

    /// Returns the compression whose magic number these bytes begin with.
    pub fn of_magic(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        }
    }
}

/// Returns a reader of the decompressed input. Without a given compression it is detected by the first bytes.
pub(crate) fn decoder<'a>(
    input: impl Read + Send + 'a,
    compression: Option<Compression>,
) -> Result<Box<dyn Read + Send + 'a>> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
    let compression = match compression {
        Some(compression) => compression,
        None => Compression::of_magic(fill(&mut input)?),
    };
    Ok(match compression {
        Compression::None => {
            refuse_unknown(fill(&mut input)?)?;
            Box::new(input)
        }
        Compression::Gzip => Box::new(MultiGzDecoder::new(input)),
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(input).map_err(|source| Error::host("read zstd", source))?;
            decoder.window_log_max(WINDOW_BYTES_MAX.ilog2()).map_err(|source| Error::host("read zstd", source))?;
            Box::new(decoder)
        }
        Compression::Xz => Box::new(XzReader::new_mem_limit(input, true, (WINDOW_BYTES_MAX >> 10) as u32)),
    })
}

fn fill(input: &mut impl BufRead) -> Result<&[u8]> {
    input.fill_buf().map_err(Error::reading)
}

fn refuse_unknown(first: &[u8]) -> Result<()> {
    let what = match first {
        [b'B', b'Z', b'h', ..] => "bzip2",
        [0x04, 0x22, 0x4d, 0x18, ..] => "lz4",
        [0x1f, 0x9d, ..] => "compress (.Z)",
        _ => return Ok(()),
    };
    let hint = "uncompress it first and import the plain archive";
    Err(Error::Unsupported { what: format!("the archive is compressed by {what}, which is not read here"), hint })
}

/// An output that compresses its input. It must be finished.
pub(crate) enum Encoder<W: Write> {
    None(W),
    Gzip(GzEncoder<W>),
    Zstd(zstd::Encoder<'static, W>),
    Xz(Box<XzWriter<W>>),
}

impl<W: Write> Encoder<W> {
    pub(crate) fn new(output: W, compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Self::None(output),
            Compression::Gzip => Self::Gzip(GzEncoder::new(output, flate2::Compression::default())),
            Compression::Zstd => Self::Zstd(zstd::Encoder::new(output, 0)?),
            Compression::Xz => Self::Xz(Box::new(XzWriter::new(output, XzOptions::with_preset(XZ_PRESET))?)),
        })
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Self::None(output) => Ok(output),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
            Self::Xz(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::None(output) => output.write(buffer),
            Self::Gzip(encoder) => encoder.write(buffer),
            Self::Zstd(encoder) => encoder.write(buffer),
            Self::Xz(encoder) => encoder.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::None(output) => output.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
            Self::Xz(encoder) => encoder.flush(),
        }
    }
}
